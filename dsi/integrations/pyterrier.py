"""PyTerrier: an index as a retriever in pipelines and experiments. Knows nothing of how a search works.

from dsi.integrations.pyterrier import DocidIndex

index = DocidIndex("runs/example")
pipeline = index.retriever(num_results=100) >> index.text_loader("title")
pipeline.search("which capitals are on the danube")
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Unpack

import numpy as np
import pandas as pd

from dsi.docids.data.identical import without_identical
from dsi.docids.extensions import extra
from dsi.docids.files.checks import shown, text
from dsi.docids.types import Run
from dsi.eval.trec import run_without_ties
from dsi.integrations.retrieval import check_search, open_index
from dsi.search.request import SearchOptions
from dsi.store.retriever import Retriever, load

with extra("pyterrier"):
    import pyterrier as pt

logger = logging.getLogger(__name__)
_OF_FRAMES = ("qid", "query", "docno", "score", "rank")


class _Searcher(pt.Transformer):
    """Ranks the documents of an index for frames of queries, each frame in one call."""

    def __init__(
        self, retriever: Retriever | str | Path, num_results: int = 10, **options: Unpack[SearchOptions]
    ) -> None:
        self.retriever, self.num_results, self.options = open_index(retriever), num_results, options
        check_search(self.retriever, num_results, options, "num_results")
        self._search_of(self.retriever)

    def __repr__(self) -> str:
        arguments = {"num_results": self.num_results, **self.options}
        return f"{type(self).__name__}({', '.join(f'{key}={shown(value)}' for key, value in arguments.items())})"

    @abstractmethod
    def _search_of(self, index: Retriever) -> Callable[[Mapping[str, str], int], Run]:
        """Return what finds k documents for each of {query_id: text}."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return the documents found for each row of a query frame; a query that is a document itself leaves it out."""
        pt.validate.query_frame(inp, ["query"])
        index, k = copy(self.retriever), self.num_results
        qids, queries = list(map(str, inp["qid"])), [text(query, f"Query {n}") for n, query in enumerate(inp["query"])]
        alike = index.snapshot.documents.identical_ids(dict(zip(qids, queries, strict=True)))
        identical = {str(row): frozenset({qid}) for row, qid in enumerate(qids) if qid in alike}
        numbered = {str(row): query for row, query in enumerate(queries)}
        run = self._search_of(index)(numbered, k + bool(alike)) if numbered else {}
        answers = run_without_ties(without_identical(run, identical, k)).values()
        rows = np.repeat(np.arange(len(queries)), [len(documents) for documents in answers])
        return (
            inp.iloc[rows]
            .reset_index(drop=True)
            .assign(
                docno=pd.Series([docno for documents in answers for docno in documents], dtype=str),
                score=np.array([score for documents in answers for score in documents.values()], dtype=np.float64),
                rank=np.array([rank for documents in answers for rank in range(len(documents))], dtype=np.int64),
            )
        )


class DocidRetriever(_Searcher):
    """Searches an index: from frames with qid and query to frames with docno, score and rank (from 0) as well.

    Other columns of the queries are kept. Each frame is searched in one call.

    Args:
        retriever: the index, or its folder.
        num_results: documents per query.
        **options: see `SearchOptions`.
    """

    def _search_of(self, index: Retriever) -> Callable[[Mapping[str, str], int], Run]:
        return lambda queries, k: index.run(queries, k, **self.options)


class LexicalRetriever(_Searcher):
    """Searches the BM25 of an index alone, with the same frames as `DocidRetriever`.

    Args:
        retriever: the index, or its folder.
        num_results: documents per query.
    """

    def __init__(self, retriever: Retriever | str | Path, num_results: int = 10) -> None:
        super().__init__(retriever, num_results)

    def _search_of(self, index: Retriever) -> Callable[[Mapping[str, str], int], Run]:
        if index.snapshot.lexical is None:
            raise ValueError('This index has no lexical part; train with lexical.model = "bm25".')
        return index.snapshot.lexical.run


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


class DocidIndex:
    """An index on disk, which makes retrievers of PyTerrier.

    Args:
        path: folder of the index.
        device: of encoder and decoder; the best available by default.
        dtype: "float32" or "bfloat16", of encoder and decoder in search.
    """

    def __init__(self, path: str | Path, *, device: str | None = None, dtype: str = "float32") -> None:
        self.index = load(path, device=device, dtype=dtype)

    def retriever(self, num_results: int = 10, **options: Unpack[SearchOptions]) -> DocidRetriever:
        """Return a transformer that searches the index; see `DocidRetriever`."""
        return DocidRetriever(self.index, num_results, **options)

    def lexical(self, num_results: int = 10) -> LexicalRetriever:
        """Return a transformer that searches the BM25 of the index alone; see `LexicalRetriever`."""
        return LexicalRetriever(self.index, num_results)

    def text_loader(self, fields: Sequence[str] | str = "*", *, verbose: bool = False) -> TextLoader:
        """Return a transformer that adds columns of documents, as `pt.text.get_text` does; see `TextLoader`."""
        return TextLoader(self.index, fields)
