"""Training objectives: candidates, targets, losses, and that each of them learns to find documents; foreign ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from dsi_experiments.objectives.residual import DenseLogits, Residual
from dsi_experiments.objectives.rows import ROWS, objective_loss, phase
from dsi_experiments.objectives.tree import BestChildTargets, TreeObjective
from dsi_experiments.tree_targets import TreeTargets
from hypothesis import given, settings
from hypothesis import strategies as st

from dsi.config import GeneratorConfig, TrainingConfig
from dsi.contrastive.encoder import Encoder
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.tree import DocidTree
from dsi.generator import base
from dsi.generator.examples import DocidExamples
from dsi.generator.families import Families, FamilyTree
from dsi.generator.kinds import create_generator, load_generator
from dsi.generator.model import DocidGenerator
from dsi.generator.objectives import CrossEntropy, Task, find_objective
from dsi.generator.states import StateCache, write_states
from dsi.generator.trainer import train_generator
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.results import Trace
from tests.support.oracles import level_log_p, margin_of_paths
from tests.support.small import (
    WIDTH,
    as_batch,
    beam_search_for,
    random_batch,
    random_generator,
    random_queries,
    random_tree,
)

CPU = torch.device("cpu")
FOR_DIGITS = [*ROWS, "residual"]
"""The objectives of (level, digit) tokens."""


@settings(max_examples=25, deadline=None)
@given(documents=st.integers(4, 60), branching=st.sampled_from([2, 3, 10]), seed=st.integers(0, 1000))
def test_targets_of_packed_families_are_those_of_the_whole_tree(documents, branching, seed):
    tree = random_tree(max(documents, branching), branching=branching, seed=seed, leaf=2)
    families, targets = FamilyTree(tree, CPU), TreeTargets(tree)
    rng = torch.Generator().manual_seed(seed)
    relevant = torch.randint(-1, tree.num_places, (3, 4), generator=rng)
    relevant[:, 0] = relevant[:, 0].clamp(min=0)
    flags = torch.zeros(3, tree.num_places + 1)
    flags.scatter_(1, torch.where(relevant < 0, tree.num_places, relevant), 1.0)
    flags = flags[:, :-1]
    scores = torch.randint(0, 6, (3, tree.num_inner + tree.num_places), generator=rng).float()  # with ties
    others = families.above(torch.randint(tree.num_places, (3, 2), generator=rng))
    packed = families.pack(torch.cat([families.above(relevant), others], dim=1))
    z = families.holds_any(packed, relevant)
    zhat = BestChildTargets(tree, CPU)(packed, at_children(packed, scores, -torch.inf), z)
    assert torch.equal(z, at_children(packed, targets.any_below(flags), 0.0))
    assert torch.equal(zhat, at_children(packed, targets.estimated(scores, flags), 0.0))


def at_children(families: Families, values: torch.Tensor, missing: float) -> torch.Tensor:
    gathered = values.gather(1, families.children.clamp(min=0).flatten(1)).view(families.children.shape)
    return gathered.masked_fill(~families.exists, missing)


def objective_for(name: str, **settings: int) -> TreeObjective:
    tree = random_tree(60, branching=3, leaf=3)
    return find_objective(name)(Task(random_generator(tree, objective=name), tree), **settings)


def batch_of_three() -> dict[str, torch.Tensor]:
    states, mask, embeddings = random_queries(3)
    relevant = torch.tensor([[7], [50], [20]])
    return {"token_states": states, "states_mask": mask, "embeddings": embeddings, "relevant": relevant}


def parents_trained(objective: TreeObjective, row: str) -> set[int]:
    """The inner nodes whose children are trained for the first of three queries."""
    families, candidates = objective.candidates(ROWS[row], batch_of_three())
    assert torch.equal(candidates, families.exists & candidates.any(dim=2, keepdim=True))  # whole families
    return {int(node) for node, own in zip(families.parents[0], candidates[0].any(dim=1), strict=True) if own}


@pytest.mark.programs
def test_every_kind_of_candidates_selects_its_nodes():
    otm = objective_for("otm", beam_width=2, random_paths=3)
    tree, generator = otm.task.tree, otm.task.generator
    path = {int(node) for node in tree.paths(np.array([7]))[0][0] if node >= 0}
    assert parents_trained(otm, "ce") == parents_trained(otm, "plt") == path

    # The beam is the one that retrieval has: of every level the two best inner nodes by their own score.
    search, trace = beam_search_for(tree, generator), Trace()
    queries = search.queries(random_batch(3), SearchRequest(2, SearchConfig(alpha=1.0, beta=0.0)))
    search.descend(queries, 2, 2, None, trace)
    kept = {int(n) for level in trace.levels for n in level.nodes[0][level.kept[0]] if n < tree.num_inner}
    beam = {0} | kept
    assert len(beam) > 3
    assert parents_trained(otm, "otm") == parents_trained(otm, "otm-optest") == beam

    torch.manual_seed(0)
    drawn = [parents_trained(otm, "tdm") for _ in range(200)]
    assert all(path <= each for each in drawn)
    assert set().union(*drawn) == set(range(tree.num_inner))
    assert max(map(len, drawn)) <= len(path) + 3 * (tree.depth - 1)
    mixed = [parents_trained(otm, "otm-mix") for _ in range(50)]
    assert all(beam <= each for each in mixed)
    assert not all(path <= each for each in mixed)  # nothing relevant is forced in: candidates do not know the answer
    man = objective_for("man", beam_width=2)
    assert path < parents_trained(man, "man")
    assert man.task.generator.config.score == man.score == "sigmoid path"


@pytest.mark.parametrize("name", FOR_DIGITS)
def test_every_objective_has_a_gradient_for_every_weight(name):
    objective = objective_for(name)
    objective.loss(objective.task.generator, batch_of_three(), 0.9).backward()
    for weights, weight in objective.task.generator.named_parameters():
        assert weight.grad is not None, weights
        assert weight.grad.abs().sum() > 0, weights


def test_the_row_ce_is_the_objective_of_the_library():
    ripor = objective_for("ripor")
    expected = CrossEntropy(ripor.task).loss(ripor.task.generator, batch_of_three(), 0.0)
    torch.testing.assert_close(ripor.loss(ripor.task.generator, batch_of_three(), 0.0), expected)  # its warm-up


def test_losses_equal_their_definitions():
    rng = torch.Generator().manual_seed(0)
    logits, depths = torch.randn(2, 5, 4, generator=rng), torch.tensor([[0, 1, 1, 2, 2], [0, 1, 2, 2, 0]])
    logits[:, :, 3][:, 1:] = -torch.inf
    asked = (torch.rand(2, 5, 4, generator=rng) < 0.7) & (logits > -torch.inf)
    wanted = (torch.rand(2, 5, 4, generator=rng) < 0.4).float()
    bce, level = 0.0, 0.0
    for row in range(2):
        for family in range(5):
            for child in range(4):
                if asked[row, family, child]:
                    p, y = torch.sigmoid(logits[row, family, child]), wanted[row, family, child]
                    bce -= float(y * p.log() + (1 - y) * (1 - p).log()) / 2
        for depth in range(3):
            here = asked[row] & (depths[row] == depth)[:, None]
            own, want = logits[row][here], wanted[row][here]
            if want.sum():
                level -= float((want / want.sum() * own.log_softmax(0)).sum()) / 2
    assert objective_loss(ROWS["tdm"], logits, asked, wanted, depths).item() == pytest.approx(bce, rel=1e-5)
    assert objective_loss(ROWS["dtr"], logits, asked, wanted, depths).item() == pytest.approx(level, rel=1e-5)


@pytest.mark.parametrize("objective", ["ripor", "ltrgr"])
def test_margins_compare_the_right_path_with_all_that_the_beam_visits(objective):
    margin = objective_for(objective, beam_width=2)
    tree, generator, batch = margin.task.tree, margin.task.generator, batch_of_three()
    families, compared = margin.candidates(ROWS[objective], batch)
    log_p = level_log_p(tree, generator, batch["token_states"], batch["states_mask"])
    ce = -float(sum(log_p[query, right].sum() for query, (right,) in enumerate(batch["relevant"].tolist()))) / 3
    lacking = 0.0
    for query, (right,) in enumerate(batch["relevant"].tolist()):
        candidates = families.children[query][compared[query]].tolist()
        lacking += margin_of_paths(tree, ROWS[objective].margins, log_p[query], right, candidates) / 3
    assert lacking > 0.5
    assert margin.loss(generator, batch, 0.9).item() == pytest.approx(ce + lacking, rel=1e-4)
    assert margin.loss(generator, batch, 0.1).item() == pytest.approx(ce, rel=1e-4)  # learning to generate comes first


def test_tdm_comes_first_and_estimated_targets_step_by_step():
    otm, tdm = ROWS["otm"], ROWS["tdm"]
    assert phase(otm, 0.29) == (tdm, 0.0)
    assert phase(otm, 0.30) == (otm, pytest.approx(0.0))
    assert phase(otm, 0.475) == (otm, pytest.approx(0.5))
    assert phase(otm, 0.9) == (otm, 1.0)
    assert phase(ROWS["otm-optest"], 0.9)[1] == 0.0
    for name in ("ripor", "ltrgr"):
        assert phase(ROWS[name], 0.29) == (ROWS["ce"], 0.0)
        assert phase(ROWS[name], 0.30) == (ROWS[name], 0.0)
    for name in ("ce", "plt", "tdm", "man"):
        assert phase(ROWS[name], 0.0) == (ROWS[name], 0.0)


TEXTS = ["the danube passes four capitals", "neon", "helium fills balloons and airships", "a river"]


def states_of(encoder: Encoder, folder: Path) -> StateCache:
    """The cached states of `TEXTS` as queries."""
    return StateCache(write_states(encoder, "query", TEXTS, folder / "states"))


@pytest.fixture
def examples(encoder, tmp_path):
    points = np.random.default_rng(0).normal(size=(40, WIDTH)).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)  # sigmoids of scores of longer vectors are all 1
    tree = build_tree(points, DocidsConfig(branching=3, max_leaf_size=3))
    positions = np.array([0, 11, 25, 39])
    return DocidExamples(states_of(encoder, tmp_path), positions, tree, {2: [25, 3]})


VARIANTS = {"otm-bs", "otm-optest", "otm-mix", "man", "dtr", "ripor", "ltrgr"}
"""Of objectives that are trained in every run of the suite; these are in the slow ones."""


@pytest.mark.parametrize(
    "objective", [pytest.param(name, marks=[pytest.mark.slow] * (name in VARIANTS)) for name in ROWS]
)  # "residual" finds them only together with dense search, see below
def test_every_objective_learns_to_find_documents_from_text(objective, examples, tmp_path, monkeypatch):
    monkeypatch.setattr(base, "DROPOUT", 0.0)
    config = GeneratorConfig(docid_tokens="digits", num_layers=1)
    generator = create_generator(config, examples.tree, WIDTH, objective)
    training = TrainingConfig(objective=objective, batch_size=4, epochs=150, learning_rate=3e-3)
    train_generator(generator, examples, training, tmp_path / "work")
    generator.save_pretrained(str(tmp_path / "generator"))
    search = beam_search_for(examples.tree, load_generator(tmp_path / "generator", "cpu"))
    batch = examples.collate([0, 1, 2, 3])
    assert batch["relevant"].tolist() == [[0, -1], [11, -1], [25, 3], [39, -1]]
    states, mask, embeddings = (batch[name] for name in ("token_states", "states_mask", "embeddings"))
    queries = as_batch(states.float(), mask, embeddings, TEXTS)
    request = SearchRequest(2, SearchConfig(alpha=1.0, beta=0.0, beam_width=4))
    found = search.methods["generate"].retrieve(queries, request).positions
    assert found[[0, 1, 3], 0].tolist() == [0, 11, 39]
    assert set(found[2].tolist()) == {25, 3}  # both documents of the third text
    assert search.score == find_objective(objective).score


def children_of(tree: DocidTree, parents: torch.Tensor) -> torch.Tensor:
    """[batch, n, largest fan-out] the children of inner nodes [batch, n], -1 where there is none."""
    digits, known = torch.arange(max(tree.fan_out)), parents.clamp(min=0)
    exists = (digits < torch.from_numpy(tree.num_children)[known][:, :, None]) & (parents >= 0)[:, :, None]
    return (torch.from_numpy(tree.first_child)[known][:, :, None].long() + digits).masked_fill(~exists, -1)


@pytest.mark.parametrize(("documents", "branching"), [(37, 3), (60, 4), (4, 4)])
def test_dense_logits_along_a_path_are_the_softmax_of_flat_dense_search_and_frequencies(documents, branching):
    tree = random_tree(documents, branching=branching, leaf=2)
    parents, digits = tree.paths(np.arange(documents))
    query = random_queries(1)[2]
    frequencies = torch.randn(documents)
    dense = DenseLogits(tree, 0.3, frequencies, CPU)
    logits = dense(query.expand(documents, -1), children_of(tree, torch.from_numpy(parents).long()))
    found = torch.zeros(documents)
    for document in range(documents):
        for level, node in enumerate(parents[document]):
            if node >= 0:
                own = logits[document, level, : tree.num_children[node]].log_softmax(0)
                found[document] += own[digits[document, level]]
    expected = (query @ torch.from_numpy(tree.embeddings[:]).T / 0.3 + frequencies).log_softmax(dim=1)[0]
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)

    # They are added to the decoder's logits: one whose logits are 0 leaves dense search.
    generator = random_generator(tree)
    residual = Residual(Task(generator, tree))
    residual.dense = dense
    states, mask, _ = random_queries(1)
    with torch.no_grad():
        generator.head.weight.zero_()
    for document in range(0, documents, 5):
        batch = {
            "token_states": states,
            "states_mask": mask,
            "embeddings": query,
            "relevant": torch.tensor([[document]]),
        }
        loss = residual.loss(generator, batch, 0.0).item()
        assert loss == pytest.approx(-expected[document].item(), abs=1e-3)


def test_training_on_top_of_dense_search_starts_from_it_and_improves_on_it(encoder, tmp_path):
    points = (
        np.random.default_rng(0).normal(size=(20, WIDTH)).astype(np.float32) * 0.06
    )  # scores differ by a few temperatures
    tree = build_tree(points, DocidsConfig(branching=4, max_leaf_size=4))
    examples = DocidExamples(states_of(encoder, tmp_path), np.array([0, 5, 11, 19]), tree)
    batch, config = examples.collate([0, 1, 2, 3]), GeneratorConfig(docid_tokens="digits", num_layers=1)

    def loss_of(generator: DocidGenerator) -> float:
        residual = Residual(Task(generator, tree, positions=examples.positions))
        with torch.no_grad():
            return residual.loss(generator.eval(), batch, 0.0).item()

    together = {}
    for name in ("ce", "residual"):
        training = TrainingConfig(objective=name, batch_size=4, epochs=60.0, learning_rate=3e-3)
        generator = create_generator(config, tree, WIDTH, name)
        train_generator(generator, examples, training, tmp_path / name)
        together[name] = loss_of(generator)
    with torch.no_grad():
        generator.head.weight.zero_()
    assert together["residual"] < 0.1 < loss_of(generator)
    assert together["residual"] < together["ce"]  # a standalone decoder does not know the dense scores


def test_documents_that_are_frequent_in_training_score_higher_there():
    tree = random_tree(6)
    frequencies = Residual(Task(random_generator(tree), tree, positions=np.array([0, 5, 5]))).dense.log_frequencies
    torch.testing.assert_close(frequencies, torch.tensor([1.01, 0.01, 0.01, 0.01, 0.01, 2.01]).log())
