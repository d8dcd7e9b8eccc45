"""A replaced folder is the old one or the new one, wherever the process dies."""

import errno
import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load_file, save_file

from dsi.docids.files.reading import map_tensors, read_record, sha256, tensor_header
from dsi.docids.files.storage import recover_folder, replace_folder, save_tensors, scratch_array, write_json, write_text

DIES = """
import os, signal, sys
from pathlib import Path
import dsi.docids.files.storage as storage
calls, stop = 0, int(sys.argv[2])
def counted(function):
    def call(*args, **kwargs):
        global calls
        if calls == stop:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return function(*args, **kwargs)
    return call
Path.rename, storage.shutil.rmtree, Path.write_text = map(counted, (Path.rename, storage.shutil.rmtree, Path.write_text))
with storage.replace_folder(Path(sys.argv[1])) as folder:
    (folder / "a").write_text("new")
    (folder / "b").write_text("new")
"""


@pytest.mark.parametrize("stop", range(8))
def test_a_kill_at_any_step_leaves_the_old_folder_or_the_new_one(tmp_path, stop):
    folder = tmp_path / "index"
    folder.mkdir()
    for name in "ab":
        (folder / name).write_text("old")
    result = subprocess.run([sys.executable, "-c", DIES, str(folder), str(stop)], check=False)
    # five steps: write, write, rename, rename, clear away
    assert result.returncode == (-signal.SIGKILL if stop < 5 else 0)
    recover_folder(folder)
    contents = {(folder / name).read_text() for name in "ab"}
    assert contents == ({"old"} if stop < 4 else {"new"})
    with replace_folder(folder) as partial:  # and the next replacement works
        (partial / "a").write_text("newer")
    assert (folder / "a").read_text() == "newer"
    assert {path for path in tmp_path.iterdir() if path.suffix != ".lock"} == {folder}


def test_an_exception_leaves_the_old_folder(tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()

    def write_half() -> None:
        with replace_folder(folder) as partial:
            (partial / "a").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert list(tmp_path.iterdir()) == [folder]
    assert list(folder.iterdir()) == []


def test_text_is_written_whole_and_hashed(tmp_path):
    write_text(tmp_path / "deep" / "file", "abc")
    assert (tmp_path / "deep" / "file").read_text() == "abc"
    # the published test vector of SHA-256 for "abc"
    assert sha256(tmp_path / "deep" / "file").startswith("ba7816bf8f01cfea414140de5dae2223")


def test_json_is_strict_and_infinity_comes_back(tmp_path):
    write_json(tmp_path / "file.json", {"beta": math.inf, "list": [1.5, (-math.inf, "é")], "none": math.nan})
    text = (tmp_path / "file.json").read_text(encoding="utf-8")
    record = json.loads(text, parse_constant=pytest.fail)  # Infinity would be no JSON
    assert record == {"beta": "inf", "list": [1.5, ["-inf", "é"]], "none": None}
    assert float(record["beta"]) == math.inf


def test_tensors_are_those_that_the_library_writes_and_reads(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "floats": rng.normal(size=(7, 3)).astype(np.float32), "ints": np.arange(5, dtype=np.int32),
        "flags": np.array([True, False, True]), "bytes": np.arange(9, dtype=np.uint8), "none": np.zeros(0, np.uint8),
    }  # fmt: skip
    path = tmp_path / "x.safetensors"
    save_tensors({**arrays, "floats": arrays["floats"][::-1][::-1]}, path)
    assert load_file(path).keys() == arrays.keys()
    for name, array in load_file(path).items():  # the library reads what we write
        np.testing.assert_array_equal(array, arrays[name])
    save_file(arrays, path)
    mapped = map_tensors(path)
    assert mapped.keys() == arrays.keys()
    for name, array in arrays.items():
        assert mapped[name].dtype == array.dtype
        np.testing.assert_array_equal(mapped[name], array)
    mapped["ints"][0] = 99  # the file is nobody's to write
    assert map_tensors(path)["ints"][0] == 0
    header, start = tensor_header(path)
    assert header["flags"]["dtype"] == "BOOL"
    assert start + max(entry["data_offsets"][1] for entry in header.values()) == path.stat().st_size
    whole = path.read_bytes()
    for cut, message in (
        (len(whole) - 1, "ends within"),
        (4, "is not a safetensors file"),
        (0, "is not a safetensors file"),
    ):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=message):
            map_tensors(path)


def test_scratch_arrays_are_zeros_of_their_own_and_a_full_disk_is_named(monkeypatch):
    first, second = (scratch_array((3, 2), np.float32) for _ in range(2))
    first[:] = 7
    assert second.tolist() == [[0, 0]] * 3

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(
        OSError, match=r"no room for 1.00 GiB in .* \(No space left on device\); set TMPDIR to a larger"
    ):
        scratch_array((2**28,), np.float32)


def write_table(path):
    with pa.OSFile(str(path), "wb") as sink:
        sink.write(b"x" * 10_000_000)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="writes to a device that is full")  # noqa: PTH110
@pytest.mark.parametrize(
    "write",
    [
        lambda path: save_tensors({"x": np.ones((1000, 1000), np.float32)}, path), write_table,
        lambda path: path.write_text("x" * 10_000),
    ],
    ids=["arrays", "arrow", "text"],
)  # fmt: skip
def test_a_full_disk_is_named_with_what_was_written(write, tmp_path):
    def fill() -> None:
        with replace_folder(tmp_path / "index") as partial:
            (partial / "x").symlink_to("/dev/full")
            write(partial / "x")

    with pytest.raises(OSError, match=r"no room left for .*/index \(.*\); free some space, or write to another disk"):
        fill()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"a": ' * 100_000, "\udcff", None])
def test_a_damaged_record_is_an_empty_one(tmp_path, text):
    path = tmp_path / "record.json"
    if text is None:
        os.mkfifo(path)  # to be waited for without end
    else:
        path.write_bytes(text.encode(errors="surrogateescape"))
    assert read_record(path) == {}
