"""M2Div: a list built document by document by a policy that Monte Carlo tree search improved (Feng et al., SIGIR 2018).

State after t documents: an LSTM that started from the query and read them. Policy p(a|s) = softmax of x_a^T U [c; h] over the
candidates not yet chosen; value V(s) = sigmoid(w . [c; h] + b), the expected measure of the finished list. Training builds a
list for each query: at every position, search from p and V gives a better policy pi, and its most visited candidate is taken.
The loss sums (V(s) - r)^2 - sum_a pi(a|s) log p(a|s) over positions, r being the measure of the whole list. In the first
`pretrain_epochs` the policy imitates an oracle instead: at every position, equal probability for all candidates of the largest
gain. Candidates are shuffled, so that their stored order does not break ties.
"""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dsi.contrastive.models import load_weights
from dsi.docids.files.declarations import Count, Whole, settings
from dsi.docids.types import Bools, Ints, Reals
from dsi_experiments.rerankers.alpha_ndcg import AlphaNdcg
from dsi_experiments.rerankers.candidates import Candidates, Reranker
from dsi_experiments.rerankers.puct import NewNodes, Puct, PuctConfig

QUERIES_AT_ONCE = 100
"""Queries whose lists are built together in training; more of them take more memory."""
_MOST = 1_000
"""Positions and simulations that an M2Div from disk may have."""
State = tuple[Tensor, Tensor]
"""h and c of the LSTM, [n, hidden] each."""
Episode = tuple[Ints, Reals]
"""Actions [n, positions], -1 past the end of a list; target probabilities [n, positions, k] of the policy."""


@settings()
class M2DivConfig:
    """How the policy is trained and used."""

    positions: Count = 5  # length of the lists that are built in training, and by search when ranking
    # length of the lists that are built when ranking, past `positions` by the policy alone; the other candidates follow
    # in their old order
    ranked: int = 10
    hidden: Count = 16  # width of the LSTM
    alpha: float = 0.5  # of alpha-nDCG, the reward
    pretrain_epochs: Whole = 0  # epochs of imitating the oracle, before the teacher's
    # "search" (PUCT), or "reinforce" (sampled lists, V as baseline: the policy gradient that MDP-DIV uses)
    teacher: Literal["search", "reinforce"] = "search"
    epochs: Whole = 12  # with the teacher
    batch_size: Count = 10  # queries a step; an epoch first builds the lists of all queries
    learning_rate: float = 3e-3  # of Adam
    simulations: Count = 200  # of PUCT a position, in training
    exploration: float = 3.0  # of PUCT
    search_simulations: Whole = 0  # of PUCT a position, when ranking; 0 for the policy alone
    seed: Whole = 0  # of initialisation, order and shuffling


@dataclass(frozen=True)
class Lists:
    """Queries with their candidates, as the network reads them."""

    queries: Tensor  # [n, query dim]
    documents: Tensor  # [n, k, dim]
    valid: Bools  # [n, k] False at padding

    def select(self, rows: Ints) -> "Lists":
        """The lists of some queries."""
        return Lists(self.queries[rows], self.documents[rows], self.valid[rows])

    def reorder(self, order: Ints) -> "Lists":
        """The candidates in another order, [n, k] columns."""
        index = torch.from_numpy(order)[:, :, None].expand_as(self.documents)
        return Lists(self.queries, self.documents.gather(1, index), np.take_along_axis(self.valid, order, axis=1))


