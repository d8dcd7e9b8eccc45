"""An index whose documents are in another order than the collection's, or are others."""

import dataclasses
import json
import logging
import random
import re
import subprocess
import sys
from copy import copy
from pathlib import Path

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.config import LEXICAL_WEIGHT, Config
from dsi.docids.data.collection import Collection
from dsi.eval.measures import STANDARD_MEASURES, mean
from dsi.eval.protocol import SystemResult, holm, overlap_splits, randomisation_test
from dsi.measuring import evaluation as evaluation_module
from dsi.measuring import provenance, runs
from dsi.measuring.evaluation import UNTAUGHT, Evaluation
from dsi.measuring.runs import IndexRuns
from tests.support.evaluated import collection, retriever  # noqa: F401 (fixtures)
from tests.support.small import PROMPTS
from tests.support.small_index import DOCUMENTS, small_index

LEFT = "documents are in the collection only"


def test_judgements_of_which_none_is_above_0_are_not_measured(retriever, collection):
    for judged in collection.qrels["test"].values():
        judged.update(dict.fromkeys(judged, 0))
    with pytest.raises(
        ValueError, match=r"None of the test judgements of .* is above 0, .*; give relevant documents 1"
    ):
        dsi.evaluate(retriever, collection)


def test_ten_answers_are_measured_at_least(retriever, collection):
    by_default, one = dsi.evaluate(retriever, collection), dsi.evaluate(retriever, collection, depth=1)
    assert one.about["depth"] == 10
    assert one.measures == by_default.measures
    assert one.summary().splitlines()[0] == by_default.summary().splitlines()[0]


def test_measures_may_be_chosen_and_all_systems_are_read_as_deep_as_they_ask(retriever, collection):
    evaluation = dsi.evaluate(retriever, collection, measures=["map", "ndcg_cut_5"])
    assert evaluation.measures == ("AP", "nDCG@5")
    assert evaluation.about["depth"] == 1000
    assert all(len(own) == 40 for name, run in evaluation.runs.items() if name != "BM25" for own in run.values())
    assert "AP / nDCG@5" in str(evaluation)
    assert evaluation.summary().startswith("The index has AP ")
    with pytest.raises(ValueError, match="Recall@50 reads further than depth = 20; leave depth out, or make it 50"):
        dsi.evaluate(retriever, collection, measures=["R@50"], depth=20)
    with pytest.raises(ValueError, match=r"Unknown measure 'nDGC@5'; did you mean nDCG@5\? There are "):
        dsi.evaluate(retriever, collection, measures=["nDGC@5"])
    with pytest.raises(ValueError, match=r"Unknown measure 'beauty@5'\. There are "):
        dsi.evaluate(retriever, collection, measures=["beauty@5"])


def test_the_interval_of_a_mean_is_told_and_that_of_one_query_is_not(retriever, collection):
    evaluation = dsi.evaluate(retriever, collection, measures=["RR@10", "nDCG@10"])
    for name in evaluation.measures:
        values = 100 * np.array([*evaluation.row("generate").values[name].values()])
        half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
        assert f"{name} {values.mean():.1f} ± {half:.1f}" in evaluation.summary()
    (query_id, judged), *_ = collection.qrels["test"].items()
    collection.qrels["test"] = {query_id: judged}
    assert "±" not in dsi.evaluate(retriever, collection).summary()


