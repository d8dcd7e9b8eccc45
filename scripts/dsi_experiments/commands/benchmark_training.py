"""`dsi benchmark-training`: a step of our decoder training against the same step with transformers' T5 decoder, in one run.

Both use the same random model without dropout, the same encoder states and the same loss; forward and backward, no optimizer.
Steps alternate, and medians are reported. Theirs projects the states of every token to keys and values; ours does not
(`dsi.generator.model`).
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import parser
from dsi.commands.libraries import load_libraries
from dsi.commands.main import run_command
from dsi.commands.values import count, output_file

if TYPE_CHECKING:
    from torch import Tensor

SHAPES: dict[str, tuple[int, int, int]] = {
    "small": (2, 384, 128),
    "t5-base": (12, 768, 16),
}
"""{name: (layers of the decoder, width of the states, batch size)}."""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table; write JSON where asked."""
    command_line = parser("benchmark-training", __doc__)
    command_line.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=list(SHAPES), help="of the models")
    command_line.add_argument("--tokens", nargs="+", type=count, default=[16, 128], help="of a text")
    command_line.add_argument("--documents", type=count, default=10_000, help="in the tree")
    command_line.add_argument("--rounds", type=count, default=5, help="of the alternating measurements")
    command_line.add_argument("--device", default="cpu", help="of the model: cpu or cuda (default: cpu)")
    command_line.add_argument("--results", type=output_file, help="write the table as JSON")
    arguments = command_line.parse_args(argv)
    load_libraries()
    from dsi.contrastive.devices import check_device
    from dsi.docids.files.storage import write_json
    from dsi.measuring.provenance import provenance

    check_device(arguments.device)
    print("ms/step   tokens  bfloat16  transformers     ours  ratio  same loss")
    rows = []
    for shape in arguments.shapes:
        for tokens in arguments.tokens:
            for bf16 in (False, True):
                row = measure(shape, tokens, bf16, arguments.documents, arguments.rounds, arguments.device)
                rows.append(row)
                print(
                    f"{shape:8} {tokens:7}  {bf16!s:>8}  {row['transformers_ms']:12.0f} {row['ours_ms']:8.0f}"
                    f"  {row['ratio']:4.1f}x  {'yes' if row['same_loss'] else 'NO'}",
                    flush=True,
                )
    if arguments.results:
        write_json(arguments.results, {**provenance(), "rows": rows})


def measure(shape: str, tokens: int, bf16: bool, documents: int, rounds: int, device: str) -> dict[str, Any]:
    """One row: milliseconds of a step of both, their ratio, and whether the losses agree within one percent."""
    import numpy as np
    import torch

    from dsi.docids.clustering import DocidsConfig, build_tree
    from dsi.generator.config import CE, GeneratorConfig
    from dsi.generator.model import DocidGenerator
    from dsi.generator.objectives import CrossEntropy, Task
    from dsi_experiments.benchmarks.reference import transformers_loss
    from dsi_experiments.benchmarks.timing import alternate

    torch.manual_seed(0)
    layers, width, batch = SHAPES[shape]
    config = GeneratorConfig(docid_tokens="digits", num_layers=layers)
    tree = build_tree(np.zeros((documents, 8), dtype=np.float32), DocidsConfig(method="random", max_leaf_size=10))
    generator = DocidGenerator.create(config, tree, width, CE).to(device).eval()  # without dropout
    states, mask = torch.randn(batch, tokens, width).to(device), torch.ones(batch, tokens).bool().to(device)
    positions = torch.randint(documents, (batch,)).to(device)
    objective = CrossEntropy(Task(generator, tree, torch.device(device)))

    def ours() -> "Tensor":
        batch = {"token_states": states, "states_mask": mask, "relevant": positions[:, None]}
        return objective.loss(generator, batch, 0.0)

    def theirs() -> "Tensor":
        return transformers_loss(generator, tree, states, mask, positions)

    def step(forward: "Callable[[], Tensor]") -> Callable[[], float]:
        def run() -> float:
            with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
                value = forward()
            value.backward()  # type: ignore[no-untyped-call]
            generator.zero_grad()
            return value.item()

        return run

    seconds, losses = alternate([step(theirs), step(ours)], rounds)
    return {
        "shape": shape,
        "batch": batch,
        "documents": documents,
        "tokens": tokens,
        "bfloat16": bf16,
        "transformers_ms": round(1000 * seconds[0], 1),
        "ours_ms": round(1000 * seconds[1], 1),
        "ratio": round(seconds[0] / seconds[1], 2),
        "same_loss": abs(losses[0] - losses[1]) < 0.01 * losses[0],
    }


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
