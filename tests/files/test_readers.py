"""Each kind of file: text stands in it where readers overlook it, and what is deleted or hidden is not read."""

import base64
import json
import sys
from email.message import EmailMessage
from pathlib import Path

import pytest

from dsi.files import office, texts
from dsi.files.readers import parts_of
from dsi.files.texts import UnreadableError, decoded
from tests.support.files import mail, pdf
from tests.support.office import box, control, paragraph, rezipped, run, sheets, slides, table, word

TEXTS = {
    "zh": "汉字是一种文字。今天天气很好，我们去公园散步，看到了很多花。",
    "zht": "漢字是一種文字。今天天氣很好，我們去公園散步，看到了很多花。",
    "ja": "日本語の文章です。今日は天気がいいので、公園を散歩しました。花がたくさん咲いていました。",
    "ko": "한국어 문장입니다. 오늘은 날씨가 좋아서 공원을 산책했습니다. 꽃이 많이 피어 있었습니다.",
    "ru": "Это русский текст. Сегодня хорошая погода, и мы гуляли в парке, где цветут цветы.",
    "el": "Αυτό είναι ένα ελληνικό κείμενο για την άνοιξη.",
    "de": "Glühwein tränkt die Gäste, während Köche über Süßes streiten.",
    "fr": "L’élève naïf reçoit des œufs à Noël, près de la forêt.",
    "ar": "هذا نص عربي. الطقس جميل اليوم وذهبنا إلى الحديقة.",
    "th": "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย แม่น้ำเจ้าพระยาไหลผ่านเมือง",
    "tr": "İstanbul Türkiye'nin en kalabalık şehridir. Boğaziçi köprüsü iki kıtayı birbirine bağlar.",
    "he": "זהו טקסט בעברית. מזג האוויר נעים היום.",
    "cs": "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "pl": "Pchnąć w tę łódź jeża lub ośm skrzyń fig. Zażółć gęślą jaźń.",
    "es": "El niño comió piñas en el jardín. ¿Dónde está la montaña?",
    "it": "La città è bella e perché no, così va la vita. Più tardi andrò a casa. È già l'una, verrò lunedì.",
    "café": "The café is open",
}


