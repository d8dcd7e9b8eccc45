"""An index updated while it is searched and on disk: exact answers, killed at every write, eight threads at once."""

import json
import math
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dsi
from dsi import Hits, Retriever, SearchConfig
from dsi.commands.main import main
from dsi.docids.updating import add_documents, remove_documents
from dsi.docids.words.bm25 import BM25
from dsi.measuring.tuning import configure
from dsi.search.request import SearchRequest
from dsi.store import updating
from dsi.store.retriever import load
from tests.support.files import needs_readers
from tests.support.kills import fork, status_of
from tests.support.small import (
    WIDTH,
    as_batch,
    beam_search_for,
    random_generator,
    random_queries,
    random_tree,
)
from tests.support.small_index import DOCUMENTS, QUERIES, small_index


@pytest.fixture(params=["digits", "vectors"])
def retriever(request, encoder):
    return small_index(encoder, vectors=request.param == "vectors")


def alike(found: list[Hits], expected: list[Hits]) -> bool:
    """True for the same documents in the same order, with scores that differ by rounding at most."""
    ids, scores = (
        [[getattr(hit, name) for hits in each for hit in hits] for each in (found, expected)]
        for name in ("doc_id", "score")
    )
    return ids[0] == ids[1] and bool(np.allclose(*scores, rtol=1e-5))


def digits_of(retriever) -> dict[str, tuple[int, ...]]:
    return {
        doc_id: retriever.snapshot.tree.digits(int(retriever.snapshot.tree.positions[row]))
        for doc_id, row in retriever.snapshot.documents.rows.items()
    }


def test_added_documents_are_found_and_removed_ones_are_not(retriever, tmp_path):
    before = digits_of(retriever)
    retriever.add(DOCUMENTS[50:])
    assert len(retriever.snapshot.documents) == 80
    assert {doc_id: digits for doc_id, digits in digits_of(retriever).items() if doc_id in before} == before
    for document in DOCUMENTS[50::7]:
        query = f"{document['title']} {document['text'][:60]}"
        if not retriever.snapshot.engine.has_generator:
            best = retriever.search(query, k=1, beam_width=1, lexical_weight=1.0)
            assert best[0].doc_id == document["doc_id"]
        titles = {hit.doc_id: hit.title for hit in retriever.search(query, k=80)}
        assert titles[document["doc_id"]] == document["title"]
    removed = [d["doc_id"] for d in DOCUMENTS[10:70:3]]
    retriever.remove(removed)
    everything = retriever.search(QUERIES, k=60, beam_width=80)
    for hits in everything:
        assert len(hits) == 60  # all that are left, also by the decoder alone, also filtered
        assert not {hit.doc_id for hit in hits} & set(removed)
    for options in ({"beam_width": 1}, {"method": "exact"}):
        assert not {hit.doc_id for hit in retriever.search("gas", k=60, **options)} & set(removed)
    left = [d["doc_id"] for d in DOCUMENTS if d["doc_id"] not in removed]
    assert {hit.doc_id for hit in retriever.search("gas", k=5, allow=left[-5:])} == set(left[-5:])
    titles = {d["doc_id"]: d["title"] for d in DOCUMENTS}
    printed, gone = str(retriever.explain("gas", k=5)), {titles[doc_id] for doc_id in removed}
    for hit in retriever.search("gas", k=5):
        assert f"#{hit.rank} {'.'.join(map(str, hit.digits))}" in printed
    assert not gone & {line.split("  ")[-1] for line in printed.splitlines()}
    with pytest.raises(ValueError, match=rf"allow names the doc_id '{removed[0]}', which is not in the index"):
        retriever.search("gas", allow=removed[:1])

    # Words and vectors are those of an index made of what is left.
    chosen = [d for d in DOCUMENTS if d["doc_id"] in left]
    fresh = BM25(left, [f"{d['title']} {d['text']}" for d in chosen], k1=1.2, b=0.5)
    np.testing.assert_allclose(retriever.snapshot.lexical.scores(QUERIES), fresh.scores(QUERIES), rtol=1e-5)
    texts = retriever.snapshot.encoder.document_texts([d["title"] for d in chosen], [d["text"] for d in chosen])
    np.testing.assert_allclose(
        retriever.snapshot.tree.embeddings[retriever.snapshot.tree.positions],
        retriever.snapshot.encoder.encode(texts, "document"),
        atol=1e-5,
    )
    # Saved whole and loaded, it answers the same; and can be updated again.
    retriever.save(tmp_path / "index")
    loaded = load(tmp_path / "index", device="cpu")
    assert alike(loaded.search(QUERIES, k=20, beam_width=40), retriever.search(QUERIES, k=20, beam_width=40))
    loaded.add([DOCUMENTS[10]])
    assert removed[0] in loaded.snapshot.documents.rows


