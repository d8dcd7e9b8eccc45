"""A reranker whose parser is trained for ranking (Gillenwater, He, Gao, Deng, ICASSP 2013).

score = score before - strength * tree edit distance between the dependency trees of query and title. A word m under h costs
theta_{m|h} to delete, nothing to insert, and (theta_{m|h} + theta_{m'|h'}) * (1 - similarity(m, m')) to become m' under h'.
Theta are the parser's probabilities, a row a head, at first those of maximum likelihood. For fixed trees and edits the distance
is linear in theta and RankNet's cost is convex, so training alternates exponentiated gradient steps with parsing again. Two
guards against overfitting: a Kullback-Leibler term to the maximum likelihood parser, and the choice of the best round by
nDCG@10 (gain 2^label - 1) on held-out lists.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from safetensors.numpy import load_file, save_file
from scipy.sparse import csr_matrix

from dsi.docids.files.declarations import Count, Whole, settings
from dsi.docids.files.reading import read_any_json
from dsi.docids.files.storage import write_json
from dsi_experiments.rerankers.candidates import Candidates, Reranker
from dsi_experiments.rerankers.features import word_list
from dsi_experiments.rerankers.lists import JudgedLists, LineSearch, lambdas, ndcg_exp
from dsi_experiments.rerankers.parser import DependencyModel, Floats, Ints
from dsi_experiments.rerankers.tree_edit import OrderedTree, ordered_tree, tree_edit_distance

_MOST = 1_000
"""Words of a text that a parser from disk may parse: time grows with their cube."""


@settings()
class ParserConfig:
    """How a parser is trained and used."""

    longest: Count = 12  # words of a text that are parsed; longer texts are cut
    # "viterbi" for the most probable tree, or "mbr" for the minimum-risk tree
    parse: Literal["viterbi", "mbr"] = "viterbi"
    strength: float = 1.0  # weight of the distance in the score, unless `fit` chooses it on the training lists
    em_rounds: Count = 10  # of maximum likelihood
    rounds: Whole = 4  # of training for ranking, each with new parses; 0 leaves the maximum likelihood parser
    steps: Count = 10  # of exponentiated gradient in a round
    step_size: float = 1.0  # of the first step; halved until the objective does not rise
    divergence: float = 0.01  # weight of the Kullback-Leibler term, summed over heads
    weigh_by_ndcg: bool = False  # weight pairs by |delta nDCG|
    floor: Annotated[float, Field(gt=0, lt=1e-3)] = 1e-12  # smallest probability


class Parsed(NamedTuple):
    """A text with its tree."""

    words: Sequence[str]  # [n] words
    arcs: Ints  # [n] parameter of the arc from its head to each word
    tree: OrderedTree  # the words as an ordered tree


class ParseRanker(Reranker):
    """Lowers scores by the edit distance from the query's tree to the title's."""

    kind = "parser"

    def __init__(self, model: DependencyModel, config: ParserConfig) -> None:
        self.model, self.config = model, config
        self._parsed: dict[str, Parsed] = {}

    @classmethod
    def create(cls, candidates: Candidates, config: ParserConfig) -> "ParseRanker":
        """A reranker with the maximum likelihood parser of the candidates' queries and titles."""
        texts = {" ".join(own): own for own in map(_cutter(config), _texts(candidates)) if own}
        model = DependencyModel(list(texts.values()), config.floor)
        model.fit_likelihood(list(texts.values()), config.em_rounds)
        return cls(model, config)

    def distances(self, candidates: Candidates) -> Floats:
        """[n, k] tree edit distance from the query to each title; to a title without words, the cost of deleting the query."""
        found = np.zeros(candidates.scores.shape)
        for row, (query, titles) in enumerate(zip(candidates.queries, candidates.titles, strict=True)):
            parsed = self._parse(query)
            if parsed is not None:
                for column, title in enumerate(titles):
                    found[row, column] = self._compare(parsed, self._parse(title))[0]
        return found

    def score(self, candidates: Candidates) -> NDArray[np.floating]:
        """[n, k] score before - strength * distance."""
        distances = self.config.strength * self.distances(candidates)
        return np.asarray(candidates.scores - np.where(candidates.valid, distances, 0.0))

    def fit(
        self,
        candidates: Candidates,
        labels: Floats,
        held_out: tuple[Candidates, Floats] | None = None,
        line_search: LineSearch | None = None,
    ) -> list[tuple[float, float]]:
        """Train for ranking, in place.

        `labels`: [n, k]. The best round is chosen by nDCG@10 of `held_out` candidates and labels; without them the last
        is taken. `line_search` chooses `strength`. Returned is the objective before and after the steps of each round:
        it falls within a round and may rise when parses change.
        """
        lists = labelled_lists(candidates, labels)
        base = candidates.scores[candidates.valid].astype(np.float64)
        if line_search is not None:
            strength = line_search(lists, base, -self.distances(candidates)[candidates.valid])
            self.config = ParserConfig(**{**asdict(self.config), "strength": strength})
        likelihood, history = self.model.theta.copy(), []
        best, best_theta = self._quality(held_out), likelihood
        for _ in range(self.config.rounds):
            usage = self._usage(candidates)
            theta, before, after = self._descend(lists, base, usage, likelihood)
            self._set(theta)
            history.append((before, after))
            quality = self._quality(held_out)
            if held_out is None or quality > best:
                best, best_theta = quality, theta
        self._set(best_theta)
        return history

    def _quality(self, held_out: tuple[Candidates, Floats] | None) -> float:
        if held_out is None:
            return -math.inf
        candidates, labels = held_out
        return float(ndcg_exp(labelled_lists(candidates, labels), self.score(candidates)[candidates.valid]).mean())

    def _usage(self, candidates: Candidates) -> csr_matrix:
        """[candidates, parameters] derivative of each distance by theta, for the current trees and edits."""
        rows, columns, values = [], [], []
        number = 0
        for query, titles in zip(candidates.queries, candidates.titles, strict=True):
            parsed = self._parse(query)
            for title in titles:
                if parsed is not None:
                    for parameter, value in self._compare(parsed, self._parse(title))[1]:
                        rows.append(number)
                        columns.append(parameter)
                        values.append(value)
                number += 1
        return csr_matrix((values, (rows, columns)), shape=(number, len(self.model.theta)))

    def objective(
        self, lists: JudgedLists, base: Floats, usage: csr_matrix, theta: Floats, likelihood: Floats
    ) -> tuple[float, Floats]:
        """Mean RankNet cost of a list plus the divergence, and the derivative by theta, for fixed trees and edits."""
        config, count = self.config, len(lists.lengths)
        scores = base - config.strength * (usage @ theta)
        gradient, _, cost = lambdas(lists, scores, weigh_by_ndcg=config.weigh_by_ndcg)
        logarithm = np.log(theta / likelihood)
        value = cost / count + config.divergence * float((theta * logarithm).sum())
        slope = -config.strength * (usage.T @ gradient) / count + config.divergence * (logarithm + 1)
        return value, slope

    def _descend(
        self, lists: JudgedLists, base: Floats, usage: csr_matrix, likelihood: Floats
    ) -> tuple[Floats, float, float]:
        """Theta after exponentiated gradient steps that never raise the objective; the objective before and after."""
        theta, size = self.model.theta, self.config.step_size
        value, slope = self.objective(lists, base, usage, theta, likelihood)
        before = value
        for _ in range(self.config.steps):
            while size > 1e-6:
                moved = self.model.normalise(theta * np.exp(np.clip(-size * slope, -30, 30)))
                tried, tried_slope = self.objective(lists, base, usage, moved, likelihood)
                if tried <= value:
                    theta, value, slope = moved, tried, tried_slope
                    break
                size /= 2
        return theta, before, value

    def _set(self, theta: Floats) -> None:
        self.model.theta = theta
        self._parsed.clear()

    def _parse(self, text: str) -> Parsed | None:
        if text not in self._parsed:
            words = _cutter(self.config)(text)
            if not words:
                return None
            heads, _ = self.model.parse(words, self.config.parse)
            arcs = self.model.parameters(words)[heads, np.arange(1, len(words) + 1)]
            self._parsed[text] = Parsed(words, arcs, ordered_tree(heads))
        return self._parsed[text]

    def _compare(self, query: Parsed, title: Parsed | None) -> tuple[float, list[tuple[int, float]]]:
        """The distance, and its derivative by each parameter that it depends on."""
        own = self.model.probabilities(query.arcs)
        if title is None:
            return float(own.sum()), [(int(p), 1.0) for p in query.arcs if p >= 0]
        other = self.model.probabilities(title.arcs)
        unlike = 1 - _similarities(query.words, title.words)
        substitute = unlike * (own[:, None] + other)
        distance, becomes = tree_edit_distance(query.tree, title.tree, own, np.zeros(len(other)), substitute)
        usage = []
        for word, match in enumerate(becomes.tolist()):
            if match < 0:
                usage.append((int(query.arcs[word]), 1.0))
            else:
                share = float(unlike[word, match])
                usage += [(int(query.arcs[word]), share), (int(title.arcs[match]), share)]
        return distance, [(parameter, value) for parameter, value in usage if parameter >= 0 and value]

    def write(self, folder: Path) -> dict[str, Any]:
        """Write theta and its pairs; returns the config."""
        save_file({"theta": self.model.theta}, folder / "theta.safetensors")
        write_json(folder / "pairs.json", list(self.model.pairs))
        return {"config": asdict(self.config)}

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> "ParseRanker":
        """Load what `write` wrote."""
        config = ParserConfig(**settings["config"])
        model = DependencyModel.__new__(DependencyModel)
        pairs, path = read_any_json(folder / "pairs.json"), folder / "theta.safetensors"
        model._take([(str(head), str(word)) for head, word in pairs], config.floor)
        model.theta = load_file(path)["theta"]
        if model.theta.shape != (len(pairs),) or model.theta.dtype != np.float64 or not (model.theta > 0).all():
            raise ValueError(f"{path.name} does not hold a probability for each pair")
        if config.longest > _MOST or not math.isfinite(config.strength):
            raise ValueError(f"longest must be at most {_MOST}, and strength finite")
        return cls(model, config)


def _texts(candidates: Candidates) -> list[str]:
    return [*candidates.queries, *(title for own in candidates.titles for title in own)]


def _cutter(config: ParserConfig) -> Callable[[str], list[str]]:
    return lambda text: word_list(text)[: config.longest]


def labelled_lists(candidates: Candidates, labels: NDArray[np.floating]) -> JudgedLists:
    """Candidates with labels [n, k] as judged lists without features."""
    valid = candidates.valid
    lengths = valid.sum(axis=1).tolist()
    return JudgedLists(np.zeros((int(valid.sum()), 0)), labels[valid].astype(np.float64), lengths, ())


def _similarities(first: Sequence[str], second: Sequence[str]) -> Floats:
    """[n, m] similarity of words: share of common character trigrams (Jaccard); 1 for the same word."""
    grams = [[{f"#{word}#"[n : n + 3] for n in range(len(word))} for word in words] for words in (first, second)]
    return np.array([[len(a & b) / len(a | b) for b in grams[1]] for a in grams[0]], dtype=np.float64)
