"""Runs that share finished stages: each is made once, judged by its files, and made again where they are damaged."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from dsi_experiments.shared_runs import SharedRun

import dsi
from dsi.config import read_config
from dsi.training.pipeline import TrainingRun
from dsi.training.stages import stage_record
from tests.support.tiny_settings import VECTORS, write_settings


@pytest.fixture
def run(beir, tmp_path, sentence_t5_folder, t5_folder):
    """Make a run by the name of its folder."""
    settings = write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, dev_queries=0, **VECTORS)
    collection, config = dsi.read_collection(beir()), read_config(settings)
    return lambda name: SharedRun(tmp_path / name, collection, config, "cpu", store=tmp_path / "store")


def files(run):
    return {name: stage_record(run.folder / name).get("files") for name in run.keys}


@pytest.mark.programs
def test_stages_are_made_once_and_damaged_ones_again(run):
    first, second, third = map(run, "abc")
    first.run_stages()
    second.run_stages()
    assert (first.seconds.keys(), second.seconds.keys()) == (first.keys.keys(), set())
    for path in (first.folder / "encoder" / "model.safetensors", first.folder / "docids" / "docids.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])  # the store and the second run have the same file
    third.run_stages()
    assert third.seconds.keys() == {"encoder", "docids"}
    second.run_stages()
    assert second.seconds.keys() == {"encoder", "docids"}
    whole = run("d")
    whole.run_stages()
    assert not whole.seconds
    assert files(second) == files(third) == files(whole)
    assert len({(own.folder / "states").resolve() for own in (first, second, third, whole)}) == 1


def test_no_docids_in_the_format_of_another_version_are_taken(run, monkeypatch):
    for name, made in (("a", {"encoder", "docids"}), ("b", set()), ("c", {"docids"})):
        if name == "c":
            monkeypatch.setattr("dsi.training.pipeline.FORMAT_VERSION", 99)
        own = run(name)
        own.run_stages("docids")
        assert own.seconds.keys() == made


def test_two_runs_may_end_a_stage_at_once(run, monkeypatch):
    runs = [run(name) for name in "ab"]
    for own in runs:
        own.keys |= {"encoder": "key", "lexical": "key"}
        (own.folder / "lexical").mkdir(parents=True)
        (own.folder / "lexical" / "words").write_text("words")
        own.seconds["lexical"] = 1.0
    monkeypatch.setattr(TrainingRun, "run_stage", lambda *_: None)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(8):
            for ended in [pool.submit(own.run_stage, "lexical") for own in runs]:
                ended.result(30)
    assert [path.read_text() for path in (runs[0].store / "lexical").glob("[!.]*/words")] == ["words"]
