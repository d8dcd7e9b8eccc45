"""The public interface changes only together with the file that records it."""

import re
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path

import dsi
from dsi.docids import extensions
from tests.support.interface import FILE, interface

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


def test_a_setting_that_is_gone_is_a_change(monkeypatch):
    from dsi import config

    settings = [setting for setting in config.all_settings() if setting.name != "bits"]
    monkeypatch.setattr("tests.support.interface.all_settings", lambda: settings)
    assert changed() == ["-tokens.bits = 2"]


def test_an_option_that_is_gone_is_a_change(monkeypatch):
    monkeypatch.setattr("dsi.commands.tune.add_device", lambda parser: None)
    assert changed() == ["-dsi tune --device"]


def test_the_glossary_is_the_list_of_public_names():
    text = (ROOT / "docs" / "understand" / "search.md").read_text(encoding="utf-8").partition("## Glossary")[2]
    rows = re.findall(r"^\| (.+?) \| .+ \|$", text, re.MULTILINE)[2:]
    names = [name for name in rows if name.startswith("`")]
    points = [extensions.SCHEMES, extensions.OBJECTIVES, extensions.RERANKERS, extensions.COMMANDS, extensions.CLUSTERS]
    assert set(names) == {f"`dsi.{name}`" for name in dsi.__all__} | {f"`{group}`" for group in points}
    words = [word for row in rows for word in row.split(", ")]
    assert len(set(words)) == len(words)
    assert 24 <= len(rows) <= 40
