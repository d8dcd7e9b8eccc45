"""The page of `dsi serve` in a real Chromium: searching, the drawn walk, following a document, browsing, the keyboard."""

import json
import re

import pytest

import dsi

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("playwright")

from playwright import sync_api

from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.store.retriever import load
from tests.support.browsers import chromium
from tests.support.serving import QUERY, live, save_index
from tests.support.small import MINIPEDIA, PROMPTS

pytestmark = pytest.mark.browser


HOSTILE = "<img src=x onerror=alert(1)>"
LAW = "the law of light and gases in physics"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sentence_t5_folder):
    """Two indexes, `vectors` and `digits`."""
    encoder, folder = (
        Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu"),
        tmp_path_factory.mktemp("page"),
    )
    save_index(encoder, folder / "vectors")
    save_index(encoder, folder / "digits", vectors=False)
    return folder


@pytest.fixture(scope="module")
def served(folder):
    with live(folder / "vectors") as client:
        yield client


@pytest.fixture(scope="module")
def served_digits(folder):
    with live(folder / "digits") as client:
        yield client


@pytest.fixture(scope="module")
def hostile(folder, tmp_path_factory):
    """The index with a document that is written to be taken for HTML."""
    retriever = load(folder / "vectors", device="cpu")
    retriever.add([{"doc_id": "a<b>", "title": HOSTILE, "text": f"{HOSTILE} alert", "metadata": {"number": 60}}])
    run = tmp_path_factory.mktemp("hostile") / "index"
    retriever.save(run)
    with live(run) as client:
        yield client


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser, served):
    """A page on which a search is done; fails if it loads anything from elsewhere, or has an error."""
    page, problems = browser.new_page(viewport={"width": 1400, "height": 900}), []
    page.on("request", lambda request: request.url.startswith((served.url, "data:")) or problems.append(request.url))
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{served.url}/?q={QUERY}")
    page.wait_for_selector("#answers li")
    yield page
    page.close()
    assert [problem for problem in problems if "400 (Bad Request)" not in problem] == []


def test_a_search_shows_answers_with_what_matters(page, served):
    _, found = served.ask("search", {"query": QUERY, "parts": True, "matches": True})
    hits = found["answers"][0]["hits"]
    assert page.locator("#answers b").all_inner_texts() == [hit["title"] for hit in hits]
    for item, hit in zip(page.locator("#answers > li").all(), hits, strict=True):
        said, parts = item.locator(".meta").inner_text(), {n: v for n, v in hit["parts"].items() if abs(v) >= 0.005}
        assert hit["doc_id"] in said
        assert f"number: {hit['metadata']['number']}" in said
        if len(parts) > 1:
            assert " + ".join(f"{name} {value:.2f}".replace("-", "−") for name, value in parts.items()) in said
        assert "0.00" not in said
        marks = [mark.inner_text() for mark in item.locator("b mark, .text mark").all()]
        start, end = hit["excerpt"]
        spans = [span for match in hit["matches"] if match["is_clear"] for span in match["spans"]]
        shown = [span for span in spans if span["field"] == "title" or (start <= span["start"] and span["end"] <= end)]
        assert sorted(marks) == sorted(span["text"] for span in shown)
    assert page.locator("#answers mark").count()
    assert page.locator("#answers b[lang=''], #answers p.text[lang=''], #query[lang='']").count() == 2 * len(hits) + 1
    assert re.fullmatch(r"10 answers in \d+ ms\. No document mentions: capitals\.", page.inner_text("#status"))
    assert page.title() == f"{QUERY} · vectors"


def test_a_text_opens_and_more_answers_come(page, served):
    first = page.locator("#answers > li").first
    (text,) = [hit["text"] for hit in served.ask("search", {"query": QUERY, "k": 1})[1]["answers"][0]["hits"]]
    assert text not in first.inner_text()
    first.get_by_text("more", exact=True).click()
    assert text in first.inner_text().replace("\u00a0", " ")
    first.get_by_text("less", exact=True).click()
    assert text not in first.inner_text()
    page.get_by_text("More answers").click()
    sync_api.expect(page.locator("#answers > li")).to_have_count(20)


