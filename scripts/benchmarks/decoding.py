"""`dsi benchmark-decoding`: our search against `generate` of transformers with a trie callback, in one run.

All use the same random model, queries and beam, the decoder alone, and include the encoder. generate runs in float32, ours in
float32 and in bfloat16. Measurements alternate, and medians are reported. The floor is the time of the multiplications alone,
at the rate that this machine reaches on a large float32 matrix product.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel

from contrastive.inference import PackedLinear, for_inference
from docids.clustering import DocidsConfig, build_tree
from docids.storage import write_json
from docids.tree import DocidTree
from dsi.generator.model import DocidGenerator
from dsi.generator.reference import T5_VOCAB_SIZE, GenerateBaseline
from dsi.provenance import provenance
from dsi.search.beam import TreeSearcher
from dsi.search.decoder import FastDecoder
from dsi.search.request import ScoredQueries, SearchConfig, SearchRequest
from scripts.arguments import parser, quiet_libraries
from scripts.benchmarks.timing import alternate
from scripts.main import run_command

Search = Callable[[], tuple[Tensor, Tensor]]
SHAPES = {
    "t5-small": {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    "t5-base": {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
}


@dataclass(frozen=True)
class Measurement:
    """One row: milliseconds a query, ratios to generate, and whether our float32 answers are those of generate."""

    shape: str
    documents: int
    batch: int
    beam_width: int
    generate_ms: float
    ours_ms: float
    ratio: float
    bfloat16_ms: float
    bfloat16_ratio: float
    floor_ms: float
    identical: bool


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table; write JSON where asked."""
    arguments = _parse(argv)
    quiet_libraries()
    rate = matmul_rate()
    print(f"float32 matrix product: {rate / 1e9:.0f} GFLOP/s on {torch.get_num_threads()} threads")
    print("ms/query  documents  batch   generate     ours  ratio  bfloat16  ratio    floor  identical")
    rows = []
    for shape in arguments.shapes:
        for documents in arguments.documents:
            for measurement in measure(shape, documents, arguments, rate):
                rows.append(asdict(measurement))
                m = measurement
                print(
                    f"{m.shape:9} {m.documents:9}  {m.batch:5}  {m.generate_ms:9.1f} {m.ours_ms:8.1f}  {m.ratio:4.1f}x"
                    f"  {m.bfloat16_ms:8.1f}  {m.bfloat16_ratio:4.1f}x {m.floor_ms:8.1f}  {'yes' if m.identical else 'NO'}",
                    flush=True,
                )
    if arguments.results:
        write_json(arguments.results, {**provenance(), "matmul_gflops": round(rate / 1e9), "rows": rows})


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    given = parser("benchmark-decoding", __doc__)
    given.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=list(SHAPES))
    given.add_argument("--documents", nargs="+", type=int, default=[10_000, 100_000])
    given.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    given.add_argument("--beam-width", type=int, default=10)
    given.add_argument("--query-tokens", type=int, default=16)
    given.add_argument(
        "--rounds", type=int, default=5, help="alternations at batch 1; fewer at larger batches, at least 2"
    )
    given.add_argument("--results", type=Path, help="write the table as JSON")
    return given.parse_args(argv)


