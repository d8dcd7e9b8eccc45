"""Encoded queries: one pass of the encoder serves many searches. Knows nothing of what searches them."""

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsi.contrastive.text_encoder import EncodedTexts, TextEncoder, passes
from dsi.docids.data.records import EMPTY_QUERIES, Oddities, checked_queries
from dsi.docids.data.sources import is_table, items_of, records_of
from dsi.docids.files.checks import and_more, id_of, plain, shown, text, unpack
from dsi.docids.files.progress import Bar
from dsi.docids.query_memory import is_usable
from dsi.docids.types import Bools, Floats, Ints, Numbers

logger = logging.getLogger(__name__)

Queries: TypeAlias = Mapping[str, str] | Iterable[Any]
"""Texts, whose places are their ids; {query_id: text}; a series of texts; records or a table with an id and a text. The answer
of an empty query is empty."""
_NOTHING = "?"
"""What is encoded for an empty query, so that arrays have a row for it; its answer is empty."""


class QueryBatch(NamedTuple):
    """A batch of encoded queries."""

    numbers: Ints  # [n] their places among all queries of the call
    states: Floats  # [n, length, state_dim] token states
    mask: Bools  # [n, length] True at real tokens
    embeddings: Floats  # [n, embedding_dim]
    texts: list[str]  # the queries, without the encoder's prompt
    words: Bools | None = None  # [n, length] True at real tokens that are not special ones; all real tokens by default
    # as models read them: cut at `encoder.query_length`, and a mark in place of an empty one; by default `texts`
    read: Sequence[str] = ()
    has_texts: bool = True  # False for vectors that came without texts, which are "" then
    shares_read: Floats | None = None  # [n] how much of each the encoder reads, from 0 to 1; None if that is not known

    def select(self, which: Ints) -> "QueryBatch":
        """Return the queries at the indices `which`."""
        texts = [self.texts[n] for n in which.tolist()]
        words = None if self.words is None else self.words[which]
        arrays = self.numbers[which], self.states[which], self.mask[which], self.embeddings[which]
        read = [self.read[n] for n in which.tolist()] if self.read else ()
        shares = None if self.shares_read is None else self.shares_read[which]
        return QueryBatch(*arrays, texts, words, read, self.has_texts, shares)

    def word_states(self, query: int) -> NDArray[np.float32]:
        """[words, state_dim] the states of a query's tokens that are not special ones."""
        words = self.mask if self.words is None else self.words
        return self.states[query][words[query]]

    @property
    def usable(self) -> Bools:
        """[n] True at queries whose embedding and states are finite."""
        return is_usable(self.embeddings) & (np.isfinite(self.states).all(axis=2) | ~self.mask).all(axis=1)

    def cleaned(self, usable: Bools) -> Self:
        """Return the queries with zeros for the vectors of those that are not `usable` [n]."""
        if usable.all():
            return self
        embeddings = np.where(usable[:, None], self.embeddings, np.float32(0))
        states = np.where(usable[:, None, None] & self.mask[:, :, None], self.states, np.float32(0))
        return self._replace(embeddings=embeddings, states=states)


