"""README and site: their Python runs and prints the outputs below it, commands, options and links exist."""

import json
import os
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from dsi_experiments.commands.benchmark_walk import CONTROLS, MEASURES, walk_rows
from dsi_experiments.commands.results import PAPER
from filelock import FileLock

import dsi
from dsi.commands.main import COMMANDS, command_modules, main
from dsi.docids.files.storage import write_json
from dsi.measuring.evaluation import READ, ROWS, TIME
from dsi.measuring.runs import IndexRuns
from tests.support.printed import (
    EXAMPLE,
    QUALITY,
    README,
    RESULTS,
    alike,
    python_blocks,
    run_notebook,
    run_page,
    with_tables,
)
from tests.support.small import MINIPEDIA, save_cross_encoder
from tests.support.tiny_settings import TINY

ROOT = Path(__file__).parents[2]
PACKAGES = ("docids", "contrastive", "dsi", "eval")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md")]
PAGES += [ROOT / "tests" / "promises.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUNNABLE = [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "use").glob("*.md"))]
"""Pages whose Python is run."""
NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"
PROMISES = ROOT / "tests" / "promises.md"
CONTRIBUTING = ROOT / "docs" / "develop" / "contributing.md"
"""The page that docs/hooks.py makes of CONTRIBUTING.md."""
WRITE = "WRITE_PRINTED" in os.environ
"""Write the outputs and tables of the pages again, in place of comparing them."""
NOT_RUN = "<!-- not run:"
FENCE = re.compile(
    r"^(?P<mark><!-- not run: [^\n]*-->\n)?```(?P<kind>\w+)[^\n]*\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
TITLED = re.compile(r'^```toml title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)


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
    """A folder in which the pages' COLLECTION, INDEX and runs/example exist: a collection and an index, both tiny."""
    folder = tmp_path_factory.mktemp("docs")
    collection = folder / "minipedia"
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
    shutil.copytree(collection, folder / "COLLECTION")
    shutil.copytree(t5_folder, folder / "t5-docids")
    (folder / "tiny.toml").write_text(TINY.format(encoder=sentence_bert_folder.as_posix()))
    before = Path.cwd()
    os.chdir(folder)
    try:
        dsi.train(dsi.read_collection("minipedia"), "runs/example", config="tiny.toml", device="cpu")
        shutil.copytree("runs/example", "INDEX")
        save_cross_encoder(folder / "cross-encoder" / "ms-marco-MiniLM-L6-v2", tokenizer_folder)  # goes before the Hub
    finally:
        os.chdir(before)
    return folder


@pytest.fixture(scope="module")
def example():
    """The index of `make example`, which one of the workers trains; not to be changed."""
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "example"  # which the workers share
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            dsi.train(dsi.read_collection("minipedia"), folder, device="cpu")
    return folder


@pytest.mark.programs
@pytest.mark.parametrize("page", RUNNABLE, ids=names(RUNNABLE))
def test_python_blocks_run_and_print_the_outputs_below_them(page, trained, tmp_path, monkeypatch, request):
    text = page.read_text(encoding="utf-8")
    if not any(block.runs for block in python_blocks(text)):
        pytest.skip("no Python on this page")
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    if any(block.printed for block in python_blocks(text)):  # with the index that a user has
        for folder in ("minipedia", "runs/example"):
            shutil.rmtree(tmp_path / folder)
        shutil.copytree(request.getfixturevalue("example"), tmp_path / "runs" / "example")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "mcp.client.stdio.DEFAULT_INHERITED_ENV_VARS", list(os.environ)
    )  # its server is one of the tests
    for name, titled in TITLED.findall(text):
        Path(name).write_text(titled, encoding="utf-8")
    found = run_page(page)
    if WRITE:
        page.write_text(found, encoding="utf-8")
    for block, again in zip(python_blocks(text), python_blocks(found), strict=True):
        if block.printed and not WRITE:
            printed, expected = found[slice(*again.printed)], text[slice(*block.printed)]
            assert alike(printed, expected), f"{page.name}, the output below line {block.line}:\n{printed}"


@pytest.mark.programs
def test_the_notebook_runs_and_prints_its_outputs(example, tmp_path, monkeypatch):
    shutil.copytree(example, tmp_path / "runs" / "example")
    monkeypatch.chdir(tmp_path)
    found = run_notebook(NOTEBOOK)
    if WRITE:
        NOTEBOOK.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    known = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    for cell, expected in zip(found["cells"], known["cells"], strict=True):
        printed, before = (
            "".join(line for output in one.get("outputs", ()) for line in output["text"]) for one in (cell, expected)
        )
        assert alike(printed, before), printed


@pytest.mark.programs
def test_the_index_of_the_example_is_as_good_as_its_table_says(example, tmp_path):
    retriever, collection = dsi.load(example, device="cpu"), dsi.read_collection("minipedia")
    dsi.evaluate(retriever, collection).save(tmp_path / "example.json")
    measured = json.loads((tmp_path / "example.json").read_text(encoding="utf-8"))
    check_systems(measured, {name for name in known_systems() if name not in CONTROLS})


@pytest.mark.slow
def test_its_walk_is_as_good_as_the_table_says(example):
    retriever, collection = dsi.load(example, device="cpu"), dsi.read_collection("minipedia")
    measured = {"systems": {}}
    for row in walk_rows(IndexRuns(collection, retriever), "test", beam_widths=()):
        if row.name in CONTROLS:
            costs = {READ: round(row.read), TIME: round(row.milliseconds, 3)}
            hits = dict(zip(MEASURES, row.hits, strict=True))
            measured["systems"][row.name] = {"settings": costs, "Total": hits}
    check_systems(measured, {*CONTROLS})


def known_systems():
    return json.loads(EXAMPLE.read_text(encoding="utf-8"))["systems"]


def check_systems(measured, names):
    """Compare the systems measured, which have these names, with those of the file, or write them into it."""
    if WRITE:
        file = json.loads(EXAMPLE.read_text(encoding="utf-8"))
        write_json(EXAMPLE, {**file, **measured, "systems": {**file["systems"], **measured["systems"]}})
    systems, known = measured["systems"], known_systems()
    assert systems.keys() == names
    for name in names:
        for measure in systems[name]["Total"].keys() & {"Hit@1", "Hit@5", "Hit@10", "RR@10", "nDCG@10"}:
            assert systems[name]["Total"][measure] == pytest.approx(known[name]["Total"][measure], abs=0.5), name


def test_outputs_with_other_words_or_figures_are_seen():
    page = (ROOT / "docs" / "use" / "integrations.md").read_text(encoding="utf-8")
    printed = [page[slice(*block.printed)] for block in python_blocks(page) if block.printed]
    assert len(printed) >= 5
    for text in printed:
        assert alike(text, text)
        assert not alike(text, text + text)
    assert not alike("0.98738\n0.94842\n", "0.98738\n0.93139\n")
    assert not alike("0.98738\n", "0.97922\n")
    assert alike("0.98738\n", "0.98501\n")
    assert not alike("danube 4.095\n", "volga 4.095\n")


@pytest.mark.parametrize("page", [README, RESULTS, QUALITY], ids=["README", "use/results", "understand/results"])
def test_tables_are_the_measured_results(page):
    if WRITE:
        page.write_text(with_tables(page), encoding="utf-8")
    assert with_tables(page) == page.read_text(encoding="utf-8")


def test_few_blocks_are_not_run():
    assert sum(not runs for page in RUNNABLE for _, _, runs in blocks(page, "python")) <= 6
    marks = sum(page.read_text(encoding="utf-8").count(NOT_RUN) for page in RUNNABLE)
    assert marks == sum(not runs for page in RUNNABLE for *_, runs in blocks(page, "python"))


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
    others = {
        "--multi_gpu",
        "--num_processes",
        "--num_machines",
        "--resolution",
        "--all-extras",
        "--only-binary",
        "--gpus",
    }
    for page in (page for page in PAGES if page.parent.name != "experiments"):  # the log has the options of its time
        for span in re.findall(r"`(--[a-z][\w-]*)[^`]*`", page.read_text(encoding="utf-8")):
            assert span in every | others, f"{page.name}: no command has the option {span}"


@pytest.mark.programs
def test_the_first_search_of_the_readme_prints_what_it_says(tmp_path, capsys):
    """The path is cut, and what is longer than a line."""
    said = next(text for text, _, _ in blocks(README, "text") if "delete a person" in text)
    main(["index", str(ROOT / "docs" / "use"), str(tmp_path / "pages")])
    capsys.readouterr()
    main(["search", str(tmp_path / "pages"), "how do I delete a person's text", "-k", "1"])
    lines = capsys.readouterr().out.rstrip().replace(str(ROOT), "…").splitlines()
    printed = "".join(f"{line if len(line) < 130 else line[:122].rpartition(' ')[0] + ' …'}\n" for line in lines)
    if WRITE:
        README.write_text(README.read_text(encoding="utf-8").replace(said, printed), encoding="utf-8")
    else:
        assert alike(printed, said)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


def test_the_file_tree_is_that_of_the_disk():
    tree = next(text for text, _, _ in blocks(ROOT / "CONTRIBUTING.md", "text") if text.startswith("docids/"))
    listed, folder = {}, ""
    for line in tree.splitlines():
        entries, _, comment = line.strip().partition("  ")
        assert comment.strip(), f"{line!r} has no comment"
        if not line.startswith(" "):
            folder = entries
            listed[folder] = set()
        else:
            listed[folder] |= set(entries.split())
    assert set(listed) == {f"{name}/" for name in (*PACKAGES, "scripts", "examples", "docs", "results", "tests")}
    for folder in (*PACKAGES, "scripts"):
        files = [path for path in (ROOT / folder).glob("*/*") if path.suffix in (".py", ".toml")]
        rooms = {path.parent.name for path in files if not path.parent.is_symlink()}
        assert {f"{room}/" for room in rooms} == listed[f"{folder}/"], f"the tree of {folder}"


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
        if anchor.startswith("dsi."):  # anchors of the reference are names of the code
            assert f"::: {anchor}\n" in found.read_text(encoding="utf-8")
        elif anchor and found.name not in ("settings.md", "commands.md"):  # whose sections docs/hooks.py makes
            assert anchor in anchors(found), f"{page.name} links to {target}"


def test_results_that_pages_name_are_there():
    for page in PAGES:
        for name in re.findall(r"results/[\w./-]*\w/?", page.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r": ([\w/-]+\.md)\b", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {*(ROOT / "docs").rglob("*.md"), CONTRIBUTING}
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in pages}


def test_the_reference_names_what_exists():
    import importlib

    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            module, _, attribute = name.rpartition(".")
            assert module in ("eval",) or hasattr(importlib.import_module(module), attribute), f"{page.name}: {name}"


def test_every_public_name_is_in_the_reference():
    described = (ROOT / "docs" / "reference" / "dsi.md").read_text(encoding="utf-8")
    for name in dsi.__all__:
        assert re.search(rf"^::: [\w.]+\.{name}$", described, re.MULTILINE), f"dsi.{name} is in no reference page"


def test_the_page_of_results_tells_what_each_row_is():
    page = (ROOT / "docs" / "use" / "results.md").read_text()
    assert "\n".join(f"| {name} | {meaning} |" for name, meaning in ROWS.items()) in page


def test_every_setting_has_a_meaning_in_the_table():
    pytest.importorskip("mkdocs")
    from docs.hooks import settings

    rows = [line for line in settings() if line.startswith("| `")]
    assert len(rows) >= 30
    assert all(re.fullmatch(r"\| `\w+` \| `.+` \| [^|]* \| .+\. \|", row) for row in rows)


def test_the_reference_of_commands_has_every_option_of_the_library():
    pytest.importorskip("mkdocs")
    from docs.hooks import commands

    lines = list(commands())
    for name in COMMANDS:
        start = lines.index(f"## `dsi {name}`")
        end = next((n for n in range(start + 1, len(lines)) if lines[n].startswith("## ")), len(lines))
        section = "\n".join(lines[start:end])
        assert all(option in section for option in flags(name) - {"-h", "--help"} if option.startswith("--"))
    assert all(line.count("|") - line.count("\\|") == 4 for line in lines if line.startswith("| "))


def test_tables_name_the_rows_of_an_evaluation_alike():
    rows = []
    for page in (README, RESULTS, QUALITY):
        tables = re.findall(r"^\| BM25 .*?(?=^[^|]|^$)", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        rows += [line.split("|")[1].strip(" *") for line in tables[0].splitlines()]
    assert rows.count("exact") == 3
    assert set(rows) <= {*ROWS, *CONTROLS, PAPER}


def test_equations_are_cited_where_the_guide_says():
    page = (ROOT / "docs" / "develop" / "paper-to-code.md").read_text(encoding="utf-8")
    rows = re.findall(r"`([\w/]+\.py)` “([^”]+)”", page)
    assert len(rows) >= 15
    for path, text in rows:
        assert text in (ROOT / path).read_text(encoding="utf-8"), f"{path} does not cite {text!r}"


def test_every_promise_names_tests_that_exist():
    page = PROMISES.read_text(encoding="utf-8")
    rows = page.partition("| what happens | what holds | tests |\n| --- | --- | --- |\n")[2].partition("\n\n")[0]
    for row in rows.splitlines():
        assert_names_tests(row)


def assert_names_tests(row):
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
    assert named, f"no test: {row}"
    for file, name in named:
        (path,) = (ROOT / "tests").glob(f"*/{file}")
        assert f"\ndef {name}(" in path.read_text(encoding="utf-8"), f"{file} has no {name}"


ADVICE = (
    "It is a vulnerability if", "[What is promised]", "It is made to stand", "- **It does not check**", "It has no TLS",
    "What an agent does", "A folder of files that is indexed is read",
    "- **In front of it**", "On a writable server it lets", "The token can add", "The sums in the manifest show",
    "An index that you push tells", "Nothing that you did not ask for.",
)  # fmt: skip
"""How sentences of SECURITY.md begin that promise nothing."""


def test_every_sentence_of_security_names_tests_that_exist():
    page = PROMISES.read_text(encoding="utf-8")
    rows = page.partition("| it says | tests |\n| --- | --- |\n")[2].partition("\n\n")[0].splitlines()
    said = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    for row in rows:
        assert_names_tests(row)
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    sections = ("What counts", "The server", "Indexes from the Hub", "What leaves your machine")
    parts = [security.partition(f"## {name}\n")[2].partition("\n## ")[0] for name in sections]
    text = " ".join(" ".join(parts).split())
    assert all(phrase in text for phrase in said), [phrase for phrase in said if phrase not in text]
    sentences = [" ".join(one.split()) for part in parts for one in re.split(r"(?<=\.)\s+|\n\n", part)]
    assert len(sentences) > 20
    for sentence in filter(None, sentences):
        assert sentence.startswith(ADVICE) or any(phrase in sentence for phrase in said), sentence


def test_the_table_of_search_options_has_each():
    from dsi.search.request import OPTIONS

    text = (ROOT / "docs" / "use" / "searching.md").read_text(encoding="utf-8").partition("## Filters")[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == {"k", *OPTIONS}
