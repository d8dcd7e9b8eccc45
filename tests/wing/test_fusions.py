"""Fusions from stored scores: paths by hand, ties, and that one softmax over all documents ranks as flat dense search does."""

import numpy as np
import pytest
import torch
from dsi_experiments.fusions import ANN, FUSIONS, Siblings, ann_scores, fused, generator_scores, path_sums, ranks

from dsi.search.queries import EncodedQueries
from dsi.search.request import SearchConfig, SearchRequest
from tests.support.small import beam_search_for, random_batch, random_generator, random_tree


@pytest.fixture(scope="module")
def made():
    """A tree, what the decoder says of its nodes, and queries."""
    tree = random_tree(60)
    generator, batch = random_generator(tree), random_batch(5)
    encoded = EncodedQueries([str(row) for row in range(5)], [batch])
    return tree, generator, batch, encoded


def test_siblings_share_one_and_paths_all_of_it(made):
    tree, generator, _, encoded = made
    siblings = Siblings.of(tree)
    scores = generator_scores(generator, tree, siblings, encoded)
    for node in range(tree.num_inner):
        children = slice(tree.first_child[node], tree.first_child[node] + tree.num_children[node])
        np.testing.assert_allclose(np.exp(scores[:, children]).sum(axis=1), 1, rtol=1e-4)
    np.testing.assert_allclose(np.exp(path_sums(tree, scores)).sum(axis=1), 1, rtol=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_the_product_over_centroids_is_what_the_search_computes(made, alpha):
    tree, generator, batch, encoded = made
    siblings = Siblings.of(tree)
    encoder = ann_scores(tree, siblings, batch.embeddings, "centroids", 0.5)
    mine = fused(tree, "product", generator_scores(generator, tree, siblings, encoded), encoder, alpha)
    config = SearchConfig(method="exact", alpha=alpha, ann_temperature=0.5)
    found = beam_search_for(tree, generator).methods["exact"].retrieve(batch, SearchRequest(5, config))
    best = np.take_along_axis(mine, found.positions, axis=1)
    np.testing.assert_allclose(best, found.scores, rtol=1e-3, atol=1e-3)


def test_one_softmax_ranks_as_flat_search_and_alpha_0_and_1_are_the_two_alone(made):
    tree, generator, batch, encoded = made
    siblings = Siblings.of(tree)
    decoder = generator_scores(generator, tree, siblings, encoded)
    dense = batch.embeddings @ tree.embeddings[:].T
    for kind in ANN:
        encoder = ann_scores(tree, siblings, batch.embeddings, kind, 0.5)
        for fusion in FUSIONS:
            np.testing.assert_allclose(fused(tree, fusion, decoder, encoder, 0.0), path_sums(tree, encoder), atol=1e-3)
            np.testing.assert_allclose(fused(tree, fusion, decoder, encoder, 1.0), path_sums(tree, decoder), atol=1e-3)
    flat = path_sums(tree, ann_scores(tree, siblings, batch.embeddings, "one softmax", 0.5))
    expected = torch.from_numpy(dense / 0.5).log_softmax(dim=1).numpy()
    np.testing.assert_allclose(flat, expected, rtol=1e-3, atol=1e-3)


def test_ranks_take_the_best_relevant_document_and_break_ties_in_docid_order():
    scores = np.array([[0.5, 0.9, 0.9, 0.1], [0.2, 0.2, 0.2, 0.2]])
    assert ranks(scores, [np.array([0, 2]), np.array([3])]).tolist() == [2, 4]
