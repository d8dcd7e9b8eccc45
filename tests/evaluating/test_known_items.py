"""A known-item test: its queries, the index that answers them, and the note on its numbers."""

import json
import re

import pytest

import dsi
from dsi.commands.main import main
from dsi.measuring.known_items import MEANING, with_queries
from tests.support.small import MINIPEDIA

DOCUMENTS = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:60]]


@pytest.fixture(scope="module")
def index():
    return dsi.index(DOCUMENTS)


def test_each_query_is_made_of_words_of_the_document_to_find(index):
    collection = with_queries(index, None)
    assert len(collection.qrels["test"]) == len(DOCUMENTS)
    for query_id, judged in collection.qrels["test"].items():
        (doc_id,) = judged
        document = index.get(doc_id)
        assert collection.queries[query_id].strip()
        words = re.findall(r"\w+", f"{document.title} {document.text}".lower())
        assert {*re.findall(r"\w+", collection.queries[query_id])} <= {*words}
    assert with_queries(index, None).queries == collection.queries
    assert [*collection.rows] == [*index.documents.rows]


def test_it_is_measured_without_a_collection_and_says_what_it_means(index):
    evaluation, again = dsi.evaluate(index), dsi.evaluate(index)
    assert evaluation.note == MEANING
    assert str(evaluation).endswith(MEANING)
    assert evaluation.row("generate").values == again.row("generate").values
    assert evaluation.row("BM25").means(evaluation.splits)["Total"]["Hit@10"] > 90
    unjudged = dsi.Collection.from_records(DOCUMENTS, queries={"q": "neon"})
    assert dsi.evaluate(index, unjudged).note == MEANING


def test_judged_queries_are_taken_where_there_are_some(index):
    collection = dsi.Collection.from_records(DOCUMENTS, queries={"q": "a gas"}, qrels={"test": {"q": {"neon": 1}}})
    assert with_queries(index, collection) is collection
    assert dsi.evaluate(index, collection).note == ""
    with pytest.raises(ValueError, match="has no dev judgements"):
        dsi.evaluate(index, collection, "dev")


def test_an_index_without_texts_takes_those_of_its_collection():
    collection = dsi.Collection.from_records(DOCUMENTS)
    index = dsi.index(collection, config=dsi.Config().with_changes({"text_megabytes": 0}))
    with pytest.raises(ValueError, match=r"this index keeps none; give its collection \(in the shell --data DIR\)"):
        dsi.evaluate(index)
    assert dsi.evaluate(index, collection).note == MEANING
    assert not index.documents.has_texts


def test_too_few_documents_with_a_text_are_refused():
    documents = [{"id": str(number), "text": f"number {number}" if number < 19 else ""} for number in range(30)]
    with pytest.raises(ValueError, match="needs 20 documents with a text, got 19; give a collection with judged"):
        dsi.evaluate(dsi.index(documents))


def test_the_command_prints_the_failures(index, tmp_path, capsys):
    index.save_pretrained(tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), "--show", "2", "--diagnose", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert MEANING in printed
    table = printed[printed.index("queries is not relevant; the worst first:") :].splitlines()
    assert [cell.strip() for cell in table[2].strip("|").split("|")] == [
        "query",
        "its document",
        "rank",
        "first answer",
    ]
    assert len([line for line in table[4:] if line.startswith("|")][:2]) == 2
    assert "queries without their document among 10" in printed
