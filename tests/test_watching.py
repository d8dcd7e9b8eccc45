"""Trainings that can be watched: losses reported to TensorBoard, quality measured on dev queries, an early end."""

import numpy as np
import pytest

from contrastive import trainers
from contrastive.trainers import Reports
from docids.data.collection import read_collection
from docids.files.progress import Bar
from dsi.commands.main import main
from dsi.config import Config, read_config, write_config
from dsi.generator.config import ObjectiveConfig, TrainingConfig
from dsi.generator.model import DocidGenerator
from dsi.training.examples import DocidExamples
from dsi.training.pipeline import TrainingRun
from dsi.training.trainer import train_generator
from tests.conftest import WIDTH, random_tree
from tests.test_generator import FRESH, states_of
from tests.test_pipeline import TIED, write_settings


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
    changed = read_config(config).with_changes({**TIED, "training": {"epochs": 2.0, "evaluate_every": 10}})
    write_config(changed, tmp_path / "own.toml")
    common = ["--data", str(beir()), "--output", str(run), "--device", "cpu", "--config", str(tmp_path / "own.toml")]
    for stage in ("pseudo_queries", "encoder", "docids", "generator"):
        assert main(["train", "--stage", stage, *common, "--set", "report_to=tensorboard"]) == 0
    assert read_config(run / "config.toml") == changed.with_changes({"report_to": "tensorboard"})
    encoder, generator, query_map = (scalars(run / "logs" / name) for name in ("encoder", "generator", "query map"))
    assert len(encoder["train/loss"]) > 3
    assert [step for step, _ in query_map["train/loss"]] == list(range(1, len(query_map["train/loss"]) + 1))
    assert len(query_map["train/loss"]) > 10
    losses = [value for _, value in generator["train/loss"]]
    assert losses[-1] < losses[0]
    steps, hits = zip(*generator["eval/Hit@1"], strict=True)
    assert list(steps[:-1]) == list(range(10, steps[-1], 10))  # and in the end
    assert all(0 <= hit <= 1 for hit in hits)


def test_where_losses_go_changes_no_stage(config, beir, tmp_path, capsys, caplog):
    pytest.importorskip("tensorboard")
    collection, base = read_collection(beir()), read_config(config)
    for report_to in ("none", "tensorboard"):
        run = TrainingRun(tmp_path / "run", collection, base.with_changes({"report_to": report_to}), "cpu")
        run.generate_queries()
        run.train_encoder()
    assert not run.seconds  # both stages were up to date
    assert not (tmp_path / "run" / "logs").exists()


def test_what_is_reported_to_must_be_there(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="report_to must be one of none, tensorboard, wandb, got 'paper'"):
        Config(report_to="paper")
    monkeypatch.setattr(trainers, "find_spec", lambda name: None)
    with pytest.raises(
        ModuleNotFoundError, match=r'report_to = "wandb" needs wandb; run pip install "dr-scl\[wandb\]"'
    ):
        Reports("wandb", tmp_path)
    assert Reports().callbacks("encoder") == []


@pytest.fixture
def task(encoder, tmp_path):
    tree = random_tree(20)
    examples = DocidExamples(states_of(encoder, tmp_path), np.array([0, 5, 11, 19]), tree)

    def train(folder, quality, **settings):
        generator = DocidGenerator.create(FRESH, tree, WIDTH)
        seen = []

        def measure():
            seen.append({name: weights.clone() for name, weights in generator.state_dict().items()})
            return quality(len(seen))

        training = TrainingConfig(batch_size=2, epochs=40.0, learning_rate=3e-3, **settings)
        objective = ObjectiveConfig("ce")
        record = train_generator(generator, examples, objective, training, tmp_path / folder, quality=measure)
        return generator, record, seen

    return train


def same(generator, weights):
    return all((own == weights[name]).all() for name, own in generator.state_dict().items())


def test_the_best_state_is_kept_and_training_ends_when_it_stays_the_best(task, monkeypatch):
    notes = []
    monkeypatch.setattr(Bar, "set_postfix_str", lambda self, text: notes.append(text))
    generator, record, seen = task(
        "early", lambda number: [0.2, 0.5, 0.4, 0.5, 0.3][number - 1], evaluate_every=8, patience=3
    )
    assert record["steps"] == 5 * 8  # of 80
    assert len(seen) == 5
    assert same(generator, seen[1])
    assert not same(generator, seen[-1])
    assert "dev Hit@1 50.0" in notes
    generator, record, seen = task("whole", lambda number: number / 100, evaluate_every=30)
    assert (record["steps"], len(seen)) == (80, 3)  # 30, 60 and the end
    assert same(generator, seen[-1])


def test_a_killed_training_ends_where_it_would_have_ended(task):
    qualities = [0.2, 0.5, 0.4, 0.5, 0.3]
    expected, record, _ = task("whole", lambda number: qualities[number - 1], evaluate_every=8, patience=3)

    def killed(number):
        if number == 4:
            raise KeyboardInterrupt
        return qualities[number - 1]

    with pytest.raises(KeyboardInterrupt):
        task("killed", killed, evaluate_every=8, patience=3)
    generator, again, seen = task("killed", lambda number: qualities[number + 2], evaluate_every=8, patience=3)
    assert len(seen) == 2
    assert again["steps"] == record["steps"]
    assert all(bool((a == b).all()) for a, b in zip(generator.parameters(), expected.parameters(), strict=True))


def test_measuring_does_not_change_what_is_learnt(task):
    a, *_ = task("measured", lambda number: number, evaluate_every=16)
    b, *_ = task("alone", lambda number: 0.0)
    assert all(bool((x == y).all()) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_settings_that_need_each_other_or_dev_queries_are_refused(config, beir, tmp_path):
    with pytest.raises(ValueError, match=r"training.patience needs training.evaluate_every above 0, got 2 with 0"):
        TrainingConfig(patience=2)
    folder = beir()
    (folder / "qrels" / "dev.tsv").unlink()
    collection = read_collection(folder, dev_queries=0)
    changed = read_config(config).with_changes({"training": {"evaluate_every": 5}, "contrastive": {"loss": "none"}})
    with pytest.raises(
        ValueError, match=r"evaluate_every measures on dev queries, and there are none; add qrels/dev.tsv"
    ):
        TrainingRun(tmp_path / "run", collection, changed, "cpu").all_stages()
