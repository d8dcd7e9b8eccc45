"""Tables of anything as documents, and where in files passages stand."""

import json
from functools import partial

import pandas
import pytest

from dsi.docids.data.collection import Collection
from dsi.docids.data.locations import locate
from dsi.files.headings import headings
from tests.support.files import needs_readers, read, short_folder


@pytest.fixture
def folder():
    with short_folder() as own:
        yield own


@pytest.mark.parametrize(
    ("name", "place", "address"),
    [
        ("a.pdf", "page=3", "a.pdf#page=3"),
        ("a.jsonl", "row=7", "a.jsonl:7"),
        ("a.csv", "row=7", "a.csv#row=7"),
        ("a.docx", "", "a.docx"),
        ("a.py", "line=1", "a.py:1"),
    ],
)
def test_an_address_opens_the_place(name, place, address):
    assert str(locate({"source_file": name, "source_place": place}, "# no heading of code", None)) == address
    assert locate({"source_file": name, "source_place": place}, "# A comment", None).heading == "A comment" * (
        name == "a.docx"
    )


@pytest.mark.parametrize(
    ("text", "suffix", "found"),
    [
        ("a\n---\n\nb\n===\n", ".md", ["a", "b"]),
        ("- item\n---\n", ".md", []),
        ("two\nlines\n---\n", ".md", []),
        ("````\n```\n# no\n````\n# yes", ".md", ["yes"]),
        ("Title\n~~~~~\n\nshort title\n===\n", ".rst", ["Title"]),
        ("# no comment in rst\n", ".rst", []),
    ],
)
def test_headings(text, suffix, found):
    assert [words for _, words in headings(text, suffix)] == found
    assert all(text[place:].lstrip("# ").startswith(words) for place, words in headings(text, suffix))


@needs_readers
def test_tables_of_three_columns_without_names_are_judgements_and_no_documents(folder, caplog):
    root, write = folder
    write("bare.tsv", "a\tone\nb\ttwo\n")
    write("sub/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\ta\t1\n")
    assert list(read(root)) == ["a", "b"]
    line = "files that are tables without an id and a text: 1 ('sub/qrels/test.tsv'); they are left out."
    assert caplog.messages == [f"{root}: {line}"]


@needs_readers
def test_rows_keep_their_metadata_and_get_their_place(folder):
    root, write = folder
    write("a.jsonl", json.dumps({"id": "x", "text": "one", "metadata": {"year": 1990, "source_file": "old"}}))
    (row,) = Collection.from_files(root).documents
    assert (row["year"], row["source_file"], row["source_place"]) == (1990, str(root / "a.jsonl"), "row=1")


SHOP = "Name,City,product,since,ID\nAnna,Vienna,Neon signs,2001,a1\nBert,,Bread,1990,b2\n"


@needs_readers
@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "tsv"])
def test_rows_of_a_table_of_anything_are_documents(folder, caplog, kind):
    root, write = folder
    write("shop.csv", SHOP)
    write("places.csv", SHOP.replace(",ID", "").replace(",a1", "").replace(",b2", ""))
    write("sizes.csv", "year,price,size\n2001,2.5,3\n")
    for path in [*root.glob("*.csv")] if kind != "csv" else ():
        table = pandas.read_csv(path)
        if kind == "jsonl":
            table.to_json(path.with_suffix(".jsonl"), orient="records", lines=True)
        else:
            write = table.to_parquet if kind == "parquet" else partial(table.to_csv, sep="\t", index=False)
            write(path.with_suffix(f".{kind}"))
        path.unlink()
    first = 1 if kind in ("parquet", "jsonl") else 2
    assert read(root) == {
        f"sizes.{kind}#row={first}": ("2001", "year: 2001\nprice: 2.5\nsize: 3", f"row={first}"),
        f"places.{kind}#row={first}": ("Anna", "Name: Anna\nCity: Vienna\nproduct: Neon signs", f"row={first}"),
        f"places.{kind}#row={first + 1}": ("Bert", "Name: Bert\nproduct: Bread", f"row={first + 1}"),
        "a1": ("Anna", "Name: Anna\nCity: Vienna\nproduct: Neon signs", f"row={first}"),
        "b2": ("Bert", "Name: Bert\nproduct: Bread", f"row={first + 1}"),
    }
    table = Collection.from_files(root / f"shop.{kind}").documents
    assert table["since"] == [2001, 1990]
    assert table["City"] == ["Vienna", None]
    assert "rows of tables without a column text: 4 (" in caplog.text
    assert "; these columns are their texts: Name, City, product." in caplog.text
    assert "rows of tables without a column id: 3 (" in caplog.text


@needs_readers
def test_columns_id_title_and_text_are_known_in_capitals_too(folder, caplog):
    root, write = folder
    write("notes.csv", "ID,Title,Text\n1,Neon,A gas.\n")
    assert read(root) == {"1": ("Neon", "A gas.", "row=2")}
    assert not caplog.messages


def test_a_line_of_a_spreadsheet_says_what_separates_the_columns(tmp_path):
    """Spreadsheets do not count the line: the first row below the names is row 2."""
    path = tmp_path / "metals.csv"
    path.write_bytes("\ufeffsep=;\r\nid;title;text\r\n1;Neon;A gas, noble\r\n2;Iron;A metal, heavy\r\n".encode())
    table = Collection.from_files(path).documents
    assert table["title"] == ["Neon", "Iron"]
    assert table["text"] == ["A gas, noble", "A metal, heavy"]
    assert table["source_place"] == ["row=2", "row=3"]
