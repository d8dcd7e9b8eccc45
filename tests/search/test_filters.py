"""Conditions on metadata: the rows that SQLite finds, and refusals that say where and why."""

import datetime
import math
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import datasets
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsi
from dsi.store.documents.filters import MAX_CONDITIONS, MAX_DEPTH, as_expression
from dsi.store.documents.table import DocumentTable
from tests.support.tables_of import table_of

TEXTS = ["en", "de", "EN", "o'k", "", "a_b", "a%b", "\\", "e\nn", None]
ROWS = 60
COLUMNS = {
    "lang": [TEXTS[n % 10] for n in range(ROWS)],
    "year": [None if n % 7 == 0 else (n * 37) % 11 - 5 for n in range(ROWS)],
    "score": [None if n % 5 == 0 else math.nan if n % 11 == 0 else (n % 9) / 2 for n in range(ROWS)],
    "flag": [None if n % 4 == 0 else n % 3 == 0 for n in range(ROWS)],
    'a "b" c': [TEXTS[n % 7] for n in range(ROWS)],
}
COMPARISONS = ["=", "==", "<>", "!=", "<", "<=", ">", ">="]


def quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@pytest.fixture(scope="module")
def documents():
    return table_of(COLUMNS)


@pytest.fixture(scope="module")
def sqlite():
    database = sqlite3.connect(":memory:")
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in COLUMNS)
    database.execute(f"create table documents ({names})")
    database.executemany("insert into documents values (?, ?, ?, ?, ?)", zip(*COLUMNS.values(), strict=True))
    return database


numbers = st.integers(-7, 7).map(str) | st.sampled_from(["0.5", "-1.5", "2.0", ".5", "1e0", "+3"])
texts = st.sampled_from(TEXTS[:-1]).map(quoted)
patterns = st.text(alphabet="enEN%_a\\'\n", max_size=5).map(quoted)
VALUES = {
    "lang": texts,
    "year": numbers,
    "score": numbers,
    "flag": st.sampled_from(["true", "FALSE"]),
    '"a ""b"" c"': texts,
}


@st.composite
def single_conditions(draw):
    column = draw(st.sampled_from(list(VALUES)))
    values, negation = VALUES[column], draw(st.sampled_from(["", "not "]))
    kind = draw(st.sampled_from(["compare", "in", "between", "null", "like"]))
    if kind == "null":
        return f"{column} IS {negation}null"
    if kind == "in":
        return f"{column} {negation}in ({', '.join(draw(st.lists(values, min_size=1, max_size=3)))})"
    if kind == "between":
        return f"{column} {negation}Between {draw(values)} and {draw(values)}"
    if kind == "like" and column not in ("year", "score", "flag"):
        return f"{column} {negation}like {draw(patterns)}"
    return f"{column}{draw(st.sampled_from(COMPARISONS))}{draw(values)}"


conditions = st.recursive(
    single_conditions(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "OR"]), inner).map(" ".join),
        inner.map("not {}".format),
        inner.map("({})".format),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(where=conditions)
def test_conditions_match_the_rows_that_sqlite_finds(documents, sqlite, where):
    expected = [row for (row,) in sqlite.execute(f"select rowid - 1 from documents where {where} order by 1")]
    assert documents.matching(where).nonzero()[0].tolist() == expected


@settings(max_examples=300, deadline=None)
@given(
    where=st.lists(
        st.sampled_from([*"()<>=!,'\"%-.5eé\0; ", "and", "or", "not", "lang", "year", "in", "is", "null", "'en'"])
    )
)
def test_any_text_is_a_condition_or_refused_with_its_place(documents, where):
    problem = ""
    try:
        documents.matching(" ".join(where))
    except ValueError as error:
        problem = str(error)
    assert re.fullmatch(r"|where .* does not work at character \d+: .*\.", problem, re.DOTALL)


