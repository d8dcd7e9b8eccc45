"""What late interaction costs and earns: bytes a document against Hit@1, and candidates against Hit@1 and time.

For each size the matrix of query tokens is trained on train queries, and weights are chosen on dev queries. Beside our scores
stand those of PyLate over the same vectors, where PyLate can be imported. Knows nothing of indexes or walks.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

from dsi.config import LEXICAL_WEIGHT, TOKEN_WEIGHT, Config
from dsi.contrastive.config import TokensConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.query_tokens import train_query_head
from dsi.contrastive.tokens import TokenHead
from dsi.docids.data.collection import Collection, read_collection
from dsi.docids.token_vectors import TokenCodes, TokenVectors, decode, encode, project
from dsi.docids.types import Floats, Numbers, Run
from dsi.docids.words.bm25 import BM25
from dsi.eval.figures import lines_figure
from dsi.eval.fusion import fit_weights, weighted_sum
from dsi.eval.measures import evaluate, mean
from dsi.training.embedding import examples_of_split
from dsi_experiments.report import save_report

DIMS, BITS, POOLINGS = (64, 128, 384), (2, 4, 8), (1, 2, 3)
CANDIDATES = (10, 25, 50, 100, 200, 400)
DEFAULT = (128, 2, 1)
"""Dimensions, bits and pooling whose candidates are varied."""
_TIMED, _ROUNDS = 100, 3
"""Queries that are timed, and alternating rounds."""


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries of a split, with dense and lexical scores of all documents.

    Attributes:
        query_ids: of the queries.
        states: [queries] token states [words, state_dim] of each, without special tokens.
        dense: [queries, documents].
        lexical: [queries, documents].
    """

    query_ids: list[str]
    states: list[Floats]
    dense: Floats
    lexical: Floats

    @cached_property
    def order(self) -> Numbers:
        """[queries, most candidates] documents, best first by dense + BM25 with the default weight."""
        return np.argsort(-(self.dense + LEXICAL_WEIGHT * self.lexical), axis=1, kind="stable")[:, : max(CANDIDATES)]


