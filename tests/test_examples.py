"""The programs of examples/ run from any folder, in the order of a first visit, and print what they say they print."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import TINY

ROOT = Path(__file__).parent.parent
EXAMPLES = {
    "index_and_search": ["which capitals are on the danube", "  1. ", "docid ("],
    "evaluate": [
        "| generate ",
        "| RRF of BM25 and dense ",
        "exact: the first document is right for ",
        " of 1920 queries",
    ],
    "explain": ['"which capitals are on the danube"  (generate, ', "├─ + ", "3 of ", "venice, BM25: "],
    "update": ["found: ['Neretva', ", "filtered: ['N", "denied: [", "removed: [", "600 documents"],
    "rerank": ["before: ['", "after: ['Danube', "],
    "own_docids": ["600 documents, ", " levels", " (0, ", ", 1, "],
}
"""{program: what its output contains}."""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory, sentence_bert_folder):
    """{program: its output}; the first one trains a tiny index, which the others use."""
    folder = tmp_path_factory.mktemp("elsewhere")
    tiny = TINY.format(encoder=sentence_bert_folder.as_posix()).replace("epochs = 1.0", "epochs = 0.1")
    (folder / "example").write_text(tiny)  # a file of that name goes before the configuration of the package
    return {name: output(ROOT / "examples" / f"{name}.py", folder) for name in EXAMPLES}


def output(program, folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "scripts")))}
    done = subprocess.run(
        [sys.executable, str(program), "index"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_promises(name, outputs):
    for text in EXAMPLES[name]:
        assert text in outputs[name], outputs[name]


def test_what_the_update_added_and_removed_is_found_and_is_gone(outputs):
    found, filtered, denied, removed, _ = outputs["update"].splitlines()
    assert "Neretva" in found
    assert all("Neretva" not in line for line in (filtered, denied, removed))
    assert denied.partition(": ")[2] == removed.partition(": ")[2]


def test_all_examples_are_tested_and_short():
    programs = sorted((ROOT / "examples").glob("*.py"))
    assert {path.stem for path in programs} == set(EXAMPLES)
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 32 for path in programs)
