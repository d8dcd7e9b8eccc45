"""The public face of an index: search, explain, update and save it. Knows nothing of how it was trained."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack, overload

from numpy.typing import NDArray

from dsi.docids.data.locations import FILE
from dsi.docids.data.records import ids_of
from dsi.docids.files.checks import folder_to_write, plain
from dsi.docids.files.reading import MappedFile, check_mapped
from dsi.docids.files.storage import recover_folder, writing_to
from dsi.docids.vectors import VectorKind, VectorsConfig
from dsi.search.best_scores import BestScores
from dsi.search.explain.explanation import Explanation
from dsi.search.hits import Answers, Document, Evidence, Hits
from dsi.search.queries import EncodedQueries, Queries, encode_queries, encoded_queries, encoded_query, given_vectors
from dsi.search.request import SearchConfig, SearchOptions, vectors_alone
from dsi.store import learning, updating
from dsi.store.documents.table import DocumentTable
from dsi.store.evidence import evidence
from dsi.store.folder import loading, writing
from dsi.store.folder.loading import OnDisk
from dsi.store.similar import similar
from dsi.store.snapshot import Snapshot
from dsi.store.updating import Content, FileChanges
from dsi.store.words import search_words

logger = logging.getLogger(__name__)


class Changes(NamedTuple):
    """What an update changed: documents that `add` and `remove` named, the third those that are in both; and files, if any."""

    added: int
    removed: int
    replaced: int
    files: FileChanges | None = None


class Retriever:
    """An index that can be searched, explained and updated; `dsi.load`, `dsi.index` and `dsi.train` return one.

    Every search takes the options of `dsi.search.request.SearchOptions` by name: `method`, `beam_width`, `candidates`, `alpha`,
    `lexical_weight`, `token_weight` and `memory_weight` override the index's search config; `allow`, `deny` and `where` filter;
    `extra_scores` are added to the documents' scores. None is the same as leaving an option out.

    Example:
        >>> retriever = dsi.load("runs/example")
        >>> hits = retriever.search("which capitals are on the danube", k=5)

    Args:
        snapshot: the parts of the index.
        held: the index on disk that has them; None if no folder has.
    """

    def __init__(self, snapshot: Snapshot, held: OnDisk | None = None) -> None:
        self._snapshot, self._updating = snapshot, threading.Lock()
        self._on_disk: OnDisk | None = None
        """The folder that it was loaded from, or saved to last, and the parts there."""
        self._saved = dict[Path, tuple[str, SearchConfig]]()
        """{folder: state and search config of the index there that this one contains}."""
        self._mapped: tuple[MappedFile, ...] = held.mapped if held else ()
        if held:
            self._remember(held)

    def __copy__(self) -> "Retriever":
        """Return the index at this moment as a retriever of its own: later updates of this one do not reach it."""
        copied = Retriever(self.snapshot, self._on_disk)
        copied._saved, copied._mapped = {**self._saved}, self._mapped
        return copied

    @property
    def snapshot(self) -> Snapshot:
        """The parts of the index at this moment: encoder, docids, document table, engine, what it has learned."""
        check_mapped(self._mapped)
        return self._snapshot

    @property
    def search_config(self) -> SearchConfig:
        """The default search config; may be assigned."""
        return self._snapshot.search_config

    @search_config.setter
    def search_config(self, config: SearchConfig) -> None:
        if not isinstance(config, SearchConfig):
            raise TypeError(f"search_config must be a SearchConfig, got {config!r}.")
        with self._updating:
            self._snapshot = replace(self._snapshot, search_config=config)

    def __len__(self) -> int:
        return len(self._snapshot.documents)

    def __repr__(self) -> str:
        return f"Retriever({len(self)} documents, docids of up to {self._snapshot.tree.depth} digits)"

    # Searching. Each call works on a snapshot, so it sees all of an update made meanwhile or nothing of it.

    @overload  # a str is a Sequence[str] too; the first signature takes it
    def search(  # type: ignore[overload-overlap]
        self, queries: str, k: int = 10, *, syntax: bool = False, **options: Unpack[SearchOptions]
    ) -> Hits: ...
    @overload
    def search(
        self, queries: Iterable[Any] | EncodedQueries, k: int = 10, *, syntax: bool = False,
        **options: Unpack[SearchOptions],
    ) -> Answers: ...  # fmt: skip
    @overload
    def search(
        self, queries: None = None, k: int = 10, *, embeddings: NDArray[Any], **options: Unpack[SearchOptions]
    ) -> Answers: ...
    def search(
        self, queries: str | Iterable[Any] | EncodedQueries | None = None, k: int = 10, *,
        embeddings: NDArray[Any] | None = None, syntax: bool = False, **options: Unpack[SearchOptions],
    ) -> Hits | Answers:  # fmt: skip
        """Return the top k documents for a query, or for each of several.

        Example:
            >>> hits = retriever.search("noble gases", k=3, where="doc_id <> 'neon'")
            >>> hits, more = retriever.search(["noble gases", "rivers of europe"], method="exact")
            >>> hits = retriever.search('"noble gas" -helium', syntax=True)

        Args:
            queries: one, a list, a series or a table of them (see `Queries`), or the output of `encode_queries`.
            k: documents per query; k are returned whenever that many are allowed.
            embeddings: [queries, dim] of the encoder, in place of queries; parts of the score that read texts are left out.
            syntax: read "a quote" as words that a document must have in title or text, and -word or -"a quote" as words that it
                must not have; `hits.note` says so where no document has them.
            **options: see `SearchOptions`.

        Returns:
            `Hits` for one query, a list of `Hits` for several, whose `ids` and `scores` are arrays.

        Raises:
            TypeError: an option does not exist.
            ValueError: a query that is not a text; one text whose embedding is not finite (of several its answer is empty, and
                a line names it); an option out of range or not used, an unknown doc_id or column in a filter.
        """
        if isinstance(queries, Mapping):
            raise TypeError("search() takes a text or a list of texts; run() takes {query_id: text}.")
        index = self.snapshot
        if (queries is None) == (embeddings is None):
            raise TypeError("search() takes queries, or embeddings= in place of them.")
        if syntax:
            return search_words(index, queries, k, options)
        if queries is not None:
            encoded = encoded_queries(index.encoder, [queries] if isinstance(queries, str) else queries)
        else:
            encoded = given_vectors(embeddings, index.encoder)
            options = vectors_alone(options, index.search_config, has_generator=index.engine.has_generator)
        if isinstance(queries, str):
            encoded.check_usable()  # of several, the others are answered
        request = index.request("search", k, options)
        hits = index.hits(encoded, request)
        return hits[0] if isinstance(queries, str) else Answers(hits)

    def similar(self, doc_ids: str | int | Sequence[str], k: int = 10, **options: Unpack[SearchOptions]) -> Hits:
        """Return the top k documents that are like one, or like several, without these.

        Their stored vectors are the query, and the words that tell most of them its text, if the index has BM25 and texts.
        Nothing is encoded; late interaction, and the generator of an index that has one, take no part.

        Args:
            doc_ids: one, or several, whose mean is the query.
            k: documents.
            **options: see `SearchOptions`.

        Raises:
            ValueError: a doc_id is not in the index, or none is given.
        """
        return similar(self.snapshot, [str(doc_ids)] if isinstance(doc_ids, str | int) else doc_ids, k, options)

    def evidence(self, question: str, tokens: int = 1000, *, k: int = 20, **options: Unpack[SearchOptions]) -> Evidence:
        """Return the sentences of at most k documents that best answer a question, with `tokens` tokens at most together.

        Those that stand together are one passage, the best come first, and what nearly repeats others is left out. Tokens are
        those of the index's encoder. Empty if a filter lets no document through.

        Raises:
            TypeError: an option does not exist.
            ValueError: no sentence fits into `tokens`, the index keeps no texts, an empty question, a bad option.
        """
        return evidence(self.snapshot, question, tokens, k, options)

    def run(
        self, queries: Queries | EncodedQueries, k: int = 10, *, among: Mapping[str, Iterable[str]] | None = None,
        **options: Unpack[SearchOptions],
    ) -> dict[str, dict[str, float]]:  # fmt: skip
        """Return {query_id: {doc_id: score}} for {query_id: text} or a table, the format of `eval` and of TREC tools.

        With `among`, {query_id: doc_ids}, such as anybody's run, the top k of these documents, by the document score.
        """
        index = self.snapshot
        encoded = encoded_queries(index.encoder, queries, show_progress=True)
        request = index.request("run", k, options)
        if among is None:
            result = index.engine.search(encoded, request, show_progress=True)
        else:
            result = index.engine.rank(encoded, request, index.documents.rows_among(among, encoded.query_ids))
        return index.as_run(encoded.query_ids, result)

    def explain(self, query: str | EncodedQueries, k: int = 5, **options: Unpack[SearchOptions]) -> Explanation:
        """Return how a search came about: the parts of each answer's score, and the nodes kept and pruned.

        Args:
            query: a text, or the output of `encode_queries` for one query.
            k: documents.
            **options: see `SearchOptions`.
        """
        index = self.snapshot
        request = index.request("explain", k, options)
        (answered,) = index.answered(encoded_query(index.encoder, query, "explain"), request)
        return answered.explanation

    def encode_queries(self, queries: Queries, *, batch_size: int = 32, show_progress: bool = False) -> EncodedQueries:
        """Encode queries once, to search them several times."""
        return encode_queries(self._snapshot.encoder, queries, batch_size=batch_size, show_progress=show_progress)

    @overload  # a str is a Sequence[str] too; the first signature takes it
    def get(self, doc_ids: str | int) -> Document: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, doc_ids: Sequence[str]) -> list[Document]: ...
    def get(self, doc_ids: str | int | Sequence[str]) -> Document | list[Document]:
        """Return a document, or several by one lookup, as the index holds them.

        Each has its title, metadata, first docid, and its text if the index keeps texts.

        Raises:
            ValueError: a doc_id is not in the index.
        """
        documents = self.snapshot.get([str(doc_ids)] if isinstance(doc_ids, str | int) else doc_ids)
        return documents[0] if isinstance(doc_ids, str | int) else documents

    # Updating and saving.

    def add(self, documents: Iterable[Any], *, replace: bool = False) -> None:
        """Make new documents searchable at once, without training; no other document's docid changes.

        A document descends the centroids to its cluster and is searched like any other; with docid tokens that have weights of
        their own, it gets the mean probability of its siblings. Searches meanwhile see all of the new documents or none.

        Args:
            documents: records or a table, as `Collection.from_records` takes, each with doc_id (or _id, id), text and perhaps a
                title; all else is metadata, of the index's columns. Or a list of `Path`s, as `Collection.from_files` takes.
            replace: a document takes the place of the one that has its doc_id; by default it is refused. Title and text that
                are as they were are not encoded again, if the index keeps texts.

        Raises:
            TypeError: documents are no list or table of records.
            ValueError: a doc_id that is in the index already, repeated or empty; no text; metadata that no column can hold.
        """
        encoder, rows, replace = self._snapshot.encoder, updating.new_rows(documents), plain(bool, replace, "replace")
        self._change(lambda content: updating.with_documents(content, encoder, rows, replace=replace))

    def update(
        self, *sources: str | Path, add: Iterable[Any] = (), remove: Iterable[str] = (), texts: Any = None,
        vectors: VectorKind | None = None,
    ) -> Changes:  # fmt: skip
        """Change the index in one step, and return what was changed; searches see all of it or nothing.

        Args:
            *sources: files and folders that the index was made of, to bring up to date; only what changed is encoded.
            add: documents, as `add` takes them; one that is also removed is replaced.
            remove: documents, as `remove` takes them.
            texts: records or a table with doc_id and text, such as `collection.documents`, which the index keeps from now on.
            vectors: how the vectors of documents and nodes are stored from now on (`dsi.docids.vectors.VectorsConfig`).

        Raises:
            FileNotFoundError: no such source.
            TypeError, ValueError: as `add` and `remove`; the index was not made of files; the table lacks a text.
        """
        encoder, names, new = self._snapshot.encoder, ids_of(remove, "remove"), updating.new_rows(add)
        files, rows, middle = list[FileChanges](), list[int](), list[Content]()

        def changed(content: Content) -> Content:
            if sources:
                from dsi.files.changes import changed_files  # a room that can be torn off

                found, records, going = changed_files(DocumentTable(content.documents), sources)
                content = updating.with_documents(content, encoder, records, removed=going)
                files.append(found)
            middle.append(content)
            rows.extend(updating.rows_to_remove(DocumentTable(content.documents), names) if names else [])
            content = updating.with_documents(content, encoder, new, removed=rows)
            content = content if texts is None else updating.with_texts(content, texts)
            if vectors is None:
                return content
            return content._replace(tree=content.tree.stored_as(VectorsConfig(vectors)))

        _, after = self._change(changed)
        before, now = DocumentTable(middle[0].documents), DocumentTable(after.documents)
        if rows and FILE in before.column_names:
            with suppress(ModuleNotFoundError):  # without that room no update brings documents back
                from dsi.files.changes import tell_returning

                tell_returning(before, rows, now)
        replaced = len({*before.find(record["doc_id"] for record in new).values()} & {*rows})
        return Changes(len(now) - len(before) + len(rows) - replaced, len(rows) - replaced, replaced, *files)

    def remove(self, doc_ids: Iterable[str]) -> int:
        """Remove documents, but not all, and return how many; "paper.pdf" stands for all of its pages, a path for all rows.

        While its file is there a document comes back when its folder is updated; a line says so.
        """
        return self.update(remove=doc_ids).removed

    def learn(self, pairs: Iterable[Any]) -> int:
        """Learn from use, at once and without training: which documents users chose for which queries.

        The part `memory` of the document score then finds these documents better for queries like these; where its weight is 0,
        a line says so. A pair counts once more each time, up to three times. The section `[memory]` says what is kept.

        Args:
            pairs: (query, doc_id), records with these keys, or the path of a file of them: .tsv, .csv, .jsonl or .parquet.

        Returns:
            How many pairs were learned; lines count the others, and those that take no part.

        Raises:
            TypeError: pairs are no list of pairs, or the index has a generator.
            ValueError: a query or a doc_id is not a text, or no pair can be learned.
        """
        index = self.snapshot
        if index.engine.has_generator:
            raise TypeError(
                "learn() needs an index without a generator, and this one has one. Train without a generator."
            )
        known, vectors = learning.encoded_pairs(index.encoder, learning.checked_pairs(pairs, "learn", index.documents))
        before, after = self._change(lambda content: learning.with_pairs(content, known, vectors))
        learning.tell_effect(before.memory, after.memory, index.search_config)
        return len(known)

    def forget(
        self, pairs: Iterable[Any] | None = None, *, since: learning.Moment = None, before: learning.Moment = None
    ) -> int:
        """Forget pairs, or what was learned in a time, and return how many pairs were forgotten, all or in part.

        Args:
            pairs: as `learn` takes them; an empty query stands for all of the document, and "#" with 16 digits for the query
                that explanations and `learned` show so. All repetitions go. By default all pairs of the time.
            since: only what was learned from this moment on, such as "2026-11-28T14:30" in UTC, a datetime, seconds since 1970.
            before: only what was learned before this moment.

        Raises:
            TypeError, ValueError: pairs or a moment are none, neither is given, or the index has none of the documents.
        """
        when = learning.period(since, before, needed=pairs is None)
        gone = None if pairs is None else learning.checked_pairs(pairs, "forget", self._snapshot.documents)
        earlier, later = self._change(lambda content: learning.without_pairs(content, gone, when))
        return earlier.memory.fewer(later.memory)

    def learned(self) -> list[learning.LearnedPair]:
        """Return the pairs that the index has learned, the first learned first."""
        return learning.learned_pairs(self._snapshot.content)

    def _change(self, change: Callable[[Content], Content]) -> tuple[Content, Content]:
        """Change the content, and return it before and after; searches from now on use the new one."""
        with self._updating:
            before = self.snapshot.content
            content = change(before)
            self._snapshot = self._snapshot.changed(content)
            return before, content

    def save(self, folder: str | Path | None = None) -> int:
        """Write the index atomically, and return its generation there; a killed process leaves the old index or the new one.

        The folder that it was loaded from, or saved to, gets what has changed since, as one update of that index. Any other
        gets the whole index; it replaces an index that is there, with its `config.toml` and what else its training left, and a
        warning says so. Rerankers and other files stay.

        Args:
            folder: by default that which it was loaded from, or saved to last.

        Raises:
            FileExistsError: the folder holds other files and no index.
            ValueError: the weights were loaded in another dtype than float32; `folder` is the current one, and the index is not
                from there; the index there was changed since this one was loaded from it or saved to it; or none is given and
                there was none.
        """
        if folder is None:
            if self._on_disk is None:
                raise ValueError("The index is in no folder of yours yet. Save it to one: retriever.save(folder).")
            folder = self._on_disk.folder
        if self.snapshot.dtype != "float32":  # refused, also for a file that was cut off, before a lock is made
            raise ValueError(
                f"This retriever's weights are of {self._snapshot.dtype}; save one that was loaded in float32."
            )
        target = folder_to_write(folder, "folder").resolve()
        if target not in self._saved:  # an index of ours is changed, and only another one is replaced
            writing.index_to_replace(target)
        with writing_to(target):
            recover_folder(target)
            index, state = self.snapshot, loading.index_state(target)
            if state and target in self._saved:
                self._write_changes(target, state, index)
            else:
                if state:
                    logger.warning("The index that was in %s is replaced.", folder)
                writing.replace_index(writing.index_to_replace(target), index)
            generation = writing.generation_of(target)
            self._remember(OnDisk(target, loading.index_state(target), replace(index, generation=generation)))
            with self._updating:
                if not updating.changed_parts(self._snapshot.content, index.content):  # by others meanwhile
                    self._snapshot = replace(self._snapshot, generation=generation)
        return generation

    def _write_changes(self, folder: Path, state: str, index: Snapshot) -> None:
        """Write to a known index what has changed since; without changes nothing is written."""
        known, config = self._saved[folder]
        is_last = self._on_disk is not None and (self._on_disk.folder, known) == (folder, state)
        last = self._on_disk.snapshot if self._on_disk and is_last else None
        is_configured = index.search_config != config
        states = [state for state, _ in self._saved.values()]
        writing.check_known(folder, states, (config, index.search_config) if is_configured else ())
        content = last.content if last else None
        if updating.changed_parts(index.content, content):
            writing.write_update(folder, index, content, config=is_configured)
        elif is_configured or (last and index.best_scores != last.best_scores):
            writing.write_entries(folder, writing.settings_of(index, config=is_configured))

    def _remember(self, held: OnDisk) -> None:
        """Remember the index in a folder, which this one contains."""
        self._on_disk, self._saved[held.folder] = held, (held.state, held.snapshot.search_config)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the folder and the state of the index there; refused if the index has changes that no folder holds."""
        index, held = self._snapshot, self._on_disk
        if held is None or updating.changed_parts(index.content, held.snapshot.content):
            raise ValueError(
                "This retriever has unsaved changes, and a pickle stores only its folder. Call save(folder) first."
            )
        return _reload, (held.folder, held.state, str(index.encoder.device), index.dtype, index.search_config)


