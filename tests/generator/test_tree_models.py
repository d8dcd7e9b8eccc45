"""Tree models: targets and beams against slow definitions and the paper's numbers, every objective, bad input."""

import json
import math

import numpy as np
import pytest
import torch
from dsi_experiments.objectives.rows import ROWS
from dsi_experiments.objectives.tree import BestChildTargets
from dsi_experiments.regret import regret
from dsi_experiments.toy import _sampled_scores, algorithm_1, complete_tree, gradient, toy, toy_table
from dsi_experiments.tree_model import TreeModel, TreeModelConfig
from dsi_experiments.tree_targets import TreeTargets, ranking_scores
from hypothesis import given, settings
from hypothesis import strategies as st

from dsi.commands.main import main
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.tree import DocidTree
from dsi.generator.families import FamilyTree
from tests.support.oracles import children_of, estimated_target
from tests.support.small import random_tree
from tests.support.tables import table_rows

CPU = torch.device("cpu")
shapes = {"documents": st.integers(4, 60), "branching": st.sampled_from([2, 3, 10]), "seed": st.integers(0, 1000)}


def tree_of(documents: int, branching: int, seed: int) -> DocidTree:
    """Clusters of random points: leaves at different depths."""
    return random_tree(max(documents, branching), branching=branching, seed=seed, leaf=2)


def test_figure_1_of_the_paper():
    targets = TreeTargets(complete_tree(8, 2))
    eta = torch.tensor([[0.8, 0.3, 0.7, 0.2, 0.4, 0.9, 0.5, 0.4]])
    relevant = torch.zeros(1, 8)
    relevant[0, [2, 5, 7]] = 1  # labels 3, 6 and 8
    assert targets.any_below(relevant)[0].nonzero()[:, 0].tolist() == [0, 1, 2, 4, 5, 6, 9, 12, 14]
    assert targets.best_relevant(eta, relevant)[0].nonzero()[:, 0].tolist() == [0, 2, 4, 5, 9, 12, 14]


@settings(max_examples=30, deadline=None)
@given(**shapes, k=st.integers(1, 12))
def test_ranking_by_the_best_document_below_loses_nothing_at_any_beam(documents, branching, seed, k):
    tree = tree_of(documents, branching, seed)
    targets, k = TreeTargets(tree), min(k, tree.num_places)
    eta = torch.rand(3, tree.num_places, generator=torch.Generator().manual_seed(seed))
    scores = targets.best_below(eta)
    found = targets.search(scores, k, k)
    assert found.tolist() == eta.topk(k, dim=1).indices.tolist()  # Proposition 1
    assert regret(eta.numpy(), found.numpy()).max() == 0


@settings(max_examples=10, deadline=None)
@given(**shapes)
def test_targets_and_scores_equal_their_slow_definitions(documents, branching, seed):
    tree = tree_of(documents, branching, seed)
    targets, rng = TreeTargets(tree), torch.Generator().manual_seed(seed)
    relevant = (torch.rand(2, tree.num_places, generator=rng) < 0.2).float()
    logits = torch.randn(2, tree.num_inner + tree.num_places, generator=rng)
    z = targets.any_below(relevant)
    log_p, sums = targets.sibling_log_softmax(logits), targets.path_sums(logits)
    for row in range(2):
        assert sums[row, 0] == 0
        for node in range(tree.num_inner):
            below = relevant[row, tree.doc_start[node] : tree.doc_end[node]]
            assert z[row, node] == below.max()
            own = list(children_of(tree, node))
            torch.testing.assert_close(log_p[row, own], logits[row, own].log_softmax(0))
            torch.testing.assert_close(sums[row, own], sums[row, node] + logits[row, own])
    torch.testing.assert_close(
        ranking_scores(targets, logits, "softmax path")[:, tree.num_inner :].exp().sum(dim=1), torch.ones(2)
    )


