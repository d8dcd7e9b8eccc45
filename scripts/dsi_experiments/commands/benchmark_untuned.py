"""`dsi benchmark-untuned`: what an index loses without queries, and whether a known-item test orders systems as judgements do.

For each collection, two tables. Teachers: nDCG@10 on test with weights by the defaults, by the cloze test of `dsi.index`, and
fitted to pseudo-queries (extractive, and with --query-model those that a model writes), to sentences that were taken out of
documents, and to dev queries, or where there are none to the other test queries (five parts; an oracle). Order: Kendall's tau
between known-item tests and judged test queries, over systems within ten points of the best, and between halves of the judged
queries. What is measured already is not measured again.
The indexes are those that `dsi benchmark-world` leaves.
"""

import dataclasses
import logging
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import parser
from dsi.commands.libraries import load_libraries
from dsi.commands.main import run_command
from dsi.commands.values import output_folder

if TYPE_CHECKING:
    from datasets import Dataset

    from dsi.docids.data.collection import Collection
    from dsi.docids.types import Qrels
    from dsi.measuring.runs import IndexRuns
    from dsi.store.retriever import GenerativeRetriever

    Test = tuple[GenerativeRetriever, Collection]
    """An index, and the collection whose test queries it has to answer."""
    Pseudo = tuple[dict[str, str], Qrels]
    """Texts of pseudo-queries, and the document of each."""

logger = logging.getLogger(__name__)

