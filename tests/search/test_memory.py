"""What an index learns from use: scores by definition, order, limit, updates, files, privacy, bad input."""

import itertools
import json
import logging
import os
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from random import Random

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.docids.files.checks import same
from dsi.docids.query_memory import MemoryConfig, QueryMemory, Spread
from dsi.store.folder.writing import index_lock
from dsi.store.retriever import Retriever, load
from tests.support import oracles
from tests.support.kills import fork, status_of
from tests.support.parts import from_parts
from tests.support.small import random_generator
from tests.support.small_index import DOCUMENTS, small_index

PAIRS = [
    ("which planet has rings", DOCUMENTS[3]["doc_id"]),
    ("longest river of the continent", DOCUMENTS[7]["doc_id"]),
    ("which planet has rings", DOCUMENTS[9]["doc_id"]),
    ("a metal that is light", DOCUMENTS[3]["doc_id"]),
]
FLAT = Spread(0.0, 1.0)


@pytest.fixture
def retriever(encoder) -> Retriever:
    index = small_index(encoder, vectors=True)
    index.search_config = dsi.SearchConfig(lexical_weight=0.1, memory_weight=2.0, candidates=3, beam_width=2)
    return index


def vectors_of(count: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, 16)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def remembered(memory: QueryMemory) -> set[tuple[int, int, int]]:
    columns = [(own.keys.tolist(), own.rows.tolist(), own.counts.tolist()) for own in memory.blocks]
    return {pair for own in columns for pair in zip(*own, strict=True)}


@pytest.mark.parametrize("spread", [FLAT, Spread(0.3, 2.0)])
@pytest.mark.parametrize("count", [7, 400])
def test_shares_are_those_of_the_definition(count, spread):
    chance, vectors = np.random.default_rng(count), vectors_of(count)
    drawn = np.stack([chance.integers(count, size=2 * count), chance.integers(9, size=2 * count)])
    memory = QueryMemory().learn([str(number) for number in drawn[0]], drawn[1], vectors[drawn[0]])
    (numbers, rows), counts = np.unique(drawn, axis=1, return_counts=True)
    assert len(memory) == len(counts)
    for query, own in zip(queries := vectors_of(20, 1), memory.shares(queries, spread), strict=True):
        cosines = vectors[numbers] @ query
        expected = oracles.memory_shares(cosines, rows, counts, spread.cosine)
        assert set(expected) <= set(own.rows.tolist())
        shares = dict(zip(own.rows.tolist(), own.shares.tolist(), strict=True))
        assert shares == pytest.approx({row: expected.get(row, (0.0, 0.0))[0] for row in shares}, abs=2e-5)
        belongs = [min(1, 50 * expected.get(row, (0.0, 0.0))[1]) for row in shares]
        np.testing.assert_allclose(own.belongs, belongs, atol=1e-3)
        assert own.cosine == pytest.approx(cosines.max(), abs=1e-5)
        taken, total = memory.taken.rows, memory.taken.totals
        assert taken.tolist() == sorted(set(rows.tolist()))
        for at, row in enumerate(taken):
            times = np.log2(1 + counts[rows == row])
            assert total[at] == pytest.approx(times.sum(), rel=1e-5)
            assert own.means[at] == pytest.approx((times @ cosines[rows == row]) / times.sum(), abs=1e-5)


def test_the_score_is_that_of_shares_words_and_vectors_of_earlier_queries(retriever):
    retriever.learn([*PAIRS, PAIRS[0]])
    encoded = retriever.encode_queries(["which planet has rings, and what is a metal"])
    everybody = list(retriever.snapshot.documents.rows)
    parts = {name: own[0] for name, own in retriever.snapshot.follow(encoded, [everybody]).parts.items()}
    vectors = retriever.encode_queries([query for query, _ in PAIRS]).embeddings
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rows, counts = retriever.snapshot.documents.rows_of([doc_id for _, doc_id in PAIRS], "test"), np.array([2, 1, 1, 1])
    dense = dict(enumerate(parts["dense"].tolist()))
    places = np.stack([retriever.snapshot.tree.embeddings[place] for place in range(50)])
    terms, times = retriever.snapshot.lexical.analyzer.terms, [2, 1, 1, 1]
    texts = [terms(f"{own['title']} {own['text']}") for own in DOCUMENTS[:50]]
    words = dict.fromkeys(range(50), 0.0)
    for row in set(rows):
        earlier = [(terms(PAIRS[at][0]), times[at]) for at in range(4) if rows[at] == row]
        words[row] = oracles.learned_words(terms(encoded.texts[0]), texts[row], earlier, texts, 1.2, 0.5)
    assert sum(words.values()) > 0.1
    known = encoded.embeddings[0], vectors, np.array(rows), counts, dense, places
    expected = oracles.memory_scores(*known, words)
    _, margin, length, _ = oracles.memory_margin(*known)
    moved = np.zeros(50)
    for row in set(rows):
        own = np.array(rows) == row
        score = oracles.moved_score(dense[row], known[0], vectors[own], counts[own], margin, length, 2.0)
        moved[row] = score - dense[row]
    assert abs(moved).max() > 0.01
    added = np.array([2 * expected.get(row, 0.0) for row in range(50)])
    np.testing.assert_allclose(parts["memory"], added + moved, atol=1e-5)
    assert max(expected.values()) > 0


