"""Several processes and threads write to one folder and others load it meanwhile: no change is lost, no load fails."""

import errno
import fcntl
import json
import os
import pickle
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path

import pytest

import dsi
from dsi import Retriever
from dsi.commands.main import main
from dsi.docids.files.processes import Processes
from dsi.docids.files.reading import MappedFile, read_while_unchanged
from dsi.docids.files.storage import beside, writing_to
from dsi.measuring.tuning import configure
from dsi.store.folder import loading
from dsi.store.folder.manifest import MOST_GENERATIONS
from dsi.store.folder.writing import ChangedError
from dsi.training import pipeline
from tests.support.kills import fork, status_of
from tests.support.small_index import DOCUMENTS, QUERIES, small_index
from tests.support.tiny_settings import write_settings

pytestmark = pytest.mark.programs

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")


@pytest.fixture
def run(encoder, tmp_path) -> Path:
    """An index of the first 50 of `DOCUMENTS`."""
    small_index(encoder).save(tmp_path / "run")
    return tmp_path / "run"


def load(run: Path) -> Retriever:
    return dsi.load(run)


def update(run: Path, number: int) -> None:
    """Add one of `DOCUMENTS` by the command."""
    document, corpus = DOCUMENTS[number], run.with_name(f"{number}.jsonl")
    corpus.write_text(json.dumps({"_id": document["doc_id"], "title": document["title"], "text": document["text"]}))
    if main(["update", str(run), "--device", "cpu", "--add", str(corpus)]):
        raise RuntimeError


def test_who_loaded_an_earlier_generation_cannot_save_over_a_later_one(run, tmp_path):
    first, second = load(run), load(run)
    first.add(DOCUMENTS[50:51])
    assert first.save(run) == 2
    first.add(DOCUMENTS[51:52])
    assert first.save(run) == 3  # what it saved itself it knows
    second.add(DOCUMENTS[52:53])
    with pytest.raises(ValueError, match=r"run \(generation 3 now\) was changed since .* Load the index again, repeat"):
        second.save(run)
    again = load(run)
    again.add(DOCUMENTS[52:53])
    assert again.save(run) == 4
    assert {d["doc_id"] for d in DOCUMENTS[50:53]} <= set(load(run).snapshot.documents.rows)
    second.save(tmp_path / "other")  # elsewhere it overwrites nothing of theirs
    second.add(DOCUMENTS[53:54])
    assert second.save(tmp_path / "other") == 3


def test_an_index_in_its_last_generation_stays_loadable(run, monkeypatch):
    monkeypatch.setattr("dsi.store.folder.verify._try", lambda folder, seconds: None)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "generation": MOST_GENERATIONS}))
    retriever = load(run)
    retriever.add(DOCUMENTS[50:51])
    with pytest.raises(ValueError, match=r"run can be updated no more"):
        retriever.save(run)
    assert len(load(run).snapshot.documents.rows) == 50
    retriever = Retriever(retriever.snapshot)  # which does not know the folder, and replaces the index there
    retriever.save(run)
    assert len(load(run).snapshot.documents.rows) == 51
    retriever.add(DOCUMENTS[51:52])
    assert retriever.save(run) == 3


def test_a_place_that_may_not_be_written_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    retriever = load(run)
    with pytest.raises(PermissionError, match=r"You may not write into .*; name another place, or change its mode"):
        retriever.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
@pytest.mark.parametrize("name", [".run.lock", ".run.writer"])
def test_what_lies_where_a_lock_is_kept_is_refused(run, tmp_path, name, kind):
    path, other = tmp_path / name, tmp_path / "other"
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(other)
    else:
        path.mkdir()
    retriever = load(run)
    retriever.add(DOCUMENTS[50:51])
    with pytest.raises(ValueError, match=f"{name} must be a file of this package, and is a link, a pipe or"):
        retriever.save(run)
    assert not other.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_and_links_in_an_index_that_is_saved_over_stay_what_they_are(run, tmp_path):
    os.mkfifo(run / "own")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("mine")
    (run / "link").symlink_to("../elsewhere")
    retriever = load(run)
    retriever.add(DOCUMENTS[50:51])
    retriever.save(run)
    assert len(load(run).snapshot.documents.rows) == 51
    assert (run / "own").is_fifo()
    assert (run / "link").is_symlink()
    assert (tmp_path / "elsewhere" / "file").stat().st_nlink == 1