def keep_best_scores(retriever: Retriever, scores: BestScores | None) -> None:
    """Have hits say where their scores lie among these; `save` writes them."""
    with retriever._updating:
        retriever._snapshot = replace(retriever._snapshot, best_scores=scores)


def load(
    folder: str | Path, *, revision: str | None = None, token: str | bool | None = None, device: str | None = None,
    dtype: str = "float32",
) -> Retriever:  # fmt: skip
    """Load an index, after checking every file; one from elsewhere is first tried in a process of its own.

    Args:
        folder: the index; or "user/name", one on the Hugging Face Hub, without such a folder.
        revision: branch, tag or commit on the Hub.
        token: for a private index on the Hub; by default that of `hf auth login` or HF_TOKEN.
        device: of encoder and decoder; the best available by default.
        dtype: "float32" or "bfloat16", of encoder and decoder in search.

    Raises:
        FileNotFoundError: no index in the folder, nor on the Hub, or a part is missing.
        ValueError: a file was altered or truncated, or parts do not belong together; the message says which.
    """
    found = loading.load_index(loading.index_folder(folder, revision, token), device, dtype)
    return Retriever(found.snapshot, found)


def _reload(folder: Path, state: str, device: str, dtype: str, config: SearchConfig) -> Retriever:
    """Return the retriever that was pickled, unless the index in its folder was changed since."""
    found = loading.load_index(folder, device, dtype)
    if found.state != state:
        raise ValueError(f"{folder} was changed since the retriever was pickled; load the index there instead.")
    retriever = Retriever(found.snapshot, found)
    retriever.search_config = config
    return retriever
