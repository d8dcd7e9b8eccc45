"""The map from query states to token vectors, trained on train queries against the codes of documents as they are.

It starts at that of documents and is trained by cross-entropy over late interaction (ColBERT; Khattab and Zaharia 2020), with
hard negatives, wherever these come from; it is not kept if dev queries lose by it. Knows nothing of docids.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dsi.contrastive.config import HARD
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.files.progress import progress
from dsi.docids.files.threads import one_thread
from dsi.docids.token_vectors import TokenVectors, decode
from dsi.docids.types import Floats, Ints

logger = logging.getLogger(__name__)

QUERIES, _LONGEST = 10_000, 32
"""Train queries, and tokens of each, that are read at most: a quarter of a GB of states with 384 dimensions."""
_SCORES = 2**25
"""Scores of documents in memory at a time."""
_NEGATIVES = 7
"""Hard negatives of a query in a step."""
_BATCH = 32
_TEMPERATURE = 0.02
_LEARNING_RATE = 5e-4
"""Peak, after a linear warm-up over a tenth of the steps."""
_FEW = 20
"""Fewest dev queries that decide whether the trained map is kept."""


class QueryExample(NamedTuple):
    """A query and the rows of its documents among those whose codes there are."""

    # [tokens, state_dim] of its tokens that are not special ones, of length 1, in half precision
    states: NDArray[np.float16]
    positives: Ints  # one row a relevant document: its piece that is nearest to the query
    relevant: Ints  # all rows of relevant documents
    negatives: Ints  # other rows with the highest scores


@dataclass(frozen=True)
class JudgedQueries:
    """Queries with their relevant documents."""

    texts: Sequence[str]  # as the encoder reads them
    relevant: Sequence[Ints]  # rows of the document table, of each
    # {number of a query: rows of the documents that it is itself}, which are neither relevant nor negatives
    same: Mapping[int, Collection[int]] = field(default_factory=dict)

    @classmethod
    def from_pairs(
        cls, pairs: Sequence[tuple[str, int]], queries: Mapping[str, str], encoder: TextEncoder,
        identical: Mapping[str, Collection[int]] | None = None,
    ) -> "JudgedQueries":  # fmt: skip
        """Return the queries of (query id, document row); `identical`: {text of a query: rows of the documents that it is}."""
        rows: dict[str, set[int]] = {}
        for query_id, row in pairs:
            rows.setdefault(queries[query_id], set()).add(row)
        same = {number: identical[text] for number, text in enumerate(rows) if identical and text in identical}
        return cls(encoder.query_texts(list(rows)), [np.array(sorted(relevant)) for relevant in rows.values()], same)


def query_examples(
    encoder: TextEncoder, judged: JudgedQueries, embeddings: Floats, rows: Ints,
    score: Callable[[Sequence[str], Floats], Floats], rng: np.random.Generator,
) -> list[QueryExample]:  # fmt: skip
    """Return examples of queries, at most 10,000, drawn at random.

    `embeddings`: [n, embedding_dim] of the documents or their pieces; `rows`: [n] row of the document table of each,
    ascending; `score`: returns scores [m, n] of all of them for the texts and embeddings of m queries, to find hard
    negatives.
    """
    drawn = rng.permutation(len(judged.texts))[:QUERIES].tolist()
    texts = [judged.texts[number] for number in drawn]
    states, vectors = _encode(encoder, texts)
    examples, size = list[QueryExample](), max(1, _SCORES // len(rows))
    for start in progress(range(0, len(texts), size), "hard negatives", unit="block"):
        block = slice(start, start + size)
        scores = score(texts[block], vectors[block])
        for query, vector, number, near in zip(states[block], vectors[block], drawn[block], scores, strict=True):
            relevant = _places(rows, judged.relevant[number])
            near[relevant] = -np.inf  # [n] scores of the query: a relevant document is not a negative
            itself = _places(rows, np.array(sorted(judged.same[number]))) if number in judged.same else relevant[:0]
            near[itself] = -np.inf
            count = min(HARD, len(rows) - len(relevant) - len(itself))
            # Of each relevant document the piece that is nearest to the query: the first of its row, best first.
            best = relevant[np.argsort(-(embeddings[relevant] @ vector), kind="stable")]
            positives = best[np.unique(rows[best], return_index=True)[1]]
            if len(query) and count:
                hard = np.argpartition(-near, count - 1)[:count]
                examples.append(QueryExample(query, positives, relevant, hard.copy()))  # a slice would keep all places
    return examples


def _places(rows: Ints, documents: Ints) -> Ints:
    """Return where documents stand among ascending rows."""
    ends = zip(np.searchsorted(rows, documents), np.searchsorted(rows, documents, side="right"), strict=True)
    return np.concatenate([np.arange(start, end) for start, end in ends])


def _encode(encoder: TextEncoder, texts: Sequence[str]) -> tuple[list[NDArray[np.float16]], Floats]:
    """Return the states of each query's tokens that are not special ones, and the embeddings [n, embedding_dim]."""
    states = [np.empty((0, encoder.state_dim), np.float16)] * len(texts)
    vectors = np.empty((len(texts), encoder.embedding_dim), dtype=np.float32)
    encoded = encoder.for_search().token_states(texts, "query", progress="states of queries", special=False)
    for number, query, vector in encoded:
        lengths = np.linalg.norm(query[:_LONGEST], axis=1, keepdims=True)  # a state's length makes no difference
        states[number], vectors[number] = (query[:_LONGEST] / np.maximum(lengths, 1e-12)).astype(np.float16), vector
    return states, vectors