def test_an_update_copies_nothing_large_of_what_stays(retriever):
    before = retriever.snapshot.tree
    retriever.add(DOCUMENTS[50:52])
    retriever.remove([DOCUMENTS[50]["doc_id"]])
    tree, table = retriever.snapshot.tree, retriever.snapshot.documents.table
    for name in ("embeddings", "centroids"):
        assert getattr(tree, name).parts[0] is getattr(before, name).parts[0]
    assert len(table) == 51
    assert retriever.snapshot.documents.find([DOCUMENTS[51]["doc_id"], DOCUMENTS[50]["doc_id"], "\ud800"]) == {
        DOCUMENTS[51]["doc_id"]: 50
    }


def test_only_blocks_of_the_table_that_change_are_copied():
    table = pa.table({"doc_id": [str(n) for n in range(5000)], "title": ["x"] * 5000})
    smaller = updating._without(table, [1030, 4999, 1031])
    assert smaller["doc_id"].to_pylist() == [str(n) for n in range(5000) if n not in (1030, 1031, 4999)]
    first, kept = table["doc_id"].chunk(0), smaller["doc_id"].chunk(0)
    assert kept.buffers()[2].address == first.buffers()[2].address
    larger = smaller
    for n in range(30):
        larger = updating._with(larger, pa.table({"doc_id": [f"new{n}"], "title": ["y"]}))
    assert larger["doc_id"].to_pylist()[-31:] == ["4998", *(f"new{n}" for n in range(30))]
    assert larger["doc_id"].num_chunks <= smaller["doc_id"].num_chunks
    assert updating._with(table[:0], table)["doc_id"].to_pylist() == table["doc_id"].to_pylist()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    documents=st.integers(4, 60), branching=st.integers(2, 4), leaf=st.integers(1, 4), seed=st.integers(0, 100),
    added=st.integers(0, 40), removed=st.integers(0, 30), k=st.integers(1, 8), extra=st.integers(0, 4),
    alpha=st.sampled_from([0.0, 0.2, 0.7, 1.0]),
)  # fmt: skip
def test_any_updated_tree_is_searched_exactly(documents, branching, leaf, seed, added, removed, k, extra, alpha):
    rng = np.random.default_rng(seed)
    original = random_tree(max(documents, branching), branching=branching, leaf=leaf, seed=seed)
    generator = random_generator(original, layers=1, seed=seed)
    tree = original
    if added:
        tree = add_documents(tree, rng.normal(size=(added, WIDTH)).astype(np.float32))
    left = len(tree.positions) - min(removed, len(tree.positions) - 1)
    tree = remove_documents(tree, rng.choice(len(tree.positions), len(tree.positions) - left, replace=False))
    methods = beam_search_for(tree, generator).methods
    states, mask, embeddings = random_queries(2, seed=seed)
    batch = as_batch(states, mask, embeddings, ["", ""])

    def run(k: int, beam_width: int, method: str = "generate"):
        config = SearchConfig(alpha=alpha, beam_width=beam_width)
        return methods[method].retrieve(batch, SearchRequest(k, config))

    everything, found = run(left, tree.num_places + 10), run(k, k + extra)
    assert sorted(everything.positions[0].tolist()) == sorted(np.flatnonzero(tree.doc_rows >= 0).tolist())
    assert found.positions.shape[1] == min(k, left)
    best = everything.scores[:, : min(k, left)]
    assert (found.scores <= best + 1e-4).all()
    for row in range(2):
        if found.exact[row]:
            np.testing.assert_allclose(found.scores[row], best[row], atol=1e-4, rtol=1e-5)
    np.testing.assert_allclose(run(k, 1, "exact").scores, best, atol=1e-4, rtol=1e-5)
    # To the decoder a document that came later is as probable as those beside it are on average.
    if alpha == 1 and added and not removed:
        probabilities = np.zeros((2, tree.num_places))
        np.put_along_axis(probabilities, everything.positions, np.exp(everything.scores), axis=1)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-3)
        for node in np.flatnonzero(tree.first_child >= tree.num_inner):
            below = slice(tree.doc_start[node], tree.doc_end[node])
            known = tree.trained[tree.num_inner :][below]
            if known.any() and not known.all():
                own = probabilities[:, below]
                mean = own[:, known].mean(axis=1, keepdims=True)
                np.testing.assert_allclose(
                    own[:, ~known], np.broadcast_to(mean, own[:, ~known].shape), atol=1e-4, rtol=1e-3
                )


