"""The topic of a cluster of the docid tree: its most telling words.

    weight(word, cluster) = n * log((n / size) / (N / all))

for a word in n of the cluster's `size` documents and in N of `all` documents: tf-idf in which a word counts by how much more
often it occurs here than everywhere. The words are those of the titles, and of the texts if the index keeps them; of scripts
without spaces, pairs of letters. Knows nothing of searches.
"""

import re
from collections.abc import Iterable
from itertools import chain

import numpy as np

from dsi.docids.tree import DocidTree, ranges
from dsi.docids.types import Rows
from dsi.docids.words.analyzer import MARKS, UNSPACED, letter_groups
from dsi.docids.words.common import COMMON_WORDS
from dsi.store.documents.table import DocumentTable

_LETTERS = re.compile(rf"(?:[^\W\d_][{MARKS}]*){{3,}}")
_BLOCK = 4096
"""Documents read at a time."""
_READ = 2000
"""Characters of a text that are read."""


class Topics:
    """The telling words of every cluster of an index, which are counted once."""

    def __init__(self, tree: DocidTree, documents: DocumentTable) -> None:
        self.tree, self.words = tree, [""]
        self._numbers, self._ends = self._read(documents)  # of the words of document after document; where each ends
        counts = np.bincount(self._numbers, minlength=len(self.words))
        self._share = np.maximum(counts, 1) / len(documents)  # [words] N / all

    def telling_words(self, node: int, most: int = 5) -> list[str]:
        """Return the words that weigh most, best first, of an inner node; equal ones in the order of the alphabet."""
        rows = self.tree.doc_rows[self.tree.doc_start[node] : self.tree.doc_end[node]]  # by place
        rows, size = rows[rows >= 0], len(self.tree.rows_below(node))
        below = self._numbers[ranges(self._ends[rows], self._ends[rows + 1] - self._ends[rows])]
        counts = np.bincount(below, minlength=len(self.words))
        (numbers,) = np.nonzero(counts)
        weights = counts[numbers] * np.log(counts[numbers] / size / self._share[numbers])
        best = np.argsort(-weights.round(6), kind="stable")[:most]
        return [self.words[word] for word, weight in zip(numbers[best], weights[best], strict=True) if weight > 0]

    def _read(self, documents: DocumentTable) -> tuple[Rows, Rows]:
        vocabulary: dict[str, int] = {}
        indices: list[int] = []  # numbers of words, document after document
        ends = [0]
        for text in _texts(documents):
            words = set(_words(text.lower())) - COMMON_WORDS
            indices += [vocabulary.setdefault(word, len(vocabulary)) for word in words]
            ends.append(len(indices))
        self.words = sorted(vocabulary) or [""]
        in_order = np.argsort(np.argsort(list(vocabulary)))  # [words] place in the alphabet, by number
        return in_order[np.array(indices, dtype=np.int64)], np.array(ends)


def _words(text: str) -> Iterable[str]:
    """Return the words of three letters and more, and the groups of letters of scripts without spaces."""
    runs = enumerate(UNSPACED.split(text))
    return chain.from_iterable(letter_groups(run) if number % 2 else _LETTERS.findall(run) for number, run in runs)


def _texts(documents: DocumentTable) -> Iterable[str]:
    """Yield the title of each document, with the beginning of its text if the table has texts."""
    for start in range(0, len(documents), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(documents)))[:, None]
        titles, texts = (documents.values_of(column, rows) for column in ("title", "text"))
        for (title,), (text,) in zip(titles, texts, strict=True):
            yield f"{title} {(text or '')[:_READ]}"
