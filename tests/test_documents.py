"""Metadata from corpus.jsonl to the index, and conditions on it in search."""

import json

import datasets
import numpy as np
import pyarrow.compute as pc
import pytest

from docids.clustering import DocidsConfig, build_tree
from docids.collection import read_collection
from dsi import GenerativeRetriever, SearchConfig
from dsi.documents import DocumentTable
from tests.conftest import random_generator

ONE_QUERY = {"queries": '{"_id": "q", "text": "q"}', "test": "query-id\tcorpus-id\tscore\nq\ta\t1\n"}
LANGUAGES, YEARS = ["en", "de", "fr", None], [1990, 2005, 2020]


@pytest.fixture
def folder(beir):
    """40 Minipedia documents with a language and a year each."""
    folder = beir()
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    for number, record in enumerate(records):
        record["metadata"] = {"lang": LANGUAGES[number % 4], "year": YEARS[number % 3], "tags": ["not", "plain"]}
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return folder


@pytest.fixture
def retriever(folder, encoder):
    documents = read_collection(folder).documents
    texts = encoder.document_texts(list(documents["title"]), list(documents["text"]))
    tree = build_tree(encoder.encode(texts, "document"), DocidsConfig(branching=3, max_leaf_size=3))
    settings = SearchConfig(alpha=0.4, beam_width=10)
    return GenerativeRetriever(encoder, tree, random_generator(tree), documents, settings)


CONDITIONS = [
    ("lang = 'en'", pc.field("lang") == "en", lambda n: n % 4 == 0),
    (
        "lang = 'de' and year > 2000",
        (pc.field("lang") == "de") & (pc.field("year") > 2000),
        lambda n: n % 4 == 1 and n % 3,
    ),
    ("lang is null", pc.field("lang").is_null(), lambda n: n % 4 == 3),
    ("not lang = 'en'", pc.field("lang") != "en", lambda n: n % 4 in (1, 2)),  # unknown is not different
    ("doc_id in (select doc_id from documents limit 1)", None, lambda n: n == 0),
    ("year > 3000", pc.field("year") > 3000, lambda n: False),
]


@pytest.mark.parametrize(("sql", "expression", "expected"), CONDITIONS)
def test_conditions_return_the_best_of_what_they_let_through(retriever, sql, expression, expected):
    right = np.array([bool(expected(n)) for n in range(40)])
    every = [hit.doc_id for hit in retriever.search("rivers and capitals", k=40, beam_width=40)]
    best = [doc_id for doc_id in every if right[retriever.documents.rows[doc_id]]]
    for where in (sql, expression, right):
        if where is not None:
            found = retriever.search("rivers and capitals", k=10, where=where, exact=True)
            assert [hit.doc_id for hit in found] == best[:10]
            assert found.exact


def test_filters_hold_together(retriever):
    allowed = [doc_id for doc_id, row in retriever.documents.rows.items() if row < 20]
    found = retriever.search("a river", k=10, where="year = 1990", allow=allowed, deny=[allowed[0]])
    assert {retriever.documents.rows[hit.doc_id] for hit in found} == {n for n in range(1, 20) if n % 3 == 0}


def test_metadata_survives_saving_and_updates(retriever, tmp_path):
    retriever.save_pretrained(tmp_path / "index")
    loaded = GenerativeRetriever.from_pretrained(tmp_path / "index", device="cpu")
    loaded.add(
        [
            {"doc_id": "new", "title": "New", "text": "a river", "metadata": {"lang": "it", "year": 1}},
            {"doc_id": "bare", "title": "Bare", "text": "another river"},
        ]
    )
    loaded.remove([next(iter(retriever.documents.rows))])
    assert [hit.doc_id for hit in loaded.search("a river", where="lang = 'it'")] == ["new"]
    assert {hit.doc_id for hit in loaded.search("a river", where="year is null")} == {"bare"}
    loaded.save_update(tmp_path / "index")
    again = GenerativeRetriever.from_pretrained(tmp_path / "index", device="cpu")
    assert [hit.doc_id for hit in again.search("a river", where=pc.field("lang") == "it")] == ["new"]
    with pytest.raises(
        ValueError, match=r"'x' has metadata 'land', for which the index has no column; it has lang, year"
    ):
        loaded.add([{"doc_id": "x", "title": "X", "text": "x", "metadata": {"land": "it"}}])
    with pytest.raises(ValueError, match=r"Document 'x': metadata 'year' must be of type int64, got 'late'"):
        loaded.add([{"doc_id": "x", "title": "X", "text": "x", "metadata": {"year": "late"}}])


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            "land = 'en'",
            "does not work: no such column: land; the columns are doc_id, title, lang, year",
        ),
        ("lang = ", "does not work: "),
        ("1; drop table documents", "does not work: "),
        ("1 union select * from sqlite_master", "does not work: "),
        (pc.field("land") == "en", r"\(land == \"en\"\)' does not work: No match for .*land.*; the columns are doc_id"),
        (pc.field("lang") == 3, "does not work: "),
        (np.ones(39, dtype=bool), r"where must be a mask of 40 booleans, one a document, got bool \[39\]"),
        (np.ones(40), r"where must be a mask of 40 booleans, one a document, got float64 \[40\]"),
    ],
)
def test_conditions_that_do_not_fit_are_named(retriever, where, message):
    with pytest.raises(ValueError, match=message):
        retriever.search("a river", where=where)
    assert len(retriever.search("a river", where="lang = 'en'")) == 10  # nothing was harmed


def test_a_mask_of_a_large_table_is_quick():
    count = 20_000
    table = datasets.Dataset.from_dict(
        {"doc_id": [f"d{n}" for n in range(count)], "title": [""] * count, "n": range(count)}
    )
    documents = DocumentTable(table)
    for where in ("n % 7 = 0", np.arange(count) % 7 == 0):
        assert documents.matching(where).nonzero()[0].tolist() == list(range(0, count, 7))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (["en"], r"line 2: metadata must be an object, got \['en'\]"),
        ({"title": "x"}, r"line 2: metadata must not have the key 'title'; give it another name"),
        ({"year": "late"}, r"line 2: metadata 'year' is 'late', but of type int in the lines before; give it one type"),
    ],
)
def test_metadata_that_cannot_be_columns_is_named(beir, metadata, message):
    records = [
        {"_id": "a", "text": "a", "metadata": {"year": 1}},
        {"_id": "b", "text": "b", "metadata": metadata},
    ]
    folder = beir(
        corpus="\n".join(map(json.dumps, records)),
        queries='{"_id": "q", "text": "q"}',
        test="query-id\tcorpus-id\tscore\nq\ta\t1\n",
    )
    with pytest.raises(ValueError, match=message):
        read_collection(folder)


def test_numbers_of_both_kinds_share_a_column(beir):
    records = [
        {"_id": "a", "text": "a", "metadata": {"n": 1}},
        {"_id": "b", "text": "b", "metadata": {"n": 2.5, "m": True}},
    ]
    folder = beir(
        corpus="\n".join(map(json.dumps, records)),
        queries='{"_id": "q", "text": "q"}',
        test="query-id\tcorpus-id\tscore\nq\ta\t1\n",
    )
    documents = read_collection(folder).documents
    assert list(documents["n"]) == [1.0, 2.5]
    assert list(documents["m"]) == [None, True]