class M2Div(nn.Module, Reranker):
    """The policy and value network, and the reranker that builds lists with it."""

    kind = "m2div"

    def __init__(self, query_dim: int, document_dim: int, config: M2DivConfig) -> None:
        super().__init__()
        torch.manual_seed(config.seed)
        self.config, self.sizes = config, (query_dim, document_dim)
        self.cell = nn.LSTMCell(document_dim, config.hidden)
        self.start_h, self.start_c = (nn.Linear(query_dim, config.hidden, bias=False) for _ in range(2))
        self.policy = nn.Linear(2 * config.hidden, document_dim, bias=False)
        self.value = nn.Linear(2 * config.hidden, 1)

    def start(self, queries: Tensor) -> State:
        """(h, c) [n, hidden] before the first document."""
        return self.start_h(queries).sigmoid(), self.start_c(queries).sigmoid()

    def judge(self, state: State, documents: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        """Log p [n, k] of documents [n, k, dim], the lowest float where `left` [n, k] is False, and V [n]."""
        both = torch.cat([state[1], state[0]], dim=1)  # [n, 2 * hidden]
        logits = torch.einsum("nd,nkd->nk", self.policy(both), documents).masked_fill(~left, torch.finfo().min)
        return logits.log_softmax(dim=1), self.value(both)[:, 0].sigmoid()

    def fit(
        self, candidates: Candidates, labels: Bools, after_epoch: Callable[[str, float], None] | None = None
    ) -> None:
        """Train in place. `labels`: [n, k, subtopics]."""
        config, lists = self.config, self.vectors(candidates)
        rng = np.random.default_rng(config.seed)
        optimizer = torch.optim.Adam(self.parameters(), config.learning_rate)
        for teacher in ["oracle"] * config.pretrain_epochs + [config.teacher] * config.epochs:
            order = rng.permuted(np.tile(np.arange(labels.shape[1]), (len(labels), 1)), axis=1)
            shuffled = lists.reorder(order)
            own_labels = np.take_along_axis(labels, order[:, :, None], axis=1)
            actions, targets, rewards = self._build_lists(teacher, shuffled, own_labels, rng)
            for rows in np.array_split(rng.permutation(len(labels)), max(1, len(labels) // config.batch_size)):
                optimizer.zero_grad()
                batch = shuffled.select(rows), actions[rows], targets[rows], rewards[rows]
                self.loss(*batch, signed=teacher == "reinforce").backward()
                optimizer.step()
            if after_epoch:
                after_epoch(teacher, float(rewards.mean()))

    def _build_lists(
        self, teacher: str, lists: Lists, labels: Bools, rng: np.random.Generator
    ) -> tuple[Ints, Reals, Reals]:
        """Actions, targets and rewards [n] of the lists of all queries, built with the current weights."""
        parts = []
        for rows in np.array_split(np.arange(len(labels)), -(-len(labels) // QUERIES_AT_ONCE)):
            reward = AlphaNdcg(labels[rows], self.config.positions, self.config.alpha)
            actions, targets = self._episode(teacher, lists.select(rows), reward, rng)
            parts.append((actions, targets, reward.measure(np.arange(len(rows)), actions)))
        actions, targets, rewards = (np.concatenate(each) for each in zip(*parts, strict=True))
        return actions, targets, rewards

    def _episode(self, teacher: str, lists: Lists, reward: AlphaNdcg, rng: np.random.Generator) -> Episode:
        if teacher == "search":
            return self.play(lists, self.config.simulations, reward)
        if teacher == "oracle":
            return self._sample(lists, lambda rows, actions, _: _ties(reward.gains(rows, actions), lists.valid), rng)
        return self._sample(lists, lambda _, __, log_p: log_p.exp().numpy(), rng)

    @torch.no_grad()
    def _sample(self, lists: Lists, policy: Callable[[Ints, Ints, Tensor], Reals], rng: np.random.Generator) -> Episode:
        """Lists drawn from a policy, whose probabilities are the targets; `policy` is called with rows, actions and log p."""
        rows, shape = np.arange(len(lists.valid)), (len(lists.valid), self.config.positions)
        actions, targets = np.full(shape, -1), np.zeros((*shape, lists.valid.shape[1]))
        state, left = self.start(lists.queries), lists.valid.copy()
        for position in range(shape[1]):
            log_p, _ = self.judge(state, lists.documents, torch.from_numpy(left))
            p = policy(rows, actions, log_p) * left  # [n, k]
            going = left.any(axis=1)
            drawn = (p.cumsum(axis=1) > rng.random((len(rows), 1)) * p.sum(axis=1, keepdims=True)).argmax(1)
            actions[:, position] = np.where(going, drawn, -1)
            targets[going, position] = p[going]
            left[rows, drawn] = False
            state = self.cell(lists.documents[rows, drawn], state)
        return actions, targets

    def play(self, lists: Lists, simulations: int, reward: AlphaNdcg | None = None) -> Episode:
        """Lists built by search: the most visited candidate at every position; targets are the shares of the visits.

        `reward` is that of finished lists, where their subtopics are known; V takes its place otherwise.
        """
        config = PuctConfig(simulations, self.config.exploration)
        evaluator = _Evaluator(self, lists, reward, 1 + self.config.positions * simulations)
        search = Puct(evaluator, len(lists.valid), self.config.positions, config, moves=self.config.positions)
        shape = (len(lists.valid), self.config.positions)
        actions, targets = np.full(shape, -1), np.zeros((*shape, lists.valid.shape[1]))
        for position in range(shape[1]):
            search.simulate()
            actions[:, position] = search.best
            targets[:, position] = search.policy
            search.advance(actions[:, position])
        return actions, targets

    def loss(self, lists: Lists, actions: Ints, targets: Reals, rewards: Reals, *, signed: bool = False) -> Tensor:
        """Mean over queries of the sum over positions of (V - r)^2 - sum_a target log p.

        `actions` [n, positions] are the lists that were built, `targets` [n, positions, k] probabilities, `rewards` [n]
        r. If `signed`, the target is the action taken, times its advantage (REINFORCE).
        """
        rows = torch.arange(len(actions))
        state, left = self.start(lists.queries), torch.from_numpy(lists.valid.copy())
        r, total = torch.from_numpy(rewards).to(state[0].dtype), torch.zeros(len(actions), dtype=state[0].dtype)
        for position in range(actions.shape[1]):
            taken = torch.from_numpy(actions[:, position]).long()
            going = taken >= 0
            taken = taken.clamp(min=0)
            log_p, value = self.judge(state, lists.documents, left)
            target = torch.from_numpy(targets[:, position]).to(r.dtype)
            if signed:
                advantage = (r - value).detach()
                target = torch.zeros_like(target).scatter(1, taken[:, None], advantage[:, None])
            error = (value - r) ** 2 - (target * log_p.masked_fill(~left, 0.0)).sum(dim=1)
            total = total + torch.where(going, error, 0.0)
            left = left.clone()
            left[rows[going], taken[going]] = False
            state = self.cell(lists.documents[rows, taken], state)
        return total.mean()

    @torch.no_grad()
    def choose(self, lists: Lists) -> Ints:
        """[n, ranked] the list of each query, -1 past its end: built by the policy alone, or by search and then the policy."""
        searched = self.play(lists, self.config.search_simulations)[0] if self.config.search_simulations else None
        rows, actions = np.arange(len(lists.valid)), np.full((len(lists.valid), self.config.ranked), -1)
        state, left = self.start(lists.queries), lists.valid.copy()
        for position in range(actions.shape[1]):
            if searched is not None and position < searched.shape[1]:
                best = searched[:, position]
            else:
                best = self.judge(state, lists.documents, torch.from_numpy(left))[0].numpy().argmax(axis=1)
            actions[:, position] = np.where(left.any(axis=1), best, -1)
            left[rows, best] = False
            state = self.cell(lists.documents[rows, best], state)
        return actions

    def with_search(self, simulations: int) -> "M2Div":
        """The same network, ranking by search with this many simulations a position (0: by the policy alone)."""
        other = copy.copy(self)
        other.config = replace(self.config, search_simulations=simulations)
        return other

    def score(self, candidates: Candidates) -> Reals:
        """[n, k] scores that put the list built first, and the other candidates behind it in their old order."""
        n, k = candidates.scores.shape
        scores = np.tile(-np.arange(k, dtype=float), (n, 1))
        actions = self.choose(self.vectors(candidates))
        at, positions = np.nonzero(actions >= 0)
        scores[at, actions[at, positions]] = self.config.ranked - positions
        return scores

    @staticmethod
    def vectors(candidates: Candidates) -> Lists:
        """What the network reads: embeddings, the score standardised in each list, similarity to the query."""
        valid = candidates.valid
        count = np.maximum(valid.sum(axis=1, keepdims=True), 1)
        scores = np.where(valid, candidates.scores, 0.0)
        mean = scores.sum(axis=1, keepdims=True) / count
        spread = np.sqrt((np.where(valid, scores - mean, 0.0) ** 2).sum(axis=1, keepdims=True) / count)
        scaled = np.where(valid, (scores - mean) / np.maximum(spread, 1e-9), 0.0)
        similarity = np.einsum("nd,nkd->nk", candidates.query_embeddings, candidates.embeddings)
        columns = [candidates.embeddings, scaled[:, :, None], similarity[:, :, None]]
        documents = np.concatenate(columns, axis=2).astype(np.float32)  # [n, k, dim + 2]
        queries = torch.from_numpy(np.asarray(candidates.query_embeddings, dtype=np.float32))
        return Lists(queries, torch.from_numpy(documents), valid)

    @classmethod
    def create(cls, candidates: Candidates, config: M2DivConfig) -> "M2Div":
        """An untrained M2Div for candidates of these widths."""
        return cls(candidates.query_embeddings.shape[1], candidates.embeddings.shape[2] + 2, config)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the weights; returns widths and config."""
        save_file(self.state_dict(), folder / "model.safetensors")
        return {"sizes": self.sizes, "config": asdict(self.config)}

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> "M2Div":
        """Load what `write` wrote."""
        (query_dim, document_dim), config = settings["sizes"], M2DivConfig(**settings["config"])
        if max(config.ranked, config.positions, config.search_simulations) > _MOST:
            raise ValueError(f"ranked, positions and search_simulations must be at most {_MOST}")
        return load_weights(lambda: cls(query_dim, document_dim, config), folder / "model.safetensors")


class _Evaluator:
    """The network as PUCT's evaluator; keeps the LSTM's state of every node."""

    def __init__(self, network: M2Div, lists: Lists, reward: AlphaNdcg | None, nodes: int) -> None:
        self.network, self.lists, self.reward = network, lists, reward
        shape = (len(lists.valid), nodes, network.config.hidden)
        self._h, self._c = torch.zeros(shape), torch.zeros(shape)

    @torch.no_grad()
    def evaluate(self, new: NewNodes) -> tuple[Reals, Reals]:
        problems, lists = new.problems, self.lists
        if (new.parents < 0).all():
            state = self.network.start(lists.queries[problems])
        else:
            before = self._h[problems, new.parents], self._c[problems, new.parents]
            state = self.network.cell(lists.documents[problems, new.actions], before)
        self._h[problems, new.nodes], self._c[problems, new.nodes] = state
        left = lists.valid[problems]
        at, positions = np.nonzero(new.histories >= 0)
        left[at, new.histories[at, positions]] = False
        finished: Bools = np.asarray((new.histories >= 0).all(axis=1) | ~left.any(axis=1))
        log_p, value = self.network.judge(state, lists.documents[problems], torch.from_numpy(left))
        prior = np.where(left & ~finished[:, None], log_p.exp().numpy(), 0.0)
        values = value.double().numpy()
        if self.reward is not None and finished.any():
            values[finished] = self.reward.measure(problems[finished], new.histories[finished])
        return prior, values


def _ties(gains: Reals, valid: Bools) -> Reals:
    """[n, k] equal probabilities of the candidates with the largest gain."""
    gains = np.where(valid, gains, -np.inf)
    highest: Reals = gains.max(axis=1, keepdims=True)
    best: Bools = (gains >= highest - 1e-9) & (gains > -np.inf)
    return best / np.maximum(best.sum(axis=1, keepdims=True), 1)
