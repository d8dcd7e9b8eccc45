"""`dsi results`: the README's columns and rows, collections by their hashes, one line for what is left out."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from dsi_experiments.commands import results
from dsi_experiments.commands.results import COLUMNS, main, rows

from dsi.docids.data.collection import read_collection
from dsi.eval.protocol import SystemResult
from tests.support.small import MINIPEDIA

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_columns_and_rows_are_those_of_the_readme():
    head = next(line for line in README.splitlines() if line.startswith("| | Minipedia"))
    assert [cell.strip() for cell in head.strip("| ").split("|")] == [column.title for column in COLUMNS]
    assert re.findall(r"^\| ([^|-][^|]*?) +\|.* / ", README, re.MULTILINE) == list(rows().values())


def test_the_collection_that_ships_is_the_one_that_was_measured():
    assert read_collection(MINIPEDIA).digest.startswith(COLUMNS[0].digest)


@pytest.fixture
def measured(monkeypatch):
    """No training: an evaluation whose rows have a tenth of their number as Hit@10 of two queries."""
    names = [
        "BM25",
        "dense",
        "RRF of BM25 and dense",
        "dense + BM25",
        "BM25 candidates, full score",
        "walk without BM25, beam 40",
    ]
    names += ["walk without BM25", "generate", "exact"]
    results = [
        SystemResult(
            name, {"Hit@1": {"a": 0.0, "b": 1.0}, "Hit@10": {"a": n / 10, "b": n / 10}}, {"vectors read": 1000}
        )
        for n, name in enumerate(names)
    ]
    by_name = {row.name: row for row in results}
    evaluation = SimpleNamespace(row=by_name.__getitem__, save=lambda path: None)
    monkeypatch.setattr("dsi.measuring.evaluation.evaluate", lambda *_, **__: evaluation)
    monkeypatch.setattr("dsi.training.pipeline.train", lambda *_, **__: None)


def test_the_table_has_what_is_there_and_names_what_is_not(measured, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(results, "load_libraries", lambda: None)
    (tmp_path / "squad2k").symlink_to(MINIPEDIA)
    main(["--data", str(tmp_path), "--output", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert f"squad2k is left out: {tmp_path / 'squad2k'} is another collection (18d8a8a182e69277, not " in said.err
    assert (
        f"nq10k is left out: {tmp_path / 'nq10k'} does not exist; --data DIR names the folder above it.\n" in said.err
    )
    table = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert table == said.out
    assert "about 1 minute on two cores" in said.err
    assert table.splitlines()[0].split("|")[2].strip() == COLUMNS[0].title
    assert re.search(r"\| walk without BM25, beam 40 +\| 50\.00 / 50\.00, 1,000 +\|", table)
    assert len(table.splitlines()) == 2 + len(rows())
