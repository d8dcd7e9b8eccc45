"""Code, messages and pages are in plain English: phrases of our own that a reader stumbles over have a better wording."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BETTER = {
    r"\b(?:is|are|was|were|be) told\b": "warn, log, report, refuse or raise",
    r"\b(?:is|are) asked\b": "who calls whom, in the active voice",
    r"(?<![Tt]here )\bis no \w": "is not a …, has no …",
    r"\bthere are not\b": "… that do not exist",
    r"\banew\b": "again",
    r"\blooks? at\b|\blooked at\b": "reads, compares, checks",
    r"\bso many (?:documents|times|of)\b": "the number",
    r"\bsaid of\b": "reported about",
    r"\bis named with\b": "the message names …",
    r"without a (?:look|word)": "unread, silently, blank",
    r"about the best": "as well as the best",
    r"by hand, though": "only by hand",
}
"""{what no file says: what it says instead}."""
FILES = [
    path
    for name in ("docids", "contrastive", "eval", "dsi", "scripts", "tests")
    for path in sorted((ROOT / name).rglob("*.py"))
    if path.is_relative_to(ROOT) and path.name not in ("test_english.py", "test_docs.py")
]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += [page for room in ("use", "understand", "develop") for page in sorted((ROOT / "docs" / room).glob("*.md"))]


@pytest.mark.parametrize("phrase", BETTER)
def test_no_file_has_a_phrase_for_which_there_is_a_better_wording(phrase):
    pattern = re.compile(phrase)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in [*FILES, *PAGES]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found, f"better: {BETTER[phrase]}"
