"""The public face of an index: search, explain, update, load and save it. Knows nothing of how it was trained."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from numpy.typing import NDArray

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.data.records import COLUMNS
from dsi.docids.files.checks import plain, user_path
from dsi.docids.files.reading import MappedFile, check_mapped
from dsi.docids.files.storage import writing_to
from dsi.docids.query_memory import QueryMemory
from dsi.docids.tree import DocidTree
from dsi.docids.vectors import VectorKind, VectorsConfig
from dsi.docids.words.bm25 import BM25
from dsi.search.best_scores import BestScores
from dsi.search.engine import Engine, Followed
from dsi.search.engines import create_engine
from dsi.search.explain.explanation import Explanation
from dsi.search.explain.why import AnsweredQuery
from dsi.search.hits import Answers, Document, Evidence, Hits
from dsi.search.queries import EncodedQueries, Queries, encode_queries, encoded_queries, encoded_query, given_vectors
from dsi.search.request import SearchConfig, SearchOptions, SearchRequest, shows_options, vectors_alone
from dsi.search.results import SearchResult
from dsi.store import learning, loading, updating
from dsi.store.candidates import answers, followed_rows
from dsi.store.documents import DocumentTable, hits_of, run_of
from dsi.store.evidence import evidence
from dsi.store.similar import similar
from dsi.store.state import State
from dsi.store.updating import Content
from dsi.store.words import search_words

if TYPE_CHECKING:
    from dsi.generator.base import Generator

_DTYPES = ("float32", "bfloat16")
"""Of encoder and decoder in search."""


class GenerativeRetriever:
    """An index that can be searched, explained and updated.

    Every search takes the options of `dsi.search.request.SearchOptions` by name: `method`, `beam_width`, `candidates`, `alpha`,
    `lexical_weight`, `token_weight` and `memory_weight` override the index's search config; `allow`, `deny` and `where` filter;
    `extra_scores` are added to the documents' scores. None is the same as leaving an option out.

    Example:
        >>> retriever = dsi.load("runs/example")
        >>> hits = retriever.search("which capitals are on the danube", k=5)

    Args:
        encoder: the frozen encoder.
        tree: the docids.
        generator: the decoder trained for these docids; None to search by the vectors of the tree.
        documents: an Arrow table or a data set with doc_id, title, optional metadata and text; in collection order.
        search_config: the default search config, kept as `configured_search`, from which `dsi.tune` begins.
        lexical: BM25 of the same documents, needed for `lexical_weight`.
        memory: what it has learned from use.
        best_scores: of questions that the documents ask.
        dtype: of encoder and decoder in search; scores are always float32. "bfloat16" is faster on processors that have it.

    Raises:
        ValueError: the parts do not belong together.
    """

    def __init__(
        self, encoder: TextEncoder, tree: DocidTree, generator: "Generator | None", documents: Any,
        search_config: SearchConfig | None = None, lexical: BM25 | None = None,
        memory: QueryMemory | None = None, best_scores: BestScores | None = None, dtype: str = "float32",
    ) -> None:  # fmt: skip
        if len(documents) != tree.num_rows:
            raise ValueError(f"The docids cover {tree.num_rows} documents, the document table has {len(documents)}.")
        if encoder.embedding_dim != tree.embeddings.shape[1]:
            raise ValueError(
                f"The encoder gives embeddings of {encoder.embedding_dim}, the docids need {tree.embeddings.shape[1]}."
            )
        self.device, self.dtype = encoder.device, dtype
        self._updating, self._generation = threading.Lock(), 0
        self._saved: dict[Path, str] = {}  # folder: state of the index there that this one contains
        # Where it was saved last, or loaded from: the folder, the content, its search config.
        self._on_disk: tuple[Path, Content, SearchConfig] | None = None
        self._mapped: tuple[MappedFile, ...] = ()
        if generator is not None:
            generator.check_tree(tree)
            generator.check_states(encoder.state_dim)
            generator = generator.to(self.device)
        engine = create_engine(generator, tree, lexical, dtype, memory, best_scores)
        config = self.configured_search = search_config or SearchConfig()
        self._state = State(encoder.for_search(dtype), generator, config, DocumentTable(documents), engine)

    # The parts of the index.

    @property
    def encoder(self) -> TextEncoder:
        """The frozen encoder, laid out for search."""
        return self._state.encoder

    @property
    def generator(self) -> "Generator | None":
        """The decoder; None if the index has none, and searches walk by the tree's vectors."""
        return self._state.generator

    @property
    def tree(self) -> DocidTree:
        """The docids."""
        return self._state.engine.tree

    @property
    def documents(self) -> DocumentTable:
        """The documents: doc_id, title and metadata."""
        return self._state.documents

    @property
    def lexical(self) -> BM25 | None:
        """BM25 of the documents; None if the index has none."""
        return self._state.engine.lexical

    @property
    def memory(self) -> QueryMemory:
        """What the index has learned from use: pairs of an earlier query and a document."""
        return self._state.engine.memory

    @property
    def content(self) -> Content:
        """The parts that an update changes, as they are now."""
        return self._state.content

    @property
    def engine(self) -> Engine:
        """What searches encoded queries and returns docid positions; for measurements and extensions."""
        return self._state.engine

    @property
    def generation(self) -> int:
        """Of the index on disk: 1 after training, one more with every update; 0 if no folder holds these documents."""
        return self._generation if self._on_disk and not updating.changed_parts(self.content, self._on_disk[1]) else 0

    @property
    def snapshot(self) -> "GenerativeRetriever":
        """The index at this moment, as a retriever of its own: later updates of this one do not reach it."""
        check_mapped(self._mapped)
        snapshot = object.__new__(type(self))
        snapshot.__dict__.update(self.__dict__, _saved=dict(self._saved))
        return snapshot

    def with_memory(self, memory: QueryMemory) -> "GenerativeRetriever":
        """Return the index at this moment with another memory, as a retriever of its own."""
        other = self.snapshot
        other._state = other._state.changed(other.content._replace(memory=memory))
        return other

    @property
    def search_config(self) -> SearchConfig:
        """The default search config; may be assigned."""
        return self._state.search_config

    @search_config.setter
    def search_config(self, config: SearchConfig) -> None:
        if not isinstance(config, SearchConfig):
            raise TypeError(f"search_config must be a SearchConfig, got {config!r}.")
        with self._updating:
            self._state = replace(self._state, search_config=config)

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        return f"GenerativeRetriever({len(self.documents)} documents, docids of up to {self.tree.depth} digits)"

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
    @shows_options
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
            return search_words(index._state, queries, k, options)
        if queries is not None:
            encoded = encoded_queries(index.encoder, [queries] if isinstance(queries, str) else queries)
        else:
            encoded = given_vectors(embeddings, index.encoder)
            options = vectors_alone(options, index.search_config, has_generator=index.engine.has_generator)
        if isinstance(queries, str):
            encoded.check_usable()  # of several, the others are answered
        request = index.request("search", k, options)
        hits = index._state.hits(encoded, request)
        return hits[0] if isinstance(queries, str) else Answers(hits)

    @shows_options
    def similar(self, doc_ids: str | Sequence[str], k: int = 10, **options: Unpack[SearchOptions]) -> Hits:
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
        return similar(self.snapshot._state, [doc_ids] if isinstance(doc_ids, str) else doc_ids, k, options)

    @shows_options
    def evidence(self, question: str, tokens: int = 1000, *, k: int = 20, **options: Unpack[SearchOptions]) -> Evidence:
        """Return the sentences of at most k documents that tell most of a question, with `tokens` tokens at most together.

        Those that stand together are one passage, the best come first, and what nearly repeats others is left out. Tokens are
        those of the index's encoder. Empty if a filter lets no document through.

        Raises:
            TypeError: an option does not exist.
            ValueError: no sentence fits into `tokens`, the index keeps no texts, an empty question, a bad option.
        """
        return evidence(self.snapshot._state, question, tokens, k, options)

    @shows_options
    def search_encoded(
        self, encoded: EncodedQueries, k: int = 10, *, show_progress: bool = False, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """Return the arrays of `search`, rows in the order of the queries."""
        if not isinstance(encoded, EncodedQueries):
            raise TypeError(f"search_encoded() takes what encode_queries() returns, got {encoded!r}.")
        index = self.snapshot
        return index.engine.search(encoded, index.request("search_encoded", k, options), show_progress=show_progress)

    @shows_options
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
        result = answers(index.engine, index.documents, encoded, request, among, show_progress=True)
        return index.as_run(encoded.query_ids, result)

    @shows_options
    def explain(self, query: str | EncodedQueries, k: int = 5, **options: Unpack[SearchOptions]) -> Explanation:
        """Return how a search came about: the parts of each answer's score, and the nodes kept and pruned.

        Args:
            query: a text, or the output of `encode_queries` for one query.
            k: documents.
            **options: see `SearchOptions`.
        """
        index = self.snapshot
        request = index.request("explain", k, options)
        encoded = encoded_query(index.encoder, query, "explain")
        (answered,) = index.answered(encoded, request)
        return answered.explanation

    @shows_options
    def follow(
        self, queries: Queries | EncodedQueries, doc_ids: Sequence[Sequence[str]], **options: Unpack[SearchOptions]
    ) -> Followed:
        """Return how the paths to some documents are scored, whether or not a search finds them.

        Args:
            queries: texts, or the output of `encode_queries`.
            doc_ids: documents for each query, the same number for all; one with several places has the path to its best one.
            **options: see `SearchOptions`; the scores are those of a search with them.

        Returns:
            Scores of the nodes by level, [queries, documents, depth], and the parts of the documents' scores.
        """
        index = self.snapshot
        encoded = encoded_queries(index.encoder, queries)
        request = index.request("follow", 1, options)
        encoded.check_usable()
        return index.engine.follow_all(encoded, request, followed_rows(index.documents, encoded, doc_ids))

    def request(self, call: str, k: int, options: Mapping[str, Any]) -> SearchRequest:
        """Return a request to `engine` for k documents: the options of a call over the index's search config."""
        return self._state.request(call, k, options)

    def answered(self, encoded: EncodedQueries, request: SearchRequest) -> list[AnsweredQuery]:
        """Return the search of each query, by which documents are explained."""
        return self._state.answered(encoded, request)

    def hits(self, result: SearchResult, searches: Sequence[AnsweredQuery] = ()) -> list[Hits]:
        """Return the hits of each query of a search result; `searches` of the same queries explain them."""
        index = self.snapshot
        return hits_of(index.tree, index.documents, result, searches)

    def as_run(self, query_ids: Sequence[str], result: SearchResult) -> dict[str, dict[str, float]]:
        """Return {query_id: {doc_id: score}} of a result with one row per query."""
        index = self.snapshot
        return run_of(index.tree, index.documents, query_ids, result)

    def encode_queries(self, queries: Queries, *, batch_size: int = 32, show_progress: bool = False) -> EncodedQueries:
        """Encode queries once, to search them several times."""
        return encode_queries(self.encoder, queries, batch_size=batch_size, show_progress=show_progress)

    @overload  # a str is a Sequence[str] too; the first signature takes it
    def get(self, doc_ids: str) -> Document: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, doc_ids: Sequence[str]) -> list[Document]: ...
    def get(self, doc_ids: str | Sequence[str]) -> Document | list[Document]:
        """Return a document, or several by one lookup, as the index holds them.

        Each has its title, metadata, first docid, and its text if the index keeps texts.

        Raises:
            ValueError: a doc_id is not in the index.
        """
        index = self.snapshot
        rows = index.documents.rows_of([doc_ids] if isinstance(doc_ids, str) else doc_ids, "get")
        documents = []
        for row, values in zip(rows, index.documents.records(rows), strict=True):
            doc_id, title, text = (values.pop(name, None) for name in COLUMNS)
            metadata = {name: value for name, value in values.items() if value is not None}
            digits = index.tree.digits(int(index.tree.positions[row]))
            documents.append(Document(doc_id, title, text, metadata, digits))
        return documents[0] if isinstance(doc_ids, str) else documents

    # Updating and saving.

    def add(self, documents: Iterable[Any], *, replace: bool = False) -> None:
        """Make new documents searchable at once, without training; no other document's docid changes.

        A document descends the centroids to its cluster and is searched like any other; with docid tokens that have weights of
        their own, it gets the mean probability of its siblings. Searches meanwhile see all of the new documents or none.

        Args:
            documents: records or a table, as `Collection.from_records` takes, each with doc_id (or _id, id), text and perhaps a
                title; all else is metadata, of the index's columns. Or a list of `Path`s, as `Collection.from_files` takes.
            replace: a document takes the place of the one that has its doc_id; by default it is refused.

        Raises:
            TypeError: documents are no list or table of records.
            ValueError: a doc_id that is in the index already, repeated or empty; no text; metadata that no column can hold.
        """
        self._hold(lambda content: updating.with_documents(content, self.encoder, documents, replace=replace))

    def update(self, add: Iterable[Any] = (), remove: Iterable[str] = ()) -> int:
        """Do what `add` and `remove` do in one step, and return how many were removed; a document in both is replaced."""
        change = lambda content, rows: updating.with_documents(content, self.encoder, add, removed=rows)  # noqa: E731
        return updating.remove(self._hold, lambda: self.documents, remove, change)

    def update_from(self, *paths: str | Path) -> updating.FileChanges:
        """Bring the index up to date with files and folders that it was made of; only files that changed are encoded."""
        found = list[updating.FileChanges]()

        def changed(content: Content) -> Content:
            changes, after = updating.with_files(content, self.encoder, paths)
            found.append(changes)
            return after

        self._hold(changed)
        return found[0]

    def remove(self, doc_ids: Iterable[str]) -> int:
        """Remove documents, but not all, and return how many; "paper.pdf" stands for all of its pages, a path for all rows.

        While its file is there a document comes back when its folder is updated; a line says so.
        """
        return updating.remove(self._hold, lambda: self.documents, doc_ids, updating.without_documents)

    def learn(self, pairs: Iterable[Any]) -> int:
        """Learn from use, at once and without training: which documents users took for which queries.

        The part `memory` of the document score then finds these documents better for queries like these; where its weight is 0,
        a line says so. A pair counts once more each time, up to three times. The section `[memory]` says what is kept.

        Args:
            pairs: (query, doc_id), records with these keys, or the `Path` of a file of them: .tsv, .csv, .jsonl or .parquet.

        Returns:
            How many pairs were learned; lines count the others, and those that take no part.

        Raises:
            TypeError: pairs are no list of pairs, or the index has a generator.
            ValueError: a query or a doc_id is not a text, or no pair can be learned.
        """
        index = self.snapshot
        if index.engine.has_generator:
            raise TypeError("learn() needs an index without a generator, and that of this one scores paths of docids.")
        known, vectors = learning.encoded_pairs(index.encoder, learning.checked_pairs(pairs, "learn", index.documents))
        before, after = self._hold(lambda content: learning.with_pairs(content, known, vectors))
        learning.tell_effect(before.memory, after.memory, index.search_config)
        return len(known)

    def forget(
        self, pairs: Iterable[Any] | None = None, *, since: learning.Moment = None, before: learning.Moment = None
    ) -> int:
        """Forget pairs, or what was learned in a time, and return of how many pairs.

        Args:
            pairs: as `learn` takes them; an empty query stands for all of the document, and "#" with 16 digits for the query
                that explanations and `learned` show so. All pairs by default.
            since: only what was learned from this moment on, such as "2026-11-28T14:30" in UTC, a datetime, seconds since 1970.
            before: only what was learned before this moment.

        Raises:
            TypeError, ValueError: pairs or a moment are none, neither is given, or the index has none of the documents.
        """
        when = learning.period(since, before, needed=pairs is None)
        gone = None if pairs is None else learning.checked_pairs(pairs, "forget", self.documents)
        earlier, later = self._hold(lambda content: learning.without_pairs(content, gone, when))
        return earlier.memory.fewer(later.memory)

    def learned(self) -> list[learning.LearnedPair]:
        """Return the pairs that the index has learned, the first learned first."""
        return learning.learned_pairs(self._state.content)

    def keep_texts(self, documents: Any) -> None:
        """Put the texts of a table with doc_id and text, such as `collection.documents`, into the index.

        Raises:
            ValueError: the table has no texts, or lacks a document of the index.
        """
        self._hold(lambda content: updating.with_texts(content, documents))

    def keep_vectors(self, kind: VectorKind, code_bytes: int = 0) -> None:
        """Store the vectors of documents and nodes in another format of `dsi.docids.vectors.VectorsConfig`; docids stay.

        Raises:
            ValueError: no such kind, or bytes that do not divide the dimension.
        """
        config = VectorsConfig(kind, code_bytes)
        self._hold(lambda content: content._replace(tree=content.tree.stored_as(config)))

    def _hold(self, change: Callable[[Content], Content]) -> tuple[Content, Content]:
        """Change the content, and return it before and after; searches from now on use the new one."""
        with self._updating:
            check_mapped(self._mapped)
            before = self._state.content
            content = change(before)
            if content is not before:  # of no documents it is
                self._state = self._state.changed(content)
            return before, content

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the whole index atomically: a killed process leaves the old folder or the new one.

        An index in `folder` is replaced, with its `config.toml` and what else training left; rerankers and other files stay.

        Raises:
            FileExistsError: the folder holds other files and no index.
            ValueError: the weights were loaded in another dtype than float32, `folder` is the current one, or the index there
                was changed since this one was loaded from it or saved to it.
        """
        self._check_savable()
        target = loading.index_to_replace(folder)
        with writing_to(target):
            if target in self._saved and loading.index_state(target):
                loading.check_known(target, self._saved.values(), (self._config_at(target), self.search_config))
            state = self._write(target)
            self._saved[target], self._generation = loading.index_state(target), loading.generation_of(target)
            self._on_disk = target, state.content, state.search_config

    def _write(self, folder: Path) -> State:
        """Write the whole index, and return what was written."""
        models = (state := self._state).encoder, state.generator, state.search_config
        loading.replace_index(folder, *models, state.content, self.configured_search)
        return state

    def _config_at(self, folder: Path) -> SearchConfig:
        """Return the search config of the index in a folder, as it was loaded or saved."""
        return self._on_disk[2] if self._on_disk and self._on_disk[0] == folder else self.search_config

    def _check_savable(self) -> None:
        check_mapped(self._mapped)
        if self.dtype != "float32":
            raise ValueError(f"This retriever's weights are of {self.dtype}; save one that was loaded in float32.")

    def save_update(self, folder: str | Path) -> int:
        """Write updates to the index that this one was loaded from, atomically; without any, nothing is written.

        Returns:
            The generation of the index on disk: 1 after training, one more with every update.

        Raises:
            FileNotFoundError: no index in the folder; `save_pretrained` writes a whole one.
            ValueError: the index in `folder` has another encoder or decoder, or changes that this one was not loaded with; or
                the weights were loaded in another dtype than float32.
        """
        self._check_savable()
        target = user_path(folder).resolve()
        with loading.updating(target):
            state = self._state
            is_held = (
                self._on_disk and self._on_disk[0] == target and loading.index_state(target) == self._saved[target]
            )
            held = self._on_disk[1] if self._on_disk and is_held else None
            if held and not updating.changed_parts(state.content, held):
                return loading.generation_of(target)
            generation = loading.write_update(target, self._saved.values(), state.encoder, state.content, held)
            self._saved[target], self._generation = loading.index_state(target), generation
            self._on_disk = target, state.content, self._config_at(target)
        return generation

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, revision: str | None = None, token: str | bool | None = None,
        device: str | None = None, dtype: str = "float32",
    ) -> Self:  # fmt: skip
        """Load an index, after checking every file.

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
        if plain(str, dtype, "dtype") not in _DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}.")
        local = loading.index_folder(folder, revision, token)
        parts, configured, state, mapped = loading.load_index(local, device, dtype)
        retriever = cls(*parts, dtype=dtype)
        retriever._saved[local.resolve()], retriever._mapped, retriever.configured_search = state, mapped, configured
        retriever._on_disk = local.resolve(), retriever.content, retriever.search_config
        retriever._generation = loading.generation_of(local)
        return retriever

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the folder and the state of the index there; refused if the index has changes that no folder holds."""
        if self._on_disk is None or updating.changed_parts(self.content, self._on_disk[1]):
            raise ValueError(
                "A retriever is pickled as the folder that holds it, and this one has changes that none holds; call "
                "save_update or save_pretrained first."
            )
        folder = self._on_disk[0]
        return _reload, (folder, self._saved[folder], str(self.device), self.dtype, self.search_config)


def load(
    folder: str | Path, *, revision: str | None = None, token: str | bool | None = None, device: str | None = None,
    dtype: str = "float32",
) -> GenerativeRetriever:  # fmt: skip
    """Load an index, after checking every file: `GenerativeRetriever.from_pretrained`, which describes the arguments."""
    return GenerativeRetriever.from_pretrained(folder, revision=revision, token=token, device=device, dtype=dtype)


def _reload(folder: Path, state: str, device: str, dtype: str, config: SearchConfig) -> GenerativeRetriever:
    """Return the retriever that was pickled, unless the index in its folder was changed since."""
    retriever = GenerativeRetriever.from_pretrained(folder, device=device, dtype=dtype)
    if retriever._saved[folder] != state:
        raise ValueError(f"{folder} was changed since the retriever was pickled; load the index there instead.")
    retriever.search_config = config
    return retriever