@needs_readers
def test_the_command_updates_an_index_in_place(retriever, tmp_path, capsys):
    run, corpus = tmp_path / "index", tmp_path / "new.jsonl"
    retriever.save(run)
    new = [{"_id": d["doc_id"], "title": d["title"], "text": d["text"]} for d in DOCUMENTS[49:60]]
    corpus.write_text("\n".join(map(json.dumps, new)), encoding="utf-8")
    (tmp_path / "gone.txt").write_text(f"{DOCUMENTS[3]['doc_id']}\n")
    common = ["update", str(run), "--device", "cpu"]
    assert main([*common, "--add", str(corpus)]) == 2  # document 49 is there already
    assert f"doc_id '{DOCUMENTS[49]['doc_id']}' is in the index already" in capsys.readouterr().err
    remove = ["--remove", DOCUMENTS[49]["doc_id"], "--remove-file", str(tmp_path / "gone.txt")]
    assert main([*common, "--add", str(corpus), *remove]) == 0
    assert "1 document removed, 10 added, 1 replaced, 59 documents now; generation 2" in capsys.readouterr().out
    assert main([*common, "--remove", DOCUMENTS[5]["doc_id"]]) == 0
    assert "58 documents now; generation 3" in capsys.readouterr().out
    generator = {"generator"} if retriever.snapshot.engine.has_generator else set()
    parts = {"docids-3", "encoder", "lexical-3", "manifest.json", "memory"}
    assert {path.name for path in run.iterdir()} == parts | generator
    loaded = load(run, device="cpu")
    gone = {DOCUMENTS[3]["doc_id"], DOCUMENTS[5]["doc_id"]}
    assert set(loaded.snapshot.documents.rows) == {d["doc_id"] for d in DOCUMENTS[:60]} - gone
    for empty in (["--add", str(tmp_path / "empty.jsonl")], ["--remove-file", str(tmp_path / "empty.jsonl")]):
        (tmp_path / "empty.jsonl").write_text("\n")
        assert main([*common, *empty]) == 0  # a nightly job without news
        assert "0 documents removed, 0 added, 0 replaced, 58 documents now; generation 3" in capsys.readouterr().out
    assert main(common) == 2
    assert "There is nothing to do; give a folder of files, --add FILE" in capsys.readouterr().err
    assert main([*common, "--add", str(tmp_path / "nothing.jsonl")]) == 2
    assert "nothing.jsonl does not exist; name a file or a folder of texts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (
            [{"doc_id": "", "text": "x"}],
            r"documents\[0\]: doc_id '' must be a text that is not empty, without NUL and line ends",
        ),
        ([{"doc_id": "a", "title": " ", "text": ""}], "none of the 1 documents has a title or a text"),
        ([{"doc_id": "a", "text": "x"}] * 2, "duplicate doc_id 'a'"),
    ],
)
def test_what_cannot_be_added_changes_nothing(retriever, documents, message):
    before = retriever.search(QUERIES, k=5)
    with pytest.raises(ValueError, match=message):
        retriever.add(documents)
    with pytest.raises(ValueError, match="cannot be left without documents"):
        retriever.remove(list(retriever.snapshot.documents.rows))
    with pytest.raises(ValueError, match="remove names the doc_id 'nobody', which is not in the index"):
        retriever.remove(["nobody"])
    retriever.add([])
    assert retriever.search(QUERIES, k=5) == before


def test_what_an_index_is_made_of_can_be_added_too(retriever):
    documents = retriever.snapshot.documents
    retriever.add([{"id": 7, "title": None, "text": "Gneiss is a rock.", "year": math.nan}])
    retriever.add(pandas.DataFrame({"_id": [8, 9], "text": ["Basalt is a rock.", "Slate is a rock."]}))
    assert {"7", "8", "9"} <= set(retriever.snapshot.documents.rows)
    with pytest.raises(TypeError, match=r"documents\[1\] must be a dictionary, got 'Tuff'"):
        retriever.add([{"doc_id": "x", "text": "Marl"}, "Tuff"])
    assert len(retriever.snapshot.documents) == len(documents) + 3