def test_an_empty_page_names_the_index_and_has_examples(browser, served):
    page = browser.new_page()
    page.goto(served.url)
    sync_api.expect(page.locator("#name")).to_have_text("vectors")
    assert page.locator("#about").inner_text() == "60 documents"
    assert page.locator("#examples li").count() == 4
    example = page.locator("#examples button").first.inner_text()
    page.locator("#examples button").first.click()
    page.wait_for_selector("#answers li")
    assert page.input_value("#query") == example
    assert not page.locator("#start").is_visible()
    assert not page.locator("#alpha").is_visible()  # settings are folded
    page.close()


def test_nothing_of_a_document_is_taken_for_html(browser, hostile):
    page, problems = browser.new_page(), []
    page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    page.goto(f"{hostile.url}/?q={HOSTILE}")
    page.wait_for_selector("#answers li")
    assert HOSTILE in page.locator("#answers").inner_text()
    page.fill("#doc-id", "a<b>")
    page.keyboard.press("Enter")
    page.wait_for_selector("#reason .path")
    assert HOSTILE in page.locator("#reason").inner_text()
    page.click("nav >> text=Browse")
    page.wait_for_selector("#branches li")
    assert page.locator("#answers img, #reason img, #tree img, #branches img").count() == 0
    assert not problems
    page.close()