@settings(max_examples=25, deadline=None)
@given(**shapes, levels=st.sampled_from([2, 4, 10_000]))
def test_estimated_targets_equal_their_recursion(documents, branching, seed, levels):
    """Few levels of scores tie at most nodes; clusters of random points have leaves at different depths."""
    tree, rng = tree_of(documents, branching, seed), torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (2, tree.num_inner + tree.num_places), generator=rng).float()
    relevant = (torch.rand(2, tree.num_places, generator=rng) < 0.3).float()
    relevant[:, 0] = 1  # training has no instance without a relevant document
    whole = TreeTargets(tree).estimated(scores, relevant)

    # The same over the families above the relevant documents, as training on docids packs them.
    family_tree = FamilyTree(tree, CPU)
    positions = torch.where(relevant > 0, torch.arange(tree.num_places), -1)
    families = family_tree.pack(family_tree.above(positions))
    own = scores.gather(1, families.children.clamp(min=0).flatten(1)).view(families.children.shape)
    logits = own.masked_fill(~families.exists, -torch.inf)
    packed = BestChildTargets(tree, CPU)(families, logits, family_tree.holds_any(families, positions))

    for row in range(2):
        expected = [
            estimated_target(tree, scores[row].tolist(), relevant[row].tolist(), node)
            for node in range(scores.shape[1])
        ]
        assert whole[row].tolist() == expected
        for children, found in zip(families.children[row].tolist(), packed[row].tolist(), strict=True):
            assert found == [expected[node] if node >= 0 else 0.0 for node in children]


@settings(max_examples=12, deadline=None)
@given(**shapes)
def test_ties_are_for_the_positive_and_one_relevant_path_is_a_reverse_and(documents, branching, seed):
    tree = tree_of(documents, branching, seed)
    targets = TreeTargets(tree)
    relevant = torch.zeros(1, tree.num_places)
    right = seed % tree.num_places
    relevant[0, right] = 1
    level_scores = torch.zeros(1, tree.num_inner + tree.num_places)
    assert torch.equal(targets.estimated(level_scores, relevant), targets.any_below(relevant))  # all tie: z
    scores = torch.randn(level_scores.shape, generator=torch.Generator().manual_seed(seed))
    zhat = targets.estimated(scores, relevant)[0]
    parents, digits = tree.paths(np.array([right]))
    path = [node for node in parents[0] if node >= 0]
    wins = []
    for node, digit in zip(path, digits[0], strict=False):
        own = list(children_of(tree, int(node)))
        wins.append(int(scores[0, own].argmax()) == digit)
    assert [bool(zhat[int(node)]) for node in path] == [all(wins[level:]) for level in range(len(path))]
    assert zhat.sum() == sum(all(wins[level:]) for level in range(len(path))) + 1


def test_iterating_estimated_targets_ends_at_the_best_mean_below():
    targets = TreeTargets(complete_tree(64, 2))
    means = torch.rand(1, 64, generator=torch.Generator().manual_seed(0))
    scores = torch.rand(1, 127, generator=torch.Generator().manual_seed(1))
    for _ in range(7):
        scores = targets.estimated(scores, means)
    torch.testing.assert_close(scores, targets.best_below(means))


def test_the_toy_experiment_gives_the_reproduced_numbers(monkeypatch):
    monkeypatch.setattr("dsi_experiments.toy.STEPS", 3)
    cells = toy(40, seed=1, sizes=(100, math.inf), ks=(1, 5, 50))
    # Means of 2,000 runs of an independent implementation.
    expected = {
        ("z", 1, 100): 0.1058, ("z", 5, 100): 0.0749, ("z", 50, 100): 0.0414,
        ("z", 1, math.inf): 0.0212, ("z", 5, math.inf): 0.0161, ("z", 50, math.inf): 0.0117,
        ("z, float32", 1, math.inf): 0.0544, ("z, float32", 5, math.inf): 0.0331,
        ("z*", 1, 100): 0.0051, ("z*", 50, 100): 0.0045, ("zhat", 1, 100): 0.0089, ("zhat", 50, 100): 0.0048,
    }  # fmt: skip
    for (name, k, size), value in expected.items():
        found, error = cells[name][k, size]
        assert abs(found - value) < 3.5 * error + 1e-3, (name, k, size, found, value)
    for name in ("z*", "zhat"):
        assert cells[name][1, math.inf][0] == 0
    text = toy_table(cells, 40)
    assert ["k", "N = 100", "N = inf"] in table_rows(text)
    assert "[0.059]" in text


