"""`dsi benchmark-scale`: time, memory and bytes as a collection grows, with synthetic embeddings and random weights.

For each size, the tree is built and written in one process, mapped and searched in a fresh one. Searches are timed alternating,
with batches of eight queries and beam and answers ten. The decoder alone and "paper" fusion look at the children of a beam, so
they grow with the depth of the tree; "bound" fusion scores every document exactly first, as flat search does. The usual ways to
constrain decoding, a trie of nested dictionaries and a sorted array searched by bisection, are timed on the same prefixes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from docids.clustering import DocidsConfig, build_tree
from docids.storage import write_json, write_text
from docids.tree import DocidTree
from dsi.generator.config import GeneratorConfig
from dsi.generator.model import DocidGenerator
from dsi.provenance import provenance
from dsi.search.beam import TreeSearcher
from dsi.search.beams import LevelTrace
from dsi.search.decoder import FastDecoder
from dsi.search.request import ScoredQueries, SearchConfig, SearchRequest
from eval.figures import lines_figure
from eval.tables import markdown_table
from scripts.arguments import parser, quiet_libraries
from scripts.benchmarks.docids import clustered_points
from scripts.benchmarks.memory import resident_mib
from scripts.benchmarks.timing import alternate
from scripts.main import run_command

BATCH, BEAM, STATES, WIDTH = 8, 10, 16, 384
DICTIONARY_LIMIT = 1_000_000
"""No trie of dictionaries is built for more documents: it needs kilobytes a document."""

SEARCHES = {
    "decoder alone": SearchRequest(BEAM, SearchConfig(alpha=1.0, beta=0.0, beam_width=BEAM)),
    "paper": SearchRequest(BEAM, SearchConfig(fusion="paper", alpha=0.5, beam_width=BEAM)),
    "bound": SearchRequest(BEAM, SearchConfig(fusion="bound", alpha=0.5, beam_width=BEAM)),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every size, write JSON, table and picture after each."""
    given = parser("benchmark-scale", __doc__)
    given.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    given.add_argument("--dim", type=int, default=64, help="of the embeddings")
    given.add_argument("--rounds", type=int, default=10, help="of the alternating measurements")
    given.add_argument("--output", type=Path, default=Path("scale"), metavar="DIR")
    given.add_argument("--search", type=Path, help=argparse.SUPPRESS)  # what the fresh process does
    arguments = given.parse_args(argv)
    quiet_libraries()
    if arguments.search:
        print(json.dumps(search_costs(arguments.search, arguments.rounds)))
        return
    rows: list[dict[str, Any]] = []
    for size in sorted(arguments.sizes):
        rows.append(measure(size, arguments.dim, arguments.rounds))
        fits = {name: growth(rows, name) for name in (*SEARCHES, "flat (faiss)")} if len(rows) > 1 else {}
        record = {**provenance(), "rows": rows, "exponents": fits}
        write_json(arguments.output / "scale.json", record)
        text = table(rows, fits)
        write_text(arguments.output / "scale.md", text + "\n")
        _pictures(rows, arguments.output)
    print(text)


