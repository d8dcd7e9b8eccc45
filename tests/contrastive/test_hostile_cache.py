"""The cache of exported encoders, changed by others: a graph that is not as it was written is made again, or torch computes."""

import json
import os
import random
import shutil
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.onnx_runtime import cache_folder
from dsi.docids.files.storage import folder_sums, write_json
from tests.support import hostile
from tests.support.aimed import KEYS, TEXTS
from tests.support.kills import fork, status_of
from tests.support.small import PROMPTS

TEXT = "noble gases"
GRAPH, RECORD = "transformer.onnx", "record.json"


def rewrite(name, change, folder):
    (folder / name).write_bytes(change((folder / name).read_text()).encode(errors="surrogatepass"))


def set_key(key, value, folder):
    write_json(folder / RECORD, {**json.loads((folder / RECORD).read_text()), key: value})


def replaced(name, make, folder):
    (folder / name).unlink()
    make(folder / name)


def as_bytes(change, text):
    changed = change(text)
    return changed if isinstance(changed, str) else changed.decode("latin-1")


THINGS = {
    "a pipe": os.mkfifo, "a folder": Path.mkdir, "nothing": lambda path: None,
    "a link to itself": lambda path: path.symlink_to(path), "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link elsewhere": lambda path: path.symlink_to("/etc/passwd"),
}  # fmt: skip


def changes(count):
    """(what, a change of the folder of a graph), of the record, of what the files are, and `count` of the graph's bytes."""
    for what, change in TEXTS.items():
        yield f"record: {what}", partial(rewrite, RECORD, partial(as_bytes, change))
    for key, value in KEYS.items():
        yield f"record: {key} is set", partial(set_key, key, value)
    yield "record: depth alone", partial(rewrite, RECORD, lambda text: "[" * 10**5)
    for name in (GRAPH, RECORD):
        for what, make in THINGS.items():
            yield f"{name}: {what}", partial(replaced, name, make)
    yield "a pipe beside", lambda folder: os.mkfifo(folder / "x")
    yield "a file beside", lambda folder: (folder / "evil.py").write_text("1/0")
    for number in range(count):
        yield f"graph {number}", lambda folder, number=number: hostile.change(folder / GRAPH, random.Random(number))


def outcome(encoder, cache, change, place, fit):
    """How a change ends: "right", "wrong" (other embeddings), "trace" or "hang", "crash", "outside" as of an index."""
    shutil.copytree(cache, place / "dr-scl" / "onnx", copy_function=shutil.copy)
    (folder,) = (place / "dr-scl" / "onnx").glob("[!.]*")
    change(folder)
    if fit:
        sums = {name: total for name, total in folder_sums(folder).items() if name != RECORD}
        write_json(folder / RECORD, {"key": folder.name, "files": sums})

    def work():
        os.environ["XDG_CACHE_HOME"] = str(place)
        hostile._limit()
        hostile.watch(
            place / "outside", [str(place), str(Path(__file__).parent), *sys.path[1:], "/tmp", GRAPH, RECORD]
        )  # rmtree opens by names alone
        found = encoder.for_search(backend="onnx").encode([TEXT, "x"], "query")
        hostile._watching.clear()
        os._exit(0 if np.allclose(found, encoder.encode([TEXT, "x"], "query"), atol=1e-5) else 3)

    status = status_of(fork(work))
    return {0: "right", 1: "trace", 3: "wrong", **hostile.DEATHS}.get(status, "crash")


@pytest.mark.programs
@pytest.mark.parametrize(("count", "step"), [(12, 4), pytest.param(200, 1, marks=pytest.mark.fuzz)])
def test_a_changed_cache_gives_the_same_embeddings(count, step, sentence_t5_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    assert status_of(fork(lambda: encoder.for_search(backend="onnx"))) == 0
    counts, bad = Counter(), []
    for number, (what, change) in enumerate([*changes(count)][::step]):
        for fit in (False, True) if what.startswith("graph") else (False,):
            place = tmp_path / f"{number} {fit}"
            found = outcome(encoder, cache_folder(), change, place, fit)
            counts[f"{found}, sums {'fit' if fit else 'of before'}"] += 1
            if found != "right" and not (fit and found == "wrong"):  # who fits the sums writes the graph
                bad.append(f"{found}: {what}, {fit}: {(place / 'outside').read_text()}")
            shutil.rmtree(place)
    with capsys.disabled():
        sys.stdout.write(f"\n{counts.total()} changes of the cache: {dict(counts)}\n")
    assert not bad, "\n".join(bad)
