"""Random input: what is right is taken and means what Python says it means, what is wrong is refused in one line.

`pytest -m fuzz` tries 10,000 cases; DSI_CASES is another number, DSI_SEED the first case. A case that fails says how to run it
alone. `--log-level=INFO -rP` shows the outcomes.
"""

import dataclasses
import logging
import os
import resource
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from random import Random

import pytest

import dsi
from dsi import Retriever
from dsi.config import read_config, write_config
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.docids.data.collection import Collection, read_collection
from tests.support import grammars
from tests.support.command_lines import command, option_lines, whole_lines
from tests.support.hostile_calls import option_calls, plain_calls
from tests.support.kills import fork, status_of
from tests.support.small import PROMPTS
from tests.support.tiny_index import TinyIndex
from tests.support.trials import Case, count_outcomes

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="forks, and limits memory")
logger = logging.getLogger(__name__)
CASES, FIRST = int(os.environ.get("DSI_CASES", "10000")), int(os.environ.get("DSI_SEED", "1000"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, sentence_t5_folder):
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    return TinyIndex(encoder, tmp_path_factory.mktemp("fuzz"))


def load(folder: Path) -> Retriever:
    return dsi.load(folder, device="cpu")


def collections(index: TinyIndex, chance: Random, folder: Path) -> Case:
    """A collection that is right, has one flaw, or has other bytes somewhere."""
    own, how = grammars.draft(chance), chance.choice(["right", "flaw", "bytes"])
    what = chance.choice(sorted(grammars.FLAWS)) if how == "flaw" else how
    if how == "flaw":
        grammars.FLAWS[what](own, chance)
    files = grammars.files_of(own, chance)
    if how == "bytes":
        name = chance.choice(sorted(files))
        files[name] = grammars.change_bytes(files[name], chance)
    grammars.write_files(files, folder, chance)

    def check(found: Collection) -> None:
        documents, queries, qrels = grammars.literal_collection(files)
        read = [{key: value for key, value in row.items() if value is not None} for row in found.documents]
        assert read == documents, f"{read} for {documents}"
        assert list(found.documents["doc_id"]) == list(found.rows) == [document["doc_id"] for document in documents]
        assert found.queries == queries, f"{found.queries} for {queries}"
        assert found.qrels == qrels, f"{found.qrels} for {qrels}"

    good = {"right": True, "flaw": False, "bytes": None}[how]
    return Case(f"{what}: {files}", lambda: read_collection(folder), [str(folder)], good, check)


def configurations(index: TinyIndex, chance: Random, folder: Path) -> Case:
    """A TOML file that is right, has a setting that cannot be, or has other bytes somewhere."""
    how = chance.choice(["right", "random", "type", "bytes"])
    settings = grammars.right_settings(chance) if how in ("right", "bytes") else grammars.random_settings(chance)
    content = grammars.toml(grammars.wrong_type(settings, chance) if how == "type" else settings)
    content = grammars.change_bytes(content, chance) if how == "bytes" else content
    (folder / "config.toml").write_bytes(content)

    def check(found: object) -> None:
        expected = grammars.literal_settings(content.decode())
        write_config(found, folder / "again.toml")
        assert dataclasses.asdict(found) == expected, f"{found} for {expected}"
        assert read_config(folder / "again.toml") == found

    good = {"right": True, "type": False}.get(how)
    return Case(
        f"{how}: {content!r}",
        lambda: read_config(folder / "config.toml"),
        ["config.toml", "The configuration"],
        good,
        check,
    )


def arguments(index: TinyIndex, chance: Random, folder: Path) -> Case:
    """A call from Python with one argument that is wrong, or another way to write the right one."""
    return option_calls(index, chance) if chance.random() < 0.5 else plain_calls(index, chance, folder)


KINDS = {
    "collections": (collections, 0.25), "configurations": (configurations, 0.2), "option_lines": (option_lines, 0.15),
    "whole_lines": (whole_lines, 0.03), "searches": (TinyIndex.searches, 0.1), "filters": (TinyIndex.filters, 0.1),
    "updates": (TinyIndex.updates, 0.03), "arguments": (arguments, 0.14),
}  # fmt: skip
"""{kind: (makes a case, its share)}."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cases", [200, pytest.param(CASES, marks=pytest.mark.fuzz)])
def test_input_is_taken_right_or_refused_in_a_line(tiny, kind, cases):
    make, share = KINDS[kind]
    counts, bad = count_outcomes(kind, partial(make, tiny), FIRST, max(1, round(share * cases)))
    logger.info("%s: %s", kind, dict(counts))
    assert not bad, f"{dict(counts)}\n" + "\n\n".join(bad)


def test_an_update_without_room_leaves_the_index_as_it_was(tiny, tmp_path):
    """A file may have only so many bytes: at the limit a write fails as it does on a full disk."""
    run, new = tmp_path / "run", tmp_path / "new.jsonl"
    shutil.copytree(tiny.index, run)
    new.write_text('{"_id": "new", "title": "a new one", "text": "a river"}')

    def add() -> None:
        command("update", [str(run), "--device", "cpu", "--add", str(new)])

    def update(most: int) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        with pytest.raises(OSError, match=r"large|written|room"):  # after one line and status 2
            add()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    sizes = [path.stat().st_size for part in ("docids", "lexical") for path in (run / part).iterdir()]
    for most in (0, 1000, max(sizes) // 2):
        assert status_of(fork(lambda most=most: update(most))) == 0, most
        assert set(load(run).snapshot.documents.rows) == set(tiny.ids)
    assert status_of(fork(add)) == 0
    assert len(load(run).snapshot.documents) == len(tiny.ids) + 1


ENDS = {
    "hang": Case("sleeps", lambda: time.sleep(60)),
    "crash": Case("dies", lambda: os.kill(os.getpid(), signal.SIGSEGV)),
    "memory": Case("allocates", lambda: bytearray(3 << 30)),
    "trace": Case("an error of Python's", lambda: int("x")),
    "taken": Case("wrong", lambda: read_config("digits"), good=False),
    "refused": Case("right", lambda: read_config("digtis"), good=True),
    "wrong": Case("another answer", lambda: 1, check=lambda answer: 1 / (answer - 1)),
    "right": Case("right", lambda: 2, good=True, check=lambda answer: 1 / (answer - 1)),
    "clear error": Case("wrong", lambda: read_config("digtis"), ["digtis"], good=False),
}
"""{outcome: a case that ends so}."""


def test_the_judge_tells_apart_how_a_case_ends(monkeypatch):
    monkeypatch.setattr("tests.support.trials.SECONDS", 1)
    counts, bad = count_outcomes("faults", lambda _, folder: list(ENDS.values())[int(folder.name)], 0, len(ENDS))
    assert counts == dict.fromkeys(ENDS, 1)
    assert len(bad) == 7
    assert "DSI_SEED=3 DSI_CASES=1 python -m pytest -m fuzz tests/trials/test_fuzz.py -k faults" in bad[3]