DEFAULTS, CLOZE, EXTRACTIVE, WRITTEN, SENTENCES, DEV, ORACLE = (
    "defaults", "cloze", "extractive", "written by a model", "sentences", "dev queries", "test queries in five parts",
)  # fmt: skip
TEACHERS = (DEFAULTS, CLOZE, EXTRACTIVE, WRITTEN, SENTENCES, DEV, ORACLE)
TITLES, HALVES = "titles", "halves of the judged queries"
KINDS = (SENTENCES, EXTRACTIVE, TITLES)
MEASURE = "nDCG@10"
_TABLES = "teachers", "order"
_MOST = 300
"""Test queries that are searched by each teacher's weights."""
_ORDERED, _WITHIN = 200, 10.0
"""Test queries that order systems, and how many points behind the best of them a system may be."""
_FOLDS = 5
_WEIGHTS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.5, 2.5)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure each collection, print the tables, and write them beside the results."""
    command_line = parser("benchmark-untuned", __doc__)
    command_line.add_argument("collections", type=Path, nargs="+", metavar="DIR", help="BEIR folders with test queries")
    command_line.add_argument(
        "--indexes", type=Path, required=True, metavar="FOLDER", help="their indexes without training, NAME each"
    )
    command_line.add_argument(
        "--output", type=output_folder, required=True, metavar="OUT", help="results, NAME.json each"
    )
    command_line.add_argument(
        "--tables", nargs="+", default=list(_TABLES), choices=_TABLES, help="those to measure; order takes longest"
    )
    command_line.add_argument(
        "--query-model", default="", metavar="MODEL", help="a model that writes pseudo-queries, Hub name or folder"
    )
    command_line.add_argument("--device", help="of the encoder and of that model")
    arguments = command_line.parse_args(argv)
    load_libraries()
    from dsi.docids.files.reading import read_json
    from dsi.docids.files.storage import write_json, write_text

    arguments.output.mkdir(parents=True, exist_ok=True)
    for folder in arguments.collections:
        name = folder.resolve().name
        path = arguments.output / f"{name}.json"
        record = read_json(path) if path.exists() else {}
        if missing := [table for table in arguments.tables if table not in record]:
            written = path.with_suffix(".queries.jsonl") if arguments.query_model else None
            record |= measure(
                folder, arguments.indexes / name, missing, arguments.device, arguments.query_model, written
            )
            write_json(path, record)
    records = {path.stem: read_json(path) for path in sorted(arguments.output.glob("*.json"))}
    tables = f"{teachers_table(records)}\n\n{order_table(records)}"
    write_text(arguments.output / "untuned.md", tables + "\n")
    print(tables)


def measure(
    folder: Path,
    index: Path,
    tables: Sequence[str],
    device: str | None,
    query_model: str = "",
    written: Path | None = None,
) -> dict[str, Any]:
    """Return the results of one collection; `written` is the file of what `query_model` writes."""
    import dsi
    from dsi.measuring.provenance import provenance

    collection = dsi.read_collection(folder)
    retriever = dsi.GenerativeRetriever.from_pretrained(index, device=device)
    retriever.search_config = retriever.configured_search = dsi.Config().search
    test = _sentences(retriever)
    found: dict[str, Any] = {"documents": len(collection.documents), **provenance()}
    if "teachers" in tables:
        pseudo = {EXTRACTIVE: _extractive(collection)}
        if written:
            pseudo[WRITTEN] = _written(collection, query_model, written, device)
        found["teachers"] = _teach(retriever, _sampled(collection, _MOST), test, pseudo)
    if "order" in tables:
        found["order"] = _order(retriever, _sampled(collection, _ORDERED), test)
    return found


def _sampled(collection: "Collection", most: int) -> "Collection":
    """Return the collection with at most `most` test queries."""
    test = collection.qrels["test"]
    kept = random.Random(0).sample(sorted(test), min(most, len(test)))
    qrels = {**collection.qrels, "test": {query_id: test[query_id] for query_id in kept}}
    return dataclasses.replace(collection, qrels=qrels)


def _sentences(retriever: "GenerativeRetriever") -> "Test":
    """Return the index without some sentences of its documents, and the documents with these sentences as test queries."""
    from dsi.docids.words.bm25 import BM25
    from dsi.measuring.cloze import find_holes

    index = retriever.snapshot
    assert isinstance(index.lexical, BM25)
    holes = list(find_holes(index.encoder, index.documents.dataset, index.lexical.analyzer, seed=1))  # the cloze has 0
    records = index.documents.records([hole.row for hole in holes])
    index.add([{**record, "text": hole.text} for record, hole in zip(records, holes, strict=True)], replace=True)
    queries = {f"sentence-{number}": hole.sentence for number, hole in enumerate(holes)}
    return index, _judged(index, queries, [record["doc_id"] for record in records])


def _judged(index: "GenerativeRetriever", queries: Mapping[str, str], doc_ids: Sequence[str]) -> "Collection":
    """Return the documents of an index with test queries, each of which has one document to find."""
    import dsi

    qrels = {query_id: {doc_id: 1.0} for query_id, doc_id in zip(queries, doc_ids, strict=True)}
    return dsi.Collection.from_records(index.documents.dataset, queries=queries, qrels={"test": qrels})


# Teachers.


def _teach(
    retriever: "GenerativeRetriever", collection: "Collection", test: "Test", pseudo: "Mapping[str, Pseudo]"
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
    retriever: "GenerativeRetriever", collection: "Collection", test: "Test", pseudo: "Mapping[str, Pseudo]"
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
        choices[kind] = choose_weights(retriever, retriever.encode_queries(queries), qrels, config)
    index, sentences = test
    encoded = index.encode_queries(sentences.query_texts("test"))
    choices[SENTENCES] = choose_weights(index, encoded, sentences.qrels["test"], config)
    if dev := collection.qrels["dev"]:
        encoded = retriever.encode_queries(collection.query_texts("dev"))
        choices[DEV] = choose_weights(retriever, encoded, dev, config, identical=collection.identical)
    return choices


def _extractive(collection: "Collection") -> "Pseudo":
    """Return an extractive pseudo-query of each of some documents."""
    from dsi.generator.pseudo_queries import extractive_queries

    rng = random.Random(0)
    found = {own["doc_id"]: extractive_queries(own["title"], own["text"], 1, rng) for own in _some(collection)}
    return _asked("extractive", found)


def _written(collection: "Collection", model: str, path: Path, device: str | None) -> "Pseudo":
    """Return a query of each of the same documents that a model writes, in a file that a killed run goes on with."""
    from dsi.generator.config import PseudoQueriesConfig
    from dsi.generator.pseudo_queries import generate_queries, read_queries_file

    config = PseudoQueriesConfig(method=model, per_document=1)
    generate_queries(_some(collection), config, path, device=device)
    return _asked("written", dict(read_queries_file(path)))


def _some(collection: "Collection") -> "Dataset":
    """Return the documents whose pseudo-queries choose weights."""
    documents = collection.documents
    return documents.select(random.Random(0).sample(range(len(documents)), min(_ORDERED, len(documents))))


def _asked(kind: str, queries: Mapping[str, Sequence[str]]) -> "Pseudo":
    """Return the first query of each document, and the judgements that it is from there."""
    found = {doc_id: own[0] for doc_id, own in queries.items() if own}
    texts = {f"{kind}-{doc_id}": text for doc_id, text in found.items()}
    return texts, {f"{kind}-{doc_id}": {doc_id: 1.0} for doc_id in found}


def _by_parts(
    runs: "IndexRuns", retriever: "GenerativeRetriever", collection: "Collection"
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
        chosen.append(choose_weights(retriever, encoded, others, retriever.search_config, identical=identical))
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


# Order.


def _order(retriever: "GenerativeRetriever", collection: "Collection", test: "Test") -> dict[str, Any]:
    """Return the systems' means by judgements and by known-item tests, and Kendall's tau over those near the best."""
    from dsi.measuring.runs import IndexRuns

    # 1) by judgements
    values = _system_values(IndexRuns(collection, retriever))
    judged = _means(values)
    near = [name for name, value in judged.items() if value >= max(judged.values()) - _WITHIN]
    record = {"systems": len(near), "judged": judged, HALVES: {"tau": _tau_of_halves(values, near)}}
    # 2) without
    for kind, (index, asked) in _known_items(retriever, collection, test).items():
        known = _means(_system_values(IndexRuns(asked, index)))
        ahead = max(near, key=known.__getitem__)
        lost = round(max(judged.values()) - judged[ahead], 2)
        record[kind] = {"tau": _tau(judged, known, near), "lost": lost, "means": known}
    return record


def _tau(first: Mapping[str, float], second: Mapping[str, float], names: Sequence[str]) -> float:
    from scipy.stats import kendalltau

    return round(float(kendalltau([first[name] for name in names], [second[name] for name in names]).statistic), 3)


def _tau_of_halves(values: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> float:
    """Return Kendall's tau between two halves of the judged queries, averaged over ten choices."""
    queries, taus = sorted(values[names[0]]), []
    for seed in range(10):
        order = random.Random(seed).sample(queries, len(queries))
        first, second = (
            _means({name: {one: values[name][one] for one in order[part::2]} for name in names}) for part in (0, 1)
        )
        taus.append(_tau(first, second, names))
    return round(sum(taus) / len(taus), 3)


