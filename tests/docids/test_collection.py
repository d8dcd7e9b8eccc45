"""Reading BEIR folders, and every complaint about them."""

import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsi.docids.data import collection, sources
from dsi.docids.data.collection import Collection, read_collection
from dsi.docids.data.dev_queries import cut_dev
from dsi.docids.files.reading import sha256
from dsi.docids.files.storage import digest
from dsi.docids.words.bm25 import BM25
from dsi.eval.measures import evaluate as measure
from dsi.eval.measures import mean
from tests.support.kills import fork, status_of
from tests.support.small import MINIPEDIA

DOC = '{"_id": "a", "title": "A", "text": "first"}'
QUERY = '{"_id": "q", "text": "which"}'
QRELS = "query-id\tcorpus-id\tscore\nq\ta\t1"


def test_minipedia_has_the_counts_its_readme_states():
    collection = read_collection(MINIPEDIA)
    assert len(collection.documents) == 600
    assert {split: len(collection.pairs(split)) for split in collection.qrels} == {
        "train": 1080,
        "dev": 600,
        "test": 1920,
    }
    assert len(collection.overlap_documents("test")) == 360
    row = collection.rows["helium"]
    assert collection.documents[row]["title"] == "Helium"
    assert ("helium.5", row) in collection.pairs("train")


def test_gzip_and_non_ascii_text_and_a_changed_file_are_read(beir):
    folder = beir(DOC, QUERY, test=QRELS)
    (folder / "corpus.jsonl").unlink()
    with gzip.open(folder / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps({"_id": "a", "title": "Dvořák 東京", "text": "naïve"}, ensure_ascii=False))
    assert read_collection(folder).documents[0]["title"] == "Dvořák 東京"
    with gzip.open(folder / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(DOC + "\n" + DOC.replace('"a"', '"b"'))
    assert list(read_collection(folder).documents["doc_id"]) == ["a", "b"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs devices and files of a Linux system")
@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "folder"])
def test_what_has_no_end_is_not_read(beir, name, kind):
    folder = beir(DOC, QUERY, test=QRELS)
    path = folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(kind)
    with pytest.raises(ValueError, match=rf"{path.name} must be a regular file.*; put the file"):
        read_collection(folder)


def test_a_line_that_would_fill_the_memory_is_refused(beir, monkeypatch):
    monkeypatch.setattr(sources, "LONGEST_LINE", 1000)
    folder = beir(DOC, QUERY, test=QRELS)
    (folder / "corpus.jsonl").unlink()
    with gzip.open(folder / "corpus.jsonl.gz", "wb") as file:
        file.write(DOC.encode() + b"\n" + b" " * 10**6)
    with pytest.raises(ValueError, match=r"corpus.jsonl.gz, line 2 has more than 1,000 bytes; shorten it\."):
        read_collection(folder)


def test_tables_of_judgements_by_another_name_are_logged(beir, caplog):
    folder = beir(DOC, QUERY, test=QRELS)
    (folder / "qrels" / "valid.tsv").touch()
    (folder / "qrels" / ".hidden").touch()
    read_collection(folder)
    line = "files that are not read: 1 ('valid.tsv'); judgements are in train.tsv, dev.tsv, test.tsv."
    assert f"{folder / 'qrels'}: {line}" in caplog.messages


