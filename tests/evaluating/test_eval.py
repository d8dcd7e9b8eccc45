"""Measures on five hand-made documents and against ir_measures; TREC files; splits, tuning, significance, baselines."""

import math
import random

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from dsi_experiments.rerankers.lists import bootstrap_interval
from dsi_experiments.subtopics import find_measure, read_subtopics
from scipy import stats

from dsi.docids.words.bm25 import BM25
from dsi.eval.baselines import BM25_GRID, tune_bm25
from dsi.eval.fusion import reciprocal_rank_fusion
from dsi.eval.measures import STANDARD_MEASURES, cutoff, evaluate, mean, measure_name, measures_for, ranking
from dsi.eval.protocol import (
    SystemResult,
    best_setting,
    holm,
    overlap_splits,
    randomisation_test,
    table,
)
from dsi.eval.tables import markdown_table
from dsi.eval.trec import read_run, run_without_ties, without_ties, write_qrels, write_run
from dsi.measuring.comparison import compare_runs

QRELS = {"q1": {"a": 2, "b": 1, "c": 0}, "q2": {"d": 1}, "q3": {"e": 1}}
RUN = {"q1": {"c": 3.0, "b": 2.0, "a": 1.0}, "q2": {"a": 1.0, "d": 1.0}}  # q2 is a tie; q3 has no results
#                    ranked:  c, b, a                a, d


def test_golden_values_on_five_documents():
    values = evaluate(RUN, QRELS, ["Hit@1", "Hit@2", "RR@10", "nDCG@10", "Recall@2"])
    assert values["Hit@1"] == {"q1": 0, "q2": 0, "q3": 0}
    assert values["Hit@2"] == {"q1": 1, "q2": 1, "q3": 0}
    assert values["RR@10"] == {"q1": 0.5, "q2": 0.5, "q3": 0}
    assert values["Recall@2"] == {"q1": 0.5, "q2": 1, "q3": 0}
    # gains 0, 1, 2 at discounts 1, log2 3, 2 against the ideal 2, 1
    expected = (1 / math.log2(3) + 2 / 2) / (2 + 1 / math.log2(3))
    assert values["nDCG@10"] == pytest.approx({"q1": expected, "q2": 1 / math.log2(3), "q3": 0})
    assert mean(values["Hit@2"]) == pytest.approx(2 / 3)
    assert mean(values["Hit@2"], ["q1", "q3"]) == 0.5


