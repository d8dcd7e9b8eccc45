"""Shards in this process and on Ray: their answers are those of one process; on Ray some are killed, hung or slow."""

import dataclasses
import logging
import math
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import psutil
import pytest

from dsi.cluster.backends import LostError
from dsi.cluster.cluster import Cluster, serve_shards
from dsi.cluster.fleet import Fleet
from dsi.cluster.router import ShardedRetriever
from dsi.cluster.shards import ShardIndex, shard_edges
from dsi.contrastive.encoder import Encoder
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.extensions import CLUSTERS, extensions, open_cluster
from dsi.docids.files.reading import read_record
from dsi.search import vector_search
from dsi.search.results import SearchResult, ShardError
from tests.support.cluster_work import Poison, die, die_once, refuse, square
from tests.support.clusters import alone, collection, ray, runs, texts_of  # noqa: F401 (fixtures)
from tests.support.small import random_tree

pytest_plugins = ("tests.support.ray_cluster",)

SECONDS = 120.0
"""A timeout that no test reaches: machines of tests are slow."""


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.cluster)])
def cluster(request) -> Iterator[Cluster]:
    if request.param == "ray":
        yield request.getfixturevalue("ray")
        return
    with Cluster("local", processes=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def served(ray, runs) -> Iterator[ShardedRetriever]:
    """The plain index by two shards with two replicas each; not to be changed."""
    with serve_shards(runs["plain"], cluster=ray, shards=2, replicas=2, timeout=SECONDS, device="cpu") as retriever:
        yield retriever


def named(texts: list[str]) -> dict[str, str]:
    return {str(number): text for number, text in enumerate(texts)}


def check_equal(found: SearchResult, expected: SearchResult, *, may_prove_more: bool = False) -> None:
    """The same documents, scores, order up to ties, sources and certificates.

    Shards rescore their own best by codes each, so together they may read all documents where one process does not.
    """
    assert found.positions.shape == expected.positions.shape
    for row in range(len(expected.positions)):
        scores, others = found.scores[row], expected.scores[row]
        assert np.allclose(scores, others, rtol=1e-5, atol=1e-5)
        same = found.positions[row] == expected.positions[row]
        ties = np.isclose(others[:, None], others[None], rtol=1e-5, atol=1e-5).sum(axis=1) > 1
        last = np.isclose(others, others[-1], rtol=1e-5, atol=1e-5)
        assert (same | ties | last).all(), (found.positions[row], expected.positions[row], others)
        assert (found.sources[row] == expected.sources[row])[same].all()
    assert (found.exact == expected.exact).all() or (may_prove_more and (found.exact >= expected.exact).all())


OPTIONS = [
    {},
    {"method": "exact"},
    {"method": "exact", "token_weight": 0},
    {"k": 40, "beam_width": 1, "candidates": 1},
    {"lexical_weight": 0, "beam_width": 2},
    {"token_weight": 0, "lexical_weight": 0, "beam_width": 100, "k": 3},
    {"token_weight": 0, "candidates": 2, "k": 2},
]


NIGHTLY_ON_RAY = ["local", pytest.param("ray", marks=pytest.mark.slow)]
"""Clusters of tests whose way through Ray is that of others."""


@pytest.mark.parametrize(
    ("cluster", "name"),
    [
        ("local", "plain"),
        pytest.param("ray", "plain", marks=pytest.mark.cluster),
        *(pytest.param("local", name, marks=pytest.mark.cluster) for name in ("places", "codes")),
        *(pytest.param("ray", name, marks=pytest.mark.slow) for name in ("places", "codes")),
    ],
    indirect=["cluster"],
)
def test_answers_are_those_of_one_process(cluster, runs, collection, name, monkeypatch):
    one, rng = alone(runs[name]), np.random.default_rng(0)
    texts, ids = texts_of(collection)[::3], one.snapshot.documents.column("doc_id")[:]
    read = dict(zip(texts, rng.choice([0, 0.4, 1], size=len(texts)).astype(np.float32), strict=True))
    monkeypatch.setattr(Encoder, "shares_read", lambda _, own, *_tokens: np.array([read[text] for text in own]))
    encoded = one.encode_queries(texts)
    extra = rng.normal(size=(len(texts), len(ids)))
    filters = [
        {"deny": ids[:7]},
        {"allow": ids[5:9]},
        {"extra_scores": extra},
        {"extra_scores": extra, "allow": ids[::3]},
    ]
    with serve_shards(runs[name], cluster=cluster, shards=4, timeout=SECONDS, device="cpu") as shards:
        for few in (1000, 0):  # filters with few documents are scored outright, or act inside the walk
            monkeypatch.setattr(vector_search, "_OUTRIGHT", few)
            for options in [*OPTIONS, *filters]:
                found = shards.snapshot.search(encoded, **options)
                check_equal(found, one.snapshot.search(encoded, **options), may_prove_more=name == "codes")
                assert (found.coverage == 1).all()
                assert not any(found.missing)
        first, expected = shards.search(texts[0])[0], one.search(texts[0])[0]
        assert first.score == pytest.approx(expected.score, abs=1e-5)  # each has encoded the query
        assert dataclasses.replace(first, score=0) == dataclasses.replace(expected, score=0)
        word = one.get(ids[3]).title.split()[0]
        for query in (f'"{word}" {texts[0]}', f"{texts[0]} -{word}", '"nobody has this"'):
            found, expected = (each.search(query, k=40, syntax=True) for each in (shards, one))
            assert ([*found.ids], found.note) == ([*expected.ids], expected.note)
        assert [*shards.similar(ids[:2]).ids] == [*one.similar(ids[:2]).ids]
        for options in ({}, {"allow": ids[::3]}):
            found, expected = (each.search(texts[0], passages=3, **options) for each in (shards, one))
            assert [places(hit.passages) for hit in found] == [places(hit.passages) for hit in expected]
            found, expected = (each.evidence(texts[0], 150, **options) for each in (shards, one))
            assert (places(found), found.tokens, found.coverage) == (places(expected), expected.tokens, 1)
        explained = [re.sub(r"\d+ vectors", "", str(own.explain(texts[0]))) for own in (shards, one)]
        assert explained[0] == explained[1]  # but what was read: each shard reads its best by words


def places(passages):
    """Where passages stand, in their order."""
    return [passage[:3] for passage in passages]


def test_shards_cut_the_tree_at_children_of_the_root():
    for tree in (
        random_tree(100),
        random_tree(9, leaf=20),
        build_tree(np.eye(40, 32, dtype=np.float32), DocidsConfig()),
    ):
        for shards in range(1, int(tree.num_children[0]) + 1):
            edges = shard_edges(tree, shards)
            assert len(edges) == shards + 1
            assert (np.diff(edges) > 0).all()
            first = int(tree.first_child[0])
            if first < tree.num_inner:
                children = slice(first, first + int(tree.num_children[0]))
                assert set(edges.tolist()) <= {*tree.doc_start[children].tolist(), tree.num_places}


def replicas_of(retriever: ShardedRetriever, shard: int) -> list[int]:
    """Process ids of the replicas of a shard."""
    return [int(own.process.split(":")[1]) for own in retriever.fleet.status() if own.shard == shard]


def wait_until(true, seconds: float = SECONDS) -> float:
    """Wait until a condition holds; return the seconds."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < seconds
        time.sleep(0.02)
    return time.monotonic() - started


def all_live(retriever: ShardedRetriever) -> bool:
    return all(own.generation for own in retriever.fleet.status())


@pytest.mark.cluster
def test_a_shard_that_is_killed_has_a_replica_that_answers(served, runs, collection, caplog):
    one, texts = alone(runs["plain"]), texts_of(collection)
    encoded = one.encode_queries(texts)
    expected = one.snapshot.search(encoded)
    for shard in range(2):
        wait_until(lambda: all_live(served))
        restarts = sum(own.restarts for own in served.fleet.status())
        with caplog.at_level(logging.WARNING, "dsi.cluster"):
            os.kill(replicas_of(served, shard)[0], signal.SIGKILL)
            for _ in range(5):
                found = served.snapshot.search(encoded)
                check_equal(found, expected)
                assert (found.coverage == 1).all()
            wait_until(lambda before=restarts: sum(own.restarts for own in served.fleet.status()) > before)
        assert f"shard {shard} replica 0 is back (restart" in caplog.text


@pytest.mark.cluster
def test_a_shard_that_hangs_is_hedged_and_its_late_answers_harm_nothing(served, runs, collection):
    wait_until(lambda: all_live(served))
    one, texts = alone(runs["plain"]), texts_of(collection)
    expected = {text: one.snapshot.search(one.encode_queries([text])) for text in texts[:12]}
    for text in texts[:12] * 3:  # so that the usual time is known
        served.search(text)
    hung, hedges = replicas_of(served, 1)[0], served.fleet.statistics[1].hedges
    os.kill(hung, signal.SIGSTOP)
    started = time.monotonic()
    try:
        for count, text in enumerate(cycle(texts[:12])):  # it may be a second until the hung one has its turn
            check_equal(served.snapshot.search(one.encode_queries([text])), expected[text])
            assert time.monotonic() - started < SECONDS / 2
            if count >= 24 and served.fleet.statistics[1].hedges > hedges:
                break
    finally:
        os.kill(hung, signal.SIGCONT)
    assert time.monotonic() - started < SECONDS / 2
    assert served.fleet.statistics[1].hedges > hedges
    for text in texts[:12]:  # meanwhile it answers what it was asked before
        check_equal(served.snapshot.search(one.encode_queries([text])), expected[text])


@pytest.mark.cluster
def test_without_a_replica_a_partial_answer_says_so(ray, runs, collection, caplog):
    one, texts = alone(runs["plain"]), texts_of(collection)
    encoded = one.encode_queries(texts)
    with serve_shards(runs["plain"], cluster=ray, shards=3, timeout=1, device="cpu") as shards:
        edges = shards.snapshot.engine.edges
        size = (edges[2] - edges[1]) / edges[3]
        os.kill(replicas_of(shards, 1)[0], signal.SIGSTOP)
        for options in ({}, {"method": "exact"}):
            with caplog.at_level(logging.WARNING, "dsi.cluster"):
                found = shards.snapshot.search(encoded, k=40, **options)
            assert not found.exact.any()
            assert np.allclose(found.coverage, 1 - size)
            assert found.missing == [[1]] * len(texts)
            there = found.positions[found.positions >= 0]
            assert ((there < edges[1]) | (there >= edges[2])).all()
            assert len(there) == len(texts) * (edges[3] - edges[2] + edges[1])
            assert "partial answers" in caplog.text
        (hits,) = shards.search([texts[0]])
        assert (hits.exact, hits.coverage, hits.missing) == (False, pytest.approx(1 - size), [1])
        assert f"{hits.coverage:.0%} of the documents were searched" in str(hits)
        shards.fleet.require_all = True
        with pytest.raises(ShardError, match=r"Shards 1 did not answer within 1 s; try again later"):
            shards.search(texts[0])
        os.kill(replicas_of(shards, 1)[0], signal.SIGKILL)
        shards.fleet.timeout = SECONDS
        check_equal(shards.snapshot.search(encoded), one.snapshot.search(encoded))  # it restarts within the timeout


@pytest.mark.cluster
def test_a_question_that_kills_a_shard_fails_and_the_shard_comes_back(served, runs, collection):
    wait_until(lambda: all_live(served))
    fleet, texts = served.fleet, texts_of(collection)
    with pytest.raises(ShardError, match="Shard 1 died 2 times during this search"):
        fleet.ask("gather", served.snapshot.engine.state, {1: (Poison(), [])}, 1)
    expected = alone(runs["plain"]).search(texts[0])
    hits = served.search(texts[0])
    assert [hit.doc_id for hit in hits] == [hit.doc_id for hit in expected]
    assert hits.coverage == 1


@pytest.mark.parametrize(
    "gone", ["lexical", "lexical/vocab.index.json", "lexical/terms.safetensors", "docids/tokens.safetensors"]
)
def test_a_shard_does_not_load_a_state_without_a_part_that_an_update_removed(runs, tmp_path, gone):
    folder = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    manifest = read_record(folder / "manifest.json")
    path = folder / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(FileNotFoundError, match=Path(gone).name):
        ShardIndex(folder, manifest, 0, 2)


def test_updates_are_seen_in_all_shards_or_in_none(cluster, runs, tmp_path, collection):
    folder = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    texts, new = texts_of(collection)[:6], {"doc_id": "new", "title": "Neretva", "text": "A river in Bosnia."}
    states = [alone(folder).run(named(texts), 5)]
    with serve_shards(folder, cluster=cluster, shards=2, replicas=2, timeout=SECONDS, device="cpu") as shards:
        seen, stop = [], threading.Event()

        def search() -> None:
            while not stop.is_set():
                hits = shards.search(texts, k=5)
                assert all(own.coverage == 1 for own in hits)
                seen.append([{hit.doc_id: hit.score for hit in own} for own in hits])

        searching = threading.Thread(target=search)
        searching.start()
        try:
            removed = shards.snapshot.documents.column("doc_id")[3]
            for change in (lambda: shards.add([new]), lambda: shards.remove([removed])):
                change()
                before = len(seen)
                states.append(alone(folder).run(named(texts), 5))
                wait_until(lambda before=before: len(seen) > before + 1)  # one search began after the change
        finally:
            stop.set()
            searching.join()
        known = [list(state.values()) for state in states]
        for answer in seen:
            assert any(answer == [pytest.approx(own, abs=1e-4) for own in state] for state in known)
        assert shards.search("Neretva river Bosnia", k=1)[0].doc_id == "new"
        wait_until(lambda: {own.generation for own in shards.fleet.status()} == {3})
        if cluster.address != "local":
            os.kill(replicas_of(shards, 0)[0], signal.SIGKILL)
            wait_until(lambda: all_live(shards) and shards.fleet.status()[0].restarts == 1)
            assert {own.generation for own in shards.fleet.status()} == {3}  # it comes back with the current one
        other = alone(folder)
        other.add([{**new, "doc_id": "other"}])
        other.save(folder)
        shards.refresh()
        assert {"new", "other"} <= {hit.doc_id for hit in shards.search("Neretva river Bosnia", k=3)}


@pytest.mark.parametrize("cluster", NIGHTLY_ON_RAY, indirect=True)
def test_files_of_another_generation_are_refused(cluster, runs, tmp_path):
    folder = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    index = alone(folder)
    index.remove([index.snapshot.documents.column("doc_id")[0]])
    index.save(folder)
    fleet = Fleet(cluster.backend, str(folder), 2, 1, 1.0, require_all=False)
    message = r"its worker holds generation 2 \(\w+\), the router needs another; all machines must see one folder"
    with fleet, pytest.raises(ShardError, match=message):
        fleet.load("another")


@pytest.mark.cluster
def test_status_has_each_replica(served, ray):
    wait_until(lambda: all_live(served))
    served.search("noble gases")
    wait_until(lambda: not any(own.queue for own in served.fleet.status()))  # a replica that was asked in vain
    status = [own for own in ray.status() if own in served.fleet.status()]
    assert [(own.shard, own.replica) for own in served.fleet.status()] == [(s, r) for s in range(2) for r in range(2)]
    assert all(own.generation == 1 and own.queue == 0 and own.process for own in status)
    assert all(0 < own.p50 <= own.p95 <= own.p99 for own in status)


def test_work_is_done_in_order_and_its_errors_are_raised(cluster):
    assert cluster.backend.map(square, ((n,) for n in range(20))) == [n * n for n in range(20)]
    with pytest.raises(ValueError, match="no 4"):
        cluster.backend.map(refuse, [(4,)])


@pytest.mark.cluster
def test_work_is_done_again_when_its_process_dies(ray, tmp_path):
    assert ray.backend.map(die_once, [(str(tmp_path), n) for n in range(7)]) == list(range(7))
    with pytest.raises(LostError, match=r"block 7 was given up: its process died 3 times"):
        ray.backend.map(die, [()], names=["block 7"])
    assert ray.backend.map(square, [(3,), (4,)]) == [9, 16]


@pytest.mark.cluster
def test_work_of_a_local_process_that_dies_is_an_error():
    with Cluster("local", processes=2) as local:
        with pytest.raises(LostError, match=r"A process died \(.*\); run again: finished work is kept"):
            local.backend.map(die, [(), ()])
        assert local.backend.map(square, [(3,), (4,)]) == [9, 16]
    assert not [child for child in psutil.Process().children() if "popen_loky" in " ".join(child.cmdline())]


@pytest.mark.cluster
def test_a_machine_with_other_versions_is_refused(ray, runs, monkeypatch):
    monkeypatch.setattr("dsi.cluster.backends.versions", lambda: "Python 2")
    with pytest.raises(ValueError, match=r"has Python 3.* this one has Python 2; install the same"):
        serve_shards(runs["plain"], cluster=ray, shards=2, device="cpu")


def test_bad_input_is_refused_in_one_line(runs, tmp_path):
    def serve(run=runs["plain"], **options):
        return serve_shards(run, cluster=Cluster(), **{"shards": 2, "device": "cpu", **options})

    for options, message in (
        ({"shards": 6}, "shards must be from 1 to 5, the number of children of the root of this index, got 6"),
        ({"shards": 0}, "shards must be at least 1, got 0"),
        ({"replicas": 0}, "replicas must be at least 1, got 0"),
        ({"timeout": math.inf}, "timeout must be a number of seconds above 0, got inf"),
    ):
        with pytest.raises(ValueError, match=message):
            serve(**options)
    with pytest.raises(FileNotFoundError, match="nothing does not exist"):
        serve(tmp_path / "nothing")
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        Cluster("local", processes=0)


def test_a_cluster_is_found_by_its_entry_point():
    assert isinstance(open_cluster("local"), Cluster)
    assert {point.name for point in extensions(CLUSTERS)} >= {"local", "ray"}


@pytest.mark.parametrize("cluster", NIGHTLY_ON_RAY, indirect=True)
def test_shards_remember_what_the_index_learns(cluster, runs, tmp_path, collection):
    folder = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    ids, texts = collection.documents["doc_id"][:], texts_of(collection)[:6]
    pairs = [(f"{text} again", ids[7 * number + step]) for number, text in enumerate(texts) for step in range(3)]
    with serve_shards(folder, cluster=cluster, shards=3, timeout=SECONDS, device="cpu") as shards:
        assert shards.learn(pairs) == len(pairs)
        assert {own.generation for own in shards.fleet.status()} == {2}
        one = alone(folder)
        assert len(one.snapshot.memory) == len(pairs)
        encoded = one.encode_queries(texts)
        for options in ({}, {"method": "exact"}, {"candidates": 1, "beam_width": 1}, {"deny": [pairs[0][1]]}):
            found, expected = (own.snapshot.search(encoded, 5, memory_weight=3.0, **options) for own in (shards, one))
            check_equal(found, expected)
        assert (one.snapshot.follow(texts[:1], [[pairs[0][1]]], memory_weight=3.0).parts["memory"] > 0).all()
        assert shards.forget(pairs[:2]) == 2
        assert len(alone(folder).snapshot.memory) == len(pairs) - 2
