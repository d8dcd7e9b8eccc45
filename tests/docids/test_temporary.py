"""Temporary folders: what a killed process leaves is removed by the next one, and what a live one has is not."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dsi.docids.files import temporary

MAKE = """
import os, sys, time
from dsi.docids.files.temporary import owning, temporary_root
(temporary_root() / "weights").write_bytes(bytes(1000))
if sys.argv[1] == "fork":
    if os.fork() == 0:
        temporary_root()
        sys.exit()
    os.wait()
partial = temporary_root().parent / f"{os.getpid()}.partial"
with owning(partial):
    partial.write_bytes(bytes(10))
    print(temporary_root(), flush=True)
    if sys.argv[1] != "end":
        time.sleep(600)
"""


def start(place, how="wait"):
    """A process with a temporary folder, and the folder."""
    variables = {**os.environ, "TMPDIR": str(place), "TEMP": str(place)}
    process = subprocess.Popen([sys.executable, "-c", MAKE, how], env=variables, stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


def kill(process):
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Remove orphans as a process does that starts."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def remove():
        temporary.remove_temporary_orphans.__wrapped__()
        temporary.remove_orphans(tmp_path, "*.partial")

    return remove


def test_a_killed_process_leaves_nothing_after_the_next_start(tmp_path, sweep):
    gone, folder = start(tmp_path)
    live, other = start(tmp_path)
    try:
        kill(gone)
        assert (folder / "weights").exists()
        third, own = start(tmp_path)  # it removes what the first one left, and nothing of the second
        assert not folder.exists()
        assert (other / "weights").exists()
        kill(third)
        sweep()
        assert not own.exists()
        assert (other / "weights").exists()
        assert [path.name for path in tmp_path.glob("*.partial")] == [f"{live.pid}.partial"]
    finally:
        kill(live)
    sweep()
    assert [*tmp_path.iterdir()] == []


def test_a_process_that_ends_leaves_nothing(tmp_path):
    process, _ = start(tmp_path, "end")
    assert process.wait() == 0
    process.stdout.close()
    assert [path.name for path in tmp_path.iterdir()] == [
        f"{process.pid}.partial"
    ]  # which its block would have renamed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_that_ends_leaves_the_folder_of_its_parent(tmp_path, sweep):
    process, folder = start(tmp_path, "fork")
    try:
        sweep()
        assert (folder / "weights").exists()
    finally:
        kill(process)
    sweep()
    assert [*tmp_path.iterdir()] == []


def test_what_others_made_is_left_alone(tmp_path, sweep):
    (tmp_path / "dsi-notes").mkdir()
    (tmp_path / "dsi-notes.lock").touch()
    (tmp_path / f"dsi-{'a' * 32}").mkdir()  # without a lock
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / f"dsi-{'b' * 32}.lock")
    before = {*tmp_path.iterdir()}
    sweep()
    assert {*tmp_path.iterdir()} == before
