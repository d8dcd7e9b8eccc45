"""What it costs to add documents without training: `dsi reproduce updates`.

A tenth of the documents is held out: encoder, docids and decoder are trained without them and without their queries. They are
then added to the finished index. Measured on the test queries of the added documents and on those of the others, before and
after, and against an index that was trained with all of them.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

from dsi.docids.data.collection import Collection, read_collection
from dsi.docids.data.records import table_record
from dsi.docids.files.storage import digest
from dsi.docids.types import Run
from dsi.eval.measures import evaluate, mean
from dsi.eval.tables import markdown_table
from dsi.measuring.runs import IndexRuns
from dsi_experiments.laboratory import Laboratory, answer, tuned_settings
from dsi_experiments.report import save_report
from dsi_experiments.tables import ON_DENSE, TABLES

HELD_OUT = 0.1
MEASURES = ("Hit@1", "Hit@10")


def reproduce(laboratory: Laboratory, seed: int) -> str:
    """Train with and without a tenth of the documents, add it, measure; the decoder is trained on top of dense search."""
    collection, row = laboratory.collection, next(row for row in TABLES["table3"] if row.changes == ON_DENSE)
    config, rows = laboratory.config(row, seed), hold_out(laboratory.collection, seed)
    part = without(laboratory, rows)
    found = measure_updates(collection, part.index(config), laboratory.index(config), rows)
    if not laboratory.processes.is_main:
        return ""
    text = updates_table(found)
    save_report(laboratory.output, "updates", text, {"seed": seed, **found})
    return text


def hold_out(collection: Collection, seed: int) -> list[int]:
    """Rows of a tenth of the documents, at random."""
    count = len(collection.documents)
    return sorted(np.random.default_rng(seed).choice(count, round(HELD_OUT * count), replace=False).tolist())


def without(laboratory: Laboratory, rows: list[int], name: str = "without") -> Laboratory:
    """A laboratory that trains without some documents; the collection is written to the folder NAME-DIGEST in OUTPUT."""
    collection, processes = laboratory.collection, laboratory.processes
    folder = laboratory.output / f"{name}-{digest([collection.digest, rows])[:16]}"
    if processes.is_main and not folder.exists():
        write_without(collection, rows, folder)
    processes.wait()
    part = read_collection(folder, dev_queries=0)  # those of the collection were written
    return Laboratory(part, laboratory.base, laboratory.output, laboratory.device)


def write_without(collection: Collection, rows: list[int], folder: Path) -> None:
    """Write a collection as a BEIR folder, without some documents and their judgements; dev stays as it is."""
    gone = {collection.documents[row]["doc_id"] for row in rows}
    kept = (table_record(document) for document in collection.documents if document["doc_id"] not in gone)
    left = {
        split: {q: {d: r for d, r in judged.items() if d not in gone} for q, judged in judgements.items()}
        for split, judgements in collection.qrels.items()
    }
    qrels = {split: {q: judged for q, judged in judgements.items() if judged} for split, judgements in left.items()}
    Collection.from_records(kept, queries=collection.queries, qrels=qrels, dev_queries=0).save(folder)


def measure_updates(collection: Collection, without: IndexRuns, whole: IndexRuns, rows: list[int]) -> dict[str, Any]:
    """The three indexes on the test queries of the added documents and of the others, and the time of adding.

    `rows` are those of the held-out documents.
    """
    qrels = collection.qrels["test"]
    added = {collection.documents[row]["doc_id"] for row in rows}
    of_added = [query_id for query_id, judged in qrels.items() if not added.isdisjoint(judged)]
    of_others = [query_id for query_id, judged in qrels.items() if added.isdisjoint(judged)]
    indexes = {"without": without, "whole": whole}
    options = {name: tuned_settings(index) for name, index in indexes.items()}
    encoded = {name: index.encode("test", collection.query_texts("test")) for name, index in indexes.items()}

    def run(name: str) -> Run:
        return answer(indexes[name].retriever, encoded[name], 10, **options[name])

    runs = {"before adding": run("without")}
    started = time.perf_counter()
    without.retriever.add([table_record(collection.documents[row]) for row in rows])
    seconds = time.perf_counter() - started
    runs["after adding"] = run("without")
    runs["trained with all"] = run("whole")
    found: dict[str, Any] = {
        "documents": len(collection.documents),
        "added": len(rows),
        "milliseconds a document": round(1000 * seconds / len(rows), 1),
        "queries": {"of added documents": len(of_added), "of others": len(of_others)},
        "settings": options,
    }
    for name, answers in runs.items():
        values = evaluate(answers, qrels, MEASURES)
        found[name] = {
            group: {measure: round(100 * mean(own, query_ids), 2) for measure, own in values.items()}
            for group, query_ids in (("of added documents", of_added), ("of others", of_others))
        }
    return found


def updates_table(found: dict[str, Any]) -> str:
    """Markdown: a line an index."""
    groups = found["queries"]
    heads = [f"queries {group} ({count:,})" for group, count in groups.items()]
    rows = [
        [name, *(" / ".join(f"{found[name][group][measure]:.2f}" for measure in MEASURES) for group in groups)]
        for name in ("before adding", "after adding", "trained with all")
    ]
    counts = f"{found['added']:,} of {found['documents']:,} documents added"
    time_each = f"{found['milliseconds a document']:g} ms each, encoder included"
    legend = f"{' / '.join(MEASURES)} in percent. {counts}, {time_each}."
    return f"{markdown_table(['index', *heads], rows)}\n\n{legend}"
