"""Features of the results of a search, for rerankers; those of a whole batch are computed in one pass.

From the decoder and the centroids: the log-probability of every digit; the decoder's entropy at that level, and the margin of
the digit over the next best. From the answer list: rank, and how many candidates share the first digits. From words: BM25, and
the query's words in the title.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from dsi.docids.types import Bools, Floats, Ints
from dsi.docids.words.bm25 import BM25
from dsi.generator.beam import PathEngine
from dsi.search.engine import Engine
from dsi.search.queries import EncodedQueries, QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.results import SearchResult
from dsi.search.vector_search import VectorEngine
from dsi.search.walk import NodeScores

_TEMPERATURE = 0.05
"""Of the softmaxes over siblings; search has none."""
PREFIXES = (1, 2, 3)
"""Lengths of the docid prefixes that candidates may share."""


def compute_features(
    engine: Engine,
    encoded: EncodedQueries,
    result: SearchResult,
    titles: Sequence[Sequence[str]],
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Return the features of the results of a search.

    They are [queries, k, features], 0 at padding; their names come second.
    """
    if not result.positions.shape[1]:  # nothing was found; what is not there has zeros, and the same names
        whole, names = compute_features(engine, encoded, SearchResult.empty(len(result.positions), 1), titles)
        return whole[:, :0], names
    columns: dict[str, Floats] = {}
    for batch in encoded.batches:
        for name, values in _batch_features(engine, batch, result).items():
            whole = columns.setdefault(name, np.zeros(result.positions.shape, dtype=np.float32))
            whole[batch.numbers] = values
    columns["title words"] = _title_words(encoded.texts, titles, result.positions.shape[1])
    stacked = np.stack(list(columns.values()), axis=2)  # [queries, k, features]
    return np.where(result.positions[:, :, None] >= 0, stacked, 0).astype(np.float32), tuple(columns)


def _batch_features(engine: Engine, batch: QueryBatch, result: SearchResult) -> dict[str, Floats]:
    tree, batch_rows = engine.tree, batch.numbers
    positions, scores = np.maximum(result.positions[batch_rows], 0), result.scores[batch_rows]  # [batch, k]
    shape = positions.shape
    parents, digits = (array.reshape(*shape, -1) for array in tree.paths(positions.ravel()))  # [batch, k, depth]
    length = (digits >= 0).sum(axis=2)  # [batch, k]
    last = np.take_along_axis(parents, length[:, :, None] - 1, axis=2)[:, :, 0]
    dot = tree.embeddings.dots(batch.embeddings, positions)
    valid_scores = np.where(np.isfinite(scores), scores, 0)
    columns = {
        "score": valid_scores,
        "gap to the first": valid_scores - valid_scores[:, :1],
        "1 / rank": np.broadcast_to(1 / np.arange(1, shape[1] + 1), shape),
        "similarity": dot,
        "similarity, gap to the best": dot - dot.max(axis=1, keepdims=True),
        "digits": length,
        "siblings": tree.num_children[last],
    }
    for m in PREFIXES[: tree.depth]:
        same = (digits[:, :, None, :m] == digits[:, None, :, :m]).all(axis=3)
        columns[f"share of the list with the same first {m} digits"] = same.mean(axis=2)
    columns |= _digit_features(engine, batch, positions)
    if engine.lexical is not None:
        columns |= _lexical_features(engine.lexical, batch.texts, tree.doc_rows[positions])
    return columns


def _digit_features(engine: Engine, batch: QueryBatch, positions: Ints) -> dict[str, Floats]:
    """Return log-probabilities of every digit by decoder and centroids, and the decoder's entropy and margin there."""
    scores = DigitScores.from_siblings(list(siblings(engine, batch, positions)))
    by_level = {"log P_T5": scores.generative, "log P_ANN": scores.dense}
    columns = {name: values.sum(axis=2) for name, values in by_level.items()}
    for level in range(scores.dense.shape[2]):
        for name, values in by_level.items():
            columns[f"{name}, digit {level + 1}"] = values[:, :, level]
        columns[f"entropy, digit {level + 1}"] = scores.entropy[:, :, level]
        columns[f"margin, digit {level + 1}"] = scores.margin[:, :, level]
    return columns


class Siblings(NamedTuple):
    """Scores of the nodes on the paths to documents, and of their siblings, at one level."""

    generative: Floats  # [batch, n, fan_out] the generator's
    dense: Floats  # [batch, n, fan_out] the encoder's
    valid: Bools  # [batch, n, fan_out] True at siblings that exist
    digits: Ints  # [batch, n] which sibling is on the path; arbitrary past the end


class DigitScores(NamedTuple):
    """Log-probabilities of the digits of docids, [batch, n, depth], 0 past the end."""

    generative: Floats  # by the generator
    dense: Floats  # by the encoder
    entropy: Floats  # of the generator's choice at that level
    margin: Floats  # of the digit over the best other, by the generator

    @classmethod
    def from_siblings(cls, levels: Sequence[Siblings]) -> "DigitScores":
        """Return those of softmaxes over siblings."""
        columns = [_digit_scores(level) for level in levels]
        return cls(*(np.stack(column, axis=2) for column in zip(*columns, strict=True)))


