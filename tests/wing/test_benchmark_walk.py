"""What the walk of an index earns: its controls and beam widths, beside what `evaluate` finds."""

import json

import pytest
from dsi_experiments.commands.benchmark_walk import WALK, WORDS, main, walk_rows

import dsi
from dsi.eval.measures import mean
from dsi.measuring.runs import IndexRuns
from tests.support.evaluated import collection, retriever  # noqa: F401 (fixtures)


def test_a_beam_of_the_index_finds_what_it_finds_by_default(retriever, collection, tmp_path, capsys):
    evaluation = dsi.evaluate(retriever, collection)
    rows = {row.name: row for row in walk_rows(IndexRuns(collection, retriever), "test", [1, 3, 500])}
    assert list(rows) == [WORDS, WALK, "walk without BM25, beam 40", "beam 1", "beam 3", "beam 500", "exact"]
    for name, other in (("beam 3", "generate"), ("exact", "exact")):
        values = evaluation.row(other).values
        assert rows[name].hits == (100 * mean(values["Hit@1"]), 100 * mean(values["Hit@10"]))
        assert round(rows[name].read) == evaluation.row(other).settings["vectors read"]
    assert rows["exact"].agree == rows["beam 500"].agree == 1.0
    assert rows["beam 1"].agree < 1.0
    assert rows["beam 1"].read < rows["beam 500"].read
    retriever.save(tmp_path / "run")
    main([str(tmp_path / "run"), str(collection.name), "--device", "cpu", "--output", str(tmp_path / "out")])
    assert f"| {WORDS} " in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "walk.json").read_text())
    assert [row["name"] for row in record["rows"]][-6:] == [
        *(f"beam {width}" for width in (5, 10, 20, 40, 80)),
        "exact",
    ]


def test_judgements_are_needed(retriever, collection, tmp_path):
    retriever.save(tmp_path / "run")
    dsi.Collection.from_records(["a text"]).save(tmp_path / "bare")
    with pytest.raises(ValueError, match=r"has no test judgements; add qrels/test\.tsv"):
        main([str(tmp_path / "run"), str(tmp_path / "bare"), "--device", "cpu"])
