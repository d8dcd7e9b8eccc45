"""`dsi benchmark-decoding`: our search against `generate` of transformers with a trie callback, in one run.

All use the same random model, queries and beam, the decoder alone, and include the encoder. generate runs in float32, ours in
float32 and in bfloat16. Measurements alternate, and medians are reported. The floor is the time of the multiplications alone,
at the rate that this machine reaches on a large float32 matrix product.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

from dsi.commands.arguments import parser
from dsi.commands.libraries import load_libraries
from dsi.commands.main import run_command
from dsi.commands.values import count, output_file

SHAPES = {
    "t5-small": {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    "t5-base": {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table; write JSON where asked."""
    arguments = _parse(argv)
    load_libraries()
    import torch

    from dsi.contrastive.devices import check_device
    from dsi.docids.files.storage import write_json
    from dsi.measuring.provenance import provenance
    from dsi_experiments.benchmarks.decoding_systems import matmul_rate, measure

    check_device(arguments.device)
    rate = matmul_rate(arguments.device)
    where = f"{torch.get_num_threads()} threads" if arguments.device == "cpu" else arguments.device
    print(f"float32 matrix product: {rate / 1e9:.0f} GFLOP/s on {where}")
    print("ms/query  documents  batch   generate     ours  ratio  bfloat16  ratio    floor  identical")
    rows = []
    for shape in arguments.shapes:
        for documents in arguments.documents:
            for measurement in measure(shape, SHAPES[shape], documents, arguments, rate):
                rows.append(asdict(measurement))
                m = measurement
                print(
                    f"{m.shape:9} {m.documents:9}  {m.batch:5}  {m.generate_ms:9.1f} {m.ours_ms:8.1f}  {m.ratio:4.1f}x"
                    f"  {m.bfloat16_ms:8.1f}  {m.bfloat16_ratio:4.1f}x {m.floor_ms:8.1f}"
                    f"  {'yes' if m.identical else 'NO'}",
                    flush=True,
                )
    if arguments.results:
        write_json(arguments.results, {**provenance(), "matmul_gflops": round(rate / 1e9), "rows": rows})


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    command_line = parser("benchmark-decoding", __doc__)
    command_line.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=list(SHAPES), help="of the models")
    command_line.add_argument("--documents", nargs="+", type=count, default=[10_000, 100_000], help="in the tree")
    command_line.add_argument("--batches", nargs="+", type=count, default=[1, 8, 64], help="queries a call")
    command_line.add_argument("--beam-width", type=count, default=10, help="of all searches")
    command_line.add_argument("--query-tokens", type=count, default=16, help="of a query")
    command_line.add_argument(
        "--rounds", type=count, default=5, help="alternations at batch 1; fewer at larger batches, at least 2"
    )
    command_line.add_argument("--device", default="cpu", help="of all models: cpu or cuda (default: cpu)")
    command_line.add_argument("--results", type=output_file, help="write the table as JSON")
    return command_line.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
