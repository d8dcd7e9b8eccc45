"""What users asked and which documents they took: pairs of an earlier query and a document, compared with later queries.

A document's share of a query is that of the nearest earlier queries, as kNN language models have it: each counts by its cosine,
on the scale of the documents' cosines, and by how often its pair was learned. A query is kept as its vector, a keyed hash, and
hashes of its terms; its text only where the owner wants it. A pair keeps the times when it was first learned, so that what was
learned since a moment can be taken back. Of a document with many pairs those learned first take part, as many as its share of
all pairs allows: later pairs displace none. Nothing is changed in place. `rows` are of the document table.
"""

import logging
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.checks import same
from dsi.docids.files.declarations import Count, create_settings, settings
from dsi.docids.files.reading import RESTORE, read_json
from dsi.docids.files.storage import link, write_json
from dsi.docids.query_pairs import ALWAYS, NEVER, NOTHING, TIMES, Pairs, Period, hashes_of, is_sound
from dsi.docids.tree import DocidTree, ranges
from dsi.docids.types import Bools, Floats, Ints, Rows

logger = logging.getLogger(__name__)

NEAREST, TEMPERATURE = 50, 0.2
"""Earlier queries that have a share, and the difference of cosines at which a weight is 1/e (docs/experiments/queries.md)."""
_BLOCK = 2_048
"""Pairs of a block, about: learning a pair rewrites its block; the other blocks are linked."""
_PRODUCTS = 2**24
"""Cosines in memory at a time: 64 MB."""
_SAMPLE = 1_000
"""Documents whose cosines are measured."""
_HIGHEST = 0.9
"""Highest mean cosine of documents that is taken into account."""
_TIE, _EDGE = 1e-5, 1e-6
_SLOPE = 50
"""How fast the words of a document's earlier queries come to count in full, as one of these comes among the nearest."""
_SHARE, _EVEN, _FLOOR = 0.1, 3, 20
"""Of all pairs that take part, a document has a tenth at most; where few documents have pairs, three times an even share; and
always 20."""
_CONFIG = "config.json"
_NONE = np.zeros(0, dtype=np.int64)


@settings("memory")
class MemoryConfig:
    """What an index remembers of queries (section `[memory]`)."""

    train_queries: bool = True
    """Remember the train queries of the collection, when the index is trained; `retriever.learn` takes others at any time."""
    keep_queries: bool = False
    """Keep the texts of queries, which explanations then show; else only their vectors, hashes with a secret key, and hashes of
    their words. Texts and the key are never pushed to the Hub, and a server shows no texts."""
    limit: Count = 2_000
    """Pairs that are remembered of one document, at most: those that were learned first. Of all pairs, at most a tenth are of
    one document, or three times an even share: more of it are kept, and take no part."""


class Spread(NamedTuple):
    """How the vectors of a collection lie: the mean cosine of two documents, and their mean length."""

    cosine: float
    length: float

    @classmethod
    def from_tree(cls, tree: DocidTree) -> Self:
        """Measure it on documents from all over a tree."""
        occupied = np.flatnonzero(tree.doc_rows >= 0)
        places = occupied[np.unique(np.linspace(0, len(occupied) - 1, _SAMPLE).astype(np.int64))]
        vectors, count = tree.embeddings[places], len(places)
        total = float((normalised(vectors).sum(axis=0) ** 2).sum())
        cosine = (total - count) / max(count * (count - 1), 1)
        return cls(float(np.clip(cosine, 0, _HIGHEST)), float(np.linalg.norm(vectors, axis=1).mean()))


class NearestEarlier(NamedTuple):
    """The documents that users took for the nearest earlier queries of a query."""

    rows: Rows  # [n] of the documents, ascending
    shares: Floats  # [n] of them, which sum to 1
    # [n] 1 at documents of these earlier queries, falling to 0 where an earlier query is hardly among the nearest
    belongs: Floats
    cosine: float  # of the nearest earlier query
    means: Floats  # [taken] mean cosine of the earlier queries of each document that has some; see `QueryMemory.taken`


