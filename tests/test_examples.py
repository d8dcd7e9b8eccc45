"""The programs of examples/ run from any folder, in the order of a first visit, and print what they promise."""

import os
import subprocess
import sys
from pathlib import Path

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
    "update": ["found: [", "filtered: ['N", "denied: [", "removed: [", "600 documents"],
    "rerank": ["before: ['", "after: ['Danube', "],
    "own_docids": ["600 documents, ", " levels", " (0, ", ", 1, "],
}
"""{program: what its output contains}."""


def output(name, folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "scripts")))}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "index"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_examples_print_what_they_promise(tmp_path, sentence_bert_folder):
    """The first one trains a tiny index, which the others use."""
    tiny = TINY.format(encoder=sentence_bert_folder.as_posix()).replace("epochs = 1.0", "epochs = 0.1")
    (tmp_path / "example").write_text(tiny)  # a file of that name goes before the configuration of the package
    outputs = {name: output(name, tmp_path) for name in EXAMPLES}
    for name, texts in EXAMPLES.items():
        for text in texts:
            assert text in outputs[name], outputs[name]
    found, *others, _ = outputs["update"].splitlines()
    assert "Neretva" in found
    assert all("Neretva" not in line for line in others)  # filtered out, denied, removed
    assert others[1].partition(": ")[2] == others[2].partition(": ")[2]


def test_all_examples_are_run_and_short():
    programs = sorted((ROOT / "examples").glob("*.py"))
    assert {path.stem for path in programs} == set(EXAMPLES)
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 30 for path in programs)