SAME = {
    "Hit@1": "Success@1", "Hit@5": "Success@5", "Hit@10": "Success@10", "RR@10": "RR@10", "nDCG@10": "nDCG@10",
    "Recall@100": "R@100", "Recall@5": "R@5", "P@10": "P@10", "F@20": "SetF", "AP": "AP", "AP@7": "AP@7", "nDCG": "nDCG",
    "RR": "RR",
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_against_ir_measures_on_random_runs(name):
    rng = random.Random(0)
    docs = [f"d{n}" for n in range(40)]
    qrels = {f"q{n}": {d: rng.randint(0, 3) for d in rng.sample(docs, 9)} | {docs[n]: 1} for n in range(30)}
    # different scores: ir_measures' back ends break ties by other rules than ours
    depth = 20 if name == "F@20" else 25  # SetF counts all answers
    run = {q: dict(zip(rng.sample(docs, depth), rng.sample(range(1000), depth), strict=True)) for q in list(qrels)[:28]}
    ours = evaluate(run, qrels, [name])[name]
    measure = find_measure(SAME[name])
    theirs = {metric.query_id: metric.value for metric in ir_measures.iter_calc([measure], qrels, run)}
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert len(set(ours.values())) > 1
    assert mean(ours) == pytest.approx(ir_measures.calc_aggregate([measure], qrels, run)[measure], abs=1e-6)


@pytest.mark.parametrize("step", [0.0, 1e-12, 1e-8], ids=["equal", "equal as float32", "nearly equal"])
def test_a_trec_run_with_ties_gives_the_same_numbers_in_other_programs(tmp_path, step):
    rng = random.Random(1)
    docs = [f"d{n}" for n in range(120)]
    qrels = {f"q{n}": {d: rng.randint(0, 3) for d in rng.sample(docs, 12)} | {docs[n]: 1} for n in range(30)}
    scores = [0.5, 0.25, 1 / 61 + 1 / 62, 0.0, -3.0]
    run = {q: {d: rng.choice(scores) + step * rng.randrange(5) for d in rng.sample(docs, 110)} for q in qrels}
    write_run(run, tmp_path / "run", "tag")
    names = [name for name in STANDARD_MEASURES if name in SAME]
    ours = {SAME[name]: mean(values) for name, values in evaluate(run, qrels, names).items()}
    measures = [find_measure(name) for name in ours]
    theirs = ir_measures.calc_aggregate(measures, qrels, list(ir_measures.read_trec_run(str(tmp_path / "run"))))
    assert ours == pytest.approx({str(measure): value for measure, value in theirs.items()}, abs=1e-12)
    at_once = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recip_rank"}).evaluate(read_run(tmp_path / "run"))
    assert mean({q: found["ndcg_cut_10"] for q, found in at_once.items()}) == pytest.approx(ours["nDCG@10"], abs=1e-12)
    kept = evaluate(run, qrels, ["RR@110"])["RR@110"]
    assert kept == pytest.approx({q: found["recip_rank"] for q, found in at_once.items()})


def test_scores_without_ties_fall_as_float32_too_and_other_scores_stay():
    scores = sorted((random.Random(n).choice([0.1, 0.1 + 1e-15, 2 / 61, 0.0]) for n in range(50)), reverse=True)
    written = without_ties(scores)
    assert (np.diff(np.array(written, dtype=np.float32)) < 0).all()
    assert (np.diff(written) < 0).all()
    assert written == pytest.approx(scores, abs=1e-6)
    assert without_ties([3.1, 2.2, -1e-9]) == [3.1, 2.2, -1e-9]
    assert without_ties([]) == []


def test_the_judgements_ask_for_measures():
    assert measures_for({"q": {"a": 1}, "r": {"b": 1, "c": 0}}) == ("Hit@1", "Hit@5", "Hit@10")
    assert measures_for({"q": {"a": 3}, "r": {"b": 3}}) == ("Hit@1", "Hit@5", "Hit@10")
    for graded_or_several in ({"q": {"a": 1}, "r": {"b": 2}}, {"q": {"a": 1, "b": 1}}):
        assert measures_for(graded_or_several) == ("nDCG@10", "RR@10", "Recall@100")


def test_all_standard_measures_are_compared_with_ir_measures():
    assert set(STANDARD_MEASURES) <= SAME.keys()


def test_bad_measures_and_empty_judgements_are_refused():
    for name in ("foo", "ndcg10", "Recall", "Hit@0"):
        with pytest.raises(ValueError, match=f"Unknown measure '{name}'"):
            evaluate(RUN, QRELS, [name])
    with pytest.raises(ValueError, match="no judged queries"):
        evaluate(RUN, {})


def test_trec_files_survive_writing_and_reading(tmp_path):
    write_run(RUN, tmp_path / "run", "tag")
    assert (tmp_path / "run").read_text().splitlines()[0] == "q1 Q0 c 1 3.0 tag"
    below = float(np.nextafter(np.float32(1), np.float32(0)))
    assert read_run(tmp_path / "run") == {**RUN, "q2": {"a": 1.0, "d": below}}
    theirs = {q.query_id for q in ir_measures.read_trec_run(str(tmp_path / "run"))}
    assert theirs == {"q1", "q2"}


@pytest.mark.parametrize("name", ["", "a b", "a\tb", "a\n", "\u2003"])
def test_a_trec_run_holds_no_white_space_in_a_field(tmp_path, name):
    for run, tag in (({name: {"d": 1.0}}, "tag"), ({"q": {"d": 1.0, name: 0.5}}, "tag"), ({"q": {"d": 1.0}}, name)):
        with pytest.raises(ValueError, match=r"must not be empty or hold white space, which separates .*; rename it"):
            write_run(run, tmp_path / "run", tag)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q Q0 d 1 2.0", "line 1: expected `query_id Q0 doc_id rank score tag`"),
        ("q Q0 d 1 high t", "line 1: expected a number, got 'high'"),
        ("q Q0 d 1 nan t", "score of document 'd' for query 'q' must be a number, got nan"),
        ("q Q0 d 1 2 t\nq Q0 d 2 1 t", "line 2: document 'd' comes twice for query 'q'"),
    ],
)
def test_bad_trec_lines_are_named(tmp_path, content, message):
    (tmp_path / "run").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_run(tmp_path / "run")


