"""The one writer of tables, in Markdown and as HTML of it. Knows nothing of what they show."""

from collections.abc import Iterable, Sequence
from html import escape


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose columns line up in plain text too.

    >>> print(markdown_table(["system", "Hit@1"], [["BM25", "51.60"], ["dense", "61.25"]]))
    | system | Hit@1 |
    | ------ | ----- |
    | BM25   | 51.60 |
    | dense  | 61.25 |

    Args:
        columns: their headings, the first that of the row names.
        rows: cells, one a column.
    """
    lines = [columns, *rows]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines
    )


def html_table(markdown: str) -> str:
    """Return a table of `markdown_table` as HTML.

    >>> html_table(markdown_table(["system", "Hit@1"], [["BM25", "51.60"]]))
    '<table><tr><th>system</th><th>Hit@1</th></tr><tr><td>BM25</td><td>51.60</td></tr></table>'
    """
    head, _, *rows = (
        [escape(cell.strip()) for cell in line.strip("| ").split(" | ")] for line in markdown.splitlines()
    )
    body = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows)
    return f"<table><tr><th>{'</th><th>'.join(head)}</th></tr>{body}</table>"
