"""PyTerrier: an index as a retriever in pipelines and experiments, and as an artifact. Knows nothing of how a search works.

from dsi.integrations.pyterrier import DocidIndex

index = DocidIndex("runs/example")
pipeline = index.retriever(num_results=100) >> index.text_loader("title")
pipeline.search("which capitals are on the danube")
"""

import io
import json
import logging
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd

from dsi.docids.extensions import extra
from dsi.docids.files.checks import shown, text, user_path
from dsi.docids.words.bm25 import BM25
from dsi.eval.trec import without_ties
from dsi.integrations.pyterrier_metadata import METADATA
from dsi.integrations.retrieval import check_search, open_index
from dsi.search.request import SearchOptions
from dsi.store.folder.manifest import read_manifest
from dsi.store.retriever import Retriever, load

with extra("pyterrier"):
    import pyterrier as pt

logger = logging.getLogger(__name__)
_OF_FRAMES = ("qid", "query", "docno", "score", "rank")


class DocidRetriever(pt.Transformer):
    """Searches an index: from frames with qid and query to frames with docno, score and rank (from 0) as well.

    Other columns of the queries are kept. Each frame is searched in one call.

    Args:
        retriever: the index, or its folder.
        num_results: documents per query.
        **options: see `SearchOptions`.
    """

    def __init__(
        self, retriever: Retriever | str | Path, num_results: int = 10, **options: Unpack[SearchOptions]
    ) -> None:
        self.retriever, self.num_results, self.options = open_index(retriever), num_results, options
        check_search(self.retriever, num_results, options, "num_results")

    def __repr__(self) -> str:
        return _call("DocidRetriever", num_results=self.num_results, **self.options)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return the documents found for each row of a query frame."""
        pt.validate.query_frame(inp, ["query"])
        index, own = copy(self.retriever), _own_documents(self.retriever, inp)
        found = index.search(list(inp["query"]), self.num_results + any(own), **self.options)
        results = [[(hit.doc_id, hit.score) for hit in hits] for hits in found]
        return _ranking(inp, _without(results, own, self.num_results))


class LexicalRetriever(pt.Transformer):
    """Searches the BM25 of an index alone, with the same frames as `DocidRetriever`.

    Args:
        retriever: the index, or its folder.
        num_results: documents per query.
    """

    def __init__(self, retriever: Retriever | str | Path, num_results: int = 10) -> None:
        self.retriever, self.num_results = open_index(retriever), num_results
        check_search(self.retriever, num_results, {}, "num_results")
        _lexical(self.retriever)

    def __repr__(self) -> str:
        return _call("LexicalRetriever", num_results=self.num_results)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return the documents found for each row of a query frame."""
        pt.validate.query_frame(inp, ["query"])
        queries = {str(row): text(query, f"Query {row}") for row, query in enumerate(inp["query"])}
        own = _own_documents(self.retriever, inp)
        run = _lexical(self.retriever).run(queries, self.num_results + any(own)) if queries else {}
        return _ranking(inp, _without([list(found.items()) for found in run.values()], own, self.num_results))


