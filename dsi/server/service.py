"""An index behind a server: its searches, explanations and updates, each on one snapshot.

Knows nothing of HTTP.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dsi.docids.data.records import kind_of
from dsi.docids.extensions import open_cluster
from dsi.docids.files.checks import shown
from dsi.search.engine import Engine
from dsi.search.explain.explanation import idle_memory
from dsi.search.queries import check_query
from dsi.search.request import SearchRequest
from dsi.server.batching import Batcher
from dsi.server.searches import Explainer, Json, answer_of, answers, shown_passages, shown_values
from dsi.server.settings import ServerSettings
from dsi.store.documents.table import DocumentTable
from dsi.store.documents.topics import Topics
from dsi.store.folder.writing import ChangedError
from dsi.store.retriever import Retriever, load
from dsi.store.snapshot import Snapshot
from dsi.store.updating import rows_to_remove

logger = logging.getLogger(__name__)

T = TypeVar("T")
_CHILDREN_SHOWN, _EXAMPLES = 1000, 4


class UnknownError(ValueError):
    """The index has no such document."""


class ConflictError(RuntimeError):
    """The index on disk was changed by others; the server has loaded it, and the request may be sent again."""


class RateError(RuntimeError):
    """More was sent in a minute than the server takes."""


class Rate:
    """How much is taken a minute: what was not taken is saved, for one minute."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock, self._left, self._at = most, clock, float(most), clock()
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Take some."""
        with self._lock:
            now = self._clock()
            self._left, self._at = min(self._most, self._left + (now - self._at) * self._most / 60), now
            if count > self._left:
                raise RateError(
                    f"This server learns at most {self._most:,} pairs a minute, and {int(self._left):,} are left now, got "
                    f"{count:,}; send fewer, or send them later."
                )
            self._left -= count


@dataclass(frozen=True)
class _Asked:
    """How a request searches: requests that are equal are computed together."""

    options: str  # k, the options of the search, and what is shown, as JSON
    engine: Engine  # of the state of the index that is searched
    index: Snapshot = field(compare=False)  # at the moment of the request, which all of its slices search

    @cached_property
    def shown(self) -> Json:
        """What is added to the hits, by the names of `answers`."""
        return {name: value for name, value in json.loads(self.options).items() if name not in ("k", "options")}

    @cached_property
    def request(self) -> SearchRequest:
        """The request of the search, made once for all slices: a filter may take longer than a search."""
        fields = json.loads(self.options)
        return self.index.request("search", fields["k"], fields["options"])


class Service:
    """An index, loaded and warm."""

    def __init__(self, settings: ServerSettings, observe: Callable[[int], None] = lambda queries: None) -> None:
        self.settings = settings
        self._cluster = open_cluster(settings.cluster) if settings.cluster else None
        try:
            self.retriever = self._load()
        except BaseException:
            if self._cluster:
                self._cluster.close()
            raise
        self._updating, self._counting = threading.Lock(), threading.Lock()
        self._rate = Rate(settings.learn_rate)
        self._topics: tuple[DocumentTable, Topics] | None = None
        self.batcher: Batcher[Json] = Batcher(
            self._search,
            max_batch=settings.max_batch,
            max_wait=settings.max_wait,
            max_waiting=settings.max_waiting,
            observe=observe,
        )

    def _load(self) -> Retriever:
        settings = self.settings
        index: Retriever
        if self._cluster:
            index = self._cluster.serve(
                settings.run,
                shards=settings.shards,
                replicas=settings.replicas,
                timeout=settings.shard_timeout,
                require_all=settings.require_all,
                device=settings.device,
                dtype=settings.dtype,
            )
        else:
            index = load(settings.run, device=settings.device, dtype=settings.dtype)
        index.search("warm up", k=1)  # the first search takes longer
        return index

    @property
    def shards(self) -> Any:
        """The retriever if shards of a cluster score its documents, else None."""
        return self.retriever if self._cluster else None

    @property
    def is_ready(self) -> bool:
        """True while searches are answered, and each shard has a replica that lives."""
        return self.batcher.is_alive and (self.shards is None or self.shards.fleet.is_complete)

    def close(self) -> None:
        """Answer what waits, and end the shards."""
        self.batcher.close()
        if self._cluster:
            self._cluster.close()

    # Searching, on the thread of the batcher.

    def search(self, queries: Sequence[str], k: Any, options: Mapping[str, Any], **shown: bool) -> Any:
        """Return the future answers of some queries; `shown`: arguments of `answers`."""
        self.settings.check(queries, k, options)
        for number, query in enumerate(queries):
            check_query(number, query)
        index = self.retriever.snapshot
        asked = _Asked(json.dumps({"k": k, "options": options, **shown}, sort_keys=True), index.engine, index)
        return self.batcher.submit(asked, queries, held=len(asked.options))

    def _search(self, asked: _Asked, queries: Sequence[str]) -> list[Json]:
        if self.shards:  # they answer from their last state alone
            asked = replace(asked, index=self.retriever.snapshot)
        return answers(asked.index, queries, asked.request, **asked.shown)

    def explain(
        self, query: str, k: Any, options: Mapping[str, Any], doc_id: str | None, *, syntax: bool = False
    ) -> Any:
        """Return the future picture of a search, with `target` if a document is named; raises as `search` does."""
        self.settings.check([query], k, options)

        def picture(check: Callable[[], None]) -> Json:
            index = self.retriever.snapshot
            return Explainer(index, self.topics(index), query, k, options, check, syntax=syntax).whole(doc_id)

        return self.batcher.call(picture, held=len(json.dumps([query, options])))

    def similar(self, doc_ids: Any, k: Any, options: Mapping[str, Any], *, matches: bool = False) -> Any:
        """Return the future answer of documents that are like some; raises as `search` does."""
        self.settings.check(doc_ids if isinstance(doc_ids, list) else [doc_ids], k, options)

        def answer(check: Callable[[], None]) -> Json:
            return answer_of(self.retriever.similar(doc_ids, k, **options), matches=matches)

        return self.batcher.call(answer, held=len(json.dumps([doc_ids, options])))

    def evidence(self, question: str, tokens: int, options: Mapping[str, Any]) -> Any:
        """Return the future evidence for a question; raises as `search` does."""
        self.settings.check([question], 1, options)

        def passages(check: Callable[[], None]) -> Json:
            return shown_passages(self.retriever.evidence(question, tokens, **options))

        return self.batcher.call(passages, held=len(json.dumps([question, options])))

    # The index.

    def topics(self, index: Snapshot) -> Topics:
        """Return the topics of a snapshot; those of the last one are cached."""
        with self._counting:
            if self._topics is None or self._topics[0] is not index.documents:  # an update makes a new table
                self._topics = index.documents, Topics(index.tree, index.documents)
            return self._topics[1]

    def about(self) -> Json:
        """Return facts of the index for clients, and the limits of a request."""
        index, settings = self.retriever.snapshot, self.settings
        columns = index.documents.table.schema
        return {
            "name": Path(settings.run).resolve().name,
            "examples": self._examples(index),
            "documents": len(index.documents),
            "depth": index.tree.depth,
            "generator": index.engine.has_generator,
            "tokens": index.tree.tokens is not None,
            "memory": len(index.memory),
            "search_config": shown_values(vars(index.search_config)),
            "lexical": index.lexical.name if index.lexical else None,
            "columns": {column.name: kind_of(column.type) for column in columns if column.name != "text"},
            "writable": settings.writable,
            "limits": {
                name: getattr(settings, name)
                for name in ("max_queries", "max_query_length", "max_k", "max_beam_width", "max_candidates")
            },
        }

    def _examples(self, index: Snapshot) -> list[str]:
        """Return titles, or first words, of a few documents from all over the tree, as examples of queries."""
        tree = index.tree
        occupied = np.flatnonzero(tree.doc_rows >= 0)
        places = occupied[np.linspace(0, len(occupied) - 1, 2 * _EXAMPLES + 1).astype(int)[1::2]]
        return list(dict.fromkeys(index.documents.label(int(tree.doc_rows[place])) for place in places))

    def document(self, doc_id: str) -> Json:
        """Return a document."""
        index = self.retriever.snapshot
        if not index.documents.find([doc_id]):
            raise UnknownError(f"The doc_id {shown(doc_id)} is not in the index.")
        (document,) = index.get([doc_id])
        return document._replace(metadata=shown_values(document.metadata))._asdict()

    def branch(self, digits: Sequence[int]) -> Json:
        """Return a node of the docid tree and its children: size, telling words, and the title of a document."""
        index = self.retriever.snapshot
        tree, topics = index.tree, self.topics(index)
        node = tree.node(digits)
        if not len(tree.rows_below(node)):
            raise ValueError(f"The index has no document at {'.'.join(map(str, digits))} any more.")
        if node >= tree.num_inner:
            return _node(index, topics, node, digits)
        first, count = int(tree.first_child[node]), int(tree.num_children[node])
        children = [
            _node(index, topics, first + digit, [*digits, digit])
            for digit in range(count)
            if len(tree.rows_below(first + digit))
        ]
        parent = _node(index, topics, node, digits)
        return {**parent, "children": children[:_CHILDREN_SHOWN], "count": len(children)}

    # Updates, one at a time.

    def add(self, documents: Any, *, replace: Any = False) -> int:
        """Add documents to the index in memory and on disk, and return how many it has now.

        ConflictError if the index on disk was changed by others; it is loaded again then, and nothing else is changed.
        """
        self._update(lambda changed: changed.add(documents, replace=replace))
        return len(self.retriever)

    def remove(self, doc_id: str) -> int:
        """Remove a document, or all documents of a file, as `add` adds them."""

        def without(changed: Retriever) -> None:
            try:
                rows_to_remove(changed.snapshot.documents, [doc_id])
            except ValueError as error:
                raise UnknownError(str(error)) from None
            changed.remove([doc_id])

        self._update(without)
        return len(self.retriever)

    def learn(self, pairs: Any) -> Json:
        """Learn pairs of a query and a document, as `add` adds documents."""
        if isinstance(pairs, list):
            self._rate.take(len(pairs))
        learned = self._update(lambda changed: changed.learn(pairs))
        memory = self.retriever.snapshot.memory
        note = idle_memory(memory, self.retriever.search_config)
        return {"learned": learned, "pairs": len(memory), **({"note": note} if note else {})}

    def forget(self, pairs: Any, since: Any, before: Any) -> Json:
        """Forget pairs, or what was learned in a time, as `add` adds documents."""
        forgotten = self._update(lambda changed: changed.forget(pairs, since=since, before=before))
        return {"forgotten": forgotten, "pairs": len(self.retriever.snapshot.memory)}

    def _update(self, change: Callable[[Retriever], T]) -> T:
        """Return the result of a change, which is on disk then."""
        with self._updating:
            if self.shards:  # writes, and loads what others wrote
                try:
                    return change(self.retriever)
                except ChangedError as error:
                    raise ConflictError(str(error)) from None
            changed = copy(self.retriever)  # replaces it once it is on disk
            try:
                changed.save(self.settings.run)  # there is nothing to write, but it tells whether others wrote
                result = change(changed)
                changed.save(self.settings.run)
            except ChangedError:
                logger.info("%s was changed by others; loading it again", self.settings.run)
                self.retriever = self._load()
                raise ConflictError(
                    "The index was changed by others since this server loaded it. It has loaded the index again: send the "
                    "change once more if it is still right."
                ) from None
            self.retriever = changed
            return result


def _node(index: Snapshot, topics: Topics, node: int, digits: Sequence[int]) -> Json:
    shown: Json = {"digits": list(digits), "documents": index.tree.count_below(node)}
    if node < index.tree.num_inner:
        return {**shown, "words": topics.telling_words(node)}
    rows = index.tree.rows_below(node)
    (doc_id,) = index.documents.values_of("doc_id", rows[None])[0]
    return {**shown, "doc_id": doc_id, "title": index.documents.label(int(rows[0]))}
