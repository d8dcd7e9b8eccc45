"""An installation without `dsi.generator`: an index with a generator says in one line what is missing, and is described."""

import sys

import pytest

import dsi
from dsi.commands.main import main
from tests.support.small_index import small_index
from tests.support.tiny_settings import write_settings

LACKING = "Generators and pseudo-queries need dsi.generator, which this installation lacks. Install dr-scl whole."


@pytest.fixture
def lacking(monkeypatch):
    """From the call on, importing a module of the room fails, as where its folder was removed."""

    def lack() -> None:
        names = [name for name in sys.modules if f"{name}.".startswith("dsi.generator.")]
        for name in (*names, "dsi.generator"):
            monkeypatch.setitem(sys.modules, name, None)

    return lack


def test_an_index_with_a_generator_is_described_and_not_searched(encoder, lacking, tmp_path, capsys):
    small_index(encoder).save(tmp_path / "digits")
    small_index(encoder, vectors=True).save(tmp_path / "vectors")
    lacking()
    with pytest.raises(ModuleNotFoundError) as error:
        dsi.load(tmp_path / "digits", device="cpu")
    assert str(error.value) == LACKING
    assert main(["search", str(tmp_path / "digits"), "neon", "--device", "cpu"]) == 2
    assert capsys.readouterr().err == f"dsi: {LACKING}\n"
    assert main(["info", str(tmp_path / "digits")]) == 0
    assert "objective ce" in capsys.readouterr().out
    assert dsi.load(tmp_path / "vectors", device="cpu").search("neon", k=3)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"generator": {"docid_tokens": "none", "decoder": ""}, "training": {"epochs": 0.0}},  # pseudo-queries alone
        {"training": {"objective": "otm"}},
    ],
)
def test_a_training_is_refused_before_its_first_write(
    settings, lacking, beir, tmp_path, sentence_t5_folder, t5_folder, capsys
):
    config = write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, **settings)
    lacking()
    assert main(["train", str(beir()), str(tmp_path / "run"), "--config", str(config), "--device", "cpu"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"dsi: {LACKING}"
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock"]
