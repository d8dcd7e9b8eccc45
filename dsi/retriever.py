"""The public face of an index: search, explain, update, load and save it. Knows nothing of how it was trained.

retriever = GenerativeRetriever.from_pretrained("runs/example")
retriever.search("which capitals are on the danube", k=5)
"""

import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, overload

import datasets
import torch
from typing_extensions import Unpack

from contrastive.encoder import Encoder
from docids.files.checks import plain
from docids.files.storage import replace_folder, writing_to
from docids.tree import DocidTree
from docids.vectors import VectorKind, VectorsConfig
from docids.words.bm25 import Lexical
from dsi.generator.base import Generator
from dsi.rerankers.candidates import Candidates
from dsi.search.answers import Document, Hits
from dsi.search.decoder import search_decoder
from dsi.search.engine import Followed
from dsi.search.explanation import Explanation
from dsi.search.queries import EncodedQueries, encode_queries, encoded_queries
from dsi.search.request import SearchConfig, SearchOptions, shows_options
from dsi.search.results import SearchResult
from dsi.snapshot import IndexParts, IndexSnapshot
from dsi.store.loading import check_known, index_state, load_index, save_docids, updating, write_manifest, write_update
from dsi.store.updating import Content, with_documents, with_texts, without_documents

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class GenerativeRetriever(IndexParts):
    """An index that can be searched, explained and updated.

    Every search takes the options of `dsi.search.request.SearchOptions` by name: `method`, `beam_width`, `candidates`, `alpha`,
    `lexical_weight` and `token_weight` override the index's search config; `allow`, `deny` and `where` filter; `extra_scores`
    are added to the documents' scores. None is the same as leaving an option out.

    Example:
        >>> import dsi
        >>> retriever = dsi.GenerativeRetriever.from_pretrained("runs/example")
        >>> hits = retriever.search("which capitals are on the danube", k=5)
        >>> [hit.rank for hit in hits]
        [1, 2, 3, 4, 5]

    Args:
        encoder: the frozen encoder.
        tree: the docids.
        generator: the decoder trained for these docids.
        documents: table with doc_id, title, optional metadata and, for rerankers that read it, text; in collection order.
        search_config: the default search config.
        lexical: BM25 or a `SparseIndex` of the same documents, needed for `lexical_weight`.
        dtype: of encoder and decoder in search; scores are always float32. torch.bfloat16 is faster where processors know it.

    Raises:
        ValueError: the parts do not belong together.
    """

    def __init__(
        self,
        encoder: Encoder,
        tree: DocidTree,
        generator: Generator,
        documents: datasets.Dataset,
        search_config: SearchConfig | None = None,
        lexical: Lexical | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        generator.check_tree(tree)
        covered = tree.num_rows
        if len(documents) != covered:
            raise ValueError(f"The docids cover {covered} documents, the document table has {len(documents)}.")
        if encoder.embedding_dim != tree.embeddings.shape[1] or encoder.state_dim != generator.config.d_model:
            raise ValueError(
                f"The encoder gives embeddings of {encoder.embedding_dim} and states of {encoder.state_dim}, docids and "
                f"generator need {tree.embeddings.shape[1]} and {generator.config.d_model}."
            )
        self.device, self.dtype = encoder.model.device, dtype
        self._updating = threading.Lock()
        self._saved: dict[Path, str] = {}  # folder: state of the index there that this one contains
        generator = generator.to(self.device)
        self._decoder = search_decoder(generator, dtype)
        content = Content(tree, documents, lexical)
        config = search_config or SearchConfig()
        self._index = IndexSnapshot.of(encoder.for_search(dtype), generator, self._decoder, config, content)

    # Its parts are properties of `IndexParts`.

    @property
    def search_config(self) -> SearchConfig:
        """The default search config; may be assigned."""
        return self._index.search_config

    @search_config.setter
    def search_config(self, config: SearchConfig) -> None:
        if not isinstance(config, SearchConfig):
            raise TypeError(f"search_config must be a SearchConfig, got {config!r}.")
        with self._updating:
            self._index = dataclasses.replace(self._index, search_config=config)

    def __repr__(self) -> str:
        return f"GenerativeRetriever({len(self.documents)} documents, docids of up to {self.tree.depth} digits)"

    # Searching. Each call works on one snapshot of the index, so it does not see an update made meanwhile.

    @overload  # a str is a Sequence[str] too; the first signature takes it
    def search(self, queries: str, k: int = 10, **options: Unpack[SearchOptions]) -> Hits: ...  # type: ignore[overload-overlap]
    @overload
    def search(
        self, queries: Sequence[str] | EncodedQueries, k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[Hits]: ...
    @shows_options
    def search(
        self, queries: str | Sequence[str] | EncodedQueries, k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits | list[Hits]:
        """Return the top k documents for a query, or for each of several.

        Example:
            >>> hits = retriever.search("noble gases", k=3, where="doc_id <> 'neon'")
            >>> hits, more = retriever.search(["noble gases", "rivers of europe"], method="exact")

        Args:
            queries: one query, a list of queries, or the output of `encode_queries`.
            k: documents per query; k are returned whenever that many are allowed.
            **options: see `SearchOptions`.

        Returns:
            `Hits` for one query, a list of `Hits` for several.

        Raises:
            TypeError: an option does not exist.
            ValueError: an empty query, an option out of range or not used, an unknown doc_id or column in a filter.
        """
        if isinstance(queries, Mapping):
            raise TypeError("search() takes a text or a list of texts; run() takes {query_id: text}.")
        index = self._index
        encoded = encoded_queries(index.encoder, [queries] if isinstance(queries, str) else queries)
        hits = index.hits(index.search(encoded, index.request("search", k, options)))
        return hits[0] if isinstance(queries, str) else hits

    @shows_options
    def search_encoded(
        self, encoded: EncodedQueries, k: int = 10, *, show_progress: bool = False, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """Return the arrays of `search`, rows in the order of the queries."""
        if not isinstance(encoded, EncodedQueries):
            raise TypeError(f"search_encoded() takes what encode_queries() returns, got {encoded!r}.")
        index = self._index
        request = index.request("search_encoded", k, options)
        return index.search(encoded, request, show_progress=show_progress)

    @shows_options
    def run(
        self, queries: Mapping[str, str] | EncodedQueries, k: int = 10, **options: Unpack[SearchOptions]
    ) -> dict[str, dict[str, float]]:
        """Return {query_id: {doc_id: score}} for {query_id: text}, the format of `eval` and of TREC tools."""
        index = self._index
        encoded = encoded_queries(index.encoder, queries, show_progress=True)
        return index.as_run(
            encoded.query_ids, index.search(encoded, index.request("run", k, options), show_progress=True)
        )

    @shows_options
    def explain(self, query: str, k: int = 5, **options: Unpack[SearchOptions]) -> Explanation:
        """Search, and return how: nodes kept and pruned level by level, and the parts of each hit's score; prints as a tree."""
        index = self._index
        request = index.request("explain", k, options)
        return index.explain(query, encoded_queries(index.encoder, [query]), request)[0]

    @shows_options
    def follow(
        self,
        queries: Sequence[str] | EncodedQueries,
        doc_ids: Sequence[Sequence[str]],
        **options: Unpack[SearchOptions],
    ) -> Followed:
        """Return how the paths to given documents are scored, whether or not a search finds them.

        Args:
            queries: texts, or the output of `encode_queries`.
            doc_ids: documents for each query, the same number for all.
            **options: options of the search whose scores are wanted.

        Returns:
            Scores of the nodes by level, [queries, documents, depth], and the parts of the documents' scores.
        """
        index = self._index
        encoded = encoded_queries(index.encoder, queries)
        return index.follow(encoded, index.request("follow", 1, options), doc_ids)

    @shows_options
    def candidates(
        self,
        queries: Sequence[str] | Mapping[str, str] | EncodedQueries,
        k: int = 100,
        *,
        features: bool = True,
        **options: Unpack[SearchOptions],
    ) -> Candidates:
        """Return the top k documents of each query as candidates for `dsi.rerank`.

        Args:
            queries: texts, {query_id: text}, or the output of `encode_queries`.
            k: documents per query.
            features: compute the features of learned rerankers; takes one more pass of the decoder.
            **options: see `SearchOptions`.
        """
        index = self._index
        encoded = encoded_queries(index.encoder, queries)
        result = index.search(encoded, index.request("candidates", k, options))
        return index.candidates(encoded, result, features=features)

    @shows_options
    def config_for(self, k: int = 10, **options: Unpack[SearchOptions]) -> SearchConfig:
        """Return the search config that a call with these options uses."""
        return self._index.request("config_for", k, options).config

    def as_run(self, query_ids: Sequence[str], result: SearchResult) -> dict[str, dict[str, float]]:
        """Return {query_id: {doc_id: score}} of a result with one row per query."""
        return self._index.as_run(query_ids, result)

    def encode_queries(
        self, queries: Sequence[str] | Mapping[str, str], *, batch_size: int = 32, show_progress: bool = False
    ) -> EncodedQueries:
        """Encode queries once, to search them several times."""
        return encode_queries(self.encoder, queries, batch_size=batch_size, show_progress=show_progress)

    # Updating and saving.

    def get(self, doc_id: str) -> Document:
        """Return a document as the index holds it: title, metadata, docid, and its text if the index keeps texts.

        Raises:
            ValueError: the doc_id is not in the index.
        """
        return self._index.document(doc_id)

    def add(self, documents: Iterable[Mapping[str, Any]], *, replace: bool = False) -> None:
        """Make new documents searchable at once, without training; no other document's docid changes.

        A document descends the centroids to its cluster. The walk, dense scores and BM25 treat it like any other; with docid
        tokens that have weights of their own, the decoder gives it the mean probability of its siblings. Searches may run
        meanwhile; each sees all of the new documents or none.

        Args:
            documents: each with doc_id (or _id), text and optionally title and metadata, as in corpus.jsonl.
            replace: a document takes the place of the one that has its doc_id; by default it is refused.

        Raises:
            TypeError: documents are no list of mappings.
            ValueError: a doc_id that is in the index already, repeated or empty; no text; an unknown key or metadata.
        """
        with self._updating:
            self._hold(with_documents(self._index.content, self.encoder, documents, replace=replace))

    def remove(self, doc_ids: Iterable[str]) -> None:
        """Remove documents; their places in the tree become free for new ones.

        Raises:
            ValueError: a doc_id is not in the index, or no document would be left.
        """
        with self._updating:
            self._hold(without_documents(self._index.content, self.documents.rows_of(doc_ids, "remove")))

    def keep_texts(self, documents: datasets.Dataset) -> None:
        """Put the texts of the documents into the index, for rerankers that read them; `add` keeps those of new documents.

        Args:
            documents: table with doc_id and text, such as `collection.documents`; may hold more documents.

        Raises:
            ValueError: the table has no texts, or lacks a document of the index.
        """
        with self._updating:
            self._hold(with_texts(self._index.content, documents))

    def keep_vectors(self, kind: VectorKind, code_bytes: int = 0) -> None:
        """Keep the vectors of documents and nodes in other bytes, as `docids.vectors.VectorsConfig` says; docids stay.

        Raises:
            ValueError: no such kind, or bytes that do not divide the dimension.
        """
        with self._updating:
            content, config = self._index.content, VectorsConfig(kind, code_bytes)
            self._hold(content._replace(tree=content.tree.stored_as(config)))

    def _hold(self, content: Content) -> None:
        """Search this content from now on."""
        index = self._index
        self._index = IndexSnapshot.of(index.encoder, index.generator, self._decoder, index.search_config, content)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the whole index atomically: a killed process leaves the old folder or the new one.

        Raises:
            ValueError: the weights were loaded in another dtype than float32, or this index was loaded from `folder` or saved
                to it, and that was changed since.
        """
        self._check_dtype()
        target = Path(folder).resolve()
        with writing_to(target):
            if target in self._saved and index_state(target):
                check_known(target, self._saved.values())
            index = self._index
            with replace_folder(target) as partial:
                index.encoder.save(partial / "encoder")
                if index.lexical:
                    index.lexical.save(partial / "lexical")
                save_docids(index.tree, index.documents.dataset, partial / "docids", texts=True)
                index.generator.save_pretrained(str(partial / "generator"))
                write_manifest(partial, index.encoder, index.tree, index.search_config)
            self._saved[target] = index_state(target)

    def _check_dtype(self) -> None:
        if self.dtype != torch.float32:
            raise ValueError(
                f"This retriever's weights were rounded to {self.dtype}; save one that was loaded in float32."
            )

    def save_update(self, folder: str | Path) -> int:
        """Write what was added, removed and kept otherwise to the index this one was loaded from, atomically.

        Returns:
            The generation of the index on disk: 1 after training, one more with every update.

        Raises:
            FileNotFoundError: no index in the folder.
            ValueError: the index in `folder` has another encoder or decoder, or changes that this one was not loaded with; or
                the weights were loaded in another dtype than float32.
        """
        self._check_dtype()
        target = Path(folder).resolve()
        with updating(target):
            index = self._index
            generation = write_update(target, self._saved.values(), index.encoder, *index.content)
            self._saved[target] = index_state(target)
        return generation

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        license: str | None = None,  # noqa: A002
    ) -> str:
        """Upload the whole index with a model card to the Hugging Face Hub; see `dsi.store.hub.push`."""
        from dsi.store.hub import push

        with TemporaryDirectory() as folder:
            self.save_pretrained(Path(folder) / "index")
            self._saved.pop((Path(folder) / "index").resolve())
            return push(Path(folder) / "index", name, private=private, token=token, license=license)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        device: str | None = None,
        dtype: str = "float32",
    ) -> "GenerativeRetriever":
        """Load an index, after checking every file.

        Args:
            folder: the index; or "user/name", one on the Hugging Face Hub, if there is no such folder.
            revision: branch, tag or commit on the Hub.
            token: for a private index on the Hub; by default that of `hf auth login` or HF_TOKEN.
            device: of encoder and decoder; the best available by default.
            dtype: "float32" or "bfloat16", of encoder and decoder in search.

        Raises:
            FileNotFoundError: no index in the folder, nor on the Hub, or a part is missing.
            ValueError: a file was altered or truncated, or parts do not belong together; the message says which.
        """
        from dsi.store.hub import index_folder

        if plain(str, dtype, "dtype") not in _DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}.")
        place = index_folder(folder, revision, token)
        parts, loaded = load_index(place, device)
        retriever = cls(*parts, _DTYPES[dtype])
        retriever._saved[place.resolve()] = loaded
        return retriever
