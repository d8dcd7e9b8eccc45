"""The whole line as a user runs it, on 40 documents with tiny T5 models: commands, resuming after SIGKILL, two processes."""

import dataclasses
import gc
import io
import json
import math
import os
import re
import shutil
import signal
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from dsi_experiments import figure5

import dsi
from dsi.commands.main import find_command, main
from dsi.config import CONFIGS, Config, config_names, read_config, write_config
from dsi.contrastive import blocks
from dsi.contrastive.encoder import Encoder, state_fingerprint
from dsi.docids.data.collection import MadeTexts, read_collection
from dsi.docids.files.processes import ALONE
from dsi.docids.tree import DocidTree
from dsi.docids.words import bm25, languages
from dsi.measuring import runs
from dsi.store.folder.loading import load_docids
from dsi.store.retriever import load
from dsi.training import pipeline
from dsi.training.pipeline import TrainingRun
from dsi.training.stages import StageFolders
from tests.support.kills import fork, status_of
from tests.support.small import thin_out, write_collection
from tests.support.tiny_settings import VECTORS, write_settings
from tests.support.together import together

pytestmark = pytest.mark.programs
LONGER: dict[str, object] = {"epochs": 6.0}


@pytest.fixture
def config(tmp_path, sentence_t5_folder, t5_folder):
    return write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, sentence_t5_folder, t5_folder):
    """An index of `config`, trained once; not to be changed."""
    folder = tmp_path_factory.mktemp("whole")
    settings = write_settings(folder / "config.toml", sentence_t5_folder, t5_folder)
    dsi.train(
        dsi.read_collection(write_collection(folder / "collection")), folder / "run", config=settings, device="cpu"
    )
    return folder / "run"


@pytest.fixture
def trained(whole, tmp_path):
    """A copy of it."""
    return shutil.copytree(whole, tmp_path / "run")


def test_train_tune_evaluate_and_search(config, beir, tmp_path, capsys, monkeypatch):
    data, run = thin_out(beir(), dev=2, test=3), tmp_path / "run"
    common = [str(data), str(run), "--device", "cpu"]
    assert main(["train", "--config", str(config), *common]) == 0
    assert capsys.readouterr().out.startswith("train: pseudo_queries ")
    assert main(["train", *common]) == 0  # the settings come from INDEX/config.toml
    assert "up to date" in capsys.readouterr().out
    assert main(["tune", str(run), str(data), "--device", "cpu"]) == 0
    assert sorted(json.loads((run / "tuning.json").read_text())["best"]) == ["alpha", "ann_temperature"]

    assert main(["evaluate", str(run), str(data), "--device", "cpu",
                 "--results", str(run / "results.json"), "--trec-runs", str(run / "trec")]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    for row in (
        "BM25",
        "dense ",
        "RRF of BM25 and dense",
        "dense + BM25",
        "decoder only",
        "generate",
        "exact",
    ):
        assert row in printed
    assert json.loads((run / "results.json").read_text())["documents"] == 40
    assert len(list((run / "trec").glob("*.run"))) == 7

    assert main(["search", str(run), "noble gas", "--json", "-k", "3", "--device", "cpu"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [hit["rank"] for hit in answer["hits"]] == [1, 2, 3]
    best = answer["hits"][0]["doc_id"]
    assert main(["search", str(run), "noble gas", "--json", "-k", "3", "--device", "cpu",
                 "--method", "exact", "--deny", best]) == 0  # fmt: skip
    filtered = json.loads(capsys.readouterr().out)
    assert filtered["exact"]
    assert best not in {hit["doc_id"] for hit in filtered["hits"]}
    assert main(["search", str(run), "noble gas", "--device", "cpu", "--allow", "nothing"]) == 2
    assert "allow names the doc_id 'nothing', which is not in the index" in capsys.readouterr().err
    typed = io.BytesIO(b"neon\n\nx\n")
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(typed))
        assert main(["search", str(run), "--device", "cpu"]) == 0
    piped = capsys.readouterr().out
    assert piped.startswith('"neon"')
    assert '\n"x"' in piped

    timing = ["benchmark-search", str(run), str(data), "--rounds", "1", "--output", str(run / "timing")]
    assert main([*timing, "--batches", "1", "5"]) == 0
    assert "| the index, bfloat16 " in capsys.readouterr().out
    report = json.loads((run / "timing" / "search.json").read_text())
    timed = report["rows"]
    assert [row["batch"] for row in timed] == [1, 5]
    assert all(milliseconds > 0 for row in timed for milliseconds in row["ms a query"].values())
    assert main([*timing, "--batches", "500"]) == 2
    assert "--batches must be from 1 to the 44 test queries, got 500" in capsys.readouterr().err

    # A changed setting re-runs its stage and what depends on it, and nothing before.
    encoder_written = (run / "encoder" / "stage.json").stat().st_mtime_ns
    settings = config.read_text().replace("branching = 4", "branching = 5")
    config.write_text(settings)
    assert main(["train", "--config", str(config), *common]) == 0
    assert (run / "encoder" / "stage.json").stat().st_mtime_ns == encoder_written
    assert load(run, device="cpu").snapshot.tree.fan_out[0] == 5


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"objective": "otm", "epochs": 1.0}},
        pytest.param({"training": {"train_encoder": True, "epochs": 1.0}}, marks=pytest.mark.slow),
    ],
)
def test_texts_of_documents_are_never_in_memory_all(
    sections, beir, tmp_path, sentence_t5_folder, t5_folder, monkeypatch
):
    path = write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, **sections)
    settings = dataclasses.asdict(read_config(path))
    settings["contrastive"] |= {"loss": "dpr"}
    settings["lexical"] = {"model": "none"}
    read: list[int] = []
    cut, between = Encoder.cut, MadeTexts.between

    def documents(encoder, titles, texts, pieces):
        read.append(len(texts))
        return cut(encoder, titles, texts, pieces)

    def queries(texts, start, stop):
        read.append(stop - start)
        return between(texts, start, stop)

    monkeypatch.setattr(blocks, "BLOCK", 8)
    monkeypatch.setattr("dsi.generator.states._BLOCK", 8)
    monkeypatch.setattr(bm25, "_BLOCK", 8)
    monkeypatch.setattr(languages, "_TEXTS", 8)
    monkeypatch.setattr(Encoder, "cut", documents)
    monkeypatch.setattr(MadeTexts, "between", queries)
    run = TrainingRun(tmp_path / "run", read_collection(beir()), Config().with_changes(settings), device="cpu")
    run.run_stages()
    assert max(read) == 8
    assert sum(read) > 3 * 40
    assert load(tmp_path / "run", device="cpu").search("neon", k=3)


