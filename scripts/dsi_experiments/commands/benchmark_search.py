"""`dsi benchmark-search`: an index against what it would be replaced by, encoding the query and flat search with faiss.

Real queries of a collection, texts in and ten documents out, in one run; measurements alternate, each with the next queries,
and medians of the processor's time are reported, all threads together. The dense side is the index's own encoder as
sentence-transformers runs it, and faiss over all embeddings.
`dsi benchmark-index` times the parts of a search apart.
"""

import statistics
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import add_collection, add_index, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import count, output_folder
from dsi_experiments.benchmarks.timing import alternate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dsi.contrastive.config import EncoderConfig
    from dsi.contrastive.encoder import Encoder
    from dsi.store.retriever import Retriever

K = 10
_LARGEST = 64
"""Queries of a pass of the encoder, at most, when answers are compared."""
FLAT = "encoder, faiss flat"


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("benchmark-search", __doc__)
    add_index(command_line)
    add_collection(command_line, "the collection it was made of")
    command_line.add_argument(
        "--batches", type=count, nargs="+", default=[1, 8, 64], metavar="N", help="queries a call"
    )
    command_line.add_argument("--rounds", type=count, default=20, help="of the alternating measurements")
    command_line.add_argument(
        "--output", type=output_folder, metavar="DIR", help="write search.json and search.md there"
    )
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every batch size; print the table, write it and its JSON where asked."""
    arguments = build_parser().parse_args(argv)
    load_libraries(training=True)
    from dsi.config import dev_cut, read_config
    from dsi.docids.data.collection import read_collection
    from dsi_experiments.benchmarks.index_faiss import set_for
    from dsi_experiments.benchmarks.index_measure import Timed
    from dsi_experiments.report import save_report

    config = read_config(arguments.run / "config.toml")
    queries = list(read_collection(arguments.data, **dev_cut(config)).query_texts("test").values())
    if wrong := [batch for batch in arguments.batches if not 1 <= batch <= len(queries)]:
        raise ValueError(f"--batches must be from 1 to the {len(queries)} test queries, got {wrong[0]}.")
    systems = searches(arguments.run, config.encoder)
    rows = []
    for batch in arguments.batches:
        set_for(batch)
        timed = {name: Timed(_slices(search, queries), len(queries), batch) for name, search in systems.items()}
        alternate(list(timed.values()), arguments.rounds)
        medians = {name: statistics.median(own.seconds[1:]) for name, own in timed.items()}
        rows.append({name: round(1000 * seconds / batch, 3) for name, seconds in medians.items()})
    table = _table(rows, arguments.batches)
    print(table)
    if arguments.output:
        cells = [{"batch": batch, "ms a query": row} for batch, row in zip(arguments.batches, rows, strict=True)]
        record = {"collection": arguments.data.name, "rounds": arguments.rounds, "rows": cells}
        save_report(arguments.output, "search", table, record)


def searches(run: Path, encoder_config: "EncoderConfig") -> dict[str, Callable[[list[str]], Any]]:
    """{name: search}: flat search first, then the index in float32 and bfloat16, as it searches and in other ways."""
    import faiss
    import numpy as np

    from dsi.contrastive.encoder import Encoder
    from dsi.measuring.runs import generator_only
    from dsi.store.retriever import load

    retriever = load(run)
    rounded = load(run, dtype="bfloat16")
    encoder = Encoder.load(encoder_config, run / "encoder", str(retriever.snapshot.encoder.device))
    flat = faiss.IndexFlatIP(encoder.embedding_dim)
    flat.add(np.ascontiguousarray(retriever.snapshot.tree.embeddings[:]))
    found = {
        FLAT: lambda texts: flat.search(_theirs(encoder, texts), K),
        "the index": _search(retriever),
        "the index, bfloat16": _search(rounded),
        "generate, beam 10": _search(retriever, method="generate", beam_width=10),
        "generate, no words": _search(retriever, method="generate", lexical_weight=0.0),
        "walk alone": _search(retriever, **generator_only(retriever)),
    }
    if not retriever.snapshot.engine.has_generator:  # otherwise the decoder would run over every node
        found["exact"] = _search(retriever, method="exact")
    return found


def _theirs(encoder: "Encoder", texts: list[str]) -> "NDArray[np.float32]":
    """Return the embeddings [n, dim] of queries as sentence-transformers makes them."""
    prompt, model = encoder.model.prompts["query"], encoder.model
    vectors: NDArray[np.float32] = model.encode(texts, prompt=prompt, batch_size=_LARGEST, show_progress_bar=False)
    return vectors


def _search(retriever: "Retriever", **changes: Any) -> Callable[[list[str]], Any]:
    """Return what searches with some settings of `[search]` changed, encoding included."""
    from dsi.search.request import SearchRequest

    index, request = retriever.snapshot, SearchRequest(K, replace(retriever.search_config, **changes))
    return lambda texts: index.hits_of(
        index.engine.search(retriever.encode_queries(texts, batch_size=min(len(texts), _LARGEST)), request)
    )


def _slices(search: Callable[[list[str]], Any], queries: list[str]) -> Callable[[slice], Any]:
    return lambda own: search(queries[own])


def _table(rows: Sequence[dict[str, float]], batches: Sequence[int]) -> str:
    from dsi.eval.tables import markdown_table

    def cell(row: dict[str, float], name: str) -> str:
        return f"{row[name]:.1f}" + (f" ({row[name] / row[FLAT]:.2f}x)" if name != FLAT else "")

    heads = ["ms a query", *(f"batch {batch}" for batch in batches)]
    return markdown_table(heads, [[name, *(cell(row, name) for row in rows)] for name in rows[0]])
