"""Rows of the tables that commands write."""


def table_rows(text: str) -> list[list[str]]:
    """The cells of the lines of Markdown tables."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
