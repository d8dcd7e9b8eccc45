"""MTEB: an index as its search model, an encoder as its encoder, a collection as its task. Knows nothing of how a search works.

import mteb
from dsi.integrations.mteb import DocidSearch, retrieval_task

mteb.evaluate(DocidSearch("runs/example"), retrieval_task(dsi.read_collection("minipedia")), cache=None)
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack
from uuid import uuid4

import datasets
import numpy as np
from numpy.typing import NDArray

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.data import SPLITS
from dsi.docids.data.collection import Collection, check_collection
from dsi.docids.extensions import extra
from dsi.docids.files.checks import plain, shown
from dsi.docids.files.storage import digest
from dsi.docids.types import Run
from dsi.integrations.corpora import CorpusSearch
from dsi.integrations.retrieval import open_index
from dsi.search.request import SearchOptions
from dsi.store.retriever import Retriever

with extra("mteb"):
    from mteb import TaskMetadata
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.models.model_meta import ModelMeta


class DocidSearch(CorpusSearch):
    """Searches the corpora of retrieval and reranking tasks: a `SearchProtocol` of MTEB.

    Equal scores differ in the last digit, so that MTEB ranks as the search does.

    Args:
        retriever: the index, or its folder, which has to hold the documents of a task. By default each task's corpus is indexed
            by `dsi.index`, without training.
        name: of the model in MTEB's results.
        **options: see `SearchOptions`.
    """

    def __init__(
        self,
        retriever: Retriever | str | Path | None = None,
        name: str = "dr-scl/index",
        **options: Unpack[SearchOptions],
    ) -> None:
        super().__init__(retriever, **options)
        self.name = name

    @cached_property
    def mteb_model_meta(self) -> ModelMeta:
        """Name and a new revision, so that MTEB takes no results of another index or other options from its cache."""
        return ModelMeta.create_empty({"name": self.name, "revision": uuid4().hex})

    def index(self, corpus: datasets.Dataset, **_: Any) -> None:
        """Take the documents of a task, columns id, title and text, as those that `search` returns."""
        self.take(corpus["id"][:], corpus)

    def search(
        self,
        queries: datasets.Dataset,
        *,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> Run:
        """Return {query_id: {doc_id: score}} for queries, columns id and text.

        `top_ranked`: {query_id: the only documents that may be returned}, of reranking tasks.
        """
        return self.run(dict(zip(queries["id"], queries["text"], strict=True)), top_k, top_ranked)


class DocidEncoder:
    """Encodes the texts of any task by the encoder of an index: an `EncoderProtocol` of MTEB.

    Queries and documents are cut, prompted and, for documents, put behind their title as in an index. Texts of tasks that have
    neither are encoded as documents. The similarity is the dot product, as in search.

    Args:
        encoder: of an index: the index, its folder, or the encoder.
        name: of the model in MTEB's results.
    """

    def __init__(self, encoder: TextEncoder | Retriever | str | Path, name: str = "dr-scl/encoder") -> None:
        self.encoder = encoder if isinstance(encoder, TextEncoder) else open_index(encoder).snapshot.encoder
        self.name = name

    @cached_property
    def mteb_model_meta(self) -> ModelMeta:
        """Name, revision (of weights and settings) and width."""
        revision = digest([self.encoder.fingerprint, dataclasses.asdict(self.encoder.config)])
        return ModelMeta.create_empty(
            {"name": self.name, "revision": revision, "embed_dim": self.encoder.embedding_dim}
        )

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: str | None = None, **_: Any
    ) -> NDArray[np.float32]:
        """Return embeddings [texts, embedding_dim] of batches with "text", and for documents "title" and "body"."""
        is_query = prompt_type == "query"
        texts: list[str] = []
        for batch in inputs:
            bodies = list(batch["text"])
            if is_query:
                texts += self.encoder.query_texts(bodies)
            elif "title" in batch and "body" in batch:
                texts += self.encoder.document_texts(list(batch["title"]), list(batch["body"]))
            else:
                texts += self.encoder.document_texts([""] * len(bodies), bodies)
        return self.encoder.encode(texts, "query" if is_query else "document")

    def similarity(self, embeddings1: Any, embeddings2: Any) -> NDArray[np.float32]:
        """Return the dot products [n, m] of embeddings [n, embedding_dim] and [m, embedding_dim]."""
        return np.atleast_2d(np.asarray(embeddings1)) @ np.atleast_2d(np.asarray(embeddings2)).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> NDArray[np.float32]:
        """Return the dot products [n] of rows of embeddings, both [n, embedding_dim]."""
        return np.asarray((np.asarray(embeddings1) * np.asarray(embeddings2)).sum(axis=-1))


def retrieval_task(collection: Collection, split: str = "test", name: str = "") -> AbsTaskRetrieval:
    """Return a split of a collection as a retrieval task, which needs no download.

    Its `ignore_identical_ids` is set if all queries with the id of a document are that document (`collection.identical`).

    Args:
        collection: with judgements of the split.
        split: "test", "dev" or "train".
        name: of the task; by default that of the collection's folder.
    """
    check_collection("retrieval_task", collection)
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {shown(split)}.")
    if not collection.qrels[split]:
        raise ValueError(f"{collection.name} has no {split} judgements; add {collection.place_of(split)}.")
    name = plain(str, name, "name") or Path(collection.name).name
    metadata = TaskMetadata(
        name=name, description=f"The {split} queries of {name}.", type="Retrieval", eval_splits=[split],
        eval_langs=["eng-Latn"], main_score="ndcg_at_10", dataset={"path": name, "revision": collection.digest},
    )  # fmt: skip
    queries, common = collection.query_texts(split), collection.qrels[split].keys() & collection.rows.keys()
    part = {
        "corpus": collection.documents.select_columns(["doc_id", "title", "text"]).rename_column("doc_id", "id"),
        "queries": datasets.Dataset.from_dict({"id": list(queries), "text": list(queries.values())}),
        "relevant_docs": collection.qrels[split],
        "top_ranked": None,
    }
    # MTEB's is for all ids that look alike
    ignores = bool(common) and all(query_id in collection.identical.get(query_id, ()) for query_id in common)
    members = {"metadata": metadata, "part": part, "ignore_identical_ids": ignores}
    kind = type(f"{name}Task", (_CollectionTask,), members)
    task: AbsTaskRetrieval = kind()
    return task


class _CollectionTask(AbsTaskRetrieval):
    """A task whose data is in memory."""

    part: Any  # `RetrievalSplitData`

    def load_data(self, *_: Any, **__: Any) -> None:
        (split,) = self.metadata.eval_splits
        self.dataset = {"default": {split: self.part}}
        self.data_loaded = True
