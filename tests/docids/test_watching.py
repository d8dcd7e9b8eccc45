"""Trainings that can be watched: losses reported to TensorBoard."""

import pytest

import dsi
from dsi.commands.main import main
from dsi.config import read_config, write_config
from dsi.contrastive import trainers
from dsi.contrastive.trainers import Reports
from dsi.docids.data.collection import read_collection
from dsi.training.pipeline import TrainingRun
from tests.support.tiny_settings import write_settings


@pytest.fixture
def config(tmp_path, sentence_t5_folder, t5_folder):
    return write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder)


def scalars(folder):
    """{name: [(step, value)]} of TensorBoard's files in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_all_trainings_are_reported_to_tensorboard(config, beir, tmp_path):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    changed = read_config(config).with_changes({"training": {"epochs": 2.0}})
    write_config(changed, tmp_path / "own.toml")
    common = [str(beir()), str(run), "--device", "cpu", "--config", str(tmp_path / "own.toml")]
    assert main(["train", *common, "--report-to", "tensorboard"]) == 0
    assert read_config(run / "config.toml") == changed
    encoder, generator = (scalars(run / "logs" / name) for name in ("encoder", "generator"))
    assert len(encoder["train/loss"]) > 3
    losses = [value for _, value in generator["train/loss"]]
    assert losses[-1] < losses[0]


def test_where_losses_go_changes_no_stage(config, beir, tmp_path, capsys, caplog):
    pytest.importorskip("tensorboard")
    collection, base = read_collection(beir()), read_config(config)
    for report_to in ("none", "tensorboard"):
        run = TrainingRun(tmp_path / "run", collection, base, "cpu", report_to=report_to)
        run.generate_queries()
        run.train_encoder()
    assert not run.seconds  # both stages were up to date
    assert not (tmp_path / "run" / "logs").exists()


def test_what_is_reported_to_must_be_there(config, beir, monkeypatch, tmp_path, capsys):
    with pytest.raises(ValueError, match="report_to must be one of none, tensorboard, wandb, got 'paper'"):
        dsi.train(read_collection(beir()), tmp_path / "run", config=config, report_to="paper")
    with pytest.raises(ValueError, match="report_to must be a string, got 7"):
        Reports(7)
    assert not (tmp_path / "run").exists()
    assert main(["train", "minipedia", "run", "--report-to", "paper"]) == 2
    assert "--report-to: invalid choice: 'paper'" in capsys.readouterr().err
    monkeypatch.setattr(trainers, "find_spec", lambda name: None)
    with pytest.raises(
        ModuleNotFoundError, match=r'report_to = "wandb" needs wandb; run pip install "dr-scl\[wandb\]"'
    ):
        Reports("wandb", tmp_path)
    assert Reports().callbacks("encoder") == []
