"""Metadata from corpus.jsonl to the index, and conditions on it in search."""

import json
import re
from datetime import date
from itertools import product

import datasets
import numpy as np
import pyarrow.compute as pc
import pytest

from dsi import Config, SearchConfig
from dsi.commands.main import main
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.data import records as record_checks
from dsi.docids.data.collection import Collection, read_collection, read_documents
from dsi.docids.schemes import Docids, SchemeInput, make_docids
from dsi.docids.vectors import VectorsConfig
from dsi.store.documents.table import DocumentTable
from dsi.store.folder.loading import load_docids
from dsi.store.retriever import load
from dsi.training.docids_stage import save_docids_stage
from tests.support.files import needs_readers, own
from tests.support.parts import from_parts

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
    settings = SearchConfig(alpha=0.4, beam_width=3)
    return from_parts(encoder, tree, None, documents, settings)


CONDITIONS = [
    ("lang = 'en'", pc.field("lang") == "en", lambda n: n % 4 == 0),
    (
        "lang = 'de' and year > 2000",
        (pc.field("lang") == "de") & (pc.field("year") > 2000),
        lambda n: n % 4 == 1 and n % 3,
    ),
    ("lang is null", pc.field("lang").is_null(), lambda n: n % 4 == 3),
    ("not lang = 'en'", pc.field("lang") != "en", lambda n: n % 4 in (1, 2)),  # unknown is not different
    ("lang not in ('en', 'fr') and not (year between 1991 and 2019)", None, lambda n: n % 4 == 1 and n % 3 != 1),
    ("year > 3000", pc.field("year") > 3000, lambda n: False),
]


@pytest.mark.parametrize(("sql", "expression", "expected"), CONDITIONS)
def test_conditions_return_the_best_of_what_they_let_through(retriever, sql, expression, expected):
    right = np.array([bool(expected(n)) for n in range(40)])
    every = [hit.doc_id for hit in retriever.search("rivers and capitals", k=40, method="exact")]
    best = [doc_id for doc_id in every if right[retriever.snapshot.documents.rows[doc_id]]]
    for where, method in product((sql, expression, right), ("generate", "exact")):
        if where is not None:
            found = retriever.search("rivers and capitals", k=10, where=where, method=method)
            assert [hit.doc_id for hit in found] == best[:10]
            assert found.exact


def test_filters_hold_together(retriever):
    allowed = [doc_id for doc_id, row in retriever.snapshot.documents.rows.items() if row < 20]
    found = retriever.search("a river", k=10, where="year = 1990", allow=allowed, deny=[allowed[0]])
    assert {retriever.snapshot.documents.rows[hit.doc_id] for hit in found} == {n for n in range(1, 20) if n % 3 == 0}


def test_metadata_survives_saving_and_updates(retriever, tmp_path):
    retriever.save(tmp_path / "index")
    loaded = load(tmp_path / "index", device="cpu")
    loaded.add(
        [
            {"doc_id": "new", "title": "New", "text": "a river", "metadata": {"lang": "it", "year": 1}},
            {"doc_id": "bare", "title": "Bare", "text": "another river"},
        ]
    )
    loaded.remove([next(iter(retriever.snapshot.documents.rows))])
    assert [hit.doc_id for hit in loaded.search("a river", where="lang = 'it'")] == ["new"]
    assert {hit.doc_id for hit in loaded.search("a river", where="year is null")} == {"bare"}
    loaded.save(tmp_path / "index")
    again = load(tmp_path / "index", device="cpu")
    assert [hit.doc_id for hit in again.search("a river", where=pc.field("lang") == "it")] == ["new"]
    with pytest.raises(
        ValueError, match=r"'x' has metadata 'land', for which the index has no column; it has topic, lang, year, tags"
    ):
        loaded.add([{"doc_id": "x", "title": "X", "text": "x", "metadata": {"land": "it"}}])
    with pytest.raises(ValueError, match=r"Document 'x': metadata 'year' must be of type int64, got 'late'"):
        loaded.add([{"doc_id": "x", "title": "X", "text": "x", "metadata": {"year": "late"}}])


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            "land = 'en'",
            "no such column: land; the nearest is lang, and the columns with values are doc_id, title, topic, lang, year",
        ),
        ("lang = ", "does not work at character 8: expected a value, got the end"),
        ("year > '1999'", "does not work at character 8: year is a column of integer values, got the text '1999'"),
        (
            pc.field("land") == "en",
            r"\(land == \"en\"\)' does not work: No match for .*land.*; the columns with values are doc_id",
        ),
        (pc.field("lang") == 3, "does not work: "),
        (np.ones(39, dtype=bool), r"where must be a mask of 40 booleans, one a document, got \[39\]"),
        (np.ones(40), r"or a mask of booleans, one a document, got float64 \[40\]"),
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
    for where in ("n < 7", np.arange(count) < 7):
        assert documents.matching(where).nonzero()[0].tolist() == list(range(7))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (["en"], r"line 2: metadata must be an object, got \['en'\]"),
        ({"title": "x"}, r"line 2: metadata must not have the key 'title'; give it another name"),
        ({"DOC_ID": "x"}, r"line 2: metadata must not have the key 'DOC_ID'; give it another name"),
        ({"a\0b": "x"}, r"line 2: the key 'a.x00b' of metadata must not hold NUL; give it another name"),
        ({"year": 2**63}, r"line 2: metadata 'year' must be an integer of at most 64 bits, got 9223372036854775808"),
        ({"lang": "\ud800"}, r"line 2: metadata 'lang' must be Unicode text, got the lone surrogate"),
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