def test_columns_may_have_any_name():
    names = ["doc_id", "rowid", "A", "a", "and", "lang-code", "", "été", "documents", *(f"key{n}" for n in range(2500))]
    documents = table_of({name: [f"{name}{row}" for row in range(3)] for name in names})
    for name in [*names[:9], names[-1]]:
        assert documents.matching(f"\"{name}\" = '{name}1'").tolist() == [False, True, False]
    for name in ("rowid", "A", "a", "été", "key2499"):
        assert documents.matching(f"{name} = '{name}2'").tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("lagn = 'en'", "at character 1: no such column: lagn; the nearest is lang, and the columns with values are lang"),
        ("zzz = 3", "at character 1: no such column: zzz; the columns with values are lang, year, score"),
        ("\"lagn\" = 'en'", "at character 1: no such column: lagn; the nearest is lang"),
        ("Lang = 'en'", "at character 1: no such column: Lang; the nearest is lang"),
        ("year > '1999'", "at character 8: year is a column of integer values, got the text '1999'; it takes numbers"),
        ("flag = 1", "at character 8: flag is a column of boolean values, got the integer 1; it takes true and false"),
        ("lang in ('en', 3)", "at character 16: lang is a column of text values, got the integer 3; it takes texts in single"),
        ("year like '1%'", "at character 11: like needs a column of texts, year is a column of integer values"),
        ("lang = en", "at character 8: expected a value; a text stands in single quotes, got en"),
        ('lang = "en"', 'at character 8: expected a value; a text stands in single quotes, got "en"'),
        ("lang = null", "at character 8: nothing equals null; write lang is null, or is not null"),
        ("lang = 'en", "at character 8: a quote is never closed"),
        ("flag", "at character 5: expected =, <>, <, <=, >, >=, in, between, like, contains or is, got the end"),
        ("1 = year", "at character 1: expected a column; a condition begins with one, got 1"),
        ("(year = 1", "at character 10: expected ), got the end"),
        ("year = 1 limit 5", "at character 10: expected `and`, `or` or the end, got limit"),
        ("year = 1 union select 1", "at character 10: expected `and`, `or` or the end, got union"),
        ("year = 1; drop table documents", "at character 9: unexpected ';'"),
        ("printf('%1000000000d', 1) = 'x'", "at character 1: no such column: printf; the columns with values are lang, year"),
        ("year > 99999999999999999999", "at character 8: year is a column of integers of 64 bits, 99999999999999999999 has"),
        ("score > 1e999", "at character 9: the number is too large or too long"),
        ("score > " + "9" * 5000, "at character 9: the number is too large or too long"),
        ("tags = 'a'", "at character 6: expected contains or is, as tags is a column of lists, got ="),
        ("tags not in ('a')", "at character 10: expected contains or is, as tags is a column of lists, got in"),
        ("tags contains 3", "at character 15: tags is a column of text values, got the integer 3; it takes texts in single"),
        ("lang contains 'en'", "contains needs a column of lists, lang is a column of text values; like '%…%' finds a part"),
        ("year contains 3", "contains needs a column of lists, year is a column of integer values."),
        ("year is full", "at character 9: expected null or empty, got full"),
        ("lang like 'a' escape '!!'", "at character 22: expected one character in single quotes, got '!!'"),
        ("lang like 'a' escape x", "at character 22: expected one character in single quotes, got x"),
        ("score > " + "0" * 51, "at character 9: the number is too large or too long"),
        ("lang like '" + "%a" * 251 + "'", "at character 11: a text after like may have 500 characters, got 502"),
        ("not " * 51 + "flag = true", "parentheses and `not` may be nested 50 deep"),
        ("(" * 5000 + "flag = true", "parentheses and `not` may be nested 50 deep"),
        (" or ".join(["year = 1"] * 1001), "a filter may have 1000 conditions; use `in (…)` or a mask of booleans"),
        ("x" * 100_001, "where must have at most 100,000 characters, got 100,001; use a mask of booleans"),
        ("lang = '\ud800'", "where must be Unicode text, got the lone surrogate '\\ud800' at character 9"),
        (3, "where must be a condition as a text, an Arrow expression or a mask of booleans, one a document, got 3"),
        ([1] * ROWS, "where must be a condition as a text, an Arrow expression or a mask of booleans, one a document, got [1"),
        ([True], f"where must be a mask of {ROWS} booleans, one a document, got [1]"),
        (pc.field("year"), "where 'year' does not work: it gives int64, not true or false; the columns with values"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_condition_is_named_with_its_place(where, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        table_of({**COLUMNS, "tags": [["a"]] * ROWS}).matching(where)


def test_a_list_of_booleans_is_a_mask(documents):
    wanted = [n % 3 == 0 for n in range(ROWS)]
    assert documents.matching(wanted).tolist() == documents.matching(np.array(wanted)).tolist() == wanted


def test_masks_of_pandas_polars_and_arrow_are_read(documents):
    wanted = [n % 3 == 0 for n in range(ROWS)]
    series = pandas.Series(wanted)
    for mask in (series, series.astype("boolean"), polars.Series(wanted), pa.array(wanted), np.array(wanted), wanted):
        assert documents.matching(mask).tolist() == wanted
        assert documents.allowed(allow=mask).tolist() == wanted
        assert documents.allowed(deny=mask).tolist() == [not own for own in wanted]
    assert documents.allowed(allow=pandas.Series([True] * ROWS)) is None
    with_ids = table_of(COLUMNS | {"doc_id": [f"d{n}" for n in range(ROWS)]})
    with pytest.raises(
        ValueError, match=re.escape(f"allow must be a mask of {ROWS} booleans, one a document, got [3].")
    ):
        with_ids.allowed(allow=pandas.Series([True, False, True]))


def test_the_labels_of_a_series_say_which_document_a_boolean_is_of():
    wanted = [n % 3 == 0 for n in range(ROWS)]
    documents = table_of(COLUMNS | {"doc_id": [str(7 * n) for n in range(ROWS)]})
    by_id = pandas.Series(wanted, index=range(0, 7 * ROWS, 7))
    left_out = pandas.Series(wanted, index=range(0, 2 * ROWS, 2))
    for mask in (by_id, by_id[::-1], by_id.sort_values(), left_out):
        assert documents.matching(mask).tolist() == wanted
    more = pandas.Series([*wanted, True, False], index=[*by_id.index, 1, 2])  # as those of removed documents
    by_number = table_of(COLUMNS | {"doc_id": [str(n) for n in range(ROWS)]})
    assert (
        by_number.matching(pandas.Series([*wanted, True, False])).tolist() == wanted
    )  # of which the last were removed
    assert documents.matching(more).tolist() == documents.matching(more[::-1]).tolist() == wanted
    for mask in (left_out[::-1], pandas.Series(wanted).sort_values(), pandas.Series(wanted, index=["x"] * ROWS)):
        with pytest.raises(
            ValueError, match=r"labels are neither the doc_ids nor in the order.* or give where\.to_numpy\(\)"
        ):
            documents.matching(mask)


def test_lists_contain_values_and_missing_ones_are_unknown():
    day = datetime.date(2024, 1, 15)
    documents = table_of(
        {
            "readers": [["anna", "bert"], ["Anna"], [], None, ["joanna", None], ["o'k"]],
            "years": [[1, 2], [2**53 + 1], [], None, [-1], [2]],
            "shares": [[0.5], [math.nan], [], None, [1.0], []],
            "flags": [[True], [False], [], None, [True, False], []],
            "days": pa.array([[day], [], [], None, [], []], pa.list_(pa.date32())),
        }
    )
    found = {
        "readers contains 'anna'": [0], "readers contains 'o''k'": [5], "readers not contains 'anna'": [1, 2, 4, 5],
        "not readers contains 'anna'": [1, 2, 4, 5], "readers contains 'anna' and readers contains 'bert'": [0],
        "readers contains 'anna' or readers contains 'o''k'": [0, 5], "readers is null": [3], "readers is empty": [2, 3],
        "readers is not empty": [0, 1, 4, 5], "years contains 2": [0, 5], f"years contains {2**53 + 1}": [1],
        f"years contains {2**53}": [], "years contains 1.5": [], "shares contains 1": [4], "flags contains true": [0, 4],
        "days contains '2024-01-15'": [0],
    }  # fmt: skip
    for where, rows in found.items():
        assert documents.matching(where).nonzero()[0].tolist() == rows, where


def test_an_escaped_character_of_like_stands_for_itself_and_empty_texts_are_empty():
    documents = table_of({"share": ["50%", "50 parts", "a_b", "axb", "", None]})
    found = {
        "share like '50!%' escape '!'": [0], "share like '50%'": [0, 1], "share like 'a!_b' ESCAPE '!'": [2],
        "share like 'a_b'": [2, 3], "share is empty": [4, 5], "share is not empty": [0, 1, 2, 3],
    }  # fmt: skip
    for where, rows in found.items():
        assert documents.matching(where).nonzero()[0].tolist() == rows, where


def test_conditions_at_the_limits_are_evaluated_in_any_thread():
    wide = " or ".join(f"year = {n}" for n in range(MAX_CONDITIONS))
    deep = "(" * MAX_DEPTH + "year = 1" + ")" * MAX_DEPTH
    among = f"year in ({', '.join(map(str, range(10_000)))})"
    documents = table_of(COLUMNS)
    positive = [year is not None and year >= 0 for year in COLUMNS["year"]]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(documents.matching, [wide, deep, among] * 4))
    for a, b, c in zip(found[::3], found[1::3], found[2::3], strict=True):
        assert a.tolist() == c.tolist() == positive
        assert b.tolist() == [year == 1 for year in COLUMNS["year"]]


def test_numbers_are_compared_exactly():
    big = 2**53 + 1
    documents = table_of(
        {
            "n": [big, big - 1, None],
            "small": pa.array([1, 2, None], pa.int8()),
            "x": pa.array([0.5, 1, None], pa.float32()),
        }
    )
    assert documents.matching(f"n = {big}").tolist() == [True, False, False]
    assert documents.matching(f"n in ({big}, 1.5)").tolist() == [True, False, False]
    assert documents.matching(f"n not in ({big}, 1.5)").tolist() == [False, True, False]
    assert documents.matching("n > 0.5").tolist() == [True, True, False]
    assert documents.matching("small <= 1000").tolist() == [True, True, False]
    assert documents.matching("x = 0.5 or x = 1").tolist() == [True, True, False]


def test_an_expression_needs_columns_only():
    table = pa.table({"lang": ["en", "de"]})
    expression, same = as_expression("lang = 'de'", table)
    assert same is table
    mask = DocumentTable(datasets.Dataset(table)).matching(expression)
    assert mask.tolist() == [False, True]
    assert mask.dtype == np.bool_


IDS = ["neon", "10", "danube"]
TABLES = {
    "a DataFrame": lambda ids: pandas.DataFrame({"title": ids, "doc_id": ids}),
    "a DataFrame of another key": lambda ids: pandas.DataFrame({"_id": ids}),
    "a series": pandas.Series,
    "a series with an index": lambda ids: pandas.Series(ids, index=range(5, 5 + len(ids))),
    "an Arrow table": lambda ids: pa.table({"id": ids}),
    "a data set": lambda ids: datasets.Dataset.from_dict({"docno": ids}),
    "records": lambda ids: [{"doc_id": own} for own in ids],
    "an array": np.array,
    "a generator": lambda ids: (own for own in ids),
}


@pytest.fixture(scope="module")
def six(sentence_t5_folder):
    """An index of six documents; not to be changed."""
    texts = [{"doc_id": own, "text": f"About {own}."} for own in (*IDS, "argon", "11", "rhine")]
    return dsi.index(texts, encoder=str(sentence_t5_folder), device="cpu")


@pytest.mark.parametrize("table", TABLES)
def test_documents_are_named_by_tables_of_ids(six, table):
    retriever, make = copy(six), TABLES[table]
    assert {hit.doc_id for hit in retriever.search("about", allow=make(IDS))} == {*IDS}
    assert {hit.doc_id for hit in retriever.search("about", deny=make(IDS))} == {"argon", "11", "rhine"}
    assert [document.doc_id for document in retriever.get(make(IDS))] == IDS
    assert {hit.doc_id for hit in retriever.search("about", allow=make([10, 11]))} == {"10", "11"}
    assert retriever.remove(make(IDS)) == 3
    assert {*retriever.snapshot.documents.rows} == {"argon", "11", "rhine"}


def test_a_table_without_a_column_of_ids_is_refused():
    documents = DocumentTable(datasets.Dataset.from_dict({"doc_id": IDS, "title": IDS}))
    with pytest.raises(
        ValueError, match=r"allow\[0\] has no doc_id: none of the keys _id, doc_id, .*; its keys are 'name'"
    ):
        documents.allowed(allow=pandas.DataFrame({"name": IDS}))
    with pytest.raises(ValueError, match=r"allow names the doc_id '', which is not in the index"):
        documents.allowed(allow=pandas.Series(["neon", None]))