def test_the_index_is_measured_with_the_settings_given_and_keeps_its_own(retriever, collection):
    before = retriever.search_config
    narrow = dsi.evaluate(retriever, collection, beam_width=1, candidates=1)
    assert narrow.row("generate").settings["beam_width"] == narrow.row("generate").settings["candidates"] == 1
    assert (
        narrow.row("generate").settings["vectors read"]
        < dsi.evaluate(retriever, collection).row("generate").settings["vectors read"]
    )
    assert retriever.search_config == before
    for wrong, message in (
        ({"alpha": 0.5}, r"evaluate\(\) does not use alpha: this index has no generator"),
        ({"beam_width": 0}, "beam_width must be at least 1, got 0"),
        ({"beam_with": 3}, r"evaluate\(\) has no option 'beam_with'; did you mean 'beam_width'\?"),
        ({"allow": []}, r"evaluate\(\) has no option 'allow'; there are method, "),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            dsi.evaluate(retriever, collection, **wrong)


@pytest.mark.programs
def test_files_are_written_before_a_reader_of_the_table_can_go(retriever, collection, tmp_path):
    retriever.save(tmp_path / "index")
    code = (
        "import sys, io\nfrom dsi.commands import evaluate\nclass Gone(io.StringIO):\n    def write(self, text):\n"
        "        raise BrokenPipeError\nsys.stdout = Gone()\ntry:\n    evaluate.main(sys.argv[1:])\n"
        "except BrokenPipeError:\n    sys.exit(3)\n"
    )
    files = ["--results", str(tmp_path / "r.json"), "--trec-runs", str(tmp_path / "runs")]
    command = [str(tmp_path / "index"), str(collection.name), "--device", "cpu", *files]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert (tmp_path / "r.json").exists()
    assert (tmp_path / "runs" / "test.qrels").exists()


def test_an_index_that_was_saved_is_tuned_and_measured(retriever, collection, tmp_path, capsys):
    retriever.save(tmp_path / "saved")
    common, untuned = (
        [str(tmp_path / "saved"), str(collection.name), "--device", "cpu"],
        "were not tuned on the dev queries",
    )
    assert main(["evaluate", *common]) == 0
    assert untuned in capsys.readouterr().out
    assert main(["tune", *common]) == 0
    assert main(["evaluate", *common, "--results", str(tmp_path / "results.json")]) == 0
    assert untuned not in capsys.readouterr().out
    assert "config" not in json.loads((tmp_path / "results.json").read_text())


def test_an_index_is_measured_where_all_relevant_documents_are_gone(retriever, collection, tmp_path, capsys):
    file = Path(collection.name) / "qrels" / "test.tsv"
    head, *lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([head, *(line for line in lines if "\tneon\t" in line)]), encoding="utf-8")
    retriever.remove(["neon"])
    retriever.save(tmp_path / "saved")
    results = tmp_path / "results.json"
    common = [str(tmp_path / "saved"), str(collection.name), "--device", "cpu"]
    assert main(["evaluate", *common, "--show", "5", "--results", str(results)]) == 0
    assert "neon: not in the index" in capsys.readouterr().out
    assert results.exists()


def test_baselines_come_first(retriever, collection):
    rows = ["BM25", "dense", "RRF of BM25 and dense", "dense + BM25", "generate", "exact"]
    assert [row.name for row in dsi.evaluate(retriever, collection).rows] == rows


def replace_first(retriever, collection):
    """Remove the first document and add it again: it is the last one then."""
    first = collection.documents[0]
    retriever.remove([first["doc_id"]])
    retriever.add([{name: first[name] for name in ("doc_id", "title", "text")}])
    assert list(retriever.snapshot.documents.rows) == [*collection.documents["doc_id"][1:], first["doc_id"]]


def test_an_index_that_has_learned_is_measured_without_it_too(retriever, collection):
    plain = dsi.evaluate(retriever, collection)
    assert UNTAUGHT not in [row.name for row in plain.rows]
    retriever.learn([(f"{query} please", "neon") for query in collection.query_texts("test").values()])
    retriever.search_config = dataclasses.replace(retriever.search_config, memory_weight=50.0)
    taught = dsi.evaluate(retriever, collection)
    assert taught.row(UNTAUGHT).values == plain.row("generate").values != taught.row("generate").values
    assert plain.earlier() == ""
    asked, others, every = taught.earlier().splitlines()[1:]
    assert every.startswith("  In all: ")
    qrels, found, without = (
        collection.qrels["test"],
        taught.row("generate").values["Hit@1"],
        taught.row(UNTAUGHT).values["Hit@1"],
    )
    neon = [query_id for query_id in qrels if qrels[query_id].get("neon", 0) > 0]
    assert taught.taught == set(neon)
    assert 0 < len(neon) < len(qrels)
    for line, query_ids in ((asked, neon), (others, sorted(qrels.keys() - set(neon)))):
        assert f"{len(query_ids)} quer" in line
        own, before = ([values[query_id] for query_id in query_ids] for values in (found, without))
        assert f": {100 * np.mean(own):.1f} ({100 * (np.mean(own) - np.mean(before)):+.2f}" in line
        differences = 100 * (np.array(own) - np.array(before))
        if differences.std() > 0:
            assert f" ± {1.96 * differences.std(ddof=1) / np.sqrt(len(query_ids)):.2f})" in line
    assert taught.earlier() in str(taught)
    retriever.search_config = dataclasses.replace(retriever.search_config, memory_weight=0.0)
    assert UNTAUGHT not in [row.name for row in dsi.evaluate(retriever, collection).rows]


