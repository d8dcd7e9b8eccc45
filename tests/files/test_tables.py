"""Tables of anything: rows become documents, whatever their columns, separators and encodings."""

import logging

import pytest

from dsi.docids.data.collection import Collection

TARO = "太郎さんは本を読みます"
NAMES = "name,city,since\nAda,Wien,1990\nBob,Graz,2001\n"


def read(tmp_path, name, content):
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    table = Collection.from_files(tmp_path / name).documents
    return [(row["doc_id"].removeprefix(f"{name}#"), row["title"], row["text"]) for row in table]


@pytest.mark.parametrize(
    ("name", "content", "documents"),
    [
        ("a.csv", NAMES, [("row=2", "Ada", "name: Ada\ncity: Wien"), ("row=3", "Bob", "name: Bob\ncity: Graz")]),
        ("a.csv", "name;note\nAda;one, two\n", [("row=2", "Ada", "name: Ada\nnote: one, two")]),
        ("a.csv", "name|note\nAda|one\n", [("row=2", "Ada", "name: Ada\nnote: one")]),
        ("a.csv", "name\tnote\nAda\tone\n", [("row=2", "Ada", "name: Ada\nnote: one")]),
        ("a.tsv", NAMES.replace(",", "\t")[:30], [("row=2", "Ada", "name: Ada\ncity: Wien")]),
        ("a.csv", "only\nx\ny\n", [("row=2", "x", "only: x"), ("row=3", "y", "only: y")]),
        ("a.csv", "text\nx\n", [("row=2", "", "x")]),
        ("a.csv", "id,note\n1,\n2,later\n", [("1", "", ""), ("2", "later", "note: later")]),
        ("a.csv", "year,amount\n1990,3.5\n", [("row=2", "1990", "year: 1990\namount: 3.5")]),
        ("a.csv", "ID,Title,Body\n1,T,words\n", [("1", "T", "Body: words")]),
        ("a.csv", "Name,Ort\nJürgen,Köln\n".encode("cp1252"), [("row=2", "Jürgen", "Name: Jürgen\nOrt: Köln")]),
        ("a.csv", f"名前\n{TARO}\n".encode("cp932"), [("row=2", TARO, f"名前: {TARO}")]),
        ("a.csv", NAMES[:30].encode("utf-16"), [("row=2", "Ada", "name: Ada\ncity: Wien")]),
        ("a.jsonl", '{"name": "Ada"}\n{"city": "Graz"}\n', [("row=1", "Ada", "name: Ada"), ("row=2", "Graz", "city: Graz")]),
    ],
)  # fmt: skip
def test_rows_of_a_table_of_anything_are_documents(tmp_path, name, content, documents):
    assert read(tmp_path, name, content) == documents


def test_a_line_names_the_columns_that_were_taken(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        read(tmp_path, "a.csv", "name,note\nAda,\nBob,words\n")
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        "rows of tables without a column id: 2 ('a.csv'); file and row are their ids.",
        "rows of tables without a column text: 2 ('a.csv'); these columns are their texts: name, note.",
    ]
