"""Queries in a file: queries.jsonl in BEIR layout, or a line each of id, a tab and the text. Imports nothing heavy."""

from collections.abc import Iterator
from pathlib import Path


def read_queries_file(path: Path) -> dict[str, str]:
    """Return {query_id: text}, in the order of the file.

    Args:
        path: .jsonl, or else lines of `id<TAB>text`; with .gz after it, compressed.

    Raises:
        ValueError: a line that is not such a query, or an id that comes twice or has white space, which a TREC run cannot hold.
    """
    from dsi.docids.data.records import QUERY_ID_KEYS, read_query_records
    from dsi.docids.data.sources import line_records

    return read_query_records(
        line_records(path, QUERY_ID_KEYS) if ".jsonl" in path.suffixes else _tab_separated(path), path
    )


def _tab_separated(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    from dsi.docids.data.lines import text_lines

    for number, line in text_lines(path):
        source = f"{path}, line {number}"
        query_id, tab, text = line.partition("\t")
        if not tab:
            raise ValueError(f"{source}: expected id<TAB>text, or a file named .jsonl; got {line[:60]!r}.")
        yield source, {"_id": query_id, "text": text}