def test_the_order_of_an_updated_index_changes_no_result(retriever, collection, caplog):
    dense = IndexRuns(collection, retriever).run_dense("test")
    before, tuned = dsi.evaluate(retriever, collection), dsi.tune(retriever, collection).best
    replace_first(retriever, collection)
    again = IndexRuns(collection, retriever).run_dense("test")
    assert {query_id: pytest.approx(found, abs=1e-4) for query_id, found in dense.items()} == again
    assert dsi.tune(retriever, collection).best["lexical_weight"] == pytest.approx(tuned["lexical_weight"], rel=1e-2)
    after = dsi.evaluate(retriever, collection)
    for row in before.rows:
        if row.name == "BM25" or row.name.startswith(("dense", "RRF")):
            assert after.row(row.name).values == row.values
    assert LEFT not in caplog.text


def test_documents_that_differ_are_counted_and_missing_ones_are_not_found(retriever, collection, caplog):
    gone = collection.documents[collection.pairs("test")[0][1]]["doc_id"]
    retriever.remove([gone])
    retriever.add([{"doc_id": "new1", "text": "rivers"}, {"doc_id": "new2", "text": "gases"}])
    with caplog.at_level(logging.WARNING):
        evaluation = dsi.evaluate(retriever, collection)
    assert f"differ: 1 {LEFT} (no search finds them), 2 in the index only" in caplog.text
    of_gone = [query_id for query_id, judged in collection.qrels["test"].items() if judged == {gone: 1}]
    assert of_gone
    for name in ("dense", evaluation.index):
        values = evaluation.row(name).values["Hit@10"]
        assert values.keys() == collection.qrels["test"].keys()
        assert not any(values[query_id] for query_id in of_gone)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        dsi.tune(retriever, collection)
    assert LEFT in caplog.text


def grade(collection):
    """Give each test query of a collection a second relevant document, of a lower grade."""
    doc_ids = collection.documents["doc_id"][:]
    for number, judged in enumerate(collection.qrels["test"].values()):
        judged[next(iter(judged))] = 2
        judged.setdefault(doc_ids[number % len(doc_ids)], 1)
    collection.qrels["dev"].clear()
    return collection


def test_graded_judgements_are_measured_by_ndcg_and_recall_and_no_row_needs_dev_queries(
    retriever, collection, tmp_path
):
    retriever.search_config = dataclasses.replace(retriever.search_config, lexical_weight=0.0)
    evaluation = dsi.evaluate(retriever, grade(collection))
    assert evaluation.measures == ("nDCG@10", "RR@10", "Recall@100")
    assert set(evaluation.row("generate").values) == set(STANDARD_MEASURES)
    assert {len(found) for found in evaluation.runs["generate"].values()} == {len(collection.documents)}
    names = [row.name for row in evaluation.rows]
    assert {"BM25", "RRF of BM25 and dense", "dense + BM25"} <= set(names) <= set(evaluation_module.ROWS)
    assert evaluation.row("dense + BM25").settings["lexical_weight"] > 0
    text = str(evaluation)
    assert "Total nDCG@10 / RR@10 / Recall@100" in text
    assert "Hit@1" not in text
    assert "The index has nDCG@10 " in text
    evaluation.save(tmp_path / "results.json")
    record = json.loads((tmp_path / "results.json").read_text())
    assert list(record["systems"]) == names
    assert (record["measures"], record["depth"]) == (["nDCG@10", "RR@10", "Recall@100"], 100)
    exact = mean(evaluation.row("BM25").values["nDCG@10"])
    assert record["systems"]["BM25"]["Total"]["nDCG@10"] == 100 * exact
    shallow = dsi.evaluate(retriever, collection, depth=10)
    assert shallow.measures == ("nDCG@10", "RR@10")
    assert "RR@10" in shallow.summary()