@pytest.mark.parametrize("relevance", ["--1", "²", "٣", "1_0", "1.0", "9" * 30])
def test_a_relevance_is_a_plain_integer(tmp_path, relevance):
    (tmp_path / "qrels").write_text(f"q 0 a 1\r\nq 0 d {relevance}\r\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"qrels, line 2: expected an integer, got '{relevance}'"):
        read_subtopics(tmp_path / "qrels")


def test_a_run_with_a_byte_order_mark_is_read_and_one_in_another_encoding_is_not(tmp_path):
    (tmp_path / "run").write_bytes("\ufeffq Q0 a 1 2.0 t\r\n\r\nq Q0 c 2 1.0 t".encode())
    assert read_run(tmp_path / "run") == {"q": {"a": 2.0, "c": 1.0}}
    (tmp_path / "run").write_bytes(b"q Q0 a 1 2.0 t\n\xff")
    with pytest.raises(ValueError, match="run, line 2: not text in UTF-8"):
        read_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("theirs", "name", "depth"),
    [
        ("map", "AP", 1000), ("MAP@100", "AP@100", 100), ("ndcg", "nDCG", 1000), ("ndcg_cut_10", "nDCG@10", 10),
        ("ndcg_cut.5", "nDCG@5", 5), ("P@5", "P@5", 5), ("P_5", "P@5", 5), ("recall_100", "Recall@100", 100),
        ("R@5", "Recall@5", 5),
        ("mrr", "RR", 1000), ("MRR@10", "RR@10", 10), ("recip_rank", "RR", 1000), ("success_1", "Hit@1", 1), ("f1@3", "F@3", 3),
    ],
)  # fmt: skip
def test_measures_are_read_as_others_write_them(theirs, name, depth):
    assert (measure_name(theirs), measure_name(name), cutoff(theirs)) == (name, name, depth)
    assert evaluate(RUN, QRELS, [theirs])[theirs] == evaluate(RUN, QRELS, [name])[name]


@pytest.mark.parametrize("step", [0.0, 1e-12, 1.0])
def test_a_run_of_another_program_ranks_as_in_trec_eval(tmp_path, step):
    rng = random.Random(2)
    docs = [f"d{n}" for n in range(60)]
    qrels = {f"q{n}": {d: rng.randint(0, 2) for d in rng.sample(docs, 9)} | {docs[n]: 1} for n in range(20)}
    run = {q: {d: rng.choice([0.5, 0.25, -3.0]) + step * rng.randrange(9) for d in rng.sample(docs, 50)} for q in qrels}
    lines = [f"{q} Q0 {d} {n} {score!r} t\n" for q, own in run.items() for n, (d, score) in enumerate(own.items())]
    (tmp_path / "run").write_text("".join(lines))
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"map", "ndcg", "ndcg_cut.10", "recip_rank", "P.5"}).evaluate(run)
    ours = evaluate(read_run(tmp_path / "run"), qrels, names := ["map", "ndcg", "ndcg_cut_10", "recip_rank", "P_5"])
    for name in names:
        assert ours[name] == pytest.approx({q: values[name] for q, values in theirs.items()}, abs=1e-9)


def test_means_are_not_rounded():
    result = SystemResult(
        "ours", evaluate({"q1": {"a": 1.0}}, {q: {"a": 1} for q in ("q1", "q2", "q3")}, ["Hit@1"]), {}
    )
    assert result.means({"Total": ["q1", "q2", "q3"]}) == {"Total": {"Hit@1": 100 * (1 / 3)}}


def test_splits_and_table():
    splits = overlap_splits(QRELS, {"b", "x"})
    assert splits == {"Total": ["q1", "q2", "q3"], "Overlap": ["q1"], "No Overlap": ["q2", "q3"]}
    result = SystemResult("ours", evaluate(RUN, QRELS), {"alpha": 0.5})
    assert result.means(splits)["Overlap"]["Recall@100"] == 100
    lines = table([result], splits, ["Hit@1", "Hit@10"]).splitlines()
    assert lines[0].startswith("| system | Total Hit@1 / Hit@10 (3)")
    assert "| 0.00 / 66.67" in lines[2]
    empty = overlap_splits({"q1": {"b": 1}}, {"b"})
    assert "—" in table([SystemResult("ours", evaluate(RUN, {"q1": {"b": 1}}), {})], empty, ["Hit@1"])


def test_best_setting_takes_the_earliest_of_the_best():
    runs = {0: {"q2": {"a": 1.0}}, 1: {"q2": {"d": 1.0}}, 2: {"q2": {"d": 1.0}}}
    best, tried = best_setting(lambda s: runs[s["n"]], [{"n": 0}, {"n": 1}, {"n": 2}], {"q2": {"d": 1}})
    assert best == {"n": 1}
    assert [value for _, value in tried] == [0, 1, 1]


