"""A router when others write to its index, when shards are empty or lost, and when files are cut off."""

import os
import shutil
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

import dsi
from dsi.cluster.cluster import Cluster, serve_shards
from dsi.cluster.shards import Shard
from dsi.docids.files import reading
from dsi.docids.query_memory import QueryMemory
from dsi.measuring.tuning import configure
from dsi.search.results import ShardError
from dsi.store.folder.loading import index_state
from dsi.store.folder.writing import ChangedError
from tests.support.clusters import alone, collection, ray, runs, texts_of  # noqa: F401 - fixtures

pytest_plugins = ("tests.support.ray_cluster",)
NEW = {"doc_id": "new", "title": "Neretva", "text": "A river in Bosnia."}
SECONDS = 20.0


@pytest.fixture(scope="module")
def local():
    with Cluster("local", processes=1) as cluster:
        yield cluster


@pytest.fixture
def run(runs, tmp_path) -> Path:
    """A copy of the plain index."""
    return Path(shutil.copytree(runs["plain"], tmp_path / "run"))


def serve(run, cluster, *, shards=2, timeout=SECONDS):
    return serve_shards(run, cluster=cluster, shards=shards, timeout=timeout, device="cpu")


def assert_answers_of_one_process(served, run, texts):
    for method in ("generate", "exact"):
        for own, other in zip(
            served.search(texts, method=method), alone(run).search(texts, method=method), strict=True
        ):
            assert [hit.score for hit in own] == pytest.approx([hit.score for hit in other], abs=1e-4)
            assert own.coverage == 1.0


def test_a_shard_whose_documents_were_all_removed_has_none(run, local, collection):
    with serve(run, local, shards=5) as served:
        first, last = served.snapshot.engine.edges[1:3]
        rows = served.snapshot.tree.doc_rows[first:last]
        served.remove([served.snapshot.documents.column("doc_id")[int(row)] for row in rows])
        assert_answers_of_one_process(served, run, texts_of(collection)[:4])


def test_another_index_in_the_folder_is_not_served_by_the_old_encoder(run, runs, local, sentence_t5_folder, collection):
    with serve(run, local) as served:
        before = served.search("a river", k=3)
        config = dsi.config.read_config(run / "config.toml").with_changes(
            {"encoder": {"name": str(sentence_t5_folder)}}
        )
        dsi.train(collection, run, config=config, device="cpu")
        for change in (served.refresh, lambda: served.add([NEW])):
            with pytest.raises(ChangedError, match="holds another index now, its encoder differs; serve it again"):
                change()
        assert "new" not in alone(run).snapshot.documents.rows
        assert [hit.doc_id for hit in before]


def test_what_was_written_but_not_served_is_not_written_over(run, local, monkeypatch):
    with serve(run, local) as served:
        load = served.fleet.load

        def fails(state):
            monkeypatch.setattr(served.fleet, "load", load)
            raise ShardError("cannot load it")

        monkeypatch.setattr(served.fleet, "load", fails)
        with pytest.raises(ShardError, match="cannot load it"):
            served.add([NEW])
        with pytest.raises(ChangedError):
            served.save(run)
        assert "new" in alone(run).snapshot.documents.rows
        served.refresh()
        assert "new" in served.snapshot.documents.rows


def test_a_refresh_follows_writers_that_go_on(run, local, monkeypatch):
    with serve(run, local) as served:
        load = served.fleet.load

        def overtaken(state):
            monkeypatch.setattr(served.fleet, "load", load)
            index = alone(run)
            index.add([{**NEW, "doc_id": "newer"}])
            index.save(run)
            raise ShardError("its worker holds another generation")

        monkeypatch.setattr(served.fleet, "load", overtaken)
        index = alone(run)
        index.add([NEW])
        index.save(run)
        served.refresh()
        assert {"new", "newer"} <= set(served.snapshot.documents.rows)


@pytest.mark.cluster
def test_a_search_that_misses_a_shard_makes_the_router_look_at_the_folder(run, ray):
    with serve(run, ray, timeout=1.0) as served:
        index = alone(run)
        index.add([NEW])
        index.save(run)
        for replica in served.fleet.all:  # each comes back with the new state, which nobody has asked for
            replica.worker.call("load").result(SECONDS)
            replica.worker.kill()
        deadline = time.monotonic() + 60
        while served.search("a river", k=3).coverage < 1 or "new" not in served.snapshot.documents.rows:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert served.snapshot.engine.state == index_state(run)


def test_files_that_are_cut_off_after_an_update_are_named(run, local):
    with serve(run, local) as served:
        served.add([NEW])
        path = next(path for path in run.glob("docids-*/documents.arrow"))
        os.truncate(path, 0)
        with pytest.raises(OSError, match=r"documents.arrow was cut off"):
            served.search("a river", k=3)


def test_an_explanation_without_all_shards_says_so(run, local, collection, monkeypatch):
    with serve(run, local) as served:
        text = texts_of(collection)[0]
        served.search(text, k=3)
        best = alone(run).search(text, k=1, method="exact")[0]
        position = served.snapshot.tree.node(best.digits) - served.snapshot.tree.num_inner
        shard = int(position >= served.snapshot.engine.edges[1])
        served.fleet.timeout = 0.1
        monkeypatch.setattr(served.fleet.replicas[shard][0].worker, "call", lambda *_: Future())  # it answers nothing
        hits = served.search(text, k=3)
        assert hits.missing == [shard]
        why = hits.explain(best.doc_id)
        assert why.reason == f"Its place is not known. Shards {shard} did not answer."
        assert (why.rank, why.overall_rank, why.returned_by) == (None, None, None)


