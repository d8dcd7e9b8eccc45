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


@pytest.fixture(scope="module")
def trained(tmp_path_factory, sentence_t5_folder, t5_folder):
    """A folder with a collection and what train.py made of it."""
    folder = tmp_path_factory.mktemp("scripts")
    config = write_settings(
        folder / "config.toml", sentence_t5_folder, t5_folder, dev_queries=0,
        contrastive={"loss": "none"},
        **VECTORS,
    )  # fmt: skip
    thin_out(write_collection(folder / "collection"), dev=6, test=6)
    printed = run("train", folder, "collection", "run", "--config", config, "--device", "cpu")
    assert printed.startswith("train: ")
    return folder


def run(script, folder, *arguments):
    """What a script prints; it runs in `folder`."""
    command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_script_is_tested_here():
    assert {path.stem for path in (ROOT / "scripts").glob("*.py")} == {"train", "evaluate", "search", "prepare_nq"}


@pytest.mark.programs
def test_an_index_is_measured(trained):
    printed = run("evaluate", trained, "run", "collection", "--device", "cpu")
    assert "| BM25 " in printed
    assert "| generate " in printed


@pytest.mark.programs
def test_an_index_is_searched(trained):
    printed = run("search", trained, "run", "noble gas", "--json", "-k", "3", "--device", "cpu")
    assert [hit["rank"] for hit in json.loads(printed)["hits"]] == [1, 2, 3]


def test_natural_questions_are_prepared(tmp_path):
    raw = raw_file(tmp_path, "train.jsonl", "simplified", QUESTIONS)
    assert "3 documents" in run("prepare_nq", tmp_path, raw.name, "--counts", "3", "3", "1", "--output", "nq")
    assert len(read_collection(tmp_path / "nq").documents) == 3