def measure(shape: str, documents: int, arguments: argparse.Namespace, rate: float) -> list[Measurement]:
    """A row for each batch size: a random model over a complete tree of random docids.

    Args:
        shape: of encoder and decoder, a key of `SHAPES`.
        documents: in the tree.
        arguments: of the command.
        rate: FLOP/s of this machine, for the floor.
    """
    torch.manual_seed(0)
    settings = SHAPES[shape]
    encoder = T5EncoderModel(T5Config(**settings, vocab_size=T5_VOCAB_SIZE)).eval()
    tree = build_tree(np.zeros((documents, 8), dtype=np.float32), DocidsConfig(method="random"))
    config = T5Config(
        **settings, vocab_size=tree.vocab_size, fan_out=tree.fan_out, docids_fingerprint=tree.fingerprint,
        is_decoder=True, is_encoder_decoder=False, use_cache=False,
    )  # fmt: skip
    generator = DocidGenerator(config).eval()
    # Logits of size 3, as a trained model has; smaller ones give near-ties that rounding decides.
    nn.init.normal_(generator.head.weight, std=3 * settings["d_model"] ** -0.5)
    baseline = GenerateBaseline(generator, tree)
    request = SearchRequest(arguments.beam_width, SearchConfig(alpha=1.0, beta=0, beam_width=arguments.beam_width))
    dtypes = (torch.float32, torch.bfloat16)
    encoders = {dtype: for_inference(encoder, dtype) for dtype in dtypes}
    searchers = {dtype: TreeSearcher(tree, FastDecoder(generator, dtype), torch.device("cpu")) for dtype in dtypes}
    rows = []
    for batch in arguments.batches:
        tokens = torch.randint(2, 32_000, (batch, arguments.query_tokens))
        mask = torch.ones_like(tokens, dtype=torch.bool)

        def states(dtype: torch.dtype, tokens: Tensor = tokens) -> Tensor:
            with torch.no_grad():
                return encoders[dtype](tokens).last_hidden_state

        def ours(dtype: torch.dtype, mask: Tensor = mask) -> tuple[Tensor, Tensor]:
            result = searchers[dtype].search(ScoredQueries(states(dtype), mask, None), request)
            return result.positions, result.scores

        def generate(tokens: Tensor = tokens, mask: Tensor = mask) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                token_states = encoder(tokens).last_hidden_state
            return baseline.search(token_states, mask, arguments.beam_width, arguments.beam_width)

        rounds = max(2, arguments.rounds // (1 + batch // 8))
        functions: list[Search] = [generate, partial(ours, torch.float32), partial(ours, torch.bfloat16)]
        seconds, results = alternate(functions, rounds)
        to_ms = 1000 / batch
        rows.append(
            Measurement(
                shape,
                documents,
                batch,
                arguments.beam_width,
                round(seconds[0] * to_ms, 2),
                round(seconds[1] * to_ms, 2),
                round(seconds[0] / seconds[1], 2),
                round(seconds[2] * to_ms, 2),
                round(seconds[0] / seconds[2], 2),
                round(flops(settings, tree, batch, arguments) / rate * to_ms, 2),
                _identical(*results[:2]),
            )
        )
    return rows


def _identical(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    """True if documents and order are the same and scores within 1e-4; documents closer than that may swap places."""
    if not torch.allclose(a[1], b[1], atol=1e-4, rtol=0):
        return False
    swapped = a[0] != b[0]
    gaps = (a[1][:, :, None] - a[1][:, None, :]).abs() + torch.eye(a[1].shape[1]) * 9
    return bool((gaps.min(dim=2).values[swapped] < 1e-4).all())


def matmul_rate(size: int = 1536, rounds: int = 50) -> float:
    """FLOP/s of a large float32 matrix product, plain or packed: the best of many, since other load slows most of them."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for multiply in (partial(torch.mm, a, b), partial(PackedLinear(b), a)):
        multiply()
        for _ in range(rounds):
            started = time.perf_counter()
            multiply()
            best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def flops(settings: dict[str, int], tree: DocidTree, batch: int, arguments: argparse.Namespace) -> float:
    """Multiplications and additions of all weight matrices: encoder, cross keys and values, a position per beam and level."""
    width, inner, tokens = settings["d_model"], 64 * settings["num_heads"], arguments.query_tokens
    feed_forward = 2 * width * settings["d_ff"]
    encoder = tokens * (4 * width * inner + feed_forward)
    cross = tokens * 2 * width * inner
    positions = sum(min(arguments.beam_width, level.stop - level.start) for level in tree.levels)
    decoder = positions * (6 * width * inner + feed_forward)
    return 2.0 * batch * settings["num_layers"] * (encoder + cross + decoder)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
