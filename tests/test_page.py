"""The page of `dsi serve` in a real Chromium: searching, the drawn walk, following a document, browsing, the keyboard."""

import shutil

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("playwright")

from playwright import sync_api

from contrastive.encoder import Encoder, EncoderConfig
from tests.conftest import PROMPTS
from tests.serving import QUERY, live, save_index

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


LAW = "the law of light and gases in physics"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sentence_t5_folder):
    """Two indexes, `tied` and `digits`."""
    encoder, folder = (
        Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu"),
        tmp_path_factory.mktemp("page"),
    )
    save_index(encoder, folder / "tied")
    save_index(encoder, folder / "digits", tied=False)
    return folder


@pytest.fixture(scope="module")
def served(folder):
    with live(folder / "tied") as client:
        yield client


@pytest.fixture(scope="module")
def served_digits(folder):
    with live(folder / "digits") as client:
        yield client


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


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


def test_a_search_shows_answers_with_the_parts_of_their_scores(page, served):
    _, found = served.ask("search", {"query": QUERY, "parts": True})
    hits = found["answers"][0]["hits"]
    assert page.locator("#answers b").all_inner_texts() == [hit["title"] for hit in hits]
    said = page.locator("#answers .meta").first.inner_text()
    parts = hits[0]["parts"]
    assert list(parts) == ["dense", "query map", "BM25"]
    assert said.startswith(" + ".join(f"{name} {value:.2f}".replace("-", "−") for name, value in parts.items()))
    assert page.locator("#parts-legend").inner_text().split("\n") == list(parts)
    assert page.locator("#status").inner_text().startswith("10 answers in ")
    assert page.title() == f"{QUERY} · dsi"


def test_settings_search_again_and_can_be_reset(page, served):
    page.locator("#alpha").focus()
    with page.expect_response("**/explain"):
        page.keyboard.press("Home")  # the keys of a slider
    sync_api.expect(page.locator("#how")).to_contain_text("generate, alpha 0, beam width 6, BM25 0.1; ")
    page.fill("#where", "number < 20")
    page.keyboard.press("Enter")
    page.wait_for_url("**where=*")
    sync_api.expect(page.locator("#how")).to_have_text("generate, BM25 0.1; 20 vectors read")
    page.fill("#where", "number <")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status.error")
    assert page.locator("#status").inner_text().startswith("where 'number <' does not work at character 9")
    page.click("#reset")
    sync_api.expect(page.locator("#how")).to_contain_text("alpha 0.5,")


def sliders(page):
    """The names of the sliders that can be moved."""
    return [each.get_attribute("name") for each in page.locator("input[type=range]").all() if movable(each)]


def movable(slider):
    return slider.is_visible() and slider.is_enabled()


def test_an_exact_search_takes_what_it_uses_and_speaks_of_no_beam(page, served):
    assert sliders(page) == ["alpha", "beam_width", "candidates", "lexical_weight"]
    assert page.locator(".of-walk").first.is_visible()
    page.locator("#beam_width").focus()
    page.keyboard.press("Home")
    sync_api.expect(page.locator("#how")).to_contain_text("beam width 4,")  # widened until ten are found
    page.select_option("#method", "exact")
    sync_api.expect(page.locator("#how")).to_have_text("exact, BM25 0.1; 60 vectors read")
    assert sliders(page) == ["lexical_weight"]
    assert page.locator("#status").inner_text().endswith("certified: provably the best of all")
    _, found = served.ask("search", {"query": QUERY, "method": "exact"})
    hits = found["answers"][0]["hits"]
    assert page.locator("#answers b").all_inner_texts() == [hit["title"] for hit in hits]
    doc_ids = set(served.app.state.service.retriever.documents.dataset["doc_id"])
    missing = min(doc_ids - {hit["doc_id"] for hit in hits})
    page.fill("#doc-id", missing)
    page.click("#why button")
    page.wait_for_selector("#reason p")
    said = page.locator("#found").inner_text() + page.locator("#found svg").text_content()
    said += "".join(item.get_attribute("aria-label") for item in page.locator("[role=treeitem]").all())
    assert "beam" not in said.lower()
    assert "pruned" not in said.lower()
    assert page.locator(".answer[role=treeitem]").count() == 10


