"""Office files with text where readers overlook it, made of the XML of their parts."""

import io
import zipfile

_SPACES = " ".join(
    f'xmlns:{prefix}="http://schemas.{place}"'
    for prefix, place in {
        "w": "openxmlformats.org/wordprocessingml/2006/main",
        "m": "openxmlformats.org/officeDocument/2006/math",
        "wp": "openxmlformats.org/drawingml/2006/wordprocessingDrawing",
        "a": "openxmlformats.org/drawingml/2006/main",
        "wps": "microsoft.com/office/word/2010/wordprocessingShape",
        "mc": "openxmlformats.org/markup-compatibility/2006",
    }.items()
)
_BOX = "<w:txbxContent><w:p><w:r><w:t>{}</w:t></w:r></w:p></w:txbxContent>"


def run(text, properties=""):
    """A run of text in Word."""
    return f"<w:r><w:rPr>{properties}</w:rPr><w:t>{text}</w:t></w:r>"


def paragraph(*inner):
    """A paragraph in Word."""
    return f"<w:p>{''.join(inner)}</w:p>"


def table(*cells):
    """A table of one row in Word."""
    return f"<w:tbl><w:tr>{''.join(f'<w:tc>{cell}</w:tc>' for cell in cells)}</w:tr></w:tbl>"


def control(inner):
    """A content control."""
    return f"<w:sdt><w:sdtPr/><w:sdtContent>{inner}</w:sdtContent></w:sdt>"


def box(text):
    """A text box in the forms of newer and of older programs."""
    own = _BOX.format(text)
    return (
        f'<w:r><mc:AlternateContent><mc:Choice Requires="wps"><wps:txbx>{own}</wps:txbx></mc:Choice>'
        f"<mc:Fallback><w:pict>{own}</w:pict></mc:Fallback></mc:AlternateContent></w:r>"
    )


def rezipped(content, parts, change=lambda name, data: data):
    """A zip file with more members, and others changed."""
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        held = {name: change(name, packed.read(name)) for name in packed.namelist()}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in {**held, **parts}.items():
            packed.writestr(name, data)
    return target.getvalue()


def saved(file):
    """The bytes that an object with `save` writes."""
    target = io.BytesIO()
    file.save(target)
    return target.getvalue()


def word(body="", *, change=lambda document: None, kind="", part=""):
    """A document of Word with some XML in its body, after a change by python-docx, and with a further part of a kind."""
    import docx

    document = docx.Document()
    document.add_paragraph("Begin.")
    change(document)
    document.add_paragraph("End.")

    def with_body(name, data):
        if name == "word/document.xml":
            return data.replace(b"<w:body>", f"<w:body><w:customXml {_SPACES}>{body}</w:customXml>".encode())
        if part and name == "word/_rels/document.xml.rels":
            own = f'<Relationship Id="rId900" Type="http://schemas/relationships/{kind}" Target="{kind}.xml"/>'
            return data.replace(b"</Relationships>", f"{own}</Relationships>".encode())
        return data

    more = {f"word/{kind}.xml": f"<w:{kind} {_SPACES}>{part}</w:{kind}>"} if part else {}
    return rezipped(saved(document), more, with_body)


def slides():
    """A presentation with grouped shapes, a chart, a table, notes and a hidden slide."""
    import pptx
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE

    show = pptx.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[5])
    slide.shapes.title.text = "Titled"
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "grouped"
    group.shapes.add_group_shape().shapes.add_textbox(0, 0, 9, 9).text_frame.text = "deeper"
    data = CategoryChartData()
    data.categories = ["spring"]
    data.add_series("rain", (1.5,))
    chart = slide.shapes.add_chart(XL_CHART_TYPE.PIE, 0, 0, 9, 9, data).chart
    chart.has_title = True
    chart.chart_title.text_frame.text = "weather"
    cells = slide.shapes.add_table(1, 2, 0, 0, 9, 9).table
    cells.cell(0, 0).text, cells.cell(0, 1).text = "left", "right"
    slide.notes_slide.notes_text_frame.text = "noted"
    picture = slide.shapes.add_textbox(0, 0, 9, 9)
    picture._element.nvSpPr.cNvPr.set("descr", "described")
    unseen = slide.shapes.add_textbox(0, 0, 9, 9)
    unseen.text_frame.text = "unseen"
    unseen._element.nvSpPr.cNvPr.set("hidden", "1")
    for text in ("shown", "hidden"):
        slide = show.slides.add_slide(show.slide_layouts[6])
        slide.shapes.add_textbox(0, 0, 9, 9).text_frame.text = text
    slide._element.set("show", "0")
    return saved(show)


def sheets():
    """A workbook with formulas that nobody computed, percent, dates, a comment and hidden sheets."""
    import datetime

    import openpyxl
    from openpyxl.comments import Comment
    from openpyxl.worksheet.formula import ArrayFormula

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Prices"
    sheet.append(["bread", 0.1 + 0.2, 0.25, 0.125, datetime.date(2024, 3, 5), "=SUM(B1:C1)"])
    sheet["C1"].number_format, sheet["D1"].number_format = "0%", "0.0%"
    sheet["G1"] = ArrayFormula("G1:G2", "=B1:B2*2")
    sheet["A3"] = "below"
    sheet["A3"].comment = Comment("remark", "Ada")
    for name, state in (("Secret", "hidden"), ("Deeper", "veryHidden"), ("More", "visible")):
        own = book.create_sheet(name)
        own["B2"], own.sheet_state = name.lower(), state
    return saved(book)