def test_a_shift_of_all_cosines_changes_no_share():
    """Vectors with a common part, as of encoders whose cosines are all high."""
    vectors, queries, rows = vectors_of(300), vectors_of(10, 1), np.arange(300) % 7

    def shifted(own: np.ndarray) -> np.ndarray:  # cosines c become .8 + .2 c
        return np.hstack([np.sqrt(0.2) * own, np.full((len(own), 1), np.sqrt(0.8), np.float32)])

    plain = QueryMemory().learn(list(map(str, rows)), rows, vectors).shares(queries, FLAT)
    moved = QueryMemory().learn(list(map(str, rows)), rows, shifted(vectors)).shares(shifted(queries), Spread(0.8, 1.0))
    for own, other in zip(plain, moved, strict=True):
        assert own.rows.tolist() == other.rows.tolist()
        np.testing.assert_allclose(own.shares, other.shares, atol=1e-5)


@pytest.mark.parametrize("limit", [10**6, 20])
def test_a_thousand_pairs_one_by_one_in_two_orders_are_those_of_all_at_once(limit, caplog):
    random, vectors = Random(0), vectors_of(700)
    drawn = [(random.randrange(700), random.choice([0, 0, 0, 1, 2, 3, *range(40)]), time) for time in range(1000)]
    empty = QueryMemory(MemoryConfig(limit=limit), key=b"key")

    def learned(pairs, step) -> QueryMemory:
        memory = empty
        for own in (pairs[start : start + step] for start in range(0, len(pairs), step)):
            numbers, rows, times = (np.array(column) for column in zip(*own, strict=True))
            noise = 1 + 1e-7 * np.random.default_rng(int(numbers[0])).normal(size=(len(numbers), 16))
            noisy = vectors[numbers] * noise.astype(np.float32)
            memory = memory.learn([f"q{number}" for number in numbers], rows, noisy, times)
        return memory

    whole = learned(drawn, 1000)
    for pairs in (drawn, random.sample(drawn, 1000) if limit > 20 else drawn):  # of what is left out times are not kept
        memory = learned(pairs, 1)
        assert remembered(memory) == remembered(whole)
        both = (own.shares(vectors_of(50, 1), FLAT) for own in (memory, whole))
        for found, expected in zip(*both, strict=True):
            assert found.rows.tolist() == expected.rows.tolist()
            np.testing.assert_allclose(found.shares, expected.shares, atol=1e-5)
    most = np.bincount(np.concatenate([block.rows for block in whole.blocks])).max()
    assert most == limit if limit == 20 else most > 50
    assert ("are left out: at most 20 of a document" in caplog.text) == (limit == 20)


def test_an_index_answers_alike_in_whatever_order_it_learned(retriever, monkeypatch):
    monkeypatch.setattr("dsi.docids.query_memory.time.time_ns", lambda: 10**18)  # all at the same time
    random, ids = Random(1), [document["doc_id"] for document in DOCUMENTS[:50]]
    pairs = [(f"{random.choice(DOCUMENTS)['title']} {number % 5}", random.choice(ids[:6])) for number in range(60)]
    queries = [f"{document['title']} 3" for document in DOCUMENTS[:20]]
    answers = []
    for limit in (1_000, 4):
        for step, own in ((60, pairs), (1, pairs), (1, random.sample(pairs, 60))):
            index = Retriever(retriever.snapshot.with_memory(QueryMemory(MemoryConfig(limit=limit), key=b"key")))
            for start in range(0, 60, step):
                assert index.learn(own[start : start + step]) == step
            found = [{hit.doc_id: hit.score for hit in hits} for hits in index.search(queries, 5, method="exact")]
            answers.append((remembered(index.snapshot.memory), found))
    for first, *others in (answers[:3], answers[3:]):
        for pairs_of, found in others:
            assert pairs_of == first[0]
            assert found == [pytest.approx(own, abs=1e-5) for own in first[1]]
    assert len(answers[0][0]) > len(answers[3][0]) == 24


