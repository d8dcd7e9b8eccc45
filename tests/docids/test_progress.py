"""Progress: lines every half minute where stderr is not a terminal (under a fake clock), tqdm's bar on one."""

import os
import re
import signal
import threading
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import tqdm.std
from tqdm.std import TqdmDefaultWriteLock
from transformers import PrinterCallback
from transformers.utils import logging

import dsi
from dsi.contrastive.encoder import Encoder, quiet_transformers
from dsi.contrastive.trainers import run_trainer
from dsi.docids.files import progress as module
from dsi.docids.files.progress import Bar, progress, stage_line
from tests.support.tiny_settings import VECTORS, write_settings


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    monkeypatch.setattr(tqdm.std, "time", clock)
    return clock


def run(clock, *seconds, **options):
    """Go through a bar whose steps take so many seconds."""
    for step in progress(seconds, "docids", **options):
        clock.now += step


def test_a_training_from_python_shows_no_bars_or_warnings_of_the_libraries(
    beir, tmp_path, sentence_t5_folder, t5_folder, capfd, caplog
):
    config = write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder, dev_queries=0,
        contrastive={"epochs": 1.0, "batch_size": 16}, docids={"pieces": 2},
        **VECTORS,
    )  # fmt: skip
    datasets.enable_progress_bars()  # unless a command has hidden them in this process
    were_hidden = datasets.are_progress_bars_disabled()
    logging.enable_progress_bar()
    logging.set_verbosity_warning()
    retriever = dsi.train(dsi.read_collection(beir()), tmp_path / "run", config=config, device="cpu")
    retriever.save(tmp_path / "copy")
    seen = [line for line in capfd.readouterr().err.replace("\r", "\n").splitlines() if line.strip()]
    assert re.fullmatch(r"40 documents, \d+ train queries, \d+ dev queries to tune on: encoder, .*", seen.pop(0))
    (pieces,) = [line for line in seen if not re.fullmatch(r"[\w ]+: \d+ s(, .*)?", line)]
    assert re.fullmatch(r"40 documents in \d+ pieces", pieces)
    assert not [record for record in caplog.records if record.name.startswith("transformers")]
    assert logging.is_progress_bar_enabled()
    assert datasets.are_progress_bars_disabled() == were_hidden


def test_bars_are_hidden_until_the_last_of_several_blocks_ends():
    logging.enable_progress_bar()
    with quiet_transformers():
        with quiet_transformers():
            assert not logging.is_progress_bar_enabled()
        assert not logging.is_progress_bar_enabled()
    assert logging.is_progress_bar_enabled()


def test_work_that_goes_on_has_a_line_every_half_minute(clock, capsys):
    run(clock, *[10] * 10)
    lines = capsys.readouterr().err.splitlines()
    assert [re.match(r"docids: +\d+%\|.*\| (\d+)/10 \[\d\d:(\d\d)<", line)[1] for line in lines] == ["3", "6", "9"]
    assert "\r" not in "".join(lines)


def test_short_or_disabled_work_writes_nothing(clock, capsys):
    run(clock, 10, 10, 9)
    run(clock, 60, 60, enabled=False)
    assert list(progress(iter("abc"), "letters")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""


def test_a_stage_is_one_line_with_its_time(clock, capsys):
    with stage_line("docids"):
        clock.now += 23
    with stage_line("short"):
        clock.now += 0.9
    with stage_line("another process", enabled=False):
        clock.now += 9
    assert capsys.readouterr().err == "docids: 23 s\n"


def test_on_a_terminal_it_is_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    with Bar("states", unit="text", total=8, done=4) as bar:
        for _ in progress(range(3), "inner"):
            pass
        bar.update(4)
        bar.set_postfix_str("loss 0.5")
    with stage_line("stage"):
        pass
    shown = capsys.readouterr().err
    assert "states: 100%" in shown
    assert "8/8" in shown
    assert "loss 0.5" in shown
    assert "inner: " in shown
    assert "stage" not in shown
    assert shown.endswith("\n")


def test_items_of_parts_count_for_the_whole(clock, capsys):
    with Bar("embeddings", total=4_000, whole=True):
        for _ in range(2):
            with Bar("of a block", total=2_000) as own:
                for _ in range(4):
                    clock.now += 31
                    own.update(500)
    lines = capsys.readouterr().err.splitlines()
    assert [int(re.match(r"embeddings: .* (\d+)/4000 ", line)[1]) for line in lines] == [*range(500, 4_001, 500)]
    run(clock, 31, 31)
    assert "docids: " in capsys.readouterr().err


class FakeTrainer:
    """Trains for four steps of forty seconds, from the second on, and fails where it should."""

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
            self.clock.now += 40
            if step == self.fails_at:
                raise RuntimeError("no memory")
            state.global_step = step
            shown.on_step_end(None, state, None)
            shown.on_log(None, state, None, logs={"loss": 1 / step, "epoch": 0.5})
        shown.on_log(None, state, None, logs={"train_runtime": 9.0})


def test_a_training_shows_its_loss(clock, capsys, tmp_path):
    run_trainer(FakeTrainer(clock), "decoder", tmp_path, 80)
    printed = capsys.readouterr()
    assert [re.search(r"\d+/80", line)[0] for line in printed.err.splitlines()] == ["40/80", "60/80", "80/80"]
    assert "loss 0.3333" in printed.err.splitlines()[-1]
    assert printed.out == ""
    with pytest.raises(RuntimeError, match="no memory"):
        run_trainer(FakeTrainer(clock, fails_at=3), "decoder", tmp_path, 80)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_encoding_with_progress_gives_the_embeddings_of_sentence_transformers(encoder, clock, capsys, monkeypatch):
    texts = ["neon gas " * n for n in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)]
    expected = encoder.model.encode(texts, prompt_name="query", batch_size=2)
    forward = encoder.forward

    def slow(texts, kind):
        clock.now += 31
        return forward(texts, kind)

    monkeypatch.setattr(encoder, "forward", slow)
    monkeypatch.setattr(Encoder, "batch_size", 2)
    found = encoder.encode(texts, "query", progress=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert "11/11" in capsys.readouterr().err.splitlines()[-1]
    assert encoder.encode([], "query").shape == (0, encoder.embedding_dim)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
def test_a_fork_that_is_killed_while_it_draws_a_bar_holds_none_up(monkeypatch):
    monkeypatch.setattr(
        tqdm.std.tqdm, "_lock", TqdmDefaultWriteLock(), raising=False
    )  # as if no library had set another
    child = os.fork()
    if not child:
        Bar.get_lock().acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    drawn = threading.Thread(target=lambda: Bar("documents").close(), daemon=True)
    drawn.start()
    drawn.join(timeout=5)
    assert not drawn.is_alive()