class TextLoader(pt.Transformer):
    """Adds columns of documents to frames with docno: title, text if it keeps texts, and metadata.

    Args:
        retriever: the index, or its folder.
        fields: the columns to add; "*" for all.
    """

    def __init__(self, retriever: Retriever | str | Path, fields: Sequence[str] | str = "*") -> None:
        self.retriever = open_index(retriever)
        columns = [name for name in self.retriever.snapshot.documents.column_names if name != "doc_id"]
        if theirs := [name for name in columns if name in _OF_FRAMES]:
            logger.warning("Metadata %s are not loaded: columns of PyTerrier's frames have these names.", theirs)
            columns = [name for name in columns if name not in _OF_FRAMES]
        self.fields = columns if fields == "*" else [fields] if isinstance(fields, str) else fields
        if not isinstance(self.fields, Sequence):
            raise TypeError(f"fields must be a list of columns or one, got {shown(fields)}.")
        for name in self.fields:
            if name not in columns:
                keep = "; `dsi update --texts` puts texts into it" if name == "text" else ""
                raise ValueError(f"The index has no column {shown(name)}, it has {', '.join(columns)}{keep}.")

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return a frame with the columns added, in the place of those of the same name."""
        pt.validate.columns(inp, includes=["docno"])
        documents = self.retriever.snapshot.documents
        rows = np.array([documents.rows_of(inp["docno"], "docno")], dtype=np.int64)  # [1, rows of the frame]
        return inp.assign(**{name: documents.values_of(name, rows)[0] for name in self.fields})


class DocidIndex(pt.Artifact):
    """An index on disk as an artifact of PyTerrier, which makes retrievers and can be packed and shared.

    Args:
        path: folder of the index.
        device: of encoder and decoder; the best available by default.
        dtype: "float32" or "bfloat16", of encoder and decoder in search.
    """

    ARTIFACT_TYPE, ARTIFACT_FORMAT = METADATA["type"], METADATA["format"]
    ARTIFACT_PACKAGE_HINT = METADATA["package_hint"]

    def __init__(self, path: str | Path, *, device: str | None = None, dtype: str = "float32") -> None:
        self._folder = user_path(path)
        super().__init__(self._folder)
        self.index = load(self._folder, device=device, dtype=dtype)

    def retriever(self, num_results: int = 10, **options: Unpack[SearchOptions]) -> DocidRetriever:
        """Return a transformer that searches the index; see `DocidRetriever`."""
        return DocidRetriever(self.index, num_results, **options)

    def lexical(self, num_results: int = 10) -> LexicalRetriever:
        """Return a transformer that searches the BM25 of the index alone; see `LexicalRetriever`."""
        return LexicalRetriever(self.index, num_results)

    def text_loader(self, fields: Sequence[str] | str = "*", *, verbose: bool = False) -> TextLoader:
        """Return a transformer that adds columns of documents, as `pt.text.get_text` does; see `TextLoader`."""
        return TextLoader(self.index, fields)

    def _package_files(self) -> Iterator[tuple[str, str | io.BytesIO]]:
        """Yield name and path of the files to share: those of the index, and no others in its folder."""
        for name in ("manifest.json", *read_manifest(self._folder)["files"]):
            yield name, str(self._folder / name)
        yield "pt_meta.json", io.BytesIO(json.dumps(METADATA).encode())


def _lexical(retriever: Retriever) -> BM25:
    if retriever.snapshot.lexical is None:
        raise ValueError('This index has no lexical part; train with lexical.model = "bm25".')
    return retriever.snapshot.lexical


def _own_documents(retriever: Retriever, queries: pd.DataFrame) -> list[str]:
    """Return the docno of each query that is a document itself, and leaves it out (`dsi.docids.data.identical`), else ""."""
    ids = [str(qid) for qid in queries["qid"]] if "qid" in queries else []
    texts = {qid: query for qid, query in zip(ids, queries["query"], strict=False) if isinstance(query, str)}
    identical = retriever.snapshot.documents.identical_ids(texts)
    return [qid if qid in identical else "" for qid in ids] or [""] * len(queries)


def _without(
    results: Sequence[Sequence[tuple[str, float]]], own: Sequence[str], k: int
) -> list[list[tuple[str, float]]]:
    """Return results without each query's own document, at most k of each."""
    pairs = zip(results, own, strict=True)
    return [[found for found in documents if found[0] != docno][:k] for documents, docno in pairs]


def _ranking(queries: pd.DataFrame, results: Sequence[Sequence[tuple[str, float]]]) -> pd.DataFrame:
    """Return a row for each document of the results: the columns of its query, docno, score (without ties) and rank."""
    counts = np.array([len(documents) for documents in results], dtype=np.int64)
    rows = np.repeat(np.arange(len(queries)), counts)
    return (
        queries.iloc[rows]
        .reset_index(drop=True)
        .assign(
            docno=pd.Series([doc_id for documents in results for doc_id, _ in documents], dtype=str),
            score=np.array(
                [score for documents in results for score in without_ties([score for _, score in documents])],
                dtype=np.float64,
            ),
            rank=np.array([rank for documents in results for rank in range(len(documents))], dtype=np.int64),
        )
    )


def _call(name: str, **arguments: Any) -> str:
    """Return a call as text: how pipelines and tables of experiments name a transformer."""
    return f"{name}({', '.join(f'{key}={shown(value)}' for key, value in arguments.items())})"
