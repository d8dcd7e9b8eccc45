"""`dsi results`: the table of the README from measured files, collections by their hashes, what was measured again."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from dsi_experiments.commands import results
from dsi_experiments.commands.results import COLUMNS, GROUPS, PAPER, main, readme_table, rows

from dsi.docids.data.collection import read_collection
from tests.support.small import MINIPEDIA

RESULTS = Path(__file__).parents[2] / "results"


def cells(table):
    """{row: its cells} of a table."""
    return {
        line.split("|")[1].strip(" *"): [cell.strip() for cell in line.split("|")[2:-1]] for line in table.splitlines()
    }


def test_a_cell_is_the_mean_of_the_measured_files():
    found = cells(readme_table(RESULTS))
    assert list(found)[2:] == [*rows(), PAPER]
    example = json.loads((RESULTS / "evaluate/minipedia/example.json").read_text())["systems"]
    assert found["BM25"][0] == f"{example['BM25']['Total']['nDCG@10']:.1f}"
    code = json.loads((RESULTS / "evaluate/world/minilm/cosqa.json").read_text())["systems"]
    assert found["generate"][6] == f"{code['generate']['nDCG@10']:.1f}"
    thai, chinese, eleven = (
        json.loads((RESULTS / f"evaluate/world/multilingual-e5-small/{name}.json").read_text())["systems"]
        for name in ("iapp_thai", "cmrc2018_zh", "xquad_mixed")
    )
    mean = sum(one["RRF (k = 60)"]["nDCG@10"] for one in (thai, chinese, eleven)) / 3
    assert found["RRF of BM25 and dense"][8] == f"{mean:.1f}"
    assert found[PAPER] == ["69.1", "65.1", "77.0", *"––––––"]
    assert found["without earlier queries"][4:] == [*"–––––"]


def test_a_collection_is_in_the_group_of_its_texts():
    grouped = [name for group in GROUPS if group.encoder == "minilm" for name in group.collections]
    assert sorted(grouped) == sorted(path.stem for path in (RESULTS / "evaluate/world/minilm").glob("*.json"))
    short, long = GROUPS[:2]
    for group in (short, long):
        for name in group.collections:
            known = json.loads((RESULTS / f"evaluate/world/minilm/{name}.json").read_text())
            assert (known["pieces"] >= 1.5 * known["documents"]) == (group is long), name


def test_the_collection_that_ships_is_the_one_that_was_measured():
    assert read_collection(MINIPEDIA).digest.startswith(COLUMNS[0].digest)


@pytest.fixture
def measured(monkeypatch):
    """No training: an evaluation in which every system has 12.34 %."""

    def save(path):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"systems": {name: {"Total": {"nDCG@10": 12.34}} for name in rows()}}))

    monkeypatch.setattr(results, "load_libraries", lambda **_: None)
    monkeypatch.setattr("dsi.measuring.evaluation.evaluate", lambda *_, **__: SimpleNamespace(save=save))
    monkeypatch.setattr("dsi.training.pipeline.train", lambda *_, **__: None)


def test_what_is_there_is_measured_again_and_the_rest_is_named(measured, tmp_path, capsys):
    (tmp_path / "squad2k").symlink_to(MINIPEDIA)
    main(["--data", str(tmp_path), "--results", str(RESULTS), "--output", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert (
        f"squad2k is not measured again: {tmp_path / 'squad2k'} is another collection (18d8a8a182e69277, not "
        in said.err
    )
    assert (
        f"nq10k is not measured again: {tmp_path / 'nq10k'} does not exist; --data DIR names the folder above it.\n"
        in said.err
    )
    table = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert table == said.out
    stored, again = cells(readme_table(RESULTS)), cells(table)
    assert [row[0] for name, row in again.items() if name in rows()] == ["12.3"] * len(rows())
    assert {name: row[1:] for name, row in again.items()} == {name: row[1:] for name, row in stored.items()}
