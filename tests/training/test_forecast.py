"""What a training tells of its cost: the counts are those of the training itself, and a probe takes no more than a moment."""

import os
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from dsi.config import read_config
from dsi.contrastive import blocks
from dsi.contrastive.blocks import giving_back
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.trainers import FiniteTraining
from dsi.docids.data.collection import read_collection
from dsi.docids.files import memory
from dsi.training import embedding, forecast, pipeline
from dsi.training.costs import Cost, in_words
from dsi.training.forecast import Forecast, seconds_for
from dsi.training.pipeline import TrainingRun
from tests.support.small import thin_out
from tests.training.test_pipeline import TIED, write_settings

STAGES = ["pseudo_queries", "encoder", "docids", "lexical", "generator"]


@pytest.fixture
def collection(beir, monkeypatch):
    monkeypatch.setattr(pipeline, "FORESEEN", 40)  # as many documents as it has
    return read_collection(thin_out(beir(), dev=4))


@pytest.fixture(params=[pytest.param("digits", marks=pytest.mark.slow), "tied"])
def config(request, tmp_path, sentence_t5_folder, t5_folder):
    sections = TIED if request.param == "tied" else {}
    return read_config(write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, **sections))


@pytest.fixture
def steps(monkeypatch):
    """Steps of each trainer since the stages began."""
    made, step, stages = Counter(), FiniteTraining.training_step, TrainingRun.all_stages

    def counted(trainer, *arguments, **keywords):
        made[type(trainer).__name__] += 1
        return step(trainer, *arguments, **keywords)

    def begun(run):
        made.clear()
        stages(run)

    monkeypatch.setattr(FiniteTraining, "training_step", counted)
    monkeypatch.setattr(TrainingRun, "all_stages", begun)
    return made


def test_told_steps_and_documents_are_those_of_the_training(collection, config, steps, tmp_path, monkeypatch, capsys):
    encoded, written, encode = [], [], embedding.encode_blocks

    def counted(encoder, texts, *others):
        encoded.append(len(texts))
        return encode(encoder, texts, *others)

    def foreseen(self, stages):
        told = foresee(self, stages)
        written.extend(path for path in (tmp_path / "run").rglob("*") if path.is_file())
        return told

    foresee = Forecast.costs
    monkeypatch.setattr(Forecast, "costs", foreseen)
    monkeypatch.setattr(embedding, "encode_blocks", counted)
    run = TrainingRun(tmp_path / "run", collection, config, "cpu")
    run.train()
    assert written == []
    assert list(run.expected) == STAGES
    assert run.expected["encoder"].counts == {"steps": steps["_EncoderTrainer"]}
    assert run.expected["generator"].counts == {"steps": steps["_GeneratorTrainer"]}
    assert run.expected["docids"].counts == {"documents": encoded[0]} == {"documents": len(collection.documents)}
    told = [message for message in capsys.readouterr().err.splitlines() if message.startswith(("expected", "taken"))]
    assert [message.split(":")[0] for message in told] == ["expected, without clustering, writing and tuning", "taken"]
    assert all(f"{stage} " in message for stage in STAGES for message in told)
    assert all(cost.memory > 0 and cost.seconds >= 0 for cost in run.expected.values())


def test_a_resumed_training_tells_what_is_left(collection, config, steps, tmp_path, monkeypatch):
    step = FiniteTraining.training_step

    def killed(trainer, *arguments, **keywords):
        if type(trainer).__name__ == "_EncoderTrainer" and trainer.state.global_step == 3:
            raise KeyboardInterrupt
        return step(trainer, *arguments, **keywords)

    first = TrainingRun(tmp_path / "run", collection, config, "cpu")
    monkeypatch.setattr(FiniteTraining, "training_step", killed)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    monkeypatch.setattr(FiniteTraining, "training_step", step)
    second = TrainingRun(tmp_path / "run", collection, config, "cpu")
    second.train()
    assert list(second.expected) == STAGES[1:]
    left, whole = (run.expected["encoder"].counts["steps"] for run in (second, first))
    assert whole - 3 <= left == steps["_EncoderTrainer"] < whole
    third = TrainingRun(tmp_path / "run", collection, config, "cpu")
    third.train()
    assert third.expected == {}


def test_a_small_collection_is_not_foreseen(collection, config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "FORESEEN", 41)
    run = TrainingRun(tmp_path / "run", collection, config, "cpu")
    run.train()
    assert not run.expected
    told = capsys.readouterr().err
    assert "expected" not in told
    assert "taken: " in told