def test_a_killed_training_goes_on_to_the_same_index(beir, tmp_path, sentence_t5_folder, t5_folder):
    config = write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, training=LONGER)
    data, whole, killed = thin_out(beir(), dev=4), tmp_path / "whole", tmp_path / "killed"
    train = ["train", "--config", str(config), str(data), "--device", "cpu"]
    assert main([*train, str(whole)]) == 0
    process = fork(lambda: main([*train, str(killed)]))
    deadline = time.monotonic() + 120
    while not list(killed.glob("checkpoints/generator-*/checkpoint-*/trainer_state.json")):
        assert time.monotonic() < deadline
        assert os.waitpid(process, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    assert status_of(process) == -signal.SIGKILL
    (cut,) = killed.glob("checkpoints/generator-*")
    (cut / "checkpoint-9999").mkdir()  # as if killed while a checkpoint was written: skipped
    (cut / "checkpoint-9999" / "trainer_state.json").write_text("")
    assert not (killed / "manifest.json").exists()
    assert main([*train, str(killed)]) == 0
    a, b = (load(folder, device="cpu") for folder in (whole, killed))
    assert state_fingerprint(a.snapshot.generator) == state_fingerprint(b.snapshot.generator)
    assert a.search_config == b.search_config
    assert a.search("noble gas", k=10) == b.search("noble gas", k=10)
    assert not list(killed.glob("checkpoints/*"))


@pytest.mark.parametrize(
    ("name", "content"), [("docids/source.py", "x = 1"), ("encoder/enc.py", ""), ("config.toml", "x = 1")]
)
def test_a_folder_of_a_user_is_no_run(name, content, config, beir, tmp_path, capsys):
    path = tmp_path / "project" / name
    path.parent.mkdir(parents=True)
    path.write_text(content)
    train = ["train", "--config", str(config), str(beir()), "--device", "cpu"]
    assert main([*train, str(tmp_path / "project")]) == 2
    part = Path(name).parts[0]
    assert (
        f"project is not a run and holds {part!r}, which training would replace; name a new folder."
        in capsys.readouterr().err
    )
    assert [entry for entry in (tmp_path / "project").rglob("*") if entry.is_file()] == [path]
    assert path.read_text() == content


@pytest.mark.parametrize("place", [".", "run"])
def test_an_index_never_lies_among_the_texts_it_is_made_of(place, config, tmp_path, capsys):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("text")
    given = ["--config", str(config), str(notes), str(notes / place), "--device", "cpu"]
    assert main(["train", *given]) == 2
    assert (
        "is the folder of the collection, or lies in it; the index would be among its files" in capsys.readouterr().err
    )
    assert [path.name for path in notes.iterdir()] == ["a.txt"]


def test_training_again_never_drops_updates_silently(config, beir, trained, capsys):
    data, run = beir(), trained
    collection = dsi.read_collection(data)
    retriever = dsi.train(collection, run, config=config, device="cpu")
    retriever.add([{"doc_id": "new", "title": "A new river", "text": "It flows."}])
    assert retriever.save(run) == 2
    with pytest.raises(ValueError, match=r"was updated since it was made \(generation 2\); making it again would drop"):
        dsi.train(collection, run, config=config, device="cpu")
    arguments = ["--config", str(config), str(data), str(run), "--device", "cpu"]
    manifest = run / "manifest.json"
    for content in (manifest.read_text(), "{", None):  # whole, damaged, missing
        manifest.unlink()
        if content:
            manifest.write_text(content)
        assert main(["train", *arguments]) == 2
        assert "--discard-updates" in capsys.readouterr().err
        if content and content != "{":
            assert main(["tune", str(run), str(data), "--device", "cpu"]) == 0  # changes no documents
            assert "new" in load(run, device="cpu").snapshot.documents.rows
    (run / "docids-backup").mkdir()  # somebody's own
    assert main(["train", *arguments, "--discard-updates"]) == 0
    assert "new" not in load(run, device="cpu").snapshot.documents.rows
    assert not list(run.glob("*-2"))
    assert (run / "docids-backup").exists()


def contents(run: Path) -> dict[str, bytes]:
    """All files of a run but what a training that began can go on from."""
    files = {path.relative_to(run) for path in run.rglob("*") if path.is_file()}
    return {
        str(path): (run / path).read_bytes()
        for path in files
        if path.parts[0] not in ("checkpoints", "states", "pseudo_queries")
    }


LARGE_STEPS = {"learning_rate": 1e20}
REFUSED: dict[str, tuple[dict[str, dict[str, object]], str]] = {
    "by the collection": ({"docids": {"branching": 41}}, "fewer than docids.branching"),
    "by a file": ({"docids": {"method": "/no/file.tsv", "branching": 0, "max_leaf_size": 20}}, "/no/file"),
    "by the encoder": ({"encoder": {"document_length": 15}, "generator": {"num_layers": 3}}, "fewer num_layers"),
    "as it diverges": ({"contrastive": LARGE_STEPS}, "diverged"),
}
"""{how: changes of the configuration, message}."""


@pytest.mark.parametrize("how", REFUSED)
@pytest.mark.parametrize("updated", [False, True])
def test_a_training_that_writes_no_stage_leaves_the_index_as_it_is(updated, how, config, beir, trained):
    changes, message = REFUSED[how]
    if updated:
        retriever = load(trained, device="cpu")
        retriever.remove(["neon"])
        retriever.save(trained)
    before, refused = contents(trained), read_config(config).with_changes(changes)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        dsi.train(dsi.read_collection(beir()), trained, config=refused, device="cpu", discard_updates=True)
    assert contents(trained) == before
    assert ("neon" in load(trained, device="cpu").snapshot.documents.rows) is not updated


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generator": {"num_layers": 9}}, "fewer num_layers"),
        ({"encoder": {"name": "nowhere/encoder"}}, "nowhere/encoder"),
        ({"docids": {"branching": 1000}}, "fewer than docids.branching"),
    ],
)
def test_a_refused_training_of_changed_documents_leaves_run_and_settings(changes, message, beir, trained):
    before, data = contents(trained), beir()
    with (data / "corpus.jsonl").open("a") as corpus:  # so every stage would run again
        corpus.write('\n{"_id": "new", "title": "A new river", "text": "It flows."}')
    refused = read_config(trained / "config.toml").with_changes({**changes, "pseudo_queries": {"per_document": 3}})
    with pytest.raises((ValueError, OSError), match=message):
        dsi.train(dsi.read_collection(data), trained, config=refused, device="cpu")
    assert contents(trained) == before