def test_only_what_has_another_text_is_encoded_again(sentence_bert_folder, tmp_path, monkeypatch):
    def records(**changed):
        kept = ({"doc_id": d["doc_id"], "title": d["title"], "text": d["text"], "year": 1990} for d in DOCUMENTS[:12])
        return pandas.DataFrame([{**own, **changed.get(own["doc_id"].replace("-", "_"), {})} for own in kept])

    encoded, encode = [], updating.encoded_pieces
    monkeypatch.setattr(updating, "encoded_pieces", lambda *own: encoded.extend(own[2]) or encode(*own))
    index = dsi.index(records(), tmp_path / "index", encoder=str(sentence_bert_folder), device="cpu")
    before = digits_of(index)
    index.add(records(), replace=True)
    assert (encoded, index.save()) == ([], 1)  # nothing was written
    one, other, *same = index.snapshot.documents.rows
    changed = records(**{one.replace("-", "_"): {"text": "It is new."}, other.replace("-", "_"): {"year": 2000}})
    index.add(changed, replace=True)
    assert encoded == [f"{DOCUMENTS[0]['title']} It is new."]
    assert {doc_id: digits_of(index)[doc_id] for doc_id in [other, *same]} == {
        doc_id: before[doc_id] for doc_id in [other, *same]
    }
    assert index.save() == 2
    index = load(tmp_path / "index", device="cpu")
    assert [(own.text, own.metadata) for own in index.get([one, other, same[0]])] == [
        ("It is new.", {"year": 1990}), (DOCUMENTS[1]["text"], {"year": 2000}), (DOCUMENTS[2]["text"], {"year": 1990})
    ]  # fmt: skip
    (hit,) = index.search("new", k=5, where="year = 2000")
    assert hit.doc_id == other
    fresh = dsi.index(changed, encoder=str(sentence_bert_folder), device="cpu")
    options = {"method": "exact", "lexical_weight": 0.5, "token_weight": 0.0}
    found, expected = ([(h.doc_id, h.score) for h in own.search("gas", k=12, **options)] for own in (index, fresh))
    assert dict(found) == pytest.approx(dict(expected), abs=1e-4)


def test_an_update_of_nothing_writes_nothing(retriever, tmp_path):
    retriever.save(tmp_path / "run")
    before = (tmp_path / "run" / "manifest.json").read_text()
    loaded, other = (load(tmp_path / "run", device="cpu") for _ in range(2))
    for index in (retriever, loaded):
        index.add([])
        index.remove([])
        assert index.save(tmp_path / "run") == 1
    assert (tmp_path / "run" / "manifest.json").read_text() == before
    other.remove([next(iter(other.snapshot.documents.rows))])
    other.save(tmp_path / "run")
    with pytest.raises(ValueError, match="was changed since this index was loaded"):
        loaded.save(tmp_path / "run")


@needs_readers
def test_all_documents_can_be_replaced_by_one_command(retriever, tmp_path, capsys):
    run, corpus = tmp_path / "run", tmp_path / "both.jsonl"
    two = list(retriever.snapshot.documents.rows)[:2]
    retriever.remove(list(retriever.snapshot.documents.rows)[2:])
    retriever.save(run)
    lines = [{"_id": doc_id, "text": f"A new text, number {number}."} for number, doc_id in enumerate(two)]
    corpus.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, {"_id": 5, "text": "Another text."}]))
    assert main(["update", str(run), "--device", "cpu", "--remove", *two, "--add", str(corpus)]) == 0
    assert "0 documents removed, 1 added, 2 replaced, 3 documents now" in capsys.readouterr().out
    assert set(load(run, device="cpu").snapshot.documents.rows) == {*two, "5"}


