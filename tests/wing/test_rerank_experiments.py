"""The experiments with rerankers as commands, on small made-up data; measures of diversity."""

import gzip
import json
import re

import numpy as np
import pytest
from dsi_experiments import diversity, ltr, parsing
from dsi_experiments.rerankers.lists import bootstrap_interval
from dsi_experiments.rerankers.parse_ranker import ParserConfig
from dsi_experiments.subtopics import evaluate_diversity, read_subtopics
from sklearn.datasets import dump_svmlight_file

from dsi.commands.main import main
from tests.support.judged import judged
from tests.support.small import thin_out


def printed(capsys):
    """What was printed, without the spaces that line up the columns of tables."""
    return re.sub(" +", " ", capsys.readouterr().out)


def test_diversity_is_measured_as_by_hand(tmp_path):
    path = tmp_path / "qrels"
    path.write_text("q 1 a 1\nq 2 a 1\nq 1 b 1\nq 2 c 1\nq 3 c 0\n\nr 1 x 1\n")
    subtopics = read_subtopics(path)
    assert subtopics == {"q": {"a": ["1", "2"], "b": ["1"], "c": ["2"]}, "r": {"x": ["1"]}}
    run = {"q": {"a": 3.0, "b": 2.0, "c": 1.0}, "unjudged": {"a": 1.0}}
    values = evaluate_diversity(run, subtopics, ["alpha_nDCG@3", "StRecall@1", "ERR_IA@3"])
    gains = 2 + 0.5 / np.log2(3) + 0.5 / np.log2(4)
    assert values["alpha_nDCG@3"]["q"] == pytest.approx(gains / gains)
    worse = evaluate_diversity({"q": {"b": 3.0, "a": 2.0, "c": 1.0}}, subtopics, ["alpha_nDCG@3"])["alpha_nDCG@3"]["q"]
    assert worse == pytest.approx((1 + 1.5 / np.log2(3) + 0.5 / np.log2(4)) / gains, rel=1e-4)
    assert values["StRecall@1"] == {"q": 1.0, "r": 0.0}
    path.write_text("q 1 a\n")
    with pytest.raises(ValueError, match="line 1: expected `query subtopic document relevance`"):
        read_subtopics(path)


def test_the_bootstrap_interval_holds_the_difference_and_narrows_with_queries():
    rng = np.random.default_rng(0)
    widths = []
    for n in (100, 1000):
        a = {str(q): float(v) for q, v in enumerate(rng.normal(0.1, 1, n))}
        difference, low, high = bootstrap_interval(a, dict.fromkeys(a, 0.0))
        assert low < difference < high
        assert difference == pytest.approx(np.mean(list(a.values())))
        assert high - low == pytest.approx(2 * 1.96 * np.std(list(a.values())) / np.sqrt(n), rel=0.1)
        widths.append(high - low)
    assert widths[1] < widths[0]
    assert bootstrap_interval({"a": 1.0}, {"a": 0.5}) == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="same queries"):
        bootstrap_interval({"a": 1.0}, {"b": 1.0})


def test_learning_to_rank_is_a_command(tmp_path, monkeypatch, capsys):
    lists = judged(lists=40, per_list=6)
    for name, rows, count in (("train", slice(0, 180), 30), ("test", slice(180, 240), 10)):
        dump_svmlight_file(lists.features[rows], lists.labels[rows], str(tmp_path / f"rank.{name}"))
        (tmp_path / f"rank.{name}.query").write_text("6\n" * count)
    few = ("ridge regression", "LambdaMART", "LambdaSMART on ridge regression")
    monkeypatch.setattr(ltr, "SYSTEMS", {name: ltr.SYSTEMS[name] for name in few})
    monkeypatch.setattr(ltr, "BASE_QUERIES", 5)
    monkeypatch.setattr(ltr, "FOLDS", 2)
    monkeypatch.setattr(ltr, "SPLITS", 2)
    output = tmp_path / "out"
    assert main(["reproduce", "ltr", "--data", str(tmp_path), "--output", str(output)]) == 0
    assert "| LambdaSMART, base and 10 queries |" in printed(capsys)
    record = json.loads((output / "ltr.json").read_text())
    by_query = record["nDCG(dcg='exp-log2')@10 by query"]
    assert set(by_query) == set(few)
    assert len(by_query["LambdaMART"][0]) == 40
    assert main(["reproduce", "ltr", "--output", str(output)]) == 2
    assert "give --data" in capsys.readouterr().err


