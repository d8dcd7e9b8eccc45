"""The growth benchmark at small sizes: it measures in a fresh process, and the ways to constrain decoding agree."""

import json

import numpy as np
import pytest
from dsi_experiments.benchmarks.scale_costs import _dictionaries, _following, _sorted_keys
from dsi_experiments.commands import benchmark_scale as scale

from dsi.commands.main import main
from dsi.docids.tree import DocidTree
from tests.conftest import random_tree
from tests.test_tree_models import table_rows


@pytest.mark.slow
def test_it_measures_a_size_in_a_fresh_process_and_shows_how_all_grow(tmp_path, capsys, monkeypatch):
    output = tmp_path / "scale"
    options = ["--dim", "8", "--rounds", "1", "--output", str(output)]
    assert main(["benchmark-scale", "--sizes", "200", *options]) == 0
    assert "grows with" not in capsys.readouterr().out
    (row,) = json.loads((output / "scale.json").read_text())["rows"]
    assert row["documents"] == 200
    assert 0 < row["trie bytes a document"] <= 20
    assert row["resident MiB searched"] >= row["resident MiB loaded"] > 0
    digits = {"digits: decoder alone", "digits: paper", "digits: bound"}
    assert set(row["ms a query"]) == {"generate", "exact", *digits, "flat (faiss)"}
    assert row["vectors read"]["exact"] == 200
    assert 0 < row["vectors read"]["generate"] <= 200 + row["inner nodes"]
    assert set(row["constraints"]) == {"ours", "sorted array", "nested dictionaries"}

    asked = []
    monkeypatch.setattr(scale, "measure", lambda *given: asked.append(given) or {**row, "documents": given[0]})
    assert main(["benchmark-scale", "--sizes", "400", "200", *options]) == 0
    assert [(size, given.dim, given.rounds) for size, given in asked] == [(200, 8, 1), (400, 8, 1)]
    printed = capsys.readouterr().out
    assert ["documents", "200", "400"] in table_rows(printed)
    assert "ms a query, generate (grows with documents^" in printed
    assert ["vectors read a query, exact", "200", "200"] in table_rows(printed)
    assert [row["documents"] for row in json.loads((output / "scale.json").read_text())["rows"]] == [200, 400]
    assert (output / "scale.png").stat().st_size > 5_000


@pytest.mark.slow
def test_what_is_built_is_kept_for_the_next_time_in_fewer_bytes_too(tmp_path, monkeypatch):
    work, output = tmp_path / "work", tmp_path / "scale"
    command = ["benchmark-scale", "--sizes", "200", "--dim", "8", "--rounds", "1", "--output", str(output)]
    assert main([*command, "--vectors", "int8", "--work", str(work)]) == 0
    (first,) = json.loads((output / "scale.json").read_text())["rows"]
    assert (DocidTree.load(work / "200x8-int8" / "docids.safetensors").embeddings.dtype) == np.int8
    monkeypatch.setattr(scale, "build", None)
    assert main([*command, "--vectors", "int8", "--work", str(work)]) == 0
    (again,) = json.loads((output / "scale.json").read_text())["rows"]
    assert first["build seconds"] == again["build seconds"]


@pytest.mark.parametrize(("documents", "branching"), [(60, 3), (200, 10), (37, 2)])
def test_sorted_keys_and_dictionaries_know_what_may_follow_every_prefix(documents, branching):
    tree = random_tree(documents, branching=branching, leaf=2)
    keys = _sorted_keys(tree)
    trie = _dictionaries(tree)
    for node in range(tree.num_inner):
        prefix = tree.node_digits(node)
        below = trie
        for digit in prefix:
            below = below[digit]
        assert _following(keys, prefix) == sorted(below) == list(range(tree.num_children[node]))


def test_the_exponent_of_a_power_is_found():
    rows = [{"documents": n, "ms a query": {"x": 3 * n**0.5}} for n in (10, 1000, 5000)]
    assert scale.growth(rows, "x") == pytest.approx(0.5)
    assert np.isfinite(scale.growth(rows, "x"))