def test_a_tuning_meanwhile_is_not_undone(retriever, tmp_path):
    retriever.save(tmp_path / "run")
    loaded = load(tmp_path / "run", device="cpu")
    configure(tmp_path / "run", replace(loaded.search_config, beam_width=99))
    for index in (retriever, loaded):
        index.save(tmp_path / "run")  # there is nothing to write
        index.search_config = replace(index.search_config, beam_width=7)
        with pytest.raises(ValueError, match="was changed since this index was loaded"):
            index.save(tmp_path / "run")
    assert load(tmp_path / "run", device="cpu").search_config.beam_width == 99
    loaded.search_config = replace(loaded.search_config, beam_width=99)
    loaded.save(tmp_path / "run")  # the same


def test_a_search_config_is_written_to_every_folder_that_the_index_was_saved_to(retriever, tmp_path):
    retriever.save(tmp_path / "first")
    retriever.save(tmp_path / "second")
    retriever.search_config = replace(retriever.search_config, beam_width=7)
    retriever.save(tmp_path / "first")
    assert load(tmp_path / "first", device="cpu").search_config.beam_width == 7
    retriever.save(tmp_path / "second")
    configure(tmp_path / "first", replace(retriever.search_config, beam_width=99))  # by somebody else
    retriever.add(DOCUMENTS[50:51])
    retriever.save(tmp_path / "first")
    (first, second) = (load(tmp_path / name, device="cpu") for name in ("first", "second"))
    assert (first.search_config.beam_width, len(first)) == (99, len(second) + 1)


