"""The scripts of the repository, run as a reader of the paper would: `python scripts/NAME.py`, from another folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsi.docids.data.collection import read_collection
from tests.support.raw_questions import QUESTIONS, raw_file
from tests.support.small import thin_out, write_collection
from tests.support.tiny_settings import VECTORS, write_settings

ROOT = Path(__file__).parents[2]


RUN = """
import runpy, shlex, sys
for line in sys.argv[1:]:
    sys.argv = shlex.split(line)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
"""
"""Runs scripts one after the other: importing the libraries takes longer than what they do."""


def run(folder, *lines):
    """What scripts print; they run in a folder."""
    lines = [f"{(ROOT / 'scripts').as_posix()}/{line}" for line in lines]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN, *lines]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_script_is_tested_here():
    assert {path.stem for path in (ROOT / "scripts").glob("*.py")} == {"train", "evaluate", "search", "prepare_nq"}


@pytest.mark.programs
def test_an_index_is_trained_measured_and_searched(sentence_t5_folder, t5_folder, tmp_path):
    write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder, dev_queries=0,
        contrastive={"loss": "none"}, **VECTORS,
    )  # fmt: skip
    thin_out(write_collection(tmp_path / "collection"), dev=6, test=6)
    printed = run(
        tmp_path,
        "train.py collection run --config config.toml --device cpu",
        "evaluate.py run collection --device cpu",
        "search.py run 'noble gas' --json -k 3 --device cpu",
    )
    assert printed.startswith("train: ")
    assert "| BM25 " in printed
    assert "| generate " in printed
    assert [hit["rank"] for hit in json.loads(printed.splitlines()[-1])["hits"]] == [1, 2, 3]


def test_natural_questions_are_prepared(tmp_path):
    raw = raw_file(tmp_path, "train.jsonl", "simplified", QUESTIONS)
    assert "3 documents" in run(tmp_path, f"prepare_nq.py {raw.name} --counts 3 3 1 --output nq")
    assert len(read_collection(tmp_path / "nq").documents) == 3