def test_one_document_that_is_pushed_by_clicks_stays_out_of_other_queries(retriever):
    pushed, queries = DOCUMENTS[5]["doc_id"], [document["title"] for document in DOCUMENTS[:50]]
    own = [(document["title"], document["doc_id"]) for document in DOCUMENTS[:50]]
    retriever.learn(own)

    def answers() -> list[list[str]]:
        return [[hit.doc_id for hit in hits] for hits in retriever.search(queries, 3)]

    honest = answers()
    retriever.learn([("buy this at once", pushed)] * 10_000)
    assert len(retriever.snapshot.memory) == 51
    after = answers()
    pairs = [pair for own, before in zip(after, honest, strict=True) for pair in zip(own, before, strict=True)]
    assert sum(own != before for own, before in pairs) <= 2  # of 150: 10,000 clicks count as three
    assert max(count for _, _, count in remembered(retriever.snapshot.memory)) == 3
    copies = [(f"{title} {number}", pushed) for number in range(60) for title, _ in own]
    memory = retriever.snapshot.memory
    few = QueryMemory(MemoryConfig(limit=20), memory.key, memory.blocks)
    limited = Retriever(retriever.snapshot.with_memory(few))
    limited.learn(copies)
    assert np.bincount(np.concatenate([block.rows for block in limited.snapshot.memory.blocks])).max() == 20
    assert limited.forget([("", pushed)]) == 20
    assert answers() == after


def test_searches_while_others_teach_see_all_of_a_lesson_or_nothing(retriever):
    query, lesson = "which planet has rings", [(PAIRS[0][0], DOCUMENTS[number]["doc_id"]) for number in range(4)]
    without = retriever.search(query, 50, method="exact")
    other = copy(retriever)
    other.learn(lesson)
    possible = [{hit.doc_id: hit.score for hit in own} for own in (without, other.search(query, 50, method="exact"))]
    stop, failed = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            found = {hit.doc_id: hit.score for hit in retriever.search(query, 50, method="exact")}
            failed.extend([found] if found not in [pytest.approx(own, abs=1e-5) for own in possible] else [])

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(20):
        retriever.learn(lesson)
        assert retriever.forget(lesson) == 4
    stop.set()
    for reader in readers:
        reader.join()
    assert not failed


def test_threads_that_teach_at_once_lose_nothing(retriever):
    def teach(number: int) -> None:
        for step in range(10):
            retriever.learn([(f"thread {number} step {step}", DOCUMENTS[number]["doc_id"]), PAIRS[0]])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(teach, range(4)))
    assert len(retriever.snapshot.memory) == 41
    assert max(count for _, _, count in remembered(retriever.snapshot.memory)) == 3


def test_an_index_that_has_learned_nothing_pays_nothing(retriever, monkeypatch):
    def shares(*_):
        raise AssertionError("searched the memory")

    monkeypatch.setattr(QueryMemory, "shares", shares)
    plain, weighted = (retriever.search("noble gas", memory_weight=weight) for weight in (0.0, 10.0))
    assert plain == weighted
    assert not len(retriever.snapshot.memory.blocks)


def test_an_older_copy_that_took_the_place_of_the_index_is_written_as_a_whole(retriever, tmp_path):
    retriever.save(tmp_path / "copy")
    retriever.save(tmp_path / "run")
    retriever.add(DOCUMENTS[50:51])
    assert retriever.save(tmp_path / "run") == 2
    shutil.rmtree(tmp_path / "run")
    shutil.copytree(tmp_path / "copy", tmp_path / "run")
    retriever.learn([("the newest one", DOCUMENTS[50]["doc_id"])])
    retriever.save(tmp_path / "run")
    again = load(tmp_path / "run", device="cpu")
    assert (len(again.snapshot.documents), len(again.snapshot.memory)) == (51, 1)