def test_rare_keys_of_a_large_table_are_left_out(monkeypatch, caplog):
    monkeypatch.setattr(record_checks, "_LARGE_TABLE", 2000)
    rows = [
        {"id": "x", "text": "a", **{f"k{n}": n for n in range(40)}},
        *({"id": str(n), "text": "a"} for n in range(99)),
    ]
    assert len(Collection.from_records(rows[:49]).documents.column_names) == 43
    caplog.clear()
    assert len(Collection.from_records(rows).documents.column_names) < 43
    assert any("metadata keys that few documents have: " in message for message in caplog.messages)
    many = [{"id": "x", "text": "a", **dict.fromkeys(map(str, range(998)), 0)}]
    assert len(Collection.from_records(many).documents.column_names) == 1000


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


def test_keys_that_differ_in_case_are_different_columns(beir):
    records = [{"_id": "a", "text": "a", "metadata": {"A": 1, "a": 2, "rowid": "x"}}, {"_id": "b", "text": "b"}]
    documents = DocumentTable(read_collection(beir("\n".join(map(json.dumps, records)), **ONE_QUERY)).documents)
    assert documents.matching("A = 1 and a = 2 and rowid = 'x'").tolist() == [True, False]
    assert documents.matching("doc_id = 'b'").tolist() == [False, True]


NEW = {"doc_id": "new", "title": "New", "text": "a river"}
RECORDS = [
    ({"doc_id": 3.5}, "must be a string, got 3.5"),
    ({"doc_id": ""}, "doc_id '' must be a text that is not empty, without NUL and line ends"),
    ({"doc_id": "a\ud800"}, "must be Unicode text, got the lone surrogate '\\ud800' at character 2"),
    ({"_id": "other"}, "_id is 'other', but doc_id is 'new'; give one doc_id"),
    ({"title": 3}, "key 'title' must be a string, got 3"),
    ({"text": "a\udfff"}, "key 'text' must be Unicode text, got the lone surrogate"),
    ({"metadata": ["en"]}, "metadata must be an object, got ['en']"),
    ({"metadata": {"Title": "x"}}, "metadata must not have the key 'Title'; give it another name"),
    ({"metadata": {"year": 2**63}}, "metadata 'year' must be an integer of at most 64 bits"),
]


@pytest.mark.parametrize(("change", "message"), RECORDS)
def test_a_corpus_and_an_update_refuse_the_same_documents(beir, retriever, change, message):
    record = {**NEW, **change}
    with pytest.raises(ValueError, match=re.escape(message)):
        retriever.add([record])
    with pytest.raises(ValueError, match=re.escape(message)):
        read_collection(beir(json.dumps(record), **ONE_QUERY))
    assert len(retriever.snapshot.documents) == 40


def test_a_corpus_and_an_update_take_the_same_documents(folder, retriever):
    records = [
        {"_id": "b1", "text": "by _id", "metadata": {"lang": "it", "tags": ["left", "out"], "year": None}},
        {"doc_id": "b2", "_id": "b2", "text": "by both", "metadata": None},
        {"doc_id": "b3", "title": "By doc_id", "text": "\0 is a character", "metadata": {}},
        {"id": 4, "title": None, "text": "by a whole number"},
    ]
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.writelines("\n" + json.dumps(record) for record in records)
    retriever.add(record for record in records)
    table = retriever.snapshot.documents.table
    assert table.slice(40, 4).to_pydict() == read_collection(folder).documents.select(range(40, 44)).to_dict()