def test_another_collection_is_refused(retriever, beir):
    document, query = '{"_id": "x", "text": "t"}', '{"_id": "q", "text": "t"}'
    rows = "q\tx\t1"
    other = dsi.read_collection(beir(document, query, train=rows, dev=rows, test=rows))
    for call in (dsi.evaluate, dsi.tune):
        with pytest.raises(ValueError, match="the index share no document; give the one that it was made of"):
            call(retriever, other)


@pytest.fixture(scope="module")
def graded(tmp_path_factory, sentence_t5_folder):
    """300 documents of random words, 40 queries with 20 relevant ones each, ten of them for dev, and an index without BM25."""
    rng, words = random.Random(0), [f"word{n}" for n in range(60)]
    documents = [{"id": f"d{n}", "text": " ".join(rng.choices(words, k=12))} for n in range(300)]
    queries = {f"q{n}": " ".join(rng.choices(words, k=3)) for n in range(40)}
    judged = {query_id: {f"d{n}": 1 for n in rng.sample(range(300), 20)} for query_id in queries}
    split = {"dev": {q: judged[q] for q in list(judged)[:10]}, "test": {q: judged[q] for q in list(judged)[10:]}}
    collection = Collection.from_records(documents, queries=queries, qrels=split)
    config = (
        Config()
        .without_training()
        .with_changes(
            {"encoder": {"name": str(sentence_t5_folder), **PROMPTS}, "bf16": False, "search": {"lexical_weight": 0.0}}
        )
    )
    return collection, dsi.train(collection, tmp_path_factory.mktemp("graded") / "run", config=config, device="cpu")


def test_a_reranker_that_changes_nothing_has_the_row_of_the_index(graded):
    pytest.importorskip("dsi.rerankers")
    collection, retriever = graded
    same = {"same": [lambda hits: [hit.score for hit in hits]]}
    evaluation = dsi.evaluate(retriever, collection, rerankers=same, rerank_depth=20)
    assert evaluation.measures[-1] == "Recall@100"
    assert evaluation.row("+ same").values == evaluation.row("generate").values


def test_learned_pairs_without_an_effect_are_named(graded):
    collection, retriever = graded
    assert dsi.evaluate(retriever, collection).note == ""
    taught = copy(retriever)
    taught.learn(
        [(text, next(iter(collection.qrels["test"][name]))) for name, text in collection.query_texts("test").items()]
    )
    alone = [IndexRuns(collection, own).run("test", **runs.generator_only(own)) for own in (retriever, taught)]
    assert alone[0] == alone[1]  # what was learned is not in a row of the generator alone
    taught.search_config = dataclasses.replace(taught.search_config, memory_weight=0.0)
    told = dsi.evaluate(taught, collection)
    assert told.note == "The index has learned 30 pairs without effect: memory_weight is 0."
    assert told.row("generate").values == dsi.evaluate(retriever, collection).row("generate").values


@pytest.mark.parametrize(("alpha", "note"), [(0.0, "The generator has no part in the answers: alpha is 0."), (0.3, "")])
def test_a_generator_without_a_part_is_named(encoder, alpha, note):
    pytest.importorskip("dsi.generator.model")
    retriever = small_index(encoder)
    documents = [{**own, "id": own["doc_id"]} for own in DOCUMENTS[:50]]
    asked = {own["doc_id"]: own["title"] for own in DOCUMENTS[:6]}
    collection = Collection.from_records(
        documents, queries=asked, qrels={"test": {doc_id: {doc_id: 1} for doc_id in asked}}
    )
    assert dsi.evaluate(retriever, collection, alpha=alpha).note == note


