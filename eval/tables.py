"""The one writer of tables, in Markdown. Knows nothing of what they show."""

from collections.abc import Iterable, Sequence


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose columns line up in plain text too.

    >>> print(markdown_table(["system", "Hit@1"], [["BM25", "51.60"], ["dense", "61.25"]]))
    | system | Hit@1 |
    | ------ | ----- |
    | BM25   | 51.60 |
    | dense  | 61.25 |
    """
    lines = [columns, *rows]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines
    )