def test_blocks_hold_the_pairs_and_are_linked_where_they_stay(tmp_path):
    vectors = vectors_of(6000)
    memory = QueryMemory(key=b"k").learn([str(n) for n in range(6000)], np.arange(6000) % 500, vectors)
    assert len(memory.blocks) == 4
    memory.save(tmp_path / "a")
    again = QueryMemory.load(tmp_path / "a")
    assert remembered(again) == remembered(memory)
    assert again.is_sound(16, 500)
    assert not again.is_sound(16, 499)
    assert not again.is_sound(17, 500)
    more = again.learn(["new"], np.array([3]), vectors_of(1, 5))
    more.save(tmp_path / "b", tmp_path / "a")
    shared = {path.name for path in (tmp_path / "b").iterdir() if path.stat().st_nlink > 1}
    assert len(shared) == 3
    assert remembered(QueryMemory.load(tmp_path / "b")) == remembered(more)
    assert remembered(more.forget(["new"], np.array([3]))) == remembered(memory)
    few = more.forget(["", ""], np.array([3, 4]))
    assert len(few) == 6000 - 24
    assert remembered(more.without(["any"], 3 * vectors_of(1, 5))) == remembered(memory)
    assert remembered(more.without(["New"], -vectors_of(1, 5))) == remembered(memory)
    assert len(memory.without(["?"] * 9, vectors[:9])) == len(memory) - 9
    moved = few.moved(np.concatenate([np.full(100, -1), np.arange(400)]))
    assert len(moved) == 4800
    assert len(moved.moved(np.full(400, -1)).blocks) == 0


def test_all_methods_rank_by_what_was_learned(retriever):
    query = "which planet has rings"
    before = {hit.doc_id: hit.score for hit in retriever.search(query, k=50, method="exact")}
    assert retriever.learn(PAIRS) == 4
    exact = retriever.search(query, k=50, method="exact")
    followed = retriever.snapshot.follow([query], [[hit.doc_id for hit in exact]])
    parts = dict(zip([hit.doc_id for hit in exact], followed.parts["memory"][0].tolist(), strict=True))
    assert {doc_id for doc_id, part in parts.items() if part} == {PAIRS[0][1], PAIRS[1][1], PAIRS[2][1]}
    for hit in exact:
        assert hit.score == pytest.approx(before[hit.doc_id] + parts[hit.doc_id], abs=1e-5)
    for deny in ([], [PAIRS[0][1]]):  # beam and candidates are too few for them without the memory
        found, exact = (
            retriever.search(query, 3, memory_weight=1000.0, deny=deny, method=method)
            for method in ("generate", "exact")
        )
        assert found[0].doc_id == exact[0].doc_id in {PAIRS[0][1], PAIRS[2][1]} - {*deny}
    assert {hit.doc_id: hit.score for hit in retriever.search(query, k=50, method="exact", memory_weight=0.0)} == before
    assert "memory" in str(retriever.explain(query))


def test_certificates_hold_with_the_memory(retriever):
    random = Random(0)
    ids = [document["doc_id"] for document in DOCUMENTS[:50]]
    retriever.learn([(document["title"], random.choice(ids)) for document in DOCUMENTS[:50]])
    proven = 0
    for document, width in itertools.product(DOCUMENTS[:25], (1, 4, 40)):
        query = f"{document['title']} and more"
        found = retriever.search(query, k=3, beam_width=width)
        exact = retriever.search(query, k=3, method="exact")
        proven += found.exact
        if found.exact:
            assert [hit.score for hit in found] == pytest.approx([hit.score for hit in exact], abs=1e-5)
    assert proven


def test_explanations_name_earlier_queries_by_hash_or_by_text(encoder):
    for keep, name in ((False, r"#[0-9a-f]{16}, 2 times"), (True, "which planet has rings, 2 times")):
        index = small_index(encoder, vectors=True)
        index = Retriever(index.snapshot.with_memory(QueryMemory(MemoryConfig(keep_queries=keep))))
        index.search_config = dsi.SearchConfig(memory_weight=2.0)
        index.learn([PAIRS[0], PAIRS[0], PAIRS[1]])
        explained = index.search("which planet has rings?").explain(PAIRS[0][1])
        assert explained.parts["memory"] > 0
        assert re.search(f"chosen for the earlier query {name} \\(cosine", str(explained))
        assert not index.search("which planet has rings", memory_weight=0.0).explain(PAIRS[0][1]).earlier


