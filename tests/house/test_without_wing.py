"""The library alone, where the papers' wing is not installed."""

import json
from pathlib import Path

import pytest
from dsi_experiments.rerankers.candidates import load_reranker
from dsi_experiments.rerankers.learned import LinearReranker

from dsi.commands.main import main
from dsi.docids import extensions
from dsi.docids.schemes import DocidsConfig, scheme_names

ROOT = Path(__file__).parents[2]


@pytest.fixture
def saved(tmp_path):
    """A reranker of the wing, saved while it was installed."""
    LinearReranker({"dense": 1.0}).save(tmp_path / "linear")
    return tmp_path / "linear"


@pytest.fixture
def alone(saved, monkeypatch):
    """No entry points."""
    monkeypatch.setattr(extensions, "entry_points", lambda group: [])
    return saved


def test_help_lists_the_commands_of_the_library_and_others_are_unknown(alone, capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "search an index" in printed
    assert "added by" not in printed
    assert main(["reproduce"]) == 2
    assert capsys.readouterr().err == "dsi: unknown command 'reproduce'; dsi --help lists the commands.\n"


def test_schemes_are_those_of_the_library(alone):
    assert scheme_names() == ["kmeans"]
    with pytest.raises(ValueError, match=r"method must be one of kmeans, .* got 'rq'"):
        DocidsConfig(method="rq")


def test_a_saved_reranker_of_the_wing_names_its_package(alone):
    assert json.loads((alone / "reranker.json").read_text())["package"].startswith("dr-scl-experiments ")
    with pytest.raises(
        ValueError, match=r"no reranker is of the kind 'linear'; install 'dr-scl-experiments .*', which adds it"
    ):
        load_reranker(alone)


def test_a_saved_reranker_is_loaded_where_its_package_is(saved):
    assert isinstance(load_reranker(saved), LinearReranker)