def test_words_have_a_weight_in_the_hybrid_row_though_the_index_gives_them_none(graded):
    collection, retriever = graded
    assert retriever.search_config.lexical_weight == 0.0
    assert dsi.evaluate(retriever, collection).row("dense + BM25").settings["lexical_weight"] == LEXICAL_WEIGHT


def test_nothing_is_tuned_on_dev_where_dev_is_measured(graded, monkeypatch):
    def tuned(*_, **__):
        raise AssertionError("tuned on the queries that are measured")

    collection, retriever = graded
    monkeypatch.setattr(runs, "choose_weights", tuned)
    evaluation = dsi.evaluate(retriever, collection, "dev")
    assert evaluation.row("dense + BM25").settings["lexical_weight"] == LEXICAL_WEIGHT


def test_results_need_no_git_and_name_no_commit_of_another_project(tmp_path, monkeypatch):
    assert re.fullmatch("[0-9a-f]{40}", provenance.provenance()["commit"])
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "provenance.py").write_text("")
    assert provenance.provenance()["commit"] == ""
    monkeypatch.setenv("PATH", "")
    assert provenance.provenance()["commit"] == ""


def test_a_query_without_a_relevant_document_is_in_neither_half():
    splits = overlap_splits({"a": {"x": 1}, "b": {"y": 1}, "none": {"x": 0}}, {"x"})
    assert splits == {"Total": ["a", "b", "none"], "Overlap": ["a"], "No Overlap": ["b"]}


def result(name, *values):
    own = {str(query): value for query, value in enumerate(values)}
    return SystemResult(name, {"Hit@1": own, "Hit@10": own}, {})


def test_the_conclusion_names_the_strongest_rival_and_corrects_p_for_the_number_of_comparisons():
    one, other = [1.0] * 30 + [0.0] * 10, [1.0] * 20 + [0.0] * 20
    rows = [
        result("BM25", *other), result("dense", *[0.0] * 40), result("dense + BM25", *one),
        result("generate", *one), result("exact", *[1.0] * 40), result("+ reranker", *[1.0] * 40),
    ]  # fmt: skip
    splits = {"Total": [str(query) for query in range(40)], "Overlap": [], "No Overlap": []}
    evaluation = Evaluation(rows, "generate", ("Hit@1", "Hit@10"), {}, splits, {})
    plain = {row.name: randomisation_test(rows[3].values["Hit@1"], row.values["Hit@1"], rounds=10_000) for row in rows}
    del plain["generate"]
    corrected = dict(zip(plain, holm([p for _, p in plain.values() for _ in range(2)])[::2], strict=True))
    assert corrected["BM25"] > plain["BM25"][1]
    said = evaluation.summary().splitlines()
    assert said[1].startswith("The strongest baseline is dense + BM25: Hit@1 75.0; no significant difference")
    assert said[2].startswith("Too few queries to tell them apart: judge 10 more")
    assert f"BM25: Hit@1 +25.00 (p={corrected['BM25']:.4f})" in evaluation.significance()
    assert "Holm-corrected for 10 comparisons" in evaluation.significance()


FEW = [(4, 2, 46), (20, 0, 30), (49, 8, 1), (60, 0, 0), (60, 20, 453), (2000, 400, 0)]


@pytest.mark.parametrize(("queries", "differ", "more"), FEW)
def test_too_few_queries_say_how_many_more_to_judge(queries, differ, more):
    other = [0.5 + (n < differ) * (0.5 if n % 2 else -0.5) for n in range(queries)]
    doubled = [result("BM25", *[2 * value for value in other]), result("generate", *[1.0] * queries)]
    splits = {"Total": [str(query) for query in range(queries)], "Overlap": [], "No Overlap": []}
    evaluation = Evaluation(doubled, "generate", ("Hit@1", "Hit@10"), {}, splits, {})
    advice = [line for line in str(evaluation).splitlines() if line.startswith("Too few queries")]
    assert len(advice) == bool(more)
    assert all(f": judge {more} more. `dsi evaluate --show 20` prints" in line for line in advice)
    assert evaluation.significance() == ""
    assert "No difference to another row is significant (paired randomisation tests, Holm-corrected" in str(evaluation)
