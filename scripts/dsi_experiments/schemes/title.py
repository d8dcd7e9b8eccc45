"""Docids that are the tokens of titles, as in GENRE (De Cao et al. 2021), up to the one that makes a title unique.

Later tokens have no alternative, so a search that follows the tree loses nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsi.docids.files.checks import and_more
from dsi.docids.schemes import Docids, SchemeInput, pad_paths
from dsi.docids.tree import MOST_LEVELS
from dsi.docids.types import Ints


def make(documents: SchemeInput) -> Docids:
    """Return docids of titles."""
    titles = list(documents.titles)
    if documents.tokenizer is None or len(titles) != len(documents.embeddings):
        raise ValueError('The docid method "title" needs the titles of all documents, and a tokenizer that reads them.')
    blank = [row for row, title in enumerate(titles) if not title.strip()]
    if blank:
        name = documents.doc_ids[blank[0]] if len(documents.doc_ids) else blank[0]
        raise ValueError(
            f'The docid method "title" needs a title for each document; document {name!r}{and_more(len(blank) - 1)} '
            "has none."
        )
    paths = [tokens[: MOST_LEVELS - 1] for tokens in title_tokens(documents.tokenizer, titles)]
    return Docids(_cut(pad_paths(paths)))


def title_tokens(tokenizer: Any, titles: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each title, then the tokenizer's end token, which occurs nowhere else."""
    ends = tokenizer.eos_token_id, tokenizer.sep_token_id, len(tokenizer)
    end = next(end for end in ends if end is not None)
    tokenized = tokenizer(titles, add_special_tokens=False)["input_ids"]
    return [[*(token for token in tokens if token != end), end] for tokens in tokenized]


def _cut(paths: Ints) -> Ints:
    """Cut paths [N, longest] after the first number that makes them unique."""
    order = np.lexsort(paths.T[::-1])
    same = np.logical_and.accumulate(paths[order[1:]] == paths[order[:-1]], axis=1).sum(axis=1)  # [N - 1] with the next
    kept = np.empty(len(paths), dtype=np.int64)
    kept[order] = 1 + np.maximum(np.append(same, 0), np.insert(same, 0, 0))
    return np.where(np.arange(paths.shape[1]) < kept[:, None], paths, -1)
