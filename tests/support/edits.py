"""Changes to the files of an index, with sums that fit again, each tried in a process of its own, so that a crash is seen.

The process stands for a user's: it verifies the index (the trial of `probe` is a fork of it, so that nothing is imported
again), loads it, and searches and updates it.
"""

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

import dsi
import dsi.store.folder.loading
import dsi.store.folder.verify
from dsi.docids.files.reading import sha256
from dsi.store.folder import probe
from dsi.store.folder.manifest import PARTS
from dsi.store.folder.writing import ChangedError
from tests.support.kills import fork, status_of

SECONDS = 20
MOST_BYTES = 2 * 2**30
OUTSIDE = 77
CALLS = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "webbrowser", "urllib", "pickle.find_class",
)  # fmt: skip
"""Audit events of Python that loading never raises."""
ENDS = ("fine", "clear line", "probe's line")
"""How a trial may end."""
VALUES = [0, -1, 1, 3, 1000, 10**6, 10**9, 2**63, 0.5, -0.5, 1e300, float("nan"), True, False, None, "", "x", "../..",
          "/dev/zero", "gelu_new", [], [0], {}, {"x": 1}]  # fmt: skip
QUERIES = ["noble gas", "which metal is light"]
AIMED: dict[str, Any] = {
    "auto_map": {"AutoModel": "evil.Model", "AutoConfig": "evil.Config", "AutoTokenizer": ["evil.Tokenizer", None]},
    "backbone": "evil/model", "_name_or_path": "/etc/passwd", "quantization_config": {"quant_method": "gptq", "bits": 4},
    "_attn_implementation": "evil/kernels", "chat_template": "{% for a in range(999999999) %}x{% endfor %}",
    "tokenizer_file": "/etc/passwd", "vocab_file": "/dev/zero", "tokenizer_class": "ByT5Tokenizer",
    "model_type": "timm_wrapper",
    "processing_kwargs": {"text": {"padding": "max_length", "max_length": 10**9}}, "type": "evil.Evil", "kind": "os.system",
    "activation_function": "torch.hub.load", "num_hidden_layers": 10**9, "num_layers": 10**9, "vocab_size": 2**40,
    "d_model": 2**30, "hidden_size": 3, "max_position_embeddings": 2**40, "dtype": "float8_e4m3fn", "d_kv": 0, "num_heads": 0,
    "layer_norm_epsilon": 1e300, "relative_attention_num_buckets": -1, "pad_token_id": 10**6, "fan_out": [10**9], "k1": 1e300,
    "prompts": {"query": "x" * 10**6}, "max_seq_length": 1, "model_max_length": 1, "pad_token": None, "language": "x",
}  # fmt: skip
"""Settings that some reader of some file knows, set at the top of JSON objects."""
ARRAYS: dict[str, Callable[[Any], Any]] = {
    "zeros": np.zeros_like,
    "largest": lambda own: np.full_like(
        own, np.finfo(own.dtype).max if own.dtype.kind == "f" else np.iinfo(own.dtype).max
    ),
    "least": lambda own: np.full_like(own, np.nan if own.dtype.kind == "f" else np.iinfo(own.dtype).min),
    "backwards": lambda own: own[::-1].copy(),
    "half": lambda own: own[: len(own) // 2].copy(),
    "twice": lambda own: np.concatenate([own, own]),
    "flat": lambda own: own.reshape(-1).copy(),
    "one more": lambda own: (own + 1).astype(own.dtype),
}


class Edit(NamedTuple):
    """A change to one file of an index: its name below the folder, the change in words, and a function of the file's path."""

    name: str
    what: str
    change: Callable[[Path], object]


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    """Change the value in a JSON file in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def write_sums(folder: Path) -> None:
    """Make the sums in the manifest fit the files, as a stranger could."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    files = sorted(file for name in PARTS for file in (folder / name).rglob("*") if file.is_file())
    manifest["files"] = {file.relative_to(folder).as_posix(): sha256(file) for file in files}
    path.write_text(json.dumps(manifest))


def edits(source: Path, count: int, seed: int) -> Iterator[Edit]:
    """Yield changes to all files of an index in turn, every second one aimed at what reads the file."""
    names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
    for number in range(count):
        name, chance = names[number % len(names)], random.Random(seed + number)
        change = _aimed if number // len(names) % 2 == 0 else _any
        yield Edit(name, f"seed {seed + number}", lambda path, chance=chance, change=change: change(path, chance))


def _aimed(path: Path, chance: random.Random) -> str:
    """Set a known setting of a JSON object, or change a whole array."""
    if path.suffix == ".safetensors":
        arrays = load_file(path)
        name, (what, change) = chance.choice(sorted(arrays)), chance.choice(sorted(ARRAYS.items()))
        with suppress(TypeError, ValueError):  # such as booleans
            save_file({**arrays, name: change(arrays[name])}, path)
        return f"{name}: {what}"
    if path.suffix != ".json" or not isinstance(value := json.loads(path.read_text()), dict):
        return _any(path, chance)
    known = [name for name in AIMED if name in value] if chance.random() < 0.5 else []
    name = chance.choice(known or sorted(AIMED))
    path.write_text(json.dumps({**value, name: AIMED[name]}))
    return f"{name}: {AIMED[name]!r}"[:100]


def _any(path: Path, chance: random.Random) -> str:
    """Change a few bytes of a file, more often near its start, or a value in a JSON file."""
    if path.suffix == ".json" and chance.random() < 0.7:
        value = json.loads(path.read_text())
        done = _change_value(value, chance)
        path.write_text(json.dumps(value))
        return done
    data, flips = bytearray(path.read_bytes()), []
    for _ in range(chance.choice([1, 1, 2, 8])):
        place = chance.randrange(chance.choice([len(data), len(data), min(len(data), 400)]))
        value = ord(chance.choice("0123456789")) if chance.random() < 0.3 else chance.randrange(256)
        flips.append((place, data[place], value))
        data[place] = value
    path.write_bytes(data)
    return str(flips)


def _change_value(value: Any, chance: random.Random) -> str:
    """Replace or remove a value at a random place of a JSON object or list."""
    key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.8:
        return f"{key}.{_change_value(value[key], chance)}"
    if chance.random() < 0.2:
        return f"{key} removed: {value.pop(key)!r}"[:100]
    before, value[key] = value[key], chance.choice(VALUES)
    return f"{key}: {value[key]!r} for {before!r}"[:100]


# Trials.


def count_ends(source: Path, changes: Iterable[Edit]) -> tuple[Counter[str], list[str]]:
    """Try changes one after another; returns ({how it ended: changes}, those that may not end so)."""
    counts, bad = Counter[str](), []
    for edit in changes:
        end, done = trial(source, edit)
        counts[end] += 1
        if end not in ENDS:
            bad.append(f"{end}: {done}")
    return counts, bad


def trial(source: Path, edit: Edit) -> tuple[str, str]:
    """Change one file of a copy, and use the copy in a process of its own; returns (how it ended, what was changed)."""
    folder = Path(tempfile.mkdtemp(prefix="edits-")) / "index"
    shutil.copytree(source, folder, copy_function=os.link)
    for name in {edit.name, "manifest.json"}:  # what is written
        (folder / name).unlink()
        shutil.copy(source / name, folder / name)
    done = f"{edit.name} ({edit.what}): {edit.change(folder / edit.name) or ''}"
    if edit.name != "manifest.json":
        write_sums(folder)
    report = folder.parent / "end.json"

    def work() -> None:
        _limit(30 * SECONDS)
        watch(
            folder.parent / "outside",
            [str(folder.parent), str(Path(__file__).parents[2]), os.environ["XDG_CACHE_HOME"]],
        )
        with suppress(ModuleNotFoundError):  # the bindings too can be made to fit
            from dsi.generator.base import Generator

            Generator.check_tree = lambda self, tree: None
        dsi.store.folder.loading.check_binding = lambda *arguments: None
        dsi.store.folder.verify._try = _forked  # type: ignore[assignment]
        os.fsync = lambda descriptor: None  # type: ignore[assignment]
        found = _use(folder)
        _watching.clear()
        report.write_text(json.dumps(found))

    status = status_of(fork(work))
    opened = (folder.parent / "outside").read_text() if (folder.parent / "outside").exists() else ""
    end, error = "outside" if status == OUTSIDE else "crash", f"status {status} {opened}"
    if report.exists():
        end, error = json.loads(report.read_text())
    shutil.rmtree(folder.parent)
    return end, f"{done}\n{error}"


def _use(folder: Path) -> tuple[str, str]:
    """Load an index and use it as a user would; returns how that ends, and the error."""
    try:
        retriever = dsi.load(folder, device="cpu")
    except (ValueError, FileNotFoundError) as error:
        line = str(error)
        if "\n" in line or not (str(folder) in line or "manifest.json" in line):
            return "unclear", line
        return "probe's line" if "a process that tried it" in line else "clear line", line
    except BaseException as error:
        return "unclear", repr(error)
    try:
        for options in ({}, {"method": "exact"}, {"beam_width": 1}):
            retriever.search(QUERIES, k=5, **options)
        retriever.explain(QUERIES[0], k=2)
        _watching.clear()  # an update writes scratch files
        retriever.add([{"doc_id": "a-new-one", "title": "Neon", "text": "a noble gas"}])
        retriever.remove([retriever.snapshot.documents.column("doc_id")[0]])
        retriever.search(QUERIES, k=5)
        with suppress(ChangedError):  # an encoder is not the one of the manifest, whose binding is not checked here
            retriever.save(folder)
    except Exception as error:
        if "it is in its last generation" in str(error):  # searched, and one line says what to do
            return "clear line", str(error)
        return "error in use", repr(error)
    return "fine", ""


def _forked(folder: Path, seconds: float) -> None:
    """Stand in for `dsi.store.folder.verify._try`: the same trial in a fork, whose libraries are loaded."""
    wrote = os.memfd_create("standard error")

    def work() -> None:
        os.dup2(wrote, 2)
        _limit(5 * SECONDS)
        os._exit(probe.main(folder))

    status = status_of(fork(work))
    lines = os.pread(wrote, 2**20, 0).decode(errors="replace").strip().splitlines() or ["it wrote nothing"]
    os.close(wrote)
    if status == OUTSIDE:
        os._exit(OUTSIDE)
    if status:
        raise ValueError(f"{folder} is not loaded, because a process that tried it ended with {status}: {lines[-1]}")


def _limit(seconds: int) -> None:
    """Let this process end after some seconds, and refuse it more than `MOST_BYTES`."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


_watching: list[str] = []
"""Where files may be opened just now; empty if anywhere."""


def watch(path: Path, own: Iterable[str]) -> None:
    """End this process with status `OUTSIDE` if it opens a connection, a process, or a file of neither `own` nor Python.

    Args:
        path: of a file, which will say what was opened.
        own: how paths begin that may be opened.
    """
    log = os.open(path, os.O_WRONLY | os.O_CREAT)
    known = [*own, *filter(None, sys.path), sys.prefix, sys.base_prefix, "/proc/", "/sys/", os.devnull]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not _watching:
            return
        path = os.fsdecode(arguments[0]) if event == "open" and isinstance(arguments[0], str | bytes) else ""
        if event.startswith(CALLS) or (path and not path.startswith(tuple(_watching))):
            os.write(log, f"{event} {arguments[:2]}".encode())
            os._exit(OUTSIDE)

    sys.addaudithook(hook)
    _watching[:] = known
