"""Licences: dependencies have allowed ones; LICENSE, NOTICE, metadata, citation, README, data and model cards agree."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.licences import dependencies, is_allowed, licence

ROOT = Path(__file__).parents[2]
OURS = "Apache-2.0"


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_dependency_has_an_allowed_licence():
    packages = {package.name: licence(package) for package in dependencies()}
    assert {"torch", "numpy", "pydantic", "ruff"} <= set(packages)
    assert not {name: stated for name, stated in packages.items() if not is_allowed(stated)}


@pytest.mark.parametrize(
    ("stated", "allowed"),
    [
        ("MIT OR GPL-3.0-only", True),
        ("MPL-2.0 AND MIT", True),
        ("BSD-3-Clause AND GPL-2.0-or-later", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("CC-BY-NC-4.0", False),
        ("none stated", False),
    ],
)
def test_the_list_takes_permissive_licences_only(stated, allowed):
    assert is_allowed(stated) is allowed


def test_all_files_state_one_licence():
    assert "Apache License" in read("LICENSE")[:200]
    assert read("scripts/LICENSE") == read("LICENSE")
    for name in ("pyproject.toml", "scripts/pyproject.toml"):
        assert tomllib.loads(read(name))["project"]["license"] == OURS
    assert yaml.safe_load(read("CITATION.cff"))["license"] == OURS
    assert f"{OURS}, Minipedia included." in read("README.md")
    assert "The project's licence applies." in read("docids/data/minipedia/README.md")
    assert re.search(rf"Minipedia \(docids/data/minipedia\): [^;]*; {OURS}\.", read("NOTICE"))
    extra = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]["example"][0].split("==")[0]
    assert extra in read("NOTICE")


def test_the_citation_names_the_authors_of_the_package():
    names = [author["name"] for author in yaml.safe_load(read("CITATION.cff"))["authors"]]
    assert names == [author["name"] for author in tomllib.loads(read("pyproject.toml"))["project"]["authors"]]
    assert f"Copyright {names[0]}." in read("NOTICE")
