"""`dsi benchmark-decoding`: our search against transformers' generate with a trie callback, in one run.

Same random model, same queries, same beam, decoder only; all include the encoder. generate runs in float32, ours in float32
and in bfloat16. Measurements alternate, so that other load on the machine meets all of them; medians are reported. The floor
is what the multiplications alone would take at the rate this machine reaches on a large float32 matrix product.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from contrastive.inference import PackedLinear, for_inference
from docids.clustering import DocidsConfig, build_tree
from docids.storage import write_json
from docids.tree import DocidTree
from dsi.generator.model import DocidGenerator
from dsi.search.beam import TreeSearcher
from dsi.search.decoder import FastDecoder
from dsi.search.settings import SearchConfig
from scripts.arguments import quiet_libraries
from scripts.hardware import provenance
from scripts.main import run_command

T = TypeVar("T")
Search = Callable[[], tuple[Tensor, Tensor]]
T5_VOCAB_SIZE = 32_128
SHAPES = {
    "t5-small": {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    "t5-base": {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
}


class GenerateBaseline:
    """The same generator inside transformers: `generate` with `prefix_allowed_tokens_fn` over a nested-dictionary trie.

    The docid tokens are rows of T5's output layer, which keeps its size, as in a T5 that was taught to write docids.

    Args:
        generator: whose weights it shares.
        tree: the docids; a docid is its tokens and an end-of-sequence token.
    """

    def __init__(self, generator: DocidGenerator, tree: DocidTree) -> None:
        config = generator.config.to_dict()
        self.end = tree.vocab_size
        vocab_size = max(T5_VOCAB_SIZE, self.end + 1)
        config.update(vocab_size=vocab_size, is_encoder_decoder=True, is_decoder=False, use_cache=True)
        config.update(num_decoder_layers=config["num_layers"], num_layers=1, pad_token_id=0, eos_token_id=self.end)
        config.update(decoder_start_token_id=0)
        for name in ("fan_out", "docids_fingerprint", "architectures", "dtype"):
            config.pop(name, None)
        self.model = T5ForConditionalGeneration(T5Config(**config)).eval()
        self.model.config.num_layers = generator.config.num_layers  # the cache counts these; the encoder is never run
        self.model.config.scale_decoder_outputs = False  # T5 scales for tied embeddings; ours are not tied
        self.model.decoder.block = generator.decoder.block
        self.model.decoder.final_layer_norm = generator.decoder.final_layer_norm
        other_rows = (0, 0, 0, vocab_size - tree.vocab_size)
        self.model.decoder.embed_tokens = nn.Embedding.from_pretrained(
            nn.functional.pad(generator.decoder.embed_tokens.weight.detach(), other_rows)
        )
        self.model.lm_head.weight = nn.Parameter(nn.functional.pad(generator.head.weight.detach(), other_rows))
        self.depth = tree.depth
        self._trie, self._positions = _nested_trie(tree, self.end)

    @torch.no_grad()
    def search(self, token_states: Tensor, states_mask: Tensor, k: int, beam_width: int) -> tuple[Tensor, Tensor]:
        """Docid positions and scores, [batch, k] each, of `transformers`' beam search over valid docids."""
        output = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=token_states),
            attention_mask=states_mask.long(),
            num_beams=beam_width,
            num_return_sequences=k,
            max_new_tokens=self.depth + 1,
            length_penalty=0.0,
            early_stopping=False,
            do_sample=False,
            renormalize_logits=True,  # softmax over the valid children, as the generator is trained
            prefix_allowed_tokens_fn=self._allowed,
            return_dict_in_generate=True,
            output_scores=True,
        )
        positions = [
            self._positions[tuple(t for t in row if t not in (0, self.end))] for row in output.sequences.tolist()
        ]
        shape = (len(token_states), k)
        return torch.tensor(positions).view(shape), output.sequences_scores.view(shape)

    def _allowed(self, _: int, prefix: Tensor) -> list[int]:
        node = self._trie
        for token in prefix.tolist()[1:]:
            node = node.get(token, {})
        return list(node) or [self.end]


def _nested_trie(tree: DocidTree, end: int) -> tuple[dict[int, dict], dict[tuple[int, ...], int]]:  # type: ignore[type-arg]
    trie: dict[int, dict] = {}  # type: ignore[type-arg]
    positions = {}
    digits = tree.paths(np.arange(tree.num_documents))[1]
    for position, row in enumerate(digits):
        tokens = tuple(int(tree.token_offsets[level] + digit) for level, digit in enumerate(row) if digit >= 0)
        positions[tokens] = position
        node = trie
        for token in (*tokens, end):
            node = node.setdefault(token, {})
    return trie, positions


@dataclass(frozen=True)
class Measurement:
    """One row: milliseconds a query, ratios to generate, and whether generate's and our float32 answers agree."""

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
    parser = argparse.ArgumentParser(
        prog="dsi benchmark-decoding", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=list(SHAPES))
    parser.add_argument("--documents", nargs="+", type=int, default=[10_000, 100_000])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--beam-width", type=int, default=10)
    parser.add_argument("--query-tokens", type=int, default=16)
    parser.add_argument(
        "--rounds", type=int, default=5, help="alternations at batch 1; fewer at larger batches, at least 2"
    )
    parser.add_argument("--results", type=Path, help="write the table as JSON")
    return parser.parse_args(argv)


def measure(shape: str, documents: int, arguments: argparse.Namespace, rate: float) -> list[Measurement]:
    """One row a batch size, for a random model over a complete tree of random docids."""
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
    search = SearchConfig(alpha=1.0, beta=0, beam_width=arguments.beam_width)
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
            result = searchers[dtype].search(states(dtype), mask, None, arguments.beam_width, search)
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


def alternate(functions: Sequence[Callable[[], T]], rounds: int) -> tuple[list[float], list[T]]:
    """Median seconds of each function over alternating calls, after one call to warm up, and their results."""
    results = [function() for function in functions]
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, own in zip(functions, times, strict=True):
            started = time.perf_counter()
            function()
            own.append(time.perf_counter() - started)
    return [statistics.median(own) for own in times], results


def _identical(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    """Same documents in the same order, scores within 1e-4; neighbours closer than that may have changed places."""
    if not torch.allclose(a[1], b[1], atol=1e-4, rtol=0):
        return False
    swapped = a[0] != b[0]
    gaps = (a[1][:, :, None] - a[1][:, None, :]).abs() + torch.eye(a[1].shape[1]) * 9
    return bool((gaps.min(dim=2).values[swapped] < 1e-4).all())


def matmul_rate(size: int = 1536, rounds: int = 50) -> float:
    """FLOP/s of a large float32 matrix product, the best of many (other load makes most of them slower), plain or packed."""
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
    """Multiplications and additions of the weight matrices: encoder, cross keys and values, one position a beam and level."""
    width, inner, tokens = settings["d_model"], 64 * settings["num_heads"], arguments.query_tokens
    feed_forward = 2 * width * settings["d_ff"]
    encoder = tokens * (4 * width * inner + feed_forward)
    cross = tokens * 2 * width * inner
    positions = sum(min(arguments.beam_width, level.stop - level.start) for level in tree.levels)
    decoder = positions * (6 * width * inner + feed_forward)
    return 2.0 * batch * settings["num_layers"] * (encoder + cross + decoder)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