def _known_items(retriever: "GenerativeRetriever", collection: "Collection", test: "Test") -> "dict[str, Test]":
    """Return {kind of query: the index and the collection of its test}."""
    from dsi.measuring.known_items import with_queries

    tests = {SENTENCES: test}
    tests[EXTRACTIVE] = retriever, with_queries(retriever, None)
    if titled := _titled(collection):
        index = retriever.snapshot
        index.add([{"doc_id": own["doc_id"], "text": own["text"]} for own in titled], replace=True)
        queries = {f"title-{own['doc_id']}": own["title"] for own in titled}
        tests[TITLES] = index, _judged(index, queries, [own["doc_id"] for own in titled])
    return tests


def _titled(collection: "Collection") -> list[dict[str, Any]]:
    """Return some documents whose title no other has; none if they are fewer than a quarter."""
    from collections import Counter

    documents = collection.documents
    titles = [title.strip().lower() for title in documents["title"]]
    counts = Counter(titles)
    own = [row for row, title in enumerate(titles) if title and counts[title] == 1 and documents[row]["text"].strip()]
    if len(own) < len(titles) / 4:
        return []
    return [documents[row] for row in random.Random(0).sample(own, min(_ORDERED, len(own)))]


def _means(values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return {system: its mean in points}."""
    from dsi.eval.measures import mean

    return {name: round(100 * mean(own), 3) for name, own in values.items()}


def _system_values(runs: "IndexRuns") -> dict[str, dict[str, float]]:
    """Return {system: {query_id: nDCG@10}}."""
    from dsi.eval.fusion import reciprocal_rank_fusion
    from dsi.eval.measures import evaluate
    from dsi.measuring.runs import BM25Runs
    from dsi.search.generate import WordsOnly

    found = {name: search() for name, search in _systems(runs).items()}
    words, dense = BM25Runs(runs.collection, tuned=False).run("test"), runs.run_dense("test")
    found |= {"BM25": words, "dense": dense, "RRF": reciprocal_rank_fusion([words, dense])}
    for weight in (0.2, 1.5):
        found[f"BM25 candidates, words {weight}"] = runs.run("test", 10, WordsOnly, lexical_weight=weight)
    qrels = runs.collection.qrels["test"]
    return {name: evaluate(run, qrels, [MEASURE])[MEASURE] for name, run in found.items()}


def _systems(runs: "IndexRuns") -> dict[str, Callable[[], Any]]:
    """Return {system: its search}: weights of words and tokens, parts left out, beams, candidates, methods."""
    grid = [(weight, tokens) for weight in _WEIGHTS for tokens in (0.0, 1.0)]
    grid += [(weight, tokens) for weight in (0.2, 0.7) for tokens in (0.5, 2.0)]
    settings: dict[str, dict[str, Any]] = {
        f"words {weight}, tokens {tokens}": {"lexical_weight": weight, "token_weight": tokens}
        for weight, tokens in grid
    }
    for beam in (2, 5):
        for weight in (0.2, 0.7):
            settings[f"beam {beam}, words {weight}"] = {"beam_width": beam, "lexical_weight": weight}
    settings["candidates 20"] = {"candidates": 20}
    settings["exact, words 0.3"] = {"method": "exact", "lexical_weight": 0.3, "token_weight": 0.0}
    return {name: lambda own=own: runs.run("test", 10, **own) for name, own in settings.items()}  # type: ignore[misc]


def order_table(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return Kendall's tau by collection and kind of query, and the points that its best system is behind, as Markdown."""
    from dsi.eval.tables import markdown_table

    rows = []
    for name, record in records.items():
        if not (own := record.get("order")):
            continue
        cells = [f"{own[kind]['tau']:+.2f} ({own[kind]['lost']:.1f})" if kind in own else "" for kind in KINDS]
        rows.append([name, str(own["systems"]), *cells, f"{own[HALVES]['tau']:+.2f}"])
    return markdown_table(["collection", "systems", *KINDS, HALVES], rows)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
