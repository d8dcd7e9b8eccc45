"""`dsi benchmark-constraint`: the docid constraint of `generate`, transformers' own against ours, milliseconds a step.

`prefix_allowed_tokens_fn` asks a trie of nested dictionaries for every beam; `DocidLogitsProcessor` looks all beams up at once.
Both get the same random docids, prefixes of every length and scores over the vocabulary of T5, and must give the same scores.
Measurements alternate, and medians are reported.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import count, output_file

if TYPE_CHECKING:
    from torch import Tensor

    from dsi.docids.tree import DocidTree

_VOCABULARY = 32_128
"""Tokens of the published T5 checkpoints."""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table; write JSON where asked."""
    arguments = _parse(argv)
    load_libraries()
    from dsi.docids.files.storage import write_json
    from dsi.measuring.provenance import provenance

    print("ms/step  documents  queries  beams  prefix_allowed_tokens_fn     ours    ratio  identical")
    rows = []
    for documents in arguments.documents:
        for row in _measure(documents, arguments):
            rows.append(row)
            print(
                f"         {documents:9}  {row['queries']:7}  {row['beams']:5}"
                f"  {row['prefix_fn_ms']:24.2f} {row['ours_ms']:8.2f}  {row['ratio']:6.1f}x"
                f"  {'yes' if row['identical'] else 'NO'}",
                flush=True,
            )
    if arguments.results:
        write_json(arguments.results, {**provenance(), "rows": rows})


def _measure(documents: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each number of queries."""
    import numpy as np
    import torch
    from transformers.generation import PrefixConstrainedLogitsProcessor

    from dsi.docids.clustering import DocidsConfig, build_tree
    from dsi.integrations.transformers import DocidLogitsProcessor
    from dsi_experiments.benchmarks.timing import alternate

    vectors = np.random.default_rng(0).normal(size=(documents, 8)).astype(np.float32)
    tree = build_tree(vectors, DocidsConfig(method="random", max_leaf_size=10))
    end = tree.vocab_size
    levels = zip(tree.token_offsets.tolist(), tree.fan_out, strict=True)
    ours = DocidLogitsProcessor.from_tree(tree, [range(first, first + size) for first, size in levels], end)
    theirs = PrefixConstrainedLogitsProcessor(partial(_allowed_tokens, _nested_trie(tree, end), end), 1)
    rows = []
    for queries in arguments.queries:
        prefixes = _prefixes(tree, queries * arguments.beams, end)
        scores = torch.randn(len(prefixes[0]), _VOCABULARY)
        steps = [partial(_all_steps, processor, prefixes, scores) for processor in (theirs, ours)]
        (slow, fast), _ = alternate(steps, arguments.rounds)
        rows.append(
            {
                "documents": documents,
                "queries": queries,
                "beams": arguments.beams,
                "steps": len(prefixes),
                "prefix_fn_ms": round(1000 * slow / len(prefixes), 3),
                "ours_ms": round(1000 * fast / len(prefixes), 3),
                "ratio": round(slow / fast, 1),
                "identical": all(torch.equal(theirs(own, scores), ours(own, scores)) for own in prefixes),
            }
        )
    return rows


def _nested_trie(tree: "DocidTree", end: int) -> dict[int, Any]:
    """Return docid tokens, and the end token, as nested dictionaries."""
    import numpy as np

    trie: dict[int, Any] = {}
    for row in tree.paths(np.arange(tree.num_places))[1]:
        node = trie
        for token in (*(int(tree.token_offsets[level] + digit) for level, digit in enumerate(row) if digit >= 0), end):
            node = node.setdefault(token, {})
    return trie


def _allowed_tokens(trie: dict[int, Any], end: int, _: int, prefix: "Tensor") -> list[int]:
    """Return the tokens that may follow a prefix, which begins with the start token."""
    node = trie
    for token in prefix.tolist()[1:]:
        node = node.get(token, {})
    return list(node) or [end]


def _prefixes(tree: "DocidTree", count: int, end: int) -> "list[Tensor]":
    """Return what `count` beams, of random documents, have written before each step of a search."""
    import numpy as np
    import torch

    digits = tree.paths(np.random.default_rng(1).integers(tree.num_places, size=count))[1]
    written = np.pad(np.where(digits < 0, -1, digits + tree.token_offsets), ((0, 0), (1, 1)), constant_values=-1)
    written[np.arange(count), 1 + (digits >= 0).sum(axis=1)] = end
    written[written < 0] = 0  # the start token, and the padding after the end
    return [torch.from_numpy(written[:, :length]).long() for length in range(1, tree.depth + 2)]


def _all_steps(processor: Any, prefixes: "list[Tensor]", scores: "Tensor") -> None:
    for own in prefixes:
        processor(own, scores)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    command_line = parser("benchmark-constraint", __doc__)
    command_line.add_argument("--documents", nargs="+", type=count, default=[10_000, 100_000], help="in the tree")
    command_line.add_argument("--queries", nargs="+", type=count, default=[1, 8, 64], help="a call")
    command_line.add_argument("--beams", type=count, default=10, help="a query")
    command_line.add_argument("--rounds", type=count, default=7, help="alternations")
    command_line.add_argument("--results", type=output_file, help="write the table as JSON")
    return command_line.parse_args(argv)
