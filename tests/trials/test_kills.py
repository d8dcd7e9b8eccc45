"""Training and updates that are killed, at chosen writes and at random moments, end as if not; training repairs its files."""

import json
import logging
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dsi import SearchConfig
from dsi.commands.main import main
from dsi.contrastive.trainers import last_checkpoint
from dsi.docids.files.processes import ALONE
from dsi.docids.files.reading import folder_sums
from dsi.docids.query_memory import MemoryConfig, QueryMemory
from dsi.search.hits import Hits
from dsi.store.folder.writing import index_lock
from dsi.store.retriever import Retriever, load
from dsi.training.stages import StageFolders
from tests.support.kills import fork, kill_within, status_of
from tests.support.small import thin_out
from tests.support.small_index import DOCUMENTS, small_index
from tests.support.tiny_settings import write_settings

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes"),
]
KILLS = int(os.environ.get("DSI_KILLS", "200"))
"""Of the long trials."""
QUERIES = ["noble gas", "which capitals are on the danube"]
PARTS = ("pseudo_queries", "encoder", "docids", "lexical", "generator")
TIMES = ("stage.json", "training.json")
"""Files that say how long something took."""


@pytest.fixture
def config(tmp_path, sentence_t5_folder, t5_folder) -> Path:
    """Few steps of training."""
    steps: dict[str, dict[str, object]] = {
        "training": {"epochs": 1.0, "batch_size": 32},
        "contrastive": {"batch_size": 32},
    }
    return write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, **steps)


@pytest.fixture
def train(beir, config) -> Callable[..., None]:
    """Trains a tiny index in a folder."""
    common = ["train", "--config", str(config), str(thin_out(beir(), dev=4)), "--device", "cpu"]

    def run(folder: Path, *more: str) -> None:
        if main([*common, str(folder), *more]):
            raise RuntimeError

    return run


def outputs(folder: Path) -> dict[str, str]:
    """The sums of all files of an index but those that say how long something took."""
    sums = {f"{part}/{name}": value for part in PARTS for name, value in folder_sums(folder / part).items()}
    return {name: value for name, value in sums.items() if not name.endswith(TIMES)}


def seen(folder: Path) -> tuple[dict[str, str], SearchConfig, list[Hits]]:
    """What an index consists of and answers."""
    assert not list((folder / "checkpoints").iterdir())
    index = load(folder, device="cpu")
    return outputs(folder), index.search_config, index.search(QUERIES, k=10)


@pytest.mark.parametrize("step", [71, pytest.param(23, marks=pytest.mark.slow)])
def test_training_killed_at_writes_ends_as_if_not(train, tmp_path, step):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole)
    for writes in range(7, 10_000, step):
        status = status_of(fork(lambda: train(killed), dies_at_write=writes))
        if status != 9:
            break
    assert status == 0
    assert writes > 100
    assert seen(killed) == seen(whole)


@pytest.mark.parametrize("step", [47, pytest.param(5, marks=pytest.mark.slow)])
def test_discarding_updates_killed_at_writes_leaves_the_updated_index_or_ends_as_a_training(train, tmp_path, step):
    whole, killed, states = tmp_path / "whole", tmp_path / "killed", []
    train(whole)
    shutil.copytree(whole, killed)
    update(killed, tmp_path, "new")
    for writes in range(3, 10_000, step):
        status = status_of(fork(lambda: train(killed, "--discard-updates"), dies_at_write=writes))
        if status != 9:
            break
        if not (killed / "manifest.json").exists():
            states.append("none")
            continue
        index = load(killed, device="cpu")
        states.append("updated" if "new" in index.snapshot.documents.rows else "trained")
    assert status == 0
    assert list(dict.fromkeys(states))[:2] == ["updated", "none"]
    assert states == sorted(states, key=["updated", "none", "trained"].index)
    assert seen(killed) == seen(whole)


def test_training_skips_checkpoints_that_were_cut_off(tmp_path):
    state = {"weight": torch.ones(3)}

    def write(step: int) -> Path:
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file(state, folder / "model.safetensors")
        torch.save(state, folder / "optimizer.pt")
        (folder / "trainer_state.json").write_text("{}")
        return folder

    assert last_checkpoint(tmp_path) is last_checkpoint(tmp_path / "none") is None
    cut = [write(step) for step in (20, 40, 60, 80, 100)]
    (cut[0] / "trainer_state.json").unlink()
    for folder, name in zip(cut[1:], ("trainer_state.json", "model.safetensors", "optimizer.pt"), strict=False):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    (cut[4] / "model.safetensors").unlink()
    last = write(9)
    write(8)
    assert last_checkpoint(tmp_path) == str(last)
    assert not any(folder.exists() for folder in cut)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_training_again_repairs_what_was_damaged(train, tmp_path, capsys, every):
    run = tmp_path / "run"
    train(run)
    whole = seen(run)
    for number, (name, part) in [*enumerate(FILES.items())][::every]:
        damage(run / name, number)
        if number % 2:
            (run / "manifest.json").unlink()  # without it the stage itself has to know
        elif part != "pseudo_queries":  # which no search needs
            with pytest.raises((ValueError, FileNotFoundError), match="train again"):
                load(run, device="cpu")
        capsys.readouterr()
        train(run)
        assert f"train: {part} " in capsys.readouterr().out
        assert seen(run) == whole


FILES = {
    "pseudo_queries/queries.jsonl": "pseudo_queries", "encoder/model.safetensors": "encoder",
    "docids/docids.safetensors": "docids", "docids/stage.json": "docids", "lexical/terms.safetensors": "lexical",
    "generator/model.safetensors": "generator", "generator/config.json": "generator",
}  # fmt: skip
"""{file of an index: the stage that wrote it}."""


