"""`dsi benchmark-identifiers`: constraints that let a model write identifiers only, beside each other.

`dsi.tries.Trie`, `prefix_allowed_tokens_fn` over nested dictionaries, and those of xgrammar, llguidance and outlines-core that
are installed: seconds to build, MB, microseconds a step (mask of the logits, and the next token) for batches of several sizes.
Each runs in a process of its own on one thread; one that takes too long or too much memory is left out with the reason.
"""

import argparse
from collections.abc import Sequence

from dsi.commands.arguments import parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import count, output_file


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table; write JSON where asked."""
    arguments = build_parser().parse_args(argv)
    load_libraries(training=True)
    from dsi.docids.data.collection import read_collection
    from dsi.docids.files.storage import write_json
    from dsi.measuring.provenance import provenance
    from dsi_experiments.benchmarks.identifiers import SYSTEMS, made_up_titles, measure

    names = arguments.systems or list(SYSTEMS)
    if unknown := [name for name in names if name not in SYSTEMS]:
        raise ValueError(f"--systems must be of {', '.join(SYSTEMS)}, got {unknown[0]!r}.")
    collections = [(f"{size:,} made up", made_up_titles(size)) for size in arguments.titles]
    if arguments.data:
        own = list(dict.fromkeys(read_collection(arguments.data).documents["title"]))
        collections.append((f"{len(own):,} of {arguments.data}", own))
    rows = []
    print(f"{'titles':24} {'system':26} {'build s':>8} {'MB':>8} {'refused':>8}  us/step of {arguments.rows} rows")
    for titles, texts in collections:
        for name in names:
            row = measure(name, arguments.tokenizer, texts, arguments.rows, arguments.rounds, arguments.limit)
            rows.append({"titles": titles, "system": name, **row})
            times = " ".join(f"{row.get(f'us_{size}', 0):10}" for size in arguments.rows)
            numbers = " ".join(f"{row.get(key, 0):8}" for key in ("seconds", "mb", "refused"))
            print(f"{titles:24} {name:26} {row.get('problem') or f'{numbers}  {times}'}", flush=True)
    if arguments.results:
        write_json(arguments.results, {**provenance(), "rows": rows})


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("benchmark-identifiers", __doc__)
    command_line.add_argument(
        "--tokenizer", required=True, metavar="DIR", help="of a language model, with bytes as letters"
    )
    command_line.add_argument("--titles", nargs="*", type=count, default=[10_000, 1_000_000], help="made-up ones")
    command_line.add_argument("--data", metavar="DIR", help="a collection, whose titles are measured too")
    command_line.add_argument("--systems", nargs="+", metavar="NAME", help="only these")
    command_line.add_argument("--rows", nargs="+", type=count, default=[1, 10, 64], help="of a batch")
    command_line.add_argument("--rounds", type=count, default=9, help="identifiers that each row writes")
    command_line.add_argument("--limit", type=count, default=600, help="seconds that each may take")
    command_line.add_argument("--results", type=output_file, help="write the table as JSON")
    return command_line
