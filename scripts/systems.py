"""The systems that are compared: each a run of one split of a collection. Weights are chosen on the dev queries."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contrastive.encoder import Encoder
from docids.collection import Collection
from docids.lexical import BM25
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
            documents = collection.documents
            texts = encoder.document_texts(list(documents["title"]), list(documents["text"]))
            embeddings = encoder.encode(texts, "document", progress=True)
        self.embeddings = embeddings

    def run(self, split: str, *, approximate: bool = False) -> Run:
        """The best hundred documents of each query of a split."""
        queries = self.collection.query_texts(split)
        encoded = self.encoder.encode(self.encoder.query_texts(list(queries.values())), "query")
        doc_ids = list(self.collection.documents["doc_id"])
        return dense_run(list(queries), encoded, doc_ids, self.embeddings, DEPTH, approximate=approximate)


class IndexSystems:
    """An index, searched in any way, beside the dense search of its own encoder.

    Args:
        collection: what is searched.
        retriever: the index.
    """

    def __init__(self, collection: Collection, retriever: GenerativeRetriever) -> None:
        self.collection, self.retriever = collection, retriever
        tree = retriever.tree
        self.dense = DenseSystems(collection, retriever.encoder, tree.embeddings[tree.positions])
        self._encoded: dict[str, EncodedQueries] = {}

    def run(self, split: str, k: int = DEPTH, **settings: Any) -> Run:
        """The best k documents of each query of a split under some settings; the index's own by default."""
        query_ids = list(self.collection.query_texts(split))
        return self.retriever.run_encoded(query_ids, self._queries(split), k, **settings)

    def scores(self, split: str, doc_ids: Mapping[str, str], **settings: Any) -> dict[str, float]:
        """{query_id: score} of one document for each query of a split, found by a search or not."""
        query_ids = list(self.collection.query_texts(split))
        own = [[doc_ids[query_id]] for query_id in query_ids]
        generative, dense = self.retriever.follow_encoded(self._queries(split), own, **settings)
        return dict(zip(query_ids, (generative + dense)[:, 0, -1].tolist(), strict=True))

    def _queries(self, split: str) -> EncodedQueries:
        if split not in self._encoded:
            queries = self.collection.query_texts(split)
            self._encoded[split] = self.retriever.encode_queries(list(queries.values()), progress=True)
        return self._encoded[split]

    def tuned(self, fusion: str, *, lexical: bool = False, decoder: bool = True) -> dict[str, Any]:
        """The best settings on dev, with or without BM25 and the decoder; the index's own where there are no dev queries."""
        if not self.collection.qrels["dev"]:
            own = self.retriever.settings
            alpha, lexical_weight = own.alpha if decoder else 0.0, own.lexical_weight if lexical else 0.0
            return {"fusion": fusion, "alpha": alpha, "lexical_weight": lexical_weight}
        dev = self._queries("dev")
        return tune(self.retriever, self.collection, dev, fusion, lexical=lexical, decoder=decoder)[0]

    @cached_property
    def post_hoc_weight(self) -> float:
        """Of the decoder's scores in `post_hoc`, the best of all on dev."""
        if not self.collection.qrels["dev"]:
            return 0.0
        decoder = self.run("dev", **DECODER_ALONE)
        return best_weight(self.dense.run("dev"), decoder, self.collection.qrels["dev"])[0]

    def post_hoc(self, split: str) -> Run:
        """The two answer lists, of dense search and of the decoder, interpolated afterwards."""
        return interpolate(self.dense.run(split), self.run(split, **DECODER_ALONE), self.post_hoc_weight)