def test_memory_goes_and_stays_with_its_documents(retriever, tmp_path):
    retriever.learn(PAIRS)
    retriever.save(tmp_path / "run")
    retriever.remove([PAIRS[1][1], DOCUMENTS[0]["doc_id"]])
    assert len(retriever.snapshot.memory) == 3
    kept = {pair.doc_id: pair for pair in map(retriever.get, [PAIRS[0][1], PAIRS[2][1]])}
    retriever.add([{"doc_id": PAIRS[0][1], "title": "Saturn", "text": "Rings."}, DOCUMENTS[51]], replace=True)
    assert len(retriever.snapshot.memory) == 3  # one that is replaced keeps what was learned
    rows = {row for block in retriever.snapshot.memory.blocks for row in block.rows.tolist()}
    assert rows == set(retriever.snapshot.documents.find(kept).values())
    assert retriever.save(tmp_path / "run") == 3
    again = load(tmp_path / "run", device="cpu")
    assert remembered(again.snapshot.memory) == remembered(retriever.snapshot.memory)
    assert again.forget([(PAIRS[0][0], PAIRS[0][1]), ("", PAIRS[2][1])]) == 2
    assert again.save(tmp_path / "run") == 4
    files = sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_dir())
    assert {"docids-3", "memory-4"} <= set(files)  # learning writes no documents
    assert len(load(tmp_path / "run", device="cpu").snapshot.memory) == 1


@pytest.mark.parametrize("words", [True, False])
def test_what_is_pushed_has_neither_texts_nor_the_key_and_words_if_wanted(words, encoder, tmp_path):
    index = small_index(encoder, vectors=True)
    index = Retriever(index.snapshot.with_memory(QueryMemory(MemoryConfig(keep_queries=True))))
    index.learn(PAIRS)
    index.save(tmp_path / "own")
    Retriever(index.snapshot.with_memory(index.snapshot.memory.published(words=words))).save(tmp_path / "pushed")
    for name, has in (("own", True), ("pushed", False)):
        content = b"".join(path.read_bytes() for path in (tmp_path / name / "memory").iterdir())
        assert (b"planet has rings" in content) == has
        assert (index.snapshot.memory.key.hex().encode() in content) == has
    pushed = load(tmp_path / "pushed", device="cpu")
    query = "which planet has rings"
    for weight in (0.0, 0.5):
        options = {"memory_weight": 2.0, "lexical_weight": weight}
        scores = [[hit.score for hit in own.search(query, **options)] for own in (index, pushed)]
        assert (scores[0] == pytest.approx(scores[1], abs=1e-5)) == (words or not weight)
    assert pushed.learn(PAIRS[:1]) == 1  # with a key of its own


def test_queries_that_differ_in_spaces_are_one():
    assert same(" a\u0308  b\n") == "ä b"
    assert len(QueryMemory().learn(["a b", " a  b"], np.array([1, 1]), vectors_of(2))) == 1


@pytest.mark.parametrize(
    ("pairs", "kind", "message"),
    [
        ([("rings", "nowhere")], ValueError, r"No pair can be used. learn: pairs of documents .* \('nowhere'\)"),
        ([("  ", DOCUMENTS[0]["doc_id"])], ValueError, r"No pair can be used. learn: pairs without a query: 1"),
        ([("rings", 1.5)], ValueError, r"learn: pair 0: the doc_id must be a string, got 1.5"),
        (["rings"], TypeError, r"learn: pair 0 must be \(query, doc_id\), or a record with these keys, got 'rings'"),
        ("rings", ValueError, r"rings is not a table \(.jsonl, .jsonl.gz, .csv, .tsv, .parquet\); save it as one"),
        ([{"query": "rings"}], ValueError, r"learn: pair 0 must have one doc_id, a text, under one of the keys positive"),
    ],
)  # fmt: skip
def test_bad_pairs_are_one_clear_error(retriever, pairs, kind, message):
    with pytest.raises(kind, match=message) as error:
        retriever.learn(pairs)
    assert "\n" not in str(error.value)
    assert not len(retriever.snapshot.memory)


