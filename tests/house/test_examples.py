"""The programs of examples/ run from any folder, print what they promise, and open no connection."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small import MINIPEDIA, thin_out
from tests.support.tiny_settings import TINY

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "index_and_search": ["which capitals are on the danube", "  1. ", "docid ("],
    "evaluate": [
        "| generate ",
        "| RRF of BM25 and dense ",
        "exact: the first document is right for ",
        " of 128 queries",
    ],
    "explain": ['"which capitals are on the danube"  (generate, ', "├─ + ", "3 of ", "venice, BM25: "],
    "update": ["found: [", "filtered: ['N", "denied: [", "removed: [", "600 documents"],
    "rerank": ["before: ['", "after: ['Danube', "],
    "permissions": ["anna: ", "bert: ", "clara: ", "The filter excludes it."],
    "learn": ["before: ", "Sunday: "],
    "own_docids": ["600 documents, ", " levels", " (0, ", ", 1, "],
}
"""{program: what its output contains}."""


NO_NETWORK = """
import sys
def refuse(event, arguments):
    if event == "socket.bind" and arguments[1] == ("::1", 0):
        return  # how urllib3 finds out, when it is imported, whether this machine has IPv6
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        raise SystemExit(f"{event} {arguments[1:]}: nobody asked for the network")
sys.addaudithook(refuse)
"""
"""A sitecustomize.py: whatever the program or a dependency does, it opens no connection."""


RUN_ALL = """
import contextlib, runpy, sys
for program in sys.argv[1:]:
    sys.argv = [program, "index"]
    with open(program.rsplit("/", 1)[-1] + ".txt", "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        runpy.run_path(program, run_name="__main__")
"""
"""Runs programs one after the other: importing the libraries takes longer than most of them."""


def outputs_of(names, folder):
    """{program: what it prints}, as a user runs it: the Hub is not forbidden, but nothing asks for it."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    path = os.pathsep.join(map(str, (folder / "site", ROOT, ROOT / "scripts")))
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"} | {"PYTHONPATH": path}
    command = [sys.executable, "-c", RUN_ALL, *((ROOT / "examples" / f"{name}.py").as_posix() for name in names)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: (folder / f"{name}.py.txt").read_text(encoding="utf-8") for name in names}


@pytest.mark.programs
def test_the_examples_print_what_they_promise(tmp_path, sentence_bert_folder):
    """The first one trains a tiny index, by the settings that lie in its folder; the others use it.

    They read the documents of Minipedia and a few of its judgements, from a folder that goes before what ships.
    """
    thin_out(shutil.copytree(MINIPEDIA, tmp_path / "minipedia"), train=15, dev=15, test=15)
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "config.toml").write_text(TINY.format(encoder=sentence_bert_folder.as_posix()))
    outputs = outputs_of(EXAMPLES, tmp_path)
    for name, texts in EXAMPLES.items():
        for text in texts:
            assert text in outputs[name], outputs[name]
    may_read = dict(line.split(": ") for line in outputs["permissions"].splitlines()[:3])
    assert {name: set(found.split(", ")) & {"salaries", "merger"} for name, found in may_read.items()} == {
        "anna": set(), "bert": {"merger"}, "clara": {"salaries", "merger"}
    }  # fmt: skip
    found, *others, _ = outputs["update"].splitlines()
    assert "Neretva" in found
    assert all("Neretva" not in line for line in others)  # filtered out, denied, removed


def test_a_program_that_opens_a_socket_is_seen(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    code = "from huggingface_hub import HfApi; HfApi(endpoint='http://127.0.0.1:9').whoami(token='hf_x')"
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment["PYTHONPATH"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nobody asked for the network" in done.stderr


def test_all_examples_are_run_and_short():
    programs = sorted((ROOT / "examples").glob("*.py"))
    assert {path.stem for path in programs} == set(EXAMPLES)
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 30 for path in programs)
