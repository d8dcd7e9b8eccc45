"""`dsi benchmark-training`: a step of our decoder training against the same step with transformers' T5 decoder, in one run.

Same random model without dropout, same encoder states, same loss, forward and backward, no optimizer. Steps alternate, so that
other load on the machine meets both; medians are reported. Theirs projects the states of every token to keys and values; ours
does not (`dsi.generator.model`).
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from docids.clustering import DocidsConfig, build_tree
from docids.storage import write_json
from docids.tree import DocidTree
from dsi.generator.model import DocidGenerator, GeneratorConfig
from dsi.training.objective import GeneratorLoss
from scripts.arguments import quiet_libraries
from scripts.benchmark_decoding import alternate
from scripts.hardware import provenance
from scripts.main import run_command

CPU = torch.device("cpu")
SHAPES = {
    "small": (GeneratorConfig(decoder="", num_layers=2, num_heads=6, dropout=0.0, batch_size=128), 384),
    "t5-base": (GeneratorConfig(decoder="", num_layers=12, num_heads=12, dropout=0.0, batch_size=16), 768),
}
"""{name: (decoder and batch, width of the states)}."""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table; write JSON where asked."""
    parser = argparse.ArgumentParser(
        prog="dsi benchmark-training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=list(SHAPES))
    parser.add_argument("--tokens", nargs="+", type=int, default=[16, 128], help="of a text")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, help="write the table as JSON")
    arguments = parser.parse_args(argv)
    quiet_libraries()
    print("ms/step   tokens  bfloat16  transformers     ours  ratio  same loss")
    rows = []
    for shape in arguments.shapes:
        for tokens in arguments.tokens:
            for bf16 in (False, True):
                row = measure(shape, tokens, bf16, arguments.documents, arguments.rounds)
                rows.append(row)
                print(
                    f"{shape:8} {tokens:7}  {bf16!s:>8}  {row['transformers_ms']:12.0f} {row['ours_ms']:8.0f}"
                    f"  {row['ratio']:4.1f}x  {'yes' if row['same_loss'] else 'NO'}",
                    flush=True,
                )
    if arguments.results:
        write_json(arguments.results, {**provenance(), "rows": rows})


def measure(shape: str, tokens: int, bf16: bool, documents: int, rounds: int) -> dict[str, Any]:
    """One row: milliseconds of a step of both, their ratio, and whether the losses agree to a percent."""
    torch.manual_seed(0)
    config, width = SHAPES[shape]
    batch = config.batch_size
    tree = build_tree(np.zeros((documents, 8), dtype=np.float32), DocidsConfig(method="random"))
    generator = DocidGenerator.create(config, tree, width)
    states, mask = torch.randn(batch, tokens, width), torch.ones(batch, tokens, dtype=torch.bool)
    positions = torch.randint(documents, (batch,))
    loss = GeneratorLoss(generator, tree, config, CPU)

    def ours() -> Tensor:
        return loss(generator, {"token_states": states, "states_mask": mask}, positions[:, None], {}, 0.0)

    def theirs() -> Tensor:
        return transformers_loss(generator, tree, states, mask, positions)

    def step(forward: Callable[[], Tensor]) -> Callable[[], float]:
        def run() -> float:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
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


def transformers_loss(
    generator: DocidGenerator, tree: DocidTree, states: Tensor, mask: Tensor, positions: Tensor
) -> Tensor:
    """Cross-entropy (nats an instance) of docids by transformers' own decoder stack over the same weights.

    Args:
        generator: whose weights it uses.
        tree: the docids, of any depth.
        states: [batch, length, width] encoder states.
        mask: [batch, length], True at real tokens.
        positions: [batch] docid positions.
    """
    parents, digits = (torch.from_numpy(each).long() for each in tree.paths(positions.numpy()))
    logits = transformers_logits(generator, tree, states, mask, digits)
    children = torch.from_numpy(tree.num_children).long()[parents.clamp(min=0)]
    missing = torch.arange(logits.shape[2]) >= children[:, :, None]
    logits = logits.float().masked_fill(missing, -torch.inf)
    total = cross_entropy(logits.flatten(0, 1), digits.flatten(), ignore_index=-1, reduction="sum")
    return total / len(positions)


def transformers_logits(
    generator: DocidGenerator, tree: DocidTree, states: Tensor, mask: Tensor, digits: Tensor
) -> Tensor:
    """[n, depth, largest fan-out] logits along n sequences of digits, by the same stack; -inf where a level has no such digit.

    Args:
        generator: whose weights it uses.
        tree: the docids.
        states: [n, length, width] encoder states.
        mask: [n, length], True at real tokens.
        digits: [n, depth], -1 past the end.
    """
    offsets = torch.from_numpy(tree.token_offsets).long()
    tokens = pad((offsets + digits.clamp(min=0))[:, :-1], (1, 0))
    attended = {"encoder_hidden_states": states, "encoder_attention_mask": mask.float(), "use_cache": False}
    logits = generator.head(generator.decoder(input_ids=tokens, **attended).last_hidden_state)
    widest = max(tree.fan_out)
    levels = zip(offsets.tolist(), tree.fan_out, strict=True)
    own = [logits[:, level, first : first + size] for level, (first, size) in enumerate(levels)]
    return torch.stack([pad(each, (0, widest - each.shape[1]), value=-torch.inf) for each in own], dim=1)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
