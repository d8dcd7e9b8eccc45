"""What earlier queries say of the documents: the memory of an index (`dsi.docids.query_memory`) as a part of their scores."""

from collections.abc import Sequence

import numpy as np

from dsi.docids.query_memory import QueryMemory, Spread
from dsi.docids.types import Floats, Rows
from dsi.docids.words.bm25 import BM25
from dsi.search.scores import DocumentScores, Recalled

EARLIER_WORDS = 0.25
"""Weight of the words of earlier queries beside the documents' shares of these (docs/experiments/queries.md)."""
EARLIER_VECTORS, OWN_TEXT, MOST_MOVED = 0.5, 16, 0.9
"""Weight of their vectors; earlier queries that count as much as a document's text there; the share that a dense score moves,
at most."""


def recall(
    memory: QueryMemory, spread: Spread, lexical: BM25 | None, by_text: DocumentScores, texts: Sequence[str],
    weights: Floats,
) -> Recalled:  # fmt: skip
    """Return what earlier queries say of documents: (margin share)^2 + .25 margin words is added, in dense scores' unit.

    The margin is how much nearer the nearest earlier query is than the nearest of these documents is: what users took says
    much where texts say little. Words are what BM25 would add if the terms of their earlier queries stood in the documents.
    Dense scores move towards the mean score of a document's n earlier queries, by weight margin n / (2 n + 32), at most .9.

    `lexical`: None where words do not count; `by_text`: dense scores of the same queries without the memory; `texts`: of these;
    `weights`: [batch] of the memory, less where the encoder reads less of a query.
    """
    taken = memory.taken
    pull = EARLIER_VECTORS * taken.totals / (taken.totals + OWN_TEXT)
    added, by, means = [], list[Floats](), list[Floats]()
    for query, nearest in enumerate(memory.shares(by_text.queries, spread)):
        length = float(np.linalg.norm(by_text.queries[query])) * spread.length or 1.0
        unit = length * (1 - spread.cosine)
        _, dense = by_text.dense(query, nearest.rows)
        margin = np.float32(max(0.0, nearest.cosine * length - float(dense.max())) / unit)
        said = (margin * nearest.shares) ** 2
        if margin and lexical is not None:
            words = learned_words(memory, lexical, texts[query], nearest.rows)[1].sum(axis=0)
            said += EARLIER_WORDS * margin * nearest.belongs * words
        added.append((nearest.rows, np.float32(weights[query] * unit) * said))
        by.append(np.minimum(np.float32(MOST_MOVED), np.float32(weights[query]) * margin * pull))
        means.append(np.float32(length) * nearest.means)
    return Recalled(added, taken.rows, np.stack(by), np.stack(means))


def learned_words(memory: QueryMemory, lexical: BM25, text: str, rows: Rows) -> tuple[list[str], Floats]:
    """Return the terms of a query, and [terms, n] what BM25 of documents gains by each that their earlier queries have."""
    names, terms = lexical.all_terms(text)
    return names, lexical.scorer.gains(terms, rows, memory.term_counts(names, rows))