def test_threads_that_save_one_retriever_lose_nothing(run):
    retriever = load(run)

    def add(number: int) -> None:
        retriever.add(DOCUMENTS[number : number + 1])
        retriever.save(run)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(50, 62)))
    assert set(load(run).snapshot.documents.rows) == {d["doc_id"] for d in DOCUMENTS[:62]}


@forks
@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.fuzz)])
def test_updates_at_once_wait_for_each_other(run, rounds):
    retriever = load(run)
    for _ in range(rounds):
        children = [fork(lambda number=number: update(run, number)) for number in (50, 51)]
        assert [status_of(child) for child in children] == [0, 0]
        retriever = load(run)
        new = {d["doc_id"] for d in DOCUMENTS[50:52]}
        assert set(retriever.snapshot.documents.rows) == {d["doc_id"] for d in DOCUMENTS[:52]}
        retriever.remove(new)
        retriever.save(run)


@forks
@pytest.mark.parametrize("loads", [10, pytest.param(200, marks=pytest.mark.fuzz)])
def test_loads_during_updates_succeed(run, loads):
    """The updates come one after another without a pause."""

    def update_on_and_on() -> None:
        retriever = load(run)
        while True:
            retriever.add(DOCUMENTS[50:52])
            retriever.save(run)
            retriever.remove([d["doc_id"] for d in DOCUMENTS[50:52]])
            retriever.save(run)

    child, sizes = fork(update_on_and_on), set()
    try:
        for _ in range(loads):
            retriever = load(run)
            assert retriever.snapshot.lexical is not None
            assert len(retriever.search(QUERIES, k=5)) == len(QUERIES)
            sizes.add(len(retriever.snapshot.documents))
    finally:
        os.kill(child, signal.SIGKILL)
        assert status_of(child) == -signal.SIGKILL
    assert sizes <= {50, 52}
    assert int(json.loads((run / "manifest.json").read_text())["generation"]) > 3


def test_an_index_saved_over_another_while_its_encoder_is_read_is_loaded_instead(run, monkeypatch):
    """Saving as a whole replaces the folder: for a moment there is none, and the files are others than those checked."""
    other, loads = load(run), []
    other.add(DOCUMENTS[50:52])
    read = loading.load_encoder

    def replaced_first(*arguments):
        loads.append(arguments)
        if len(loads) == 1:
            away = run.with_name("away")
            run.rename(away)
            try:
                return read(*arguments)  # what it meets between the two renames
            finally:
                away.rename(run)
                Retriever(other.snapshot).save(run)
        return read(*arguments)

    monkeypatch.setattr(loading, "load_encoder", replaced_first)
    assert len(load(run).snapshot.documents) == 52
    assert len(loads) == 2


def test_a_file_that_an_update_removes_while_files_are_listed_is_left_out(run, monkeypatch):
    listed = {path.name for path in map(Path, (file.path for file in loading.mapped_files(run)))}
    find = MappedFile.at.__func__

    def vanishing(cls, path):
        if path.name == "documents.arrow":
            path.unlink()
        return find(cls, path)

    monkeypatch.setattr(MappedFile, "at", classmethod(vanishing))
    assert {Path(file.path).name for file in loading.mapped_files(run)} == listed - {"documents.arrow"}


