"""The page "For researchers": its programs are short, and run as they are printed, on a small collection."""

import re
import runpy
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

import dsi
from dsi.config import read_config
from tests.support.small import thin_out

PAGE = Path(__file__).parents[2] / "docs" / "develop" / "researchers.md"
PROGRAMS = dict(
    re.findall(r'^```python title="(\w+)\.py"\n(.*?)^```', PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
)
"""{module: its program}."""
KEPT = {
    "own_docids": ("signs", lambda config: config.docids.method, "own_docids:signs"),
    "own_loss": ("smooth", lambda config: config.training.objective, "own_loss:Smooth"),
    "own_generator": ("by-node", lambda config: config.generator.docid_tokens, "own_generator:ByNode"),
    "own_fusion": ("largest", lambda config: config.search.fusion, "own_fusion:largest"),
}
"""{module: name of its run, what it replaces, import path of its part}."""


def test_there_are_four_programs_of_twenty_lines_at_most():
    assert PROGRAMS.keys() == KEPT.keys()
    for name, program in PROGRAMS.items():
        assert sum(bool(line.strip()) for line in program.splitlines()) <= 20, name


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Where the first program leaves its stage `encoder`, which is the same in all of them: the others begin with it."""
    return tmp_path_factory.mktemp("made") / "encoder"


@pytest.mark.programs
@pytest.mark.usefixtures("tiny_default")
@pytest.mark.parametrize("name", KEPT)
def test_a_program_trains_and_measures_and_the_index_names_its_part(name, made, beir, tmp_path, monkeypatch, capsys):
    thin_out(beir(), train=3, dev=6, test=6).rename(tmp_path / "COLLECTION")
    encoder = tmp_path / "runs" / KEPT[name][0] / "encoder"
    if made.exists():
        shutil.copytree(made, encoder)
    (tmp_path / f"{name}.py").write_text(PROGRAMS[name], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path(f"{name}.py", run_name="__main__")
    printed = capsys.readouterr()
    assert "decoder only" in printed.out
    stages = re.search(r"train queries.*: (.*)", printed.err)[1].split(", ")
    assert ("encoder" in stages) != made.exists()
    if not made.exists():
        shutil.copytree(encoder, made)
    run, replaced, place = KEPT[name]
    import_module(name)
    assert replaced(read_config(tmp_path / "runs" / run / "config.toml")) == place
    assert len(dsi.load(tmp_path / "runs" / run, device="cpu").search("river", k=3)) == 3
    sys.modules.pop(name, None)


@pytest.mark.slow
def test_the_generator_of_the_page_learns(beir, tmp_path, monkeypatch):
    thin_out(beir(), train=3, dev=6, test=6).rename(tmp_path / "COLLECTION")
    (tmp_path / "own_generator.py").write_text(PROGRAMS["own_generator"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path("own_generator.py", run_name="__main__")
    import_module("own_generator")
    retriever, collection = dsi.load("runs/by-node", device="cpu"), dsi.read_collection("COLLECTION")
    found = dsi.evaluate(retriever, collection, "train").row("decoder only").values["Hit@10"]
    assert len(collection.documents) == 40
    assert sum(found.values()) / len(found) > 0.5  # of its train queries; by chance a quarter
    sys.modules.pop("own_generator", None)