class Curves:
    """Measures token vectors of several sizes on one collection.

    Args:
        collection: with test queries, and dev or train queries to choose weights on.
    """

    def __init__(self, collection: Collection) -> None:
        self.collection, self.encoder = collection, Encoder.load(Config().encoder).for_search()
        documents = collection.documents
        self.doc_ids = list(documents["doc_id"])
        self.texts = self.encoder.document_texts(documents["title"], documents["text"])
        self.states: list[NDArray[np.floating]] = [np.empty(0)] * len(self.texts)
        vectors = np.empty((len(self.texts), self.encoder.embedding_dim), dtype=np.float32)
        for row, states, vector in self.encoder.token_states(self.texts, "document", progress="token states"):
            self.states[row], vectors[row] = states.half().numpy(), vector.numpy()
        words = BM25(self.doc_ids, list(collection.full_texts()))
        self._matrix, self._vectors = cache(self._fit), lru_cache(maxsize=1)(self._pool)
        self.dev, self.test = (self._queries(split, vectors, words) for split in ("dev", "test"))
        rows = np.arange(len(vectors))
        self._train, self._chosen_on = (
            examples_of_split(collection, split, self.encoder, vectors, rows, words, np.random.default_rng(0))
            for split in ("train", "dev")
        )

    def _queries(self, split: str, vectors: Floats, words: BM25) -> Queries:
        queries = self.collection.query_texts(split)
        texts = self.encoder.query_texts(list(queries.values()))
        states: list[Floats] = []
        embedded = []
        for start in range(0, len(texts), 64):
            encoded = self.encoder.forward(texts[start : start + 64], "query")
            states += [own[kept].numpy() for own, kept in zip(encoded.states, encoded.words, strict=True)]
            embedded.append(encoded.embeddings.numpy())
        return Queries(list(queries), states, np.concatenate(embedded) @ vectors.T, words.shares(texts))

    def _fit(self, dim: int) -> Floats:
        """Return the matrix [dim, state_dim] of a head, which does not depend on its bits."""
        return TokenHead.fit(self.encoder, self.texts, TokensConfig(dim=dim)).matrix

    def tokens(self, dim: int, bits: int, pooling: int) -> TokenVectors:
        """Return the token vectors of all documents; `pooling`: how many tokens become one, by Ward clusters."""
        vectors = self._vectors(dim, pooling)
        counts = np.array([len(own) for own in vectors], dtype=np.int64)
        codes = TokenCodes.from_counts(np.concatenate([encode(own, bits) for own in vectors]), counts)
        made = TokenVectors(self._matrix(dim), bits, (codes,), np.arange(len(vectors), dtype=np.int32))
        return train_query_head(made, self._train, self._chosen_on, TokensConfig().epochs)

    def _pool(self, dim: int, pooling: int) -> list[Floats]:
        """Return the vectors [tokens kept, dim] of each document, before they become codes."""
        matrix, pool = self._matrix(dim), HierarchicalTokenPooling(pooling)
        vectors = (project(matrix, states.astype(np.float32)) for states in self.states)
        if pooling == 1:
            return list(vectors)
        return [pool.pool_one(torch.from_numpy(own)).numpy() for own in vectors]

    def measure(self, tokens: TokenVectors, candidates: int) -> dict[str, Any]:
        """Return Hit@1, Hit@10, the weights chosen on dev and bytes a document."""
        start, qrels = [LEXICAL_WEIGHT, TOKEN_WEIGHT], self.collection.qrels
        dense, *others = self._runs(self.dev, tokens, candidates)
        weights = fit_weights(dense, others, start, qrels["dev"])
        dense, *others = self._runs(self.test, tokens, candidates)
        found = evaluate(weighted_sum(dense, others, weights), qrels["test"], ["Hit@1", "Hit@10"])
        code_bytes = sum(part.codes.nbytes for part in tokens.parts) / len(self.doc_ids)
        return {**{name: 100 * mean(values) for name, values in found.items()}, "weights": weights, "bytes": code_bytes}

    def _runs(self, queries: Queries, tokens: TokenVectors, candidates: int) -> list[Run]:
        runs: list[Run] = [{}, {}, {}]
        for row, query_id in enumerate(queries.query_ids):
            rows = queries.order[row, :candidates]
            scores = queries.dense[row, rows], queries.lexical[row, rows], score(tokens, queries.states[row], rows)
            names = [self.doc_ids[document] for document in rows]
            for run, own in zip(runs, scores, strict=True):
                run[query_id] = dict(zip(names, own.tolist(), strict=True))
        return runs

    def milliseconds(self, tokens: TokenVectors, candidates: int) -> dict[str, float]:
        """Return processor time a query of scoring candidates' tokens, by us and by PyLate where it is there."""
        rescorers = {"ours": score, **pylate_rescorer()}
        spent = {name: [0.0] * _ROUNDS for name in rescorers}
        for turn in range(_ROUNDS):
            for name, rescore in rescorers.items():
                for row in range(min(_TIMED, len(self.test.query_ids))):
                    rows = self.test.order[row, :candidates]
                    started = time.process_time()
                    rescore(tokens, self.test.states[row], rows)
                    spent[name][turn] += time.process_time() - started
        return {name: 1000 * min(own) / min(_TIMED, len(self.test.query_ids)) for name, own in spent.items()}


def score(tokens: TokenVectors, states: Floats, rows: Numbers) -> Floats:
    """Return the late interaction [n] of a query, given by its token states [words, state_dim], with documents [n]."""
    return tokens.late_interaction([tokens.project(states)], rows)[0]