def parts(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(parts_of(path))


def text_of(tmp_path, name, content):
    (part,) = parts(tmp_path, name, content)
    return part.text


def changed(call):
    return lambda: word(change=call)


def in_header(document):
    document.sections[0].header.paragraphs[0].text = "above"
    document.sections[0].footer.paragraphs[0].text = "below"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (paragraph(run("a "), f"<w:ins>{run('new')}</w:ins>", "<w:del><w:r><w:delText>old</w:delText></w:r></w:del>"), "a new"),
        (paragraph(f"<w:moveFrom>{run('from')}</w:moveFrom><w:moveTo>{run('to')}</w:moveTo>"), "to"),
        (control(paragraph(run("Cover"))), "Cover"),
        (paragraph(run("Name: "), control(run("Ada"))), "Name: Ada"),
        (control(control(paragraph(run("one")) + table(paragraph(run("two"))))), "one\ntwo"),
        (f"<w:tbl>{control('<w:tr>' + control('<w:tc>' + paragraph(run('cell')) + '</w:tc>') + '</w:tr>')}</w:tbl>", "cell"),
        (table(paragraph(run("outer")) + table(paragraph(run("inner"))), paragraph(run("beside"))), "outer inner | beside"),
        ("<w:tbl><w:tr><w:trPr><w:del/></w:trPr><w:tc><w:p><w:r><w:t>gone</w:t></w:r></w:p></w:tc></w:tr></w:tbl>", ""),
        (paragraph(run("by"), box("boxed")), "by\nboxed\n"),
        ("<w:tbl><w:tr><w:trPr><w:hidden/></w:trPr><w:tc><w:p><w:r><w:t>gone</w:t></w:r></w:p></w:tc></w:tr></w:tbl>", ""),
        (paragraph('<w:r><w:t>x</w:t><w:sym w:font="Arial" w:char="03C0"/><w:sym w:font="Symbol" w:char="F061"/></w:r>'), "xπ"),
        (paragraph(run("envi\u00adron\u00adment")), "environment"),
        (paragraph(run("seen"), run("hidden", "<w:vanish/>"), run(" too", '<w:vanish w:val="0"/>')), "seen too"),
        (paragraph(f"<w:hyperlink>{run('linked')}</w:hyperlink>"), "linked"),
        (paragraph(f'<w:fldSimple w:instr="DATE">{run("today")}</w:fldSimple>'), "today"),
        (paragraph("<w:r><w:instrText>MERGE</w:instrText></w:r>", run("merged")), "merged"),
        ("<w:customXml>" + paragraph("<w:smartTag>" + run("tagged") + "</w:smartTag>") + "</w:customXml>", "tagged"),
        (paragraph("<m:oMath><m:r><m:t>x+y</m:t></m:r></m:oMath>"), "x+y"),
        (paragraph("<m:f><m:num><m:r><m:t>a</m:t></m:r></m:num><m:den><m:r><m:t>b</m:t></m:r></m:den></m:f>"), "ab"),
        (paragraph("<w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:noBreakHyphen/><w:t>c</w:t></w:r>"), "a\tb-c"),
        (paragraph("<w:r><w:t>soft</w:t><w:softHyphen/><w:t>ware</w:t></w:r>"), "software"),
        ('<w:p><w:pPr><w:pStyle w:val="Heading2"/></w:pPr><w:r><w:t>Part</w:t></w:r></w:p>', "## Part"),
        (f"<w:tbl><w:tr><w:tc><w:tcPr><w:cellDel/></w:tcPr>{paragraph(run('old'))}</w:tc></w:tr></w:tbl>", ""),
        (paragraph(f"<w:ruby><w:rt>{run('tou')}</w:rt><w:rubyBase>{run('東')}</w:rubyBase></w:ruby>", run("京")), "東京"),
        (paragraph('<w:drawing><wp:inline><wp:docPr title="Fig" descr="A map"/></wp:inline></w:drawing>'), " Fig  A map "),
        (paragraph('<w:r><w:pict><shape alt="old"><textpath string="ART"/></shape></w:pict></w:r>'), " old  ART "),
        (f"<mc:AlternateContent><mc:Choice/><mc:Fallback>{paragraph(run('old'))}</mc:Fallback></mc:AlternateContent>", "old"),
        (paragraph(run("gone", '<w:vanish w:val="on"/>'), run("stays", '<w:vanish w:val="off"/>')), "stays"),
    ],
)  # fmt: skip
def test_all_text_of_a_word_document_is_read(tmp_path, body, text):
    found = text_of(tmp_path, "a.docx", word(body))
    assert found == f"{text}\nBegin.\nEnd." if text else "Begin.\nEnd."


def with_styles(document):
    from docx.enum.style import WD_STYLE_TYPE

    styles = document.styles
    for name, kind in (("Ghost", WD_STYLE_TYPE.CHARACTER), ("Phantom", WD_STYLE_TYPE.PARAGRAPH)):
        styles.add_style(name, kind).font.hidden = True
    styles.add_style("Chapter", WD_STYLE_TYPE.PARAGRAPH).base_style = styles["Heading 2"]
    styles.add_style("Back", WD_STYLE_TYPE.CHARACTER).base_style = styles["Ghost"]
    styles["Back"].font.hidden = False
    seen = document.add_paragraph("seen ")
    seen.add_run("unseen", style="Ghost")
    seen.add_run("again", style="Back")
    document.add_paragraph("unseen", style="Phantom")
    document.add_paragraph("Own heading", style="Chapter")


def test_styles_hide_text_and_make_headings(tmp_path):
    assert text_of(tmp_path, "a.docx", word(change=with_styles)) == "Begin.\nseen again\n## Own heading\nEnd."


def test_a_document_with_macros_and_a_template_are_read_too(tmp_path):
    for name in ("a.docm", "a.dotx", "A.DOCX"):
        assert text_of(tmp_path, name, word()) == "Begin.\nEnd."
    for name in ("a.pptm", "a.ppsx", "a.potm"):
        assert "Titled" in parts(tmp_path, name, slides())[0].text
    assert "bread" in parts(tmp_path, "a.xlsm", sheets())[0].text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda: word(kind="footnotes", part=f"<w:footnote>{paragraph(run('noted'))}</w:footnote>"), ["noted"]),
        (lambda: word(kind="endnotes", part=f"<w:endnote>{paragraph(run('noted'))}</w:endnote>"), ["noted"]),
        (
            lambda: word(
                kind="diagramData", part=f"<w:pt><w:t>{paragraph('<w:r><w:t>smart</w:t></w:r>')}</w:t></w:pt>"
            ),
            ["smart"],
        ),
        (changed(in_header), ["above", "below"]),
        (changed(lambda own: own.add_comment(own.paragraphs[0].runs, text="remark")), ["remark"]),
    ],
    ids=["footnotes", "endnotes", "smart art", "header and footer", "comments"],
)
def test_what_stands_beside_the_body_is_read_after_it(tmp_path, content, words):
    assert text_of(tmp_path, "a.docx", content()).splitlines() == ["Begin.", "End.", *words]