def test_columns_take_values_of_their_type_only(encoder):
    documents = datasets.Dataset.from_dict(
        {"doc_id": ["a", "b", "c", "d"], "title": list("abcd"), "n": [1, 2, 3, 4], "x": [0.5] * 4, "flag": [True] * 4}
    )
    tree = build_tree(encoder.encode(["passage: " + name for name in "abcd"], "document"), DocidsConfig(branching=2))
    retriever = from_parts(encoder, tree, None, documents)
    for name, value in [("n", 1.9), ("n", 2.0), ("n", True), ("x", True), ("x", "1"), ("flag", 1), ("flag", "true")]:
        with pytest.raises(ValueError, match=rf"Document 'new': metadata '{name}' must be of type .*, got {value!r}"):
            retriever.add([{**NEW, "metadata": {name: value}}])
    with pytest.raises(ValueError, match=r"metadata 'n' must be of type int64, got \[1\]"):
        retriever.add([{**NEW, "metadata": {"n": (1,)}}])
    retriever.add([{**NEW, "metadata": {"n": np.int64(5), "x": 3, "flag": None}}])
    assert retriever.get("new").metadata == {"n": 5, "x": 3.0}
    assert type(retriever.get("new").metadata["x"]) is float


TAGGED = {**NEW, "lang": "it", "year": date(2001, 2, 3), "tags": ["a"], "metadata": {"by": {"name": "b"}, "n": 1}}


@needs_readers
def test_every_door_takes_further_keys_as_metadata_and_counts_what_no_column_can_hold(tmp_path, encoder, caplog):
    """From memory, from a corpus.jsonl, from a folder of texts, by `add` and by `dsi update --add`."""
    line = json.dumps(TAGGED, default=str)
    for name in ("corpus.jsonl", "notes/lines.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(line)
    held = {
        "doc_id": list("abc"),
        "title": list("abc"),
        "text": list("abc"),
        "lang": ["x"] * 3,
        "year": [date(2000, 1, 1)] * 3,
        "tags": [["x"]] * 3,
        "n": [0] * 3,
    }
    tree = build_tree(encoder.encode(["passage: " + name for name in "abc"], "document"), DocidsConfig(branching=2))
    retriever = from_parts(encoder, tree, None, datasets.Dataset.from_dict(held))
    retriever.save(tmp_path / "run")
    told = []
    for door in (
        lambda: Collection.from_records([TAGGED, {**TAGGED, "doc_id": "d"}]).documents[0],
        lambda: read_documents(tmp_path)[0],
        lambda: own(Collection.from_files(tmp_path / "notes").documents[0]),
        lambda: retriever.add([TAGGED, {**TAGGED, "doc_id": "d"}]) or vars_of(retriever.get("new")),
        lambda: (
            main(["update", str(tmp_path / "run"), "--device", "cpu", "--add", str(tmp_path / "corpus.jsonl")])
            or vars_of(load(tmp_path / "run", device="cpu").get("new"))
        ),
    ):
        caplog.clear()
        assert door() == {**NEW, "lang": "it", "year": date(2001, 2, 3), "tags": ["a"], "n": 1}
        told.append([message for message in caplog.messages if "metadata" in message])
    for messages in told:
        (by,) = messages
        assert re.search(r"objects as metadata 'by': [12] \('.*'\); they are left out\.", by)


def vars_of(document):
    return {"doc_id": document.doc_id, "title": document.title, "text": document.text, **document.metadata}


def test_a_text_or_metadata_that_is_given_twice_is_named():
    for record, message in [
        ({**NEW, "contents": "b"}, r"documents\[0\]: text is 'a river', but contents is 'b'; give one text"),
        ({**NEW, "n": 1, "metadata": {"n": 2}}, r"documents\[0\]: 'n' is 1, but 2 in metadata; give one"),
    ]:
        with pytest.raises(ValueError, match=message):
            Collection.from_records([record])


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (
            [{**NEW, "colour": "red"}],
            "'new' has metadata 'colour', for which the index has no column; it has topic, lang, year, tags. Leave it out, or",
        ),
        ([3], r"documents\[0\] must be a dictionary, got 3"),
        ("new", "documents must be a list or an iterator of dictionaries.* got 'new'"),
        (None, "documents must be a list or an iterator of dictionaries.* got None"),
        (
            [{"doc_id": "new", "title": "no text"}],
            r"documents\[0\] has no text: none of the keys text, contents has a value; its keys",
        ),
    ],
)
def test_what_is_no_document_is_not_added(retriever, documents, message):
    with pytest.raises((ValueError, TypeError), match=message):
        retriever.add(documents)


