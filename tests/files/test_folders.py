"""Folders of files of every kind as documents: texts and titles, what is left out and counted, and where passages stand."""

import gzip
import logging
import os
import random
import re
import sys
import threading
from pathlib import Path

import pytest

from dsi.docids.data.collection import Collection
from dsi.docids.data.locations import SOURCE, locate
from dsi.files import readers
from dsi.files.folders import SourceFile
from dsi.files.texts import UnreadableError
from dsi.search.hits import Hit
from tests.support.files import PNG, mail, notebook, office, pdf, read, short_folder

PAGE = b"""<html><head><title>Gases &amp; signs</title><style>p {}</style></head><body><nav>Home | About</nav>
<main><h1>Neon</h1><p>Neon <b>glows</b> in
signs.</p><pre>  # no heading
  x = 1</pre><h2>Argon</h2><ul><li>lazy<li>colourless</ul></main>
<footer>Imprint</footer><script>var x;</script></body></html>"""


@pytest.fixture
def folder():
    with short_folder() as own:
        yield own


def test_a_mixed_folder_is_read_by_the_kinds_of_its_files(folder):
    root, write = folder
    write("a/page.html", PAGE)
    write("a/paper.pdf", pdf(["Neon glows in signs.", "", "The Volga is long."], title="On gases"))
    write("mail.eml", mail("Lunch", "At noon?"))
    write("html.eml", mail("News", "<p>Bees <b>dance</b>.</p>", "html"))
    write("book.ipynb", notebook("# Primes\nSmall ones.", ">sieve(10)"))
    write("guide.rst", "=====\nGuide\n=====\n\nWords.\n\nParts\n-----\nMore.\n")
    write("code/engine.py", "def walk():\n    # down\n    pass\n")
    write("LICENSE", "Do as you like.")
    write("rows.csv", "id,text\nbee,Bees dance.\n")
    office(root)
    assert read(root) == {
        "LICENSE": ("LICENSE", "Do as you like.", "line=1"),
        "a/page.html": (
            "Gases & signs",
            "# Neon\n\nNeon glows in signs.\n\n```\n  # no heading\n  x = 1\n```\n\n## Argon\n\nlazy\n\ncolourless",
            "",
        ),
        "a/paper.pdf#page=1": ("On gases", "Neon glows in signs.", "page=1"),
        "a/paper.pdf#page=3": ("On gases", "The Volga is long.", "page=3"),
        "book.ipynb": ("Primes", "# Primes\nSmall ones.\n\n```\nsieve(10)\n```\n", ""),
        "chemistry.pptx#slide=1": ("Noble gases", "Noble gases\nNeon glows.", "slide=1"),
        "chemistry.pptx#slide=2": ("Metals", "Metals\nIron rusts.", "slide=2"),
        "code/engine.py": ("engine.py", "def walk():\n    # down\n    pass\n", "line=1"),
        "guide.rst": ("Guide", "=====\nGuide\n=====\n\nWords.\n\nParts\n-----\nMore.\n", "line=1"),
        "html.eml": ("News", "From: ada@example.org\nTo: bob@example.org\n\nBees dance.", ""),
        "mail.eml": ("Lunch", "From: ada@example.org\nTo: bob@example.org\n\nAt noon?\n", ""),
        "rivers.docx": ("Rivers", "# Rivers\nThe Danube flows through Vienna.\n## Lengths\nVolga | 3,530 km", ""),
        "bee": ("", "Bees dance.", "row=2"),
        "shop.xlsx#sheet=Prices": ("shop: Prices", "bread | 2.5", "sheet=Prices"),
    }


