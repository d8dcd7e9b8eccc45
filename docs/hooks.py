"""mkdocs hooks: pictures of `results/`, line numbers in "From the paper to the code", nothing fetched from elsewhere.

Pages link to `../../results/NAME.svg` as they would on any viewer of the repository; here these links lead into the site.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
_PICTURE = re.compile(r"\.\./\.\./(results/[\w/.-]+\.svg)")
_FETCHED = re.compile(r'<(?:script|img|iframe|link)\b[^>]*(?:src|href)="(?:https?:)?//[^>]*>')
_CITATION = re.compile(r"`([\w/]+\.py)` “([^”]+)”")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pictures of results/ that pages show."""
    docs = Path(config["docs_dir"])
    shown = {name for page in docs.rglob("*.md") for name in _PICTURE.findall(page.read_text(encoding="utf-8"))}
    for name in sorted(shown):
        if not (ROOT / name).exists():
            raise PluginError(f"A page shows {name}, which does not exist.")
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to pictures lead into the site; citations of the code get their lines."""
    markdown = _PICTURE.sub(r"../\1", markdown)
    return _CITATION.sub(_with_line, markdown) if page.file.src_uri.endswith("paper-to-code.md") else markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuses a page that a browser could not show offline."""
    if found := _FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} fetches something from elsewhere: {found[0]}")
    return output


def _with_line(match: re.Match[str]) -> str:
    path, text = match.groups()
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    numbers = [str(number) for number, line in enumerate(lines, start=1) if text in line]
    if not numbers:
        raise PluginError(f"{path} does not cite “{text}”; correct guides/paper-to-code.md.")
    return f"{match[0]}, line {', '.join(numbers)}"