def test_randomisation_test_against_all_sign_flips():
    a = {f"q{n}": v for n, v in enumerate([1, 1, 1, 0, 1, 1, 0, 1])}
    b = {f"q{n}": v for n, v in enumerate([0, 1, 0, 0, 0, 1, 1, 0])}
    # differences 1 0 1 0 1 0 -1 1: |sum| >= 3 for 12 of the 32 sign patterns of the five that differ
    difference, p = randomisation_test(a, b, rounds=20_000)
    assert difference == 3 / 8
    assert p == pytest.approx(12 / 32, abs=0.015)
    assert randomisation_test(a, a, rounds=100)[1] == 1
    with pytest.raises(ValueError, match="the same queries"):
        randomisation_test(a, {"q0": 1.0})


def paired(seed, queries=300, gap=0.15):
    """Reciprocal ranks of two systems, the first of them better by about `gap` on some queries."""
    rng = np.random.default_rng(seed)
    worse = 1 / rng.integers(1, 12, queries)
    better = np.minimum(1, worse + gap * (rng.random(queries) < 0.1))
    return [{f"q{n}": float(v) for n, v in enumerate(values)} for values in (better, rng.permutation(worse))]


@pytest.mark.parametrize("seed", range(3))
def test_the_randomisation_test_is_scipys(seed):
    a, b = paired(seed)
    differences = np.array([a[q] - b[q] for q in a])
    theirs = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        n_resamples=20_000,
        batch=1000,
        rng=np.random.default_rng(1),
    )
    difference, p = randomisation_test(a, b, rounds=20_000)
    assert difference == pytest.approx(theirs.statistic)
    assert p == pytest.approx(theirs.pvalue, abs=4 * np.sqrt(0.5 / 20_000))  # four standard errors of the two estimates