def including(suffix, content):
    """A document of Word that includes a file of another kind."""
    relation = f'<Relationship Id="rId900" Type="x/aFChunk" Target="chunk.{suffix}"/></Relationships>'.encode()
    rels = "word/_rels/document.xml.rels"
    return rezipped(
        word(),
        {f"word/chunk.{suffix}": content},
        lambda name, data: data.replace(b"</Relationships>", relation) if name == rels else data,
    )


@pytest.mark.parametrize(
    ("suffix", "content", "text"),
    [
        ("html", "<p>chunk words", "chunk words"),
        ("mht", "MIME-Version: 1.0\nContent-Type: text/html\n\n<p>chunk words", "chunk words"),
        ("docx", word, "Begin.\nEnd."),
        ("bin", b"\0", ""),
    ],
)
def test_files_that_a_word_document_includes_are_read(tmp_path, suffix, content, text):
    found = text_of(tmp_path, "a.docx", including(suffix, content() if callable(content) else content))
    assert found.split() == ["Begin.", "End.", *text.split()]


def test_slides_give_all_shapes_charts_and_notes(tmp_path):
    first, second = parts(tmp_path, "a.pptx", slides())
    assert (first.place, first.title, second.place, second.title) == ("slide=1", "Titled", "slide=2", "a")
    assert " ".join(first.text.split()) == "Titled grouped deeper left | right described weather rain spring 1.5 noted"
    assert second.text == "shown"


def test_sheets_give_cells_as_they_are_shown_and_formulas_that_have_no_value(tmp_path):
    first, second = parts(tmp_path, "a.xlsx", sheets())
    assert first.text == "bread | 0.3 | 25% | 12.5% | 2024-03-05 | =SUM(B1:C1) | =B1:B2*2\nbelow\nremark"
    assert (second.place, second.text) == ("sheet=More", "more")


