"""The documents of an index by doc_id, and which of them a search may return.

A filter on the columns of the document table (`metadata` of corpus.jsonl) is a condition in text (`filters.py`), an Arrow
expression or a mask. Knows nothing of how documents are scored.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dsi.docids.data.identical import identical_ids
from dsi.docids.data.records import COLUMNS, Oddities, ids_of
from dsi.docids.data.tables import Column, as_table
from dsi.docids.files.checks import id_of, shown
from dsi.docids.types import Ints
from dsi.search.hits import label_of
from dsi.search.request import Where
from dsi.store.documents.filters import as_expression, columns_line


class DocumentTable:
    """The documents of an index by row, in collection order, and by doc_id; `table` may stay on disk."""

    def __init__(self, documents: Any) -> None:
        self.table = as_table(documents)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def column_names(self) -> list[str]:
        """The names of all columns."""
        return list(self.table.column_names)

    def column(self, name: str) -> Column:
        """Return the values of a column, by row."""
        return self._by_name[name]

    @cached_property
    def rows(self) -> dict[str, int]:
        """{doc_id: row} of all documents, made on first use; `find` does without it."""
        return {doc_id: row for row, doc_id in enumerate(self.column("doc_id"))}

    def find(self, doc_ids: Iterable[str]) -> dict[str, int]:
        """Return {doc_id: row} of those doc_ids that are in the index."""
        # No column can hold a lone surrogate.
        unique = [own for own in dict.fromkeys(doc_ids) if own.encode(errors="ignore").decode() == own]
        column = self._columns["doc_id"]
        numbers_by_row = pc.index_in(column, value_set=pa.array(unique, type=column.type))
        rows = np.flatnonzero(numbers_by_row.is_valid())
        numbers = numbers_by_row.drop_null().to_numpy()
        return dict(zip((unique[number] for number in numbers), rows.tolist(), strict=True))

    def identical_ids(self, queries: Mapping[str, str]) -> frozenset[str]:
        """Return those of {query_id: text} that are documents themselves; none if the table holds no texts."""
        return identical_ids(queries, self.table, self.find(queries)) if self.has_texts else frozenset()

    def values_of(self, column: str, rows: NDArray[np.integer]) -> list[list[Any]]:
        """Return the values of a column at rows [n, m]; None for texts that the table does not hold."""
        if not rows.size:
            return [[] for _ in rows]
        has_column = column != "text" or self.has_texts
        values = self.column(column).take(rows.ravel()) if has_column else [None] * rows.size
        return [values[start : start + rows.shape[1]] for start in range(0, rows.size, rows.shape[1])]

    def names(self, row: int) -> tuple[str, str]:
        """Return the id of the document in a row, and what it is called: its title, or its first words."""
        doc_id, title, text = (self.values_of(name, np.array([[row]]))[0][0] for name in COLUMNS)
        return doc_id, label_of(doc_id, title, text)

    def label(self, row: int) -> str:
        """Return what the document in a row is called."""
        return self.names(row)[1]

    def metadata_at(self, rows: NDArray[np.integer]) -> list[dict[str, Any]]:
        """Return {column: value} of documents in rows [n], without missing values."""
        columns = {name: self.column(name).take(rows) for name in self.column_names if name not in COLUMNS}
        return [
            {name: values[number] for name, values in columns.items() if values[number] is not None}
            for number in range(len(rows))
        ]

    @property
    def has_texts(self) -> bool:
        """Whether the table holds the documents' texts."""
        return "text" in self.column_names

    def texts_of(self, doc_ids: Sequence[str]) -> list[str]:
        """Return the texts of some documents, without titles."""
        if not self.has_texts:
            raise ValueError("The table of documents has no column text; give one like collection.documents.")
        rows = self.find(doc_ids)
        if absent := [doc_id for doc_id in doc_ids if doc_id not in rows]:
            raise ValueError(
                f"The table has no text of document {shown(absent[0])}; give the texts of all documents of the index."
            )
        return self.column("text").take(np.array([rows[doc_id] for doc_id in doc_ids], dtype=np.int64))

    @cached_property
    def _columns(self) -> pa.Table:
        return self.table.select([name for name in self.column_names if name != "text"])

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {name: Column(self.table[name]) for name in self.column_names}

    def rows_of(self, doc_ids: Iterable[str], name: str) -> list[int]:
        """Return the rows of some documents; `name`: the argument they were passed as, for messages."""
        doc_ids = ids_of(doc_ids, name)
        for doc_id in doc_ids:
            if not isinstance(doc_id, str):
                raise ValueError(f"{name} must hold doc_ids, which are strings, got {shown(doc_id)}.")
        rows = self.find(doc_ids)
        for doc_id in doc_ids:
            if doc_id not in rows:
                unknown = "The doc_id {} is" if name == "doc_id" else f"{name} names the doc_id {{}}, which is"
                raise ValueError(f"{unknown.format(shown(doc_id))} not in the index.")
        return [rows[doc_id] for doc_id in doc_ids]

    def rows_among(self, among: Mapping[str, Iterable[str]], query_ids: Sequence[str]) -> list[list[int]]:
        """Return the rows of each query's candidates, {query_id: doc_ids}; a line counts those that are not in the index."""
        if not isinstance(among, Mapping):
            raise TypeError(f"among must be {{query_id: doc_ids}}, got {shown(among)}.")
        named = [list(dict.fromkeys(among.get(query_id, ()))) for query_id in query_ids]
        if not any(named):
            there, here = (shown(next(iter(side), None)) for side in (among, query_ids))
            raise ValueError(
                f"among has candidates for none of the queries: the first query_id is {there} there, and {here} in the queries."
            )
        doc_ids = list(chain.from_iterable(named))
        rows, odd = self.find(doc_ids), Oddities("among")
        if not rows:
            raise ValueError(f"None of the candidates is in the index; the first is {shown(doc_ids[0])}.")
        for doc_id in doc_ids:
            if doc_id not in rows:
                odd.count("documents that are not in the index; they are left out", doc_id)
        odd.warn()
        return [[rows[doc_id] for doc_id in named_ids if doc_id in rows] for named_ids in named]

    def allowed(
        self, allow: Collection[str] | None = None, deny: Collection[str] | None = None, where: Where | None = None
    ) -> NDArray[np.bool_] | None:
        """Return a mask [documents], True if all filters let a document through; None if they exclude none."""
        denied = [] if deny is None else self.chosen(deny, "deny")
        if allow is None and not denied and where is None:
            return None
        allowed = np.full(len(self), allow is None)
        if allow is not None:
            allowed[self.chosen(allow, "allow")] = True
        allowed[denied] = False
        if where is not None:
            allowed &= self.matching(where)
        return None if allowed.all() else allowed

    def chosen(self, documents: Collection[Any], name: str) -> Sequence[int]:
        """Return the rows of documents, given by doc_ids or by a mask [documents] of booleans; `name`: of the argument."""
        mask = self._given_mask(documents, name)
        return self.rows_of(documents, name) if mask is None else np.flatnonzero(mask).tolist()

    def _given_mask(self, value: Any, name: str) -> NDArray[np.bool_] | None:
        """Return the booleans, one a document, in an array, a series or a list; None if it holds something else."""
        if isinstance(value, str | bytes | pc.Expression) or not (
            hasattr(value, "__array__") or isinstance(value, list)
        ):
            return None
        mask = np.asarray(value)
        if mask.dtype == object and len(mask) and all(isinstance(value, bool | np.bool_) for value in mask):
            mask = mask.astype(bool)
        if mask.dtype != bool:
            return None
        labels = getattr(value, "index", None)  # of a series of pandas; of a list a method
        if labels is not None and not callable(labels) and mask.ndim == 1:
            mask = mask[self._order_of(np.asarray(labels), name)]
        if mask.shape != (len(self),):
            raise ValueError(f"{name} must be a mask of {len(self)} booleans, one a document, got {list(mask.shape)}.")
        return mask

    def _order_of(self, labels: NDArray[Any], name: str) -> Ints:
        """Return where the documents stand among the labels of a mask: places of documents in order, or doc_ids."""
        order, is_whole = np.arange(len(labels)), len(labels) == len(self)
        if is_whole and np.array_equal(labels, order):
            return order
        places = {id_of(label): place for place, label in enumerate(labels.tolist())}
        if len(places) == len(labels) and places.keys() >= self.rows.keys():
            return np.array([places[doc_id] for doc_id in self.rows])  # other labels are those of removed documents
        if not is_whole or (labels.dtype.kind in "iu" and (np.diff(labels) > 0).all()):
            return order  # of a table from which rows were left out, or which is refused for its number
        raise ValueError(
            f"{name} is a series whose labels are neither the doc_ids nor in the order of the documents, "
            f"got {shown(labels.tolist())}. Label it by doc_id, or give {name}.to_numpy() if it is in their order."
        )

    def matches(self, pattern: str) -> NDArray[np.bool_]:
        """Return a mask [documents], True where a regular expression of RE2 matches the title or the text."""
        title, text = (pc.match_substring_regex(pc.field(name), pattern) for name in ("title", "text"))
        return self._mask(title | text, self.table.select(["title", "text"]))

    def matching(self, where: Where) -> NDArray[np.bool_]:
        """Return a mask [documents], True where a condition holds; missing values (null) do not match."""
        if isinstance(where, str):
            return self._mask(*as_expression(where, self._columns))
        mask = self._given_mask(where, "where")
        if mask is not None:
            return mask
        if not isinstance(where, pc.Expression):
            got = f"{where.dtype} {list(where.shape)}" if isinstance(where, np.ndarray) else shown(where)
            raise ValueError(
                "where must be a condition as a text, an Arrow expression or a mask of booleans, one a document, got "
                f"{got}."
            )
        try:
            return self._mask(where, self._columns)
        except pa.ArrowException as error:
            wrong, columns = str(error).splitlines()[0], columns_line(self._columns.schema)
            raise ValueError(f"where {str(where)!r} does not work: {wrong}; {columns}.") from None

    def _mask(self, where: pc.Expression, table: pa.Table) -> NDArray[np.bool_]:
        from pyarrow.dataset import dataset  # takes long

        mask = dataset(table).to_table(columns={"mask": where})["mask"]
        if mask.type != pa.bool_():
            raise pa.ArrowInvalid(f"it gives {mask.type}, not true or false")
        return np.asarray(mask.fill_null(False))
