"""The growth benchmark at small sizes: it builds once, searches in a fresh process, and finds what all products find."""

import json

import numpy as np
import pytest
from dsi_experiments.benchmarks import scale_costs
from dsi_experiments.commands import benchmark_scale as scale

from dsi.commands.main import main
from dsi.docids.files.processes import ALONE
from dsi.docids.tree import DocidTree
from tests.support.tables import table_rows


@pytest.mark.slow
def test_it_builds_once_and_searches_in_a_fresh_process(tmp_path, capsys, monkeypatch):
    output, work = tmp_path / "scale", tmp_path / "work"
    command = [
        "benchmark-scale", "--sizes", "3000", "1500", "--dim", "32", "--output", str(output), "--work", str(work),
    ]  # fmt: skip
    assert main([*command, "--processes", "2"]) == 0
    printed = table_rows(capsys.readouterr().out)
    assert ["documents", "1,500", "3,000"] in printed
    rows = json.loads((output / "scale.json").read_text())["rows"]
    assert [row["documents"] for row in rows] == [1500, 3000]
    for row in rows:
        recalls = [beam["recall@10"] for beam in row["beams"]]
        reads = [beam["vectors read"] for beam in row["beams"]]
        assert reads == sorted(reads)  # recall may fall: among more documents a code can push a true one out
        assert max(recalls) - recalls[-1] < 0.01
        assert recalls[-1] > 0.9
        assert row["beams"][0]["vectors read"] < row["documents"]
        assert row["exact"]["vectors read"] == row["documents"]
    tree = DocidTree.load(work / "3000x32" / "docids.safetensors")
    assert tree.embeddings.dtype == np.int8
    assert (output / "scale.svg").stat().st_size > 5_000

    monkeypatch.setattr(scale_costs, "build_tree", None)
    assert main(command) == 0
    again = json.loads((output / "scale.json").read_text())["rows"]
    assert [row["build, s"] for row in again] == [row["build, s"] for row in rows]


def test_the_true_answers_are_those_of_all_products(tmp_path, monkeypatch):
    monkeypatch.setattr(scale_costs, "_BLOCK", 700)
    scale_costs.write_documents(tmp_path, 2000, 16)
    documents, queries = np.load(tmp_path / "documents.npy").astype(np.float32), scale_costs._queries(tmp_path)
    products = queries @ documents.T
    expected = np.argsort(-products, axis=1)[:, :10]
    found = scale_costs.true_answers(tmp_path)
    scores = (np.take_along_axis(products, rows, axis=1) for rows in (found, expected))
    np.testing.assert_allclose(*scores, atol=1e-6)
    monkeypatch.setattr(scale_costs, "faiss", None)
    np.testing.assert_array_equal(scale_costs.true_answers(tmp_path), found)


def test_what_is_there_is_not_made_again(tmp_path, monkeypatch):
    scale_costs.write_documents(tmp_path, 2000, 16)
    record = scale_costs.build(tmp_path, ALONE)
    assert 0 < record["bytes a document on disk"] < 100
    monkeypatch.setattr(scale_costs, "Clouds", None)
    monkeypatch.setattr(scale_costs, "build_tree", None)
    scale_costs.write_documents(tmp_path, 2000, 16)
    assert scale_costs.build(tmp_path, ALONE) == record


def test_a_recall_that_no_beam_reaches_has_no_time():
    row = {"beams": [{"recall@10": 0.85, "ms at batch 1": 2.0, "ms at batch 64": 1.0}]}
    assert [scale._cells(row, recall) for recall in scale.RECALLS] == ["2 / 1", "—", "—"]
