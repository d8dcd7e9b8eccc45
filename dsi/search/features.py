"""Features of the results of a search, for rerankers; those of a whole batch are computed in one pass.

From the decoder and the centroids: the log-probability of every digit; the decoder's entropy at that level, and the margin of
the digit over the next best. From the answer list: rank, and how many candidates share the first digits. From words: BM25, and
the query's words in the title.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from dsi.docids.words.bm25 import Lexical
from dsi.search.engine import EncodedQueries, Engine, QueryBatch
from dsi.search.results import Floats, Ints, SearchResult

PREFIXES = (1, 2, 3)
"""Lengths of the docid prefixes that candidates may share."""


def compute_features(
    engine: Engine,
    encoded: EncodedQueries,
    result: SearchResult,
    titles: Sequence[Sequence[str]],
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Return the features of the results of a search.

    Args:
        engine: the tree, the scores of its nodes, and the lexical part, if there is one; its features have its name.
        encoded: the queries.
        result: the answers, rows in the order of the queries.
        titles: of the answers.

    Returns:
        features: [queries, k, features], 0 at padding.
        names: of the features.
    """
    if not result.positions.shape[1]:  # nothing was found; what is not there has zeros, and the same names
        whole, names = compute_features(engine, encoded, SearchResult.empty(len(result.positions), 1), titles)
        return whole[:, :0], names
    columns: dict[str, Floats] = {}
    for batch in encoded.batches:
        for name, values in _batch_features(engine, batch, result).items():
            whole = columns.setdefault(name, np.zeros(result.positions.shape, dtype=np.float32))
            whole[batch.rows.numpy()] = values
    columns["title words"] = _title_words(encoded.texts, titles, result.positions.shape[1])
    stacked = np.stack(list(columns.values()), axis=2)  # [queries, k, features]
    return np.where(result.positions[:, :, None] >= 0, stacked, 0).astype(np.float32), tuple(columns)


def _batch_features(engine: Engine, batch: QueryBatch, result: SearchResult) -> dict[str, Floats]:
    tree, batch_rows = engine.tree, batch.rows.numpy()
    positions, scores = np.maximum(result.positions[batch_rows], 0), result.scores[batch_rows]  # [batch, k]
    shape = positions.shape
    parents, digits = (array.reshape(*shape, -1) for array in tree.paths(positions.ravel()))  # [batch, k, depth]
    length = (digits >= 0).sum(axis=2)  # [batch, k]
    last = np.take_along_axis(parents, length[:, :, None] - 1, axis=2)[:, :, 0]
    dot = tree.embeddings.products_of(batch.vectors, positions)
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
    scores = engine.digit_scores(batch, positions)
    by_level = {"log P_T5": scores.generative, "log P_ANN": scores.dense}
    columns = {name: values.sum(axis=2) for name, values in by_level.items()}
    for level in range(scores.dense.shape[2]):
        for name, values in by_level.items():
            columns[f"{name}, digit {level + 1}"] = values[:, :, level]
        columns[f"entropy, digit {level + 1}"] = scores.entropy[:, :, level]
        columns[f"margin, digit {level + 1}"] = scores.margin[:, :, level]
    return columns


def _lexical_features(lexical: Lexical, texts: Sequence[str], rows: Ints) -> dict[str, Floats]:
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
