"""PUCT against brute force; alpha-nDCG against ndeval; M2Div's losses, teachers and lists."""

from itertools import permutations

import ir_measures
import numpy as np
import pytest
import torch
from dsi_experiments.rerankers.alpha_ndcg import AlphaNdcg
from dsi_experiments.rerankers.candidates import Candidates, load_reranker
from dsi_experiments.rerankers.m2div import M2Div, M2DivConfig
from dsi_experiments.rerankers.puct import Puct, PuctConfig
from dsi_experiments.rerankers.untrained import Pyversity
from dsi_experiments.subtopics import subtopic_labels


def made_up(n=12, k=9, subtopics=6, dim=7, seed=0, lengths=None):
    """Candidates whose embeddings say, noisily, which subtopics they are about."""
    rng = np.random.default_rng(seed)
    labels = rng.random((n, k, subtopics)) < 0.3
    mixing = np.random.default_rng(99).normal(size=(subtopics, dim))
    embeddings = labels @ mixing + 0.1 * rng.normal(size=(n, k, dim))
    scores = rng.normal(size=(n, k))
    for row, length in enumerate(lengths or []):
        scores[row, length:], labels[row, length:], embeddings[row, length:] = -np.inf, False, 0
    order = np.argsort(-scores, axis=1)
    scores = np.take_along_axis(scores, order, axis=1)
    labels, embeddings = (np.take_along_axis(each, order[:, :, None], axis=1) for each in (labels, embeddings))
    counts = (scores > -np.inf).sum(axis=1)
    candidates = Candidates(
        queries=[f"q{row}" for row in range(n)],
        doc_ids=[[f"d{row}-{c}" for c in range(count)] for row, count in enumerate(counts)],
        titles=[[""] * count for count in counts],
        scores=scores,
        query_embeddings=rng.normal(size=(n, dim)),
        embeddings=embeddings,
        features=np.zeros((n, k, 0)),
    )
    return candidates, labels


class Lists:
    """PUCT over lists of `positions` items; a prior that says nothing, values as given."""

    def __init__(self, reward, items, positions, value):
        self.reward, self.items, self.positions, self.value = reward, items, positions, value
        self.asked = []

    def evaluate(self, new):
        finished = (new.histories >= 0).all(axis=1)
        prior = np.ones((len(new.problems), self.items))
        at, positions = np.nonzero(new.histories >= 0)
        prior[at, new.histories[at, positions]] = 0
        prior[finished] = 0
        self.asked += list(zip(new.problems.tolist(), map(tuple, new.histories.tolist()), strict=True))
        values = np.where(finished | self.value, self.reward.measure(new.problems, new.histories), 0.0)
        return prior / np.maximum(prior.sum(axis=1, keepdims=True), 1), values


def test_search_finds_the_best_of_all_permutations():
    _, labels = made_up(n=10, k=7)
    reward = AlphaNdcg(labels, 4)
    every = np.array(list(permutations(range(7), 4)))
    best = [reward.measure(np.full(len(every), row), every).max() for row in range(10)]
    evaluator = Lists(reward, 7, 4, value=True)
    search = Puct(evaluator, 10, 4, PuctConfig(1000, exploration=1.0), moves=4)
    lists = np.full((10, 4), -1)
    for position in range(4):
        search.simulate()
        np.testing.assert_allclose(search.policy.sum(axis=1), 1)
        lists[:, position] = search.root_visits.argmax(axis=1)
        search.advance(lists[:, position])
    np.testing.assert_allclose(reward.measure(np.arange(10), lists), best, atol=1e-12)
    assert len(set(evaluator.asked)) == len(evaluator.asked)  # no node is scored twice