@pytest.mark.parametrize(
    ("value", "code", "shown"),
    [
        (0.25, "0%", "25%"), (0.125, "0.00%", "12.50%"), (-0.5, "0%;[Red]-0%", "-50%"), (0.3333, "0.0%;-0.0%", "33.3%"),
        (1, '0.0" %"', "1.0 %"), (1234.5, '"$"#,##0.00', "$1,234.50"), (-1234.5, "#,##0.00", "-1,234.50"),
        (1234.5, "#,##0.00 [$€-407]", "1,234.50 €"), (99, '0 "kg"', "99 kg"), (12, r"\£0", "£12"), (7, "000", "007"),
        (1234.5, '_("$"* #,##0.00_);_("$"* \\(#,##0.00\\)', "$1,234.50"), (-3, '0;"minus "0', "minus 3"), (0, "0;-0;none", "0"),
        (2_500_000, '0.0,,"M"', "2.5M"), (3.14159, "General", "3.14159"), (1.5, "0.##", "1.5"),
        (5550100, "000-0000", "5550100"), (2500, '[>=1000000]0.0,,"M";[>=1000]0.0,"K";0', "2500"),
        (1234567, "0.00E+00", "1234567"), (0.5, "# ?/?", "0.5"), (0.1 + 0.2, "General", "0.3"), (8, "@", "8"),
    ],
)  # fmt: skip
def test_a_number_is_shown_by_its_format(value, code, shown):
    assert office._number(value, code) == shown


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["Rules of environ-", "mental care"], "Rules of environmental care"),
        (["soft\\255", "ware"], "software"),
        (["pages 3-", "4 of Austria-", "Hungary"], "pages 3-\n4 of Austria-Hungary"),
        (["a state-of-the-", "art end-to-", "end test"], "a state-of-the-art end-to-end test"),
    ],
)
def test_words_that_are_divided_in_a_pdf_are_whole(tmp_path, lines, text):
    shown = ") Tj 0 -16 Td (".join(lines)
    first, second = parts(tmp_path, "a.pdf", pdf([shown, "Next."]))
    assert (first.text, second.text, second.place) == (text, "Next.", "page=2")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<main><h2><button>Fold</button></h2><div>panel</div></main>", "## Fold\n\npanel"),
        ("<h3><a><span><button><b>Fold</b></button></span></a></h3><p>panel", "### Fold\n\npanel"),
        ("<header><nav>menu</nav><h1>Top</h1></header><main>text</main><footer>end</footer>", "# Top\n\ntext"),
        ("<h1>Top</h1><main>text</main>", "# Top\n\ntext"),
        ("<details><summary>Q</summary>A</details><details><summary>R</summary>B</details>", "Q\nA\n\nR\nB"),
        ("<dl><dt>term<dd>words</dl><fieldset><legend>a</legend>b</fieldset>", "term\n\nwords\n\na\nb"),
        ("<p>a<p hidden>b<p style='display: none'>c<script>d</script><select><option>e</select>", "a"),
        ("<article>one</article><div><article>two</article></div>", "one\n\ntwo"),
        ("<p>a fragment <!-- not this --> of<br>two lines", "a fragment of\ntwo lines"),
        ("<form>a form alone</form>", "a form alone"),
        ("<nav>menu</nav> beside <b>text</b> <aside>more</aside> and text", "beside text and text"),
        ("<p>caf\u00e9", "caf\u00e9"),  # misspelt
        (b'<meta charset="iso-8859-1"><p>caf\xe9', "caf\u00e9"),  # misspelt
        ('<meta charset="gb2312"><p>' + TEXTS["zh"], TEXTS["zh"]),
        (b'<meta charset="iso-8859-1"><p>\x93quoted\x94 \x80 5', "“quoted” € 5"),
        ('<meta charset="gb2312"><p>朱镕基'.encode("gb18030"), "朱镕基"),
        ('<meta charset="utf-16"><p>caf\u00e9', "caf\u00e9"),  # misspelt
        (b'<meta charset="undefined"><p>words', "words"),
        ("<button><h3>In a button</h3></button><div>panel", "### In a button\n\npanel"),
        ("<button aria-expanded=false aria-controls=x>Q</button><div id=x hidden>A</div><button>Send</button>", "Q\nA"),
        ('<h3><button aria-controls=s>Q</button></h3><div id=s style="display:none">A</div>', "### Q\n\nA"),
        ("<h3><button data-bs-target='#s'>Q</button></h3><div id=s class=collapse hidden>A</div>", "### Q\n\nA"),
        (
            "<div role=tabpanel hidden>A</div><div hidden=until-found>B</div><div style='visibility: hidden'>C</div>",
            "A\n\nB",
        ),
        ("<h2><img src=x></h2><p>text", "text"),
        ("<p>see <img alt='a map'> here", "see a map here"),
        ("<main></main><div>around", "around"),
        ("<ruby>東<rp>(<rt>tou<rp>)</ruby>京", "東京"),
        ("<p>Donau<wbr>dampf&shy;schiff &#150; &check; &nbsp;x", "Donaudampfschiff – ✓ x"),
        ("<aside>menu</aside><main>text<aside>note</aside></main>", "textnote"),
        ("<dialog>closed</dialog><dialog open>open</dialog>", "open"),
        ("<main><script>make()</script></main><noscript><p>without scripts</noscript>", "without scripts"),
        ("<p>in</p></body></html><p>behind", "in\n\nbehind"),
        ("<div><template shadowrootmode=open><p>shadow</template></div>", "shadow"),
        ("<p>long<p>before<article>teaser</article><p>after", "long\n\nbefore\nteaser\n\nafter"),
        ('<meta charset="iso-8859-1"><p>Grüße, naïve', "Grüße, naïve"),
        (b"\xef\xbb\xbf" + '<meta charset="iso-8859-1"><p>Grüße'.encode(), "Grüße"),
        (f'<meta charset="utf-8"><p>{TEXTS["zh"]}'.encode("gb18030"), TEXTS["zh"]),
    ],
)
def test_the_text_of_a_page(tmp_path, page, text):
    content = page.encode() if isinstance(page, str) else page
    assert text_of(tmp_path, "a.html", content) == text


def test_the_title_of_a_page_without_one_is_its_first_heading(tmp_path):
    (part,) = parts(tmp_path, "a.html", "<p>words<h2>Gases</h2>")
    assert part.title == "Gases"