@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_fits_its_frame(browser, served, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(f"{served.url}/?q={QUERY}")
    page.wait_for_selector("#answers li")
    page.locator("#settings summary").click()
    for fold in reversed(page.locator("li.fold .row").all()):
        fold.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(
        "[...document.querySelectorAll('#tree .row')].every((row) => row.scrollWidth <= row.clientWidth)"
    )
    page.close()


def test_the_interface_is_described(browser, served):
    page = browser.new_page()
    page.goto(f"{served.url}/docs")
    page.wait_for_selector("#paths h2")
    said = page.locator("#paths").inner_text()
    assert "POST /search" in said
    assert "beam_width" in said
    page.close()


def test_settings_search_again_and_can_be_reset(page, served):
    page.locator("#settings summary").click()
    page.locator("#lexical_weight").focus()
    with page.expect_response("**/explain"):
        page.keyboard.press("End")  # the keys of a slider
    sync_api.expect(page.locator("#how")).to_contain_text("generate, beam width 6, BM25 0.4; level 1: ")
    assert page.locator("#changed").inner_text() == "· changed: lexical weight"
    page.fill("#where", "number < 20")
    page.keyboard.press("Enter")
    page.wait_for_url("**where=*")
    sync_api.expect(page.locator("#how")).to_have_text("generate, BM25 0.4; 20 vectors read")
    page.fill("#where", "number <")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status.error")
    assert page.locator("#status").inner_text().startswith("where 'number <' does not work at character 9")
    assert page.locator("#found.stale").count() == 1  # the answers of the search before
    page.click("#reset")
    sync_api.expect(page.locator("#how")).to_contain_text("beam width 6, BM25 0.1;")
    assert page.locator("#found.stale").count() == 0


def test_quotes_and_minuses_are_read_on_the_page(page, served):
    page.fill("#query", '"danube" -brown')
    page.keyboard.press("Enter")
    _, found = served.ask("search", {"query": '"danube" -brown', "syntax": True})
    titles = [hit["title"] for hit in found["answers"][0]["hits"]]
    sync_api.expect(page.locator("#answers b")).to_have_text(titles)
    assert 0 < len(titles) < 10
    page.fill("#query", '"nobody has this"')
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#status")).to_have_text("No document has 'nobody has this'.")
    assert page.locator("#answers li").count() == 0
    page.fill("#query", "river -danube")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#status")).to_contain_text("10 answers")
    assert "Danube" not in page.locator("#answers b").all_inner_texts()


def test_several_passages_stand_in_their_order(browser, sentence_bert_folder, tmp_path):
    rows = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").open(encoding="utf-8")]
    texts = ["\n".join(row["text"] for row in rows[at : at + 8]) for at in range(0, 40, 8)]
    config = dsi.Config().without_training().with_changes({"encoder": {"piece_length": 60, "document_length": 100}})
    dsi.index(texts, tmp_path / "index", config=config, encoder=str(sentence_bert_folder), device="cpu")
    with live(tmp_path / "index") as client:
        page = browser.new_page()
        page.goto(f"{client.url}/?q={QUERY}")
        page.wait_for_selector("#answers li")
        assert page.locator("#answers p.text").count() == 5
        page.locator("#settings summary").click()
        page.fill("#passages", "3")
        page.keyboard.press("Enter")
        sync_api.expect(page.locator("#answers p.text")).to_have_count(15)
        _, found = client.ask("search", {"query": QUERY, "passages": 3, "matches": True})
        page.close()
    for hit in found["answers"][0]["hits"]:
        starts = [passage["start"] for passage in hit["passages"]]
        assert starts == sorted(starts)
        for passage in hit["passages"]:
            start, end = passage["excerpt"]
            assert passage["start"] <= start < end <= passage["end"]


def sliders(page):
    """The names of the sliders that can be moved."""
    return [each.get_attribute("name") for each in page.locator("input[type=range]").all() if movable(each)]


def movable(slider):
    return slider.is_visible() and slider.is_enabled()


def test_an_exact_search_takes_what_it_uses_and_speaks_of_no_beam(page, served):
    page.locator("#settings summary").click()
    assert sliders(page) == ["beam_width", "candidates", "lexical_weight"]
    assert page.locator(".of-walk").first.is_visible()
    page.locator("#beam_width").focus()
    page.keyboard.press("Home")
    widened = re.compile("beam width [248],")  # until ten are found
    sync_api.expect(page.locator("#how")).to_contain_text(widened)
    page.select_option("#method", "exact")
    sync_api.expect(page.locator("#how")).to_have_text("exact, BM25 0.1; 60 vectors read")
    assert sliders(page) == ["lexical_weight"]
    assert "Proven: no other document scores higher." in page.locator("#status").inner_text()
    _, found = served.ask("search", {"query": QUERY, "method": "exact"})
    hits = found["answers"][0]["hits"]
    assert page.locator("#answers b").all_inner_texts() == [hit["title"] for hit in hits]
    doc_ids = set(served.app.state.service.retriever.snapshot.documents.column("doc_id"))
    missing = min(doc_ids - {hit["doc_id"] for hit in hits})
    page.fill("#doc-id", missing)
    page.click("#why button")
    page.wait_for_selector("#reason p")
    said = page.locator("#found").inner_text()
    said += "".join(page.locator("[role=treeitem] .quiet").all_text_contents())
    assert "beam" not in said.lower()
    assert "pruned" not in said.lower()
    assert page.locator(".answer > [role=treeitem]").count() == 10


def test_candidates_are_a_setting(page):
    page.locator("#settings summary").click()
    page.locator("#candidates").focus()
    with page.expect_request("**/search") as asked:
        page.keyboard.press("Home")
    assert asked.value.post_data_json == {
        "query": QUERY, "syntax": True, "k": 10, "method": "generate", "candidates": 10, "parts": True, "matches": True
    }  # fmt: skip


def test_documents_that_words_found_are_marked(page, served):
    options = {"beam_width": 1, "lexical_weight": 0.4}
    page.locator("#settings summary").click()
    page.fill("#query", LAW)
    for name, key in (("beam_width", "Home"), ("lexical_weight", "End")):
        page.locator(f"#{name}").focus()
        page.keyboard.press(key)
    sync_api.expect(page.locator("#how")).to_contain_text("BM25 0.4;")
    _, picture = served.ask("explain", {"query": LAW, "k": 10, **options})
    expected = {node["rank"] for node in answers_below(picture) if node["found_by"] == ["words"]}
    marked = {
        int(item.locator(".rank").inner_text())
        for item in page.locator("#answers > li").all()
        if "found by words" in item.inner_text()
    }
    assert marked == expected
    assert 0 < len(expected) < 10
    assert page.locator("[role=treeitem] .quiet", has_text="found by words").count() == len(expected)


def answers_below(node):
    for child in node.get("children", []):
        if child["rank"]:
            yield child
        yield from answers_below(child)


def test_digits_have_parts_and_settings_of_their_own(browser, served_digits):
    page = browser.new_page()
    page.goto(f"{served_digits.url}/?q={QUERY}")
    page.wait_for_selector("#answers li")
    page.locator("#settings summary").click()
    assert sliders(page) == ["beam_width", "alpha"]
    assert re.search(r"generator \S+ \+ encoder", page.locator("#answers .meta").first.inner_text())
    page.select_option("#method", "exact")
    sync_api.expect(page.locator("#how")).to_contain_text("exact, alpha 0.5; ")
    assert sliders(page) == ["alpha"]
    page.locator("#alpha").focus()
    page.keyboard.press("Home")
    sync_api.expect(page.locator("#how")).to_contain_text("exact, alpha 0; ")
    assert "generator" not in page.locator("#answers").inner_text()
    page.close()


def test_the_walk_is_a_tree_for_keyboards_and_screen_readers(page, served):
    _, picture = served.ask("explain", {"query": QUERY})
    items = page.locator("[role=treeitem]")
    labels = items.locator(".quiet").all_text_contents()
    assert labels[0] == "The root, 60 documents"
    assert page.locator(".answer > [role=treeitem]").count() == 10
    ways = [node for node in picture["children"] if list(answers_below(node))]
    assert page.locator("li:not(.fold) > [role=treeitem][aria-level='2']").count() == len(ways)
    level = picture["levels"][1]
    assert f"level 2: {level['kept']} of {level['scored']} kept" in page.locator("#how").inner_text()
    assert page.locator("[role=treeitem][tabindex='0']").count() == 1
    items.first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-level')") == "2"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.getAttribute('aria-level')") == "1"
    fold = page.locator(".fold").first
    number = int(fold.locator(".main").text_content().split()[0])
    fold.locator("[role=treeitem]").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert items.count() >= len(labels) + min(number, 8)
    page.keyboard.press("Enter")
    assert items.count() == len(labels)


def test_a_document_that_is_not_there_is_followed(page, served):
    page.fill("#doc-id", "danube")
    page.click("#why button")
    page.wait_for_selector("#reason p")
    _, expected = served.ask("explain", {"query": QUERY, "doc_id": "danube"})
    target = expected["target"]
    assert page.locator("#reason p").first.inner_text() == f"{target['label']}. {target['reason']}"
    assert page.locator("#reason .path li").count() == len(target["path"])
    assert page.locator("#reason .matches li").count() == len(target["matches"])
    page.fill("#doc-id", "nobody")
    page.keyboard.press("Enter")
    page.wait_for_selector("#reason .error")
    assert page.locator("#reason").inner_text() == "The doc_id 'nobody' is not in the index."


def test_the_tree_can_be_browsed_down_to_a_text(page, served):
    page.click("nav >> text=Browse")
    page.wait_for_selector("#branches li")
    node = served.ask("tree")[1]["children"][0]
    first = page.locator("#branches summary").first
    assert first.inner_text() == f"0 {', '.join(node['words'])} {node['documents']} documents"
    while "doc_id" not in node:
        node = served.ask(f"tree?digits={','.join(map(str, node['digits']))}")[1]
        first.click()
        node = node["children"][0]
        first = page.locator(f"summary:has(code:text-is('{'.'.join(map(str, node['digits']))}'))")
        first.wait_for()
    first.click()
    story = page.locator("#branches p").first
    story.wait_for()
    assert served.ask(f"documents/{node['doc_id']}")[1]["text"] in story.inner_text()
    assert not page.locator("#search-view").is_visible()


def test_every_field_has_a_label_and_every_region_a_name(page):
    unnamed = page.evaluate(
        """[...document.querySelectorAll('input')].filter((input) => !input.labels.length).length"""
    )
    assert unnamed == 0
    assert page.locator("main").count() == 1
    assert page.locator("[role=tree]").get_attribute("aria-label")
    for role in ("search", "navigation", "region"):
        for found in page.get_by_role(role).all():
            assert found.get_attribute("aria-label") or found.get_attribute("aria-labelledby")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_in_both_schemes(browser, served, scheme):
    page = browser.new_page(color_scheme=scheme)
    page.goto(served.url)
    sync_api.expect(page.locator("#about")).to_contain_text("60 documents")
    names = ["text", "muted", "kept", "answer", "pruned", "error"]
    ratios = page.evaluate(CONTRAST, names)
    page.close()
    assert min(ratios) >= 4.5, dict(zip(names, ratios, strict=True))


CONTRAST = """(names) => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue('--' + name).trim().slice(1);
    const [r, g, b] = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return names.map((name) => Math.min(...['ground', 'raised'].map((ground) => {
    const [low, high] = [light(name), light(ground)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  })));
}"""
"""WCAG 2 contrast of the text colours against both grounds."""
