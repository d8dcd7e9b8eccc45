"""Small files that take hours, all memory or the program: each is counted and left out, or read, and the others are indexed."""

import gzip
import logging
import os
from contextlib import closing
from types import SimpleNamespace

import pytest

from dsi.docids.data.collection import Collection
from dsi.files import worker
from dsi.files.worker import Worker
from tests.support.files import mail
from tests.support.office import rezipped, word

SECONDS = 20
"""Of the processor, in this process and in those that it started."""


def seconds():
    """Seconds of the processor so far."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


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


def large_gitignore(path):
    path.write_text("Words.")
    (path.parent / ".gitignore").touch()
    os.truncate(path.parent / ".gitignore", 2**40)


def rewrite(path, member, change):
    """Change a member of a zip file."""
    path.write_bytes(rezipped(path.read_bytes(), {}, lambda name, data: change(data) if name == member else data))


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


def forms(path):
    """A page that shows a form ten times, which shows another one ten times, and so on."""
    kids = [
        f"<</Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X {number + 1} 0 R>>/Font<</F1 3 0 R>>>>/Length 60>>"
        f"stream\n{'/X Do ' * 10 if number < 19 else 'BT /F1 9 Tf (deep) Tj ET'}\nendstream"
        for number in range(10, 20)
    ]
    objects = {
        1: "<</Type/Catalog/Pages 2 0 R>>",
        2: "<</Type/Pages/Kids[4 0 R]/Count 1>>",
        3: "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        4: "<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Resources<</XObject<</X 10 0 R>>>>/Contents 5 0 R>>",
        5: "<</Length 6>>stream\n/X Do \nendstream",
        **dict(enumerate(kids, start=10)),
    }
    written = "%PDF-1.4\n" + "".join(f"{number} 0 obj{own}endobj\n" for number, own in objects.items())
    path.write_text(f"{written}trailer<</Root 1 0 R/Size 20>>\n%%EOF")


def entities(path):
    levels = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    head = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 "lol">{levels}]>'.encode()
    path.write_bytes(word("<w:p><w:r><w:t>MARK</w:t></w:r></w:p>"))
    body = "word/document.xml"
    rewrite(path, body, lambda own: head + own[own.index(b"?>") + 2 :].replace(b"MARK", b"&a9;"))


def packed(path):
    path.write_bytes(word())
    blank = b" " * 2**29
    rewrite(path, "word/document.xml", lambda own: own.replace(b"Begin.", blank))


def deep_page(path):
    path.write_text("<div>" * 200_000 + "deep")


def many_cells(path):
    path.write_text("<table>" + "<tr>" + "<td>" * 1_500_000)


def deep_notebook(path):
    path.write_text('{"cells": ' + "[" * 200_000)


def deep_mail(path):
    path.write_bytes(b"Content-Type: message/rfc822\n\n" * 20_000 + b"deep")


def links(path):
    path.write_text("[" * 300_000 + "\n# " + "[a](" * 100_000 + "\n" + "<!--\n" * 9_999 + "```\n" * 9_999)


def sparse(path):
    path.write_text("id,text\n1,Words.\n")
    os.truncate(path, 2**40)


@pytest.mark.parametrize(
    ("name", "make", "found"),
    [
        ("bad.md", deep_front_matter, "front matter that is neither YAML nor TOML: 1"),
        ("bad.md", deep_lists, "front matter that is neither YAML nor TOML: 1"),
        ("bad.md", links, ""),
        ("bad.txt", gitignore, "patterns in .gitignore files with more than 3 * in a name: 2"),
        ("bad.txt", large_gitignore, ".gitignore files larger than 64 KB: 1"),
        ("bad.xlsx", large_dimension, ""),
        ("bad.docx", wide_cell, ""),
        ("bad.eml", subject, ""),
        ("bad.html", spaces, ""),
        ("bad.html", deep_page, ""),
        ("bad.html", many_cells, ""),
        ("bad.pdf", forms, ""),
        ("bad.docx", entities, ""),
        ("bad.docx", packed, ""),
        ("bad.ipynb", deep_notebook, "files that are broken: 1"),
        ("bad.eml", deep_mail, ""),
        ("bad.jsonl.gz", blank_lines, "files that are broken: 1"),
        ("bad.csv", sparse, "sparse: nearly all of their bytes are holes: 1"),
    ],
)
@pytest.mark.programs
def test_a_good_file_beside_a_hostile_one_is_read(tmp_path, caplog, name, make, found):
    (tmp_path / "good.txt").write_text("The Danube flows through Vienna.")
    make(tmp_path / name)
    started = seconds()
    with caplog.at_level(logging.WARNING):
        documents = Collection.from_files(tmp_path).documents
    assert seconds() - started < SECONDS
    assert "good.txt" in documents["doc_id"]
    assert found in caplog.text
    assert max(map(len, documents["text"])) < 2**20


@pytest.mark.programs
def test_of_many_hostile_files_each_is_left_out_and_the_good_ones_among_them_are_read(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(worker, "_SECONDS", 0.5)
    for number in range(3):
        (tmp_path / f"{number}a.txt").write_text(f"Good words {number}.")
        aliases(tmp_path / f"{number}b.md")
    far_row(tmp_path / "3.xlsx")
    assert Collection.from_files(tmp_path).documents["doc_id"][:] == ["0a.txt", "1a.txt", "2a.txt"]
    assert "too slow to read (over 0.5 seconds, and 2 more a megabyte): 4 ('0b.md', '1b.md', '2b.md', …)" in caplog.text


def test_a_process_that_ends_within_an_answer_costs_that_file():
    reader = Worker()
    lines = [b'["line=1", "A", "Words.", {}, ""]\n', b'""\n', b'["line=1", "B", "Wor']
    reader._child = SimpleNamespace(stdout=lines, kill=lambda: None, communicate=lambda: None)
    assert texts(reader._take(2)) == [["Words."]]
    assert reader._child is None


def texts(answers):
    return [[part.text for part in answer.parts] or str(answer.error) for answer in answers]


def test_a_crash_ends_one_file_and_the_others_are_read(tmp_path, monkeypatch):
    """The second of three files ends the process that reads it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'dsi.files.worker' in sys.orig_argv:\n"
        "    import os, pathlib\n"
        "    opened = pathlib.Path.open\n"
        "    pathlib.Path.open = lambda own, *rest: os._exit(9) if own.name == 'b.txt' else opened(own, *rest)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    paths = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    for path in paths:
        path.write_text(path.stem)
    with closing(Worker()) as reader:
        reader.ask(paths)
        assert texts(reader.answers(paths)) == [["a"], "broken (they crash the parser)", ["c"]]
        reader.ask(paths[1:2])
        assert texts(reader.answers(paths[1:2])) == ["broken (they crash the parser)"]
        reader.ask(paths[:1])
        assert texts(reader.answers(paths[:1])) == [["a"]]
    assert reader._child is None
