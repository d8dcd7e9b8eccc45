"""What README and docs/use print: the outputs below their Python, and the tables of results, compared and written again.

An output is a block of text that follows a block of Python. Trainings on other processors, or on another number of threads,
round differently: figures count as the same within half a percent, or .005, and documents that nearly tie may swap.
"""

import contextlib
import io
import json
import math
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from dsi_experiments.commands.results import readme_table

from dsi.measuring.evaluation import COMPARED, READ, TIME

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "use" / "results.md"
QUALITY = ROOT / "docs" / "understand" / "results.md"
EXAMPLE = ROOT / "results" / "evaluate" / "minipedia" / "example.json"
COLUMNS = (EXAMPLE, *(ROOT / "results" / "evaluate" / name / "default.json" for name in ("squad2k", "nq10k")))
"""The measured columns of the table in QUALITY; RESULTS has the first."""
_BLOCK = re.compile(
    r"^(?P<mark><!-- not run: [^\n]*-->\n)?```python[^\n]*\n(?P<code>.*?)^```\n(\n?```text\n(?P<printed>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_HASH = re.compile(r"#[0-9a-f]{16}\b")
"""Of an earlier query: by a key that each index makes."""
_FIGURE = re.compile(r"\d+\.\d+")
_CELLS = re.compile(r"^\| (?P<row>[^|]+?) +\|(?P<cells>[^\n]*[0-9] / [0-9][^\n]*)\|$", re.MULTILINE)


class Block(NamedTuple):
    """A block of Python: its code, the line before it, whether it runs, and where the output below it stands, if any."""

    code: str
    line: int
    runs: bool
    printed: tuple[int, int] | None


def python_blocks(text: str) -> list[Block]:
    """Return the blocks of Python of a page."""
    return [
        Block(
            found["code"],
            text[: found.start("code")].count("\n"),
            found["mark"] is None,
            found.span("printed") if found["printed"] else None,
        )
        for found in _BLOCK.finditer(text)
    ]


def run_page(page: Path) -> str:
    """Run the Python of a page in the current folder and return the page with the outputs that it printed."""
    text = page.read_text(encoding="utf-8")
    namespace, parts, end = {"__name__": "__main__"}, [], 0
    for block in python_blocks(text):
        assert block.runs or not block.printed, f"{page}: an output of Python that does not run"
        if not block.runs:
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(
                compile("\n" * block.line + block.code, str(page), "exec"), namespace
            )  # tracebacks name the page's lines
        if block.printed:
            parts += [text[end : block.printed[0]], "\n".join(map(str.rstrip, output.getvalue().splitlines())), "\n"]
            end = block.printed[1]
    return "".join([*parts, text[end:]])


def run_notebook(path: Path) -> dict[str, Any]:
    """Run the code of a notebook in the current folder, without Jupyter; return it with the outputs that it printed."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    namespace = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), namespace)
            text = output.getvalue().splitlines(keepends=True)
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
    return notebook


def alike(one: str, other: str) -> bool:
    """True if two outputs have the same lines, but for a tenth, where near ties may swap."""
    pairs = list(zip_longest(one.splitlines(), other.splitlines(), fillvalue=""))
    return 10 * sum(not _same_line(*pair) for pair in pairs) <= len(pairs)


def _same_line(one: str, other: str) -> bool:
    one, other = (_HASH.sub("#", " ".join(text.split())) for text in (one, other))
    figures = zip(map(float, _FIGURE.findall(one)), map(float, _FIGURE.findall(other)), strict=False)
    words = _FIGURE.sub("#", one) == _FIGURE.sub("#", other)
    return words and all(math.isclose(a, b, rel_tol=0.005, abs_tol=0.005) for a, b in figures)


def with_tables(page: Path) -> str:
    """Return a page with the figures of the measured results in its table."""
    text = page.read_text(encoding="utf-8")
    if page == README:
        head = text.index("| ", text.index("## Results"))
        end = text.index("\n\n", head)
        return text[:head] + readme_table(ROOT / "results") + text[end:]
    columns = [json.loads(path.read_text(encoding="utf-8"))["systems"] for path in COLUMNS]

    def line(found: re.Match[str]) -> str:
        name = found["row"].strip("* ")
        if name not in columns[0]:
            return found[0]
        if page == QUALITY:
            cells = [_cell(own[name], ("Hit@1", "Hit@10")) + _read(own[name]) for own in columns]
        else:
            splits = [
                _cell(columns[0][name], ("Hit@1", "Hit@5", "Hit@10"), s) for s in ("Total", "Overlap", "No Overlap")
            ]
            cells = [*splits, *(str(columns[0][name]["settings"].get(cost, "")) for cost in (READ, COMPARED, TIME))]
        widths = map(len, found["cells"].split("|"))
        padded = (f" {cell} ".ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {found['row']}{' ' * (len(found[0].split('|')[1]) - len(found['row']) - 1)}|{'|'.join(padded)}|"

    return _CELLS.sub(line, text)


def _cell(system: dict, measures: tuple[str, ...], split: str = "Total") -> str:
    return " / ".join(f"{system[split][measure]:.2f}" for measure in measures)


def _read(system: dict) -> str:
    read = system["settings"].get(READ)
    return f", {read:,}" if read else ""