def test_an_index_with_documents_that_the_collection_lacks_is_replaced_only_if_told(beir, trained, capsys):
    before, data = contents(trained), beir()
    first, *others = (data / "corpus.jsonl").read_text().splitlines()
    renamed = json.dumps({**json.loads(first), "title": "Another document of the same name"})
    (data / "corpus.jsonl").write_text("\n".join([renamed, *others]))
    with pytest.raises(ValueError, match=r"lacks 1 of the 40 documents of the index in .*, such as .*replace=True"):
        dsi.train(dsi.read_collection(data), trained, device="cpu")
    command = ["train", str(data), str(trained), "--device", "cpu"]
    assert main(command) == 2
    assert "--replace" in capsys.readouterr().err
    assert contents(trained) == before
    assert main([*command, "--replace"]) == 0
    assert "Another document of the same name" in load_docids(trained / "docids")[1]["title"].to_pylist()


def test_updates_are_discarded_when_the_first_part_is_replaced(config, beir, trained, monkeypatch):
    retriever = load(trained, device="cpu")
    retriever.remove(["neon"])
    retriever.save(trained)
    seen = []
    made = pipeline.make_docids

    def make(documents):
        seen.append((trained / "manifest.json").exists() and (trained / "docids-2").exists())
        return made(documents)

    monkeypatch.setattr(pipeline, "make_docids", make)
    settings = read_config(config).with_changes({"search": {"beam_width": 9}})
    again = dsi.train(dsi.read_collection(beir()), trained, config=settings, device="cpu", discard_updates=True)
    assert seen == [True]
    assert "neon" in again.snapshot.documents.rows
    assert not list(trained.glob("*-2"))
    assert read_config(trained / "config.toml") == settings


