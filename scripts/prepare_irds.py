"""`dsi prepare-irds`: any collection of ir_datasets as a BEIR folder (extra `irds`).

`dsi prepare-irds --train msmarco-passage/train --test msmarco-passage/dev/small --output DIR`: documents come from the test
data set, queries and judgements from each. Judgements of documents that are not there, or have no text, are left out and
counted.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from tqdm.auto import tqdm

from docids.storage import replace_folder
from scripts.arguments import quiet_libraries
from scripts.main import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """Write the folder, print its counts."""
    arguments = _parse(argv)
    quiet_libraries()
    names = {split: name for split in ("train", "dev", "test") if (name := getattr(arguments, split))}
    data_sets = {split: _load(name) for split, name in names.items()}
    judgements = {split: list(_judgements(data_set)) for split, data_set in data_sets.items()}
    judged = {doc_id for rows in judgements.values() for _, doc_id, _ in rows}
    with replace_folder(arguments.output) as folder:
        written, skipped, found = _write_corpus(data_sets["test"], folder / "corpus.jsonl", judged)
        print(f"{arguments.output}: {written} documents, {skipped} without text left out")
        known: set[str] = set()
        (folder / "qrels").mkdir()
        with (folder / "queries.jsonl").open("w", encoding="utf-8") as queries:
            for split, rows in judgements.items():
                kept = [row for row in rows if row[1] in found]
                if not kept:
                    raise ValueError(
                        f"{names[split]} judges none of the documents of {names['test']}; choose one corpus."
                    )
                _write_queries(data_sets[split], queries, {query_id for query_id, _, _ in kept} - known, known)
                _write_judgements(kept, folder / "qrels" / f"{split}.tsv")
                left_out = f", {len(rows) - len(kept)} of missing documents left out" * (len(kept) < len(rows))
                print(f"  {split}: {len(kept)} judgements, from {names[split]}{left_out}")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dsi prepare-irds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--test", required=True, metavar="NAME", help="ir_datasets name of documents and test queries")
    parser.add_argument("--train", metavar="NAME", help="of the train queries")
    parser.add_argument("--dev", metavar="NAME", help="of the dev queries; cut from train without it")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    return parser.parse_args(argv)


def _load(name: str) -> Any:
    try:
        import ir_datasets
    except ModuleNotFoundError:
        raise ModuleNotFoundError('ir_datasets is not installed; run pip install "dr-scl[irds]".') from None
    try:
        data_set = ir_datasets.load(name)
    except KeyError:
        raise ValueError(
            f"ir_datasets knows no data set {name!r}; see https://ir-datasets.com for the names."
        ) from None
    lacking = [part for part in ("docs", "queries", "qrels") if not getattr(data_set, f"has_{part}")()]
    if lacking:
        raise ValueError(f"The data set {name} has no {' and no '.join(lacking)}; choose one of its subsets.")
    return data_set


def _write_corpus(data_set: Any, path: Path, judged: set[str]) -> tuple[int, int, set[str]]:
    """How many documents were written, how many had no text, and which of the judged ones were written."""
    written = skipped = 0
    found = set()
    with path.open("w", encoding="utf-8") as file:
        for document in tqdm(data_set.docs_iter(), total=data_set.docs_count(), desc="documents", unit="doc"):
            title = getattr(document, "title", "") or ""
            text = document.default_text().removeprefix(title).strip()
            if not title and not text:
                skipped += 1
                continue
            _write(file, {"_id": document.doc_id, "title": title, "text": text or title})
            written += 1
            if document.doc_id in judged:
                found.add(document.doc_id)
    return written, skipped, found


def _write_queries(data_set: Any, file: TextIO, wanted: set[str], known: set[str]) -> None:
    for query in data_set.queries_iter():
        if query.query_id in wanted:
            known.add(query.query_id)
            _write(file, {"_id": query.query_id, "text": query.default_text()})


def _write_judgements(rows: Sequence[tuple[str, str, int]], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        file.writelines(f"{query_id}\t{doc_id}\t{relevance}\n" for query_id, doc_id, relevance in rows)


def _judgements(data_set: Any) -> Iterator[tuple[str, str, int]]:
    for judgement in data_set.qrels_iter():
        yield judgement.query_id, judgement.doc_id, judgement.relevance


def _write(file: TextIO, record: dict[str, str]) -> None:
    file.write(json.dumps(record, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
