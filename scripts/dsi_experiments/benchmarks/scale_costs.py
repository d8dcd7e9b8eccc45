"""What one index of random vectors costs to load and to search, and what ways to constrain decoding cost.

Measured by `dsi_experiments.commands.benchmark_scale`, in a fresh process.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from dsi.docids.tree import DocidTree
from dsi.generator.config import CE, GeneratorConfig, ObjectiveConfig
from dsi.generator.model import DocidGenerator
from dsi.generator.tied import TiedGenerator
from dsi.search.beam import BeamSearch
from dsi.search.decoder import FastDecoder
from dsi.search.engine import QueryBatch
from dsi.search.generate import TiedIndex
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.results import SearchResult
from dsi_experiments.benchmarks.index_faiss import set_for
from dsi_experiments.benchmarks.memory import resident_mib
from dsi_experiments.benchmarks.timing import alternate

FLAT = "flat (faiss)"
BATCH, ANSWERS, BEAM, STATES, WIDTH = 8, 10, 10, 16, 384
DICTIONARY_LIMIT = 1_000_000
"""No trie of dictionaries is built for more documents: it needs kilobytes a document."""

TIED = {"generate": SearchConfig(), "exact": SearchConfig(method="exact")}
"""Searches with tied tokens."""
DIGITS = {
    "digits: decoder alone": SearchConfig(alpha=1.0, beta=0.0, beam_width=BEAM),
    "digits: paper": SearchConfig(fusion="paper", alpha=0.5, beam_width=BEAM),
    "digits: bound": SearchConfig(fusion="bound", alpha=0.5, beam_width=BEAM),
}
"""Searches with (level, digit) tokens."""


def search_costs(folder: Path, rounds: int) -> dict[str, Any]:
    """Load time, resident memory and milliseconds a query of an index on disk, and the cost of constraints."""
    before, started = resident_mib(), time.perf_counter()
    tree = DocidTree.load(folder / "docids.safetensors")
    load_seconds = time.perf_counter() - started
    tied, digits = _engines(tree)
    loaded = resident_mib()
    rng = torch.Generator().manual_seed(0)
    states, mask = torch.randn(BATCH, STATES, WIDTH, generator=rng), torch.ones(BATCH, STATES, dtype=torch.bool)
    queries = torch.nn.functional.normalize(torch.randn(BATCH, tree.embeddings.shape[1], generator=rng))
    set_for(BATCH)
    flat = faiss.IndexFlatIP(tree.embeddings.shape[1])
    flat.add(np.ascontiguousarray(tree.embeddings[:]))

    batch = QueryBatch(torch.arange(BATCH), states, mask, queries, [""] * BATCH)

    def search(engine: TiedIndex | BeamSearch, config: SearchConfig) -> Callable[[], SearchResult]:
        request = SearchRequest(ANSWERS, config)
        return lambda: engine.methods[config.method].retrieve(batch, request)

    functions: dict[str, Callable[[], Any]] = {name: search(tied, config) for name, config in TIED.items()}
    functions |= {name: search(digits, config) for name, config in DIGITS.items()}
    functions[FLAT] = lambda: flat.search(queries.numpy(), ANSWERS)
    seconds, results = alternate(list(functions.values()), rounds)
    read = {name: float(result.read.mean()) for name, result in zip(TIED, results, strict=False)}
    return {
        "load seconds": round(load_seconds, 3),
        "resident MiB loaded": round(loaded - before),
        "resident MiB searched": round(resident_mib() - before),
        "ms a query": {name: round(1000 * s / BATCH, 3) for name, s in zip(functions, seconds, strict=True)},
        "vectors read": {name: round(mean, 1) for name, mean in read.items()},
        "constraints": constraint_costs(tree, digits, states, mask, rounds),
    }


def _engines(tree: DocidTree) -> tuple[TiedIndex, BeamSearch]:
    """Return what searches a tree with tied tokens, without a decoder, and with (level, digit) tokens, with a small one."""
    config = GeneratorConfig()
    tied = TiedGenerator.create(config, tree, WIDTH, ObjectiveConfig()).eval()
    digits = DocidGenerator.create(GeneratorConfig(docid_tokens="digits", num_layers=2), tree, WIDTH, CE).eval()
    return TiedIndex(tree, tied, None), BeamSearch(tree, FastDecoder(digits), torch.device("cpu"))


def constraint_costs(
    tree: DocidTree, search: BeamSearch, states: torch.Tensor, mask: torch.Tensor, rounds: int
) -> dict[str, dict[str, float]]:
    """{way: microseconds a prefix, bytes a document} of finding the digits that may follow the prefixes of one search."""
    kept = search.kept_nodes(states, mask, BEAM)
    nodes = kept[(kept >= 0) & (kept < tree.num_inner)]
    prefixes = [tree.node_digits(int(node)) for node in nodes]
    fan_out = max(tree.fan_out)
    digits = torch.arange(fan_out)

    def ours() -> torch.Tensor:
        return digits < search.dense.num_children[nodes][:, None]

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
