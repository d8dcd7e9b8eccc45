"""axe-core finds no violation on the page of `dsi serve` and on the site: light, dark, and as narrow as a phone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("playwright")

from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from tests.support.browsers import axe_script, chromium, violations
from tests.support.serving import QUERY, live, save_index
from tests.support.small import PROMPTS

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
LOOKS = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    return axe_script(tmp_path_factory.mktemp("axe"))


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def served(tmp_path_factory, sentence_t5_folder):
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    folder = tmp_path_factory.mktemp("page") / "index"
    save_index(encoder, folder)
    with live(folder) as client:
        yield client


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    if "DSI_SITE" in os.environ:  # it is built already
        return Path(os.environ["DSI_SITE"])
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


@pytest.fixture(params=LOOKS, ids=[f"{scheme}-{width}" for scheme, width in LOOKS])
def page(browser, request):
    scheme, width = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    yield page
    page.close()


def test_axe_sees_what_is_wrong(page, axe):
    page.set_content("<html><body><main><img src='data:,'><input></main></body></html>")
    assert {"html-has-lang", "image-alt", "label"} <= set(violations(page, axe))


def test_the_page_has_no_violation(page, axe, served):
    page.goto(served.url)
    page.wait_for_selector("#examples button")
    assert not violations(page, axe)
    page.goto(f"{served.url}/?q={QUERY}")
    page.wait_for_selector("#answers li")
    page.wait_for_selector("#tree li")
    page.click("#settings summary")
    page.fill("#doc-id", "abacus" if served.ask("documents/abacus")[0] == 200 else "danube")
    page.click("#why button")
    page.wait_for_selector("#reason .path")
    assert not violations(page, axe)
    page.click("nav >> text=Browse")
    page.wait_for_selector("#branches li")
    assert not violations(page, axe)
    page.goto(f"{served.url}/docs")
    page.wait_for_selector("main h2")
    assert not violations(page, axe)


@pytest.mark.parametrize("name", ["index.html", "use/first-index.html", "use/running.html"])
def test_the_site_has_no_violation(page, axe, site, name):
    page.goto((site / name).as_uri())
    page.wait_for_selector("article h1")
    assert not violations(page, axe)