def test_a_forecast_changes_nothing_of_the_encoder_and_writes_no_checkpoint(collection, config, tmp_path):
    encoder = Encoder.load(config.encoder, device="cpu")
    before = encoder.fingerprint
    Forecast(config, collection, encoder, {}, tmp_path).costs(STAGES)
    assert encoder.fingerprint == before
    assert not encoder.model.training
    assert all(parameter.grad is None for parameter in encoder.model.parameters())
    assert not list(tmp_path.rglob("checkpoint-*"))


@pytest.mark.parametrize(("loading", "each"), [(0.0, 0.01), (2.0, 0.01), (0.0, 1.0), (0.1, 1e-4)])
def test_seconds_are_those_of_all_and_a_probe_ends_after_a_moment(loading, each, monkeypatch):
    now, done = 0.0, []

    def work(count):
        nonlocal now
        now += loading + each * count
        done.append(count)

    monkeypatch.setattr(forecast.time, "perf_counter", lambda: now)
    assert seconds_for(work, 64, 1_400) == pytest.approx(loading + each * 1_400)
    assert done[-1] == 64 or each * done[-1] >= forecast._MOMENT
    assert done[-1] == 4 or each * (done[-2] - 1) < forecast._MOMENT


def test_nothing_to_do_takes_no_time():
    assert seconds_for(lambda _: pytest.fail("it was done"), 0, 10) == 0
    assert seconds_for(lambda _: pytest.fail("it was done"), 10, 0) == 0


def test_costs_in_words():
    told = in_words({"encoder": Cost(61.2, 1_500_000_000, {"steps": 1_222}), "docids": Cost(3, 900_000_000)})
    assert told == "encoder 61 s, 1.5 GB (1,222 steps); docids 3 s, 0.9 GB; in all 64 s, 1.5 GB"


def test_told_memory_has_a_whole_batch_of_the_longest_texts(collection, config, tmp_path, monkeypatch):
    def heavy(encoder, texts, kind):
        held = np.ones((len(texts), 500_000))
        time.sleep(0.1)
        return forward(encoder, texts, kind), held

    forward = Encoder.forward
    monkeypatch.setattr(Encoder, "forward", heavy)
    encoder = Encoder.load(config.encoder, device="cpu")
    told = Forecast(config, collection, encoder, {}, tmp_path)
    assert told._pass_memory == pytest.approx(64 * 4_000_000, rel=0.3)
    monkeypatch.undo()
    stage = told.costs(["docids"])["docids"].memory - memory.own_memory()
    assert stage - forecast._PRODUCTS == pytest.approx(64 * 4_000_000, rel=0.3)


def test_an_encoder_gives_memory_back_with_every_batch(config, monkeypatch):
    freed = []
    monkeypatch.setattr(blocks, "give_back_memory", lambda: freed.append(1))
    encoder = giving_back(Encoder.load(config.encoder, device="cpu"))
    texts = [f"text {number}" for number in range(130)]
    for own in (encoder, encoder.for_search()):
        freed.clear()
        assert len(list(own.token_states(texts, "document"))) == 130
        assert len(freed) == 3
        own.encode(texts, "document")
        assert len(freed) == 6


def test_watched_memory_has_nothing_that_was_free_before():
    held = [np.ones(25_000_000)]
    held.append(held)  # a cycle
    before = memory.own_memory()
    del held
    with memory.watching_memory() as most:
        assert before - most() > 190_000_000


def test_watched_memory_counts_what_was_freed_again():
    before = memory.own_memory()
    with memory.watching_memory() as most:
        held = np.ones(25_000_000)
        time.sleep(0.2)
        del held
    assert most() - before > 190_000_000


@pytest.mark.parametrize("given", [None, "7"])
@pytest.mark.parametrize(("name", "few"), [("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128"), ("LRU_CACHE_CAPACITY", "8")])
def test_a_training_keeps_few_kernels_unless_told_otherwise(
    collection, config, tmp_path, monkeypatch, given, name, few
):
    seen = []
    monkeypatch.setenv(name, given or "")
    if given is None:
        monkeypatch.delenv(name)
    monkeypatch.setattr(TrainingRun, "train", lambda run: seen.append(os.environ[name]))
    monkeypatch.setattr(pipeline, "GenerativeRetriever", SimpleNamespace(from_pretrained=lambda *_, **__: None))
    pipeline.train(collection, tmp_path / "run", config=config)
    assert seen == [given or few]