def train_query_head(
    tokens: TokenVectors, train: Sequence[QueryExample], dev: Sequence[QueryExample], epochs: float, *, seed: int = 0
) -> TokenVectors:
    """Return the token vectors with a separate matrix for queries; unchanged if the loss of dev queries does not fall."""
    if not train:
        return tokens
    better = replace(tokens, query_head=train_matrix(tokens, train, count_steps(len(train), epochs), seed=seed))
    if len(dev) < _FEW:
        return better
    before, after = (mean_loss(vectors, dev, seed=seed) for vectors in (tokens, better))
    note = "the trained matrix is kept" if after < before else "the matrix stays that of documents"
    logger.info("token vectors of queries: loss of %d dev queries %.4f, %.4f before; %s", len(dev), after, before, note)
    return better if after < before else tokens


def count_steps(queries: int, epochs: float) -> int:
    """Return the steps of a training on a number of queries."""
    return ceil(epochs * ceil(queries / _BATCH))


def train_matrix(tokens: TokenVectors, train: Sequence[QueryExample], steps: int, *, seed: int = 0) -> Floats:
    """Return the matrix [dim, state_dim] that some steps make of the documents' head; the same seed gives the same."""
    matrix = torch.tensor(tokens.head, requires_grad=True)
    optimizer = torch.optim.Adam([matrix], lr=_LEARNING_RATE)
    warm_up = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))
    )
    batches = _batches(train, np.random.default_rng(seed))
    for _ in progress(range(steps), "token vectors of queries", unit="step"):
        loss = _loss(tokens, matrix, *next(batches))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return matrix.numpy(force=True)


@torch.no_grad()
def mean_loss(tokens: TokenVectors, examples: Sequence[QueryExample], *, seed: int = 0) -> float:
    """Return the mean loss of queries, each beside those it is drawn with."""
    batches, count = _batches(examples, np.random.default_rng(seed)), count_steps(len(examples), 1)
    matrix = torch.tensor(tokens.head if tokens.query_head is None else tokens.query_head)
    return float(np.mean([float(_loss(tokens, matrix, *next(batches))) for _ in range(count)]))


def _batches(
    examples: Sequence[QueryExample], rng: np.random.Generator
) -> Iterator[tuple[list[QueryExample], list[int], list[int]]]:
    """Yield queries, the positive of each, and the rows of all documents of the batch, for ever."""
    while True:
        order = rng.permutation(len(examples)).tolist()
        for start in range(0, len(order), _BATCH):
            batch = [examples[number] for number in order[start : start + _BATCH]]
            positives = [int(rng.choice(example.positives)) for example in batch]
            drawn = [rng.choice(item.negatives, min(_NEGATIVES, len(item.negatives)), replace=False) for item in batch]
            yield batch, positives, list(dict.fromkeys([*positives, *np.concatenate(drawn).tolist()]))


def _loss(
    tokens: TokenVectors, matrix: torch.Tensor, batch: Sequence[QueryExample], positives: list[int], rows: list[int]
) -> torch.Tensor:
    """Return the mean cross-entropy of the positives among all documents of a batch but others that are relevant."""
    # Vectors of all queries' tokens, x in all. Which token of a document is best is found without gradients: the maximum
    # passes its gradient to that token alone.
    lengths = [len(example.states) for example in batch]
    states = torch.from_numpy(np.concatenate([example.states for example in batch]).astype(np.float32))
    vectors = torch.nn.functional.normalize(states @ matrix.T, dim=1)  # [x, dim]
    best = torch.from_numpy(_best_tokens(tokens, vectors.numpy(force=True), rows))  # [x, documents, dim]
    products = torch.einsum("xd,xnd->xn", vectors, best)
    scores = torch.stack([part.mean(dim=0) for part in products.split(lengths)]) / _TEMPERATURE  # [batch, documents]

    # The other relevant documents of a query are not wrong answers: they are left out of its softmax.
    column = {row: number for number, row in enumerate(rows)}
    others = torch.zeros_like(scores, dtype=torch.bool)
    for number, (example, positive) in enumerate(zip(batch, positives, strict=True)):
        others[number, [column[row] for row in example.relevant.tolist() if row in column and row != positive]] = True
    return torch.nn.functional.cross_entropy(
        scores.masked_fill(others, -torch.inf), torch.tensor([column[positive] for positive in positives])
    )


def _best_tokens(tokens: TokenVectors, vectors: Floats, rows: list[int]) -> Floats:
    """Return the token of each document with the best product for each vector [x, dim]: [x, documents, dim]; 0 without any."""
    gathered = tokens.gather(np.array(rows))
    decoded, norms = decode(gathered.codes, tokens.dim, tokens.bits)
    decoded /= norms[:, None]  # [tokens, dim] of length 1, document by document
    best = np.zeros((len(vectors), len(rows), tokens.dim), dtype=np.float32)
    with one_thread():
        for number, (start, end) in enumerate(zip(gathered.starts, gathered.starts[1:], strict=False)):
            if end > start:
                document = decoded[start:end]
                # [x, tokens of the document] products at a time: those of all documents together would not fit
                best[:, number] = document[(vectors @ document.T).argmax(axis=1)]
    return best
