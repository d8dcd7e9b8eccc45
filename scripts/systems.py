"""The systems that are compared: each a run of one split of a collection. Weights are chosen on the dev queries."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contrastive.blocks import DocumentTexts
from contrastive.encoder import Encoder
from docids.collection import Collection
from docids.lexical import BM25
from docids.processes import ALONE, Processes
from dsi.retriever import GenerativeRetriever
from dsi.search.queries import EncodedQueries
from eval.baselines import dense_run, tune_bm25
from eval.fusion import best_weight, interpolate
from scripts.tuning import DEPTH, tune

Run = dict[str, dict[str, float]]
DECODER_ALONE: dict[str, Any] = {"alpha": 1.0, "beta": 0.0, "lexical_weight": 0.0}


class WordSystems:
    """BM25 over some text of the documents, tuned on dev.

    Args:
        collection: what is searched.
        texts: of its documents; title and whole text by default.
        tuned: choose k1 and b on dev (not where dev itself is measured).
    """

    def __init__(self, collection: Collection, texts: list[str] | None = None, *, tuned: bool = True) -> None:
        self.collection = collection
        self.bm25 = BM25(collection.documents["doc_id"], texts or collection.full_texts())
        if tuned and collection.qrels["dev"]:
            tune_bm25(self.bm25, collection.query_texts("dev"), collection.qrels["dev"])

    @property
    def settings(self) -> dict[str, float]:
        """k1 and b."""
        return {"k1": self.bm25.k1, "b": self.bm25.b}

    def run(self, split: str) -> Run:
        """The best hundred documents of each query of a split."""
        return self.bm25.run(self.collection.query_texts(split), DEPTH)


class DenseSystems:
    """Flat and approximate search with an encoder.

    Args:
        collection: what is searched.
        encoder: of the queries.
        embeddings: [documents, dim] in collection order; the encoder's by default.
    """

    def __init__(self, collection: Collection, encoder: Encoder, embeddings: NDArray[np.float32] | None = None) -> None:
        self.collection, self.encoder = collection, encoder
        if embeddings is None:
            embeddings = encoder.encode(DocumentTexts(encoder, collection.documents)[:], "document", progress=True)
        self.embeddings = embeddings

    def run(self, split: str, *, approximate: bool = False) -> Run:
        """The best hundred documents of each query of a split."""
        queries = self.collection.query_texts(split)
        encoded = self.encoder.encode(self.encoder.query_texts(list(queries.values())), "query")
        doc_ids = self.collection.documents["doc_id"][:]
        return dense_run(list(queries), encoded, doc_ids, self.embeddings, DEPTH, approximate=approximate)


class IndexSystems:
    """An index, searched in any way, beside the dense search of its own encoder.

    Args:
        collection: what is searched.
        retriever: the index.
        processes: that share the searching; all get all answers.
    """

    def __init__(self, collection: Collection, retriever: GenerativeRetriever, processes: Processes = ALONE) -> None:
        self.collection, self.retriever, self.processes = collection, retriever, processes
        tree = retriever.tree
        self.dense = DenseSystems(collection, retriever.encoder, tree.embeddings[tree.positions])
        self._encoded: dict[tuple[str, int], EncodedQueries] = {}

    def run(self, split: str, k: int = DEPTH, **settings: Any) -> Run:
        """The best k documents of each query of a split under some settings; the index's own by default."""

        def search(own: dict[str, str]) -> Run:
            return self.retriever.run_encoded(list(own), self._queries(split, own), k, **settings)

        return self.processes.merge(self.collection.query_texts(split), search)

    def scores(self, split: str, doc_ids: Mapping[str, str], **settings: Any) -> dict[str, float]:
        """{query_id: score} of one document for each query of a split, found by a search or not."""
        query_ids = list(self.collection.query_texts(split))
        own = [[doc_ids[query_id]] for query_id in query_ids]
        encoded = self._queries(split, self.collection.query_texts(split))
        generative, dense = self.retriever.follow_encoded(encoded, own, **settings)
        return dict(zip(query_ids, (generative + dense)[:, 0, -1].tolist(), strict=True))

    def _queries(self, split: str, own: Mapping[str, str]) -> EncodedQueries:
        """Queries of a split, all or this process's, encoded once."""
        key = split, len(own)
        if key not in self._encoded:
            self._encoded[key] = self.retriever.encode_queries(list(own.values()), progress=self.processes.is_main)
        return self._encoded[key]

    def tuned(self, fusion: str, *, lexical: bool = False, decoder: bool = True) -> dict[str, Any]:
        """The best settings on dev, with or without BM25 and the decoder; the index's own where there are no dev queries.

        All processes get those of the first, should theirs differ in the last digit of a score.
        """
        if not self.collection.qrels["dev"]:
            own = self.retriever.settings
            alpha, lexical_weight = own.alpha if decoder else 0.0, own.lexical_weight if lexical else 0.0
            return {"fusion": fusion, "alpha": alpha, "lexical_weight": lexical_weight}
        dev = self._queries("dev", self.collection.query_texts("dev"))
        return self.processes.first(
            tune(self.retriever, self.collection, dev, fusion, lexical=lexical, decoder=decoder)[0]
        )

    @cached_property
    def post_hoc_weight(self) -> float:
        """Of the decoder's scores in `post_hoc`, the best of all on dev."""
        if not self.collection.qrels["dev"]:
            return 0.0
        decoder = self.run("dev", **DECODER_ALONE)
        return self.processes.first(best_weight(self.dense.run("dev"), decoder, self.collection.qrels["dev"])[0])

    def post_hoc(self, split: str) -> Run:
        """The two answer lists, of dense search and of the decoder, interpolated afterwards."""
        return interpolate(self.dense.run(split), self.run(split, **DECODER_ALONE), self.post_hoc_weight)