class ActivePairs(NamedTuple):
    """The documents with pairs that take part."""

    rows: Rows  # [taken] ascending
    numbers: Ints  # [pairs] the document of each pair, by its number among them
    counts: Floats  # [pairs] how much each pair counts
    totals: Floats  # [taken] how much the pairs of each document count together


class Earlier(NamedTuple):
    """An earlier query of a document: its text, or its hash; its cosine with a query; how often the pair was learned."""

    query: str
    cosine: float
    times: int


@dataclass(frozen=True, eq=False)
class QueryMemory:
    """The pairs that an index has learned."""

    config: MemoryConfig = field(default_factory=MemoryConfig)  # what is kept
    key: bytes = b""  # of the hashes; made when the first pair is learned
    blocks: tuple[Pairs, ...] = ()  # by the leading bits of their keys, a power of two in number

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    # Learning.

    def learn(
        self, queries: Sequence[str], rows: Ints, vectors: Floats, times: Ints | None = None,
        terms: Sequence[Sequence[str]] = (),
    ) -> "QueryMemory":  # fmt: skip
        """Return the memory with more pairs; one that is known counts once more, up to three times.

        `queries`: [n] their texts; `rows`: [n] of the documents; `vectors`: [n, dim] of the queries, of any length;
        `times`: [n] when each was learned, in microseconds since 1970; now by default; `terms`: [n] of the queries, as
        BM25 counts them; by default none.
        """
        memory = self if self.key else replace(self, key=secrets.token_bytes(16))
        texts = [same(query) if self.config.keep_queries else "" for query in queries]
        hashed = [hashes_of(list(dict.fromkeys(words))).tobytes() for words in terms] or [b""] * len(texts)
        learned = np.full((len(rows), TIMES), NEVER)
        learned[:, 0] = time.time_ns() // 1000 if times is None else times
        written, hashes = (np.fromiter(values, np.object_) for values in (texts, hashed))
        new = Pairs(memory._keys(queries), rows.astype(np.int32), learned, normalised(vectors), written, hashes)
        return memory._with(Pairs.join([new]))._within_limit()

    def _with(self, new: Pairs) -> "QueryMemory":
        count = _blocks(len(self) + len(new))
        memory = self._split(count)
        blocks = list(memory.blocks)
        for number, part in enumerate(_split(new, count)):
            if len(part):
                blocks[number] = Pairs.join([blocks[number], part]) if len(blocks[number]) else part
        return replace(memory, blocks=tuple(blocks))._split()

    def _split(self, count: int = 0) -> "QueryMemory":
        """Return the memory in a number of blocks, by default the one that its pairs need."""
        count = count or _blocks(len(self))
        if len(self.blocks) == count:
            return self
        blocks = _split(Pairs.join([*filter(len, self.blocks)]), count) if len(self) else (NOTHING,) * count
        return replace(self, blocks=blocks)

    def _within_limit(self) -> "QueryMemory":
        """Return the memory with the pairs of each document that were learned first, as many as the limit says."""
        if np.bincount(self._rows).max() <= self.config.limit:
            return self
        ranks = self._ranks
        logger.warning(
            "%d pairs are left out: at most %d of a document are remembered (memory.limit), those learned first.",
            int((ranks >= self.config.limit).sum()), self.config.limit,
        )  # fmt: skip
        return self._where(ranks < self.config.limit)

    @property
    def _ranks(self) -> Ints:
        """[n] the number of each pair among those of its document, by when they were learned first, and then by their keys."""
        rows, first = self._rows, self._column("times")[:, 0]
        order, counts = np.lexsort((first, rows)), np.bincount(rows)
        ranks = np.empty(len(rows), dtype=np.int64)
        ranks[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return ranks

    def _where(self, keep: Bools) -> "QueryMemory":
        """Return the memory with some of its pairs."""
        masks = np.split(keep, np.cumsum([len(block) for block in self.blocks])[:-1])
        blocks = (block if mask.all() else block.select(mask) for block, mask in zip(self.blocks, masks, strict=True))
        return replace(self, blocks=tuple(blocks))._split()

    def forget(self, queries: Sequence[str] | None, rows: Ints, period: Period = ALWAYS) -> "QueryMemory":
        """Return the memory less what was learned of some pairs in a period; a query "" names all of a document, None all."""
        every = (np.ones(len(block), dtype=bool) for block in self.blocks)
        masks = every if queries is None else self._which(queries, rows)
        blocks = [block.without(mask, period) for block, mask in zip(self.blocks, masks, strict=True)]
        is_same = all(block is before for block, before in zip(blocks, self.blocks, strict=True))
        return self if is_same else replace(self, blocks=tuple(blocks))._split()

    def _which(self, queries: Sequence[str], rows: Ints) -> list[Bools]:
        """Return for each block which of its pairs are among some; with a query "" all pairs of the document are."""
        of_all = [row for query, row in zip(queries, rows.tolist(), strict=True) if not query]
        wanted = set(zip(self._named(queries), rows.tolist(), strict=True))
        pairs = (zip(block.keys.tolist(), block.rows.tolist(), strict=True) for block in self.blocks)
        masks = (np.fromiter(map(wanted.__contains__, of_block), bool) for of_block in pairs)
        return [mask | np.isin(block.rows, of_all) for block, mask in zip(self.blocks, masks, strict=True)]

    def holds(self, queries: Sequence[str], rows: Ints) -> list[bool]:
        """Return whether each pair is remembered; with a query "", whether any pair of the document is."""
        held = {(key, row) for key, row, _ in self._counted()}
        documents = {row for _, row in held}
        pairs = zip(queries, self._named(queries), rows.tolist(), strict=True)
        return [(key, row) in held if query else row in documents for query, key, row in pairs]

    def fewer(self, after: "QueryMemory") -> int:
        """Return how many pairs are gone, or count less, in a later memory."""
        left = {(key, row): count for key, row, count in after._counted()}
        return sum(left.get((key, row), 0) < count for key, row, count in self._counted())

    def _counted(self) -> Iterator[tuple[int, int, int]]:
        for block in self.blocks:
            yield from zip(block.keys.tolist(), block.rows.tolist(), block.counts.tolist(), strict=True)

    def learned(self) -> Pairs:
        """Return all pairs, by when they were learned first."""
        pairs = Pairs.join([*filter(len, self.blocks)] or [NOTHING])
        return pairs.select(np.argsort(pairs.times[:, 0], kind="stable"))

    def knows(self, queries: Sequence[str], vectors: Floats | None = None) -> Bools:
        """[n] whether queries were learned; those of a memory that `is_published` by their vectors [n, dim]."""
        if not len(self):
            return np.zeros(len(queries), dtype=bool)
        known = np.isin(self._keys(queries), self._column("keys"))
        if vectors is None:
            return known
        bare = self._is_bare
        nearest = [cosines[:, bare].max(axis=1, initial=-1) for cosines in self._cosines(vectors)]
        return known | (np.concatenate(nearest) >= 1 - _TIE)

    @property
    def is_published(self) -> bool:
        """Whether it has pairs of an index from the Hub, which are hashed with a key that nobody knows."""
        return bool(len(self)) and bool(self._is_bare.any())

    @property
    def _is_bare(self) -> Bools:
        """[n] True at pairs without times, and without hashes that can be compared."""
        return np.asarray(self._column("times")[:, 0] == 0)

    def without(self, queries: Sequence[str], vectors: Floats) -> "QueryMemory":
        """Return the memory without the pairs of queries with vectors [n, dim], such as those that choose its weight."""
        if not len(self):
            return self
        highest = np.max([cosines.max(axis=0) for cosines in self._cosines(vectors)], axis=0)
        return self._where((highest < 1 - _TIE) & ~np.isin(self._column("keys"), self._keys(queries)))

    def moved(self, rows: Ints) -> "QueryMemory":
        """Return the memory after an update of the documents: `rows` [documents before] are their new rows, -1 if removed."""
        blocks = tuple(block.moved(rows) if len(block) else block for block in self.blocks)
        is_same = all(block is before for block, before in zip(blocks, self.blocks, strict=True))
        return self if is_same else replace(self, blocks=blocks)._split()

    @property
    def has_words(self) -> bool:
        """Whether the terms of any query are kept."""
        return any(terms for block in self.blocks for terms in block.terms.tolist())

    def published(self, *, words: bool) -> "QueryMemory":
        """Return the pairs that take part, without texts and key, with or without terms, and with times of 1970."""
        active = self._active if len(self) else None
        memory = self if active is None else self._where(np.isin(np.arange(len(self)), active))

        def bare(block: Pairs) -> Pairs:
            texts, none = (np.full(len(block), value, dtype=np.object_) for value in ("", b""))
            terms = block.terms if words else none
            return replace(block, texts=texts, terms=terms, times=np.where(block.times < NEVER, 0, NEVER), file="")

        return replace(memory, key=b"", blocks=tuple(map(bare, memory.blocks)))

    def _keys(self, queries: Sequence[str]) -> NDArray[np.uint64]:
        """[n] keyed hashes of queries; alike for those that differ in case, spaces or composition."""
        return hashes_of([same(same(query).casefold()) for query in queries], self.key)

    def _named(self, queries: Sequence[str]) -> list[int]:
        """Return the keys of queries that may be named by their hashes, as explanations show them: "#" and 16 digits."""
        named = (_HASH.fullmatch(query.strip()) for query in queries)
        pairs = zip(self._keys(queries).tolist(), named, strict=True)
        return [int(match[1], 16) if match else key for key, match in pairs]

    # Remembering.

    def shares(self, queries: Floats, spread: Spread) -> Iterator[NearestEarlier]:
        """Yield for each query [batch, dim] the documents that have a share of it."""
        numbers_of, counts, totals = self.taken.numbers, self.taken.counts, self.taken.totals
        for places, cosines, every in self._nearest(queries):
            rows, numbers = np.unique(self._rows[places], return_inverse=True)
            kernel, belongs = _kernel(cosines / (1 - spread.cosine)), np.zeros(len(rows))
            np.maximum.at(belongs, numbers, kernel)
            weights = kernel * np.log2(1 + self._counts[places].astype(np.float64))
            shares = np.bincount(numbers, weights) / weights.sum()
            belongs = np.minimum(1, _SLOPE * belongs)
            means = np.bincount(numbers_of, counts * every, len(totals)) / totals
            floats = [values.astype(np.float32) for values in (shares, belongs, means)]
            yield NearestEarlier(rows.astype(np.int64), floats[0], floats[1], float(cosines.max()), floats[2])

    @cached_property
    def taken(self) -> ActivePairs:
        """The documents with pairs that take part."""
        active = slice(None) if self._active is None else self._active
        rows, numbers = np.unique(self._rows[active], return_inverse=True)
        counts = np.log2(1 + self._counts[active]).astype(np.float32)
        return ActivePairs(
            rows.astype(np.int64), numbers, counts, np.bincount(numbers, counts, len(rows)).astype(np.float32)
        )

    def term_counts(self, terms: Sequence[str], rows: Rows) -> Floats:
        """[terms, n] how many earlier queries of documents [n] have each of some terms, weighed as in `shares`."""
        pairs, documents = self._pairs_of(rows)
        hashed, starts, lengths = self._terms
        hashes, pair = hashed[ranges(starts[pairs], lengths[pairs])], np.repeat(np.arange(len(pairs)), lengths[pairs])
        weights, counts = np.log2(1 + self._counts[pairs]), np.zeros((len(terms), len(rows)), dtype=np.float32)
        for number, term in enumerate(hashes_of(terms)):
            has = pair[hashes == term]
            np.add.at(counts[number], documents[has], weights[has])
        return counts

    def _pairs_of(self, rows: Rows) -> tuple[Ints, Ints]:
        """Return the numbers of the pairs of documents [n] that take part, and which of the documents each is of."""
        documents = self.taken.rows
        at = np.minimum(np.searchsorted(documents, rows), max(len(documents) - 1, 0))
        which = np.flatnonzero(documents[at] == rows) if len(documents) else _NONE
        order, starts = self._order
        counts = np.diff(starts)[at[which]]
        places = order[ranges(starts[at[which]], counts)]
        return places if self._active is None else self._active[places], np.repeat(which, counts)

    @cached_property
    def _order(self) -> tuple[Ints, Ints]:
        """The numbers, among the pairs that take part, of those of each document in turn, and [taken + 1] where these begin."""
        numbers = self.taken.numbers
        return np.argsort(numbers, kind="stable"), np.append(0, np.cumsum(np.bincount(numbers)))

    def earlier(self, query: Floats, row: int) -> list[Earlier]:
        """Return the nearest earlier queries of a document that have a share of a query [dim], nearest first."""
        ((places, cosines, _),) = self._nearest(query[None])
        texts, keys = self._column("texts"), self._column("keys")
        nearest = np.argsort(-cosines, kind="stable")
        nearest = nearest[self._rows[places[nearest]] == row]
        pairs = zip(places[nearest].tolist(), cosines[nearest].tolist(), strict=True)
        return [Earlier(texts[n] or hash_of(keys[n]), cosine, int(self._counts[n])) for n, cosine in pairs]

    def _nearest(self, queries: Floats) -> Iterator[tuple[Ints, Floats, Floats]]:
        """Yield for each query the numbers and cosines of the nearest pairs that take part, with ties, and all cosines."""
        active = self._active
        for every in chain.from_iterable(self._cosines(queries)):
            cosines = every if active is None else every[active]
            last = np.partition(cosines, -NEAREST - 1)[-NEAREST - 1] if len(cosines) > NEAREST else -2
            places = np.flatnonzero(cosines >= last - _TIE)
            yield places if active is None else active[places], cosines[places], cosines

    def _cosines(self, queries: Floats) -> Iterator[Floats]:
        """Yield the cosines [some queries, pairs] of queries and the pairs, a few queries at a time."""
        unit, step = normalised(queries), max(1, _PRODUCTS // max(len(self), 1))
        for start in range(0, len(unit), step):
            part = unit[start : start + step]
            yield np.concatenate([part @ block.vectors.T for block in filter(len, self.blocks)], axis=1)

    @cached_property
    def _active(self) -> Ints | None:
        """Numbers of the pairs that take part, of each document those learned first; None for all."""
        counts = np.bincount(self._rows)
        most = _most(counts[counts > 0])
        return None if counts.max(initial=0) <= most else np.flatnonzero(self._ranks < most)

    @property
    def num_idle(self) -> int:
        """How many pairs take no part, as their documents have too many."""
        return 0 if not len(self) or self._active is None else len(self) - len(self._active)

    def _column(self, name: str) -> Any:
        """[pairs, …] what all pairs have under a name."""
        return np.concatenate([getattr(block, name) for block in self.blocks])

    @cached_property
    def _rows(self) -> Ints:
        return self._column("rows")

    @cached_property
    def _terms(self) -> tuple[NDArray[np.uint64], Ints, Ints]:
        """Hashes of the terms of all pairs in order, where those of each pair begin, and how many it has."""
        lengths = self._column("num_terms").astype(np.int64)
        return self._column("all_terms"), np.cumsum(lengths) - lengths, lengths

    @cached_property
    def _counts(self) -> Ints:
        return self._column("counts")

    # Files.

    def save(self, folder: Path, before: Path | None = None) -> None:
        """Write the memory into a folder; blocks that `before` holds are linked from there."""
        folder.mkdir(parents=True, exist_ok=True)
        for block in filter(len, self.blocks):
            if before and (before / block.name).exists():
                link(before / block.name, folder / block.name)
            else:
                block.save(folder / block.name)
        write_json(folder / _CONFIG, {"settings": asdict(self.config), "key": self.key.hex()})

    @classmethod
    def load(cls, folder: Path) -> "QueryMemory":
        """Return what `save` wrote."""
        path = folder / _CONFIG
        record = read_json(path)
        try:
            key = bytes.fromhex(record["key"])
            config = create_settings(MemoryConfig, record["settings"], str(path), "memory")
        except (KeyError, TypeError):
            raise ValueError(f"{path} must have key and settings; {RESTORE}.") from None
        loaded = [Pairs.load(path) for path in sorted(folder.glob("*.safetensors"))]
        count = _blocks(sum(map(len, loaded)))
        blocks = [NOTHING] * count
        for pairs in loaded:
            blocks[int(_prefixes(pairs.keys[:1], count)[0])] = pairs
        return cls(config, key, tuple(blocks))

    def is_sound(self, dim: int, documents: int) -> bool:
        """True if the pairs are in order, and fit embeddings of a width and a number of documents."""
        return all(
            is_sound(block, dim, documents) and (_prefixes(block.keys, len(self.blocks)) == number).all()
            for number, block in enumerate(self.blocks)
            if len(block)
        )


_HASH = re.compile("#([0-9a-f]{16})")


def hash_of(key: int) -> str:
    """Return what names a query whose text is not kept."""
    return f"#{key:016x}"


def normalised(vectors: Floats) -> Floats:
    """Return vectors [n, dim] of length 1; those of length 0 stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def is_usable(vectors: Floats) -> Bools:
    """[n] True at vectors [n, dim] that have a finite length, so that cosines with them mean something."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isfinite(np.linalg.norm(vectors.astype(np.float32), axis=1)))


def _most(counts: Ints) -> int:
    """Return how many pairs of a document take part at most, given how many each has."""
    share, most = max(_SHARE, _EVEN / max(len(counts), 1)), int(counts.max(initial=0))
    while (bound := max(_FLOOR, int(share * np.minimum(counts, most).sum()))) < most:
        most = bound  # a smaller one leaves fewer pairs, of which it is a share
    return most


def _kernel(cosines: Floats) -> NDArray[np.float64]:
    """[n] weights of the nearest earlier queries, 1 for the nearest.

    They fall to 0 at the first one that has no share, so that no score jumps where two are equally near.
    """
    weights = np.exp((cosines.astype(np.float64) - cosines.max()) / TEMPERATURE)
    return weights - (1 - _EDGE) * weights.min() if len(weights) > NEAREST else weights


def _blocks(pairs: int) -> int:
    """Return into how many blocks some pairs are split: a power of two, 0 without pairs."""
    return 1 << max(0, (pairs - 1) // _BLOCK).bit_length() if pairs else 0


def _prefixes(keys: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """[n] the leading bits of keys, which number `count` blocks."""
    bits = count.bit_length() - 1
    return keys >> np.uint64(64 - bits) if bits else np.zeros(len(keys), np.uint64)


def _split(pairs: Pairs, count: int) -> tuple[Pairs, ...]:
    """Return pairs in blocks, by the leading bits of their keys."""
    edges = np.searchsorted(_prefixes(pairs.keys, count), np.arange(count + 1, dtype=np.uint64))
    return tuple(pairs.select(slice(*edge)) for edge in pairwise(edges))