def test_what_cannot_be_read_is_counted_by_kind_and_ends_nothing(folder, caplog):
    root, write = folder
    repeated = " ".join(random.Random(0).choices(["neon", "argon", "xenon", "radon", "helium"], k=200))
    for name, content in {
        "locked.pdf": pdf(["secret"], locked=True),
        "locked.docx": b"\xd0\xcf\x11\xe0 OLE",
        "broken.pdf": b"%PDF-1.4 nothing",
        "broken.docx": b"PK no archive",
        "scan.pdf": pdf(["", ""]),
        "empty.md": b"",
        "blank.txt": b" \n",
        "large.txt": b"x" * (2**24 + 1),
        "binary.txt": b"a\0b",
        "latin.txt": "Glühwein".encode("latin-1"),
        "wide.txt": "Glühwein".encode("utf-16"),
        "picture.png": PNG,
        "tool": b"\x7fELF\0",
        "no documents.csv": b"id,text\n,36\n",
        "torn.jsonl": b'{"id": "a", "text": "x"}\n{',
        "first.txt": f"{repeated} end",
        "same.txt": f"{repeated}  end",
    }.items():
        write(name, content)
    found = read(root)
    assert list(found) == ["first.txt", "latin.txt", "same.txt", "a", "wide.txt"]
    assert {found["latin.txt"][1], found["wide.txt"][1]} == {"Glühwein"}
    name = str(root)
    assert sorted(message.removeprefix(f"{name}: ") for message in caplog.messages) == [
        "files of kinds that are not read, each with the first: 1 .png ('picture.png'), 1 without a suffix ('tool').",
        "files that are broken: 1 ('torn.jsonl'); what was read before is kept.",
        "files that are broken: 2 ('broken.docx', 'broken.pdf'); they are left out.",
        "files that are empty: 2 ('blank.txt', 'empty.md'); they are left out.",
        "files that are encrypted, or of an old office program: 1 ('locked.docx'); they are left out.",
        "files that are encrypted: 1 ('locked.pdf'); they are left out.",
        "files that are larger than 16 MB: 1 ('large.txt'); they are left out.",
        "files that are not text: 1 ('binary.txt'); they are left out.",
        "files that are without text, as scans are: 1 ('scan.pdf'); they are left out.",
        f"rows of tables that are not documents with an id and a text: 1 ('{name}/no documents.csv, row 2'); they are "
        "left out.",
        "texts in other encodings than UTF-8: 2 ('latin.txt', 'wide.txt'); the encodings were detected from the letters.",
    ]


def test_texts_of_other_suffixes_and_compressed_files_are_read(folder, caplog):
    root, write = folder
    latin = "Glühwein".encode("latin-1")
    for name, content in {
        "README.Debian": "Words.",
        "copyright": "Do as you like.",
        "note.old": latin,
        "guide.md.gz": gzip.compress(b"# Guide\n\n## Part\n\nWords of it.\n"),
        "latin.txt.gz": gzip.compress(latin),
        "changelog.Debian.gz": gzip.compress(b"Many changes."),
        "paper.pdf.gz": gzip.compress(pdf(["Neon glows in signs."], title="On gases")),
        "tool.gz": gzip.compress(b"\x7fELF\x02"),
        "table.csv.gz": gzip.compress(b"id,text\na,b\n"),
        "torn.txt.gz": gzip.compress(b"words" * 99)[:-9],
        "torn.gz": gzip.compress(b"words" * 99)[:-9],
        "data.bin": b"\x05\x1a",
        "data.json": b"{}",
    }.items():
        write(name, content)
    assert read(root) == {
        "README.Debian": ("README.Debian", "Words.", "line=1"),
        "changelog.Debian.gz": ("changelog.Debian", "Many changes.", "line=1"),
        "copyright": ("copyright", "Do as you like.", "line=1"),
        "guide.md.gz": ("Guide", "# Guide\n\n## Part\n\nWords of it.\n", "line=1"),
        "latin.txt.gz": ("latin", "Glühwein", "line=1"),
        "note.old": ("note.old", "Glühwein", "line=1"),
        "paper.pdf.gz#page=1": ("On gases", "Neon glows in signs.", "page=1"),
    }
    assert sorted(message.removeprefix(f"{root}: ") for message in caplog.messages) == [
        "files of kinds that are not read, each with the first: 2 .gz ('table.csv.gz'), 1 .bin ('data.bin'), "
        "1 .json ('data.json').",
        "files that are broken: 2 ('torn.gz', 'torn.txt.gz'); they are left out.",
        "texts in other encodings than UTF-8: 2 ('latin.txt.gz', 'note.old'); the encodings were detected from the letters.",
    ]
    assert locate({"source_file": "guide.md.gz", "source_place": "line=1"}, "# Guide", None).heading == "Guide"


