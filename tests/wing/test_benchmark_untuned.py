"""What an untrained index loses without queries: the table of a small collection."""

import json

from dsi_experiments.commands import benchmark_untuned
from dsi_experiments.commands.benchmark_untuned import CLOZE, DEV, EXTRACTIVE, ORACLE, SENTENCES

import dsi
from tests.support.small import MINIPEDIA


def test_each_collection_is_measured_once(sentence_bert_folder, tmp_path, monkeypatch, capsys):
    whole = dsi.read_collection(MINIPEDIA)
    documents = [whole.documents[row] for row in range(60)]
    kept = {document["doc_id"] for document in documents}
    test = {query_id: own for query_id, own in whole.qrels["test"].items() if own.keys() <= kept}
    queries = {query_id: whole.queries[query_id] for query_id in test}
    collection = dsi.Collection.from_records(documents, queries=queries, qrels={"test": test})
    collection.save(tmp_path / "small")
    dsi.index(documents, tmp_path / "indexes" / "small", encoder=str(sentence_bert_folder), device="cpu")
    command = [str(tmp_path / "small"), "--indexes", str(tmp_path / "indexes"), "--output", str(tmp_path / "out")]
    benchmark_untuned.main([*command, "--device", "cpu"])
    record = json.loads((tmp_path / "out" / "small.json").read_text())
    teachers = record["teachers"]
    assert DEV not in teachers
    assert {CLOZE, EXTRACTIVE, SENTENCES, ORACLE} < teachers.keys()
    assert (teachers[CLOZE]["beside"], teachers[CLOZE]["interval"]) == (0, 0)
    printed = capsys.readouterr().out
    assert "| small " in printed
    monkeypatch.setattr(benchmark_untuned, "measure", None)
    benchmark_untuned.main(command)  # nothing is measured again
