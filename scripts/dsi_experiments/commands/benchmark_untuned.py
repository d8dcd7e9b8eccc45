"""`dsi benchmark-untuned`: what an index loses without queries, by what chooses its weights.

For each collection, nDCG@10 on test with weights by the defaults, by the cloze test of `dsi.index`, and fitted to
pseudo-queries (extractive, and with --query-model those that a model writes), to sentences that were taken out of documents,
and to dev queries, or where there are none to the other test queries (five parts; an oracle). What is measured already is not
measured again.
The indexes are those that `dsi benchmark-world` leaves.
"""

import dataclasses
import random
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dsi
from dsi.commands.arguments import parser
from dsi.commands.libraries import load_libraries
from dsi.commands.main import run_command
from dsi.commands.values import output_folder

if TYPE_CHECKING:
    from datasets import Dataset

    from dsi.docids.data.collection import Collection
    from dsi.docids.types import Qrels
    from dsi.measuring.runs import IndexRuns
    from dsi.store.retriever import Retriever
    from dsi.store.snapshot import Snapshot

    Test = tuple[Retriever, Collection]
    """An index, and the collection whose test queries it has to answer."""
    Pseudo = tuple[dict[str, str], Qrels]
    """Texts of pseudo-queries, and the document of each."""

DEFAULTS, CLOZE, EXTRACTIVE, WRITTEN, SENTENCES, DEV, ORACLE = (
    "defaults", "cloze", "extractive", "written by a model", "sentences", "dev queries", "test queries in five parts",
)  # fmt: skip
TEACHERS = (DEFAULTS, CLOZE, EXTRACTIVE, WRITTEN, SENTENCES, DEV, ORACLE)
MEASURE = "nDCG@10"
_MOST = 300
"""Test queries that are searched by each teacher's weights."""
_ASKED = 200
"""Documents whose pseudo-queries choose weights."""
_FOLDS = 5


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("benchmark-untuned", __doc__)
    command_line.add_argument("collections", type=Path, nargs="+", metavar="DIR", help="BEIR folders with test queries")
    command_line.add_argument(
        "--indexes", type=Path, required=True, metavar="FOLDER", help="their indexes without training, NAME each"
    )
    command_line.add_argument(
        "--output", type=output_folder, required=True, metavar="OUT", help="results, NAME.json each"
    )
    command_line.add_argument(
        "--query-model", default="", metavar="MODEL", help="a model that writes pseudo-queries, Hub name or folder"
    )
    command_line.add_argument("--device", help="of the encoder and of that model")
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Measure each collection, print the table, and write it beside the results."""
    arguments = build_parser().parse_args(argv)
    load_libraries(training=True)
    from dsi.docids.files.reading import read_json
    from dsi.docids.files.storage import write_json, write_text

    arguments.output.mkdir(parents=True, exist_ok=True)
    for folder in arguments.collections:
        name = folder.resolve().name
        path = arguments.output / f"{name}.json"
        if not path.exists():
            written = path.with_suffix(".queries.jsonl") if arguments.query_model else None
            record = measure(folder, arguments.indexes / name, arguments.device, arguments.query_model, written)
            write_json(path, record)
    records = {path.stem: read_json(path) for path in sorted(arguments.output.glob("*.json"))}
    table = teachers_table(records)
    write_text(arguments.output / "untuned.md", table + "\n")
    print(table)


def measure(
    folder: Path,
    index: Path,
    device: str | None,
    query_model: str = "",
    written: Path | None = None,
) -> dict[str, Any]:
    """Return the results of one collection; `written` is the file of what `query_model` writes."""
    from dsi.measuring.provenance import provenance
    from dsi.store.retriever import Retriever

    collection = dsi.read_collection(folder)
    retriever = dsi.load(index, device=device)
    config = dsi.Config().search
    retriever = Retriever(dataclasses.replace(retriever.snapshot, search_config=config, configured=config))
    test = _sentences(retriever)
    pseudo = {EXTRACTIVE: _extractive(collection)}
    if written:
        pseudo[WRITTEN] = _written(collection, query_model, written, device)
    teachers = _teach(retriever, _sampled(collection, _MOST), test, pseudo)
    return {"documents": len(collection.documents), **provenance(), "teachers": teachers}


def _sampled(collection: "Collection", most: int) -> "Collection":
    """Return the collection with at most `most` test queries."""
    test = collection.qrels["test"]
    kept = random.Random(0).sample(sorted(test), min(most, len(test)))
    qrels = {**collection.qrels, "test": {query_id: test[query_id] for query_id in kept}}
    return dataclasses.replace(collection, qrels=qrels)


def _sentences(retriever: "Retriever") -> "Test":
    """Return the index without some sentences of its documents, and the documents with these sentences as test queries."""
    from datasets import Dataset

    from dsi.docids.words.bm25 import BM25
    from dsi.measuring.cloze import find_holes

    index = retriever.snapshot
    assert isinstance(index.lexical, BM25)
    documents = Dataset(index.documents.table)
    holes = list(find_holes(index.encoder, documents, index.lexical.analyzer, seed=1))  # the cloze has 0
    records = index.documents.records([hole.row for hole in holes])
    without = copy(retriever)
    without.add([{**record, "text": hole.text} for record, hole in zip(records, holes, strict=True)], replace=True)
    queries = {f"sentence-{number}": hole.sentence for number, hole in enumerate(holes)}
    return without, _judged(index, queries, [record["doc_id"] for record in records])


def _judged(index: "Snapshot", queries: Mapping[str, str], doc_ids: Sequence[str]) -> "Collection":
    """Return the documents of an index with test queries, each of which has one document to find."""
    qrels = {query_id: {doc_id: 1.0} for query_id, doc_id in zip(queries, doc_ids, strict=True)}
    return dsi.Collection.from_records(index.documents.table, queries=queries, qrels={"test": qrels})


def _teach(
    retriever: "Retriever", collection: "Collection", test: "Test", pseudo: "Mapping[str, Pseudo]"
) -> dict[str, Any]:
    """Return {teacher: what it chose, nDCG@10, the difference to the cloze and half of its 95 % interval}."""
    from dsi.measuring.runs import IndexRuns

    runs = IndexRuns(collection, retriever)
    chosen: dict[str, dict[str, Any]] = {}
    values: dict[str, dict[str, float]] = {}
    for teacher, choice in _choices(retriever, collection, test, pseudo).items():
        chosen[teacher] = choice
        values[teacher] = _values(runs, collection.qrels["test"], **choice)
    if not collection.qrels["dev"]:
        chosen[ORACLE], values[ORACLE] = _by_parts(runs, retriever, collection)
    return {
        teacher: {"chosen": chosen[teacher], MEASURE: _points(own.values())[0]}
        | dict(zip(("beside", "interval"), _points(own[one] - values[CLOZE][one] for one in own), strict=True))
        for teacher, own in values.items()
    }


def _choices(
    retriever: "Retriever", collection: "Collection", test: "Test", pseudo: "Mapping[str, Pseudo]"
) -> dict[str, dict[str, Any]]:
    """Return {teacher: the settings of search that it chose}, of all but the oracle."""
    from dsi.measuring.cloze import cloze_test
    from dsi.measuring.tuning import choose_weights

    config = retriever.search_config
    choices: dict[str, dict[str, Any]] = {DEFAULTS: {}, CLOZE: {}}
    if cloze := cloze_test(retriever, collection):
        choices[CLOZE] = {
            "lexical_weight": cloze.weight,
            "token_weight": config.token_weight * cloze.knows_language,
        }
    for kind, (queries, qrels) in pseudo.items():
        choices[kind] = choose_weights(retriever.snapshot, retriever.encode_queries(queries), qrels, config)
    index, sentences = test
    encoded = index.encode_queries(sentences.query_texts("test"))
    choices[SENTENCES] = choose_weights(index.snapshot, encoded, sentences.qrels["test"], config)
    if dev := collection.qrels["dev"]:
        encoded = retriever.encode_queries(collection.query_texts("dev"))
        choices[DEV] = choose_weights(retriever.snapshot, encoded, dev, config, identical=collection.identical)
    return choices


def _extractive(collection: "Collection") -> "Pseudo":
    """Return an extractive pseudo-query of each of some documents."""
    from dsi.generator.pseudo_queries import extractive_queries

    rng = random.Random(0)
    found = {own["doc_id"]: extractive_queries(own["title"], own["text"], 1, rng) for own in _some(collection)}
    return _asked("extractive", found)


def _written(collection: "Collection", model: str, path: Path, device: str | None) -> "Pseudo":
    """Return a query of each of the same documents that a model writes, in a file that a killed run goes on with."""
    from dsi.config import PseudoQueriesConfig
    from dsi.generator.pseudo_queries import generate_queries, read_queries_file

    config = PseudoQueriesConfig(method=model, per_document=1)
    generate_queries(_some(collection), config, path, device=device)
    return _asked("written", dict(read_queries_file(path)))


def _some(collection: "Collection") -> "Dataset":
    """Return the documents whose pseudo-queries choose weights."""
    documents = collection.documents
    return documents.select(random.Random(0).sample(range(len(documents)), min(_ASKED, len(documents))))


def _asked(kind: str, queries: Mapping[str, Sequence[str]]) -> "Pseudo":
    """Return the first query of each document, and the judgements that it is from there."""
    found = {doc_id: own[0] for doc_id, own in queries.items() if own}
    texts = {f"{kind}-{doc_id}": text for doc_id, text in found.items()}
    return texts, {f"{kind}-{doc_id}": {doc_id: 1.0} for doc_id in found}


def _by_parts(
    runs: "IndexRuns", retriever: "Retriever", collection: "Collection"
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the mean settings that judged test queries choose for the others, and the values of these."""
    from dsi.measuring.tuning import choose_weights

    test, identical = collection.qrels["test"], collection.identical
    order = random.Random(0).sample(sorted(test), len(test))
    chosen: list[dict[str, Any]] = []
    values: dict[str, float] = {}
    for part in range(_FOLDS):
        own = order[part::_FOLDS]
        others = {query_id: judged for query_id, judged in test.items() if query_id not in own}
        encoded = retriever.encode_queries({query_id: collection.queries[query_id] for query_id in others})
        chosen.append(choose_weights(retriever.snapshot, encoded, others, retriever.search_config, identical=identical))
        found = _values(runs, test, **chosen[-1])
        values |= {query_id: found[query_id] for query_id in own}
    return {name: sum(one[name] for one in chosen) / _FOLDS for name in chosen[0]}, values