def _digit_scores(level: Siblings) -> tuple[Floats, Floats, Floats, Floats]:
    """[batch, n] each: log-probabilities by generator and encoder, the generator's entropy and margin, at one level."""
    exists = level.valid.any(axis=2)
    digits = level.digits[:, :, None]
    log_p, dense_log_p = (_log_softmax(scores, level.valid) for scores in (level.generative, level.dense))
    generative, dense = (
        np.where(exists, np.take_along_axis(values, digits, axis=2)[:, :, 0], 0) for values in (log_p, dense_log_p)
    )
    entropy = -(np.where(level.valid, np.exp(log_p), 0) * log_p).sum(axis=2)
    others = np.where(level.valid, log_p, -np.inf)
    np.put_along_axis(others, digits, -np.inf, axis=2)
    best = others.max(axis=2, initial=-np.inf)
    margin = np.where(exists & (best > -np.inf), generative - np.where(best > -np.inf, best, 0), 0)
    return tuple(np.asarray(v, dtype=np.float32) for v in (generative, dense, entropy, margin))  # type: ignore[return-value]


def _log_softmax(scores: Floats, valid: Bools) -> Floats:
    """[batch, n, fan_out] log-softmax over valid siblings, 0 elsewhere."""
    masked = np.where(valid, scores, -np.inf)
    highest = np.where(valid.any(axis=2), masked.max(axis=2, initial=-np.inf), 0)[:, :, None]
    total = np.exp(masked - highest).sum(axis=2, keepdims=True)
    return np.where(valid, masked - highest - np.log(total.clip(1e-30)), 0)


def siblings(engine: Engine, batch: QueryBatch, positions: Ints) -> Iterator[Siblings]:
    """Yield for each level the scores of the nodes on the paths to docids [batch, n], and of their siblings."""
    if isinstance(engine, VectorEngine):
        return _siblings_by_vectors(engine, batch, positions)
    assert isinstance(engine, PathEngine)
    return _siblings_by_decoder(engine, batch, positions)


def _siblings_by_vectors(engine: VectorEngine, batch: QueryBatch, positions: Ints) -> Iterator[Siblings]:
    """Yield for each level the scores of the nodes on the paths to docids [batch, n], and of their siblings."""
    tree, occupied, vectors = engine.tree, engine.tree.doc_rows >= 0, batch.embeddings
    scorer = NodeScores(engine.walk, batch)
    parents, digits = (array.reshape(*positions.shape, -1) for array in tree.paths(positions.ravel()))
    for level, fan_out in enumerate(tree.fan_out):
        above = np.maximum(parents[:, :, level], 0)
        children = tree.first_child[above][:, :, None].astype(np.int64) + np.arange(fan_out)  # [batch, n, fan_out]
        exists = (np.arange(fan_out) < tree.num_children[above][:, :, None]) & (parents[:, :, level] >= 0)[:, :, None]
        is_inner, documents = children < tree.num_inner, (children - tree.num_inner).clip(0, tree.num_places - 1)
        exists &= is_inner | occupied[documents]
        scores = np.zeros(children.shape, dtype=np.float32)
        for row, vector in enumerate(vectors):
            inner, leaf = exists[row] & is_inner[row], exists[row] & ~is_inner[row]
            scores[row, leaf] = tree.embeddings.dots(vector[None], documents[row][leaf][None])[0]
            if inner.any():
                scores[row][inner] = scorer.scores(level, np.array([row]), children[row][inner][None])[0]
        scores /= np.float32(_TEMPERATURE)
        yield Siblings(scores, scores, exists, np.maximum(digits[:, :, level], 0))


def _siblings_by_decoder(engine: PathEngine, batch: QueryBatch, positions: Ints) -> Iterator[Siblings]:
    """Yield for each level the scores of the nodes on the paths to docids [batch, n], and of their siblings."""
    on_device = torch.from_numpy(positions).long().to(engine.device)
    decoder_only = SearchRequest(1, SearchConfig(alpha=1.0, beta=0.0))
    paths = engine.follow_paths(batch, decoder_only, on_device)
    vectors = torch.from_numpy(batch.embeddings).to(engine.device)
    digits = engine.tree.paths(positions.ravel())[1].reshape(*positions.shape, -1)
    for level, (nodes, generative) in enumerate(paths.siblings):
        shape = (*positions.shape, -1)
        dense = engine.dense.dot(vectors, nodes.clamp(min=0)) / _TEMPERATURE
        by_generator, by_encoder, valid = (
            tensor.numpy(force=True).reshape(shape) for tensor in (generative, dense, nodes >= 0)
        )
        yield Siblings(by_generator, by_encoder, valid, np.maximum(digits[:, :, level], 0))


def _lexical_features(lexical: BM25, texts: Sequence[str], rows: Ints) -> dict[str, Floats]:
    terms, name = lexical.query_terms(texts), lexical.name
    scores = np.stack([lexical.scorer.contributions(*query).sum(axis=0) for query in zip(terms, rows, strict=True)])
    ranks = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    return {
        name: scores,
        f"{name}, share of the best": scores / scores.max(axis=1, keepdims=True).clip(1e-6),
        f"{name}, 1 / rank": 1 / (1.0 + ranks),
        "words of the document": np.log1p(lexical.lengths[rows]),
    }


def _title_words(queries: Sequence[str], titles: Sequence[Sequence[str]], k: int) -> Floats:
    """[queries, k] share of the query's words that are in the title."""
    shares = np.zeros((len(queries), k), dtype=np.float32)
    for row, (query, query_titles) in enumerate(zip(queries, titles, strict=True)):
        query_words = words(query)
        for column, title in enumerate(query_titles):
            shares[row, column] = len(query_words & words(title)) / max(len(query_words), 1)
    return shares


def words(text: str) -> set[str]:
    """Return the words of a text in lower case."""
    return set(re.findall(r"\w+", text.lower()))


def word_list(text: str) -> list[str]:
    """Return the words of a text in lower case, in order, without English stop words."""
    return [word for word in re.findall(r"\w+", text.lower()) if word not in ENGLISH_STOP_WORDS]
