"""The site's pictures that are not results: `PYTHONPATH=. python docs/pictures.py INDEX` writes them into docs/pictures.

* page-light.png, page-dark.png, page-narrow.png: the page of `dsi serve` in Chromium;
* beam.svg: a real search, drawn from `retriever.explain` of the index in INDEX (`make example` makes it);
* taught.svg: another, after the index learned which document a user took for an earlier query;
* targets.svg: a tree of eight documents with the best probability below each node (Zhuo et al. 2020, Figure 1).

With a collection after INDEX it also draws beam-widths.svg, a result: what beams of 5 to 80 find, by what they read.
"""

import io
import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from dsi_experiments.commands.benchmark_walk import BEAMS, walk_rows
from dsi_experiments.figures import lines_figure
from PIL import Image

import dsi
from dsi.measuring.runs import IndexRuns
from dsi.search.explain.explanation import ExplainedNode
from tests.support.browsers import chromium
from tests.support.serving import live

FOLDER = Path(__file__).parent / "pictures"
QUERY = "which plants catch insects"
ASKED, EARLIER = "which plant is in little shop of horrors", ("the plant in little shop of horrors", "venus-flytrap")

KEPT, ANSWER, PRUNED, TEXT, LINE = "#3f51b5", "#c75300", "#757575", "#212121", "#c5cae9"
ROW, COLUMN = 26, 225


@dataclass
class Box:
    """A node of a drawn tree: its text, its colour, the nodes below it."""

    text: str
    colour: str
    children: list["Box"] = field(default_factory=list)


def beam_box(node: ExplainedNode) -> Box:
    """An explained node with what is below it."""
    colour = ANSWER if node.rank else KEPT if node.kept else PRUNED
    what = node.label if node.documents == 1 else f"{node.documents} documents"
    mark = f"#{node.rank} " if node.rank else ""
    digits = ".".join(map(str, node.digits))
    score = "not scored" if node.score is None else f"{node.score:.2f}"
    found = f" (by {' and '.join(node.found_by)})" if node.found_by and "walk" not in node.found_by else ""
    taught = f", {node.parts['memory']:.2f} by memory" if node.parts.get("memory", 0) >= 0.05 else ""
    return Box(f"{mark}{digits} · {what} · {score}{taught}{found}", colour, beam_boxes(node.children))


def beam_boxes(nodes: list[ExplainedNode]) -> list[Box]:
    """The nodes that were kept or lead to an answer, in order of score, then the others in one line."""
    shown = [beam_box(node) for node in nodes if node.kept or node.children]
    others = [node.score for node in nodes if not (node.kept or node.children) and node.score is not None]
    if others:
        shown.append(Box(f"{len(others)} more, best {max(others):.2f}", PRUNED))
    return shown


def tree_svg(root: Box, title: str, column: int = COLUMN) -> str:
    """The tree from left to right, a column a level, as SVG text."""
    parts: list[str] = []
    ends_at = [12 + 8.5 * len(title)]  # where texts end on the right

    def draw(box: Box, depth: int, row: float) -> tuple[float, float]:
        """Draws the box below row `row`; returns its own row and the next free one."""
        free, ends = row, []
        for child in box.children:
            own, free = draw(child, depth + 1, free)
            ends.append(own)
        y = (ends[0] + ends[-1]) / 2 if ends else row
        x = 16 + depth * column
        for end in ends:
            start_x, start_y, end_x, end_y = x + column - 34, 44 + y * ROW, x + column - 6, 44 + end * ROW
            middle = (start_x + end_x) / 2
            parts.append(
                f'<path d="M{start_x} {start_y:.0f}C{middle} {start_y:.0f} {middle} {end_y:.0f} {end_x} {end_y:.0f}" '
                f'fill="none" stroke="{LINE}" stroke-width="1.5"/>'
            )
        weight = ' font-weight="600"' if box.colour == ANSWER else ""
        parts.append(f'<circle cx="{x}" cy="{44 + y * ROW:.0f}" r="4" fill="{box.colour}"/>')
        fill = PRUNED if box.colour == PRUNED else TEXT
        ends_at.append(x + 9 + (7.6 if weight else 7) * len(box.text))
        parts.append(f'<text x="{x + 9}" y="{48 + y * ROW:.0f}" fill="{fill}"{weight}>{escape(box.text)}</text>')
        return y, max(free, row + 1)

    _, rows = draw(root, 0, 0.0)
    width, height = round(max(ends_at)) + 12, 44 + rows * ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
        f'font-family="system-ui, sans-serif" font-size="13">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#ffffff"/>\n'
        f'<text x="12" y="24" fill="{TEXT}" font-size="14" font-weight="600">{escape(title)}</text>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def beam_svg(retriever: dsi.Retriever, query: str, note: str) -> str:
    """One search with a narrow beam, as a tree."""
    explanation = retriever.explain(query, k=3, beam_width=3)
    root = Box(f"{len(retriever)} documents", KEPT, beam_boxes(explanation.roots))
    return tree_svg(root, f"“{query}”{note}")


