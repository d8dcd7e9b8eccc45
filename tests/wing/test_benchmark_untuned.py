"""What an untrained index loses without queries: both tables of a small collection."""

import json

from dsi_experiments.commands import benchmark_untuned
from dsi_experiments.commands.benchmark_untuned import CLOZE, DEV, EXTRACTIVE, HALVES, ORACLE, SENTENCES

import dsi
from tests.support.small import MINIPEDIA


def test_both_tables_are_measured_once(tmp_path, monkeypatch, capsys):
    whole = dsi.read_collection(MINIPEDIA)
    documents = [whole.documents[row] for row in range(60)]
    kept = {document["doc_id"] for document in documents}
    test = {query_id: own for query_id, own in whole.qrels["test"].items() if own.keys() <= kept}
    queries = {query_id: whole.queries[query_id] for query_id in test}
    collection = dsi.Collection.from_records(documents, queries=queries, qrels={"test": test})
    collection.save(tmp_path / "small")
    dsi.index(documents, tmp_path / "indexes" / "small")
    command = [str(tmp_path / "small"), "--indexes", str(tmp_path / "indexes"), "--output", str(tmp_path / "out")]
    benchmark_untuned.main([*command, "--device", "cpu", "--tables", "teachers"])
    benchmark_untuned.main([*command, "--device", "cpu"])
    record = json.loads((tmp_path / "out" / "small.json").read_text())
    teachers, order = record["teachers"], record["order"]
    assert DEV not in teachers
    assert {CLOZE, EXTRACTIVE, SENTENCES, ORACLE} < teachers.keys()
    assert (teachers[CLOZE]["beside"], teachers[CLOZE]["interval"]) == (0, 0)
    assert order["systems"] >= 20
    assert all(-1 <= order[kind]["tau"] <= 1 for kind in (SENTENCES, EXTRACTIVE, HALVES))
    assert all(order[kind]["lost"] >= 0 for kind in (SENTENCES, EXTRACTIVE))
    printed = capsys.readouterr().out
    assert "| small " in printed
    monkeypatch.setattr(benchmark_untuned, "measure", None)
    benchmark_untuned.main(command)  # nothing is measured again