def test_updates_are_discarded_where_a_kill_left_the_parts_that_were_trained(config, beir, trained, tmp_path):
    parts = {name: shutil.copytree(trained / name, tmp_path / name) for name in ("docids", "lexical")}
    retriever = load(trained, device="cpu")
    retriever.remove(["neon"])
    retriever.save(trained)
    for name, folder in parts.items():
        shutil.copytree(folder, trained / name)
    again = dsi.train(dsi.read_collection(beir()), trained, config=config, device="cpu", discard_updates=True)
    assert "neon" in again.snapshot.documents.rows
    assert not list(trained.glob("*-2"))


def test_an_update_between_the_stages_of_a_training_is_not_dropped(config, beir, trained):
    collection = dsi.read_collection(beir())
    retriever = dsi.train(collection, trained, config=config, device="cpu")
    training = TrainingRun(trained, collection, read_config(config), device="cpu")
    retriever.remove(["neon"])
    retriever.save(trained)
    for _ in range(2):
        for stage in (training.run_stages, training.train):
            with pytest.raises(ValueError, match="was updated since it was made"):
                stage()
        retriever.save(trained)  # without the generations on disk


def test_an_update_that_a_kill_left_unfinished_is_not_taken_for_one(config, beir, trained):
    collection, run = dsi.read_collection(beir()), trained
    shutil.copytree(run / "docids", run / "docids-2")
    dsi.train(collection, run, config=config, device="cpu")
    assert not (run / "docids-2").exists()


