"""Objectives of the text generator: what is asked, what it should say, and that every one of them learns to find documents."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from dsi_experiments.tree_targets import TreeTargets
from hypothesis import given, settings
from hypothesis import strategies as st

from contrastive.encoder import Encoder
from docids.clustering import DocidsConfig, build_tree
from dsi.generator import base
from dsi.generator.config import CE, GeneratorConfig, ObjectiveConfig, TrainingConfig
from dsi.generator.kinds import create_generator, load_generator
from dsi.generator.model import DocidGenerator
from dsi.generator.states import StateCache, write_states
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.results import Trace
from dsi.training.examples import DocidExamples
from dsi.training.objective import GeneratorLoss
from dsi.training.trainer import train_generator
from dsi.trees.families import Families, FamilyTree
from dsi.trees.objectives import OBJECTIVES, find_objective, objective_loss, phase
from tests.conftest import WIDTH, beam_search_for, random_batch, random_generator, random_queries, random_tree
from tests.oracles import level_log_p, margin_of_paths

CPU = torch.device("cpu")
FOR_DIGITS = [name for name in OBJECTIVES if name != "estimate"]
"""The objectives of (level, digit) tokens."""


@settings(max_examples=25, deadline=None)
@given(documents=st.integers(4, 60), branching=st.sampled_from([2, 3, 10]), seed=st.integers(0, 1000))
def test_targets_of_packed_families_are_those_of_the_whole_tree(documents, branching, seed):
    tree = random_tree(max(documents, branching), branching=branching, seed=seed, leaf=2)
    families, targets = FamilyTree(tree, CPU), TreeTargets(tree)
    rng = torch.Generator().manual_seed(seed)
    relevant = torch.randint(-1, tree.num_documents, (3, 4), generator=rng)
    relevant[:, 0] = relevant[:, 0].clamp(min=0)
    flags = torch.zeros(3, tree.num_documents + 1)
    flags.scatter_(1, torch.where(relevant < 0, tree.num_documents, relevant), 1.0)
    flags = flags[:, :-1]
    scores = torch.randint(0, 6, (3, tree.num_inner + tree.num_documents), generator=rng).float()  # with ties
    others = families.above(torch.randint(tree.num_documents, (3, 2), generator=rng))
    packed = families.pack(torch.cat([families.above(relevant), others], dim=1))
    z = families.holds_any(packed, relevant)
    zhat = families.estimated(packed, at_children(packed, scores, -torch.inf), z)
    assert torch.equal(z, at_children(packed, targets.any_below(flags), 0.0))
    assert torch.equal(zhat, at_children(packed, targets.estimated(scores, flags), 0.0))


def at_children(families: Families, values: torch.Tensor, missing: float) -> torch.Tensor:
    gathered = values.gather(1, families.children.clamp(min=0).flatten(1)).view(families.children.shape)
    return gathered.masked_fill(~families.exists, missing)


def loss_for(objective: str, **settings: object) -> tuple[GeneratorLoss, DocidGenerator]:
    tree = random_tree(60, branching=3, leaf=3)
    generator = random_generator(tree, objective=objective)
    return GeneratorLoss(generator, tree, ObjectiveConfig(objective, **settings), CPU), generator


def parents_asked(loss: GeneratorLoss, objective: str, row: int = 0) -> set[int]:
    states, mask, _ = random_queries(3)
    relevant = torch.tensor([[7], [50], [20]])
    batch = {"token_states": states, "states_mask": mask, "relevant": relevant}
    families, asked = loss.ask(find_objective(objective), batch)
    assert torch.equal(asked, families.exists & asked.any(dim=2, keepdim=True))  # whole families
    return {int(node) for node, own in zip(families.parents[row], asked[row].any(dim=1), strict=True) if own}


def test_every_kind_of_candidates_asks_what_it_says():
    loss, generator = loss_for("otm", training_beam=2, random_paths=3)
    tree = loss.tree
    path = {int(node) for node in tree.paths(np.array([7]))[0][0] if node >= 0}
    assert parents_asked(loss, "ce") == parents_asked(loss, "plt") == path

    # The beam is the one that retrieval has: of every level the two best inner nodes by their own score.
    search, trace = beam_search_for(tree, generator), Trace()
    queries = search.queries(random_batch(3), SearchRequest(2, SearchConfig(alpha=1.0, beta=0.0)))
    search.descend(queries, 2, 2, None, trace)
    kept = {int(n) for level in trace.levels for n in level.nodes[0][level.kept[0]] if n < tree.num_inner}
    beam = {0} | kept
    assert len(beam) > 3
    assert parents_asked(loss, "otm") == parents_asked(loss, "otm-optest") == beam

    torch.manual_seed(0)
    drawn = [parents_asked(loss, "tdm") for _ in range(200)]
    assert all(path <= each for each in drawn)
    assert set().union(*drawn) == set(range(tree.num_inner))
    assert max(map(len, drawn)) <= len(path) + 3 * (tree.depth - 1)
    mixed = [parents_asked(loss, "otm-mix") for _ in range(50)]
    assert all(beam <= each for each in mixed)
    assert not all(path <= each for each in mixed)  # nothing relevant is forced in: candidates do not know the answer
    man, generator_of_man = loss_for("man", training_beam=2)
    assert path < parents_asked(man, "man")
    assert generator_of_man.objective.score == "sigmoid path"


def test_the_beam_phase_leaves_no_gradient_and_the_other_one_reaches_every_weight():
    for objective in FOR_DIGITS:
        loss, generator = loss_for(objective, training_beam=3, random_paths=2)
        states, mask, _ = random_queries(3)
        relevant = torch.tensor([[7], [50], [20]])
        loss(generator, {"token_states": states, "states_mask": mask, "relevant": relevant}, 0.9).backward()
        for name, weight in generator.named_parameters():
            assert weight.grad is not None, (objective, name)
            assert weight.grad.abs().sum() > 0, (objective, name)


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
    assert objective_loss(find_objective("tdm"), logits, asked, wanted, depths).item() == pytest.approx(bce, rel=1e-5)
    assert objective_loss(find_objective("dtr"), logits, asked, wanted, depths).item() == pytest.approx(level, rel=1e-5)


@pytest.mark.parametrize("objective", ["ripor", "ltrgr"])
def test_margins_compare_the_right_path_with_all_that_the_beam_visits(objective):
    loss, generator = loss_for(objective, training_beam=2)
    tree, (states, mask, _), relevant = loss.tree, random_queries(3), torch.tensor([[7], [50], [20]])
    batch = {"token_states": states, "states_mask": mask, "relevant": relevant}
    families, asked = loss.ask(find_objective(objective), batch)
    log_p, margins = level_log_p(tree, generator, states, mask), find_objective(objective).margins
    ce = -float(sum(log_p[query, right].sum() for query, (right,) in enumerate(relevant.tolist()))) / 3
    lacking = 0.0
    for query, (right,) in enumerate(relevant.tolist()):
        candidates = families.children[query][asked[query]].tolist()
        lacking += margin_of_paths(tree, margins, log_p[query], right, candidates) / 3
    assert lacking > 0.5
    assert loss(generator, batch, 0.9).item() == pytest.approx(ce + lacking, rel=1e-4)
    assert loss(generator, batch, 0.1).item() == pytest.approx(ce, rel=1e-4)  # learning to generate comes first


def test_tdm_comes_first_and_estimated_targets_step_by_step():
    otm, tdm = find_objective("otm"), find_objective("tdm")
    assert phase(otm, 0.29, 0.3, 0.5) == (tdm, 0.0)
    assert phase(otm, 0.30, 0.3, 0.5) == (otm, pytest.approx(0.0))
    assert phase(otm, 0.475, 0.3, 0.5) == (otm, pytest.approx(0.5))
    assert phase(otm, 0.9, 0.3, 0.5) == (otm, 1.0)
    assert phase(find_objective("otm-optest"), 0.9, 0.3, 0.5)[1] == 0.0
    for name in ("ripor", "ltrgr"):
        assert phase(find_objective(name), 0.29, 0.3, 0.5) == (find_objective("ce"), 0.0)
        assert phase(find_objective(name), 0.30, 0.3, 0.5) == (find_objective(name), 0.0)
    for name in ("ce", "plt", "tdm", "man"):
        assert phase(find_objective(name), 0.0, 0.3, 0.5) == (find_objective(name), 0.0)


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
    return DocidExamples(states_of(encoder, tmp_path), positions, np.zeros(4, dtype=int), tree, {2: [25, 3]})


@pytest.mark.parametrize("objective", FOR_DIGITS)
def test_every_objective_learns_to_find_documents_from_text(objective, examples, tmp_path, monkeypatch):
    monkeypatch.setattr(base, "DROPOUT", 0.0)
    config = GeneratorConfig(docid_tokens="digits", num_layers=1)
    taught = dataclasses.replace(CE, name=objective, training_beam=4, random_paths=4)
    generator = create_generator(config, examples.tree, WIDTH, taught)
    training = TrainingConfig(batch_size=4, epochs=150, learning_rate=3e-3)
    train_generator(generator, examples, taught, training, tmp_path / "work")
    generator.save_pretrained(str(tmp_path / "generator"))
    search = beam_search_for(examples.tree, load_generator(tmp_path / "generator", "cpu"))
    batch = examples.collate([0, 1, 2, 3])
    assert batch["relevant"].tolist() == [[0, -1], [11, -1], [25, 3], [39, -1]]
    states, mask, embeddings = (batch[name] for name in ("token_states", "states_mask", "embeddings"))
    queries = QueryBatch(torch.arange(4), states.float(), mask, embeddings, TEXTS)
    request = SearchRequest(2, SearchConfig(alpha=1.0, beta=0.0, beam_width=4))
    found = search.methods["generate"].retrieve(queries, request).positions
    assert found[[0, 1, 3], 0].tolist() == [0, 11, 39]
    assert set(found[2].tolist()) == {25, 3}  # both documents of the third text
    assert search.decoder.score == OBJECTIVES[objective].score