def test_diversification_is_a_command(beir, tmp_path, monkeypatch, capsys):
    folder = beir()
    documents = [json.loads(line)["_id"] for line in (folder / "corpus.jsonl").read_text().splitlines()]
    queries = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()][:12]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    rng = np.random.default_rng(0)
    run, qrels = [], []
    for query in queries:
        for rank, row in enumerate(rng.permutation(40)[:8]):
            run.append(f"{query['_id']} Q0 {documents[row]} {rank} {8 - rank} bm25")
            qrels.append(f"{query['_id']} {row % 3} {documents[row]} 1")
    (folder / "bm25.run").write_text("\n".join(run))
    (folder / "qrels" / "diversity.qrels").write_text("\n".join(qrels))
    small = {
        "BM25's order": diversity.SYSTEMS["BM25's order"],
        "MMR, tuned": diversity.SYSTEMS["MMR, tuned"],
        "M2Div, K = 1000, policy alone": diversity._m2div(simulations=10, exploration=1.0, epochs=1),
    }
    monkeypatch.setattr(diversity, "SYSTEMS", small)
    for name, value in (("WIDTH", 8), ("RANKING_SIMULATIONS", 5), ("FOLDS", 2)):
        monkeypatch.setattr(diversity, name, value)
    output = tmp_path / "out"
    arguments = ["reproduce", "diversity", "--data", str(folder), "--output", str(output), "--seeds", "0", "1"]
    assert main(arguments) == 0
    shown = printed(capsys)
    assert "| M2Div, K = 1000, search when ranking (K = 200) |" in shown
    record = json.loads((output / "diversity.json").read_text())["measures"]
    assert [len(record[name]) for name in record] == [1, 1, 2, 2]


@pytest.mark.slow
def test_parsing_and_the_treebank_are_commands(beir, tmp_path, monkeypatch, capsys):
    few = {name: parsing.SETTINGS[name] for name in (parsing.REFERENCE, "end to end")}
    few[parsing.UNGUARDED] = ParserConfig(divergence=0.0, rounds=2, steps=3)
    monkeypatch.setattr(parsing, "SETTINGS", few)
    monkeypatch.setattr(parsing, "FOLDS", 2)
    monkeypatch.setattr(parsing, "DEPTH", 10)
    data, output = thin_out(beir(), test=3), tmp_path / "out"
    assert main(["reproduce", "parsing", "--data", str(data), "--output", str(output)]) == 0
    assert "| end to end, without guards |" in printed(capsys)
    record = json.loads((output / "parsing.json").read_text())
    assert all(after <= before for own in record["objective"].values() for before, after in own)
    sentence = (
        "1\tthe\t_\tDET\t_\t_\t2\t_\t_\t_\n2\tcat\t_\tNOUN\t_\t_\t3\t_\t_\t_\n3\tsleeps\t_\tVERB\t_\t_\t0\t_\t_\t_\n\n"
    )
    for split in ("train", "test"):
        with gzip.open(tmp_path / f"{split}.conllu.gz", "wt") as file:
            file.write("# text = the cat sleeps\n" + 3 * sentence)
    assert main(["reproduce", "treebank", "--data", str(tmp_path), "--output", str(output)]) == 0
    shown = printed(capsys)
    assert "| head = the word after | 100.0 % |" in shown
    assert "| head = the word before | 0.0 % |" in shown
    assert "| supervised, best trees | 100.0 % |" in shown
