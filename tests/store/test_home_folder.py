"""The home folder in the place of ~, in every path that a user names; and paths as texts."""

import json
from pathlib import Path

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.config import Config, write_config
from dsi.docids.data.collection import Collection, read_collection
from dsi.docids.files.checks import user_path
from dsi.eval.trec import read_run, write_qrels, write_run
from dsi.store.folder.info import index_info, learned_lines
from tests.support.files import needs_readers
from tests.support.small import write_collection

TEXTS = ["Neon glows in advertising signs.", "The Danube flows through Vienna.", "Argon is a noble gas."]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder, in which nothing may be called ~, nor in the current folder."""
    home, current = tmp_path / "home", tmp_path / "current"
    home.mkdir()
    current.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.chdir(current)
    yield home
    assert not [path for place in (home, current) for path in place.rglob("~*")]


def test_an_index_in_the_home_folder(home, sentence_t5_folder):
    (home / "model").symlink_to(sentence_t5_folder)
    np.save(home / "points.npy", np.eye(3, 32, dtype=np.float32))
    write_config(Config().with_changes({"tokens": {"bits": 0}}), home / "own.toml")
    named = {"config": "~/own.toml", "encoder": "~/model", "embeddings": "~/points.npy", "device": "cpu"}
    assert len(dsi.index(TEXTS, "~/run", **named).snapshot.documents) == 3
    assert (home / "run" / "manifest.json").is_file()
    retriever = dsi.load("~/run", device="cpu")
    retriever.save("~/copy")
    retriever.save(Path("~/second"))
    retriever.add([{"doc_id": "new", "text": "Krypton is a noble gas."}])
    assert retriever.save("~/second") == 2
    assert index_info("~/second")["documents"] == 4
    assert list(learned_lines("~/copy")) == []


def test_a_reranker_in_the_home_folder(home):
    rerankers = pytest.importorskip("dsi.rerankers")  # a room that may be torn off
    assert rerankers.reranker_folder("~/copy", "own") == home / "copy" / "rerank" / "own"


def test_a_server_of_an_index_in_the_home_folder(home):
    settings = pytest.importorskip("dsi.server.settings")  # a room that may be torn off
    assert settings.ServerSettings("~/copy").run == str(home / "copy")


@needs_readers
def test_collections_and_pairs_in_the_home_folder(home):
    write_collection(home / "data")
    collection = read_collection("~/data")
    assert collection.name == str(home / "data")
    collection.save("~/saved")
    assert len(read_collection(Path("~/saved")).documents) == len(collection.documents)
    (home / "note.txt").write_text(TEXTS[0])
    assert len(Collection.from_files("~/note.txt").documents) == len(read_collection("~/note.txt").documents) == 1
    pair = {"query": "gas", "positive": next(iter(collection.rows))}
    (home / "pairs.jsonl").write_text(json.dumps(pair))
    assert collection.with_pairs("~/pairs.jsonl").qrels["train"]
    with pytest.raises(ValueError, match="is the folder of the collection"):
        dsi.train(collection, "~/data")


def test_runs_and_judgements_by_paths_as_texts(home):
    run = {"q": {"a": 2.0, "b": 1.0}}
    write_run(run, "own.run", "tag")
    write_run(run, "~/own.run", "tag")
    write_qrels({"q": {"a": 1}}, "~/own.qrels")
    assert read_run("own.run") == read_run("~/own.run") == read_run(home / "own.run") == run
    assert (home / "own.qrels").read_text() == "q 0 a 1\n"


def test_commands_take_the_home_folder_also_after_an_equals_sign(home, sentence_t5_folder, capsys):
    write_collection(home / "data")
    arguments = ["index", "~/data", "~/run", "--encoder", str(sentence_t5_folder), "--set", "tokens.bits=0"]
    assert main([*arguments, "--device=cpu"]) == 0, capsys.readouterr().err
    assert main(["search", "~/run", "noble gas", "--device", "cpu", "-k", "2"]) == 0
    assert main(["info", "~/run"]) == 0
    queries = home / "queries.tsv"
    queries.write_text("1\tnoble gas\n")
    searched = ["search", "~/run", "--queries=~/queries.tsv", "--run=~/found.run", "--device=cpu"]
    assert main(searched) == 0, capsys.readouterr().err
    assert read_run("~/found.run").keys() == {"1"}


@pytest.mark.parametrize(
    ("section", "setting"),
    [
        ("encoder", "name"),
        ("generator", "decoder"),
        ("docids", "method"),
        ("pseudo_queries", "method"),
    ],
)
def test_settings_that_name_a_model_or_a_file(home, section, setting):
    base = Config.named("digits") if section == "generator" else Config()
    config = base.with_changes({section: {setting: "~/own.tsv"}})
    assert getattr(getattr(config, section), setting) == str(home / "own.tsv")
    write_config(config, home / "own.toml")
    assert Config.named("~/own.toml") == config


def test_a_name_with_a_tilde_that_is_no_home_folder_stays():
    for name in ("a/~", "model~2", "~no_such_user_here/x", "./~"):
        assert user_path(name) == Path(name)