@pytest.mark.parametrize(("name", "most"), [("bomb.txt.gz", "LARGEST_TEXT"), ("bomb.pdf.gz", "LARGEST")])
def test_of_a_compressed_file_no_more_than_the_limit_is_unpacked(folder, name, most, monkeypatch):
    root, write = folder
    write(name, gzip.compress(b"a" * 2**24, 1))
    monkeypatch.setattr(readers, most, 2**20)
    with pytest.raises(UnreadableError, match=r"^larger than 1 MB$"):
        list(readers.parts_of(root / name))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.pdf", pdf(["x"], locked=True), "encrypted"),
        ("a.pdf", pdf([""]), "without text, as scans are"),
        ("a.md", b"", "empty"),
        ("a.docx", b"PK", "broken"),
        ("a.txt", b"\0", "not text"),
        ("a.png", PNG, r"of a kind that is not read \(they are \.txt, .*, source code, other texts and tables\)"),
    ],
)
def test_a_file_that_is_named_is_an_error(folder, name, content, why):
    root, write = folder
    write(name, content)
    with pytest.raises(ValueError, match=rf"{name} is {why}; leave it out, or save it as a file that can be read\.$"):
        Collection.from_files(root / name)


def test_a_library_that_is_not_installed_is_named_with_what_installs_it(folder, tmp_path, caplog, monkeypatch):
    root, write = folder
    write("a.pdf", pdf(["x"]))
    write("b.txt", "words")
    write("c.md", "more")
    write(".gitignore", "c.md")
    (tmp_path / "pypdfium2.py").write_text("raise ModuleNotFoundError(name='pypdfium2')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "pathspec", None)
    assert list(read(root)) == ["b.txt", "c.md"]
    install = '(pip install "dr-scl[files]")'
    assert sorted(message.removeprefix(f"{root}: ") for message in caplog.messages) == [
        f".gitignore files: 1 ('{root}'); they are not heeded without pathspec {install}.",
        f"files that are of a kind that needs pypdfium2 {install}: 1 ('a.pdf'); they are left out.",
    ]


def test_hidden_files_and_those_that_gitignore_names_are_left_out(folder, caplog):
    root, write = folder
    write(".gitignore", "*.log\n/build/\n!\n[z-a]\n!keep.log\n")
    write("sub/.gitignore", "!more.log\n/own.txt\n")
    for name in (
        "a.log",
        "keep.log",
        "build/a.txt",
        "sub/build/b.txt",
        "sub/more.log",
        "sub/own.txt",
        "sub/x/own.txt",
        ".env",
        ".git/c",
    ):
        write(name, f"text of {name}")
    assert list(read(root)) == ["keep.log", "sub/build/b.txt", "sub/more.log", "sub/x/own.txt"]
    assert caplog.messages == [
        f"{root}: patterns in .gitignore files that are none: 2 ('!', '[z-a]'); they are left out."
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes")
def test_links_are_not_followed_out_of_the_folder_nor_in_circles(folder, tmp_path, caplog):
    root, write = folder
    write("a.txt", "text")
    (tmp_path / "secret.txt").write_text("secret")
    (root / "b.txt").symlink_to(root / "a.txt")
    (root / "c.txt").symlink_to(tmp_path / "secret.txt")
    (root / "gone.txt").symlink_to(root / "none.txt")
    (root / "circle").symlink_to(root)
    (root / "self.txt").symlink_to(root / "self.txt")
    os.mkfifo(root / "pipe.txt")
    assert list(read(root)) == ["a.txt", "b.txt"]
    lines = [message.removeprefix(f"{root}: ") for message in caplog.messages]
    assert f"links out of the folder: 1 ('{root}/c.txt'); they are not followed." in lines
    assert f"links to folders: 1 ('{root}/circle'); they are not followed." in lines
    assert any(re.match(r"entries that are not files, or links to none: 3 \(", line) for line in lines)


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_a_name_that_is_not_utf8_is_written_with_escapes(folder):
    root, _ = folder
    with open(os.fsencode(root) + b"/Gr\xfc\xdfe.txt", "wb") as file:  # noqa: PTH123
        file.write(b"words")
    (row,) = Collection.from_files(root).documents
    assert (row["doc_id"], row["title"]) == (r"Gr\udcfc\udcdfe.txt", r"Gr\udcfc\udcdfe")


def test_a_folder_that_cannot_be_entered_is_counted(folder, monkeypatch, caplog):
    root, write = folder
    write("a.txt", "text")
    write("closed/b.txt", "text")
    scandir = os.scandir

    def guarded(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert list(read(root)) == ["a.txt"]
    assert caplog.messages == [f"{root}: folders that may not be read: 1 ('{root}/closed'); they are left out."]


def test_ids_of_files_and_rows_differ_whatever_they_are_called(folder, tmp_path):
    root, write = folder
    write("a.csv", "id,text\n1,one\n2,two\n")
    write("b.csv", "id,text\n1,three\n1,four\n")
    other = tmp_path / "more"
    other.mkdir()
    for place in (root, other):
        (place / "README.md").write_text(f"# {place.name}")
    table = Collection.from_files(root, other, root / "README.md").documents
    assert table["doc_id"][:] == ["README.md", "1", "2", "b.csv#row=2", "b.csv#row=3", "more/README.md"]
    assert table["title"][:] == ["notes", "", "", "", "", "more"]


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("book.txt", "".join(f"Paragraph {number}. {'word ' * 100}\n\n" for number in range(300)), "line=1"),
        ("line.log", "word " * 40_000, "line=1"),
        ("page.html", f"<p>{'word ' * 40_000}", ""),
        ("mail.eml", mail("Long", "word " * 40_000), ""),
    ],
)
def test_a_file_is_one_document_whatever_its_length(folder, name, content, place):
    root, write = folder
    write(name, content)
    ((doc_id, (_, text, found)),) = read(root).items()
    assert (doc_id, found) == (name, place)
    assert text.count("word") in (30_000, 40_000)


def front_matter(keys, first=0):
    return "---\n" + "".join(f"key{number}: {number}\n" for number in range(first, first + keys)) + "---\nwords"


@pytest.mark.skipif(sys.platform == "win32", reason="long paths")
def test_one_bad_entry_ends_nothing(folder, caplog, monkeypatch):
    root, write = folder
    write("a.md", front_matter(997))
    write("b.md", "---\nkind: gas\n---\nNeon glows.")
    write("bytes.md", "---\ndoc_id: x\n---\nwords of another")
    with open(os.fsencode(root) + b"/" + b"\xfc" * 200 + b".txt", "wb") as file:  # noqa: PTH123
        file.write(b"words of a name that is no UTF-8")
    monkeypatch.setattr("dsi.files.documents.MOST_OF_ID", 300)
    table = Collection.from_files(root).documents
    assert table["doc_id"][:] == ["a.md", "b.md", "bytes.md"]
    assert table["kind"][:] == [None, "gas", None]
    lines = [message.removeprefix(f"{root}: ") for message in caplog.messages]
    assert "front matter of more than 100 keys: 1 ('a.md'); it is left out." in lines
    assert any(line.startswith("documents whose paths have more than 300 bytes: 1 (") for line in lines)
    assert "front matter that no column can hold: 1 ('bytes.md'); it is left out." in lines


def test_of_too_many_keys_in_all_files_the_rarest_are_left_out(folder, caplog):
    root, write = folder
    for number in range(12):
        year = f"---\nyear: 19{number:02}\n" if number % 2 else "---\n"
        write(f"{number:02}.md", front_matter(99, 99 * number).replace("---\n", year, 1) + f" {number}")
    table = Collection.from_files(root).documents
    assert len(table) == 12
    assert len(table.column_names) == 1000
    assert "year" in table.column_names
    assert any("metadata keys that few documents have: " in message for message in caplog.messages)


def test_rare_keys_of_many_files_do_not_fill_the_memory(folder, caplog, monkeypatch):
    root, write = folder
    monkeypatch.setattr("dsi.docids.data.records._LARGE_TABLE", 2000)
    monkeypatch.setattr("dsi.docids.data.records._SPARSE", 3)
    for number in range(60):
        write(
            f"{number:02}.md", front_matter(20, 20 * number) if number % 10 == 0 else f"---\nkind: gas\n---\n{number}"
        )
    table = Collection.from_files(root).documents
    assert "kind" in table.column_names
    assert len(table.column_names) < 50
    assert any("metadata keys that few documents have: " in message for message in caplog.messages)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_a_folder_whose_gitignore_cannot_be_read_is_left_out(folder, monkeypatch, caplog, error):
    root, write = folder
    write("a.txt", "text")
    write("closed/.gitignore", "b.txt")
    write("closed/b.txt", "secret")
    read_text = Path.read_text

    def failing(path, *arguments, **options):
        if path.name == ".gitignore":
            raise error
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", failing)
    assert list(read(root)) == ["a.txt"]
    assert caplog.messages == [f"{root}: folders that may not be read: 1 ('{root}/closed'); they are left out."]


def test_an_entry_that_cannot_be_looked_at_ends_nothing(folder, monkeypatch, caplog):
    root, write = folder
    write("a.txt", "text")
    write("b.txt", "text")
    is_file = Path.is_file

    def failing(path):
        if path.name == "b.txt":
            raise OSError(36, "File name too long")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", failing)
    assert list(read(root)) == ["a.txt"]
    assert caplog.messages == [f"{root}: entries that may not be read: 1 ('{root}/b.txt'); they are left out."]


def test_a_hit_says_where_its_passage_stands(folder):
    root, write = folder
    write(
        "neon.md", "---\ntags: [gas]\n---\n# Gases\n\nIntro.\n\n## Neon\n\nGlows\nin signs.\n\nSetext\n------\nlast\n"
    )
    (row,) = Collection.from_files(root).documents
    text, metadata = row["text"], {name: row[name] for name in (*SOURCE, "tags")}
    start = text.index("\n\nGlows")
    hit = Hit(1, 0.5, "neon.md", row["title"], (0,), text, metadata, (start, text.index("Setext")))
    assert (hit.location.lines, hit.location.heading, str(hit.location)) == ((10, 11), "Neon", f"{root / 'neon.md'}:10")
    assert (root / "neon.md").read_text().split("\n")[9:11] == ["Glows", "in signs."]
    assert hit.as_dict()["location"] == {
        "address": f"{root / 'neon.md'}:10", "file": str(root / "neon.md"), "lines": (10, 11), "heading": "Neon"
    }  # fmt: skip
    assert hit.as_dict()["metadata"] == {"tags": ["gas"]}
    assert locate(metadata, text, None).lines == (4, 15)
    assert (
        locate(metadata, text, None)
        == locate(metadata, text, (0, len(text)))
        == locate(metadata, text, (0, len(text) - 1))
    )
    assert locate(metadata, text, (text.index("last"), len(text))).heading == "Setext"
    assert locate({}, text, None) is None


def test_mail_and_notebooks_of_any_bytes_end_nothing(folder, caplog):
    root, write = folder
    draw = random.Random(2)
    write("good.txt", "words")
    for number, suffix in enumerate([*readers.READERS, ".py", ".csv", ".tsv", ".jsonl", ".parquet"] * 4):
        write(f"{number}{suffix}", draw.randbytes(draw.randrange(1, 400)))
    caplog.set_level(logging.ERROR)
    assert "good.txt" in read(root)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
def test_a_pipe_without_a_writer_is_not_waited_for(folder):
    root, write = folder
    write("a.txt", "words")
    os.mkfifo(root / "b.jsonl")
    done = threading.Thread(target=read, args=(root,), daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="needs a file without an end")
def test_a_file_without_an_end_is_empty():
    assert SourceFile(Path("/proc/self/pagemap"), "a.txt", False).version == ""