RICH = r"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}\f0 Rich \b words\b0  of Gr\'fc\'dfe.\par Next \u8364? line.}"


def test_rich_text_is_read(tmp_path):
    assert text_of(tmp_path, "a.rtf", RICH) == "Rich words of Grüße.\nNext € line."


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (r"{\rtf1\mac{\fonttbl{\f0 Geneva;}}\f0 Gl\'9fhwein}", "Glühwein"),
        (r"{\rtf1\pca B\'84r}", "Bär"),
        (
            r"{\rtf1\ansi Seen {\v not }and {\b\v no \{x\}}\b bold\v  none\v0  words, C:\\v\\x}",
            "Seen and bold words, C:\\v\\x",
        ),
    ],
)
def test_rich_text_of_old_systems_is_read_without_hidden_words(tmp_path, content, text):
    assert text_of(tmp_path, "a.rtf", content) == text


def mixed(*added):
    """A mail of some parts, each a text and its kind, or a mail."""
    message = EmailMessage()
    message["Subject"] = "Outer"
    message.make_mixed()
    for own in added:
        if isinstance(own, EmailMessage):
            message.add_attachment(own)
        else:
            message.attach(EmailMessage())
            message.get_payload()[-1].set_content(own[0], subtype=own[1])
    return message


def inner(*, blank=False):
    message = EmailMessage()
    message["Subject"] = "Inner"
    message.set_content(" \n" if blank else "forwarded")
    if blank:
        message.add_alternative("<p>forwarded</p>", subtype="html")
    return message


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (inner(blank=True).as_bytes(), ["forwarded"]),
        (mixed(("outer", "plain"), inner()).as_bytes(), ["outer", "Subject: Inner", "forwarded"]),
        (mixed(("outer", "plain"), inner(blank=True)).as_bytes(), ["outer", "Subject: Inner", "forwarded"]),
        (mixed(mixed(inner())).as_bytes(), ["Subject: Outer", "Subject: Inner", "forwarded"]),
        (mixed(("one", "plain"), ("<p>two", "html")).as_bytes(), ["one", "two"]),
        (b"Subject: s\nContent-Type: text/plain; charset=x-none\n\nwords\n", ["words"]),
        (b"Subject: Gr\xfc\xdfe\n\nGl\xfchwein am Markt\n", ["Glühwein am Markt"]),
        (b"\xef\xbb\xbf\r\nSubject: s\r\n\r\nwords\r\n", ["words"]),
        (b"Subject: s\nContent-Type: text/plain; charset=iso-8859-1\n\n\x93q\x94\n", ["“q”"]),
        (b"Subject: s\nContent-Type: text/html\n\n<?xml version='1.0' encoding='utf-8'?><p>words", ["words"]),
        (b"Subject: s\nContent-Type: multipart/mixed; boundary=y\n\n--x\n\nwords\n", ["--x", "words"]),
        (b"Subject: only\n\n", ["only"]),
        (b"Subject: s\nContent-Disposition: attachment; filename=a.txt\n\nwords\n", ["words"]),
        (f"Subject: s\nContent-Type: application/rtf\n\n{RICH}".encode(), ["Rich words of Grüße.", "Next € line."]),
        ("Subject: s\nContent-Type: text/plain; charset=us-ascii\n\nGrüße".encode(), ["Grüße"]),
        (
            b"Content-Type: multipart/report; boundary=x\n\n--x\n\nIt failed.\n--x\nContent-Type: message/delivery-status\n\n"
            b"Reporting-MTA: y\n\nDiagnostic-Code: 550 nobody\n--x--\n",
            ["It failed.", "Reporting-MTA: y", "Diagnostic-Code: 550 nobody"],
        ),
        (
            b"Content-Type: multipart/alternative; boundary=x\n\n--x\n\nAt noon.\n--x\nContent-Type: text/calendar\n\n"
            b"BEGIN:VCALENDAR\nSUMMARY:At noon\nEND:VCALENDAR\n--x--\n",
            ["At noon."],
        ),
        (
            b"Content-Type: multipart/alternative; boundary=x\n\n--x\n\nSee it in a browser.\n--x\nContent-Type: text/html\n\n"
            b"<p>All that the letter says, in far more words than the part before it.\n--x--\n",
            ["All that the letter says, in far more words than the part before it."],
        ),
        (
            b"Content-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: message/rfc822\nContent-Transfer-Encoding: base64"
            b"\n\n" + base64.b64encode(b"Subject: In\n\nwords\n") + b"\n--x--\n", ["Subject: In", "words"],
        ),
        (
            b"Content-Type: multipart/alternative; boundary=x\n\n--x\nContent-Type: text/calendar\n\nBEGIN\n--x\n\nwords\n"
            b"--x--\n",
            ["words"],
        ),
        (inner(blank=True).as_bytes().replace(b" \n", b"\xc2\xa0\xe2\x80\x8b\n", 1), ["forwarded"]),
    ],
)  # fmt: skip
def test_all_texts_of_a_mail_are_read(tmp_path, content, lines):
    assert [line for line in text_of(tmp_path, "a.eml", content).splitlines() if line.strip()] == lines