def test_visits_and_means_are_those_of_the_simulations():
    _, labels = made_up(n=3, k=5)
    search = Puct(Lists(AlphaNdcg(labels, 3), 5, 3, value=True), 3, 3, PuctConfig(60))
    search.simulate()
    assert search.root_visits.sum(axis=1).tolist() == [60, 60, 60]
    children = search._children[np.arange(3), 0]
    for row in range(3):
        for action in range(5):
            child, visits = children[row, action], search.visits[row, 0, action]
            below = search.visits[row, child].sum() if child >= 0 else 0
            assert visits == (below + 1 if child >= 0 else 0)  # once when it was new, then once a visit of its children
            if visits:
                total = search._value[row, child] + (search.values[row, child] * search.visits[row, child]).sum()
                assert search.values[row, 0, action] == pytest.approx(total / visits)


def test_the_prior_decides_first_and_problems_do_not_meddle():
    class Prior:
        def evaluate(self, new):
            prior = np.tile([0.1, 0.2, 0.6, 0.1], (len(new.problems), 1))
            prior[new.histories[:, 0] >= 0] = 0
            return prior, (new.problems == 1) * (new.actions == 0) * 1.0

    search = Puct(Prior(), 2, 1, PuctConfig(1))
    search.simulate()
    assert search.root_visits.tolist() == [[0, 0, 1, 0], [0, 0, 1, 0]]
    with pytest.raises(ValueError, match="that was visited"):
        search.advance(np.array([0, 2]))
    long = Puct(Prior(), 2, 1, PuctConfig(50, exploration=1.0))
    long.simulate()
    assert long.root_visits[0].argmax() == 2
    assert long.root_visits[1].argmax() == 0


def test_alpha_ndcg_is_that_of_ndeval():
    _, labels = made_up(n=8, k=12, seed=4)
    rng, reward = np.random.default_rng(1), AlphaNdcg(labels, 10)
    lists = np.array([rng.permutation(12)[:10] for _ in range(8)])
    qrels = [ir_measures.Qrel(str(q), str(d), 1, iteration=str(s)) for q, d, s in np.argwhere(labels).tolist()]
    run = [ir_measures.ScoredDoc(str(q), str(d), -p) for q in range(8) for p, d in enumerate(lists[q].tolist())]
    found = {m.query_id: m.value for m in ir_measures.iter_calc([ir_measures.alpha_DCG @ 10], qrels, run)}
    own = reward.measure(np.arange(8), lists)
    most = labels.any(axis=1).sum(axis=1) * (0.5 ** np.arange(10) / np.log2(2 + np.arange(10))).sum()  # ndeval's scale
    for q, value in found.items():
        assert own[int(q)] * reward.ideal[int(q)] / most[int(q)] == pytest.approx(value, rel=1e-4)
    normalised = {m.query_id: m.value for m in ir_measures.iter_calc([ir_measures.alpha_nDCG @ 10], qrels, run)}
    assert all(
        own[int(q)] == pytest.approx(value, abs=0.02) for q, value in normalised.items()
    )  # ties of greedy ideals
    short = lists.copy()
    short[:, 3:] = -1
    assert (reward.measure(np.arange(8), short) <= own).all()


def test_gains_are_what_a_candidate_adds():
    _, labels = made_up(n=4, k=6)
    reward, lists = AlphaNdcg(labels, 3), np.array([[2, -1, -1], [0, 5, -1], [1, 3, -1], [-1, -1, -1]])
    rows = np.arange(4)
    gains = reward.gains(rows, lists)
    for row, own in enumerate(lists.tolist()):
        at = own.index(-1)
        for candidate in range(6):
            if candidate in own:
                assert gains[row, candidate] == -np.inf
                continue
            longer = lists[row : row + 1].copy()
            longer[0, at] = candidate
            added = (
                reward.measure(rows[row : row + 1], longer) - reward.measure(rows[row : row + 1], lists[row : row + 1])
            )[0]
            assert gains[row, candidate] / np.log2(2 + at) / reward.ideal[row] == pytest.approx(added)