def test_calls_with_something_else_than_a_collection_or_a_device_say_what_they_take(config, tmp_path, capsys):
    for call in (
        lambda: dsi.train("DIR", tmp_path / "run", config=config),
        lambda: dsi.evaluate(None, "DIR"),
        lambda: dsi.tune(None, "DIR"),
    ):
        with pytest.raises(TypeError, match=r"takes a collection, got 'DIR'; dsi.read_collection\(FOLDER\) reads one"):
            call()
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="The device 'gpu' cannot be used here"):
        Encoder.load(read_config(config).encoder, device="gpu")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dsi {dsi.__version__}\n"
    assert "train" in dir(dsi)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_do_what_one_does(processes, beir, tmp_path, sentence_bert_folder, t5_folder, monkeypatch):
    """Every stage starts from what one process made before it, so that only the stage itself is compared."""
    monkeypatch.setattr("dsi.generator.base.DROPOUT", 0.0)
    monkeypatch.setattr(figure5, "ALPHAS", (0.0, 0.3, 1.0))
    monkeypatch.setattr(figure5, "BETAS", (0.0, 1.0, math.inf))
    monkeypatch.setattr(figure5, "grid_figure", lambda *_: None)
    data = thin_out(beir(), dev=6, test=10)
    one, results = tmp_path / "one", [tmp_path / "one.json", tmp_path / "several.json"]
    config = write_settings(
        tmp_path / "one.toml",
        sentence_bert_folder,
        t5_folder,
        training=LONGER,
        docids={"pieces": 0},
        dev_queries=0,  # what evaluate and reproduce choose on dev is compared
    )
    shared = halved(config, processes)
    decoder, whole, read = tmp_path / "decoder.toml", tmp_path / "whole.toml", read_config(config)
    part = {"batch_size": read.training.batch_size // processes}
    write_config(read.with_changes({"training": part}), decoder)
    write_config(read.with_changes({"training": {**part, "train_encoder": True, "epochs": 3.0}}), whole)
    assert main(["train", "--config", str(config), str(data), str(one), "--device", "cpu"]) == 0
    evaluate = [str(one), str(data), "--device", "cpu", "--results"]
    assert main(["evaluate", *evaluate, str(results[0])]) == 0

    commands = [["evaluate", *evaluate, str(results[1])]]
    stages = (("encoder", "encoder", shared), ("docids", "docids", config),
              ("generator", "memory", decoder), ("whole", "memory", whole))  # fmt: skip
    for run, *_ in stages:
        shutil.copytree(one, tmp_path / run)
    shutil.rmtree(tmp_path / "docids" / "docids")

    def work() -> None:
        """Run each stage on its copy, then the commands."""
        for run, stage, settings in stages:
            TrainingRun(tmp_path / run, read_collection(data), read_config(settings), "cpu").run_stages(stage)
        run_commands(commands)

    short = shared.with_stem("short")
    short.write_text(shared.read_text().replace("epochs = 6.0", "epochs = 1.0"))
    tables = ["--config", str(short), "--data", str(data), "--output", str(tmp_path / "tables"), "--device", "cpu"]
    rows = ["whole text", "SCL+QG, fused, alpha", "after search", "query means"]
    table3 = ["reproduce", "table3", *tables, "--rows", *rows]
    commands += [table3, ["reproduce", "figure5", *tables]]
    printed = together(processes, work, tmp_path)

    check_encoders(read_config(config), one / "encoder", tmp_path / "encoder" / "encoder")
    trees = [DocidTree.load(run / "docids" / "docids.safetensors") for run in (one, tmp_path / "docids")]
    assert trees[0].fingerprint == trees[1].fingerprint
    np.testing.assert_array_equal(trees[0].centroids, trees[1].centroids)
    check_generators(data, one, tmp_path / "generator", tmp_path / "whole")
    assert printed.count("| BM25 ") == 1  # one of them speaks
    systems = [json.loads(path.read_text())["systems"] for path in results]
    for row in (row for own in systems for row in own.values()):
        row["settings"].pop("ms per query", None)
    assert systems[0] == systems[1]
    check_tables(tmp_path / "tables", table3, printed)


def halved(config: Path, processes: int) -> Path:
    """The same configuration and the same batches, each process with its part of them."""
    other = config.with_stem(f"several-{config.stem}")
    text = re.sub(r"batch_size = (\d+)", lambda found: f"batch_size = {int(found[1]) // processes}", config.read_text())
    other.write_text(text)
    return other


def check_tables(folder: Path, table3: list[str], printed: str) -> None:
    """One process, on what several have trained, measures what they measured."""
    assert printed.count("table3, seed 0: ") == 4
    assert printed.count("figure5: alpha") == 1 + 2 * 3
    text, rows = (folder / "table3.md").read_text(), json.loads((folder / "table3.json").read_text())["rows"]
    assert len(rows) == 4
    (folder / "table3.json").unlink()
    assert main(["reproduce", *table3[1:]]) == 0
    assert (folder / "table3.md").read_text() == text
    figure = (folder / "figure5.md").read_text()
    (folder / "figure5.json").unlink()
    assert main(["reproduce", "figure5", *table3[2:-5]]) == 0
    assert (folder / "figure5.md").read_text() == figure


def check_encoders(config: Config, one: Path, several: Path) -> None:
    encoders = [Encoder.load(config.encoder, folder, "cpu") for folder in (None, one, several)]
    before, first, second = [encoder.encode(["noble gas", "a yellow line"], "query") for encoder in encoders]
    # Several processes drop a short last batch, so the same way, not quite as far.
    ways = [first - before, second - before]
    cosine = np.sum(ways[0] * ways[1]) / np.linalg.norm(ways[0]) / np.linalg.norm(ways[1])
    assert 0.9 < cosine < 1


def check_generators(data: Path, one: Path, several: Path, whole: Path) -> None:
    """`several` was trained as `one`; in `whole` the encoder was trained too."""
    retrievers = [load(run, device="cpu") for run in (one, several, whole)]
    assert len({state_fingerprint(retriever.snapshot.generator) for retriever in retrievers}) == 3
    assert retrievers[2].snapshot.encoder.fingerprint != retrievers[1].snapshot.encoder.fingerprint
    collection = read_collection(data)
    queries = {query_id: collection.documents[row]["doc_id"] for query_id, row in collection.pairs("train")}
    texts = {query_id: collection.queries[query_id] for query_id in queries}
    runs = [retriever.run(texts, k=40, alpha=1.0, beam_width=40) for retriever in retrievers]
    likelihoods = [np.mean([run[query_id][doc_id] for query_id, doc_id in queries.items()]) for run in runs]
    leaves = len(retrievers[0].snapshot.tree.doc_rows)
    assert leaves > 10 * len(collection.documents)  # whose pieces have docids
    assert min(likelihoods) > -np.log(leaves) + 0.3  # better than a uniform choice
    assert likelihoods[0] == pytest.approx(likelihoods[1], abs=0.1)


def test_rerankers_are_trained_measured_and_searched_with(beir, tmp_path, sentence_t5_folder, t5_folder, capsys):
    module = pytest.importorskip("dsi.rerankers")
    config = write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder, dev_queries=0, search={"alpha": 0.0}
    )
    data, run = thin_out(beir(), dev=4, test=6), tmp_path / "run"
    with (data / "corpus.jsonl").open("a") as corpus:
        corpus.write('\n{"_id": "empty", "title": "", "text": ""}')  # as in some collections of BEIR
    assert main(["train", "--config", str(config), str(data), str(run), "--device", "cpu"]) == 0
    common = [str(run), str(data), "--device", "cpu"]
    assert main(["train-reranker", *common, "--kind", "m2div", "--k", "10"]) == 2
    assert (
        "has no judgements of subtopics of its dev queries; add them as qrels/diversity.qrels"
        in capsys.readouterr().err
    )
    judged = [line.split("\t")[:2] for line in (data / "qrels" / "dev.tsv").read_text().splitlines()[1:]]
    (data / "qrels" / "diversity.qrels").write_text("".join(f"{query} 1 {doc_id} 1\n" for query, doc_id in judged))
    kinds = ["lambdasmart", "m2div", "mmr", "parser"]
    for kind in kinds:
        capsys.readouterr()
        assert main(["train-reranker", *common, "--kind", kind, "--name", f"my-{kind}", "--k", "10"]) == 0
        printed = capsys.readouterr().out
        before, after = (
            line.split("|")[2:6] for line in printed.splitlines() if line.startswith(("| before", "| after"))
        )
        assert float(after[1]) == float(before[1])  # the same ten documents in another order
    names = [f"my-{kind}" for kind in kinds]
    results = run / "results.json"
    drawn = ["--kind", "lambdamart", "--name", "both", "--figure", str(run / "importance")]
    assert main(["train-reranker", *common, "--k", "10", *drawn]) == 0
    assert (run / "importance.svg").exists()
    options = [
        "--rerank",
        *names,
        "both",
        "my-lambdasmart+my-mmr",
        "--rerank-depth",
        "10",
        "--results",
        str(results),
    ]
    assert main(["evaluate", *common, *options]) == 0
    printed = capsys.readouterr().out
    assert "| + my-lambdasmart " in printed
    systems = json.loads(results.read_text())["systems"]
    assert all(systems[f"+ {name}"]["settings"]["rerank depth"] == 10 for name in names)
    retriever = load(run, device="cpu")
    query = "which capitals are on the danube"
    hits = retriever.search(query, k=10)
    for name in (*names, "both"):
        found = module.rerank(hits, module.load_reranker(retriever, run, name))
        assert sorted(hit.doc_id for hit in found) == sorted(hit.doc_id for hit in hits)
        assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    assert main(["train-reranker", *common, "--name", "a/b"]) == 2
    assert "plain folder name" in capsys.readouterr().err
    assert main(["evaluate", *common, "--rerank", "other"]) == 2
    assert "there are both, my-lambdasmart" in capsys.readouterr().err


