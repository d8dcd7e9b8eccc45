"""mkdocs hooks: CONTRIBUTING.md as a page, pictures of `results/`, line numbers of equations, tables made from the code.

Pages link to `../../results/NAME.svg` and `../../CONTRIBUTING.md`, and that one to `docs/PAGE.md`, as they would on any viewer
of the repository; here these links lead into the site. Nothing is fetched from elsewhere.
"""

import argparse
import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
_PICTURE = re.compile(r"\.\./\.\./(results/[\w/.-]+\.svg)")
_RESULT = re.compile(r"\[([^\]]+)\]\(\.\./\.\./(results/[\w/.-]+\.(?:md|json))\)")
_FETCHED = re.compile(r'<(?:script|img|iframe|link)\b[^>]*(?:src|href)="(?:https?:)?//[^>]*>')
_CITATION = re.compile(r"`([\w/]+\.py)` “([^”]+)”")


def on_files(files: Files, config: Any) -> Files:
    """Adds CONTRIBUTING.md, and the pictures of results/ that pages show."""
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](../")
    files.append(File.generated(config, "develop/contributing.md", content=contributing))
    docs = Path(config["docs_dir"])
    shown = {name for page in docs.rglob("*.md") for name in _PICTURE.findall(page.read_text(encoding="utf-8"))}
    for name in sorted(shown):
        if not (ROOT / name).exists():
            raise PluginError(f"A page shows {name}, which does not exist.")
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to what is beside docs/ lead into the site; citations of the code get their lines, marks what is made from it."""
    markdown = _PICTURE.sub(r"../\1", markdown).replace("../../CONTRIBUTING.md", "../develop/contributing.md")
    markdown = _RESULT.sub(r"\1 (`\2`)", markdown)  # measured files are in the repository alone
    for mark, lines in (("<!-- settings -->", settings), ("<!-- commands -->", commands)):
        if mark in markdown:
            markdown = markdown.replace(mark, "\n".join(lines()))
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
        raise PluginError(f"{path} does not cite “{text}”; correct develop/paper-to-code.md.")
    return f"{match[0]}, line {', '.join(numbers)}"


def settings() -> Iterator[str]:
    """Yield the lines of a table for each section of `dsi.Config`: settings with their defaults, ranges and meanings."""
    from dsi.config import Config, all_settings
    from dsi.docids.files.declarations import section_kinds

    kinds = {"": Config, **{f"{name}.": kind for name, kind in section_kinds(Config).items()}}
    for section, declared in groupby(all_settings(), key=lambda setting: setting.section):
        yield from ("", f"## `[{section[:-1]}]`" if section else "## Of the whole run", "")
        yield from (inspect.cleandoc(kinds[section].__doc__ or "").splitlines()[0], "")
        yield from ("| setting | default | range | meaning |", "| --- | --- | --- | --- |")
        for setting in declared:
            meaning = setting.meaning.replace("|", "\\|")
            yield f"| `{setting.name}` | `{setting.default!r}` | {setting.range} | {meaning} |"


def commands() -> Iterator[str]:
    """Yield the lines of a section for each command of the library: what it does, and its arguments with defaults."""
    from dsi.commands.main import COMMANDS, build_parser

    for name in COMMANDS:
        parser = build_parser(name)
        purpose, _, more = (parser.description or "").partition("\n\n")
        text = purpose.partition("`: ")[2]
        usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
        yield from (
            "",
            f"## `dsi {name}`",
            "",
            text[:1].upper() + text[1:],
            "",
            more.strip(),
            "",
            "```text",
            usage,
            "```",
            "",
        )
        yield from ("| argument | meaning | default |", "| --- | --- | --- |")
        for action in parser._actions:
            if not isinstance(action, argparse._HelpAction):
                yield _argument_row(parser, action)


def _argument_row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the row of a table for one argument."""
    from dsi.commands.arguments import shown_default

    formatter = argparse.HelpFormatter(parser.prog, width=1000)
    shown = formatter._format_action_invocation(action)
    default = shown_default(action)
    meaning = (action.help or "").replace("%%", "%")
    cells = (cell.replace("|", "\\|") for cell in (f"`{shown}`", meaning, default and f"`{default}`"))
    return f"| {' | '.join(cells)} |"