def measure(size: int, dim: int, rounds: int) -> dict[str, Any]:
    """The figures of one size: builds and writes here, loads and searches in a fresh process."""
    points = clustered_points(size, dim, topics=max(10, size // 500))
    started = time.perf_counter()
    tree = build_tree(points, DocidsConfig(), progress=True)
    build_seconds = time.perf_counter() - started
    structure = ("first_child", "num_children", "doc_start", "doc_end", "doc_rows", "trained")
    with tempfile.TemporaryDirectory() as folder:
        tree.save(Path(folder) / "docids.safetensors")
        command = [sys.executable, "-m", "scripts.benchmarks.scale", "--search", folder, "--rounds", str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"Searching {size} documents failed: {done.stderr.strip().splitlines()[-1]}")
        costs: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        whole = (Path(folder) / "docids.safetensors").stat().st_size
    return {
        "documents": size,
        "inner nodes": tree.num_inner,
        "depth": tree.depth,
        "build seconds": round(build_seconds, 1),
        "trie bytes a document": round(sum(getattr(tree, name).nbytes for name in structure) / size, 2),
        "bytes a document with vectors": round(whole / size, 1),
        **costs,
    }


def search_costs(folder: Path, rounds: int) -> dict[str, Any]:
    """Load time, resident memory and milliseconds a query of an index on disk, and the cost of constraints."""
    before, started = resident_mib(), time.perf_counter()
    tree = DocidTree.load(folder / "docids.safetensors")
    load_seconds = time.perf_counter() - started
    config = GeneratorConfig(decoder="", num_layers=2, num_heads=6)
    searcher = TreeSearcher(tree, FastDecoder(DocidGenerator.create(config, tree, WIDTH).eval()), torch.device("cpu"))
    loaded = resident_mib()
    rng = torch.Generator().manual_seed(0)
    states, mask = torch.randn(BATCH, STATES, WIDTH, generator=rng), torch.ones(BATCH, STATES, dtype=torch.bool)
    queries = torch.nn.functional.normalize(torch.randn(BATCH, tree.embeddings.shape[1], generator=rng))
    flat = faiss.IndexFlatIP(tree.embeddings.shape[1])
    flat.add(np.ascontiguousarray(tree.embeddings))

    def search(request: SearchRequest) -> Callable[[], Any]:
        return lambda: searcher.search(
            ScoredQueries(states, mask, searcher.node_scores(queries, request.config)), request
        )

    functions = [search(request) for request in SEARCHES.values()]
    seconds, _ = alternate([*functions, lambda: flat.search(queries.numpy(), BEAM)], rounds)
    names = [*SEARCHES, "flat (faiss)"]
    return {
        "load seconds": round(load_seconds, 3),
        "resident MiB loaded": round(loaded - before),
        "resident MiB searched": round(resident_mib() - before),
        "ms a query": {name: round(1000 * s / BATCH, 3) for name, s in zip(names, seconds, strict=True)},
        "constraints": constraint_costs(tree, searcher, states, mask, rounds),
    }


def constraint_costs(
    tree: DocidTree, searcher: TreeSearcher, states: torch.Tensor, mask: torch.Tensor, rounds: int
) -> dict[str, dict[str, float]]:
    """{way: microseconds a prefix, bytes a document} of finding the digits that may follow the prefixes of one search."""
    trace: list[LevelTrace] = []
    searcher.search(ScoredQueries(states, mask, None), SEARCHES["decoder alone"], trace)
    nodes = torch.cat(
        [level.nodes[level.kept & (level.nodes < tree.num_inner) & (level.nodes >= 0)] for level in trace]
    )
    prefixes = [tree.node_digits(int(node)) for node in nodes]
    fan_out = max(tree.fan_out)
    digits = torch.arange(fan_out)

    def ours() -> torch.Tensor:
        return digits < searcher.num_children[nodes][:, None]

    keys = _sorted_keys(tree)

    def bisection() -> torch.Tensor:
        allowed = torch.zeros(len(prefixes), fan_out, dtype=torch.bool)
        for row, prefix in enumerate(prefixes):
            allowed[row, _following(keys, prefix)] = True
        return allowed

    ways: dict[str, tuple[Callable[[], torch.Tensor], float]] = {
        "ours": (ours, float(tree.first_child.nbytes + tree.num_children.nbytes + tree.doc_rows.nbytes)),
        "sorted array": (bisection, float(keys.nbytes)),
    }
    if tree.num_documents <= DICTIONARY_LIMIT:
        memory = resident_mib()
        trie = _dictionaries(tree)
        memory = (resident_mib() - memory) * 2**20

        def nested() -> torch.Tensor:
            allowed = torch.zeros(len(prefixes), fan_out, dtype=torch.bool)
            for row, prefix in enumerate(prefixes):
                node = trie
                for digit in prefix:
                    node = node[digit]
                allowed[row, list(node)] = True
            return allowed

        ways["nested dictionaries"] = (nested, memory)
    seconds, found = alternate([way for way, _ in ways.values()], rounds)
    if not all(torch.equal(found[0], other) for other in found):
        raise ValueError("The ways to constrain decoding disagree: a bug of this benchmark.")
    return {
        name: {
            "microseconds a prefix": round(1e6 * s / len(prefixes), 3),
            "bytes a document": round(bytes_ / tree.num_documents, 1),
        }
        for (name, (_, bytes_)), s in zip(ways.items(), seconds, strict=True)
    }


def _sorted_keys(tree: DocidTree) -> NDArray[np.bytes_]:
    """Every docid as a string of bytes, sorted: digit d is byte d + 1, and byte 0, which numpy strips, is past the end."""
    digits = (tree.paths(np.arange(tree.num_documents))[1] + 1).astype(np.uint8)
    return np.sort(np.ascontiguousarray(digits).view(f"S{tree.depth}")[:, 0])


def _following(keys: NDArray[np.bytes_], prefix: Sequence[int]) -> list[int]:
    """The digits that may follow a prefix, each found by bisection after the one before."""
    start, place = bytes(digit + 1 for digit in prefix), len(prefix)
    low, high = np.searchsorted(keys, np.array([start, start + b"\xff"], dtype=keys.dtype))
    found = []
    while low < high:
        byte = keys[low][place]
        found.append(byte - 1)
        low += np.searchsorted(keys[low:high], np.array(start + bytes([byte + 1]), dtype=keys.dtype))
    return found


def _dictionaries(tree: DocidTree) -> dict[int, Any]:
    """All docids as nested dictionaries by digit."""
    trie: dict[int, Any] = {}
    for row in tree.paths(np.arange(tree.num_documents))[1].tolist():
        node = trie
        for digit in row:
            if digit >= 0:
                node = node.setdefault(digit, {})
    return trie


def growth(rows: Sequence[dict[str, Any]], name: str) -> float:
    """The exponent e of milliseconds = c * documents^e, by least squares over the logarithms."""
    sizes = np.log([row["documents"] for row in rows])
    return round(float(np.polyfit(sizes, np.log([row["ms a query"][name] for row in rows]), 1)[0]), 3)


def table(rows: Sequence[dict[str, Any]], fits: dict[str, float]) -> str:
    """Markdown: a column a size."""
    simple = ("depth", "build seconds", "trie bytes a document", "bytes a document with vectors", "load seconds",
              "resident MiB loaded", "resident MiB searched")  # fmt: skip
    lines = [[name, *(f"{row[name]:,g}" for row in rows)] for name in simple]
    for name in rows[0]["ms a query"]:
        grows = f" (grows with documents^{fits[name]:g})" if fits else ""
        lines.append([f"ms a query, {name}{grows}", *(str(row["ms a query"][name]) for row in rows)])
    for name in rows[0]["constraints"]:
        cells = [row["constraints"].get(name) for row in rows]
        shown = [f"{c['microseconds a prefix']:g} / {c['bytes a document']:g}" if c else "—" for c in cells]
        lines.append([f"constraints by {name}: µs a prefix / bytes a document", *shown])
    return markdown_table(["documents", *(format(row["documents"], ",") for row in rows)], lines)


def _pictures(rows: Sequence[dict[str, Any]], output: Path) -> None:
    series = {name: {row["documents"]: row["ms a query"][name] for row in rows} for name in rows[0]["ms a query"]}
    series["build, µs a document"] = {row["documents"]: 1e6 * row["build seconds"] / row["documents"] for row in rows}
    lines_figure(
        series, "documents", "milliseconds a query", "Growth with the collection", output / "scale", log_y=True
    )


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
