"""Indexes on the Hub: pushed, found by name, their card and every way it can go wrong, against a server on this machine."""

import json
import shutil
import time
from pathlib import Path

import datasets
import huggingface_hub
import pytest
from huggingface_hub import ModelCard, constants

from dsi import SearchConfig
from dsi.commands.main import main
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.query_memory import MemoryConfig, QueryMemory
from dsi.docids.words.bm25 import BM25
from dsi.hub import push
from dsi.store.retriever import Retriever, load
from tests.hub.hub_server import TOKEN, serve
from tests.support.parts import from_parts
from tests.support.small import MINIPEDIA, PROMPTS

QUERIES = ["noble gas", "which metal is light"]
NAME = "user/index"


@pytest.fixture(scope="module")
def index(tmp_path_factory, sentence_t5_folder):
    """A tiny index, with what training leaves beside it."""
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    records = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:40]]
    columns = {"doc_id": "_id", "title": "title"}
    documents = datasets.Dataset.from_dict({name: [record[key] for record in records] for name, key in columns.items()})
    tree = build_tree(encoder.encode(documents["title"], "document"), DocidsConfig(branching=4, max_leaf_size=4))
    bm25 = BM25(documents["doc_id"], [record["text"] for record in records])
    config = SearchConfig(alpha=0.3, beam_width=4, lexical_weight=0.05)
    folder = tmp_path_factory.mktemp("run") / "index"
    from_parts(encoder, tree, None, documents, config, bm25).save(folder)
    for name in ("config.toml", "states/0.bin", "pseudo_queries/queries.jsonl", "checkpoints/model.pt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("secret")
    (folder / "notes.txt").write_text("secret")
    return folder


@pytest.fixture
def run(index, tmp_path):
    return Path(shutil.copytree(index, tmp_path / "run"))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub on this machine that we are logged in to; its cache is empty."""
    with serve() as (own, address):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        huggingface_hub.utils.disable_progress_bars()
        yield own
        huggingface_hub.utils.enable_progress_bars()


def pushed(hub):
    repository = hub.repositories[NAME]
    return repository.commits[repository.head]


def listed(folder):
    return json.loads((folder / "manifest.json").read_text())["files"]


def test_an_index_comes_back_from_the_hub(run, hub, capsys):
    assert main(["push", str(run), NAME, "--private"]) == 0
    commit = hub.repositories[NAME].head
    assert capsys.readouterr().out == f"{run} -> {constants.ENDPOINT}/{NAME}/commit/{commit}\n"
    assert hub.repositories[NAME].private
    files = pushed(hub)
    manifest = json.loads(files["manifest.json"])
    assert set(files) == {"README.md", "manifest.json", *manifest["files"]}  # nothing else, such as the pseudo-queries
    assert manifest["files"].keys() == listed(run).keys()

    files["encoder/pytorch_model.bin"] = files["large.bin"] = b"not of the index"
    there = load(NAME, device="cpu")
    (snapshot,) = Path(constants.HF_HUB_CACHE).glob("*/snapshots/*")
    found = {path.relative_to(snapshot).as_posix(): path for path in snapshot.rglob("*") if path.is_file()}
    assert set(found) == {"manifest.json", *manifest["files"]}
    assert all(path.read_bytes() == files[name] for name, path in found.items())
    assert any(path.is_symlink() for path in found.values())  # as the Hub's cache has it
    here = load(run, device="cpu")
    assert there.run({"q": QUERIES[0]}, k=5) == here.run({"q": QUERIES[0]}, k=5)


def test_no_text_of_a_learned_query_is_pushed_and_its_words_if_wanted(run, hub, capsys):
    retriever = load(run, device="cpu")
    retriever = Retriever(retriever.snapshot.with_memory(QueryMemory(MemoryConfig(keep_queries=True))))
    retriever.learn([("secret question about helium", next(iter(retriever.snapshot.documents.rows)))])
    retriever.save(run)
    assert any(b"secret question" in path.read_bytes() for path in run.glob("memory*/*"))
    assert main(["push", str(run), NAME]) == 2
    assert "The index has learned 1 pairs of a query and a document. With query_words=True" in capsys.readouterr().err
    assert main(["push", str(run), NAME, "--query-words"]) == 0
    assert load(NAME, device="cpu").snapshot.memory.has_words
    assert main(["push", str(run), NAME, "--no-query-words"]) == 0
    assert not load(NAME, device="cpu").snapshot.memory.has_words
    assert any(name.startswith("memory") for name in pushed(hub))
    assert not any(b"secret question" in content for content in pushed(hub).values())
    assert len(load(NAME, device="cpu").snapshot.memory) == 1


def test_what_the_cache_holds_is_loaded_without_the_hub(run, hub, monkeypatch):
    main(["push", str(run), NAME])
    load(NAME, device="cpu")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = hub.requests.total()
    assert len(load(NAME, device="cpu").snapshot.documents) == 40
    assert hub.requests.total() == asked


def test_a_retriever_is_pushed_as_it_is_now_and_revisions_keep_what_was(run, hub):
    retriever = load(run, device="cpu")
    push(retriever, NAME)
    first = hub.repositories[NAME].head
    retriever.add([{"doc_id": "new", "title": "New", "text": "a new document"}])
    retriever.save(run)
    assert main(["push", str(run), NAME]) == 0
    assert set(pushed(hub)) == {"README.md", "manifest.json", *json.loads(pushed(hub)["manifest.json"])["files"]}
    assert len(load(NAME, device="cpu").snapshot.documents) == 41
    assert len(load(NAME, revision=first, device="cpu").snapshot.documents) == 40
    with pytest.raises(FileNotFoundError, match="check name and revision"):
        load(NAME, revision="v9")


def test_files_that_are_not_of_an_index_are_left_in_the_repository(run, hub):
    main(["push", str(run), NAME])
    for stale in ("LICENSE", "docids/old.json", "docids-7/old.json"):
        pushed(hub)[stale] = b"text"
    main(["push", str(run), NAME])
    assert "LICENSE" in pushed(hub)
    assert not any("old.json" in name for name in pushed(hub))


@pytest.mark.parametrize("given", ["apache-2.0", None])
def test_the_card_says_how_to_use_the_index_and_its_licence(run, hub, given):
    push(load(run, device="cpu"), NAME, license=given)
    card = ModelCard(hub.cards[-1])
    assert (card.data.license, card.data.library_name) == (given, "dr-scl")
    assert f'dsi.load("{NAME}")' in card.text
    assert "An index of 40 documents" in card.text


def test_a_manifest_that_lists_what_it_should_not_downloads_nothing(run, hub):
    main(["push", str(run), NAME])
    manifest = json.loads(pushed(hub)["manifest.json"])
    manifest["files"]["../../outside"] = "0" * 64
    pushed(hub)["manifest.json"] = json.dumps(manifest).encode()
    asked = hub.requests.total()
    with pytest.raises(ValueError, match=r"files must lie in .*, got '../../outside'"):
        load(NAME)
    assert hub.requests.total() <= asked + 3  # whether it answers, and of the manifest


def test_a_file_that_was_altered_on_the_hub_is_named(run, hub):
    main(["push", str(run), NAME])
    pushed(hub)["memory/config.json"] += b" "
    with pytest.raises(ValueError, match=r"memory/config.json was altered or truncated"):
        load(NAME)


def test_what_goes_wrong_is_said_in_one_line(run, hub, tmp_path, monkeypatch, capsys):
    def message(name, **options):
        with pytest.raises((OSError, ValueError)) as caught:
            load(name, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    main(["push", str(run), NAME, "--private"])
    nothing = "is neither a folder nor an index on the Hub that you may use"
    assert f"user/none {nothing}" in message("user/none")
    assert "has no revisions, got revision 'main'; leave it out" in message(str(run), revision="main")
    del pushed(hub)["manifest.json"]
    assert nothing in message(NAME)
    assert nothing in message(NAME, token="hf_wrong")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert nothing in message("user/other")
    capsys.readouterr()
    for arguments, expected in (
        ([str(run), "index"], "must have the form user/index, got 'index'"),
        ([str(tmp_path), NAME], "holds no finished index"),
        ([str(run), NAME], "The Hub at http"),
    ):
        assert main(["push", *arguments]) == 2
        assert expected in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert main(["push", str(run), NAME]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_goes_before_a_name(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "user/index")
    assert len(load("user/index", device="cpu").snapshot.documents) == 40


def test_a_name_in_a_folder_that_is_there_is_a_mistyped_path_unless_a_revision_is_given(
    run, hub, tmp_path, monkeypatch
):
    main(["push", str(run), NAME])
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).parent.mkdir()
    hub.requests.clear()
    with pytest.raises(FileNotFoundError, match=f"{NAME} does not exist; name a folder"):
        load(NAME, device="cpu")
    assert not hub.requests
    assert len(load(NAME, revision="main", device="cpu").snapshot.documents) == 40


def test_a_hub_that_cannot_be_reached_is_asked_once(hub, monkeypatch, caplog):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    started = time.monotonic()
    with pytest.raises(FileNotFoundError, match="other/index is neither"):
        load("other/index", device="cpu")
    assert time.monotonic() - started < 10
    assert "Retrying" not in caplog.text
