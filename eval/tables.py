"""Tables in Markdown, the one writer of all of them. Knows nothing of what they hold."""

from collections.abc import Iterable, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose columns line up in plain text too.

    >>> print(markdown_table(["system", "Hit@1"], [["BM25", "51.60"], ["dense", "61.25"]]))
    | system | Hit@1 |
    | ------ | ----- |
    | BM25   | 51.60 |
    | dense  | 61.25 |

    Args:
        heads: of the columns; the first is that of the column that names the rows.
        rows: cells, as many as heads.
    """
    lines = [heads, *rows]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines
    )
