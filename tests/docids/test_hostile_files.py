"""Small files that would take hours or all memory: each is left out and counted, or read, and the others are indexed."""

import gzip
import logging
import os
import time
import zipfile

import pytest

from dsi.docids.data.collection import Collection
from tests.support.files import mail

SECONDS = 20


def aliases(path):
    levels = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))
    path.write_text(f"---\na0: &a0 [lol]\n{levels}\ntitle: *a8\n---\nWords below.\n")


def deep_front_matter(path):
    path.write_text(f"---\ntitle: {'[' * 30_000}\n---\nWords below.\n")


def deep_lists(path):
    path.write_text(f"---\ntitle:\n  {'- ' * 15_000}x\n---\nWords below.\n")


def gitignore(path):
    (path.parent / ".gitignore").write_text("*a*a*a*a*a*a*b\n**/a/**/a/**/a/**/a/**/b\n")
    path.write_text("Words.")
    (path.parent / ("a" * 200)).write_text("Words of a long name.")


def rewrite(path, member, change):
    """Change a member of a zip file."""
    with zipfile.ZipFile(path) as packed:
        held = {name: packed.read(name) for name in packed.namelist()}
    changed = change(held[member])
    assert changed != held[member]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in (held | {member: changed}).items():
            packed.writestr(name, content)


def far_row(path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["price"])
    book.active.append(["far"])
    book.save(path)
    rewrite(
        path,
        "xl/worksheets/sheet1.xml",
        lambda own: own.replace(b'r="2"', b'r="1000000000"').replace(b'"A2"', b'"A1000000000"'),
    )


def large_dimension(path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["price"])
    book.active["A1000000"] = "far"
    book.save(path)
    rewrite(path, "xl/worksheets/sheet1.xml", lambda own: own.replace(b'ref="A1:A1000000"', b'ref="A1:XFD1048576"'))


def wide_cell(path):
    docx = pytest.importorskip("docx")
    document = docx.Document()
    cell = document.add_table(1, 1).cell(0, 0)
    cell.text = "wide"
    cell._tc.get_or_add_tcPr().grid_span = 10**6
    document.save(path)


def subject(path):
    words = "\n ".join("=?utf-8?q?word?=" for _ in range(40_000))
    path.write_bytes(mail("SUBJECT", "Words.").replace(b"SUBJECT", words.encode()))


def spaces(path):
    path.write_text(f"<html><body><pre>{' ' * 400_000}x</pre><p>Words.</p></body></html>")


def blank_lines(path):
    with gzip.open(path, "wb", 9) as file:
        for _ in range(512):
            file.write(b"\n" * 2**20)


def sparse(path):
    path.write_text("id,text\n1,Words.\n")
    os.truncate(path, 2**40)


@pytest.mark.parametrize(
    ("name", "make", "found"),
    [
        ("bad.md", aliases, "front matter is not YAML (it has aliases"),
        ("bad.md", deep_front_matter, "front matter is not YAML (it is nested more than 20 deep)"),
        ("bad.md", deep_lists, "front matter is not YAML (it is nested more than 20 deep)"),
        ("bad.txt", gitignore, "patterns in .gitignore files with more than 3 * in a name: 2"),
        ("bad.xlsx", far_row, "with sheets of more than 1,048,576 rows: 1"),
        ("bad.xlsx", large_dimension, ""),
        ("bad.docx", wide_cell, ""),
        ("bad.eml", subject, "with headers of more than 65,536 characters: 1"),
        ("bad.html", spaces, ""),
        ("bad.jsonl.gz", blank_lines, "files that are broken: 1"),
        ("bad.csv", sparse, "sparse: nearly all of their bytes are holes: 1"),
    ],
)
def test_a_good_file_beside_a_hostile_one_is_read(tmp_path, caplog, name, make, found):
    (tmp_path / "good.txt").write_text("The Danube flows through Vienna.")
    make(tmp_path / name)
    started = time.monotonic()
    with caplog.at_level(logging.WARNING):
        documents = Collection.from_files(tmp_path).documents
    assert time.monotonic() - started < SECONDS
    assert "good.txt" in documents["doc_id"]
    assert found in caplog.text
    assert max(map(len, documents["text"])) < 2**20