def test_the_index_in_the_current_folder_can_be_updated(retriever, tmp_path, monkeypatch):
    retriever.save(tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    doc_id = next(iter(retriever.snapshot.documents.rows))
    assert main(["update", ".", "--device", "cpu", "--remove", doc_id]) == 0
    assert doc_id not in load(".", device="cpu").snapshot.documents.rows


def test_a_loaded_index_does_not_need_its_folder_again(retriever, tmp_path):
    """Another index may come in its place, or nothing: what is loaded is searched and updated as before."""
    for name in ("index", "same"):
        retriever.save(tmp_path / name)
    loaded, same = (load(tmp_path / name, device="cpu") for name in ("index", "same"))
    retriever.remove([d["doc_id"] for d in DOCUMENTS[:20]])
    retriever.save(tmp_path / "index")
    for each in (loaded, same):
        each.add(DOCUMENTS[50:70])
    np.testing.assert_array_equal(loaded.snapshot.lexical.scores(QUERIES), same.snapshot.lexical.scores(QUERIES))
    assert loaded.search(QUERIES, k=10) == same.search(QUERIES, k=10)
    shutil.rmtree(tmp_path / "index")
    for each in (loaded, same):
        each.remove([DOCUMENTS[3]["doc_id"]])
    assert loaded.search(QUERIES, k=10) == same.search(QUERIES, k=10)
    assert str(loaded.explain("gas")) == str(same.explain("gas"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system could end the process")
@pytest.mark.parametrize("use", [
    lambda own: own.search(QUERIES), lambda own: own.explain("gas"), lambda own: own.get(DOCUMENTS[0]["doc_id"]),
    lambda own: own.add(DOCUMENTS[50:]), lambda own: own.remove([DOCUMENTS[0]["doc_id"]]), lambda own: own.save("x"),
], ids=["search", "explain", "get", "add", "remove", "save"])  # fmt: skip
def test_a_file_that_is_cut_off_under_a_loaded_index_is_an_error(use, encoder, tmp_path, monkeypatch):
    """Reading what it lacks would end the process by SIGBUS."""
    monkeypatch.chdir(tmp_path)
    small_index(encoder, vectors=True).save(tmp_path / "index")
    loaded = load(tmp_path / "index", device="cpu")
    names = (
        "docids/docids.safetensors",
        "docids/documents.arrow",
        "lexical/terms.safetensors",
        "encoder/model.safetensors",
    )
    for path in (tmp_path / "index" / name for name in names):
        data = path.read_bytes()
        os.truncate(path, 8)

        def work(path=path, data=data):
            with pytest.raises(
                OSError, match=f"{path} was cut off since it was loaded, at 8 of {len(data):,} bytes; restore"
            ):
                use(loaded)

        assert status_of(fork(work)) == 0
        path.write_bytes(data)
    assert len(loaded.search("gas", k=3)) == 3
    assert not list(tmp_path.glob(".x*"))


@pytest.mark.programs
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
@pytest.mark.parametrize("retriever", [pytest.param("digits", marks=pytest.mark.slow), "vectors"], indirect=True)
def test_killed_at_every_write_the_old_index_is_there_or_the_new(retriever, tmp_path, monkeypatch):
    run = tmp_path / "index"
    retriever.save(run)
    parts = len(list(run.iterdir()))
    old = load(run, device="cpu").search(QUERIES, k=20, beam_width=40)
    retriever.add(DOCUMENTS[50:])
    retriever.remove([DOCUMENTS[0]["doc_id"]])
    new = retriever.search(QUERIES, k=20, beam_width=40)
    outcomes: list[bool] = []
    monkeypatch.setattr(
        "dsi.store.folder.loading.load_encoder", lambda *_: retriever.snapshot.encoder
    )  # the sums of its files are compared
    for writes in range(1, 1000):
        status = status_of(fork(lambda: retriever.save(run), dies_at_write=writes))
        found = load(run, device="cpu").search(QUERIES, k=20, beam_width=40)
        outcomes.append(alike(found, new))
        assert outcomes[-1] or alike(found, old)
        if status == 0:
            break
        assert status == 9
        if outcomes[-1]:  # what is left only clears the old parts away
            break
    assert outcomes[0] is False
    assert outcomes[-1] is True
    assert len(outcomes) > 8
    assert len(list(run.iterdir())) > parts  # the old parts, and perhaps partial ones
    monkeypatch.undo()
    loaded = load(run, device="cpu")
    loaded.remove([DOCUMENTS[1]["doc_id"]])
    loaded.save(run)
    assert len(list(run.iterdir())) == parts == 5 + loaded.snapshot.engine.has_generator


def test_threads_that_search_and_update_see_whole_updates(retriever):
    soak(retriever, seconds=2)


@pytest.mark.slow
def test_a_minute_of_it(retriever):
    soak(retriever, seconds=60)


def soak(retriever: Retriever, seconds: float) -> None:
    """Eight threads search, filtered and not, while a ninth adds and removes documents: all answers are of whole states."""
    block = DOCUMENTS[50:]
    ids = {d["doc_id"] for d in block}
    old_ids = [d["doc_id"] for d in DOCUMENTS[:50:5]]
    options = [{}, {"allow": old_ids}, {"deny": old_ids}, {"beam_width": 1}, {"method": "exact"}]

    def answers() -> list:
        return [retriever.search(QUERIES, k=6, **own) for own in options]

    states = [answers()]
    stop = threading.Event()

    def search(number: int) -> list:
        found = []
        while not stop.is_set():
            which = (number + len(found)) % len(options)
            found.append((which, retriever.search(QUERIES, k=6, **options[which])))
        return found

    def update() -> None:
        while not stop.is_set():
            retriever.add(block)
            states.append(answers())
            retriever.remove(ids)
            states.append(answers())

    with ThreadPoolExecutor(9) as pool:
        searches, updates = [pool.submit(search, n) for n in range(8)], pool.submit(update)
        time.sleep(seconds)
        stop.set()
        updates.result()
        found = [entry for future in searches for entry in future.result()]
    assert len(states) > 2
    assert states[1] != states[0]
    for now, before in zip(chain(*states[-1]), chain(*states[0]), strict=True):  # without the block all is as it was
        assert [(hit.doc_id, hit.digits) for hit in now] == [(hit.doc_id, hit.digits) for hit in before]
        assert [hit.score for hit in now] == pytest.approx([hit.score for hit in before], rel=1e-6)  # but for last bits
    for which, hits in found:
        assert hits in [state[which] for state in states]


def test_a_generator_of_the_original_tree_fits_an_updated_one():
    original = random_tree(30)
    generator = random_generator(original)
    generator.check_tree(add_documents(original, np.ones((3, WIDTH), dtype=np.float32)))
    with pytest.raises(ValueError, match="was trained for docids"):
        generator.check_tree(add_documents(random_tree(31), np.ones((3, WIDTH), dtype=np.float32)))


def test_an_update_counts_what_came_and_went_and_not_what_was_replaced(retriever):
    ids = [document["doc_id"] for document in DOCUMENTS[:50]]
    gone, new = ids[:3], DOCUMENTS[50:52]
    assert retriever.update(add=[*DOCUMENTS[3:50], *new], remove=ids) == (len(new), len(gone), 47, None)
    assert retriever.update(add=[DOCUMENTS[10]], remove=[ids[10]]) == (0, 0, 1, None)