def _values(runs: "IndexRuns", qrels: "Qrels", **settings: Any) -> dict[str, float]:
    from dsi.eval.measures import evaluate

    return evaluate(runs.run("test", 10, **settings), qrels, [MEASURE])[MEASURE]


def _points(values: Any) -> tuple[float, float]:
    """Return the mean in points, and half of its 95 % interval."""
    import numpy as np

    values = 100 * np.array(list(values))
    return round(float(values.mean()), 2), round(float(1.96 * values.std() / max(1, len(values)) ** 0.5), 2)


def teachers_table(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return nDCG@10 by teacher, beside the cloze, as Markdown."""
    from dsi.eval.tables import markdown_table

    rows = []
    for name, record in records.items():
        own = record.get("teachers", {})
        cells = [_cell(own[teacher], teacher) if teacher in own else "" for teacher in TEACHERS]
        rows.append([name, *cells])
    return markdown_table(["collection", *TEACHERS], rows)


def _cell(own: Mapping[str, Any], teacher: str) -> str:
    weights = ", ".join(
        f"{own['chosen'][name]:.2f}" for name in ("lexical_weight", "token_weight") if name in own["chosen"]
    )
    shown = f"{own[MEASURE]:.1f}" + (f" ({weights})" if weights else "")
    return shown if teacher == CLOZE else f"{shown} {own['beside']:+.1f} ± {own['interval']:.1f}"


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
