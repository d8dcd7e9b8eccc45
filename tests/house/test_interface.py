"""The public interface changes only together with the file that records it."""

import re
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path

import dsi
from dsi.docids import extensions
from tests.support.interface import FILE, PAGE, interface, with_public_table

ROOT = Path(__file__).parents[2]


def changed() -> list[str]:
    """Lines of the file that are gone, and new ones."""
    recorded = FILE.read_text(encoding="utf-8").splitlines()
    lines = list(unified_diff(recorded, interface().splitlines(), n=0, lineterm=""))[2:]
    return [line for line in lines if not line.startswith("@@")]


def test_the_public_interface_is_the_recorded_one():
    found = changed()
    assert not found, (
        f"{len(found)} lines of the public interface changed, the first: {found[0]}; if that is meant, "
        "run python -m tests.support.interface, and follow the rule for changes in CONTRIBUTING.md"
    )


def test_another_default_is_a_change(monkeypatch):
    from dsi import config

    settings = [replace(each, default=11) if each.name == "beam_width" else each for each in config.all_settings()]
    monkeypatch.setattr("tests.support.interface.all_settings", lambda: settings)
    gone, new = changed()
    assert gone.startswith("-")
    assert "beam_width" in gone
    assert new.startswith("+")
    assert "11" in new


def test_the_page_of_names_has_the_signatures_of_the_code_and_the_words_of_the_glossary():
    text = PAGE.read_text(encoding="utf-8")
    assert with_public_table(text) == text, "run python -m tests.support.interface"
    names = set(re.findall(r"^\| `(?:class )?dsi\.(\w+)", text, re.MULTILINE))
    points = [
        extensions.SCHEMES,
        extensions.GENERATORS,
        extensions.OBJECTIVES,
        extensions.FUSIONS,
        extensions.RERANKERS,
        extensions.COMMANDS,
        extensions.CLUSTERS,
    ]
    assert names == {*dsi.__all__, *(point.removeprefix("dsi.") for point in points)}
    words = re.findall(r"^\| (.+?) \| .+ \|$", text.partition("## Glossary")[2], re.MULTILINE)[2:]
    single = [word for row in words for word in row.split(", ")]
    assert len(set(single)) == len(single)
    assert 12 <= len(words) <= 20
