"""What macOS and Windows do differently, simulated: OpenMP, files that are open or mapped, no links, no fork."""

import os
import subprocess
import sys

import numpy as np
import pytest

from dsi.commands import libraries
from dsi.contrastive.blocks import _join
from dsi.docids.files import storage
from dsi.docids.files.storage import beside, link_files, replace_folder, write_text


@pytest.mark.parametrize(("chosen", "expected"), [(None, "1"), ("4", "4")])
def test_commands_on_macos_use_one_openmp_thread_unless_the_user_chooses(chosen, expected, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    for name in ("OMP_NUM_THREADS", "KMP_DUPLICATE_LIB_OK"):
        monkeypatch.setenv(name, "")  # so that both are put back
        monkeypatch.delenv(name)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    libraries._limit_threads()
    assert (os.environ["OMP_NUM_THREADS"], os.environ["KMP_DUPLICATE_LIB_OK"]) == (expected, "TRUE")


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
    ids=["nothing", "spins", "policy"],
)
def test_threads_wait_briefly_unless_the_user_chooses(chosen, expected):
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = "import os, sys, dsi; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=kept | chosen, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected, "False"]  # set before torch reads it


@pytest.fixture
def windows(monkeypatch):
    """A file system that refuses the first renames, as many as the returned list says."""
    refused, replace = [3], storage.Path.replace

    def refuse_at_first(path, target):
        if refused[0]:
            refused[0] -= 1
            raise PermissionError(13, "Access is denied")
        return replace(path, target)

    monkeypatch.setattr(storage, "os", _Named(os, name="nt"))
    monkeypatch.setattr(storage, "_PAUSE", 0)
    monkeypatch.setattr(storage.Path, "replace", refuse_at_first)
    return refused


class _Named:
    def __init__(self, module, **changed):
        self.__dict__.update(vars(module) | changed)


def test_a_file_that_a_reader_has_open_is_replaced_when_it_is_closed(windows, tmp_path):
    write_text(tmp_path / "manifest.json", "new")
    assert windows == [0]
    assert (tmp_path / "manifest.json").read_text() == "new"


def test_a_file_that_stays_open_is_given_up(windows, tmp_path):
    windows[0] = 1000
    with pytest.raises(PermissionError):
        write_text(tmp_path / "manifest.json", "new")
    assert windows[0] < 1000 - storage._ATTEMPTS


def test_elsewhere_a_refusal_is_one(windows, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "os", os)
    with pytest.raises(PermissionError):
        write_text(tmp_path / "manifest.json", "new")
    assert windows == [2]


def test_a_folder_that_is_mapped_keeps_its_content_and_is_named(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").touch()

    def refuse(path, target):
        raise PermissionError(13, "Access is denied")

    monkeypatch.setattr(storage.Path, "rename", refuse)
    with pytest.raises(PermissionError) as error, replace_folder(tmp_path / "run") as partial:
        (partial / "new").touch()
    assert str(error.value) == (
        f"{tmp_path / 'run'} cannot be replaced (Access is denied): it is read-only, or a process has it open; end that "
        "process or write to another folder."
    )
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["old"]
    assert not beside(tmp_path / "run", "partial").exists()


def test_no_mapped_file_is_renamed(tmp_path, monkeypatch):
    mapped, rename = [], storage.Path.replace

    def replace(path, target):
        mapped.append(str(path) in open("/proc/self/maps").read())  # noqa: PTH123, SIM115
        return rename(path, target)

    if not storage.Path("/proc/self/maps").exists():
        pytest.skip("reads the maps of the process from /proc")
    np.save(tmp_path / "0.npy", np.ones((3, 2), dtype=np.float32))
    monkeypatch.setattr(storage.Path, "replace", replace)
    _join([tmp_path / "0.npy"], (3, 2), tmp_path / "all.npy")
    assert mapped == [False]
    assert np.load(tmp_path / "all.npy").sum() == 6


def test_files_are_copied_where_there_are_no_links(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_text("a")

    def refuse(source, target):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    link_files(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target" / "a").read_text() == "a"


def test_a_benchmark_that_forks_says_so_where_it_cannot(monkeypatch):
    from dsi_experiments.benchmarks import index_measure

    monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(OSError, match="in forked processes, which win32 does not have; run it on Linux"):
        index_measure._alone(len, [])