def run_commands(commands: list[list[str]]) -> None:
    """Run several commands."""
    for name, *arguments in commands:
        find_command(name)(arguments)
        gc.freeze()  # as in conftest.py


def test_configurations_survive_writing_and_unknown_keys_name_the_nearest(tmp_path):
    write_config(Config(), tmp_path / "config.toml")
    assert read_config(tmp_path / "config.toml") == Config()
    for text, message in [
        (
            "[search]\nbeam_with = 3",
            r"config.toml: 'search.beam_with' is not a setting; did you mean 'search.beam_width'\?",
        ),
        ("[serch]\nalpha = 1.0", r"'serch' is not a setting; did you mean 'search'\?"),  # misspelt
        ("[search]\nalpha = 'high'", r"search: alpha must be a number, got 'high'"),
        ("[search]\nalpha = 3.0", r"alpha must be between 0 and 1, got 3.0"),
        ("[search]\nbeam_width = true", r"beam_width must be an integer, got True"),
        ("search = 3", r"search must be a table of settings, got 3"),
        ("[search", r"is not valid TOML"),
    ]:
        (tmp_path / "config.toml").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_config(tmp_path / "config.toml")
    with pytest.raises(
        FileNotFoundError, match="does not exist: neither a file nor one of digits, language-model, paper"
    ):
        read_config(tmp_path / "none.toml")


