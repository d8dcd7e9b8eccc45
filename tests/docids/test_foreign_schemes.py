"""An index whose docid scheme another package brings: another version of it, and machines without it."""

import json
import os
import shutil

import pytest

import dsi
from dsi.commands.main import main
from dsi.config import read_config, read_dev_cut, write_config
from dsi.docids.schemes import scheme_names
from dsi.training.docids_stage import sources_digest
from dsi.training.pipeline import TrainingRun
from tests.support.foreign import install
from tests.support.small import thin_out
from tests.support.tiny_settings import VECTORS, write_settings


@pytest.fixture
def trained(beir, tmp_path, sentence_t5_folder, t5_folder):
    """Train an index of "letters"; returns the collection's folder and the run."""
    with pytest.MonkeyPatch.context() as patch:
        install(tmp_path / "site", patch, letters="own_letters:make")
        config = write_settings(
            tmp_path / "config.toml", sentence_t5_folder, t5_folder, dev_queries=0,
            docids={"method": "letters", "branching": 10, "max_leaf_size": 10},
            contrastive={"loss": "none"},
            **VECTORS,
        )  # fmt: skip
        data = thin_out(beir(), dev=6, test=6)
        run = TrainingRun(tmp_path / "run", dsi.read_collection(data), read_config(config), "cpu")
        run.train()
        yield data, run


def test_docids_are_made_again_for_another_version_of_the_package(trained, tmp_path):
    _, run = trained
    run.seconds.clear()
    run.run_stages("docids")
    assert not run.seconds
    with pytest.MonkeyPatch.context() as patch:
        install(tmp_path / "site", patch, "2.0", letters="own_letters:make")
        run.run_stages("docids")
        assert run.seconds.keys() == {"docids"}
        assert sources_digest(run.config.docids, run.collection) == "foreign 2.0"
        assert sources_digest(dsi.Config().docids, run.collection) == ""


def test_an_index_is_measured_tuned_and_reranked_without_the_package(trained, tmp_path, monkeypatch, capsys):
    data, run = trained
    (tmp_path / "site").rename(tmp_path / "elsewhere")
    common = [str(run.folder), str(data), "--device", "cpu"]
    assert main(["evaluate", *common, "--results", str(tmp_path / "results.json")]) == 0
    assert "letters" in json.loads((tmp_path / "results.json").read_text())["config"]
    assert main(["tune", *common]) == 0
    capsys.readouterr()
    assert main(["train", str(data), str(run.folder), "--device", "cpu"]) == 2
    assert "docids.method must be one of kmeans, " in capsys.readouterr().err
    pytest.importorskip("dsi.rerankers")
    assert main(["train-reranker", *common, "--kind", "ranknet", "--k", "40"]) == 0


def test_only_how_dev_queries_are_cut_is_read(tmp_path):
    write_config(dsi.Config(dev_queries=7), tmp_path / "config.toml")
    text = (tmp_path / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(text.replace("kmeans", "letters"))
    assert read_dev_cut(tmp_path) == {"dev_queries": 7, "dev_untaught": 0.5}
    (tmp_path / "config.toml").write_text("bf16 = false")
    assert read_dev_cut(tmp_path) == {"dev_queries": 500, "dev_untaught": 0.5}
    (tmp_path / "config.toml").write_text("dev_queries = -1")
    with pytest.raises(ValueError, match=r"config.toml: dev_queries must be at least 0, got -1"):
        read_dev_cut(tmp_path)
    assert read_dev_cut(tmp_path / "saved") == {"dev_queries": 500, "dev_untaught": 0.5}


def test_a_package_is_found_from_when_it_is_installed_until_it_is_removed(tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    os.utime(site, (0, 0))
    monkeypatch.syspath_prepend(site)
    assert "letters" not in scheme_names()
    install(site, monkeypatch, letters="own_letters:make")
    assert "letters" in scheme_names()
    shutil.rmtree(site / "foreign.dist-info")
    assert "letters" not in scheme_names()