def damage(path: Path, how: int) -> None:
    """Flip a bit of a file in place, cut it, or remove it."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes([content[: len(content) // 3], content][how % 2])
    if how % 3 == 2:
        path.unlink()


def test_a_stage_is_up_to_date_if_its_files_are_and_those_it_was_made_from(tmp_path):
    stages = StageFolders(tmp_path, ALONE)

    def has_run(name: str, text: str = "", needs: tuple[str, ...] = ()) -> bool:
        with stages.stage(name, "key", needs) as has_to_run:
            if has_to_run:
                with stages.writing(name, "key") as folder:
                    (folder / "file").write_text(text)
        return has_to_run

    assert has_run("encoder", "one")
    assert has_run("docids", needs=("encoder",))
    assert not has_run("encoder")
    for text, differs in (("one", False), ("two", True)):
        (tmp_path / "encoder" / "file").unlink()
        assert has_run("encoder", text)
        assert has_run("docids", needs=("encoder",)) is differs


@pytest.mark.fuzz
def test_training_killed_at_any_moment_ends_as_if_not(train, tmp_path):
    """Each run is killed again and again, so that the next one goes on from what a kill left."""
    chance, whole, kills, ended = random.Random(0), tmp_path / "whole", 0, 0
    started = time.perf_counter()
    train(whole)
    longest, expected = time.perf_counter() - started, seen(whole)
    while kills < KILLS:
        killed, status = tmp_path / f"killed-{ended}", -9
        while status == -9:
            status = kill_within(longest, lambda folder=killed: train(folder), chance)
            kills += status == -9
        assert status == 0
        assert seen(killed) == expected
        shutil.rmtree(killed)
        ended += 1


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_learning_killed_at_any_write_is_whole_or_not_there(encoder, tmp_path, step):
    run, killed = tmp_path / "run", 0
    small_index(encoder, vectors=True).save(run)
    after = pairs_of(run)
    for write in range(1, 1_000, step):
        before = after
        status = status_of(fork(lambda number=write: learn(run, number), dies_at_write=write))
        assert status in (0, 9)
        after = pairs_of(run)
        assert after in ((before, before + 2) if status else (before + 2,))
        if status == 0:
            break
        killed += 1
    assert killed > 20 / step
    assert len([path for path in run.iterdir() if path.name.lstrip(".").startswith("memory")]) == 1


@pytest.mark.fuzz
def test_a_thousand_learnings_of_two_writers_lose_nothing_though_others_are_killed(encoder, tmp_path):
    chance, run = random.Random(0), tmp_path / "run"
    small_index(encoder, vectors=True).save(run)

    def write(first: int) -> None:
        for step in range(500):
            learn(run, first + step)

    writers = [fork(lambda first=first: write(first)) for first in (10_000, 20_000)]
    killed = whole = 0
    while writers := [child for child in writers if not has_ended(child)]:
        status = kill_within(1.0, lambda number=killed + whole: learn(run, 30_000 + number), chance)
        killed, whole = killed + (status == -9), whole + (status == 0)
        assert status in (0, -9)
    memory = load(run, device="cpu").snapshot.memory
    texts = [text for block in memory.blocks for text in block.texts]
    steps = Counter(int(text.split()[-1]) for text in texts)
    assert set(steps.values()) == {2}  # each lesson has two pairs, and none is there by half
    assert {*range(10_000, 10_500), *range(20_000, 20_500)} <= set(steps)
    assert 1_000 + whole <= len(steps) <= 1_000 + whole + killed  # one is killed between the last write and its end
    logging.getLogger(__name__).warning("1,000 learnings beside %d killed and %d whole ones", killed, whole)


def has_ended(child: int) -> bool:
    """True if a process has ended, which it must have done well."""
    ended, status = os.waitpid(child, os.WNOHANG)
    assert status == 0
    return ended == child


def learn(run: Path, number: int) -> None:
    """Learn two pairs, one document each, of one query that has a number; nobody else writes meanwhile."""
    with index_lock(run):
        index = load(run, device="cpu")
        if not len(index.snapshot.memory):
            index = Retriever(index.snapshot.with_memory(QueryMemory(MemoryConfig(keep_queries=True, limit=10_000))))
        index.learn([(f"lesson {number}", document["doc_id"]) for document in DOCUMENTS[:2]])
        index.save(run)


def pairs_of(run: Path) -> int:
    return len(load(run, device="cpu").snapshot.memory)


@pytest.mark.fuzz
def test_updates_killed_at_any_moment_are_whole_or_not_there(train, tmp_path):
    chance, run, kills, done = random.Random(0), tmp_path / "run", 0, 0
    train(run)
    known = set(load(run, device="cpu").snapshot.documents.rows)
    started = time.perf_counter()
    assert status_of(fork(lambda: update(run, tmp_path, "first"))) == 0
    longest, known = time.perf_counter() - started, known | {"first"}
    while kills < KILLS:
        new = f"new-{kills + done}"
        status = kill_within(1.5 * longest, lambda doc_id=new: update(run, tmp_path, doc_id), chance)
        kills, done = kills + (status == -9), done + (status == 0)
        assert status in (0, -9)
        found = set(load(run, device="cpu").snapshot.documents.rows)
        assert found in ((known, known | {new}) if status else (known | {new},))
        known = found
    update(run, tmp_path, "last")
    assert len([path for path in run.iterdir() if path.name.lstrip(".").startswith(("docids", "lexical"))]) == 2


def update(run: Path, folder: Path, doc_id: str) -> None:
    """Add a document by the command."""
    corpus = folder / f"{doc_id}.jsonl"
    corpus.write_text(json.dumps({"_id": doc_id, "title": doc_id, "text": "a new river"}))
    if main(["update", str(run), "--device", "cpu", "--add", str(corpus)]):
        raise RuntimeError
