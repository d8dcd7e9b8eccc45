"""Searches in docids of words: against T5's own probabilities, and a whole index that is trained, updated and kept."""

import dataclasses

import numpy as np
import pytest

import dsi
from dsi.config import Config
from dsi.docids.updating import add_documents
from dsi.search.request import SearchConfig, SearchRequest
from tests.support.small import WIDTH, beam_search_for, random_batch
from tests.support.word_docids import TITLES, log_p_of_t5, title_tree, word_generator

ALONE = SearchConfig(alpha=1.0, beta=0.0, beam_width=8)


@pytest.fixture
def titles(t5_folder):
    return title_tree(t5_folder)


@pytest.fixture
def generator(titles, t5_folder):
    return word_generator(*titles, t5_folder)


@pytest.mark.parametrize("beam_width", [8, 20])  # wide enough for everything; with and without room for all first words
def test_a_search_ranks_titles_as_t5_does(titles, generator, t5_folder, beam_width):
    (tree, numbers), batch = titles, random_batch(3)
    search = beam_search_for(tree, generator)
    request = SearchRequest(len(TITLES), dataclasses.replace(ALONE, beam_width=beam_width))
    expected, order = log_p_of_t5(t5_folder, tree, numbers, batch.states, batch.mask).sort(dim=1, descending=True)
    for method in ("generate", "exact"):
        found = search.methods[method].retrieve(batch, request)
        np.testing.assert_allclose(found.scores, expected, atol=1e-4, rtol=1e-4)
        assert found.positions.tolist() == order.tolist()
    followed = search.follow(batch, request, tree.doc_rows[order.numpy()])
    np.testing.assert_allclose(followed.scores, expected, atol=1e-4, rtol=1e-4)


def test_added_documents_leave_the_probabilities_of_the_others(titles, generator, t5_folder):
    (tree, numbers), batch = titles, random_batch(3)
    before = log_p_of_t5(t5_folder, tree, numbers, batch.states, batch.mask).numpy()
    grown = add_documents(tree, np.random.default_rng(1).normal(size=(5, WIDTH)).astype(np.float32))
    search, same_documents = beam_search_for(grown, generator), np.tile(tree.doc_rows, (3, 1))
    after = search.follow(batch, SearchRequest(8, ALONE), same_documents).scores
    assert (after <= before + 1e-4).all()  # a new sibling takes some of the probability of the others
    assert (np.abs(after - before) < 1e-4).any()  # the others keep theirs
    found = search.methods["exact"].retrieve(batch, SearchRequest(13, ALONE))
    np.testing.assert_allclose(np.exp(found.scores).sum(axis=1), 1.0, atol=1e-4)


@pytest.mark.programs
def test_an_index_of_titles_is_trained_searched_updated_and_kept(beir, sentence_t5_folder, t5_folder, tmp_path):
    changes = {
        "encoder": {"name": str(sentence_t5_folder), "document_length": 16},
        "pseudo_queries": {"method": "none"},
        "contrastive": {"loss": "none"},
        "docids": {"method": "title"},
        "generator": {"docid_tokens": "words", "decoder": str(t5_folder)},
        "training": {"epochs": 30.0, "batch_size": 16, "learning_rate": 3e-3},
        "search": {
            "lexical_weight": 0.0,
            "token_weight": 0.0,
            "alpha": 1.0,
            "beta": 0.0,
            "beam_width": 10,
        },
    }
    collection = dsi.read_collection(beir())
    retriever = dsi.train(
        collection, tmp_path / "run", config=Config(dev_queries=0).with_changes(changes), device="cpu"
    )
    queries = collection.query_texts("train")
    right = collection.qrels["train"]
    run = retriever.run(queries, 10)
    hits = sum(max(run[query_id], key=run[query_id].get) in right[query_id] for query_id in queries) / len(queries)
    assert hits > 0.5  # chance is 1 in 40
    retriever.add([{"doc_id": "neretva", "title": "Neretva", "text": "A river in Bosnia and Croatia."}])
    retriever.save(tmp_path / "kept")
    again = dsi.load(tmp_path / "kept", device="cpu")
    assert again.run(queries, 10) == retriever.run(queries, 10)
    retriever.remove(["neretva"])
    assert retriever.run(queries, 10) == run
