"""Anybody's candidates are ranked by the document score; answers below min_score are left out."""

import json
import math

import pytest

from dsi.commands.main import main
from dsi.eval.trec import read_run, write_run
from dsi.search.explain.explanation import Explanation
from tests.support.evaluated import collection, retriever  # noqa: F401 (fixtures)

QUERIES = {"q1": "noble gas", "q2": "a long river of europe", "q3": " "}


@pytest.mark.parametrize("k", [2, 40])
def test_candidates_get_the_scores_of_a_search_in_its_order(retriever, k, caplog):
    doc_ids = retriever.snapshot.documents.column("doc_id")[:]
    whole = retriever.run(QUERIES, 40, method="exact")
    among = {"q1": [*doc_ids[5:15], "nobody's", doc_ids[5]], "q2": iter(doc_ids[:3]), "q3": doc_ids[:2], "other": ["x"]}
    run = retriever.run(QUERIES, k, among=among)
    assert 'among: documents that are not in the index: 1 ("nobody\'s"); they are left out.' in caplog.text
    for query_id, given in (("q1", doc_ids[5:15]), ("q2", doc_ids[:3])):
        expected = {doc_id: score for doc_id, score in whole[query_id].items() if doc_id in given}
        assert list(run[query_id]) == list(expected)[:k]
        assert run[query_id] == pytest.approx({d: expected[d] for d in run[query_id]}, abs=1e-5)
    assert run["q3"] == {}
    few = retriever.run(QUERIES, k, among={"q1": doc_ids[5:15]})
    assert few == {"q1": run["q1"], "q2": {}, "q3": {}}


def test_filters_and_min_score_act_on_candidates_too(retriever):
    doc_ids = retriever.snapshot.documents.column("doc_id")[:]
    run = retriever.run({"q": "noble gas"}, 40, among={"q": doc_ids[:9]}, deny=doc_ids[:4])
    assert set(run["q"]) == set(doc_ids[4:9])
    floor = sorted(run["q"].values())[2]
    kept = retriever.run({"q": "noble gas"}, 40, among={"q": doc_ids[:9]}, deny=doc_ids[:4], min_score=floor)
    assert len(kept["q"]) == 3
    assert retriever.run({"q": "noble gas"}, 40, among={"q": doc_ids[:4]}, deny=doc_ids[:4]) == {"q": {}}


def test_candidates_that_fit_nothing_are_refused(retriever):
    with pytest.raises(TypeError, match=r"among must be \{query_id: doc_ids\}, got \['a'\]"):
        retriever.run(QUERIES, among=["a"])
    with pytest.raises(ValueError, match="for none of the queries: the first query_id is 'x' there, and 'q1' in the"):
        retriever.run(QUERIES, among={"x": ["a"]})
    with pytest.raises(ValueError, match="None of the candidates is in the index; the first is 'a'"):
        retriever.run(QUERIES, among={"q1": ["a"]})


def test_the_command_ranks_a_run_of_anybody(retriever, tmp_path, capsys):
    retriever.save(tmp_path / "index")
    doc_ids = retriever.snapshot.documents.column("doc_id")[:]
    write_run({"q1": dict.fromkeys(doc_ids[:6], 1.0), "q9": {doc_ids[0]: 1.0}}, tmp_path / "their.run", "their")
    (tmp_path / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": query_id, "text": text}) + "\n" for query_id, text in QUERIES.items())
    )
    command = ["search", str(tmp_path / "index"), "--queries", str(tmp_path / "queries.jsonl"), "--device", "cpu"]
    files = ["--among", str(tmp_path / "their.run"), "--run", str(tmp_path / "our.run")]
    assert main([*command, *files]) == 0
    assert (
        capsys.readouterr().out
        == f"{tmp_path / 'our.run'}: 1 queries, 6 documents, of 2 and 7 in {tmp_path / 'their.run'}\n"
    )
    expected = retriever.run(QUERIES, 40, among={"q1": doc_ids[:6]})["q1"]
    assert list(read_run(tmp_path / "our.run")["q1"]) == list(expected)
    assert main([*command, *files, "-k", "2", "--lexical-weight", "0"]) == 0
    assert len(read_run(tmp_path / "our.run")["q1"]) == 2


@pytest.mark.parametrize("method", ["generate", "exact"])
def test_answers_below_min_score_are_left_out_of_every_method(retriever, method):
    hits = retriever.search("noble gas", k=10, method=method)
    floor = (hits[3].score + hits[4].score) / 2
    kept = retriever.search("noble gas", k=10, method=method, min_score=floor)
    assert [hit.doc_id for hit in kept] == [hit.doc_id for hit in hits[:4]]
    assert retriever.search(["noble gas", " "], k=3, method=method, min_score=1e9) == [[], []]
    assert len(retriever.search("noble gas", k=10, min_score=-1e9)) == 10
    assert retriever.run({"q": "noble gas"}, 10, min_score=floor, method=method).keys() == {"q"}
    out = kept.explain(hits[6].doc_id)
    assert out.rank is None
    exact = retriever.search("noble gas", k=40, method="exact")
    assert exact[out.overall_rank - 1].doc_id == hits[6].doc_id
    assert out.reason.startswith(f"Its score {hits[6].score:.3f} is less than min_score {floor:g}.")
    assert isinstance(retriever.explain("noble gas", min_score=floor), Explanation)


@pytest.mark.parametrize("value", [math.nan, "high"])
def test_min_score_is_a_number(retriever, value):
    with pytest.raises(ValueError, match="min_score"):
        retriever.search("noble gas", min_score=value)
