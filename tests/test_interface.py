"""The public interface changes only together with the file that records it."""

from difflib import unified_diff

from tests.interface import FILE, interface


def changed() -> list[str]:
    """Lines of the file that are gone, and new ones."""
    recorded = FILE.read_text(encoding="utf-8").splitlines()
    lines = list(unified_diff(recorded, interface().splitlines(), n=0, lineterm=""))[2:]
    return [line for line in lines if not line.startswith("@@")]


def test_the_public_interface_is_the_recorded_one():
    found = changed()
    assert not found, (
        f"{len(found)} lines of the public interface changed, the first: {found[0]}; if that is meant, "
        + ("run python -m tests.interface, and follow the rule for changes in CONTRIBUTING.md")
    )


def test_another_default_is_a_change(monkeypatch):
    monkeypatch.setattr("dsi.measuring.evaluation.ANSWERS", 11)
    gone, new = changed()
    assert gone.startswith("-dsi.evaluate(")
    assert new == f"+{gone[1:]}".replace("depth: int=10", "depth: int=11")


def test_a_setting_that_is_gone_is_a_change(monkeypatch):
    from dsi import config

    settings = [setting for setting in config.all_settings() if setting.name != "bits"]
    monkeypatch.setattr("tests.interface.all_settings", lambda: settings)
    assert changed() == ["-tokens.bits = 2"]


def test_an_option_that_is_gone_is_a_change(monkeypatch):
    monkeypatch.setattr("dsi.commands.tune.add_device", lambda parser: None)
    assert changed() == ["-dsi tune --device"]