def test_the_toy_experiment_is_a_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dsi_experiments.toy.STEPS", 3)
    assert main(["reproduce", "toy", "--runs", "2", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == (tmp_path / "toy.md").read_text().strip()
    assert len(json.loads((tmp_path / "toy.json").read_text())["cells"]) == 95
    assert main(["reproduce", "table3", "--output", str(tmp_path)]) == 2
    assert "table3 is measured on a collection: give --data and --config" in capsys.readouterr().err


def test_a_step_of_algorithm_1_is_the_gradient_of_its_loss():
    targets, k = TreeTargets(complete_tree(16, 2)), 2
    tree = targets.tree
    torch.manual_seed(0)
    logits = torch.randn(1, tree.num_inner + tree.num_places, requires_grad=True)
    minibatch = torch.rand(6, tree.num_places) < 0.4
    of = logits.detach()[0].tolist()

    def children(node):
        return range(tree.first_child[node], tree.first_child[node] + tree.num_children[node])

    def target(node, relevant):
        """Eq. 15, as it is written."""
        if node >= tree.num_inner:
            return float(relevant[node - tree.num_inner])
        return target(max(children(node), key=of.__getitem__), relevant)

    loss, beam = 0.0, [0]
    while beam := [node for node in beam if node < tree.num_inner]:
        candidates = [child for node in beam for child in children(node)]
        for node in candidates:
            expected = torch.tensor([target(node, relevant) for relevant in minibatch])
            own = logits[0, node].expand(len(expected))
            loss = loss + torch.nn.functional.binary_cross_entropy_with_logits(own, expected)
        beam = sorted(candidates, key=of.__getitem__, reverse=True)[:k]
    loss.backward()
    found = gradient(targets, logits.detach(), minibatch.float().mean(dim=0, keepdim=True), k)
    torch.testing.assert_close(found, logits.grad)


def test_algorithm_1_leaves_nodes_outside_its_beam_untrained():
    targets = TreeTargets(complete_tree(64, 2))
    eta = torch.linspace(0, 1, 64).expand(2, -1)
    torch.manual_seed(0)
    logits = algorithm_1(targets, torch.rand(2, 100, 64) < eta[:, None], 2, steps=100)
    trained = (logits[:, 1:].abs() > 0.1).float().mean().item()
    assert 0.05 < trained < 0.6
    everywhere = algorithm_1(targets, torch.rand(2, 100, 64) < eta[:, None], 64, steps=100)
    assert (everywhere[:, 1:].abs() > 0.1).float().mean() > 0.9
    chosen = targets.search(everywhere, 1, 1)
    assert regret(eta.numpy(), chosen.numpy()).max() < 0.05


def test_the_product_of_conditionals_is_the_direct_estimate():
    targets = TreeTargets(complete_tree(32, 2))
    torch.manual_seed(0)
    eta = torch.rand(2, 32, dtype=torch.float64) * 0.1
    scores = _sampled_scores(targets, eta, torch.rand(2, 50, 32) < eta[:, None])
    torch.testing.assert_close(scores["hierarchical z"], scores["z"], rtol=1e-12, atol=1e-15)


def clustered_data(seed: int = 0) -> tuple[np.ndarray, np.ndarray, DocidTree]:
    """400 instances, 40 labels in a tree: a label is relevant where its direction is near; one or two an instance."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(40, 12))
    features = rng.normal(size=(400, 12)).astype(np.float32)
    closeness = features @ directions.T
    relevant = closeness >= np.sort(closeness, axis=1)[:, -2:-1] + rng.integers(0, 2, size=(400, 1))
    relevant[np.arange(400), closeness.argmax(axis=1)] = True
    tree = build_tree(directions.astype(np.float32), DocidsConfig(branching=4, max_leaf_size=4))
    return features, relevant.astype(np.float32), tree


FOR_LABELS = [name for name, row in ROWS.items() if not row.margins]


@pytest.mark.parametrize("objective", FOR_LABELS)
def test_every_objective_learns_to_find_labels(objective):
    features, relevant, tree = clustered_data()
    config = TreeModelConfig(
        objective=objective, beam_width=5, random_nodes=10, epochs=24, batch_size=50, learning_rate=5e-2
    )
    model = TreeModel(tree, 12, config)
    losses = model.fit(features, relevant)
    assert losses[-1] < losses[0]
    best = model.search(features, 1, 5)[:, 0]
    right = relevant[np.arange(400), best]
    assert right.mean() > 0.7  # of 40 labels 1.5 are relevant: chance is 0.04
    assert model.search(features[:2], 50, 1000).shape == (2, 40)  # wider than the tree: all labels


def test_regret_is_what_the_best_would_have_had_more():
    probabilities = np.array([[0.1, 0.9, 0.5, 0.2]])
    assert regret(probabilities, np.array([[1, 2]]))[0] == 0
    assert regret(probabilities, np.array([[0, 2]]))[0] == pytest.approx(0.4)
    assert regret(probabilities, np.array([[1, -1]]))[0] == pytest.approx(0.25)
