"""`dsi reproduce` on 40 documents with tiny T5 models: every way to answer, shared stages, resuming, tables and figures."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from eval.report import Measured, experiment_table
from scripts.experiments import REFERENCES, TABLES
from scripts.hardware import provenance
from scripts.laboratory import METHODS
from scripts.main import main
from tests.test_pipeline import write_settings


@pytest.fixture
def config(tmp_path, sentence_t5_folder, t5_folder):
    return write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, epochs=1.0, pseudo_queries=2)


def test_every_row_names_a_method_and_every_table_has_its_reference():
    for table, rows in TABLES.items():
        assert {row.method for row in rows} <= set(METHODS)
        assert len({row.name for row in rows}) == len(rows)
        assert REFERENCES[table] in {row.name for row in rows}
    assert {row.method for rows in TABLES.values() for row in rows} == set(METHODS)


def test_table3_shares_stages_resumes_and_writes_everything_down(config, beir, tmp_path, capsys):
    output = tmp_path / "out"
    common = ["--data", str(beir()), "--config", str(config), "--output", str(output), "--device", "cpu"]
    assert main(["reproduce", "table3", *common, "--rows", "BM25, title", "DPR", "RRF", "QG (beta=0)", "DSI", "+QG, fused",
                 "after search", "on top of dense, fused (bound) +", "distilled (", "two segments"]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    table = (output / "table3.md").read_text()
    assert table.strip() in printed
    for name in (
        "BM25, title + cut text",
        "DPR, HNSW",
        "DPR, hard negatives",
        "DSI",
        "DR-SCL+QG, fused (paper)",
        "fused (bound) + BM25",
    ):
        assert f"| {name}" in table or name in table
    assert "61.70 / 79.80" in table  # published beside ours
    assert "paired randomisation test against “RRF of BM25 and dense”" in table

    # What rows have in common was trained once: fused rows and the decoder-only row are one generator.
    records = {path.name: json.loads(path.read_text()) for path in (output / "table3").glob("*-seed0.json")}
    assert len(records) == len(list((output / "table3").glob("*.values.json"))) == 16
    fused = [records[f"dr-scl-qg-fused-{how}-seed0.json"]["config"] for how in ("paper", "bound")]
    assert fused[0] == fused[1] == records["dr-scl-qg-beta-0-seed0.json"]["config"]
    generators = list((output / "store" / "generator").iterdir())
    assert len(generators) == 6  # QG; DSI; DSI+QG; on top of dense; distilled; segments
    embeddings = list((output / "store" / "embeddings").iterdir())
    assert (
        len(embeddings) == 5
    )  # one an encoder: untrained (for hard negatives and for DSI's docids), DPR, hard, SCL, cut at 64
    record = records["dr-scl-qg-fused-bound-seed0.json"]
    assert set(record["measures"]) == {"Total", "Overlap", "No Overlap"}
    assert {"commit", "versions", "hardware", "seconds", "settings", "seed", "config", "collection"} <= set(record)
    assert record["seconds"]["generator"] > 0
    assert records["dsi-seed0.json"]["config"]["generator"]["epochs"] > 1.0  # as many steps as with pseudo-queries

    # Done rows stay; a row whose record is gone is measured again without training.
    written = {path: path.stat().st_mtime_ns for path in [*(output / "table3").iterdir(), *generators]}
    gone = output / "table3" / "dsi-qg-seed0.json"
    gone.unlink()
    assert main(["reproduce", "table3", *common, "--rows", "DSI+QG", "HNSW"]) == 0
    again = capsys.readouterr().out
    assert "seed 0: DSI+QG" in again
    assert "seed 0: DPR, HNSW" not in again
    assert gone.exists()
    assert all(path.stat().st_mtime_ns == then for path, then in written.items() if "dsi-qg" not in path.name)
    assert main(["reproduce", "table3", *common, "--rows", "nonsense"]) == 2
    assert "No row's name contains ['nonsense']; the rows are: BM25" in capsys.readouterr().err


def test_rows_that_a_collection_does_not_allow_are_named_and_the_others_measured(config, beir, tmp_path, capsys):
    data = beir()
    (data / "qrels" / "train.tsv").unlink()
    common = ["--data", str(data), "--config", str(config), "--output", str(tmp_path / "out"), "--device", "cpu"]
    assert main(["reproduce", "table3", *common, "--rows", "+ BM25", "Dense, before", "whole text"]) == 2
    printed = capsys.readouterr()
    assert "| BM25, title + whole text |" in printed.out
    assert "| Dense, before contrastive training |" in printed.out
    assert "dsi: 2 of 5 rows could not be measured:\n  Dense + BM25: There is nothing to train" in printed.err
    common += ["--output", str(tmp_path / "none")]
    assert main(["reproduce", "table3", *common, "--rows", "dense, fused (bound) +"]) == 2
    assert "1 of 1 rows could not be measured" in capsys.readouterr().err
    (data / "qrels" / "test.tsv").unlink()
    assert main(["reproduce", "figure5", *common]) == 2
    assert "has no queries to measure on; add qrels/test.tsv" in capsys.readouterr().err


def test_tables_4_and_5_over_two_seeds_and_the_figure(config, beir, tmp_path, capsys):
    output = tmp_path / "out"
    common = ["--data", str(beir()), "--config", str(config), "--output", str(output), "--device", "cpu"]
    assert main(["reproduce", "table4", *common, "--rows", "random weights", "sentence encoder"]) == 0
    assert "sentence encoder" in capsys.readouterr().out
    assert main(["reproduce", "table5", *common, "--seeds", "0", "1"]) == 0
    table = capsys.readouterr().out
    assert "±" in table
    assert "over 2 seeds" in table
    assert main(["reproduce", "figure5", *common]) == 0
    assert (output / "figure5.png").stat().st_size > 5_000
    assert (output / "figure5.svg").read_text().startswith("<?xml")
    cells = json.loads((output / "figure5.json").read_text())["cells"]
    assert len(cells) == 55
    by_beta = {beta: {c["Hit@1"] for c in cells if c["beta"] == beta} for beta in (0, "inf")}
    assert len(by_beta[0]) == 1  # beta = 0 is the decoder alone, whatever alpha
    assert "| inf |" in (output / "figure5.md").read_text()
    capsys.readouterr()
    next((output / "figure5").glob("*.json")).unlink()  # as if it had been killed: the other cells stay
    assert main(["reproduce", "figure5", *common]) == 0
    assert capsys.readouterr().out.count("figure5: ") == 1
    assert json.loads((output / "figure5.json").read_text())["cells"] == cells


def test_objectives_train_on_one_budget_and_are_searched_by_beam(config, beir, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("scripts.objectives.NAMES", ("ce", "tdm", "otm"))
    output = tmp_path / "out"
    common = ["--data", str(beir()), "--config", str(config), "--output", str(output), "--device", "cpu"]
    assert main(["reproduce", "objectives", *common]) == 0
    assert "| decoder alone, Hit@1 | beam 1 | beam 2 |" in capsys.readouterr().out
    found = json.loads((output / "objectives.json").read_text())["found"]
    control = found["ce, on as few examples as tdm"]
    assert (control["epochs"], control["batch"], control["steps"]) == tuple(
        found["tdm"][k] for k in ("epochs", "batch", "steps")
    )
    budgets = [found[name]["positions an example"] * found[name]["epochs"] for name in ("ce", "tdm", "otm")]
    assert max(budgets) < 1.02 * min(budgets)
    assert found["otm"]["positions an example"] > 3 * found["ce"]["positions an example"]
    for name, record in found.items():
        cells = {(cell["system"], cell["beam"]): cell for cell in record["cells"]}
        assert len(cells) == 12, name
        assert all(0 <= cell["Hit@1"] <= cell["Hit@10"] <= 100 for cell in cells.values())
        assert cells["decoder alone", 50]["search errors"] == 0  # the whole tree
        assert cells["decoder alone", 1]["search errors"] >= 0
    for system in ("decoder-alone", "fused"):
        assert (output / f"objectives-{system}.png").stat().st_size > 5_000
    before = (output / "objectives.md").read_text()
    capsys.readouterr()
    assert main(["reproduce", "objectives", *common]) == 0
    assert "objectives: " not in capsys.readouterr().out  # nothing is measured twice
    assert (output / "objectives.md").read_text() == before


def test_documents_added_to_an_index_are_found_beside_a_full_training(config, beir, tmp_path, capsys):
    output = tmp_path / "out"
    common = ["--data", str(beir()), "--config", str(config), "--output", str(output), "--device", "cpu"]
    assert main(["reproduce", "updates", *common]) == 0
    table = capsys.readouterr().out
    assert "4 of 40 documents added" in table
    found = json.loads((output / "updates.json").read_text())
    assert len((output / "without-0" / "corpus.jsonl").read_text().splitlines()) == 36
    assert found["before adding"]["of added documents"] == {"Hit@1": 0.0, "Hit@10": 0.0}
    assert found["after adding"]["of added documents"]["Hit@10"] > 50  # dense and BM25 find them at once
    assert found["after adding"]["of others"]["Hit@10"] > 50
    assert sum(found["queries"].values()) == 131


def test_a_table_shows_means_deviations_and_significance():
    queries = [f"q{n}" for n in range(40)]

    def row(name: str, hits: int, seed: int) -> Measured:
        values = {query: float(n < hits + seed) for n, query in enumerate(queries)}
        share = 100 * float(np.mean(list(values.values())))
        measures = {split: {"Hit@1": share, "Hit@10": share} for split in ("Total", "Overlap")}
        measures["No Overlap"] = {"Hit@1": float("nan"), "Hit@10": float("nan")}
        return Measured(name, {"Hit@1": values, "Hit@10": values}, {"measures": measures}, "DPR")

    rows = [[row("weak", 10, 0), row("weak", 10, 2)], [row("strong", 30, 0), row("strong", 30, 2)]]
    lines = experiment_table(rows, {"Total": 40, "Overlap": 40, "No Overlap": 0}, "strong").splitlines()
    assert lines[2] == (
        "| weak | 61.25 / 83.80 | 27.50 ± 3.54 / 27.50 ± 3.54 | 27.50 ± 3.54 / 27.50 ± 3.54 | — / — | 0.0001 | 0.0001 |"
    )
    assert lines[3].endswith("|  |  |")
    assert lines[-1].startswith("Hit@1 / Hit@10 in percent, mean ± standard deviation over 2 seeds")


def test_pictures_without_matplotlib_name_the_extra(monkeypatch, tmp_path):
    from eval.figures import grid_figure

    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "dr-scl\[figures\]"'):
        grid_figure({(0.0, 0.0): 1.0}, "alpha", "beta", "", Path(tmp_path / "x"))


def test_the_hardware_of_a_result_says_what_its_speed_depends_on(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False}, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: ["H200", "A100", "H200"][i])
    hardware = provenance()["hardware"]
    assert hardware.endswith(f" without bfloat16, {torch.get_num_threads()} threads, 1 x A100, 2 x H200")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    assert " with bfloat16, " in provenance()["hardware"]