def test_the_network_judges_the_same_in_a_search_and_in_training():
    candidates, labels = made_up(lengths=[9] * 10 + [2, 4])
    model = M2Div.create(candidates, M2DivConfig(positions=4, seed=3))
    lists = model.vectors(candidates)
    actions, targets = model.play(lists, 30, AlphaNdcg(labels, 4))
    assert (actions[10] >= 0).tolist() == [True, True, False, False]
    np.testing.assert_allclose(targets.sum(axis=2), actions >= 0, atol=1e-9)
    rewards = np.random.default_rng(0).random(12)
    total = 0.0
    for row in range(12):
        own = [action for action in actions[row].tolist() if action >= 0]
        h, c = torch.sigmoid(model.start_h(lists.queries[row])), torch.sigmoid(model.start_c(lists.queries[row]))
        chosen = []
        for position, action in enumerate(own):
            both = torch.cat([c, h])
            left = [x for x in range(int(lists.valid[row].sum())) if x not in chosen]
            scores = torch.stack([lists.documents[row, x] @ (model.policy.weight @ both) for x in left])
            log_p = scores.log_softmax(0)
            value = torch.sigmoid(model.value.weight[0] @ both + model.value.bias[0])
            cross = sum(-targets[row, position, x] * float(log_p[n].detach()) for n, x in enumerate(left))
            total += (float(value.detach()) - rewards[row]) ** 2 + cross
            chosen.append(action)
            h, c = (each[0] for each in model.cell(lists.documents[row, action][None], (h[None], c[None])))
    assert float(model.loss(lists, actions, targets, rewards).detach()) == pytest.approx(total / 12, rel=1e-5)


@pytest.mark.parametrize("signed", [False, True])
def test_the_gradient_of_the_loss_is_its_difference(signed):
    candidates, _ = made_up(n=3, k=5, lengths=[5, 3, 1])
    model = M2Div.create(candidates, M2DivConfig(positions=3, hidden=4)).double()
    lists = model.vectors(candidates)
    lists = type(lists)(lists.queries.double(), lists.documents.double(), lists.valid)
    actions, targets = np.array([[3, 0, 4], [1, 2, 0], [0, -1, -1]]), np.random.default_rng(0).random((3, 3, 5))
    rewards = np.array([0.25, 0.5, 0.75])  # exact in float32
    targets = np.round(targets * 64) / 64

    def value_loss():
        return model.loss(lists, actions, targets, rewards, signed=signed)

    value_loss().backward()
    for parameter in model.parameters():
        assert torch.isfinite(parameter.grad).all()
    if signed:
        return  # the advantage is a constant in the gradient, not in a difference
    for parameter in model.parameters():
        flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)
        for n in range(0, len(flat), 3):
            before = flat[n].item()
            flat[n] = before + 1e-5
            above = value_loss().item()
            flat[n] = before - 1e-5
            below = value_loss().item()
            flat[n] = before
            assert gradient[n].item() == pytest.approx((above - below) / 2e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"epochs": 12, "simulations": 40}, 0.02),
        ({"pretrain_epochs": 15, "epochs": 0}, 0.05),
        ({"teacher": "reinforce", "epochs": 40}, 0.02),
    ],
)
def test_every_teacher_teaches(settings, least):
    train, labels = made_up(n=60, seed=0)
    fresh, fresh_labels = made_up(n=60, seed=1)
    reward = AlphaNdcg(fresh_labels, 4)
    model = M2Div.create(train, M2DivConfig(positions=4, learning_rate=1e-2, **settings))
    before = reward.measure(np.arange(60), model.choose(model.vectors(fresh))[:, :4]).mean()
    told = []
    model.fit(train, labels, lambda teacher, value: told.append((teacher, value)))
    after = reward.measure(np.arange(60), model.choose(model.vectors(fresh))[:, :4]).mean()
    assert after > before + least
    assert len(told) == settings.get("epochs", 0) + settings.get("pretrain_epochs", 0)