@pytest.mark.parametrize("name", config_names())
def test_a_shipped_configuration_says_only_what_its_base_does_not(name, tmp_path):
    config, own = read_config(name), tomllib.loads((CONFIGS / f"{name}.toml").read_text(encoding="utf-8"))
    write_config(config, tmp_path / "whole.toml")
    assert read_config(tmp_path / "whole.toml") == config
    base = dataclasses.asdict(read_config(own.pop("base")) if "base" in own else Config())
    for section, settings in own.items():
        for key, value in settings.items() if isinstance(settings, dict) else ():
            repeated = value == base[section][key]
            assert not repeated or name == "paper", f"{section}.{key} is as in the base"  # that one says all


def test_a_configuration_over_its_base(tmp_path):
    (tmp_path / "a.toml").write_text('base = "paper-minilm"\n[training]\nepochs = 2.0\n[search]\nbeam_width = 3\n')
    config = Config.named(tmp_path / "a.toml")
    expected = Config.named("paper-minilm").with_changes({"training": {"epochs": 2.0}, "search": {"beam_width": 3}})
    assert config == expected == Config.named(config)
    (tmp_path / "a.toml").write_text(".".join("a" * 50_000) + " = 1\n")
    with pytest.raises(ValueError, match=r"a\.toml has 100,004 bytes, a configuration has at most 16,384"):
        read_config(tmp_path / "a.toml")
    with pytest.raises(
        FileNotFoundError, match=r"'nq1k' does not exist: neither a file nor one of digits, language-model, paper"
    ):
        Config.named("nq1k")
    with pytest.raises(ValueError, match=r"^'training.epoch' is not a setting; did you mean 'training.epochs'\?"):
        expected.with_changes({"training": {"epoch": 3.0}})


@pytest.mark.parametrize("base", ["3", '"a.toml"', '"/dev/zero"', '["digits"]', f'"{"a" * 300}"'])
def test_a_base_is_a_configuration_that_ships(base, tmp_path):
    (tmp_path / "a.toml").write_text(f"base = {base}")
    with pytest.raises(
        ValueError, match=r"a\.toml: base must be one of digits, language-model, paper.*, got "
    ) as caught:
        read_config(tmp_path / "a.toml")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("sections", [pytest.param({}, marks=pytest.mark.slow), VECTORS], ids=["digits", "vectors"])
def test_an_index_is_trained_tuned_measured_and_searched_from_python(
    sections, beir, tmp_path, sentence_t5_folder, t5_folder
):
    config = write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, **sections)
    collection = dsi.read_collection(thin_out(beir(), dev=2, test=3))
    retriever = dsi.train(collection, tmp_path / "run", config=config, device="cpu")
    tuned = json.loads((tmp_path / "run" / "tuning.json").read_text())["best"]
    assert tuned.items() <= dataclasses.asdict(retriever.search_config).items()
    again = dsi.train(
        collection, tmp_path / "run", config=read_config(config), device="cpu"
    )  # up to date: nothing is trained
    assert again.search("noble gas", k=5) == retriever.search("noble gas", k=5)

    evaluation = dsi.evaluate(retriever, collection)
    names = [row.name for row in evaluation.rows]
    assert names[0] == "BM25"
    assert evaluation.index == "generate"
    assert names[-2:] == ["generate", "exact"]
    run = retriever.run(collection.query_texts("test"), k=10)
    measured = evaluation.runs[evaluation.index]
    assert measured.keys() == run.keys()
    for query_id, found in run.items():  # the search that a user gets, but for rounding in batches of another size
        assert measured[query_id] == pytest.approx(found, abs=1e-4)
    assert set(evaluation.row("BM25").values) == {"Hit@1", "Hit@5", "Hit@10", "RR@10", "nDCG@10"}
    assert "The index finds the document of " in str(evaluation)
    evaluation.save(tmp_path / "results.json")
    assert json.loads((tmp_path / "results.json").read_text())["systems"][evaluation.index]["Total"]["Hit@10"] > 0
    deep = dsi.evaluate(retriever, collection, depth=40)
    assert {len(own) for own in deep.runs[deep.index].values()} == {40}
    shallow = dsi.evaluate(retriever, collection, depth=3)
    assert {len(own) for own in shallow.runs[shallow.index].values()} == {10}
    assert "in the top ten" in str(shallow)

    retriever.search_config = dataclasses.replace(retriever.search_config, alpha=0.9, beam_width=7)
    tuning = dsi.tune(retriever, collection)
    assert tuning.best == pytest.approx(tuned)
    assert tuning.best.items() <= dataclasses.asdict(retriever.search_config).items()
    if not retriever.snapshot.engine.has_generator:
        assert set(tuning.best) == {"lexical_weight", "token_weight", "memory_weight", "beam_width"}
        found = {setting["beam_width"]: share for setting, share in tuning.tried if "beam_width" in setting}
        assert found[tuning.best["beam_width"]] >= 0.98
        assert min(found) == 5
    else:  # without the generator unless it gains more than a standard error
        highest = max(tuning.tried, key=lambda entry: entry[1])[0]
        assert tuning.best in (highest, tuning.tried[0][0])
        alone = evaluation.runs["decoder only"]
        run = runs.IndexRuns(collection, retriever).run("test", 10, **runs.generator_only(retriever))
        assert run.keys() == alone.keys()
    collection.qrels["dev"].clear()
    assert "token_weight" not in dsi.tune(retriever, collection).best  # which judged queries alone choose
    with pytest.raises(ValueError, match=r"has no dev judgements to measure on; add qrels/dev.tsv"):
        dsi.evaluate(retriever, collection, "dev")
    with pytest.raises(ValueError, match=r"add queries and qrels=\{'dev': \{query_id: \{doc_id: .*\} in from_records"):
        dsi.evaluate(retriever, dsi.Collection.from_records(["a"]), "dev")
    with pytest.raises(ValueError, match="split must be one of train, dev, test, got 'tset'"):
        dsi.evaluate(retriever, collection, "tset")
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        dsi.evaluate(retriever, collection, depth=0)


