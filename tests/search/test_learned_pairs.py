"""Learned pairs: when they were learned, how often they count, how many of a document take part, how they go."""

import dataclasses
import logging
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.docids.query_memory import MemoryConfig, QueryMemory, Spread
from dsi.docids.query_pairs import Period
from dsi.store.retriever import Retriever, load
from tests.support.small_index import DOCUMENTS, small_index

IDS = [document["doc_id"] for document in DOCUMENTS[:50]]
HONEST = [(document["title"], document["doc_id"]) for document in DOCUMENTS[:40]]
JUNK = [(f"buy this at once {number}", IDS[45]) for number in range(300)]
START = datetime(2026, 11, 28, 14, 0, tzinfo=UTC)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands, and is set by calling it."""
    now = [START]

    def set_to(moment: datetime) -> None:
        now[0] = moment

    monkeypatch.setattr(
        "dsi.docids.query_memory.time.time_ns",
        lambda: 1000 * ((now[0] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)),
    )
    return set_to


@pytest.fixture
def retriever(encoder) -> Retriever:
    index = small_index(encoder, vectors=True)
    index.search_config = dsi.SearchConfig(lexical_weight=0.1, memory_weight=10.0, candidates=10, beam_width=5)
    return index


def state(index: Retriever) -> list[tuple]:
    return [dataclasses.astuple(pair) for pair in index.learned()]


def scores(index: Retriever) -> list[dict[str, float]]:
    queries = [title for title, _ in HONEST]
    return [{hit.doc_id: hit.score for hit in hits} for hits in index.search(queries, 5, method="exact")]


def test_a_pair_counts_three_times_at_most_and_keeps_when_that_was(retriever, clock):
    for minute in range(10):
        clock(START + timedelta(minutes=minute))
        retriever.learn([("Which planet has rings", IDS[3])] * (1 if minute < 9 else 1_000))
    (pair,) = retriever.learned()
    assert (pair.count, pair.time, pair.doc_id, pair.query) == (3, START, IDS[3], "")
    assert retriever.forget(before=START + timedelta(minutes=1)) == 1
    (pair,) = retriever.learned()
    assert (pair.count, pair.time) == (2, START + timedelta(minutes=1))


def test_what_was_learned_since_a_moment_is_taken_back_as_if_it_had_not_been(retriever, clock, tmp_path):
    retriever.learn(HONEST)
    before, answers = state(retriever), scores(retriever)
    attacked = START + timedelta(hours=1)
    clock(attacked)
    for _ in range(5):
        retriever.learn([*JUNK, *HONEST[:20]])
    retriever.save(tmp_path / "run")
    again = load(tmp_path / "run", device="cpu")
    assert state(again) == state(retriever) != before
    assert again.forget(since=attacked) == 320
    assert state(again) == before
    assert scores(again) == [pytest.approx(own, abs=1e-5) for own in answers]
    assert again.forget(since=attacked) == 0
    assert again.forget(before="2026-11-28T14:00:00.000001Z") == 40
    assert again.learned() == []


@pytest.mark.parametrize(
    "moment",
    [
        START, START.replace(tzinfo=None), "2026-11-28T14:00", "2026-11-28 14:00:00Z", "2026-11-28T16:00+02:00",
        START.astimezone(timezone(timedelta(hours=-5))), START.timestamp(), int(START.timestamp()),
    ],
    ids=str,
)  # fmt: skip
def test_moments_are_in_utc_unless_they_say_otherwise(retriever, clock, moment):
    clock(START - timedelta(microseconds=1))
    retriever.learn(HONEST[:2])
    clock(START)
    retriever.learn(HONEST[2:5])
    assert retriever.forget(since=moment) == 3
    assert retriever.forget(HONEST[:1], before=moment) == 1
    assert [pair.doc_id for pair in retriever.learned()] == [HONEST[1][1]]


@pytest.mark.parametrize(
    ("when", "kind", "message"),
    [
        ({}, ValueError, "Give forget.. pairs, since or before"),
        ({"since": "yesterday"}, ValueError, "since must be a moment in UTC, .* got 'yesterday'"),
        ({"before": float("nan")}, ValueError, "before must be a moment"),
        ({"before": 1e300}, ValueError, "before must be a moment"),
        ({"since": True}, TypeError, "since must be a moment"),
        ({"since": [1]}, TypeError, "since must be a moment"),
        ({"since": START, "before": START}, ValueError, "before must be later than since"),
        ({"since": "2026-01-02", "before": "2026-01-01"}, ValueError, "before must be later than since"),
    ],
)
def test_a_time_that_is_none_forgets_nothing(retriever, when, kind, message):
    retriever.learn(HONEST)
    with pytest.raises(kind, match=message) as error:
        retriever.forget(**when)
    assert "\n" not in str(error.value)
    assert len(retriever.snapshot.memory) == 40


def test_a_pair_is_forgotten_by_the_hash_that_is_listed(retriever):
    retriever.learn(HONEST[:3])
    first = retriever.learned()[0]
    assert retriever.forget([(first.hash, first.doc_id)]) == 1
    assert first not in retriever.learned()
    assert len(retriever.learned()) == 2


def test_queries_that_differ_in_case_spaces_or_composition_are_one_and_the_first_text_stays(encoder):
    index = small_index(encoder, vectors=True)
    index = Retriever(index.snapshot.with_memory(QueryMemory(MemoryConfig(keep_queries=True))))
    index.search_config = dsi.SearchConfig(memory_weight=1.0)
    index.learn([("Straße  nach\u00a0Ärzten", IDS[0])])
    index.learn([("STRASSE NACH A\u0308RZTEN", IDS[0]), (" straße nach ärzten ", IDS[0])])
    assert [(pair.query, pair.count) for pair in index.learned()] == [("Straße nach Ärzten", 3)]


def test_one_document_has_a_tenth_of_what_takes_part_and_displaces_nobody(retriever, clock, caplog):
    retriever.learn(HONEST)
    assert "take no part" not in caplog.text
    honest, answers = state(retriever), [hits[0].doc_id for hits in retriever.search([title for title, _ in HONEST], 1)]
    clock(START + timedelta(minutes=1))
    retriever.learn(JUNK)
    assert (
        "280 of 340 pairs take no part, as their documents have too many of all; those learned first do." in caplog.text
    )
    assert state(retriever)[:40] == honest
    assert [hits[0].doc_id for hits in retriever.search([title for title, _ in HONEST], 1)] == answers
    clock(START + timedelta(minutes=2))
    others = [(f"{title} {number}", doc_id) for title, doc_id in HONEST for number in range(20)]
    retriever.learn(others)
    memory = retriever.snapshot.memory
    assert memory.num_idle == 300 - 93  # of 840 others and 93, a tenth
    rows = np.concatenate([block.rows for block in memory.blocks])[memory._active]
    assert np.bincount(rows).max() / len(rows) <= 0.1


def test_documents_that_are_few_have_their_even_share_three_times():
    vectors = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
    for documents, idle in ((1, 0), (3, 0), (5, 0), (20, 0)):
        memory = QueryMemory().learn(list(map(str, range(500))), np.arange(500) % documents, vectors)
        assert memory.num_idle == idle


def test_the_pairs_that_take_part_are_those_of_the_definition():
    """In whatever order of calls: the shares of a memory without those that take no part are the same."""
    rng = np.random.default_rng(1)
    rows = np.where(rng.random(600) < 0.4, 7, rng.integers(60, size=600))
    vectors, times = rng.normal(size=(600, 16)).astype(np.float32), rng.permutation(600)
    names = [f"q{number}" for number in range(600)]
    whole = QueryMemory(key=b"k").learn(names, rows, vectors, times)
    parts = QueryMemory(key=b"k")
    for number in rng.permutation(600):
        parts = parts.learn([names[number]], rows[[number]], vectors[[number]], times[[number]])
    most = max(np.bincount(rows))
    while (fewer := max(20, int(0.1 * np.minimum(np.bincount(rows), most).sum()))) < most:
        most = fewer
    first = np.array([np.sum((rows == row) & (times < time)) < most for row, time in zip(rows, times, strict=True)])
    active = QueryMemory(key=b"k").learn(
        [n for n, own in zip(names, first, strict=True) if own], rows[first], vectors[first], times[first]
    )
    assert 0 < (~first).sum() == whole.num_idle == parts.num_idle
    assert active.num_idle == 0
    queries, spread = rng.normal(size=(20, 16)).astype(np.float32), Spread(0.1, 1.0)
    for own in (whole, parts):
        for one, other in zip(own.shares(queries, spread), active.shares(queries, spread), strict=True):
            assert one.rows.tolist() == other.rows.tolist()
            np.testing.assert_allclose(one.shares, other.shares, atol=1e-5)
    assert [len(block) for block in whole.published(words=False).blocks] == [len(active)]


def test_a_limit_keeps_those_that_were_learned_first(retriever, clock, caplog):
    index = Retriever(retriever.snapshot.with_memory(QueryMemory(MemoryConfig(limit=5))))
    index.learn([(f"honest {number}", IDS[0]) for number in range(5)])
    honest = state(index)
    clock(START + timedelta(hours=1))
    index.learn([(f"junk {number}", IDS[0]) for number in range(300)])
    assert state(index) == honest
    assert "300 pairs are left out: at most 5 of a document" in caplog.text


def test_what_is_pushed_has_no_times(retriever):
    retriever.learn([*HONEST, HONEST[0], HONEST[0]])
    pushed = Retriever(retriever.snapshot.with_memory(retriever.snapshot.memory.published(words=False)))
    assert {pair.time for pair in pushed.learned()} == {datetime(1970, 1, 1, tzinfo=UTC)}
    assert sorted(pair.count for pair in pushed.learned()) == sorted(pair.count for pair in retriever.learned())
    assert pushed.snapshot.memory.is_sound(pushed.snapshot.tree.embeddings.shape[1], 50)


@pytest.mark.parametrize(
    "times",
    [
        [[5, 2**63 - 1, 2**63 - 1], [2**63 - 1] * 3],
        [[5, 4, 2**63 - 1], [1, 2, 3]],
        [[-1, 2, 3], [1, 2, 3]],
        [[1, 2, 3], [1, 2, 2**62]],
        [[1, 2], [1, 2]],
    ],
)  # fmt: skip
def test_times_of_a_stranger_are_judged(times):
    memory = QueryMemory().learn(["a", "b"], np.array([0, 1]), np.eye(2, dtype=np.float32))
    (block,) = memory.blocks
    altered = dataclasses.replace(memory, blocks=(dataclasses.replace(block, times=np.array(times, dtype=np.int64)),))
    assert memory.is_sound(2, 2)
    assert not altered.is_sound(2, 2)


def test_periods_of_some_pairs_take_nothing_of_others():
    memory = QueryMemory(key=b"k")
    for time in (10, 20, 30):
        memory = memory.learn(["a", "b"], np.array([0, 1]), np.eye(2, dtype=np.float32), np.array([time, time]))
    fewer = memory.forget(["a"], np.array([0]), Period(15, 25))
    assert sorted(fewer.blocks[0].counts.tolist()) == [2, 3]
    assert memory.fewer(fewer) == 1
    assert memory.forget(["a"], np.array([1]), Period(15, 25)) is memory
    assert memory.forget(None, np.array([]), Period(40)) is memory
    assert len(memory.forget([""], np.array([1]))) == 1


def test_the_shell_lists_pairs_and_takes_them_back_by_time(retriever, clock, tmp_path, capsys):
    run, path = str(tmp_path / "run"), tmp_path / "clicks.tsv"
    retriever.learn(HONEST[:3])
    retriever.save(run)
    clock(START + timedelta(days=1))
    path.write_text("".join(f"{query}\t{doc_id}\n" for query, doc_id in JUNK[:4]))
    assert main(["update", run, "--device", "cpu", "--learn", str(path)]) == 0
    capsys.readouterr()
    assert main(["info", run, "--learned"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    first = {(own, "1", "2026-11-28T14:00:00Z", "") for _, own in HONEST[:3]}
    assert {tuple(line[1:]) for line in lines[:3]} == first
    assert {line[3] for line in lines[3:]} == {"2026-11-29T14:00:00Z"}
    assert all(len(line[0]) == 17 and line[4] == "" for line in lines)
    (tmp_path / "more.tsv").write_text(f"another\t{HONEST[0][1]}\n")
    learning = ["--learn", str(tmp_path / "more.tsv"), "--since", "2026-11-29"]
    assert main(["update", run, "--device", "cpu", *learning]) == 2
    assert "--since and --before limit what is forgotten, not what --learn learns" in capsys.readouterr().err
    assert main(["update", run, "--device", "cpu", "--since", "2026-11-29"]) == 0
    assert "0 pairs learned, 4 forgotten, 3 remembered" in capsys.readouterr().out
    path.write_text("".join(f"{query}\t{doc_id}\n" for query, doc_id in HONEST[:1]))
    assert main(["update", run, "--device", "cpu", "--forget", str(path), "--before", "2026-11-29"]) == 0
    assert "1 forgotten, 2 remembered" in capsys.readouterr().out


def test_learning_without_a_weight_says_that_it_has_no_effect(retriever, caplog, tmp_path):
    caplog.set_level(logging.WARNING)
    retriever.learn(HONEST[:1])
    assert "without effect" not in caplog.text
    assert "without effect" not in str(retriever.explain("neon"))
    retriever.search_config = dataclasses.replace(retriever.search_config, memory_weight=0.0)
    retriever.learn(HONEST[1:2])
    line = "The index has learned 2 pairs without effect: memory_weight is 0."
    assert line in caplog.text
    for shown in (
        retriever.explain("neon"),
        retriever.explain("neon").answer,
        retriever.search("neon").explain(IDS[0]),
    ):
        assert line in str(shown)
    assert line not in str(retriever.explain("neon", memory_weight=1.0))
    caplog.clear()
    retriever.save(tmp_path / "run")
    (tmp_path / "clicks.tsv").write_text("\t".join(HONEST[2]) + "\n")
    assert main(["update", str(tmp_path / "run"), "--device", "cpu", "--learn", str(tmp_path / "clicks.tsv")]) == 0
    assert "The index has learned 3 pairs without effect" in caplog.text
