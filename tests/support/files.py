"""Small files of every kind that is read, made without the libraries that read them where a few bytes do."""

import json
from contextlib import contextmanager
from email.message import EmailMessage
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dsi.docids.data.collection import Collection
from dsi.docids.data.locations import SOURCE

needs_readers = pytest.mark.skipif(not find_spec("dsi.files"), reason="the room that reads files was torn off")
PNG = b"\x89PNG\r\n\x1a\n\0"


@contextmanager
def short_folder():
    """An empty folder whose name is short, as messages shorten long ones, and a function that writes a file into it."""
    with TemporaryDirectory() as above:
        root = Path(above) / "notes"
        root.mkdir()
        yield root, partial(write_file, root)


def write_file(root, name, content):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def read(root):
    """{doc_id: (title, text, place)} of the documents of a folder."""
    table = Collection.from_files(root).documents
    return {row["doc_id"]: (row["title"], row["text"], row["source_place"]) for row in table}


def own(columns):
    """The columns of documents, or the values of one, without those that say where it was read."""
    return {name: values for name, values in columns.items() if name not in SOURCE}


def pdf(pages, *, title="", locked=False):
    """The bytes of a PDF file with a line of text on each page, "" for none; locked, none can open it."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
    ]
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        objects += [
            f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>/Contents {5 + 2 * number} 0 R>>",
            f"<</Length {len(stream)}>>stream\n{stream}\nendstream",
        ]
    objects += [f"<</Title({title})>>"]
    written, places = "%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(written))
        written += f"{number} 0 obj{content}endobj\n"
    entries = "".join(f"{place:010d} 00000 n \n" for place in places)
    key = f"<{'ab' * 32}>"
    lock = f"/ID[{key}{key}]/Encrypt<</Filter/Standard/V 1/R 2/O{key}/U{key}/P -4>>" if locked else ""
    trailer = f"<</Size {len(objects) + 1}/Root 1 0 R/Info {len(objects)} 0 R{lock}>>"
    start = len(written)
    written += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{entries}trailer{trailer}\nstartxref\n{start}\n%%EOF"
    return written.encode("latin-1")


def mail(subject, text, kind="plain"):
    """The bytes of a message."""
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = subject, "ada@example.org", "bob@example.org"
    message.set_content(text, subtype=kind)
    return message.as_bytes()


def notebook(*cells):
    """The bytes of a notebook of cells: texts, those of code after ">"."""
    read = [
        {"cell_type": "code" if cell.startswith(">") else "markdown", "source": cell.removeprefix(">").splitlines(True)}
        for cell in cells
    ]
    return json.dumps({"cells": read, "metadata": {}, "nbformat": 4}).encode()


def office(folder):
    """Write a document, a presentation and a workbook into a folder."""
    import docx
    import openpyxl
    import pptx

    document = docx.Document()
    document.add_heading("Rivers", level=1)
    document.add_paragraph("The Danube flows through Vienna.")
    document.add_heading("Lengths", level=2)
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "Volga", "3,530 km"
    document.save(str(folder / "rivers.docx"))
    slides = pptx.Presentation()
    for title, text in (("Noble gases", "Neon glows."), ("Metals", "Iron rusts.")):
        slide = slides.slides.add_slide(slides.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = title, text
    slides.save(str(folder / "chemistry.pptx"))
    book = openpyxl.Workbook()
    book.active.title = "Prices"
    book.active.append(["bread", 2.5])
    book.create_sheet("Empty")
    book.save(folder / "shop.xlsx")