def test_holms_correction_is_that_of_its_definition():
    p_values = [0.011, 0.02, 0.001, 0.9, 0.03]
    ordered = sorted(p_values)
    expected = [min(1, max((5 - j) * ordered[j] for j in range(ordered.index(p) + 1))) for p in p_values]
    assert holm(p_values) == pytest.approx(expected)
    assert holm(p_values) == pytest.approx([0.044, 0.06, 0.005, 0.9, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_bootstrap_interval_is_that_of_resampled_means():
    a, b = paired(0)
    differences = np.array([a[q] - b[q] for q in a])
    rows = np.random.default_rng(7).integers(0, len(a), size=(10_000, len(a)))
    difference, low, high = bootstrap_interval(a, b)
    assert difference == pytest.approx(differences.mean())
    assert [low, high] == pytest.approx(np.percentile(differences[rows].mean(axis=1), [2.5, 97.5]), abs=2e-3)
    assert bootstrap_interval(a, b) == (difference, low, high)  # one seed, one interval
    assert bootstrap_interval(a, b, seed=1) != (difference, low, high)
    assert bootstrap_interval({"q": 1.0}, {"q": 0.25}) == (0.75, 0.75, 0.75)
    with pytest.raises(ValueError, match="the same queries"):
        bootstrap_interval({}, {})


def test_tables_line_up():
    assert markdown_table(["system", "n"], [["ours", "12,345"], ["±", "—"]]).splitlines() == [
        "| system | n      |",
        "| ------ | ------ |",
        "| ours   | 12,345 |",
        "| ±      | —      |",
    ]
    assert markdown_table(["a"], []) == "| a   |\n| --- |"
    with pytest.raises(ValueError, match="zip"):
        markdown_table(["a", "b"], [["one cell"]])


def test_bm25_prefers_rare_words_and_leaves_out_documents_without_a_match():
    bm25 = BM25(["a", "b", "c"], ["neon gas glows", "helium gas", "rivers of europe"])
    run = bm25.run({"q": "neon gas", "none": "quantum"}, 10)
    assert ranking(run["q"]) == ["a", "b"]
    assert run["none"] == {}


def test_bm25_tuning_picks_from_the_grid_by_dev():
    # "river" twice in a long text against once in a short one: only weak length normalisation ranks the long one first.
    bm25 = BM25(["short", "long"], ["river x", "river " * 3 + "word " * 40], k1=2.0, b=0.9)
    assert ranking(bm25.run({"q": "river"}, 1)["q"]) == ["short"]
    tune_bm25(bm25, {"q": "river"}, {"q": {"long": 1}})
    assert ranking(bm25.run({"q": "river"}, 1)["q"]) == ["long"]
    assert (bm25.k1, bm25.b) in BM25_GRID


def test_bm25_stays_as_it_is_where_dev_queries_tell_nothing():
    bm25 = BM25(["a", "b"], ["river", "neon"])
    before = bm25.k1, bm25.b
    tune_bm25(bm25, {"q": "river"}, {"q": {"a": 0}})
    tune_bm25(bm25, {"q": "river"}, {"q": {"a": 1}})
    assert (bm25.k1, bm25.b) == before == (0.9, 0.4)


def test_a_comparison_tells_intervals_and_a_run_that_ends_before_a_measure():
    qrels = {str(n): {"a": 1, "b": 1} for n in range(40)}
    one = {query_id: {"a": 2.0, "x": 1.0} if int(query_id) % 4 else {"x": 2.0, "a": 1.0} for query_id in qrels}
    two = {query_id: {"a": 2.0, "x": 1.0} for query_id in qrels}
    compared = compare_runs(one, two, qrels, ["RR@10", "Recall@2"])
    values = [50.0 * (int(query_id) % 4 == 0) for query_id in qrels]
    half = 1.96 * np.std(values, ddof=1) / math.sqrt(len(values))
    assert compared.halves == {"RR@10": f" ± {half:.2f}", "Recall@2": ""}
    assert "A has at most 2 documents a query, so its measures @10 are too low." in str(compared)
    assert "too low" not in str(compare_runs(one, two, qrels, ["RR@2"]))
    few = {query_id: two[query_id] for query_id in list(two)[:25]}
    assert "B has no answers to 15 of the 40 queries, which count as 0." in str(compare_runs(one, few, qrels, ["RR@2"]))
    assert "too low" not in str(compare_runs(one, two, {"1": {"a": 1}}, ["RR@10"]))  # all relevant ones are found


@pytest.mark.parametrize("score", [math.nan, np.float32("nan"), None, "2.0", [1.0]])
def test_a_score_that_is_no_number_is_refused_wherever_it_enters_by_query_and_document(tmp_path, score):
    for run in ({"q": {"a": score, "b": 1.0}}, {"q": {"b": 1.0, "a": score}}):
        for use in (
            lambda run: write_run(run, tmp_path / "run", "tag"),
            lambda run: evaluate(run, {"q": {"b": 1}}, ["RR@10"]),
            lambda run: compare_runs({"q": {"b": 1.0}}, run, {"q": {"b": 1}}),
            lambda run: reciprocal_rank_fusion([{"q": {"b": 1.0}}, run]),
            run_without_ties,
        ):
            with pytest.raises(ValueError, match="The score of document 'a' for query 'q' must be a number, got"):
                use(run)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("grade", [math.nan, math.inf, None, "1"])
def test_a_grade_that_is_no_finite_number_is_refused_by_query_and_document(tmp_path, grade):
    qrels, run = {"q": {"b": 1, "a": grade}}, {"q": {"b": 1.0}}
    for use in (
        lambda: write_qrels(qrels, tmp_path / "qrels"),
        lambda: evaluate(run, qrels, ["nDCG@10"]),
        lambda: compare_runs(run, run, qrels, ["nDCG@10"]),
    ):
        with pytest.raises(ValueError, match="The grade of document 'a' for query 'q' must be a finite number, got"):
            use()
    assert not (tmp_path / "qrels").exists()


def test_infinite_scores_have_a_rank():
    run = {"q": {"a": -math.inf, "b": math.inf}}
    assert evaluate(run, {"q": {"b": 1}}, ["RR@10"]) == {"RR@10": {"q": 1.0}}


def test_a_test_of_significance_names_the_query_without_a_value():
    with pytest.raises(ValueError, match=r"Query 'q' needs two finite values to compare, got nan and 1\.0"):
        randomisation_test({"p": 1.0, "q": math.nan}, {"p": 1.0, "q": 1.0})


def test_ids_are_the_same_as_numbers_and_as_texts(tmp_path):
    numbers, texts = {7: {10: 2.0, np.int64(11): 1.0}}, {"7": {"10": 2.0, "11": 1.0}}
    expected = {"RR@10": {"7": 0.5}}
    for run in (numbers, texts):
        for qrels in ({7: {11: 1}}, {"7": {"11": 1}}):
            assert evaluate(run, qrels, ["RR@10"]) == expected
            assert compare_runs(run, texts, qrels, ["RR@10"]).means == {"RR@10": (50.0, 50.0)}
        write_run(run, tmp_path / "run", "tag")
        assert read_run(tmp_path / "run") == texts
        assert list(reciprocal_rank_fusion([run, texts])["7"]) == ["10", "11"]