def test_a_header_that_is_not_encoded_is_read_by_its_letters(tmp_path):
    (part,) = parts(tmp_path, "a.eml", mail("SUBJECT", "Words.").replace(b"SUBJECT", b"Gr\xfc\xdfe"))
    assert part.title == "Grüße"


@pytest.mark.parametrize(
    ("subject", "title"),
    [
        (f"=?gb2312?B?{base64.b64encode('朱镕基'.encode('gbk')).decode()}?=", "朱镕基"),
        ("=?utf-8?B?R3LD?=\n =?utf-8?B?vMOfZQ==?=", "Grüße"),
        ("=?iso-8859-1?Q?Gr=FC=DFe?= and more", "Grüße and more"),
        ("=?utf-8?B?broken", "=?utf-8?B?broken"),
    ],
)
def test_encoded_subjects_are_read(tmp_path, subject, title):
    (part,) = parts(tmp_path, "a.eml", f"Subject: {subject}\n\nwords\n")
    assert part.title == title


@pytest.mark.parametrize(
    ("language", "encoding"),
    [
        ("zh", "gb18030"), ("zht", "big5"), ("ja", "shift_jis"), ("ja", "euc-jp"), ("ja", "iso2022_jp"), ("ko", "euc-kr"),
        ("ru", "cp1251"), ("ru", "koi8-r"), ("ru", "cp866"), ("ru", "iso8859-5"), ("el", "cp1253"), ("ar", "cp1256"),
        ("he", "cp1255"), ("de", "cp1252"), ("fr", "cp1252"), ("de", "utf-16"), ("de", "utf-16-le"), ("zh", "utf-16-be"),
        ("de", "utf-32"), ("ja", "utf-16-le"), ("ja", "utf-16-be"), ("th", "utf-16-le"), ("th", "tis-620"), ("tr", "cp1254"),
        ("zh", "utf-32-le"), ("ko", "cp949"), ("ja", "cp932"), ("zh", "hz"), ("cs", "cp1250"), ("cs", "iso8859-2"),
        ("pl", "cp1250"), ("pl", "iso8859-2"), ("de", "mac_roman"), ("fr", "mac_roman"), ("es", "mac_roman"),
        ("café", "mac_roman"), ("café", "cp1252"), ("de", "cp850"), ("it", "cp850"), ("es", "cp437"),
    ],
)  # fmt: skip
def test_letters_tell_an_encoding(language, encoding):
    text, odd = decoded(TEXTS[language].encode(encoding))
    assert text == TEXTS[language]
    assert odd


def test_few_letters_in_a_long_text_tell_its_encoding_and_a_wrong_byte_does_not():
    text = f"{TEXTS['zh']} {'English words come first. ' * 3000}{TEXTS['zh']}"
    assert decoded(text.encode("gb18030"))[0] == text
    assert decoded(b"plain text with one caf\xe9 in it")[0] == "plain text with one caf\u00e9 in it"  # misspelt
    assert decoded("Grüße aus Köln".encode() + b"\xff") == ("Grüße aus Köln\ufffd", "")