def pylate_rescorer() -> Mapping[str, Callable[[TokenVectors, Floats, Numbers], Floats]]:
    """Return {name: PyLate's scores of the same vectors, decoded before the clock starts}; nothing without PyLate."""
    try:
        from pylate.rank import rerank
    except ImportError:
        return {}
    decoded: dict[int, torch.Tensor] = {}

    def rescore(tokens: TokenVectors, states: Floats, rows: Numbers) -> Floats:
        query = torch.from_numpy(tokens.project(states))
        for row in rows.tolist():
            if row not in decoded:
                codes = tokens.gather(np.array([row])).codes
                decoded[row] = torch.from_numpy(_decoded(tokens, codes))
        (found,) = rerank([rows.tolist()], query[None], [[decoded[row] for row in rows.tolist()]])
        scores = {one["id"]: one["score"] for one in found}
        return np.array([scores[row] / len(states) for row in rows.tolist()], dtype=np.float32)

    return {"PyLate": rescore}


def _decoded(tokens: TokenVectors, codes: NDArray[np.uint8]) -> Floats:
    vectors, norms = decode(codes, tokens.dim, tokens.bits)
    return np.asarray(vectors / norms[:, None], dtype=np.float32)


def tokens(data: Path, output: Path, seeds: Sequence[int]) -> str:
    """Measure all sizes on a collection; write tokens.md, tokens.json and two pictures, and return the tables."""
    collection = read_collection(data, dev_queries=Config().dev_queries)
    curves = Curves(collection)
    sizes = {}
    for dim, pooling, bits in product(DIMS, POOLINGS, BITS):
        vectors = curves.tokens(dim, bits, pooling)
        sizes[dim, bits, pooling] = curves.measure(vectors, 100)
        print(dim, bits, pooling, sizes[dim, bits, pooling], flush=True)
        if (dim, bits, pooling) == DEFAULT:
            by_candidates = {
                n: curves.measure(vectors, n) | {"ms": curves.milliseconds(vectors, n)} for n in CANDIDATES
            }
    report = _report(sizes, by_candidates)
    _pictures(sizes, by_candidates, collection.name, output)
    record = {
        "collection": Path(collection.name).name,
        "sizes": [{"dim": d, "bits": b, "pooling": p, **own} for (d, b, p), own in sizes.items()],
        "candidates": [{"candidates": n, **own} for n, own in by_candidates.items()],
    }
    save_report(output, "tokens", report, record)
    return report


def _report(sizes: Mapping[tuple[int, int, int], Mapping[str, Any]], by: Mapping[int, Mapping[str, Any]]) -> str:
    lines = [
        "| dimensions | bits | tokens kept | bytes a document | Hit@1 / Hit@10 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (dim, bits, pooling), own in sizes.items():
        kept = "all" if pooling == 1 else f"1/{pooling}"
        lines.append(f"| {dim} | {bits} | {kept} | {own['bytes']:,.0f} | {own['Hit@1']:.2f} / {own['Hit@10']:.2f} |")
    timed = list(next(iter(by.values()))["ms"])
    lines += ["", f"| candidates | Hit@1 / Hit@10 | {' | '.join(f'ms, {name}' for name in timed)} |"]
    lines.append("| --- " * (2 + len(timed)) + "|")
    for n, own in by.items():
        times = " | ".join(f"{own['ms'][name]:.2f}" for name in timed)
        lines.append(f"| {n} | {own['Hit@1']:.2f} / {own['Hit@10']:.2f} | {times} |")
    return "\n".join(lines)


def _pictures(
    sizes: Mapping[tuple[int, int, int], Mapping[str, Any]],
    by: Mapping[int, Mapping[str, Any]],
    name: str,
    output: Path,
) -> None:
    series: dict[str, dict[float, float]] = {}
    for (dim, _, pooling), own in sizes.items():
        kept = "" if pooling == 1 else f", 1/{pooling} of the tokens"
        series.setdefault(f"{dim} dimensions{kept}", {})[round(own["bytes"])] = own["Hit@1"]
    lines_figure(series, "bytes a document", "Hit@1", Path(name).name, output / "tokens-bytes")
    found: dict[str, dict[float, float]] = {"Hit@1": {n: own["Hit@1"] for n, own in by.items()}}
    lines_figure(found, "candidates", "Hit@1", Path(name).name, output / "tokens-candidates")