def test_bad_commands_exit_with_2_and_one_line(capsys, tmp_path):
    assert main(["trian"]) == 2  # misspelt
    assert "unknown command 'trian'" in capsys.readouterr().err  # misspelt
    assert main(["search", str(tmp_path), "x"]) == 2
    error = capsys.readouterr().err
    assert "holds no finished index" in error
    assert "Traceback" not in error
    assert main(["train", "--config", "nowhere.toml", str(tmp_path), str(tmp_path / "run")]) == 2


def test_a_local_model_that_became_another_is_trained_on_again(beir, tmp_path, sentence_t5_folder, t5_folder):
    model = Path(shutil.copytree(sentence_t5_folder, tmp_path / "model"))
    more = {
        **VECTORS,
        "contrastive": {"loss": "none"},
    }
    config = write_settings(tmp_path / "config.toml", model, t5_folder, **more)
    collection, prints = dsi.read_collection(beir()), []
    for seed in (0, 0, 7):
        if seed:
            changed = Encoder.load(Config().encoder.__class__(name=str(model)), device="cpu")
            with torch.no_grad():
                next(changed.model.parameters()).add_(1.0)
            changed.model.save_pretrained(str(model), create_model_card=False)
        dsi.train(collection, tmp_path / "run", config=config, device="cpu")
        prints.append(json.loads((tmp_path / "run" / "manifest.json").read_text())["fingerprints"])
    assert prints[0] == prints[1]
    assert prints[2]["encoder"] != prints[0]["encoder"]
    assert prints[2]["docids"] != prints[0]["docids"]


def run_stage(stages, name, key, needs, content):
    """Run a stage, or kill it without content; returns its work folder."""
    with stages.stage(name, key, needs):
        work = stages.work(name, key)
        if content is None:
            raise KeyboardInterrupt
        with stages.writing(name, key) as folder:
            (folder / "weights").write_text(content)
    return work


def test_what_a_killed_stage_has_made_is_not_used_with_other_outputs_of_earlier_stages(tmp_path):
    stages = StageFolders(tmp_path, ALONE)
    run_stage(stages, "encoder", "one key", [], "some weights")
    with pytest.raises(KeyboardInterrupt):
        run_stage(stages, "docids", "key", ["encoder"], None)
    (killed,) = (tmp_path / "checkpoints").glob("docids-*")
    with pytest.raises(KeyboardInterrupt):
        run_stage(stages, "docids", "key", ["encoder"], None)
    assert [*(tmp_path / "checkpoints").glob("docids-*")] == [killed]  # which it goes on with
    run_stage(stages, "encoder", "another key", [], "other weights")
    assert run_stage(stages, "docids", "key", ["encoder"], "docids") != killed
    assert not killed.exists()