@pytest.mark.parametrize(
    ("language", "declared", "encoding"),
    [
        ("ru", "us-ascii", "cp1251"), ("ru", "iso-8859-1", "koi8-r"), ("zh", "iso-8859-1", "gbk"), ("zht", "gb2312", "big5"),
        ("ja", "us-ascii", "iso2022_jp"), ("ja", "utf-8", "iso2022_jp"), ("de", "utf-8", "cp1252"), ("zh", "us-ascii", "hz"),
        ("fr", "iso-8859-1", "cp1252"), ("zh", "hz-gb-2312", "hz"),
        ("ru", "koi8-r", "cp1251"), ("ru", "windows-1251", "koi8-r"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("times", [1, 3_000])
def test_a_mail_that_declares_another_encoding_is_read_by_its_letters(tmp_path, language, declared, encoding, times):
    head, text = f"Subject: s\nContent-Type: text/plain; charset={declared}\n\n".encode(), TEXTS[language] * times
    assert text_of(tmp_path, "a.eml", head + text.encode(encoding)).strip() == text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"one\rtwo\rthree", "one\ntwo\nthree"),
        (b"words\0 and words behind the only zero of a text", "words and words behind the only zero of a text"),
        (b"\xef\xbb\xbfGr\xc3\xbc\xc3\x9fe", "Grüße"),
        ("\ufeffGrüße".encode("utf-32-be"), "Grüße"),
        ("\ufeff汉字是".encode("gb18030"), "汉字是"),
        (b"rm ~{a,b} and ~{ more", "rm ~{a,b} and ~{ more"),
    ],
)
def test_ends_of_lines_zeros_and_marks_of_encodings_are_not_text(tmp_path, content, text):
    assert text_of(tmp_path, "a.txt", content) == text


def test_enriched_text_is_read_without_its_marks(tmp_path):
    head = b"Subject: s\nContent-Type: text/enriched\n\n"
    body = b"<bold>Now</bold> is\nthe <<time>\n\nfor<color><param>red</param> all</color>\n<nofill>one\ntwo</nofill>\n\n\nend"
    assert text_of(tmp_path, "a.eml", head + body).split() == [
        "Now",
        "is",
        "the",
        "<time>",
        "for",
        "all",
        "one",
        "two",
        "end",
    ]


@pytest.mark.parametrize("author", [b"Ada", b"tc={1-2}"], ids=["a note beside", "a copy for old programs"])
def test_threaded_comments_of_a_sheet_are_read_once(tmp_path, author):
    relation = (
        b'<Relationship Id="rId9" Type="http://x/threadedComment" Target="../threadedComments/t.xml"/></Relationships>'
    )
    rels = "xl/worksheets/_rels/sheet1.xml.rels"
    comments = (
        b"<ThreadedComments><threadedComment><text>first</text></threadedComment><threadedComment><text>reply</text>"
    )
    added = {"xl/threadedComments/t.xml": comments + b"</threadedComment></ThreadedComments>"}

    def change(name, data):
        return data.replace(b"</Relationships>", relation) if name == rels else data.replace(b">Ada<", b">%s<" % author)

    text = parts(tmp_path, "a.xlsx", rezipped(sheets(), added, change))[0].text
    assert [line.strip() for line in text.splitlines()][-2:] == ["first", "reply"]
    assert ("remark" in text) == (author == b"Ada")


@pytest.mark.parametrize("names", [b"fi/fl", b"uniF001/uniF002"])
def test_ligatures_of_a_pdf_are_letters(tmp_path, names):
    named = b"/Encoding<</Type/Encoding/Differences[1/" + names + b"/ffi]>>"
    content = pdf(["\\001nd \\002at o\\003ce"]).replace(b"/Encoding/WinAnsiEncoding", named)
    assert text_of(tmp_path, "a.pdf", content) == "find flat office"


