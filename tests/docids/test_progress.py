"""Progress: one line per stage where stderr is not a terminal (under a fake clock), tqdm's bar on one."""

import os
import re
import signal
import threading
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from tqdm import tqdm
from tqdm.std import TqdmDefaultWriteLock
from transformers import PrinterCallback
from transformers.utils import logging

import dsi
from dsi.contrastive.encoder import Encoder, quiet_transformers
from dsi.contrastive.trainers import run_trainer
from dsi.docids.files import progress as module
from dsi.docids.files.progress import Bar, progress
from tests.support.tiny_settings import TIED, write_settings


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


def run(clock, *seconds, **options):
    """Go through a bar whose steps take so many seconds."""
    for step in progress(seconds, "docids", **options):
        clock.now += step


def test_a_training_from_python_shows_no_bars_or_warnings_of_the_libraries(
    beir, tmp_path, sentence_t5_folder, t5_folder, capfd, caplog
):
    config = write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder, dev_queries=0, pseudo_queries={"method": "none"},
        contrastive={"epochs": 1.0, "batch_size": 16},
        training={"epochs": 1.0}, **TIED,
    )  # fmt: skip
    datasets.enable_progress_bars()
    logging.enable_progress_bar()
    logging.set_verbosity_warning()
    retriever = dsi.train(dsi.read_collection(beir()), tmp_path / "run", config=config, device="cpu")
    retriever.save_pretrained(tmp_path / "copy")
    seen = [line for line in capfd.readouterr().err.replace("\r", "\n").splitlines() if line.strip()]
    assert re.fullmatch(r"40 documents, \d+ train queries: encoder \(\d+ steps?\), .*", seen.pop(0))
    (pieces,) = [line for line in seen if not re.fullmatch(r"[\w ]+: \d+ s(, .*)?", line)]
    assert re.fullmatch(r"40 documents in \d+ pieces", pieces)
    assert not [record for record in caplog.records if record.name.startswith("transformers")]
    assert logging.is_progress_bar_enabled()
    assert not datasets.are_progress_bars_disabled()


def test_bars_are_hidden_until_the_last_of_several_blocks_ends():
    logging.enable_progress_bar()
    with quiet_transformers():
        with quiet_transformers():
            assert not logging.is_progress_bar_enabled()
        assert not logging.is_progress_bar_enabled()
    assert logging.is_progress_bar_enabled()


def test_a_stage_is_one_line_with_its_time(clock, capsys):
    run(clock, *[0.5] * 46)
    assert capsys.readouterr().err == "docids: 23 s\n"
    run(clock, 1.5)
    assert capsys.readouterr().err == "docids: 2 s\n"


def test_a_line_is_written_at_the_end_and_has_the_last_note(clock, capsys):
    with Bar("docids", total=3) as bar:
        clock.now += 5
        bar.update()
        bar.set_postfix_str("loss 0.5")
        bar.set_postfix_str("loss 0.25")
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "docids: 5 s, loss 0.25\n"
    bar.close()
    assert capsys.readouterr().err == ""