def test_candidates_are_a_setting(page):
    page.locator("#candidates").focus()
    with page.expect_request("**/search") as asked:
        page.keyboard.press("Home")
    assert asked.value.post_data_json == {
        "query": QUERY, "k": 10, "method": "generate", "candidates": 10, "parts": True
    }  # fmt: skip


def test_documents_that_words_found_are_marked(page, served):
    options = {"beam_width": 1, "lexical_weight": 0.4}
    page.fill("#query", LAW)
    for name, key in (("beam_width", "Home"), ("lexical_weight", "End")):
        page.locator(f"#{name}").focus()
        page.keyboard.press(key)
    sync_api.expect(page.locator("#how")).to_contain_text("BM25 0.4;")
    _, picture = served.ask("explain", {"query": LAW, **options})
    expected = {node["rank"] for node in answers_below(picture) if node["found_by"] == ["words"]}
    marked = {
        int(item.locator(".rank").inner_text())
        for item in page.locator("#answers > li").all()
        if "found by words" in item.inner_text()
    }
    assert marked == expected
    assert 0 < len(expected) < 10
    assert page.locator("[role=treeitem][aria-label*='found by words']").count() == len(expected)


def answers_below(node):
    for child in node.get("children", []):
        if child["rank"]:
            yield child
        yield from answers_below(child)


def test_digits_have_parts_and_settings_of_their_own(browser, served_digits):
    page = browser.new_page()
    page.goto(f"{served_digits.url}/?q={QUERY}")
    page.wait_for_selector("#answers li")
    assert sliders(page) == ["alpha", "beam_width"]
    assert page.locator("#parts-legend").inner_text().split("\n") == ["generator", "encoder"]
    page.select_option("#method", "exact")
    sync_api.expect(page.locator("#how")).to_contain_text("exact, alpha 0.5; ")
    assert sliders(page) == ["alpha"]
    page.locator("#alpha").focus()
    page.keyboard.press("Home")
    sync_api.expect(page.locator("#how")).to_contain_text("exact, alpha 0; ")
    assert page.locator("#parts-legend").inner_text() == "encoder"
    page.close()


def test_the_walk_is_a_tree_for_keyboards_and_screen_readers(page, served):
    _, picture = served.ask("explain", {"query": QUERY})
    items = page.locator("[role=treeitem]")
    labels = [item.get_attribute("aria-label") for item in items.all()]
    assert labels[0] == "The root, 60 documents"
    assert sum(", kept;" in label for label in labels) == sum(level["kept"] for level in picture["levels"])
    assert len(page.locator("[role=treeitem][aria-level='2']:not(.fold)").all()) == picture["levels"][0]["kept"]
    level = picture["levels"][1]
    assert f"level 2: {level['kept']} of {level['scored']} kept" in page.locator("svg .head").all_text_contents()
    assert page.locator(".answer[role=treeitem]").count() == 10
    assert page.locator("[role=treeitem][tabindex='0']").count() == 1
    items.first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-level')") == "2"
    assert page.locator("#detail").inner_text() == page.evaluate("document.activeElement.getAttribute('aria-label')")
    fold = page.locator(".fold").first
    number = int(fold.locator(".main").text_content().split()[0])
    fold.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert items.count() == len(labels) + min(number, 8)
    page.keyboard.press("Enter")
    assert items.count() == len(labels)


def test_a_document_that_is_not_there_is_followed(page, served):
    page.fill("#doc-id", "danube")
    page.click("#why button")
    page.wait_for_selector("#reason p")
    _, expected = served.ask("explain", {"query": QUERY, "doc_id": "danube"})
    assert page.locator("#reason p").inner_text() == expected["target"]["reason"]
    assert page.locator("#reason li").count() == len(expected["target"]["path"])
    page.fill("#doc-id", "nobody")
    page.keyboard.press("Enter")
    page.wait_for_selector("#reason .error")
    assert page.locator("#reason").inner_text() == "doc_id names the doc_id 'nobody', which is not in the index."


def test_the_tree_can_be_browsed_down_to_a_text(page, served):
    page.click("text=Browse the tree")
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
    for role in ("search", "navigation", "region", "tree"):
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
