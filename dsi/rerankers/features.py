"""Features of the answers of a search, for rerankers; those of a whole batch are computed in one pass.

From the decoder and the centroids: the log-probability of every digit; the decoder's entropy at that level, and the margin of
the digit over the next best. From the answer list: rank, and how many candidates share the first digits. From words: BM25, and
the query's words in the title.
"""

import re
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from torch import Tensor

from docids.lexical import Lexical
from dsi.search.beam import TreeSearcher
from dsi.search.beams import LevelTrace, SearchResult
from dsi.search.queries import EncodedQueries, QueryBatch
from dsi.search.request import ScoredQueries, SearchConfig, SearchRequest

PREFIXES = (1, 2, 3)
"""Lengths of the docid prefixes that candidates may share."""


def features_of(
    searcher: TreeSearcher,
    lexical: Lexical | None,
    encoded: EncodedQueries,
    result: SearchResult,
    titles: Sequence[Sequence[str]],
    ann_temperature: float,
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Features of the answers of a search.

    Args:
        searcher: the tree and the decoder.
        lexical: BM25 or learned sparse vectors, if the index has them; the features of its scores have its name.
        encoded: the queries.
        result: the answers, rows in the order of the queries.
        titles: of the answers.
        ann_temperature: of the centroids' probabilities.

    Returns:
        features: [queries, k, features], 0 at padding.
        names: of the features.
    """
    columns: dict[str, Tensor] = {}
    for batch in encoded.batches:
        found = _of_batch(searcher, lexical, batch, result, ann_temperature)
        for name, values in found.items():
            whole = columns.setdefault(name, torch.zeros(result.positions.shape))
            whole[batch.rows] = values.to("cpu", torch.float32)
    columns["title words"] = _title_words(encoded.texts, titles, result.positions.shape[1])
    valid = result.positions >= 0
    stacked = torch.stack(list(columns.values()), dim=2).masked_fill(~valid[:, :, None], 0.0)  # [queries, k, features]
    return stacked.numpy(), tuple(columns)


def _of_batch(
    searcher: TreeSearcher, lexical: Lexical | None, batch: QueryBatch, result: SearchResult, ann_temperature: float
) -> dict[str, Tensor]:
    tree = searcher.tree
    positions = result.positions[batch.rows].clamp(min=0)  # [batch, k]
    scores = result.scores[batch.rows]
    on_device = positions.to(searcher.device)
    rank = torch.arange(1, positions.shape[1] + 1)
    parents, digits = (  # [batch, k, depth]
        torch.from_numpy(own).view(*positions.shape, -1) for own in tree.paths(positions.flatten().numpy())
    )
    length = (digits >= 0).sum(dim=2)  # [batch, k]
    last = parents.gather(2, length[:, :, None] - 1)[:, :, 0]
    dot = torch.einsum("bd,bkd->bk", batch.embeddings.cpu(), torch.from_numpy(tree.embeddings[positions.numpy()]))
    found = {
        "score": scores,
        "gap to the first": scores - scores[:, :1],
        "1 / rank": (1 / rank).expand_as(scores),
        "similarity": dot,
        "similarity, gap to the best": dot - dot.amax(dim=1, keepdim=True),
        "digits": length,
        "siblings": torch.from_numpy(tree.num_children)[last],
    }
    for m in PREFIXES[: tree.depth]:
        same = (digits[:, :, None, :m] == digits[:, None, :, :m]).all(dim=3)
        found[f"share of the list with the same first {m} digits"] = same.float().mean(dim=2)
    found |= _levels(searcher, batch, on_device, ann_temperature)
    if lexical is not None:
        rows = torch.from_numpy(tree.doc_rows)[positions].long()
        own, name = torch.from_numpy(lexical.scores(batch.texts)).gather(1, rows), lexical.name
        found[name] = own
        found[f"{name}, share of the best"] = own / own.amax(dim=1, keepdim=True).clamp(min=1e-6)
        found[f"{name}, 1 / rank"] = 1 / (1.0 + own.argsort(dim=1, descending=True, stable=True).argsort(dim=1))
        found["words of the document"] = torch.from_numpy(lexical.lengths)[rows].float().log1p()
    return found


def _levels(searcher: TreeSearcher, batch: QueryBatch, positions: Tensor, ann_temperature: float) -> dict[str, Tensor]:
    """Log-probabilities of every digit by decoder and centroids, and the decoder's entropy and margin there."""
    centroids = SearchRequest(1, SearchConfig(fusion="paper", alpha=0.0, ann_temperature=ann_temperature))
    trace: list[LevelTrace] = []
    alone = searcher.follow(*searcher.alone(batch, ann_temperature), positions, trace)
    generative = alone[0] + alone[1]
    near = searcher.node_scores(batch.embeddings, centroids.config)
    _, dense = searcher.follow(ScoredQueries(batch.states, batch.mask, near), centroids, positions)
    found = {"log P_T5": generative[:, :, -1], "log P_ANN": dense[:, :, -1]}
    steps = {"log P_T5": generative, "log P_ANN": dense}
    for name, sums in steps.items():
        for level in range(sums.shape[2]):
            before = sums[:, :, level - 1] if level else 0.0
            found[f"{name}, digit {level + 1}"] = sums[:, :, level] - before
    for level, own in enumerate(trace, start=1):
        entropy, margin = _certainty(own, positions.shape[1])
        found[f"entropy, digit {level}"], found[f"margin, digit {level}"] = entropy, margin
    return found


def _certainty(level: LevelTrace, k: int) -> tuple[Tensor, Tensor]:
    """[batch, k] the decoder's entropy at a level, and the margin of the digit taken over the best other; 0 past the end."""
    shape = (len(level.nodes), k, -1)
    valid = ((level.nodes >= 0) & (level.score > -torch.inf)).view(
        shape
    )  # [batch, k, fan-out]; removed documents are not
    taken = level.kept.view(shape)
    log_p = level.score.view(shape).masked_fill(~valid, -torch.inf).log_softmax(dim=2)
    log_p = log_p.masked_fill(~valid, 0.0)  # also where a docid has ended and nothing is valid
    entropy = -(log_p.exp() * log_p * valid).sum(dim=2)
    own = (log_p * taken).sum(dim=2)
    best_other = log_p.masked_fill(~valid | taken, -torch.inf).amax(dim=2)
    return entropy, torch.where(best_other > -torch.inf, own - best_other, 0.0)


def _title_words(queries: Sequence[str], titles: Sequence[Sequence[str]], k: int) -> Tensor:
    """[queries, k] share of the query's words that are in the title."""
    shares = torch.zeros(len(queries), k)
    for row, (query, own) in enumerate(zip(queries, titles, strict=True)):
        asked = words(query)
        for column, title in enumerate(own):
            shares[row, column] = len(asked & words(title)) / max(len(asked), 1)
    return shares


def words(text: str) -> set[str]:
    """The words of a text in lower case."""
    return set(re.findall(r"\w+", text.lower()))


def word_list(text: str) -> list[str]:
    """The words of a text in lower case, in order, without English stop words."""
    return [word for word in re.findall(r"\w+", text.lower()) if word not in ENGLISH_STOP_WORDS]
