"""Reading BEIR folders, and every complaint about them."""

import gzip
import json

import pytest

from docids.collection import cut_dev, read_collection
from tests.conftest import MINIPEDIA

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


def test_at_most_a_tenth_of_train_becomes_dev():
    train, dev = cut_dev({f"q{n}": {"a": 1} for n in range(50)}, 500, 0)
    assert (len(train), len(dev)) == (45, 5)


def test_documents_without_words_are_named_and_kept(beir, caplog):
    empty = '{"_id": "b", "title": " ", "text": ""}'
    assert list(read_collection(beir(DOC + "\n" + empty, QUERY, test=QRELS)).documents["doc_id"]) == ["a", "b"]
    assert "line 2: document 'b' has neither title nor text" in caplog.text


@pytest.mark.parametrize(
    ("corpus", "queries", "qrels", "message"),
    [
        ("", QUERY, QRELS, r"corpus.jsonl holds no documents"),
        (DOC + "\n{bad", QUERY, QRELS, r"corpus.jsonl, line 2: not valid JSON .* got '\{bad'"),
        (DOC + "\n[1]", QUERY, QRELS, r"corpus.jsonl, line 2: expected a JSON object"),
        (DOC + "\n" + DOC, QUERY, QRELS, r"corpus.jsonl, line 2: duplicate doc_id 'a'"),
        ('{"_id": 7, "text": "t"}', QUERY, QRELS, r"line 1: key '_id' must be a string, got 7"),
        ('{"_id": "a", "title": "t"}', QUERY, QRELS, r"line 1: key 'text' must be a string, got None"),
        (DOC, "", QRELS, r"queries.jsonl holds no queries"),
        (DOC, QUERY + "\n" + QUERY, QRELS, r"queries.jsonl, line 2: duplicate query_id 'q'"),
        (DOC, '{"_id": "q", "text": "  "}', QRELS, r"query 'q' has empty text"),
        (DOC, QUERY, QRELS + "\nz\ta\t1", r"test.tsv, line 3: query_id 'z' is not in queries.jsonl"),
        (DOC, QUERY, QRELS + "\nq\tz\t1", r"test.tsv, line 3: doc_id 'z' is not in corpus.jsonl"),
        (DOC, QUERY, QRELS + "\nq a 1", r"test.tsv, line 3: expected query-id<TAB>corpus-id<TAB>integer score"),
        (DOC, QUERY, QRELS + "\nq\ta\tyes", r"line 3: expected .* got 'q\\ta\\tyes'"),
    ],
)
def test_bad_content_is_named_with_its_line(beir, corpus, queries, qrels, message):
    with pytest.raises(ValueError, match=message):
        read_collection(beir(corpus, queries, test=qrels))


def test_missing_files_are_named(beir, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"collection folder .*nowhere does not exist"):
        read_collection(tmp_path / "nowhere")
    folder = beir(DOC, QUERY, test=QRELS)
    (folder / "queries.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"queries.jsonl \(or queries.jsonl.gz\) does not exist"):
        read_collection(folder)
    (folder / "queries.jsonl").write_text(QUERY)
    (folder / "qrels" / "test.tsv").unlink()
    with pytest.raises(FileNotFoundError, match="No judgements in"):
        read_collection(folder)
