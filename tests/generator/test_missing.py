"""An installation without `dsi.generator`: an index with a generator says in one line what is missing, and is described."""

import pytest

import dsi
from dsi.commands.main import main
from tests.support.imports import lose_room
from tests.support.small_index import small_index
from tests.support.tiny_settings import write_settings

LACKING = "needs dsi.generator"


def test_an_index_with_a_generator_is_described_and_not_searched(encoder, monkeypatch, tmp_path, capsys):
    small_index(encoder).save(tmp_path / "digits")
    small_index(encoder, vectors=True).save(tmp_path / "vectors")
    lose_room(monkeypatch, "generator")
    with pytest.raises(ModuleNotFoundError, match=LACKING):
        dsi.load(tmp_path / "digits", device="cpu")
    assert main(["search", str(tmp_path / "digits"), "neon", "--device", "cpu"]) == 2
    assert LACKING in capsys.readouterr().err
    assert main(["info", str(tmp_path / "digits")]) == 0
    assert "objective ce" in capsys.readouterr().out
    assert dsi.load(tmp_path / "vectors", device="cpu").search("neon", k=3)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"training": {"objective": "otm"}},
    ],
)
def test_a_training_is_refused_before_its_first_write(
    settings, monkeypatch, beir, tmp_path, sentence_t5_folder, t5_folder, capsys
):
    config = write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, **settings)
    lose_room(monkeypatch, "generator")
    assert main(["train", str(beir()), str(tmp_path / "run"), "--config", str(config), "--device", "cpu"]) == 2
    assert LACKING in capsys.readouterr().err.splitlines()[-1]
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock"]
