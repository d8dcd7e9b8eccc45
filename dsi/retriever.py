"""The public face: an index, searched, explained, loaded and saved.

retriever = GenerativeRetriever.from_pretrained("runs/example")
retriever.search("which capitals are on the danube", k=5)
"""

import dataclasses
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import datasets
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contrastive.encoder import Encoder
from docids.lexical import BM25
from docids.storage import replace_folder
from docids.tree import DocidTree
from dsi.answers import Hits, hits_of
from dsi.documents import Documents, Where
from dsi.generator.model import DocidGenerator
from dsi.index import load_index, save_docids, write_manifest, write_update
from dsi.rerank.candidates import Candidates, Stage
from dsi.reranking import candidates_of, looked_ahead, reranked
from dsi.search.beam import LevelTrace, SearchResult, TreeSearcher
from dsi.search.decoder import FastDecoder
from dsi.search.explanation import Explanation, explain
from dsi.search.graphs import GraphedSearch
from dsi.search.queries import EncodedQueries, QueryBatch, encode_queries, with_scores
from dsi.search.settings import SearchConfig
from dsi.updating import Content, consistent, with_documents, without_documents

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MAX_EXPANSIONS = 10_000
"""Inner nodes a query whose children an exact search may score, unless a call says otherwise."""


class GenerativeRetriever:
    """Encoder, docid tree, generator and documents that belong together.

    Args:
        encoder: the frozen encoder.
        tree: the docids.
        generator: the decoder trained for these docids.
        documents: table with doc_id and title, in collection order.
        settings: how to search where a call does not say.
        lexical: BM25 over the same documents, if `lexical_weight` is to be used.
        dtype: of encoder and decoder while searching; scores are float32 in any case. torch.bfloat16 is about twice as fast
            on processors and GPUs that multiply it natively.

    Raises:
        ValueError: the parts do not belong together.
    """

    def __init__(
        self,
        encoder: Encoder,
        tree: DocidTree,
        generator: DocidGenerator,
        documents: datasets.Dataset,
        settings: SearchConfig | None = None,
        lexical: BM25 | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        generator.check_tree(tree)
        covered = tree.num_documents - tree.num_removed
        if len(documents) != covered:
            raise ValueError(f"The docids cover {covered} documents, the document table has {len(documents)}.")
        if encoder.embedding_dim != tree.embeddings.shape[1] or encoder.state_dim != generator.config.d_model:
            raise ValueError(
                f"The encoder gives embeddings of {encoder.embedding_dim} and states of {encoder.state_dim}, docids and "
                f"generator need {tree.embeddings.shape[1]} and {generator.config.d_model}."
            )
        self.encoder = encoder.for_search(dtype)
        self.generator = generator.to(encoder.model.device)
        self.settings = settings or SearchConfig()
        self.device = encoder.model.device
        self.dtype = dtype
        self.swapping, self._updating = threading.Lock(), threading.Lock()
        self._decoder = FastDecoder(self.generator, dtype)
        self._hold(Content(tree, documents, lexical))

    def _hold(self, content: Content) -> None:
        """Search this from now on."""
        searcher = TreeSearcher(content.tree, self._decoder, self.device)
        documents = Documents(content.documents)
        graphs = GraphedSearch(searcher) if self.device.type == "cuda" else None
        with self.swapping:
            self.tree, self.documents, self.lexical = content
            self.searcher, self.table, self._graphs = searcher, documents, graphs

    def add(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Make new documents searchable at once, without training; no other document's docid changes.

        A document descends the centroids to its cluster. Dense scores and BM25 treat it like any other; to the decoder it is as
        probable as the documents beside it are on average. Searches go on meanwhile, and see all of the documents or none.

        Args:
            documents: with doc_id, title, text and perhaps metadata each.

        Raises:
            ValueError: a doc_id that is in the index, comes twice or is empty; a document without text; unknown metadata.
        """
        with self._updating:
            self._hold(with_documents(self._content, self.encoder, documents))

    def remove(self, doc_ids: Collection[str]) -> None:
        """Forget documents; their places in the tree are free for new ones.

        Raises:
            ValueError: a doc_id that is not in the index, or no document would be left.
        """
        with self._updating:
            self._hold(without_documents(self._content, self.table.rows_of(doc_ids, "remove")))

    @property
    def _content(self) -> Content:
        return Content(self.tree, self.documents, self.lexical)

    def __repr__(self) -> str:
        return f"GenerativeRetriever({len(self.documents)} documents, docids of up to {self.tree.depth} digits)"

    @overload
    def search(self, queries: str, k: int = 10, **options: Any) -> Hits: ...
    @overload
    def search(self, queries: Sequence[str], k: int = 10, **options: Any) -> list[Hits]: ...
    @consistent
    def search(self, queries: str | Sequence[str], k: int = 10, **options: Any) -> Hits | list[Hits]:
        """The k best documents for a query, or for each of several.

        Args:
            queries: one query or a list of them.
            k: documents a query; k results come back whenever k documents may be returned.
            **options: `allow`, `deny`, `where`, `exact`, `max_expansions`, `extra_scores`, `rerank`, `search`, … as in
                `search_encoded`; `alpha`, `beta`, `fusion`, `ann_temperature`, `beam_width`, `lexical_weight` (see
                `SearchConfig`): what is left out or None is as the index was tuned (beam_width at least k).

        Returns:
            `Hits` for one query, a list of `Hits` for a list.

        Raises:
            ValueError: an empty query, a setting out of range, k > beam_width, an unknown doc_id or column in a filter.
        """
        texts = [queries] if isinstance(queries, str) else list(queries)
        result = self.search_encoded(self.encode_queries(texts), k, **options)
        hits = hits_of(self.tree, self.table, result)
        return hits[0] if isinstance(queries, str) else hits

    @consistent
    def explain(self, query: str, k: int = 5, **settings: Any) -> Explanation:
        """Level by level: the nodes that were kept and pruned, with both scores; prints as a tree."""
        trace, result = self.trace(query, k, **settings)
        config = self.config(k, settings)
        return explain(query, self.tree, self.documents["title"], config, trace, result.positions[0].tolist())

    @consistent
    def trace(self, query: str, k: int = 5, **settings: Any) -> tuple[list[LevelTrace], SearchResult]:
        """One search, with what it looked at on each level."""
        config = self.config(k, settings)
        (batch,) = self._scored(self.encode_queries([query]), config, None)
        trace: list[LevelTrace] = []
        return trace, self._search_batch(batch, k, config, None, trace)

    def run(self, queries: Mapping[str, str], k: int = 10, **options: Any) -> dict[str, dict[str, float]]:
        """{query_id: {doc_id: score}} for {query_id: text}: what `eval` measures and TREC tools read."""
        encoded = self.encode_queries(list(queries.values()), progress=True)
        return self.run_encoded(list(queries), encoded, k, **options)

    @consistent
    def run_encoded(
        self, query_ids: Sequence[str], encoded: EncodedQueries, k: int = 10, **options: Any
    ) -> dict[str, dict[str, float]]:
        """`run` for queries that are encoded already."""
        return self.as_run(query_ids, self.search_encoded(encoded, k, **options))

    def as_run(self, query_ids: Sequence[str], result: SearchResult) -> dict[str, dict[str, float]]:
        """{query_id: {doc_id: score}} of a result whose rows are these queries."""
        positions = result.positions.numpy()
        doc_ids = self.table.values_of("doc_id", self.tree.doc_rows[np.maximum(positions, 0)])
        return {
            query_id: {doc_id: score for doc_id, score, p in zip(own, scores, found, strict=True) if p >= 0}
            for query_id, own, scores, found in zip(
                query_ids, doc_ids, result.scores.tolist(), positions.tolist(), strict=True
            )
        }

    def encode_queries(self, queries: Sequence[str], *, batch_size: int = 32, progress: bool = False) -> EncodedQueries:
        """Run the encoder once, so that many settings can be searched with."""
        return encode_queries(self.encoder, queries, batch_size=batch_size, progress=progress)

    @consistent
    def search_encoded(
        self,
        encoded: EncodedQueries,
        k: int = 10,
        *,
        allow: Collection[str] | None = None,
        deny: Collection[str] = (),
        where: Where | None = None,
        exact: bool = False,
        max_expansions: int = MAX_EXPANSIONS,
        extra_scores: NDArray[np.floating] | None = None,
        rerank: Sequence[Stage] = (),
        search: str = "beam",
        reward: Stage | None = None,
        simulations: int = 100,
        **settings: Any,
    ) -> SearchResult:
        """`search` as tensors, rows in the order of the queries.

        Args:
            encoded: the queries.
            k: documents a query.
            allow: doc_ids that may be returned; all by default. The constraint is inside the beam: k results come back
                whenever k allowed documents exist, with the scores they have without a filter.
            deny: doc_ids that must not be returned.
            where: a condition on the columns of the document table: SQL ("lang = 'en' and year > 2000"), an Arrow expression
                (`pyarrow.compute.field("lang") == "en"`), or [documents] booleans.
            exact: widen the beam until the answer is certified.
            max_expansions: inner nodes a query whose children an exact search may score; where that is not enough, the
                answer comes back with `exact` False.
            extra_scores: [queries, documents], documents in the order of the document table: any further score of documents
                (recency, popularity, …), weighted by the caller; added to z.e_d, under the same certificate.
            rerank: stages that order the k documents anew, one after another; `exact` then says that no other k documents
                scored better before them.
            search: "beam", or "mcts": by `reward` instead of path scores, the decoder only saying where to look
                (`dsi.rerank.lookahead`); up to k documents, never certified.
            reward: of "mcts": a stage that scores single documents; the document's dense (and BM25) score without it.
            simulations: of "mcts".
            **settings: of `SearchConfig`.
        """
        config, alive = self.config(k, settings), self._alive(allow, deny, where)
        config.check_k(k)
        if search != "beam":
            batches = self._scored(encoded, config, extra_scores)
            looked = looked_ahead(self, batches, k, config, alive, search, simulations, reward)
            return reranked(self, encoded, looked, rerank)
        width = self.searcher.most_answers(k, alive)
        positions = torch.full((encoded.count, width), -1)
        scores, generative = torch.empty(encoded.count, width), torch.empty(encoded.count, width)
        whole = SearchResult(positions, scores, torch.ones(encoded.count, dtype=torch.bool), generative)
        if width == 0:
            return whole
        for batch in self._scored(encoded, config, extra_scores):
            result = self._search_batch(batch, k, config, alive)
            if exact:
                result = self._widen(result, batch, k, config, alive, max_expansions)
            whole.put(batch.rows, result)
        return reranked(self, encoded, whole, rerank)

    @consistent
    def candidates(self, queries: Sequence[str], k: int = 100, **options: Any) -> Candidates:
        """The k best documents of each query, with the features by which a stage after the beam tells them apart."""
        encoded = self.encode_queries(queries, progress=True)
        return candidates_of(self, encoded, self.search_encoded(encoded, k, **options))

    @consistent
    def follow_encoded(
        self, encoded: EncodedQueries, doc_ids: Sequence[Sequence[str]], **settings: Any
    ) -> tuple[Tensor, Tensor]:
        """What the nodes on the way to given documents score for each query, whether or not a search would reach them.

        Args:
            encoded: the queries.
            doc_ids: of as many documents for each query.
            **settings: of `SearchConfig`.

        Returns:
            generative, dense: [queries, documents, depth]; at the last level the two parts of the documents' scores.
        """
        config = self.config(1, settings)
        rows = torch.tensor([self.table.rows_of(own, "doc_ids") for own in doc_ids])
        positions = torch.from_numpy(self.tree.positions).long()[rows]
        shape = (encoded.count, positions.shape[1], self.tree.depth)
        generative, dense = torch.empty(shape), torch.empty(shape)
        for batch in self._scored(encoded, config, None):
            node_scores = self.searcher.node_scores(batch.embeddings, config, None, batch.extra_scores)
            own = positions[batch.rows].to(self.device)
            found = self.searcher.follow(batch.states, batch.mask, node_scores, own, config)
            generative[batch.rows], dense[batch.rows] = (each.to("cpu", torch.float32) for each in found)
        return generative, dense

    def _search_batch(
        self,
        batch: QueryBatch,
        k: int,
        config: SearchConfig,
        alive: Tensor | None,
        trace: list[LevelTrace] | None = None,
    ) -> SearchResult:
        node_scores = self.searcher.node_scores(batch.embeddings, config, alive, batch.extra_scores)
        if trace is None and self._graphs is not None:
            return self._graphs.search(batch.states, batch.mask, node_scores, k, config, alive)
        return self.searcher.search(batch.states, batch.mask, node_scores, k, config, alive, trace)

    def _widen(
        self,
        result: SearchResult,
        batch: QueryBatch,
        k: int,
        config: SearchConfig,
        alive: Tensor | None,
        max_expansions: int,
    ) -> SearchResult:
        """Search again, with ever wider beams, for the queries whose answer is not certified."""
        spent = self.tree.expansions(config.beam_width)
        while not result.exact.all():
            config = dataclasses.replace(config, beam_width=4 * config.beam_width)
            spent += self.tree.expansions(config.beam_width)
            if spent > max_expansions:
                break
            open_ = (~result.exact).nonzero()[:, 0]
            wider = self._search_batch(batch.select(open_), k, config, alive)
            result.put(open_, wider)
        return result

    def _scored(
        self, encoded: EncodedQueries, config: SearchConfig, extra_scores: NDArray[np.floating] | None
    ) -> Iterator[QueryBatch]:
        return with_scores(encoded, self.tree.doc_rows, self.lexical, config.lexical_weight, extra_scores)

    def _alive(self, allow: Collection[str] | None, deny: Collection[str], where: Where | None) -> Tensor | None:
        """[nodes] as `TreeSearcher.search` wants them, or None where everything may be returned."""
        allowed = self.table.allowed(allow, deny, where)
        if allowed is None:
            return None
        by_position = np.zeros(self.tree.num_documents, dtype=bool)
        by_position[self.tree.positions] = allowed
        return self.searcher.dense.alive(torch.from_numpy(by_position).to(self.device))

    def config(self, k: int, settings: Mapping[str, Any]) -> SearchConfig:
        """The full settings of a search for k documents: those given, then the index's, beam_width at least k."""
        given = {name: value for name, value in settings.items() if value is not None}
        if given.get("fusion") == "paper":
            given.setdefault("lexical_weight", 0.0)
        if "beam_width" not in given:
            given["beam_width"] = max(self.settings.beam_width, k)
        config = dataclasses.replace(self.settings, **given)
        if config.alpha:
            self.generator.check_beam(config.beam_width)
        return config

    @consistent
    def save_pretrained(self, folder: str | Path) -> None:
        """Write the whole index in one step; a killed process leaves the old folder or the new one.

        Raises:
            ValueError: the encoder's weights were rounded to another dtype.
        """
        if self.dtype != torch.float32:
            raise ValueError(
                f"This retriever's weights were rounded to {self.dtype}; save one that was loaded in float32."
            )
        with replace_folder(Path(folder)) as partial:
            self.encoder.save(partial / "encoder")
            if self.lexical:
                self.lexical.save(partial / "lexical")
            save_docids(self.tree, self.documents, partial / "docids")
            self.generator.save_pretrained(str(partial / "generator"))
            write_manifest(partial, self.encoder, self.tree, self.settings)

    @consistent
    def save_update(self, folder: str | Path) -> int:
        """Write what `add` and `remove` changed to the index this one was loaded from; a killed process leaves old or new.

        Returns:
            The generation of the index on disk: 1 after training, one more with every update.

        Raises:
            ValueError: another encoder or decoder lies there.
        """
        return write_update(Path(folder), self.encoder, self.tree, self.documents, self.lexical)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, device: str | None = None, dtype: str = "float32"
    ) -> "GenerativeRetriever":
        """Load an index, after checking every file of it.

        Args:
            folder: the index.
            device: for encoder and decoder; the best there is by default.
            dtype: "float32" or "bfloat16", of encoder and decoder while searching.

        Raises:
            FileNotFoundError: no index there, or a part of it is missing.
            ValueError: a file was altered or truncated, or parts do not belong together; the message says which.
        """
        if dtype not in _DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}.")
        return cls(*load_index(Path(folder), device), _DTYPES[dtype])