def test_odd_pairs_are_counted_and_the_others_are_learned(retriever, caplog):
    own = DOCUMENTS[0]["doc_id"]
    assert retriever.learn([("rings", "gone"), ("", own), ("rings", own), {"query": "moon", "doc_id": own}]) == 2
    assert "learn: pairs of documents that are not in the index: 1 ('gone'); they are left out." in caplog.text
    assert "learn: pairs without a query: 1" in caplog.text
    assert "not read" not in caplog.text
    assert retriever.learn([{"query": "tides", "doc_id": own, "time": "2020-01-01"}]) == 1
    assert "'time'" in caplog.text
    caplog.clear()
    assert retriever.learn([("word " * 10_000, own)]) == 1
    assert [record.message for record in caplog.records if "cut there" in record.message] != []
    caplog.clear()
    assert retriever.learn([(f"query number {number}", DOCUMENTS[2]["doc_id"]) for number in range(2_500)]) == 2_500
    (line,) = [record.message for record in caplog.records if "left out" in record.message]
    assert (
        line == "500 pairs are left out: at most 2000 of a document are remembered (memory.limit), those learned first."
    )
    other = DOCUMENTS[1]["doc_id"]
    assert retriever.forget([("never asked", own), ("rings", own), ("", other), ("rings", "gone")]) == 1
    unknown = f"forget: pairs that the index has not learned: 2 (('never asked', '{own}'), ('', '{other}')); they are left out."
    assert unknown in caplog.text
    assert "forget: pairs of documents that are not in the index: 1 ('gone'); they are left out." in caplog.text


def test_an_index_of_other_tokens_learns_nothing(encoder, retriever):
    decoder = random_generator(retriever.snapshot.tree)
    paths = from_parts(encoder, retriever.snapshot.tree, decoder, retriever.snapshot.documents.table)
    with pytest.raises(TypeError, match=r"learn\(\) needs an index without a generator"):
        paths.learn(PAIRS)


@pytest.mark.parametrize("header", ["", "query\tdoc_id\n"])
def test_the_command_learns_and_forgets_files(retriever, tmp_path, capsys, header):
    retriever.save(tmp_path / "run")
    path = tmp_path / "clicks.tsv"
    path.write_text(header + "".join(f"{query}\t{doc_id}\n" for query, doc_id in [*PAIRS, PAIRS[0]]))
    assert not main(["update", str(tmp_path / "run"), "--device", "cpu", "--learn", str(path)])
    printed = capsys.readouterr()
    assert (
        "0 added, 0 replaced, 50 documents now; 5 pairs learned, 0 forgotten, 4 remembered; generation 2" in printed.out
    )
    assert "not read" not in printed.err
    assert not main(["update", str(tmp_path / "run"), "--device", "cpu", "--forget", str(path)])
    assert "0 pairs learned, 4 forgotten, 0 remembered; generation 3" in capsys.readouterr().out


def test_altered_files_of_a_memory_are_refused(tmp_path):
    QueryMemory().learn(["a"], np.array([1]), vectors_of(1)).save(tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes().replace(b'"texts"', b'"tests"'))
    with pytest.raises(ValueError, match="'tests' is missing, unknown or of another type"):
        QueryMemory.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"key": 3, "settings": {}}))
    with pytest.raises(ValueError, match="must have key and settings"):
        QueryMemory.load(tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
def test_two_writers_and_a_killed_one_lose_nothing_and_learn_nothing_by_half(retriever, tmp_path):
    run = tmp_path / "run"
    retriever.save(run)

    def writer(number: int, count: int) -> None:
        logging.disable(logging.CRITICAL)
        for step in range(count):
            with index_lock(run):
                index = load(run, device="cpu")
                index.learn([(f"writer {number} step {step}", DOCUMENTS[n]["doc_id"]) for n in (number, number + 10)])
                index.save(run)

    writers = [fork(lambda number=number: writer(number, 5)) for number in (0, 1)]
    killed = fork(lambda: writer(2, 100))
    time.sleep(1.0)
    os.kill(killed, signal.SIGKILL)
    assert [status_of(child) for child in writers] == [0, 0]
    status_of(killed)
    memory = load(run, device="cpu").snapshot.memory
    rows = np.bincount(np.concatenate([block.rows for block in memory.blocks]), minlength=20)
    assert rows[[0, 1, 10, 11]].tolist() == [5, 5, 5, 5]
    assert rows[2] == rows[12]  # both pairs of a step, or none


def test_settings_and_an_empty_memory_stay(encoder, tmp_path):
    index = small_index(encoder, vectors=True)
    index = Retriever(index.snapshot.with_memory(QueryMemory(MemoryConfig(limit=3))))
    index.save(tmp_path / "run")
    again = load(tmp_path / "run", device="cpu")
    again.add(DOCUMENTS[50:51])
    assert again.snapshot.memory.config.limit == 3
    assert again.save(tmp_path / "run") == 3
    assert (tmp_path / "run" / "memory").exists()  # not written again
    again.learn([(f"query {number}", DOCUMENTS[0]["doc_id"]) for number in range(9)])
    assert len(again.snapshot.memory) == 3