def taught_svg(retriever: dsi.Retriever) -> str:
    """A search after the index has learned an answer to an earlier query."""
    retriever.learn([EARLIER])
    return beam_svg(retriever, ASKED, f", after a user took Venus flytrap for “{EARLIER[0]}”")


def draw_pages(run: Path) -> None:
    """Draw the page with the answers to the query: light, dark, and as narrow as a phone."""
    looks = {"light": ("light", 1280, 760), "dark": ("dark", 1280, 760), "narrow": ("light", 400, 860)}
    with chromium() as browser, live(run) as server:
        for name, (scheme, width, height) in looks.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(f"{server.url}/?q={QUERY}")
            page.wait_for_selector("#answers mark")
            page.reload()  # the first search takes longer
            page.wait_for_selector("#answers mark")
            page.wait_for_selector("#tree .answer")
            page.wait_for_timeout(500)  # a transition
            shot = Image.open(io.BytesIO(page.screenshot()))
            shot.convert("RGB").quantize(128).save(FOLDER / f"page-{name}.png", optimize=True)


def draw_beam_widths(run: Path, collection: str) -> None:
    """Draw the share of the exact top ten against the vectors read."""
    retriever = dsi.load(run, device="cpu")
    rows = walk_rows(IndexRuns(dsi.read_collection(collection), retriever), "test", BEAMS)
    curve = {float(round(row.read)): row.agree for row in rows if row.name.startswith("beam ")}
    title = "What a search finds, by what it reads"
    lines_figure({"generate": curve}, "vectors read", "share of the exact top ten", title, FOLDER / "beam-widths")


def targets_svg() -> str:
    """Eight documents; the way of a beam of one is orange."""

    def leaf(name: str, value: str, best: bool = False) -> Box:
        return Box(f"{name} · {value}", ANSWER if best else PRUNED)

    left = Box(
        "best below .8",
        PRUNED,
        [
            Box("best below .8", PRUNED, [leaf("d1", ".8"), leaf("d2", ".3")]),
            Box("best below .7", PRUNED, [leaf("d3", ".7"), leaf("d4", ".2")]),
        ],
    )
    right = Box(
        "best below .9",
        ANSWER,
        [
            Box("best below .9", ANSWER, [leaf("d5", ".4"), leaf("d6", ".9", best=True)]),
            Box("best below .5", PRUNED, [leaf("d7", ".5"), leaf("d8", ".4")]),
        ],
    )
    root = Box("best below .9", ANSWER, [left, right])
    return tree_svg(root, "A beam of one, guided by the best document below each node", 170)


def main() -> None:
    """Write the pictures; the beam from the index that the command line names."""
    FOLDER.mkdir(exist_ok=True)
    if len(sys.argv) > 1:
        draw_pages(Path(sys.argv[1]))
        retriever = dsi.load(sys.argv[1], device="cpu")
        beam = beam_svg(retriever, QUERY, ": beam of 3 (blue kept, orange answers)")
        (FOLDER / "beam.svg").write_text(beam, encoding="utf-8")
        (FOLDER / "taught.svg").write_text(taught_svg(retriever), encoding="utf-8")
    if len(sys.argv) > 2:
        draw_beam_widths(Path(sys.argv[1]), sys.argv[2])
    (FOLDER / "targets.svg").write_text(targets_svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