def test_a_folder_that_an_update_removes_while_files_are_listed_is_left_out(run, monkeypatch):
    listed, scan = {Path(file.path) for file in loading.mapped_files(run)}, os.scandir

    def vanishing(path="."):
        if str(path) == str(run / "lexical"):
            Path(path).rename(run.parent / "removed")
        return scan(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    left = {path for path in listed if path.parent != run / "lexical"}
    assert left < listed
    assert {Path(file.path) for file in loading.mapped_files(run)} == left


@pytest.mark.parametrize("changes", [0, 3, 1000])
def test_reading_what_changes_is_repeated_and_has_an_end(tmp_path, changes):
    path, reads = tmp_path / "file", []

    def read() -> None:
        reads.append(path)
        if len(reads) <= changes:
            path.write_text("+" * len(reads))
            raise FileNotFoundError("as if an update had removed it")
        raise ValueError("damaged")

    with pytest.raises(BlockingIOError if changes == 1000 else ValueError, match=r"changed 20 times|damaged"):
        read_while_unchanged(path, read)
    assert len(reads) == min(changes + 1, 20)


@forks
def test_a_killed_writer_blocks_nobody_and_a_living_one_is_named(
    run, beir, sentence_t5_folder, t5_folder, capsys, caplog
):
    config = write_settings(run.with_name("config.toml"), sentence_t5_folder, t5_folder)
    ready = run.with_name("ready")

    def write_long() -> None:
        with writing_to(run):
            ready.touch()
            time.sleep(20)

    child = fork(write_long)
    while not ready.exists():
        time.sleep(0.01)
    train = ["train", "--config", str(config), str(beir()), str(run), "--device", "cpu"]
    try:
        assert main(train) == 2  # refused at once
        assert f"{run} is being written by process {child} on " in capsys.readouterr().err
        assert not (run / "config.toml").exists()
        with pytest.raises(BlockingIOError, match="wait for its end or take another"):
            dsi.train(dsi.read_collection(beir()), run, config=config, device="cpu")
        assert load(run).search(QUERIES, k=5)  # readers need not wait
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(update, run, 50)
            time.sleep(0.3)
            assert not waiting.done()
            os.kill(child, signal.SIGKILL)
            waiting.result()
    finally:
        assert status_of(child) == -signal.SIGKILL
    assert "waiting for its end" in caplog.text
    assert DOCUMENTS[50]["doc_id"] in load(run).snapshot.documents.rows


def test_only_one_of_the_processes_of_a_training_takes_the_folder(
    tmp_path, beir, sentence_t5_folder, t5_folder, monkeypatch
):
    config = write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder)
    arguments = (tmp_path / "run", dsi.read_collection(beir()), dsi.Config.named(config))

    def second(first_says: object) -> Processes:
        return Processes(rank=1, count=2, gather=lambda own: [first_says if own is None else own, own])

    with ThreadPoolExecutor(1) as pool, writing_to(tmp_path / "run"):
        monkeypatch.setattr(pipeline, "launch", lambda _: second(None))
        run = pipeline.TrainingRun(*arguments)
        pool.submit(run._writing().__enter__).result()
        monkeypatch.setattr(pipeline, "launch", lambda _: second(BlockingIOError("somebody writes")))
        with pytest.raises(BlockingIOError, match="somebody writes"):
            pipeline.TrainingRun(*arguments).train()


def test_a_thread_may_write_to_what_it_writes_to(run):
    config = load(run).search_config
    with writing_to(run), writing_to(run, wait=False):
        configure(run, config)
        with ThreadPoolExecutor(1) as pool, pytest.raises(BlockingIOError, match=f"process {os.getpid()} "):
            pool.submit(writing_to(run, wait=False).__enter__).result()
    with writing_to(run, wait=False):
        pass


def test_the_lock_is_in_the_folder_where_its_parent_is_read_only(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    with writing_to(tmp_path / "run"):
        assert (tmp_path / "run" / ".lock").exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


@pytest.mark.parametrize(("code", "refused"), [(errno.ENOLCK, True), (errno.EOPNOTSUPP, True), (errno.ENOSYS, False)])
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_file_system_without_locks_is_told_or_gets_a_file_as_a_lock(code, refused, tmp_path, monkeypatch):
    def flock(file: object, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    run = tmp_path / "run"
    if refused:
        with pytest.raises(OSError, match=r"file system of .*run cannot lock files \(.*\); use a folder on another"):
            writing_to(run).__enter__()
        return
    with writing_to(run), ThreadPoolExecutor(1) as pool, pytest.raises(BlockingIOError, match="is being written by"):
        pool.submit(writing_to(run, wait=False).__enter__).result()
    with writing_to(run, wait=False):
        pass


def test_a_snapshot_of_before_cannot_be_saved_over_an_update(run):
    retriever = load(run)
    snapshot = copy(retriever)
    retriever.add([{"doc_id": "new", "title": "Neretva", "text": "A river."}])
    retriever.save(run)
    assert "new" in pickle.loads(pickle.dumps(retriever)).snapshot.documents.rows
    with pytest.raises(ValueError, match="was changed since"):
        pickle.loads(pickle.dumps(snapshot))
    snapshot.remove([next(iter(snapshot.snapshot.documents.rows))])
    with pytest.raises(ChangedError):
        snapshot.save(run)
    assert "new" in load(run).snapshot.documents.rows


def test_an_update_removes_what_killed_trainings_and_saves_have_left(run):
    left = [
        run / ".docids.partial",
        run / ".pseudo_queries.partial",
        run / ".generator.previous",
        beside(run, "partial"),
    ]
    for folder in left:
        folder.mkdir()
        (folder / "documents.arrow").write_text("removed words")
    retriever = load(run)
    retriever.remove([next(iter(retriever.snapshot.documents.rows))])
    retriever.save(run)
    assert not [folder for folder in left if folder.exists()]