def test_the_second_of_two_equal_documents_waits():
    """After training, a copy of what is in the list already never comes before something new."""
    rng = np.random.default_rng(0)
    n = 80
    kinds = rng.integers(0, 4, (n, 5))
    kinds[:, 1] = kinds[:, 0]
    labels = kinds[:, :, None] == np.arange(4)
    candidates, _ = made_up(n=n, k=5)
    candidates = Candidates(
        **{
            **vars(candidates),
            "embeddings": labels.astype(float),
            "query_embeddings": np.ones((n, 4)),
            "scores": np.zeros((n, 5)),
        }
    )
    model = M2Div.create(candidates, M2DivConfig(positions=2, pretrain_epochs=40, epochs=0, learning_rate=1e-2))
    model.fit(candidates, labels)
    actions = model.choose(model.vectors(candidates))
    first, second = (np.take_along_axis(kinds, actions[:, p : p + 1], axis=1)[:, 0] for p in range(2))
    several = np.array([len(set(own)) > 1 for own in kinds.tolist()])
    assert (first != second)[several].all()


@pytest.mark.parametrize("simulations", [0, 40])
def test_permuting_candidates_permutes_the_answer(simulations, tmp_path):
    candidates, _ = made_up(lengths=[9] * 10 + [2, 4])
    model = M2Div.create(candidates, M2DivConfig(positions=4, search_simulations=simulations))
    after = model.rerank(candidates)
    assert [sorted(own) for own in after.doc_ids] == [sorted(own) for own in candidates.doc_ids]
    order = np.random.default_rng(5).permuted(np.tile(np.arange(9), (10, 1)), axis=1)
    order = np.concatenate([order, np.tile(np.arange(9), (2, 1))])
    names = ("scores", "embeddings")
    moved = {
        name: np.take_along_axis(
            getattr(candidates, name), order.reshape(12, 9, *[1] * (getattr(candidates, name).ndim - 2)), axis=1
        )
        for name in names
    }
    ids = [[own[n] for n in row if n < len(own)] for own, row in zip(candidates.doc_ids, order.tolist(), strict=True)]
    shuffled = Candidates(**{**vars(candidates), **moved, "doc_ids": ids})
    again = model.rerank(shuffled)
    assert [own[:4] for own in again.doc_ids] == [own[:4] for own in after.doc_ids]
    model.save(tmp_path / "stage")
    np.testing.assert_array_equal(load_reranker(tmp_path / "stage").score(candidates), model.score(candidates))


def test_subtopics_come_from_judgements():
    candidates, _ = made_up(n=2, k=3, lengths=[3, 2])
    judged = {"0": {"d0-0": ["b", "a"], "d0-2": ["b"], "elsewhere": ["c"]}}
    labels = subtopic_labels(candidates, judged)
    assert labels.shape == (2, 3, 3)
    assert labels[0].tolist() == [[True, True, False], [False, False, False], [False, True, False]]
    assert not labels[1].any()


@pytest.mark.parametrize("strategy", ["mmr", "msd", "dpp", "ssd", "cover"])
def test_pyversity_orders_all_candidates(strategy, tmp_path):
    candidates, _ = made_up(lengths=[9] * 11 + [1])
    reranker = Pyversity(strategy, 0.0 if strategy == "mmr" else 0.5)
    after = reranker.rerank(candidates)
    assert [sorted(own) for own in after.doc_ids] == [sorted(own) for own in candidates.doc_ids]
    if strategy == "mmr":  # without diversity: as it was
        assert after.doc_ids == [list(own) for own in candidates.doc_ids]
    reranker.save(tmp_path / "s")
    np.testing.assert_array_equal(load_reranker(tmp_path / "s").score(candidates), reranker.score(candidates))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PuctConfig(simulations=0), "simulations must be at least 1, got 0"),
        (lambda: PuctConfig(exploration=-1), "exploration must be at least 0"),
        (lambda: M2DivConfig(teacher="x"), "teacher must be one of search, reinforce, got 'x'"),
        (lambda: M2DivConfig(positions=0), "positions must be at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