def test_a_file_changed_within_its_size_and_time_is_read_again(beir):
    folder = beir(DOC, QUERY, test=QRELS)
    path = folder / "corpus.jsonl"
    before, status = read_collection(folder).documents["text"][:], path.stat()
    path.write_text(DOC.replace("first", "other"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert (before, read_collection(folder).documents["text"][:]) == (["first"], ["other"])


def test_a_byte_order_mark_and_line_ends_of_windows_are_read(beir):
    folder = beir(DOC, QUERY, test=QRELS)
    plain = read_collection(folder)
    for path in (folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "test.tsv"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    marked = read_collection(folder)
    assert marked.documents.to_dict() == plain.documents.to_dict()
    assert (marked.queries, marked.qrels) == (plain.queries, plain.qrels)


def test_only_a_first_line_without_a_score_is_the_header(beir):
    query = QUERY.replace('"q"', '"query-id"')
    for head in ("", "query-id\tcorpus-id\tscore\n", "query-id corpus-id score\n"):
        assert read_collection(beir(DOC, query, test=f"{head}query-id\ta\t1")).qrels["test"] == {"query-id": {"a": 1}}
    with pytest.raises(ValueError, match=r"test.tsv, line 1: expected query-id<TAB>corpus-id<TAB>score, or TREC's"):
        read_collection(beir(DOC, query, test="q1\ta\tyes\nquery-id\ta\t1"))


@pytest.mark.parametrize(
    "line",
    [
        "q\ta\t0.6667",
        "q\ta\t0.6667 \t ",
        "q 0 a 0.6667",
        "q\t0\ta\t0.6667",
        "q\tQ0\ta\t.6667",
        "q a 6.667e-1",
        "q\ta\t0.6667\r",
    ],
)
def test_judgements_of_three_or_four_columns_may_be_fractions(beir, line):
    assert read_collection(beir(DOC, QUERY, test=line)).qrels["test"] == {"q": {"a": 0.6667}}


def test_grades_are_grades():
    """Measures of fractional and negative grades: those of ir_measures for gains 1.5 and .5, of which the second is found."""
    qrels = {"test": {"q": {"0": 1.5, "1": 0.5, "2": -1}}}
    judged = Collection.from_records(["a", "b", "c"], queries={"q": "x"}, qrels=qrels).qrels["test"]
    values = measure({"q": {"1": 3.0, "2": 2.0}}, judged, ["nDCG@10", "Hit@1", "Recall@10"])
    ideal = 1.5 + 0.5 / np.log2(3)
    assert values["nDCG@10"]["q"] == pytest.approx(0.5 / ideal)
    assert (values["Hit@1"]["q"], values["Recall@10"]["q"]) == (1.0, 0.5)


def test_absent_documents_stay_judged_and_are_not_trained_on(beir, caplog):
    judged = "q\ta\t1\nq\tz\t1\nq\ty\t0"
    collection = read_collection(beir(DOC, QUERY, train=judged, test=judged))
    assert collection.qrels["test"] == {"q": {"a": 1, "z": 1, "y": 0}}
    assert collection.pairs("train") == [("q", 0)]
    assert measure({"q": {"a": 1.0}}, collection.qrels["test"], ["Recall@10"])["Recall@10"]["q"] == 0.5
    absent = [message for message in caplog.messages if "test.tsv" in message]
    assert absent == [
        f"{collection.name}/qrels/test.tsv: judgements of documents that are not in the collection: 2 ('z', 'y'); no "
        "search finds these, recall and ideal DCG count the relevant ones as missed, and training leaves them out."
    ]


def test_judged_queries_that_are_not_there_are_left_out_and_counted(beir, caplog):
    collection = read_collection(beir(DOC, QUERY, test="z\ta\t1\nz\tb\t1\n" + QRELS.splitlines()[1]))
    assert collection.qrels["test"] == {"q": {"a": 1}}
    assert "judgements of queries that are not in the collection: 2 ('z'); without a text they" in caplog.text
    with pytest.raises(
        ValueError, match=r"test.tsv: none of the judgements belongs to a query of the collection .*'z'\). Add"
    ):
        read_collection(beir(DOC, QUERY, test="z\ta\t1"))


def test_queries_without_a_relevant_document_count_as_0_and_bound_the_mean(beir, caplog):
    queries = "\n".join(QUERY.replace('"q"', f'"q{n}"') for n in range(4))
    collection = read_collection(beir(DOC, queries, test="q0\ta\t1\nq1\ta\t0\nq2\ta\t-1\nq3\tz\t1"))
    assert (
        "judged queries without a judgement above 0 of a document in the collection: 3 ('q1', 'q2', 'q3'); they count as 0, "
        "and no mean over all 4 exceeds 25.0 %." in caplog.text
    )
    values = measure({query_id: {"a": 1.0} for query_id in collection.queries}, collection.qrels["test"], ["Hit@1"])
    assert mean(values["Hit@1"]) == 0.25


def test_ids_hold_anything_but_nul_and_line_ends(beir, tmp_path):
    ids = ["Geneva Durben", " a ", "a:b%20c", "Ünï\u00a0cøde", "x" * 4096]
    corpus = "\n".join(json.dumps({"_id": own, "text": f"text {n}"}) for n, own in enumerate(ids))
    queries = "\n".join(json.dumps({"_id": own, "text": "which"}) for own in ids)
    collection = read_collection(beir(corpus, queries, test="".join(f"{own}\t{own}\t1\n" for own in ids)))
    assert collection.qrels["test"] == {own: {own: 1} for own in ids}
    collection.save(tmp_path / "again")
    again = read_collection(tmp_path / "again")
    assert (list(again.rows), again.qrels["test"]) == (ids, collection.qrels["test"])
    tabs = Collection.from_records(
        [{"id": "a\tb", "text": "x"}], queries={"q": "x"}, qrels={"test": {"q": {"a\tb": 1}}}
    )
    with pytest.raises(ValueError, match=r"test.tsv: the ids 'q' and 'a\\tb' must not hold a tab; rename them"):
        tabs.save(tmp_path / "tabs")
    assert not (tmp_path / "tabs").exists()


def test_empty_queries_are_read_counted_and_not_trained_on(beir, caplog):
    queries = QUERY + "\n" + QUERY.replace('"q"', '"e"').replace("which", " ")
    collection = read_collection(beir(DOC, queries, train="q\ta\t1\ne\ta\t1"))
    assert collection.queries == {"q": "which", "e": " "}
    assert collection.pairs("train") == [("q", 0)]
    assert "queries.jsonl: empty queries: 1 ('e'); their answers are empty, and count as 0 where" in caplog.text


@pytest.mark.parametrize("text", [QRELS.splitlines()[0], "", "\n"])
def test_a_file_of_judgements_that_holds_none_gets_a_line(beir, text, caplog):
    assert read_collection(beir(DOC, QUERY, test=text)).qrels["test"] == {}
    assert "qrels/test.tsv holds no judgements, at most a header." in caplog.text


def test_of_several_grades_of_a_pair_the_highest_counts(beir, caplog):
    collection = read_collection(beir(DOC, QUERY, test="q\ta\t1\nq\ta\t3\nq\ta\t2\nq\ta\t3"))
    assert collection.qrels["test"] == {"q": {"a": 3}}
    assert "pairs of query and document with several grades: 2 ('q a'); the highest counts." in caplog.text


def test_dev_is_cut_from_train_where_there_is_none(beir):
    folder = beir()
    (folder / "qrels" / "dev.tsv").unlink()
    train_before = len((folder / "qrels" / "train.tsv").read_text().splitlines()) - 1
    collection = read_collection(folder, dev_queries=5)
    assert len(collection.qrels["dev"]) == 5
    assert len(collection.qrels["train"]) == train_before - 5
    assert not set(collection.qrels["dev"]) & set(collection.qrels["train"])
    # Overlap speaks of the collection's own train file, whatever was cut from it.
    assert {doc for judged in collection.qrels["dev"].values() for doc in judged} <= collection.overlap_documents(
        "test"
    )
    assert read_collection(folder, dev_queries=5).qrels["dev"] == collection.qrels["dev"]


def test_a_dev_query_overlaps_only_with_what_is_left_of_train(beir):
    folder = beir()
    head, *rows = (folder / "qrels" / "train.tsv").read_text().splitlines()
    one_each = {row.split("\t")[1]: row for row in rows}  # every document has one train query
    (folder / "qrels" / "train.tsv").write_text("\n".join([head, *one_each.values()]))
    (folder / "qrels" / "dev.tsv").unlink()
    collection = read_collection(folder, dev_queries=4)
    dev = {doc for judged in collection.qrels["dev"].values() for doc in judged}
    assert len(dev) == len(one_each) // 10 > 0
    assert collection.overlap_documents("test") == set(one_each)
    assert collection.overlap_documents("dev") == set(one_each) - dev


def test_results_are_recomputed_when_the_cut_changes(beir):
    folder = beir()
    assert read_collection(folder, dev_queries=3).digest == read_collection(folder, dev_queries=5).digest
    (folder / "qrels" / "dev.tsv").unlink()
    digests = [read_collection(folder, dev_queries=n, seed=seed).digest for n, seed in ((3, 0), (3, 0), (5, 0), (5, 1))]
    assert len(set(digests)) == 3
    assert digests[0] == digests[1]


def test_the_digest_of_a_folder_is_that_of_all_its_files_and_of_what_they_are(beir):
    folder = beir()
    collection = read_collection(folder)
    names = {"corpus.jsonl": "corpus.jsonl", "queries.jsonl": "queries.jsonl"}
    names |= {split: f"qrels/{split}.tsv" for split in ("dev", "test", "train")}
    files = [f"{name} {sha256(folder / path)}" for name, path in sorted(names.items())]
    assert collection.digest == digest([files, list(collection.qrels["dev"])])
    packed = gzip.compress((folder / "corpus.jsonl").read_bytes(), mtime=0)
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").write_bytes(packed)
    files[0] = f"corpus.jsonl {sha256(folder / 'corpus.jsonl.gz')}"
    assert read_collection(folder).digest == digest([files, list(collection.qrels["dev"])])


def test_only_files_that_are_read_change_the_digest(beir):
    folder = beir()
    before = read_collection(folder).digest
    for name in ("docids.tsv", "run/docids/docids.tsv", "run/pseudo_queries/queries.jsonl", "qrels/other.tsv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("a\t1\n")
    assert read_collection(folder).digest == before
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/dev.tsv", "qrels/test.tsv"):
        text = (folder / name).read_text()
        (folder / name).write_text(text + "\n")
        assert read_collection(folder).digest != before
        (folder / name).write_text(text)
    assert read_collection(folder).digest == before


def relevant(judged):
    return {doc_id for doc_id, relevance in judged.items() if relevance > 0}


def no_overlap(train, judgements):
    """The queries none of whose relevant documents has a train query."""
    known = set().union(*map(relevant, train.values()))
    return {query_id for query_id, judged in judgements.items() if known.isdisjoint(relevant(judged))}


def one_relevant(queries_by_document):
    """Judgements of {document: number of queries}, with one relevant document each."""
    return {f"{d}.{n}": {d: 1} for d, count in queries_by_document.items() for n in range(count)}


def test_at_most_a_tenth_of_train_becomes_dev():
    train, dev = cut_dev({f"q{n}": {"a": 1} for n in range(50)}, 500, 0.5, 0)
    assert (len(train), len(dev)) == (45, 5)
    assert not no_overlap(train, dev)  # the only document has too many queries to leave train


@pytest.mark.parametrize("share", [0, 1 / 3, 0.5, 1])
def test_a_share_of_dev_asks_for_documents_without_a_train_query(share):
    train = one_relevant({f"d{n}": 1 + n % 5 for n in range(400)})  # 1,200 queries
    kept, dev = cut_dev(train, 90, share, 0)
    assert len(dev) == 90
    assert len(no_overlap(kept, dev)) == 90 * share
    assert cut_dev(dict(reversed(train.items())), 90, share, 0)[1].keys() == dev.keys()
    assert cut_dev(train, 90, share, 1)[1] != dev


def test_test_judgements_do_not_change_what_is_cut():
    train = one_relevant({f"d{n}": 3 for n in range(100)})
    documents, queries = (
        [{"id": f"d{n}", "text": "A text."} for n in range(101)],
        dict.fromkeys([*train, "t"], "what is it"),
    )
    for test in ({}, {"t": {"d1": 1}}, {"t": {"d100": 1}}):
        found = Collection.from_records(
            documents, queries=queries, qrels={"train": train, "test": test}, dev_queries=30
        )
        kept, dev = cut_dev(train, 30, 0.5, 0)
        assert (found.qrels["train"], found.qrels["dev"]) == (kept, dev)
        assert (len(dev), len(no_overlap(kept, dev))) == (30, 15)


def test_where_one_kind_of_query_is_too_rare_the_other_takes_its_place():
    every_document_once = one_relevant({f"d{n}": 1 for n in range(200)})
    kept, dev = cut_dev(every_document_once, 500, 0, 0)
    assert len(dev) == len(no_overlap(kept, dev)) == 20
    some_twice = one_relevant({f"d{n}": 1 + (n < 4) for n in range(200)})
    kept, dev = cut_dev(some_twice, 500, 0, 0)
    assert (len(dev), len(no_overlap(kept, dev))) == (20, 16)


@settings(max_examples=200, deadline=None)
@given(
    documents=st.integers(1, 80), queries=st.integers(1, 300), most=st.integers(1, 3), dev_queries=st.integers(0, 40),
    new=st.integers(0, 10), seed=st.integers(0, 100),
)  # fmt: skip
def test_any_judgements_are_cut_by_document(documents, queries, most, dev_queries, new, seed):
    rng = random.Random(seed)

    def judge():
        return {f"d{rng.randrange(documents)}": rng.choice((0, 1, 1, 2)) for _ in range(rng.randint(1, most))}

    train = {f"q{n}": judge() for n in range(queries)}
    kept, dev = cut_dev(train, dev_queries, new / 10, seed)
    assert {**kept, **dev} == train  # none is dropped
    assert len(kept) + len(dev) == len(train)  # none is in both
    size = min(dev_queries, queries // 10)
    assert len(dev) <= size
    left = Counter(doc_id for judged in kept.values() for doc_id in relevant(judged))
    unseen = no_overlap(kept, dev)
    for query_id, judged in dev.items():
        assert relevant(judged)  # a query without an answer tells nothing
        assert query_id in unseen or all(left[doc_id] for doc_id in relevant(judged))
    wanted = round(size * (new / 10))
    if len(unseen) > wanted:  # no train query is left that a document could spare
        assert not any(all(left[doc_id] > 1 for doc_id in own) for own in map(relevant, kept.values()) if own)
    if len(unseen) < wanted and most == 1:  # no document has few enough queries
        asked = {doc_id for judged in dev.values() for doc_id in judged}
        assert all(count > wanted - len(unseen) for doc_id, count in left.items() if doc_id not in asked)


def test_documents_without_words_are_named_and_kept(beir, caplog):
    empty = '{"_id": "b", "title": " ", "text": ""}\n{"_id": "c", "text": null}\n{"_id": "d", "title": "D", "text": ""}'
    folder = beir(DOC + "\n" + empty, QUERY, test=QRELS)
    assert list(read_collection(folder).documents["doc_id"]) == ["a", "b", "c", "d"]
    lines = [
        "documents with neither title nor text: 2 ('b', 'c'); no query finds them by words.",
        "documents with a title and no text: 1 ('d'); they are found by their titles alone.",
    ]
    assert caplog.messages == [f"{folder / 'corpus.jsonl'}: {line}" for line in lines]


@pytest.mark.parametrize(
    ("corpus", "queries", "qrels", "message"),
    [
        ("", QUERY, QRELS, r"corpus.jsonl must hold at least one document"),
        (DOC + "\n{bad", QUERY, QRELS, r"corpus.jsonl, line 2: not valid JSON .* got '\{bad'"),
        (DOC + "\n[1]", QUERY, QRELS, r"corpus.jsonl, line 2: expected a JSON object"),
        (DOC + "\n" + DOC, QUERY, QRELS, r"corpus.jsonl, line 2: duplicate doc_id 'a'"),
        ('{"_id": 7.5, "text": "t"}', QUERY, QRELS, r"line 1: doc_id must be a string, got 7.5"),
        (
            '{"_id": "a", "title": "t"}',
            QUERY,
            QRELS,
            r"line 1 has no text: none of the keys .*; its keys are '_id', 'title'",
        ),
        (DOC, "", QRELS, r"queries.jsonl holds no queries"),
        (DOC, QUERY + "\n" + QUERY, QRELS, r"queries.jsonl, line 2: duplicate query_id 'q'"),
        (DOC, QUERY, QRELS + "\nq a", r"test.tsv, line 3: expected query-id<TAB>corpus-id<TAB>score"),
        (DOC, QUERY, QRELS + "\nq\ta\tyes", r"line 3: expected .* got 'q\\ta\\tyes'"),
    ],
)
def test_bad_content_is_named_with_its_line(beir, corpus, queries, qrels, message):
    with pytest.raises(ValueError, match=message):
        read_collection(beir(corpus, queries, test=qrels))


DEEP = '{"_id": "b", "metadata": ' + "[" * 100_000
MANY_DIGITS = '{"_id": "b", "text": "t", "metadata": {"n": ' + "9" * 5000 + "}}"


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("corpus.jsonl", b"\xe9", r"line 2: not text in UTF-8 \(byte 0xe9 at place 1\); save the file in UTF-8"),
        ("queries.jsonl", '{"_id": "é"'.encode("latin-1"), r"line 2: not text in UTF-8 \(byte 0xe9 at place 10\)"),
        ("qrels/test.tsv", b"\xff\xfe", "line 3: not text in UTF-8"),
        ("corpus.jsonl", DEEP, "line 2: JSON nested too deeply"),
        ("queries.jsonl", DEEP, "line 2: JSON nested too deeply"),
        ("corpus.jsonl", MANY_DIGITS, "line 2: JSON nested too deeply, or an integer of thousands of digits"),
        (
            "corpus.jsonl",
            DOC.replace("first", "\\ud800"),
            r"line 2: key 'text' must be Unicode text, got the lone surrog",
        ),
        (
            "queries.jsonl",
            QUERY.replace("q", "\\udfff"),
            r"line 2: query_id must be Unicode text, got the lone surrog",
        ),
        ("corpus.jsonl", DOC.replace('"a"', '""'), "line 2: doc_id '' must be a text that is not empty, without NUL"),
        (
            "corpus.jsonl",
            DOC.replace('"a"', '"a\\u0000"'),
            r"line 2: doc_id 'a\\x00' must be a text that is not empty, without NUL and line ends",
        ),
        (
            "queries.jsonl",
            QUERY.replace("q", "q\\r"),
            r"line 2: query_id 'q\\r' must be a text that is not empty, without",
        ),
        ("qrels/test.tsv", "q\ta\t--1", r"line 3: expected .* got 'q\\ta\\t--1'"),
        ("qrels/test.tsv", "q\ta\t²", r"line 3: expected .* got 'q\\ta\\t²'"),
        ("qrels/test.tsv", "q\ta\t" + "9" * 30, "line 3: expected .*corpus-id<TAB>score"),
    ],
)
def test_a_bad_line_is_one_message_with_file_and_line(beir, name, line, message):
    folder = beir(DOC, QUERY, test=QRELS)
    with (folder / name).open("ab") as file:
        file.write(b"\n" + (line if isinstance(line, bytes) else line.encode()))
    with pytest.raises(ValueError, match=f"{name}, {message}") as error:
        read_collection(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_damaged_compressed_files_are_named(beir, name):
    folder = beir()
    whole = gzip.compress((folder / name).read_bytes())
    (folder / name).unlink()
    flipped = bytearray(whole)
    flipped[-8] ^= 1  # of the checksum
    for content, line in ((whole[: len(whole) // 2], "[0-9]+"), (flipped, "[0-9]+"), (b"plain", "0")):
        (folder / f"{name}.gz").write_bytes(content)
        with pytest.raises(
            ValueError, match=rf"{name}.gz is damaged after line {line} \(.*\); fetch or compress it again"
        ):
            read_collection(folder)
    (folder / f"{name}.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=f"{name}.gz (holds no|must hold at least one)"):
        read_collection(folder)


def test_a_corpus_without_any_text_is_refused(beir):
    empty = '{"_id": "%s", "title": "", "text": " "}'
    with pytest.raises(
        ValueError, match=r"corpus.jsonl: none of the 2 documents has a title or a text; give them texts"
    ):
        read_collection(beir("\n".join(empty % doc_id for doc_id in "ab"), QUERY, test=QRELS))


def test_nul_and_control_characters_in_texts_are_characters(beir, encoder):
    strange = "nul \0 bell \x07 escape \x1b del \x7f separator \u2028 mark \ufeff"
    corpus = "\n".join(json.dumps({"_id": d, "text": f"{strange} {word}"}) for d, word in (("a", "neon"), ("b", "gas")))
    collection = read_collection(beir(corpus, json.dumps({"_id": "q", "text": strange + " gas"}), test=QRELS))
    assert collection.documents[0]["text"] == strange + " neon"
    scores = BM25(["a", "b"], collection.full_texts()).run(collection.queries, 2)["q"]
    assert scores["b"] > scores["a"]
    assert np.isfinite(
        encoder.encode(encoder.document_texts(["", ""], collection.documents["text"][:]), "document")
    ).all()


def test_missing_files_are_named(beir, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"collection folder .*nowhere does not exist"):
        read_collection(tmp_path / "nowhere")
    folder = beir(DOC, QUERY, test=QRELS)
    (folder / "queries.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"queries.jsonl \(or queries.jsonl.gz\) does not exist"):
        read_collection(folder)
    (folder / "queries.jsonl").write_text(QUERY)
    (folder / "qrels" / "test.tsv").unlink()
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"corpus.jsonl \(or corpus.jsonl.gz\) does not exist"):
        read_collection(folder)


def test_documents_alone_are_a_collection(beir, caplog):
    folder = beir(DOC, QUERY, test=QRELS)
    (folder / "qrels" / "test.tsv").unlink()
    assert not any(read_collection(folder).qrels.values())
    assert "has 1 queries but no judgements, so none is used" in caplog.text
    (folder / "queries.jsonl").unlink()
    collection = read_collection(folder)
    assert collection.queries == {}
    assert len(collection.documents) == 1


def test_a_query_that_is_judged_in_several_splits_is_told(beir, caplog):
    folder = beir()
    train, test = (folder / "qrels" / f"{split}.tsv" for split in ("train", "test"))
    row = train.read_text().splitlines()[1]
    test.write_text(test.read_text().rstrip("\n") + f"\n{row}\n")
    collection = read_collection(folder)
    query_id = row.split("\t")[0]
    assert f"The query {collection.queries[query_id]!r} is in both train and test" in caplog.text


def test_the_collection_that_ships_is_read_without_a_warning(caplog):
    assert len(read_collection("minipedia").documents) == 600
    assert not caplog.records


def test_saving_loses_no_file_that_is_not_of_a_collection(beir):
    folder = beir()
    collection = read_collection(folder)
    (folder / "qrels" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds 'qrels/notes.txt', which would be lost"):
        collection.save(folder)
    assert (folder / "qrels" / "notes.txt").read_text() == "mine"


def test_a_save_that_was_killed_between_its_renames_leaves_the_old_collection(beir):
    folder = beir()
    before = read_collection(folder).digest

    def save():
        Path.rename, rename = lambda path, to: (rename(path, to), os._exit(9)), Path.rename
        read_collection(folder).save(folder)

    assert status_of(fork(save)) == 9
    assert not folder.exists()
    assert read_collection(folder).digest == before


def test_reading_a_collection_removes_nothing_beside_it(beir):
    folder = beir()
    mine = folder.with_name(f".{folder.name}.previous")
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    read_collection(folder)
    assert (mine / "thesis.tex").exists()


def test_judgements_that_move_to_another_split_make_another_collection(beir):
    folder = beir()
    before = read_collection(folder).digest
    (folder / "qrels" / "train.tsv").rename(folder / "qrels" / "keep")
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "train.tsv")
    (folder / "qrels" / "keep").rename(folder / "qrels" / "test.tsv")
    assert read_collection(folder).digest != before


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/train.tsv"])
def test_a_file_that_changes_while_it_is_read_is_refused(name, beir, monkeypatch):
    folder = beir()
    path = folder / name

    def reading(*arguments, **more):
        path.write_text(path.read_text() + "\n")
        return read(*arguments, **more)

    read = collection.read_queries
    monkeypatch.setattr(collection, "read_queries", reading)
    with pytest.raises(ValueError, match="was changed while it was read; read it again when it is whole"):
        read_collection(folder)


def test_metadata_may_have_a_key_named_metadata():
    records = [
        {"id": "a", "text": "x", "metadata": {"metadata": "k"}},
        {"id": "b", "text": "y", "metadata": {"lang": "en"}},
    ]
    assert Collection.from_records(records).documents["metadata"][:] == ["k", None]


@pytest.mark.parametrize("queries", [{}, {"q": "a query", "p": "another"}])
def test_whatever_is_in_memory_is_read_again_from_its_folder(queries, tmp_path):
    qrels = {"test": {"q": {"1": 2}, "p": {}}} if queries else {}
    collection = Collection.from_records(["one text", "two texts"], queries=queries or None, qrels=qrels)
    collection.save(tmp_path / "saved")
    again = read_collection(tmp_path / "saved")
    assert again.queries == queries
    judged = {query_id: {d: r for d, r in own.items() if r} for query_id, own in again.qrels["test"].items()}
    assert judged == qrels.get("test", {})


def test_a_relevance_that_no_float_holds_is_refused():
    with pytest.raises(ValueError, match="must be a number that a float can hold, got an integer beyond 1e308"):
        Collection.from_records(["x"], queries={"q": "a"}, qrels={"test": {"q": {"0": 10**400}}})


def test_whole_numbers_beside_others_are_kept_exactly(caplog):
    records = [{"id": "a", "text": "x", "metadata": {"n": 2**53 + 1}}, {"id": "b", "text": "y", "metadata": {"n": 0.5}}]
    assert Collection.from_records(records).documents["n"][:] == ["9007199254740993", "0.5"]
    assert caplog.messages == ["documents: metadata of several types (float, integer): 1 ('n'); all become texts."]
    records[1]["metadata"]["n"] = 3
    assert Collection.from_records(records).documents["n"][:] == [2**53 + 1, 3]


def test_queries_of_one_text_in_two_splits_are_told(caplog):
    queries = {"a": "Which gas glows?", "b": "which gas  glows?", "c": "a river"}
    qrels = {"train": {"a": {"0": 1}}, "test": {"b": {"0": 1}, "c": {"1": 1}}}
    Collection.from_records(["neon", "danube"], queries=queries, qrels=qrels)
    assert [record.getMessage() for record in caplog.records] == [
        "The test query 'b' has the text of the train query 'a': scores would be too high."
    ]
