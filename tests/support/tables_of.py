"""Tables of documents made of columns."""

from typing import Any

import datasets
import pyarrow as pa

from dsi.store.documents.table import DocumentTable


def table_of(columns: dict[str, Any]) -> DocumentTable:
    """Return a document table with these columns."""
    return DocumentTable(datasets.Dataset(pa.table(columns)))