def test_a_document_is_read_by_its_id(retriever, folder):
    first = read_collection(folder).documents[0]
    found = retriever.get(first["doc_id"])
    (hit,) = retriever.search("river", k=1, allow=[first["doc_id"]])
    assert (found.title, found.text) == (first["title"], first["text"])  # this index was made with texts
    assert found.metadata == {"topic": first["topic"], "lang": "en", "year": 1990, "tags": ["not", "plain"]}
    assert found.digits == hit.digits
    assert hit.text == first["text"]
    without = from_parts(
        retriever.snapshot.encoder,
        retriever.snapshot.tree,
        retriever.snapshot.generator,
        retriever.snapshot.documents.table.drop_columns(["text"]),
    )
    assert without.get(first["doc_id"]).text is None
    assert without.search("river", k=3)[2].text is None


@pytest.mark.parametrize("chosen", [[3], [0, 39, 7], range(40)])
def test_documents_are_replaced_in_one_step(retriever, chosen, monkeypatch):
    before, doc_ids = retriever.snapshot, list(retriever.snapshot.documents.rows)
    table, engine = retriever.snapshot.documents, retriever.snapshot.engine
    untouched = {doc_id: retriever.get(doc_id) for row, doc_id in enumerate(doc_ids) if row not in chosen}
    snapshots = []
    monkeypatch.setattr(retriever, "_change", lambda content, hold=retriever._change: snapshots.append(hold(content)))
    new = [{"doc_id": doc_ids[row], "title": f"Title {row}", "text": f"text {row}"} for row in chosen]
    with pytest.raises(ValueError, match="is in the index already; replace it"):
        retriever.add(new)
    with pytest.raises(ValueError, match="duplicate doc_id"):
        retriever.add([*new, new[0]], replace=True)
    with pytest.raises(ValueError, match="replace must be True or False, got 'no'"):
        retriever.add(new, replace="no")
    assert retriever.snapshot.documents is table
    assert retriever.snapshot.engine is engine
    retriever.add([*new, NEW], replace=True)
    assert len(snapshots) == 1
    assert set(retriever.snapshot.documents.rows) == {*doc_ids, "new"}
    assert {doc_id: retriever.get(doc_id) for doc_id in untouched} == untouched
    for document in [*new, NEW]:
        found = retriever.get(document["doc_id"])
        assert (found.title, found.text, found.metadata) == (document["title"], document["text"], {})
        (hit,) = retriever.search(document["text"], k=1, allow=[document["doc_id"]])
        assert (hit.title, hit.text, hit.digits) == (found.title, found.text, found.digits)
    assert len(before.documents) == 40  # a search that runs meanwhile sees the index as it was


@pytest.mark.parametrize(("paths", "told"), [([[7], [7], [7]], True), ([[7], [7], [8]], False), ([[7]], False)])
def test_docids_that_tell_no_documents_apart_are_told(tmp_path, caplog, paths, told):
    names = ["a", "b", "c"][: len(paths)]
    documents = datasets.Dataset.from_dict(dict.fromkeys(("doc_id", "title", "text"), names))
    vectors = np.eye(len(paths), 3, dtype=np.float32)
    save_docids_stage(Docids.from_paths(paths), vectors, documents, tmp_path, VectorsConfig())
    assert ("All docids begin with 7" in caplog.text) is told


@pytest.mark.parametrize(("megabytes", "kept", "told"), [(2, True, False), (1, False, True), (0, False, False)])
def test_texts_are_kept_up_to_a_size_that_is_told(tmp_path, caplog, megabytes, kept, told):
    columns = {"doc_id": ["a", "b", "c"], "title": ["A", "B", ""], "text": ["x" * 600_000] * 3}
    vectors = np.eye(3, dtype=np.float32)
    docids = make_docids(SchemeInput(vectors, DocidsConfig(branching=2)))
    documents = datasets.Dataset.from_dict(columns)
    save_docids_stage(docids, vectors, documents, tmp_path, VectorsConfig(), text_megabytes=megabytes)
    assert ("text" in load_docids(tmp_path)[1].column_names) == kept
    message = f"The documents' texts take 2 MB, more than text_megabytes = {megabytes}: the index keeps titles only."
    assert caplog.messages == [message] * told
    assert Config().text_megabytes == 1000
