"""For tests in a browser: a real Chromium, and axe-core, which finds what keyboards and screen readers stumble over."""

import shutil
import subprocess
import tarfile
from contextlib import contextmanager

import pytest
from playwright import sync_api

AXE = "axe-core@4.14.1"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def chromium():
    """A browser; the test is skipped if there is none."""
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


def axe_script(folder):
    """Return the source of axe-core, fetched from the npm registry into a folder; the test is skipped if it cannot be had."""
    if shutil.which("npm") is None:
        pytest.skip(f"{AXE} cannot be had: no npm")
    done = subprocess.run(["npm", "pack", AXE], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"{AXE} cannot be had: {done.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()


def violations(page, axe):
    """{rule: the places that break it} of a page as it is now."""
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return {rule["id"]: [f"{node['html'][:150]} {node['failureSummary']}" for node in rule["nodes"]] for rule in found}
