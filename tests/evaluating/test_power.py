"""After a loss of power, at any moment of a save, the index before it is there or the one after it."""

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dsi.docids.files.reading import read_record
from dsi.docids.files.storage import recover_folder, replace_folder, write_json
from dsi.store.retriever import load
from tests.support.power import Disk
from tests.support.small_index import DOCUMENTS, small_index

posix = pytest.importorskip("posix")  # whose fsync waits for the disk, which that of `os` does not during tests
pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads open files by their number")


def states_after(work: Callable[[], object], folder: Path, read: Callable[[Path], object], every: int = 1) -> list:
    """What `read` finds after a loss of power at each moment of some work, in both orders of what was not synced."""
    found, moments, place = [], 0, folder.with_name("lost")

    def lost() -> None:
        nonlocal moments
        moments += 1
        if moments % every:
            return
        for only_synced_names in (True, False):
            disk.write(place, only_synced_names=only_synced_names)
            found.append(read(place))
            shutil.rmtree(place)

    disk = Disk(folder, lost)
    with disk.watching():
        work()
    return found


def test_a_replaced_folder_and_a_manifest_are_whole_after_a_loss_of_power(tmp_path):
    folder = tmp_path / "disk"
    (folder / "run" / "part").mkdir(parents=True)
    (folder / "run" / "part" / "a").write_text("old")
    write_json(folder / "run" / "manifest.json", {"part": "part"})

    def save() -> None:
        with replace_folder(folder / "run" / "part-2") as partial:
            (partial / "a").write_text("new")
            (partial / "deep").mkdir()
            (partial / "deep" / "b").write_text("new")
        write_json(folder / "run" / "manifest.json", {"part": "part-2"})
        shutil.rmtree(folder / "run" / "part")
        with replace_folder(folder / "run"):
            write_json(folder / ".run.partial" / "manifest.json", {"part": "."})
            (folder / ".run.partial" / "a").write_text("newest")

    def read(disk: Path) -> str:
        recover_folder(disk / "run")
        part = disk / "run" / read_record(disk / "run" / "manifest.json")["part"]
        text = (part / "a").read_text()
        assert text != "new" or (part / "deep" / "b").read_text() == "new"
        return text

    states = states_after(save, folder, read)
    assert list(dict.fromkeys(states)) == ["old", "new", "newest"]
    assert len(states) > 20


@pytest.mark.slow
def test_an_index_is_the_old_or_the_new_one_after_a_loss_of_power(encoder, tmp_path):
    folder = tmp_path / "disk"
    index = small_index(encoder, vectors=True)
    index.save(folder / "run")
    index.add(DOCUMENTS[50:53])
    index.remove([DOCUMENTS[0]["doc_id"]])

    def read(disk: Path) -> int:
        recover_folder(disk / "run")
        return len(load(disk / "run", device="cpu").snapshot.documents)

    states = states_after(lambda: index.save(folder / "run"), folder, read)
    assert set(states) == {50, 52}
    assert states == sorted(states)
    assert len(states) > 20


@pytest.mark.slow
def test_what_syncing_costs(encoder, tmp_path, monkeypatch, capsys):
    """Prints medians of 100 updates of one document; in every other one nothing is synced."""
    index, sync = small_index(encoder, vectors=True), posix.fsync
    index.save(tmp_path / "run")
    syncs, seconds = [], {name: [] for name in ("add", "save, synced", "save, not synced")}

    def timed(name: str, work: Callable[[], object]) -> None:
        started = time.perf_counter()
        work()
        seconds[name].append(time.perf_counter() - started)

    for number in range(100):
        timed("add", lambda: index.add([{**DOCUMENTS[50], "doc_id": f"new-{number}"}]))  # noqa: B023
        synced = number % 2 == 0
        monkeypatch.setattr("os.fsync", lambda descriptor: syncs.append(sync(descriptor)) if synced else None)  # noqa: B023
        timed(f"save, {'' if synced else 'not '}synced", lambda: index.save(tmp_path / "run"))
        index.remove([f"new-{number}"])
    medians = ", ".join(f"{name} {1000 * np.median(own):.1f} ms" for name, own in seconds.items())
    with capsys.disabled():
        sys.stdout.write(f"\n{medians}; {len(syncs) / 50:g} syncs a save\n")
    assert len(syncs) >= 50