@pytest.mark.parametrize(
    ("text", "title", "line"),
    [
        ('---\ntitle: "One: two"\n---\nwords\n', "One: two", 4),
        ("---\ntitle: |\n  Long\n  one\n---\nwords\n", "Long one", 6),
        ("---\ntitle: 007\n---\nwords\n", "007", 4),
        ("---\ntitle: 0\n---\nwords\n", "0", 4),
        ("---\ntitle: 12:30\n---\nwords\n", "12:30", 4),
        ("---\ntitle: 2024-03-05\n---\nwords\n", "2024-03-05", 4),
        ("---\ntitle:\n---\n# Real\n", "Real", 4),
        ("---\rtitle: Old\r---\rwords", "Old", 4),
        ("---\ntitle: One: two\n---\nwords\n", "One: two", 1),
        ('---\r\ntitle: "@home\r\n---\r\nwords\r\n', "@home", 1),
        ("<!--\n# No heading\n-->\n\n# Real\n", "Real", 1),
        ('+++\ntitle = "Toml"\n+++\nwords\n', "Toml", 4),
        ("---\ntitle: [One, Two]\n---\nwords\n", "One, Two", 4),
        ("---\ntitle: {a: b}\n---\n# Real\n", "Real", 4),
        ("# The **bold** `code` of [a link](http://x)\n", "The bold code of a link", 1),
        ("   # Indented\n    # code\n", "Indented", 1),
        ("---\njust words between rules\n---\n# Real\n", "Real", 1),
        ("---\nTitle: The **bold** `one`\n---\nwords\n", "The bold one", 4),
        ("---\ntitle: >\n  Long\n  one\n---\nwords\n", "Long one", 6),
        ("---\n---\n# Real\n", "Real", 3),
        ("words <!--\n# no\n--> more\n\n# Real", "Real", 1),
        ("  <!--\n# no\n  -->\n# Real", "Real", 1),
        ("use `<!--` to open\n\n# Real", "Real", 1),
        ("**One** `two`\n=====\n", "One two", 1),
        ("# ~~A~~ [![B](b.svg)](http://b) C[^1] <https://d.org> &amp; \\*e {#id}\n", "A B C https://d.org & *e", 1),
        ('<h1 align="center">\n  <img src="x"> Centre\n</h1>\n\n## Sub', "Centre", 1),
        ("# C# `__init__` and 2 * 3\n", "C# __init__ and 2 * 3", 1),
        ("# [A](http://x/(y)) b\n", "A b", 1),
        ("Short\n=\nwords", "Short", 1),
    ],
)
def test_the_title_of_a_text_in_markdown(tmp_path, text, title, line):
    (part,) = parts(tmp_path, "a.md", text)
    assert (part.title, part.place) == (title, f"line={line}")


@pytest.mark.parametrize(
    ("name", "content", "title"),
    [
        ("a.rst", "#######\n Frame\n#######\n\nwords\n", "Frame"),
        ("a.mdx", "import X from 'x'\n\n# Real\n", "Real"),
        ("a.Rmd", "---\ntitle: Front\n---\n\n```{r}\n# no\n```\n", "Front"),
        ("a.qmd", "```{r}\n# no\n```\n# Real\n", "Real"),
    ],
)
def test_the_title_of_other_texts_with_marks(tmp_path, name, content, title):
    (part,) = parts(tmp_path, name, content)
    assert part.title == title


def cell(kind, *source, key="source", **more):
    return {"cell_type": kind, key: list(source), **more}


@pytest.mark.parametrize(
    ("book", "title", "text"),
    [
        (
            {"worksheets": [{"cells": [cell("heading", "Old", level=1), cell("code", "y = 2", key="input")]}]},
            "Old",
            "# Old\n\n```\ny = 2\n```\n",
        ),
        (
            {"cells": [cell("code", "```\n", "# no\n", "```"), cell("raw", "# Real")]},
            "Real",
            "````\n```\n# no\n```\n````\n\n# Real\n",
        ),
        ({"cells": [{"cell_type": "markdown"}, cell("raw", "kept")]}, "a", "\n\nkept\n"),
    ],
)
def test_notebooks_of_all_formats_are_read(tmp_path, book, title, text):
    (part,) = parts(tmp_path, "a.ipynb", b"\xef\xbb\xbf" + json.dumps(book).encode())
    assert (part.title, part.text) == (title, text)


def test_filled_forms_and_comments_of_a_pdf_are_read(tmp_path):
    field, remark = (
        f"<</Type/Annot/Subtype/{own}/Rect[9 9 99 99]>>" for own in ("Widget/V(Ada)", "Text/Contents(a remark)")
    )
    content = pdf(["Name:"]).replace(b"/Resources", f"/Annots[{field}{remark}]/Resources".encode())
    assert text_of(tmp_path, "a.pdf", content) == "Name:\nAda\na remark"


def test_a_file_of_the_system_without_a_size_is_read(tmp_path):
    if not Path("/proc/self/limits").exists():
        pytest.skip("needs such a file")
    with pytest.raises(UnreadableError, match="empty"):
        list(parts_of(Path("/dev/null")))


def test_without_the_library_that_tells_encodings_a_text_is_read_as_windows_1252(monkeypatch):
    monkeypatch.setitem(sys.modules, "chardet", None)
    text, odd = texts.decoded("Größe, Straße".encode("cp1252"))
    assert (text, "read as Windows-1252" in odd) == ("Größe, Straße", True)
    assert texts.decoded("Größe".encode()) == ("Größe", "")
    with pytest.raises(ModuleNotFoundError):
        texts.decoded("Größe".encode("utf-16"))
