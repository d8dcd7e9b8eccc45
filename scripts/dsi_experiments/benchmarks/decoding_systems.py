"""The searches that `dsi_experiments.commands.benchmark_decoding` compares, with random models, and their measurement."""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel

from dsi.contrastive.inference import PackedLinear, for_inference
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.tree import DocidTree
from dsi.generator.config import CE, GeneratorConfig
from dsi.generator.model import DocidGenerator
from dsi.search.beam import PathEngine
from dsi.search.decoder import FastDecoder
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi_experiments.benchmarks.reference import T5_VOCAB_SIZE, GenerateBaseline
from dsi_experiments.benchmarks.timing import alternate

Search = Callable[[], tuple[Tensor, Tensor]]
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Measurement:
    """One row: milliseconds a query, ratios, and whether our float32 answers are those of generate.

    `ratio` and `bfloat16_ratio` are the times of generate over ours.
    """

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


class Systems:
    """Random models over a complete tree of random docids, and the searches that are compared.

    Args:
        settings: shape of encoder and decoder.
        documents: in the tree.
        beam_width: of all searches, which return as many documents.
        device: of all models.
    """

    def __init__(self, settings: dict[str, int], documents: int, beam_width: int, device: torch.device) -> None:
        torch.manual_seed(0)
        encoder = T5EncoderModel(T5Config(**settings, vocab_size=T5_VOCAB_SIZE)).to(device).eval()
        vectors = np.random.default_rng(0).normal(size=(documents, settings["d_model"])).astype(np.float32)
        self.tree = tree = build_tree(vectors, DocidsConfig(method="random", max_leaf_size=10))
        config = GeneratorConfig(docid_tokens="digits", num_layers=settings["num_layers"])
        generator = DocidGenerator.create(config, tree, settings["d_model"], CE).eval()
        # Logits of size 3, as a trained model has; smaller ones give near-ties that rounding decides.
        nn.init.normal_(generator.head.weight, std=3 * settings["d_model"] ** -0.5)
        self.encoder, self.baseline = encoder, GenerateBaseline(generator, tree)
        self.baseline.model.to(device)
        generator.to(device)
        self.encoders = {dtype: for_inference(encoder, dtype) for dtype in DTYPES}
        self.engines = {dtype: PathEngine(tree, FastDecoder(generator, dtype)) for dtype in DTYPES}
        self.request = SearchRequest(beam_width, SearchConfig(alpha=1.0, beta=0, beam_width=beam_width))

    def of(self, tokens: Tensor) -> list[Search]:
        """The searches for queries: generate, then ours in both dtypes."""
        return [partial(self._generate, tokens), *(partial(self._ours, tokens, dtype) for dtype in DTYPES)]

    def _ours(self, tokens: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            states = self.encoders[dtype](tokens).last_hidden_state
        mask, texts = torch.ones_like(tokens, dtype=torch.bool), [""] * len(tokens)
        batch = QueryBatch(torch.arange(len(tokens)), states, mask, states[:, 0], texts)
        result = self.engines[dtype].methods["generate"].retrieve(batch, self.request)
        return torch.from_numpy(result.positions), torch.from_numpy(result.scores)

    def _generate(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            states = self.encoder(tokens).last_hidden_state
        k = self.request.k
        return self.baseline.search(states, torch.ones_like(tokens, dtype=torch.bool), k, k)


def measure(
    shape: str, settings: dict[str, int], documents: int, arguments: argparse.Namespace, rate: float
) -> list[Measurement]:
    """A row for each batch size.

    Args:
        shape: name of the shape.
        settings: shape of encoder and decoder.
        documents: in the tree.
        arguments: of the command.
        rate: FLOP/s of this machine, for the floor.
    """
    beam_width, device, rows = arguments.beam_width, torch.device(arguments.device), []
    systems = Systems(settings, documents, beam_width, device)
    for batch in arguments.batches:
        functions = systems.of(torch.randint(2, 32_000, (batch, arguments.query_tokens)).to(device))
        seconds, results = alternate(functions, max(2, arguments.rounds // (1 + batch // 8)))
        generate, ours, bfloat16 = seconds
        to_ms = 1000 / batch
        rows.append(
            Measurement(
                shape,
                documents,
                batch,
                beam_width,
                generate_ms=round(generate * to_ms, 2),
                ours_ms=round(ours * to_ms, 2),
                ratio=round(generate / ours, 2),
                bfloat16_ms=round(bfloat16 * to_ms, 2),
                bfloat16_ratio=round(generate / bfloat16, 2),
                floor_ms=round(flops(settings, systems.tree, batch, arguments) / rate * to_ms, 2),
                identical=_identical(*results[:2]),
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


def matmul_rate(device: str, rounds: int = 50) -> float:
    """FLOP/s of a large float32 matrix product, plain or packed: the best of many, since other load slows most of them."""
    size = 1536 if device == "cpu" else 8192
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    best = float("inf")
    for multiply in (partial(torch.mm, a, b), partial(PackedLinear(b), a)):
        multiply()
        for _ in range(rounds):
            started = time.perf_counter()
            multiply()
            if device != "cpu":
                torch.cuda.synchronize()
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
