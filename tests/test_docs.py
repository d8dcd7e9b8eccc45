"""README and site: their Python runs, their commands and options exist, their file tree, links and quoted messages are true."""

import ast
import json
import os
import re
import shutil
from functools import cache
from pathlib import Path

import pytest

import dsi
from dsi.commands.main import command_modules, main
from tests.conftest import MINIPEDIA, save_cross_encoder

ROOT = Path(__file__).parent.parent
PACKAGES = ("docids", "contrastive", "dsi", "eval")
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = [ROOT / "README.md", ROOT / "docs" / "index.md", *GUIDES]
"""Pages whose Python is run."""
NOTEBOOK = ROOT / "docs" / "guides" / "first-index.ipynb"

NOT_RUN = "<!-- not run:"
FENCE = re.compile(
    r"^(?P<mark><!-- not run: [^\n]*-->\n)?```(?P<kind>\w+)[^\n]*\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
TITLED = re.compile(r'^```toml title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
TINY = """
dev_queries = 20
[pseudo_queries]
per_document = 2
[encoder]
name = "{encoder}"
document_length = 24
[contrastive]
batch_size = 16
epochs = 1.0
[training]
pseudo_queries_per_document = 2
batch_size = 32
epochs = 1.0
[query_map]
epochs = 1.0
[search]
lexical_weight = 0.03
"""


def names(pages):
    return [page.relative_to(ROOT).as_posix() for page in pages]


def blocks(page, kind):
    """(text, first line, is it run?) of the fenced blocks of a kind."""
    text = page.read_text(encoding="utf-8")
    return [
        (found["text"], text[: found.start("text")].count("\n"), found["mark"] is None)
        for found in FENCE.finditer(text)
        if found["kind"] == kind
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, sentence_bert_folder, tokenizer_folder, t5_folder):
    """A folder in which the pages' DIR, RUN and runs/example exist: a collection and an index, both tiny."""
    folder = tmp_path_factory.mktemp("docs")
    collection = folder / "docids" / "data" / "minipedia"
    (collection / "qrels").mkdir(parents=True)
    lines = (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    chosen = [line for line in lines if json.loads(line)["_id"] == "danube"] + lines[:59]
    kept = {json.loads(line)["_id"] for line in chosen}
    (collection / "corpus.jsonl").write_text("\n".join(chosen), encoding="utf-8")
    shutil.copy(MINIPEDIA / "queries.jsonl", collection / "queries.jsonl")
    for split in ("train", "dev", "test"):
        head, *rows = (MINIPEDIA / "qrels" / f"{split}.tsv").read_text().splitlines()
        own = [row for row in rows if row.split("\t")[1] in kept]
        (collection / "qrels" / f"{split}.tsv").write_text("\n".join([head, *own]))
    shutil.copytree(collection, folder / "DIR")
    shutil.copytree(t5_folder, folder / "t5-docids")
    for name in ("example", "digits"):  # a file of that name goes before the configuration of the package
        (folder / name).write_text(TINY.format(encoder=sentence_bert_folder.as_posix()))
    before = Path.cwd()
    os.chdir(folder)
    try:
        dsi.train(dsi.read_collection("docids/data/minipedia"), "runs/example", config="example", device="cpu")
        shutil.copytree("runs/example", "RUN")
        save_cross_encoder(folder / "cross-encoder" / "ms-marco-MiniLM-L6-v2", tokenizer_folder)  # goes before the Hub
        assert main(["train-reranker", "RUN", "--data", "DIR", "--kind", "lambdasmart", "--k", "10"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.mark.parametrize("page", RUN, ids=names(RUN))
def test_python_blocks_run(page, trained, tmp_path, monkeypatch, capsys):
    found = [(text, line) for text, line, runs in blocks(page, "python") if runs]
    if not found:
        pytest.skip("no Python on this page")
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name, text in TITLED.findall(page.read_text(encoding="utf-8")):
        Path(name).write_text(text, encoding="utf-8")
    namespace = {"__name__": "__main__"}
    for text, line in found:
        exec(compile("\n" * (line) + text, str(page), "exec"), namespace)  # tracebacks name the page's lines


def test_the_notebook_runs_and_keeps_no_outputs(trained, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, nbformat.NO_CONVERT)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / NOTEBOOK.relative_to(ROOT).parent
    folder.mkdir(parents=True)
    shutil.copy(tmp_path / "example", folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": folder}}).execute()
    said = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert "#1 " in said
    assert "| generate " in said
    assert not (folder / "runs").exists()


def test_few_blocks_are_not_run():
    assert sum(not runs for page in RUN for _, _, runs in blocks(page, "python")) <= 3
    marks = sum(page.read_text(encoding="utf-8").count(NOT_RUN) for page in RUN)
    assert marks == sum(not runs for page in RUN for *_, runs in blocks(page, "python"))


@cache
def flags(command):
    """The options of a command, from its --help."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as output, pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", output.getvalue()))


def commands_in(page):
    """(line of text, command, options) for every `dsi COMMAND …` of a page, in shell blocks and in the text."""
    text = page.read_text(encoding="utf-8")
    shell = [line for block, _, _ in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    inline = [" ".join(span.split()) for span in re.findall(r"`(dsi [^`]+)`", FENCE.sub("", text))]
    indented = re.findall(r"^    (dsi .+)$", text, re.MULTILINE)
    by_module = {module: name for name, module in command_modules().items()}
    for line in [*shell, *inline, *indented]:
        line = line.split("#")[0]
        launched = re.search(r"-m (dsi[\w.]+)(.*)", line)
        if launched:
            yield line, by_module.get(launched[1], launched[1]), re.findall(r"(?<![\w-])--[\w-]+", launched[2])
        elif line.startswith("dsi ") and not line.split()[1].endswith("…"):
            yield line, line.split()[1], re.findall(r"(?<![\w-])--?[a-z][\w-]*", line)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_commands_and_options_exist(page):
    for line, command, options in commands_in(page):
        if command in ("COMMAND", "--help"):
            continue
        assert command in command_modules(), f"{line}: no command {command!r}"
        for option in options:
            assert option in flags(command), f"{line}: dsi {command} has no option {option}"


def test_options_named_alone_exist():
    every = {option for command in command_modules() for option in flags(command)}
    others = {"--multi_gpu", "--num_processes", "--num_machines", "--resolution", "--all-extras", "--only-binary"}
    for page in PAGES:
        for span in re.findall(r"`(--[a-z][\w-]*)[^`]*`", page.read_text(encoding="utf-8")):
            assert span in every | others, f"{page.name}: no command has the option {span}"


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_file_tree_of_the_readme_is_that_of_the_disk():
    tree = next(text for text, _, _ in blocks(ROOT / "README.md", "text") if text.startswith("docids/"))
    listed, folder = {}, ""
    for line in tree.splitlines():
        entries, _, comment = line.strip().partition("  ")
        assert comment.strip(), f"{line!r} says nothing"
        if not line.startswith(" "):
            folder = entries.rstrip("/")
            listed[folder] = set()
        else:
            listed[folder] |= {entry.rstrip("/") for entry in entries.split()}
    for folder, entries in listed.items():
        assert (ROOT / folder).is_dir()
        for entry in entries:
            assert (ROOT / folder / entry).exists(), f"{folder}/{entry} is not there"
    assert set(PACKAGES) | {"docs", "results", "scripts", "tests"} == set(listed)
    for package in PACKAGES:
        modules = {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py"}
        rooms = {path.parent.name for path in (ROOT / package).glob("*/*") if path.suffix in (".py", ".toml")}
        assert modules | rooms == listed[package], f"the tree of {package}"
    assert listed["scripts"] == {"dsi_experiments", *(path.name for path in (ROOT / "scripts").glob("*.py"))}


def anchors(page):
    """Of the headings of a page, as mkdocs makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", head) for head in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head.lower()).strip()) for head in plain}


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_resolve(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), f"{page.name} links to {target}"
        if anchor and not anchor.startswith("dsi."):  # anchors of the reference are names of the code
            assert anchor in anchors(found), f"{page.name} links to {target}"
        elif anchor:
            assert f"::: {anchor}\n" in found.read_text(encoding="utf-8")


def test_results_that_pages_name_are_there():
    for page in PAGES:
        for name in re.findall(r"results/[\w./-]*\w/?", page.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


def test_the_reference_names_what_exists():
    import importlib

    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            module, _, attribute = name.rpartition(".")
            assert module in ("eval",) or hasattr(importlib.import_module(module), attribute), f"{page.name}: {name}"


def test_every_public_name_is_in_the_reference():
    described = (ROOT / "docs" / "reference" / "dsi.md").read_text(encoding="utf-8")
    described += (ROOT / "docs" / "reference" / "docids.md").read_text(encoding="utf-8")
    for name in dsi.__all__:
        assert re.search(rf"^::: [\w.]+\.{name}$", described, re.MULTILINE), f"dsi.{name} is in no reference page"


def test_equations_are_cited_where_the_guide_says():
    page = (ROOT / "docs" / "guides" / "paper-to-code.md").read_text(encoding="utf-8")
    rows = re.findall(r"`([\w/]+\.py)` “([^”]+)”", page)
    assert len(rows) >= 15
    for path, text in rows:
        assert text in (ROOT / path).read_text(encoding="utf-8"), f"{path} does not cite {text!r}"


@cache
def messages():
    """Every text of the code as a pattern: what is filled in matches anything."""
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(re.escape(node.value))
                elif isinstance(node, ast.JoinedStr):
                    parts = (re.escape(v.value) if isinstance(v, ast.Constant) else ".+" for v in node.values)
                    found.add("".join(parts))
    return found


def test_error_messages_of_the_faq_are_those_of_the_code():
    known = [re.compile(pattern) for pattern in messages() if len(pattern.replace(".+", "")) > 12]
    quoted = [text.strip() for text, _, _ in blocks(ROOT / "docs" / "faq.md", "text")]
    assert len(quoted) > 15
    for message in quoted:
        inner = [message, *(message.split(": ", n)[-1] for n in (1, 2))]  # configurations say the file first
        assert any(pattern.fullmatch(text) for text in inner for pattern in known), f"no code says {message!r}"