@dataclass(frozen=True)
class EncodedQueries:
    """Encoded queries, to be searched with any options."""

    query_ids: list[str]  # in the order of the call; "0", "1", … for queries without ids
    batches: list[QueryBatch]  # the queries, grouped by length

    @property
    def count(self) -> int:
        """The number of queries."""
        return len(self.query_ids)

    @property
    def texts(self) -> list[str]:
        """The queries in the order of the call."""
        texts = {
            number: text
            for batch in self.batches
            for number, text in zip(batch.numbers.tolist(), batch.texts, strict=True)
        }
        return [texts[number] for number in range(self.count)]

    @property
    def empty(self) -> list[int]:
        """The numbers of the queries whose text is empty; vectors without texts do not count."""
        batches = (batch for batch in self.batches if batch.has_texts)
        return sorted(
            number
            for batch in batches
            for number, text in zip(batch.numbers.tolist(), batch.texts, strict=True)
            if not text.strip()
        )

    def each(self) -> "list[EncodedQueries]":
        """Return the queries one by one, in the order of the call."""
        if self.count == 1:
            return [self]
        found: dict[int, EncodedQueries] = {}
        for batch in self.batches:
            for place, number in enumerate(batch.numbers.tolist()):
                query = batch.select(np.array([place]))._replace(numbers=np.zeros(1, dtype=np.int64))
                found[number] = EncodedQueries([self.query_ids[number]], [query])
        return [found[number] for number in range(self.count)]

    def cleaned(self) -> tuple["EncodedQueries", list[int]]:
        """Return the queries with zeros for vectors that are not finite, and the numbers of the queries that had such."""
        usable = [batch.usable for batch in self.batches]
        pairs = list(zip(self.batches, usable, strict=True))
        numbers = sorted(int(number) for batch, finite in pairs for number in batch.numbers[~finite])
        if not numbers:
            return self, numbers
        return EncodedQueries(self.query_ids, [batch.cleaned(finite) for batch, finite in pairs]), numbers

    def check_usable(self) -> None:
        """Raise ValueError if the vectors of a query are not finite."""
        for number in self.cleaned()[1]:
            raise ValueError(f"{not_finite(self.texts[number])} Word it in another way.")

    @property
    def embeddings(self) -> Floats:
        """[count, embedding_dim] in the order of the call."""
        numbers = np.concatenate([batch.numbers for batch in self.batches])
        return np.concatenate([batch.embeddings for batch in self.batches])[numbers.argsort()]


def not_finite(query: str) -> str:
    """Return why a query is refused whose vectors are not finite."""
    return f"The embedding of the query {shown(query)} is not finite, so no document can be compared with it."


def encode_queries(
    encoder: TextEncoder, queries: Queries, *, batch_size: int = 32, show_progress: bool = False
) -> EncodedQueries:
    """Encode queries, in batches of similar length; `batch_size` of them are searched together."""
    return encode_texts(encoder, *ids_and_texts(queries), batch_size, show_progress)


def encode_texts(
    encoder: TextEncoder, query_ids: list[str], queries: Sequence[str], batch_size: int = 32,
    show_progress: bool = False,
) -> EncodedQueries:  # fmt: skip
    """Encode queries that are checked; see `encode_queries`."""
    if plain(int, batch_size, "batch_size") < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    texts, tokens = encoder.read_queries([query if query.strip() else _NOTHING for query in queries])
    shares, counts = encoder.shares_read(texts, tokens), np.array([len(row) for row in tokens], dtype=np.int64)
    order, batches = np.argsort(-counts, kind="stable"), list[QueryBatch]()
    with Bar("queries", unit="query", total=len(order)) if show_progress else nullcontext() as bar:
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            raw, read = ([source[number] for number in numbers.tolist()] for source in (queries, texts))
            encoded = _encoded(encoder, read, counts[numbers])
            batches.append(QueryBatch(numbers, *encoded[:3], raw, encoded.words, read, shares_read=shares[numbers]))
            if bar is not None:
                bar.update(len(numbers))
    return EncodedQueries(query_ids, batches)


def _encoded(encoder: TextEncoder, texts: Sequence[str], counts: Ints) -> EncodedTexts:
    """Encode texts in small passes; `counts`: [n] how many tokens they have, in descending order."""
    parts = [encoder.forward(texts[span], "query") for span in passes(counts.tolist(), encoder.batch_size)]
    if len(parts) == 1:
        return parts[0]
    length = max(part.mask.shape[1] for part in parts)

    def join(arrays: Sequence[Numbers]) -> Numbers:
        shapes = ([(0, 0), (0, length - array.shape[1]), *[(0, 0)] * (array.ndim - 2)] for array in arrays)
        return np.concatenate([np.pad(*pair) for pair in zip(arrays, shapes, strict=True)])

    states, mask, embeddings, words = zip(*parts, strict=True)
    return EncodedTexts(join(states), join(mask), np.concatenate(embeddings), join(words))