def test_a_shard_loads_files_of_one_state(run, monkeypatch):
    shard = Shard(str(run), 0, 2)
    (before,) = shard.status()[1]
    index = alone(run)
    index.add([NEW])
    index.save(run)
    read, reads = reading.read_record, []

    def changing(path):
        found = read(path)
        if path.name == "manifest.json" and not reads:
            reads.append(path)
            later = alone(run)
            later.remove(["new"])
            later.save(run)
        return found

    monkeypatch.setattr("dsi.cluster.shards.read_record", changing)
    shard.load([before])
    assert list(shard.status()[1]) == [before, index_state(run)]


def test_states_that_are_searched_stay(run):
    shard = Shard(str(run), 0, 2)
    states = [*shard.status()[1]]
    for number in range(3):
        index = alone(run)
        index.add([{**NEW, "doc_id": f"new {number}"}])
        index.save(run)
        shard.load(states[:1])
        states.append(index_state(run))
        assert list(shard.status()[1]) == [states[0], states[-1]]
    shard.load()
    assert list(shard.status()[1]) == states[-1:]


def test_what_somebody_holds_can_be_searched_after_many_updates(run, local, collection):
    texts = texts_of(collection)[:4]
    with serve(run, local) as served:
        before = served.snapshot
        encoded = served.encode_queries(texts)
        expected = before.search(encoded)
        for number in range(3):
            served.add([{**NEW, "doc_id": f"new {number}", "text": texts[number]}])
        found = before.search(encoded)
        assert found.positions.tolist() == expected.positions.tolist()
        assert found.coverage.tolist() == [1.0] * len(texts)
        before = before.with_memory(QueryMemory())  # a copy of its engine
        for number in range(3, 6):
            served.add([{**NEW, "doc_id": f"new {number}"}])
        assert before.search(encoded).coverage.tolist() == [1.0] * len(texts)
        del before
        served.add([{**NEW, "doc_id": "last"}])
        held = {state for replica in served.fleet.all for state in replica.states}
        assert len(held) == 2, "the last two: of others nobody has a snapshot"


def test_every_change_reaches_the_shards(run, local, collection, tmp_path):
    texts = texts_of(collection)[:4]
    with serve(run, local) as served:
        doc_ids = served.snapshot.documents.column("doc_id")[:3]
        changes = [
            lambda: served.update(add=[NEW], remove=doc_ids[:1]),
            lambda: served.add([{**NEW, "text": "A river in Bosnia and Croatia."}], replace=True),
            lambda: served.remove(doc_ids[1:2]),
            lambda: served.learn([("river of bosnia", "new")]),
            lambda: served.forget([("river of bosnia", "new")]),
            lambda: served.update(vectors="int8"),
        ]
        for generation, change in enumerate(changes, start=2):
            change()
            assert len(served.snapshot.engine.fleet.replicas) == 2  # still scored by shards
            assert served.snapshot.engine.state == index_state(run)
            assert served.snapshot.generation == generation
            assert_answers_of_one_process(served, run, [*texts, "a river in bosnia"])
        assert served.search("a river in bosnia")[0].doc_id == "new"
        assert not {*doc_ids[:2]} & {*served.snapshot.documents.rows}


def test_a_tuning_keeps_the_shards_and_is_saved(run, local, collection, tmp_path):
    with serve(run, local) as served:
        assert dsi.tune(served, collection).best["lexical_weight"] == served.search_config.lexical_weight
        served.search_config = tuned = replace(served.search_config, beam_width=7)
        served.add([NEW])  # which writes and loads the index
        assert served.search_config == tuned
        assert served.save() == 2
        assert alone(run).search_config == tuned
        served.save(tmp_path / "copy")
        assert alone(tmp_path / "copy").get("new").title == "Neretva"
        assert len(served.snapshot.engine.fleet.replicas) == 2
        assert_answers_of_one_process(served, run, texts_of(collection)[:2])


def test_a_tuning_on_disk_comes_with_the_next_update(run, local):
    with serve(run, local) as served:
        tuned = replace(served.search_config, beam_width=7)
        configure(run, tuned)
        served.add([NEW])
        assert served.search_config == tuned == alone(run).search_config


def test_files_that_change_reach_the_shards(local, sentence_bert_folder, tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for number, text in enumerate(["Neon glows.", "Bees dance.", "Rivers flow.", "Metal rusts."] * 5):
        (folder / f"{number}.txt").write_text(f"{text} Note {number}.")
    dsi.index(folder, tmp_path / "run", encoder=str(sentence_bert_folder), device="cpu")
    with serve(tmp_path / "run", local) as served:
        (folder / "0.txt").write_text("Cobalt is blue.")
        (folder / "1.txt").unlink()
        changes = served.update(folder).files
        assert (changes.changed, changes.gone) == (1, 1)
        assert len(served.snapshot.engine.fleet.replicas) == 2
        assert served.search("cobalt", lexical_weight=5.0)[0].doc_id == "0.txt"
        assert_answers_of_one_process(served, tmp_path / "run", ["cobalt", "bees", "rivers flow"])
