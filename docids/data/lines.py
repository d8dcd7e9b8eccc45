"""Lines of JSON and tables of judgements, written as BEIR has them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO


def write_json_line(file: TextIO, record: Mapping[str, Any]) -> None:
    """Write a record as a line of JSON."""
    file.write(json.dumps(record, ensure_ascii=False) + "\n")


def write_judgements(judgements: Iterable[tuple[str, str, float]], path: Path) -> None:
    """Write (query_id, doc_id, relevance) as a table of judgements.

    Raises:
        ValueError: an id holds a tab, which separates the columns.
    """
    with path.open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query_id, doc_id, relevance in judgements:
            if "\t" in f"{query_id}{doc_id}":
                raise ValueError(f"{path}: the ids {query_id!r} and {doc_id!r} must not hold a tab; rename them.")
            file.write(f"{query_id}\t{doc_id}\t{relevance}\n")
