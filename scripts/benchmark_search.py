"""`dsi benchmark-search`: an index against what it would be replaced by, encoding the query and flat search with faiss.

Real queries of a collection, texts in and ten documents out, in one run; measurements alternate, so that other load on the
machine meets all of them, and medians are reported. The dense side is the index's own encoder as sentence-transformers runs
it, and faiss over all embeddings.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from contrastive.encoder import Encoder, EncoderConfig
from docids.collection import read_collection
from docids.storage import write_json, write_text
from dsi.config import read_config
from dsi.retriever import GenerativeRetriever
from eval.report import markdown_table
from scripts.arguments import quiet_libraries
from scripts.benchmark_decoding import alternate
from scripts.hardware import provenance
from scripts.main import run_command
from scripts.systems import DECODER_ALONE

K = 10
FLAT = "encoder, faiss flat"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every batch size; print the table, write it and its JSON where asked."""
    parser = argparse.ArgumentParser(prog="dsi benchmark-search", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="an index")
    parser.add_argument("--data", type=Path, required=True, help="the collection it was made of")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64], metavar="N", help="queries a call")
    parser.add_argument("--rounds", type=int, default=20, help="of the alternating measurements")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write search.json and search.md there")
    arguments = parser.parse_args(argv)
    quiet_libraries()
    config = read_config(arguments.run / "config.toml")
    queries = list(read_collection(arguments.data, dev_queries=config.dev_queries).query_texts("test").values())
    if wrong := [batch for batch in arguments.batches if not 1 <= batch <= len(queries)]:
        raise ValueError(f"--batches must be from 1 to the {len(queries)} test queries, got {wrong[0]}.")
    systems = searches(arguments.run, config.encoder)
    rows = []
    for batch in arguments.batches:
        seconds, _ = alternate([partial(search, queries[:batch]) for search in systems.values()], arguments.rounds)
        rows.append({name: round(1000 * s / batch, 3) for name, s in zip(systems, seconds, strict=True)})
    table = _table(rows, arguments.batches)
    print(table)
    if arguments.output:
        record = {"collection": arguments.data.name, **provenance(), "rounds": arguments.rounds}
        timed = [{"batch": batch, "ms a query": row} for batch, row in zip(arguments.batches, rows, strict=True)]
        write_json(arguments.output / "search.json", {**record, "rows": timed})
        write_text(arguments.output / "search.md", table + "\n")


def searches(run: Path, encoder_config: EncoderConfig) -> dict[str, Callable[[list[str]], Any]]:
    """{name: search}: flat search first, then the index in float32 and bfloat16, with its own settings and in parts."""
    retriever = GenerativeRetriever.from_pretrained(run)
    rounded = GenerativeRetriever.from_pretrained(run, dtype="bfloat16")
    encoder = Encoder.load(encoder_config, run / "encoder", str(retriever.device))
    flat = faiss.IndexFlatIP(encoder.embedding_dim)
    flat.add(np.ascontiguousarray(retriever.tree.embeddings))
    return {
        FLAT: lambda texts: flat.search(encoder.encode(encoder.query_texts(texts), "query"), K),
        "the index": lambda texts: retriever.search(texts, K),
        "the index, bfloat16": lambda texts: rounded.search(texts, K),
        "beam 10, bfloat16": lambda texts: rounded.search(texts, K, beam_width=K),
        "without BM25": lambda texts: retriever.search(texts, K, lexical_weight=0),
        "decoder alone": lambda texts: retriever.search(texts, K, **DECODER_ALONE),
    }


def _table(rows: Sequence[dict[str, float]], batches: Sequence[int]) -> str:
    def cell(row: dict[str, float], name: str) -> str:
        return f"{row[name]:.1f}" + (f" ({row[name] / row[FLAT]:.2f}x)" if name != FLAT else "")

    heads = ["ms a query", *(f"batch {batch}" for batch in batches)]
    return markdown_table(heads, [[name, *(cell(row, name) for row in rows)] for name in rows[0]])


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
