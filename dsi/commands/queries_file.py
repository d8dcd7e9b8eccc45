"""Queries in a file: queries.jsonl in BEIR layout, a table with named columns, or lines of id, a tab and the text."""

from pathlib import Path


def read_queries_file(path: Path) -> dict[str, str]:
    """Return {query_id: text}, in the order of the file.

    Args:
        path: .jsonl (or .jsonl.gz); .csv, .tsv or .parquet with the columns id and text; anything else has `id<TAB>text` lines.

    Raises:
        ValueError: a line that is not such a query, or an id that comes twice.
    """
    from dsi.docids.data.records import checked_queries
    from dsi.docids.data.sources import RECORDS, bare_records, file_records

    is_known = path.name.lower().endswith(RECORDS)
    return checked_queries(file_records(path) if is_known else bare_records(path), path)