def given_vectors(embeddings: NDArray[Any] | None, encoder: TextEncoder) -> EncodedQueries:
    """Return vectors [queries, dim] as encoded queries without texts."""
    vectors, dim = np.asarray(embeddings), encoder.embedding_dim
    if vectors.ndim != 2 or vectors.shape[1] != dim or vectors.dtype.kind not in "fiu":
        raise ValueError(
            f"embeddings must be numbers [queries, {dim}], as the index's encoder makes them, got {vectors.dtype} "
            f"{list(vectors.shape)}."
        )
    wrong = np.flatnonzero(~is_usable(vectors.astype(np.float32)))
    if len(wrong):
        raise ValueError(f"embeddings must be finite; row {int(wrong[0])}{and_more(len(wrong) - 1)} is not.")
    count, floats = len(vectors), np.array(vectors, dtype=np.float32)
    states, mask = np.zeros((count, 1, encoder.state_dim), np.float32), np.zeros((count, 1), bool)
    batch = QueryBatch(np.arange(count), states, mask, floats, [""] * count, has_texts=False)
    return EncodedQueries([str(number) for number in range(count)], [batch] if count else [])


def encoded_queries(
    encoder: TextEncoder, queries: Queries | EncodedQueries, *, show_progress: bool = False
) -> EncodedQueries:
    """Encode several queries, unless they are encoded already."""
    if isinstance(queries, EncodedQueries):
        return queries
    if isinstance(queries, str):
        raise TypeError(f"This call takes a list of queries, got the text {shown(queries)}; put it into a list.")
    return encode_queries(encoder, queries, show_progress=show_progress)


def encoded_query(encoder: TextEncoder, query: str | EncodedQueries, call: str) -> EncodedQueries:
    """Encode one query of a call, unless it is encoded already; refuses several, and an empty one."""
    encoded = encoded_queries(encoder, query if isinstance(query, EncodedQueries) else [query])
    if encoded.count != 1:
        raise ValueError(f"{call}() takes one query, got {encoded.count}.")
    if not encoded.texts[0].strip():
        raise ValueError(f"{call}() takes a query that is not empty: the answer of an empty one is empty.")
    return encoded


def ids_and_texts(queries: Queries) -> tuple[list[str], list[str]]:
    """Return query_ids and texts, checked; a line counts empty ones."""
    if isinstance(queries, list | tuple) and not any(isinstance(query, Mapping) for query in queries[:1]):
        return _numbered(queries)
    if isinstance(queries, Mapping):
        return _checked((id_of(unpack(query_id)), query) for query_id, query in queries.items())
    if is_table(queries):
        return _checked(checked_queries(records_of(queries, "queries"), "queries", whole=False).items(), warn=False)
    if not isinstance(queries, Iterable) or isinstance(queries, str | bytes | Set):
        raise TypeError(
            "Queries must be a list of texts, in order, {query_id: text}, or records or a table with an id and a text, got "
            f"{shown(queries)}."
        )
    items = list(items_of(queries, "queries"))
    if any(isinstance(query, Mapping) for query in items[:1]):
        return _checked(checked_queries(records_of(items, "queries"), "queries").items(), warn=False)
    return _numbered(items)


def check_query(query_id: Any, query: Any) -> str:
    """Return a query if it is a text that can be searched for; `query_id`: its id or place, for messages."""
    name = f"Query {shown(query_id)}"
    if "\0" in text(query, name):
        raise ValueError(f"{name} must be a text without NUL characters, got {shown(query)}.")
    return str(query)


def _numbered(queries: Iterable[Any]) -> tuple[list[str], list[str]]:
    """Return the places and the texts of queries that nobody judges, checked; warn of empty ones."""
    query_ids, texts = _checked(enumerate(queries), warn=False)
    empty = [number for number, query in enumerate(texts, start=1) if not query.strip()]
    if len(empty) == 1:
        logger.warning("1 empty query, number %d; its answer is empty.", *empty)
    elif empty:
        logger.warning("%d empty queries, the first number %d; their answers are empty.", len(empty), empty[0])
    return query_ids, texts


def _checked(queries: Iterable[tuple[Any, Any]], *, warn: bool = True) -> tuple[list[str], list[str]]:
    """Return query_ids, places written out, and texts; `warn` of empty ones."""
    query_ids, texts = list[str](), list[str]()
    for query_id, query in queries:
        texts.append(check_query(query_id, query))
        query_ids.append(str(query_id) if type(query_id) is int else text(query_id, "A query_id"))
    empty = [query_id for query_id, query in zip(query_ids, texts, strict=True) if not query.strip()]
    if empty and warn:
        odd = Oddities("queries")
        for query_id in empty:
            odd.count(EMPTY_QUERIES, query_id)
        odd.warn()
    return query_ids, texts
