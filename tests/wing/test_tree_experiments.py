"""The experiments with tree models beyond text, small: synthetic data."""

import dataclasses
import json

from dsi_experiments.synthetic import PUBLISHED, SETTINGS, Setting, synthetic, synthetic_table

from dsi.commands.main import main
from tests.support.tables import table_rows


def test_node_scores_beat_path_scores_on_the_synthetic_data(capsys):
    small = {"labels": 50, "train": 3000, "test": 200, "epochs": 45, "objectives": ["plt", "tdm"]}
    found = synthetic(Setting(2, 20, [(20, 1), (20, 10)], one_relevant=False, **small), 1, seed=0)
    plt, tdm = ([values[0] for values in found[name].values()] for name in ("plt", "tdm"))
    assert tdm[0] < 0.5 * plt[0]  # the paper's order, a tenth at its size
    assert tdm[1] < plt[1]
    assert "run 0, tdm: regret" in capsys.readouterr().out


def test_the_synthetic_table_shows_errors_and_the_published_numbers():
    found = {"plt": {(50, 1): [0.04, 0.06], (50, 10): [0.1, 0.1]}, "ce": {(50, 1): [0.2, 0.2], (50, 10): [0.3, 0.3]}}
    lines = synthetic_table(found, "title", {"plt": PUBLISHED["plt"][:2]}).splitlines()
    heads, _, plt, ce = table_rows("\n".join(lines))
    assert heads == ["objective", "beam 50, m = 1", "beam 50, m = 10"]
    assert plt == ["plt", "0.0500 ± 0.0100 [0.0444]", "0.1000 ± 0.0000 [0.0778]"]
    assert ce == ["ce", "0.2000 ± 0.0000", "0.3000 ± 0.0000"]
    assert lines[-1] == "Mean regret@m ± standard error over 2 runs; in brackets Table 2 of the paper."


def test_the_synthetic_experiment_is_a_command(tmp_path, monkeypatch, capsys):
    small = {
        name: dataclasses.replace(setting, labels=100, train=500, test=50, epochs=1, beam_width=5, cells=[(5, 1)])
        for name, setting in SETTINGS.items()
    }
    monkeypatch.setattr("dsi_experiments.synthetic.SETTINGS", small)
    assert main(["reproduce", "synthetic", "--runs", "1", "--output", str(tmp_path)]) == 0
    first, printed = (tmp_path / "synthetic.json").read_text(), capsys.readouterr().out
    assert "run 0, otm: regret" in printed
    assert main(["reproduce", "synthetic", "--runs", "1", "--output", str(tmp_path)]) == 0
    assert (tmp_path / "synthetic.json").read_text() == first
    again = capsys.readouterr().out
    assert "run 0, otm: regret" not in again  # nothing is trained twice
    assert printed.endswith(again)
    assert "**one relevant label**" in again
    rows = json.loads((tmp_path / "synthetic.json").read_text())["rows"]
    assert [row["row"].split(": ")[1] for row in rows] == [name for s in small.values() for name in s.objectives]
    assert all([(cell["beam"], cell["m"]) for cell in row["found"]["cells"]] == [(5, 1)] for row in rows)
    main(["reproduce", "synthetic", "--runs", "2", "--output", str(tmp_path)])
    assert capsys.readouterr().out.count(": regret ") == len(rows)  # the second run alone
    assert len(json.loads((tmp_path / "synthetic.json").read_text())["rows"]) == 2 * len(rows)
