"""Any collection of ir_datasets as a BEIR folder (extra `irds`). Knows nothing of models.

What is odd is written as it is, and counted when the folder is read: empty documents, judgements of documents and queries that
are not there. Of several judgements of a query and a document the highest is kept. Ids and texts are checked as those of a
collection, so that the folder can be read.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsi.docids.data import folder_for_collection
from dsi.docids.data.judgements import write_judgements
from dsi.docids.data.records import Oddities, document_row, query_of
from dsi.docids.files.checks import shown
from dsi.docids.files.progress import progress
from dsi.docids.files.storage import replace_folder, write_json_line

Judgement = tuple[str, str, int]
"""query_id, doc_id, relevance."""


def prepare(names: Mapping[str, str], output: Path) -> tuple[int, dict[str, int]]:
    """Write a collection: the documents of the test data set, the queries and judgements of all.

    Returned are the number of documents, and {split: number of judgements}. `names`: {split: name of a data set in
    ir_datasets}; "test" is required.
    """
    folder_for_collection(output, "output")
    data_sets = {split: _load(name) for split, name in names.items()}
    judgements = {split: _judgements(data_set) for split, data_set in data_sets.items()}
    judged = {doc_id for rows in judgements.values() for _, doc_id, _ in rows}
    with replace_folder(output) as folder:
        documents, written = _write_corpus(data_sets["test"], folder / "corpus.jsonl", judged)
        queries = _write_queries(data_sets, judgements, folder / "queries.jsonl")
        for split, rows in judgements.items():
            if not any(query_id in queries and doc_id in written for query_id, doc_id, _ in rows):
                raise ValueError(f"{names[split]} judges none of the documents of {names['test']}; choose one corpus.")
        (folder / "qrels").mkdir()
        for split, rows in judgements.items():
            write_judgements(rows, folder / "qrels" / f"{split}.tsv")
    return documents, {split: len(rows) for split, rows in judgements.items()}


def _load(name: str) -> Any:
    try:
        import ir_datasets
    except ModuleNotFoundError:
        raise ModuleNotFoundError('ir_datasets is not installed; run pip install "dr-scl-experiments[irds]".') from None
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


def _judgements(data_set: Any) -> list[Judgement]:
    highest: dict[tuple[str, str], int] = {}
    for judgement in data_set.qrels_iter():
        pair = judgement.query_id, judgement.doc_id
        highest[pair] = max(judgement.relevance, highest.get(pair, judgement.relevance))
    return [(query_id, doc_id, relevance) for (query_id, doc_id), relevance in highest.items()]


def _write_corpus(data_set: Any, path: Path, judged: set[str]) -> tuple[int, set[str]]:
    """Write the documents; return how many, and the judged ones among them."""
    count, judged_written = 0, set()
    documents = progress(data_set.docs_iter(), "documents", unit="doc", total=data_set.docs_count())
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            title = getattr(document, "title", "") or ""
            text = document.default_text().removeprefix(title).strip()
            record = {"_id": document.doc_id, "title": title, "text": text or title}
            document_row(record, f"Document {document.doc_id!r}", Oddities("documents"))
            write_json_line(file, record)
            count += 1
            if document.doc_id in judged:
                judged_written.add(document.doc_id)
    return count, judged_written


def _write_queries(data_sets: Mapping[str, Any], judged: Mapping[str, Sequence[Judgement]], path: Path) -> set[str]:
    """Write the judged queries of all splits, each once; return their ids."""
    written: dict[str, tuple[str, str]] = {}
    with path.open("w", encoding="utf-8") as file:
        for split, rows in judged.items():
            here = {query_id for query_id, _, _ in rows}
            for query in data_sets[split].queries_iter():
                text = query.default_text()
                if query.query_id not in here:
                    continue
                before = written.get(query.query_id)
                if before is None:
                    record = {"_id": query.query_id, "text": text}
                    query_of(record, f"Query {query.query_id!r}")
                    write_json_line(file, record)
                    written[query.query_id] = split, text
                elif before[0] != split and before[1] != text:
                    raise ValueError(
                        f"The query {query.query_id!r} is {shown(text)} in {split}, and {shown(before[1])} in {before[0]}; "
                        "choose data sets that share their queries."
                    )
    return set(written)
