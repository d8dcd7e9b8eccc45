"""The documents of an index by doc_id, and which of them a search may return.

A filter on the columns of the document table (`metadata` of corpus.jsonl) is SQL, an Arrow expression or a mask. SQL runs in
SQLite on a read-only copy of the columns in memory, made on first use. Knows nothing of scores or docids.
"""

import sqlite3
import threading
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dsi.search.request import Where

_MAY = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}


def document_table(documents: datasets.Dataset, *, texts: bool = False) -> pa.Table:
    """Return doc_id, title and metadata of documents, with `texts` also their text if the table holds it."""
    names = [name for name in documents.column_names if texts or name != "text"]
    return documents.select_columns(names).with_format("arrow")[:]


class DocumentTable:
    """The documents of an index, by row and by doc_id.

    Args:
        dataset: with doc_id, title, metadata and perhaps text, in collection order.
    """

    def __init__(self, dataset: datasets.Dataset) -> None:
        self.dataset = dataset
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.dataset)

    @cached_property
    def rows(self) -> dict[str, int]:
        """{doc_id: row}, made on first use: a search without filters needs no such dictionary in memory."""
        return {doc_id: row for row, doc_id in enumerate(self.dataset["doc_id"][:])}

    def values_of(self, column: str, rows: NDArray[np.integer]) -> list[list[Any]]:
        """Return the values of a column at rows [n, m]."""
        if not rows.size:
            return [[] for _ in rows]
        values = self._columns[column].take(pa.array(rows.ravel())).to_pylist()
        return [values[start : start + rows.shape[1]] for start in range(0, rows.size, rows.shape[1])]

    @property
    def has_texts(self) -> bool:
        """Whether the table holds the documents' texts."""
        return "text" in self.dataset.column_names

    def texts_of(self, doc_ids: Sequence[str]) -> list[str]:
        """Return title and text of some documents.

        Raises:
            ValueError: the table has no texts, or not these documents.
        """
        found = self.dataset.select_columns(["title", "text"])[self.text_rows(doc_ids)]
        return [f"{title} {text}".strip() for title, text in zip(found["title"], found["text"], strict=True)]

    def text_rows(self, doc_ids: Sequence[str]) -> list[int]:
        """Return the rows that hold the texts of some documents.

        Raises:
            ValueError: the table has no texts, or not these documents.
        """
        if not self.has_texts:
            raise ValueError("The table of documents has no column text; give one like collection.documents.")
        for doc_id in doc_ids:
            if doc_id not in self.rows:
                raise ValueError(
                    f"There is no text of document {doc_id!r}; give the texts of all documents of the index."
                )
        return [self.rows[doc_id] for doc_id in doc_ids]

    @cached_property
    def _columns(self) -> pa.Table:
        return document_table(self.dataset)

    def rows_of(self, doc_ids: Collection[str], name: str) -> list[int]:
        """Return the rows of some documents.

        Args:
            doc_ids: the documents.
            name: the argument they were passed as, for messages.

        Raises:
            ValueError: a doc_id is not in the index, or doc_ids is a string.
        """
        if isinstance(doc_ids, str):
            raise ValueError(f"{name} must be a list or set of doc_ids, got the string {doc_ids!r}.")
        doc_ids = list(doc_ids)  # an iterator is read once
        for doc_id in doc_ids:
            if doc_id not in self.rows:
                raise ValueError(f"{name} names the doc_id {doc_id!r}, which is not in the index.")
        return [self.rows[doc_id] for doc_id in doc_ids]

    def allowed(
        self, allow: Collection[str] | None = None, deny: Collection[str] = (), where: Where | None = None
    ) -> NDArray[np.bool_] | None:
        """Return a mask [documents], True if all three filters let a document through; None without filters.

        Raises:
            ValueError: an unknown doc_id, or a condition that does not fit the columns.
        """
        if allow is None and not deny and where is None:
            return None
        allowed = np.full(len(self), allow is None)
        allowed[self.rows_of(allow or (), "allow")] = True
        allowed[self.rows_of(deny, "deny")] = False
        return allowed if where is None else allowed & self.matching(where)

    def matching(self, where: Where) -> NDArray[np.bool_]:
        """Return a mask [documents], True where a condition holds; missing values (null) do not match."""
        if isinstance(where, np.ndarray):
            if where.dtype != bool or where.shape != (len(self),):
                raise ValueError(
                    f"where must be a mask of {len(self)} booleans, one a document, got {where.dtype} {list(where.shape)}."
                )
            return where
        try:
            rows = self._sql_rows(where) if isinstance(where, str) else self._arrow_rows(where)
        except (
            sqlite3.Error,
            sqlite3.Warning,
            pa.ArrowInvalid,
            pa.ArrowKeyError,
            pa.ArrowNotImplementedError,
        ) as error:
            columns = ", ".join(name for name in self.dataset.column_names if name != "text")
            raise ValueError(
                f"where {str(where)!r} does not work: {str(error).splitlines()[0]}; the columns are {columns}."
            ) from None
        mask = np.zeros(len(self), dtype=bool)
        mask[rows] = True
        return mask

    def _arrow_rows(self, where: pc.Expression) -> NDArray[np.integer]:
        table = self._columns
        numbered = table.append_column("", pa.array(np.arange(len(table))))
        return numbered.filter(where)[""].to_numpy()  # type: ignore[no-any-return]

    def _sql_rows(self, where: str) -> list[int]:
        with self._lock:
            return [row for (row,) in self._database.execute(f"select rowid - 1 from documents where {where}")]

    @cached_property
    def _database(self) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:", check_same_thread=False)
        table = self._columns
        names = ", ".join('"' + name.replace('"', '""') + '"' for name in table.column_names)
        database.execute(f"create table documents ({names})")
        places = ", ".join("?" * table.num_columns)
        for batch in table.to_batches(max_chunksize=10_000):
            database.executemany(
                f"insert into documents values ({places})", zip(*batch.to_pydict().values(), strict=True)
            )
        database.commit()
        database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _MAY else sqlite3.SQLITE_DENY)
        return database