def test_short_or_disabled_work_writes_nothing(clock, capsys):
    run(clock, 0.3, 0.6)
    run(clock, 60, 60, enabled=False)
    assert list(progress(iter("abc"), "letters")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""


def test_a_stage_inside_another_writes_nothing(clock, capsys):
    for _ in progress(range(2), "systems"):
        run(clock, 4, 4)
    assert capsys.readouterr().err == "systems: 16 s\n"
    with Bar("off", enabled=False):
        run(clock, 6)  # a disabled bar is not an outer one
    assert capsys.readouterr().err == "docids: 6 s\n"


def test_after_the_first_hundred_a_line_says_how_long_the_rest_takes(clock, capsys):
    for total in (5_000, 500):  # the rest of the second is short
        with Bar("embeddings", total=total) as bar:
            for _ in range(20):
                clock.now += 1
                bar.update(16)
    lines = ["embeddings, 112 of 5,000, 05:05 left", "embeddings: 20 s", "embeddings: 20 s"]
    assert capsys.readouterr().err.splitlines() == lines


def test_a_line_is_written_when_the_work_fails_or_is_left(clock, capsys):
    def fail():
        for _ in progress(range(2), "docids"):
            clock.now += 3
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert capsys.readouterr().err == "docids: 3 s\n"
    for _ in progress(range(2), "docids"):
        clock.now += 7
        break
    assert capsys.readouterr().err == "docids: 7 s\n"
    run(clock, 6)  # not an inner one: the others are over
    assert capsys.readouterr().err == "docids: 6 s\n"


def test_on_a_terminal_it_is_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    with Bar("states", unit="text", total=8, done=4) as bar:
        for _ in progress(range(3), "inner"):
            pass
        bar.update(4)
        bar.set_postfix_str("loss 0.5")
    shown = capsys.readouterr().err
    assert "states: 100%" in shown
    assert "8/8" in shown
    assert "loss 0.5" in shown
    assert "inner: " in shown
    assert shown.endswith("\n")


def test_work_that_goes_on_says_every_half_minute_how_far_it_is(clock, capsys):
    run(clock, *[10] * 10)
    assert capsys.readouterr().err.splitlines() == [
        "docids, 3 of 10, 01:10 left", "docids, 6 of 10, 00:40 left", "docids, 9 of 10, 00:10 left", "docids: 100 s",
    ]  # fmt: skip
    with Bar("docids"):
        with Bar("embeddings of documents", total=20_000, done=12_000) as bar:
            clock.now += 31
            bar.update(1_000)
            clock.now += 29
            bar.update(1_000)
        run(clock, 15, 15)
    assert capsys.readouterr().err.splitlines() == [
        "docids: embeddings of documents, 13,000 of 20,000, 03:37 left", "docids, 1 of 2, 00:15 left", "docids: 90 s",
    ]  # fmt: skip


def test_items_of_parts_count_for_the_whole(clock, capsys):
    with Bar("embeddings", total=4_000, whole=True):
        for _ in range(2):
            with Bar("of a block", total=2_000) as own:
                for _ in range(4):
                    clock.now += 31
                    own.update(500)
    assert capsys.readouterr().err.splitlines() == [
        *(f"embeddings, {done:,} of 4,000, 0{left // 60}:{left % 60:02} left" for done, left in [
            (500, 217), (1_000, 186), (1_500, 155), (2_000, 124), (2_500, 93), (3_000, 62), (3_500, 31), (4_000, 0),
        ]), "embeddings: 248 s",
    ]  # fmt: skip
    run(clock, 31, 31)
    assert "docids, 1 of 2" in capsys.readouterr().err


class FakeTrainer:
    """Trains for four steps of three seconds, from the second on, and fails where it should."""

    def __init__(self, clock, fails_at=5):
        self.clock, self.fails_at, self.callbacks = clock, fails_at, [PrinterCallback]

    def remove_callback(self, callback):
        self.callbacks.remove(callback)

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def train(self, resume_from_checkpoint):
        (shown,) = self.callbacks
        state = SimpleNamespace(max_steps=4, global_step=1, is_world_process_zero=True)
        shown.on_train_begin(None, state, None)
        for step in range(2, 5):
            self.clock.now += 3
            if step == self.fails_at:
                raise RuntimeError("no memory")
            shown.on_step_end(None, state, None)
            shown.on_log(None, state, None, logs={"loss": 1 / step, "epoch": 0.5})
        shown.on_log(None, state, None, logs={"train_runtime": 9.0})


def test_a_training_is_one_line_that_ends_with_the_loss(clock, capsys, tmp_path):
    run_trainer(FakeTrainer(clock), "decoder", tmp_path, 80)
    printed = capsys.readouterr()
    assert printed.err == "decoder: 9 s, loss 0.25\n"
    assert printed.out == ""
    with pytest.raises(RuntimeError, match="no memory"):
        run_trainer(FakeTrainer(clock, fails_at=3), "decoder", tmp_path, 80)
    assert capsys.readouterr().err == "decoder: 6 s, loss 0.5\n"


def test_encoding_with_progress_gives_the_embeddings_of_sentence_transformers(encoder, clock, capsys, monkeypatch):
    texts = ["neon gas " * n for n in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)]
    expected = encoder.model.encode(texts, prompt_name="query", batch_size=2)
    forward = encoder.forward

    def slow(texts, kind):
        clock.now += 3
        return forward(texts, kind)

    monkeypatch.setattr(encoder, "forward", slow)
    monkeypatch.setattr(Encoder, "batch_size", 2)
    found = encoder.encode(texts, "query", progress=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert capsys.readouterr().err == "embeddings of queries: 18 s\n"
    assert encoder.encode([], "query").shape == (0, encoder.embedding_dim)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
def test_a_fork_that_is_killed_while_it_draws_a_bar_holds_none_up(monkeypatch):
    monkeypatch.setattr(tqdm, "_lock", TqdmDefaultWriteLock(), raising=False)  # as if no library had set another
    child = os.fork()
    if not child:
        Bar.get_lock().acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    drawn = threading.Thread(target=lambda: Bar("documents").close(), daemon=True)
    drawn.start()
    drawn.join(timeout=5)
    assert not drawn.is_alive()
