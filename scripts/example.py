"""`dsi example`: the whole line on the collection that ships (Minipedia), offline, in minutes on 2 cores.

Trains the encoder with the supervised contrastive loss, builds docids, trains the generator, measures it beside BM25 and
dense search, answers three queries, and says where the index lies.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from contrastive.encoder import EXAMPLE_ENCODER, Encoder, EncoderConfig
from contrastive.training import ContrastiveConfig
from docids.collection import read_collection
from dsi.config import Config
from dsi.generator.model import GeneratorConfig
from dsi.generator.pseudo_queries import QueriesConfig
from dsi.pipeline import TrainingRun
from dsi.retriever import GenerativeRetriever
from dsi.search.settings import SearchConfig
from eval.protocol import overlap_splits, table
from scripts.arguments import quiet_libraries, with_encoder
from scripts.evaluate_index import evaluate_systems, significance_lines
from scripts.main import run_command
from scripts.tuning import tune_index

MINIPEDIA = Path(__file__).parent.parent / "docids" / "minipedia"

QUERIES = (
    "which capitals are on the danube",
    "gas that glows in advertising signs",
    "how do bees tell each other about food",
)

CONFIG = Config(
    queries=QueriesConfig(method="extractive", per_document=6),
    encoder=EncoderConfig(name=EXAMPLE_ENCODER, query_prompt="", document_prompt="", document_length=64),
    contrastive=ContrastiveConfig(temperature=0.05, epochs=1.0, learning_rate=2e-5, bf16=True),
    generator=GeneratorConfig(
        decoder="", num_layers=2, num_heads=6, pseudo_queries=6, epochs=15.0, learning_rate=1e-3, bf16=True
    ),
    search=SearchConfig(ann_temperature=0.05, beam_width=10),
)
"""A small encoder and a shallow decoder; learning rates, temperatures, epochs, beam: chosen on Minipedia's dev queries."""


def main(argv: Sequence[str] | None = None) -> None:
    """Train, measure, search."""
    parser = argparse.ArgumentParser(prog="dsi example", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/example"), metavar="RUN")
    parser.add_argument("--encoder", help="another sentence-transformers model, Hub name or folder")
    parser.add_argument("--device")
    arguments = parser.parse_args(argv)
    quiet_libraries()
    config = with_encoder(CONFIG, arguments.encoder)
    collection = read_collection(MINIPEDIA)
    run = TrainingRun(arguments.output, collection, config, arguments.device)
    run.all_stages()
    started = time.perf_counter()
    tune_index(run.folder, collection, arguments.device)
    run.seconds["tuning"] = time.perf_counter() - started
    retriever = GenerativeRetriever.from_pretrained(run.folder, device=arguments.device)

    started = time.perf_counter()
    untrained = Encoder.load(config.encoder, device=arguments.device)
    results, _ = evaluate_systems(retriever, collection, "test", untrained)
    run.seconds["evaluation"] = time.perf_counter() - started
    splits = overlap_splits(collection.qrels["test"], collection.overlap_documents("test"))
    print(f"\n{table(results, splits)}\n")
    print(significance_lines(results))
    _answer(retriever)
    print(_python_lines(run.folder))
    total = sum(run.seconds.values())
    print(f"\n{', '.join(f'{name} {seconds:.0f} s' for name, seconds in run.seconds.items())}; {total:.0f} s in all")


def _answer(retriever: GenerativeRetriever) -> None:
    for query, hits in zip(QUERIES, retriever.search(list(QUERIES), k=3), strict=True):
        print(f"\n{query}")
        for hit in hits:
            print(
                f"  {hit.rank}. {hit.score:7.3f}  {hit.title}  ({hit.doc_id})  docid {'.'.join(map(str, hit.digits))}"
            )


def _python_lines(folder: Path) -> str:
    return f"""
The index lies in {folder}. From Python:

    from dsi import GenerativeRetriever
    retriever = GenerativeRetriever.from_pretrained("{folder}")
    for hit in retriever.search("{QUERIES[0]}", k=5):
        print(hit.rank, hit.score, hit.doc_id, hit.title, hit.digits)
    print(retriever.explain("{QUERIES[0]}"))"""


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
