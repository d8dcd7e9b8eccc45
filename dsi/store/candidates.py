"""Results of a search as candidates for rerankers. Knows no rerankers."""

import numpy as np

from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.search.candidates import Candidates, Features
from dsi.search.engine import Engine
from dsi.search.queries import EncodedQueries
from dsi.search.results import SearchResult
from dsi.store.documents import DocumentTable


def candidates_of(
    engine: Engine,
    documents: DocumentTable,
    encoded: EncodedQueries,
    result: SearchResult,
    features: Features | None = None,
) -> Candidates:
    """Return the results of a search as candidates for rerankers.

    Args:
        engine: that searched.
        documents: the document table.
        encoded: the queries.
        result: of the search, rows in the order of the queries.
        features: computes the features of rerankers; none by default.
    """
    tree, positions = engine.tree, result.positions  # [queries, k]
    valid = positions >= 0
    any_position = np.maximum(positions, 0)  # an arbitrary one at padding
    rows = tree.doc_rows[any_position]

    def lists(column: str) -> list[list[str]]:
        values = zip(documents.values_of(column, rows), valid.sum(axis=1).tolist(), strict=True)
        return [[str(value) for value in column[:count]] for column, count in values]

    titles = lists("title")
    computed, names = np.zeros((*positions.shape, 0), dtype=np.float32), tuple[str, ...]()
    if features:
        computed, names = features(engine, encoded, result, titles)
    _, digits = tree.paths(any_position.ravel())  # [queries * k, depth]
    return Candidates(
        queries=encoded.texts,
        doc_ids=lists("doc_id"),
        titles=titles,
        scores=result.scores.astype(np.float64),
        digits=np.where(valid[:, :, None], digits.reshape(*positions.shape, digits.shape[1]), -1),
        query_embeddings=encoded.embeddings.float().numpy(),
        embeddings=tree.embeddings[any_position] * valid[:, :, None],
        features=computed,
        names=names,
        query_ids=encoded.query_ids,
        exact=result.exact,
        texts_of=documents.texts_of if documents.has_texts else None,
        metadata_of=documents.metadata_of if documents.has_metadata else None,
        spans=_spans(tree, any_position),
    )


def _spans(tree: DocidTree, positions: Ints) -> Ints | None:
    """[queries, k, 2] ends of the piece of a text at docid positions [queries, k], 0 for one piece; None if all are."""
    if tree.spans is None:
        return None
    spans = [span or (0, 0) for span in tree.spans_at(positions.ravel())]
    return np.array(spans, dtype=np.int32).reshape(*positions.shape, 2)
