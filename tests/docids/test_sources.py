"""Collections of what is in memory and of folders of texts; `dsi.index`; what is refused, and how it is said."""

import dataclasses
import decimal
import json
import re
import shutil
import subprocess
import sys
import time
import types
import uuid
from datetime import UTC, date, datetime
from pathlib import Path

import datasets
import numpy
import pandas
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

import dsi
from dsi.commands.main import main
from dsi.commands.values import read_queries_file
from dsi.config import Config, read_config
from dsi.docids.data.collection import Collection, read_collection
from dsi.docids.data.sources import is_missing, records_of
from dsi.eval.trec import write_qrels, write_run
from dsi.measuring.comparison import compare_runs
from dsi.search.queries import ids_and_texts
from dsi.store.folder.info import as_lines, index_info
from tests.support.files import needs_readers, own

ROOT = Path(__file__).parents[2]

ROWS = [
    {"id": 1, "title": None, "text": "A gas that glows.", "period": float("nan")},
    {"id": 2, "title": "Bee", "text": "Bees dance.", "period": 2.5},
]
TABLE = {
    "doc_id": ["1", "2"],
    "title": ["", "Bee"],
    "text": ["A gas that glows.", "Bees dance."],
    "period": [None, 2.5],
}
SOURCES = {
    "list": lambda: ROWS,
    "iterator": lambda: iter(ROWS),
    "tuple": lambda: tuple(ROWS),
    "DataFrame": lambda: pandas.DataFrame(ROWS),
    "DataFrame with another index": lambda: pandas.DataFrame(ROWS, index=["x", "y"]),
    "Arrow table": lambda: pyarrow.Table.from_pandas(pandas.DataFrame(ROWS)),
    "Dataset": lambda: datasets.Dataset.from_list(ROWS),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_documents(source):
    collection = Collection.from_records(SOURCES[source]())
    assert collection.documents[:] == TABLE
    assert collection.rows == {"1": 0, "2": 1}
    assert collection.digest == Collection.from_records(ROWS).digest


@pytest.mark.parametrize("id_key", ["_id", "doc_id", "id", "docno"])
@pytest.mark.parametrize("text_key", ["text", "contents"])
def test_the_usual_keys_are_taken(id_key, text_key):
    documents = Collection.from_records([{id_key: "a", text_key: "words", "year": 1990}]).documents
    assert documents[:] == {"doc_id": ["a"], "title": [""], "text": ["words"], "year": [1990]}


def test_texts_have_their_places_as_ids():
    assert Collection.from_records(["one", "two"]).documents["doc_id"][:] == ["0", "1"]


def test_the_digest_follows_every_part():
    queries, qrels = {"q": "gas"}, {"test": {"q": {"1": 1}}}
    made = [
        Collection.from_records(ROWS),
        Collection.from_records(ROWS[::-1]),
        Collection.from_records([{**ROWS[0], "period": 3}, ROWS[1]]),
        Collection.from_records(ROWS, queries=queries),
        Collection.from_records(ROWS, queries=queries, qrels=qrels),
    ]
    assert len({collection.digest for collection in made}) == len(made)


def test_queries_and_judgements_in_memory_are_those_of_a_saved_folder(tmp_path):
    queries = {f"q{n}": f"query {n}" for n in range(30)}
    train = {query_id: {str(1 + n % 2): 1} for n, query_id in enumerate(list(queries)[:20])}
    test = {query_id: {"2": 2, "1": 0} for query_id in list(queries)[20:]}
    collection = Collection.from_records(ROWS, queries=queries, qrels={"train": train, "test": test})
    assert len(collection.qrels["dev"]) == 2
    assert len(collection.qrels["train"]) == 18
    frame = pandas.DataFrame({"qid": list(queries), "text": list(queries.values())})
    assert Collection.from_records(ROWS, queries=frame).queries == queries
    collection.save(tmp_path / "saved")
    read = read_collection(tmp_path / "saved")
    assert read.documents[:] == collection.documents[:]
    assert (read.queries, read.qrels) == (queries, collection.qrels)


@pytest.mark.parametrize("names", [("query_id", "doc_id", "relevance"), ("qid", "docno", "label")])
def test_judgements_in_a_table_are_those_of_dictionaries(names):
    judged = {"1": {"1": 2, "2": 0}, "7": {"2": 1}}
    rows = [(1, 1, 0), (1, 1, 2), (1, 2, 0), (7, 2, 1)]  # of several grades the highest counts
    frame = pandas.DataFrame(rows, columns=names)
    collection = Collection.from_records(ROWS, queries={1: "a", 7: "b"}, qrels={"test": judged})
    for table in (frame, pyarrow.Table.from_pandas(frame)):
        own = Collection.from_records(ROWS, queries={1: "a", 7: "b"}, qrels={"test": table})
        assert (own.qrels, own.digest) == (collection.qrels, collection.digest)
        assert compare_runs(frame, table, table).means == compare_runs(judged, judged, judged).means
    with pytest.raises(ValueError, match=r"qrels\['test'\]\[0\] must have the columns .*; rename yours"):
        Collection.from_records(ROWS, queries={1: "a"}, qrels={"test": frame.rename(columns={names[1]: "text"})})
    with pytest.raises(ValueError, match=r"; write \{\"test\": …\} around"):
        Collection.from_records(ROWS, queries={1: "a"}, qrels=frame)


BAD = {
    "a text": (
        "abc",
        TypeError,
        "documents must be a list or an iterator of dictionaries, .* got 'abc'; make a list of it",
    ),
    "columns": (
        {"id": ["a"]},
        TypeError,
        "got {'id': .*; make a list of it",
    ),
    "bytes as metadata": (
        [{"id": "a", "text": "x", "m": b"1"}],
        ValueError,
        r"documents\[0\]: metadata 'm' must be a text, .* got b'1'; write it as a text",
    ),
    "a key that is not a text": (
        [{"id": "a", "text": "x", 3: 4}],
        ValueError,
        "a key of metadata must be a string, got 3",
    ),
    "None": (None, TypeError, "documents must be a list or an iterator of dictionaries"),
    "numbers": ([1], TypeError, r"documents\[0\] must be a dictionary or a text, got 1"),
    "several data sets": (
        datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)),
        TypeError,
        "documents must be a list or an iterator of dictionaries",
    ),
    "nothing": ([], ValueError, "documents must hold at least one document"),
    "other keys": (
        [{"url": "x", "body": "y"}],
        ValueError,
        r"documents\[0\] has no doc_id: none of the keys _id, doc_id, id, docno has a value; its keys are 'url', 'body'",
    ),
    "no text": (
        [{"id": "a"}],
        ValueError,
        r"documents\[0\] has no text: none of the keys text, contents has a value; its keys are 'id'",
    ),
    "two ids": ([{"id": "a", "_id": "b", "text": "x"}], ValueError, "_id is 'b', but id is 'a'; give one doc_id"),
    "an id twice": (
        [{"id": "a", "text": "x"}] * 2,
        ValueError,
        r"documents\[1\]: duplicate doc_id 'a': of all documents, number 1 and number 2 have it; ids",
    ),
    "a line end": (
        [{"id": "a\nb", "text": "x"}],
        ValueError,
        r"doc_id 'a\\nb' must be a text that is not empty, without NUL and line ends",
    ),
    "a long id": (
        [{"id": "ä" * 2049, "text": "x"}],
        ValueError,
        "must have at most 4,096 bytes, got 4,098; shorten it",
    ),
    "a number as text": ([{"id": "a", "text": 3}], ValueError, "key 'text' must be a string, got 3"),
    "blank texts": (["", " "], ValueError, "none of the 2 documents has a title or a text"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_records_are_one_clear_error(case):
    source, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        Collection.from_records(source)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": [{"id": "q", "text": "a"}] * 2}, r"queries\[1\]: duplicate query_id 'q'"),
        ({"queries": [{"name": "q"}]}, r"queries\[0\] has no query_id: none of the keys _id, query_id, id, qid"),
        (
            {"qrels": {"tests": {}}},
            r"qrels must be \{split: .*\} of the splits train, dev, test, got \{'tests': \{\}\}",
        ),
        (
            {"qrels": {"test": {"q": {"1": 1}}}},
            r"qrels\['test'\]: none of the judgements belongs to a query .* 'q'\). Add",
        ),
        ({"queries": {"q": "a"}, "qrels": {"test": {"q": ["1"]}}}, r"must be \{query_id: \{doc_id: relevance\}\}"),
        ({"queries": {"q": "a"}, "qrels": {"test": {"q": {"1": "yes"}}}}, r"\['1'\] must be a number, got 'yes'"),
        (
            {"queries": {"q": "a"}, "qrels": {"test": {"q": {"1": float("inf")}}}},
            r"\['1'\] must be a finite number, got inf",
        ),
        ({"dev_queries": -1}, "dev_queries must be at least 0, got -1"),
        ({"dev_untaught": 1.5}, "dev_untaught must be from 0 to 1, got 1.5"),
    ],
)
def test_wrong_queries_and_judgements_are_one_clear_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        Collection.from_records(ROWS, **arguments)


@pytest.fixture
def notes(tmp_path):
    """A folder of texts of every kind."""
    folder = tmp_path / "notes"
    (folder / "rivers").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "config.txt").write_text("hidden")
    (folder / "neon.md").write_text("About a gas\n\n## Neon #\n\nNeon glows in signs.\n")
    (folder / "rivers" / "the_blue danube.txt").write_text("\ufeffThe Danube flows through Vienna.", encoding="utf-8")
    (folder / "more.csv").write_text(
        'id,title,text,year,dry\nvolga,Volga,A river in Russia,1990,\nrhine,,"NA, or nearly",,x\n'
    )
    (folder / "lines.jsonl").write_text('{"docno": "bee", "contents": "Bees dance.", "year": 2000}\n')
    return folder


@needs_readers
def test_a_folder_of_texts_is_a_collection(notes):
    (notes / "scan.pdf").touch()
    documents = read_collection(notes).documents
    assert own(documents[:]) == {
        "doc_id": ["bee", "volga", "rhine", "neon.md", "rivers/the_blue danube.txt"],
        "title": ["", "Volga", "", "Neon", "the blue danube"],
        "text": [
            "Bees dance.",
            "A river in Russia",
            "NA, or nearly",
            "About a gas\n\n## Neon #\n\nNeon glows in signs.\n",
            "The Danube flows through Vienna.",
        ],
        "year": [2000, 1990, None, None, None],
        "dry": [None, None, "x", None, None],
    }


@needs_readers
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "bad.csv",
            b"id,text,n\na,b,c\nd,e,f,g\n",
            r"bad.csv is not a table of values separated by ',' in UTF-8 \(.*Row #3: Expected 3 columns, got 4",
        ),
        ("bad.csv", b"", r"bad.csv is not a table of values separated by ',' in UTF-8 \(Empty CSV file"),
        (
            "bad.csv",
            b"id,text,n\na,b,1\nc,d\n",
            r"bad.csv is not a table .*Row #3: Expected 3 columns, got 2.*; save it as one, with as many values",
        ),
        ("bad.csv", b"id,text,text\na,b,c\n", r"bad.csv, line 1: the column 'text' comes twice; give each a name"),
        ("bad.csv", b"1,Ada\n2,Bob\n", r"bad.csv is without a first line that names columns; leave it out"),
        ("bad.csv", b"id,text\n,b\n", r"bad.csv, row 2 has no doc_id: none of the keys .*; its keys are 'id', 'text'"),
        ("bad.tsv", b"a b\n", r"bad.tsv, line 1: expected id<TAB>text, or columns named in the first line"),
        ("bad.parquet", b"PAR", r"bad.parquet is not a Parquet file \(.*\); write it again"),
        ("bad.jsonl", b"{", r"bad.jsonl, line 1: not valid JSON"),
        ("bad.jsonl", b'{"id": "x", "text": "a"}\n{"id": "x", "text": "b"}', r"duplicate doc_id 'x'"),
        ("bad.jsonl", b'{"id": "x"}', r"bad.jsonl, line 1 has no text: .*; its keys are 'id'"),
        ("bad.jsonl", b'["x"]', r"bad.jsonl, line 1: expected a JSON object"),
    ],
)
def test_a_wrong_table_that_is_named_is_an_error(notes, name, content, message):
    (notes / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Collection.from_files(notes / name)


@needs_readers
def test_a_folder_without_texts_says_what_it_holds(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"must hold texts, pages, .* of the BEIR layout; it holds no such file"
    ):
        read_collection(tmp_path)
    for name in ("a.pdf", "b.pdf"):
        (tmp_path / name).touch()
    with pytest.raises(FileNotFoundError, match=r"it holds 2 files of such kinds, none of which can be read"):
        read_collection(tmp_path)


@pytest.mark.parametrize(
    ("documents", "arguments", "kind", "message"),
    [
        (
            None,
            {},
            TypeError,
            "documents must be a list or an iterator .* got None; make a list of it",
        ),
        (b"x", {}, TypeError, "documents must be a list or an iterator of dictionaries, .* got b'x'"),
        ({"a": "x"}, {}, TypeError, "got {'a': 'x'}; make a list of it"),
        ([["x"]], {}, TypeError, r"documents\[0\] must be a dictionary or a text, got \['x'\]"),
        ([], {}, ValueError, "documents must hold at least one document"),
        ([" "], {}, ValueError, "none of the 1 documents has a title or a text; give them texts"),
        ("", {}, FileNotFoundError, "The name of the collection folder is empty; use . for the current folder"),
        ("no/such", {}, FileNotFoundError, "folder no/such does not exist; name a folder in BEIR layout or of texts"),
        ("x" * 9999, {}, FileNotFoundError, "folder … does not exist; name a folder"),
        ("a\nb " * 9999, {}, FileNotFoundError, "folder a b a b .* … does not exist; name a folder"),
        (["a", "b"], {"output": 3}, TypeError, "output must be the path of a folder, got 3; name one to write into"),
        (["a", "b"], {"output": ""}, ValueError, "output must name a folder, got ''; use . for the current one"),
        (["a", "b"], {"output": __file__}, NotADirectoryError, "is a file; name a folder to write into"),
        (["a", "b"], {"output": f"{__file__}/x"}, NotADirectoryError, "is a file; name a folder to write into"),
        (
            ["a", "b"],
            {"device": "gpu"},
            ValueError,
            "The device 'gpu' cannot be used here .*; use cpu, or leave it out",
        ),
    ],
)
def test_what_cannot_be_indexed_is_one_clear_error(documents, arguments, kind, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message) as raised:
        dsi.index(documents, **arguments)
    assert "\n" not in str(raised.value)
    assert [*tmp_path.iterdir()] == []


@needs_readers
@pytest.mark.parametrize(
    ("folder", "kind", "message"),
    [
        (3, TypeError, "A path must be a string or a Path, got 3; from_records takes records"),
        (None, TypeError, "A path must be a string or a Path, got None"),
        (["a.txt"], TypeError, r"A path must be a string or a Path, got \['a.txt'\]"),
        ("", FileNotFoundError, "The name of the collection folder is empty; use . for the current folder"),
        ("no/such", FileNotFoundError, "The collection folder no/such does not exist"),
    ],
)
def test_what_is_no_folder_is_one_clear_error(folder, kind, message):
    with pytest.raises(kind, match=message):
        Collection.from_files(folder)


@needs_readers
def test_a_folder_of_files_without_a_document_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n")
    with pytest.raises(ValueError, match=f"{tmp_path} must hold at least one document"):
        Collection.from_files(tmp_path)


def test_a_set_has_no_order_to_take_ids_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match="make a list of it, or let"):
        dsi.index({"Neon glows.", "Bees dance."})


def test_a_collection_with_queries_is_indexed_without_training_too(sentence_bert_folder, tmp_path):
    collection = Collection.from_records(ROWS, queries={"q": "gas"}, qrels={"train": {"q": {"1": 1}}})
    config = Config().without_training().with_changes({"encoder": {"name": str(sentence_bert_folder)}})
    retriever = dsi.train(collection, tmp_path / "run", config=config, device="cpu")
    assert retriever.snapshot.tree.tokens is not None
    assert retriever.snapshot.tree.tokens.query_head is None


@pytest.mark.parametrize("grade", [0, -1])
def test_train_judgements_of_which_none_is_above_0_are_as_none(grade, sentence_bert_folder, tmp_path, caplog):
    collection = Collection.from_records(ROWS, queries={"q": "gas"}, qrels={"train": {"q": {"1": grade}}})
    config = Config().with_changes({"encoder": {"name": str(sentence_bert_folder)}, "lexical": {"language": "german"}})
    retriever = dsi.train(collection, tmp_path / "run", config=config, device="cpu")
    assert "has no train queries" not in caplog.text  # nothing was to be trained but the map of query tokens
    assert retriever.snapshot.tree.tokens.query_head is None
    assert retriever.snapshot.lexical.language == "german"
    assert read_config(tmp_path / "run" / "config.toml") == config


@needs_readers
def test_an_encoder_that_is_told_to_learn_from_no_queries_stays_and_a_line_says_so(
    sentence_bert_folder, tmp_path, caplog
):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("Neon glows.")
    settings = ["--set", "contrastive.loss=scl", "--set", f"encoder.name={sentence_bert_folder}"]
    assert main(["train", str(tmp_path / "texts"), str(tmp_path / "run"), *settings]) == 0
    assert "has no train queries: the encoder stays as it is." in caplog.text


def test_queries_without_judgements_are_told(caplog):
    Collection.from_records(ROWS, queries={"q": "gas"})
    (message,) = caplog.messages
    assert "has 1 queries but no judgements, so none is used; judgements are qrels={" in message


def test_the_shipped_collection_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(read_collection("minipedia").documents) == 600


@needs_readers
@pytest.mark.usefixtures("tiny_default")
def test_an_index_of_texts_is_searched_without_training(notes, tmp_path, caplog):
    caplog.set_level("INFO")
    retriever = dsi.index(notes, tmp_path / "run", device="cpu")
    assert [hit.doc_id for hit in retriever.search("gas that glows in signs", k=1)] == ["neon.md"]
    assert retriever.search("rivers", where="year = 1990")[0].doc_id == "volga"
    stages = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "run").glob("*/stage.json")}
    assert set(stages) == {"encoder", "docids", "lexical", "memory"}  # no pseudo-queries, no generator
    assert (retriever.search_config.lexical_weight, retriever.search_config.token_weight) == (0.7, 1.0)
    assert retriever.snapshot.engine.tree.tokens is not None
    assert "There are no queries to tune on" in caplog.text


def test_an_index_of_other_texts_is_replaced_on_request_only(sentence_bert_folder, tmp_path):
    def made_of(*texts, **options):
        return dsi.index(list(texts), tmp_path / "run", encoder=str(sentence_bert_folder), device="cpu", **options)

    made_of("Neon glows.", "Bees dance.")
    with pytest.raises(
        ValueError, match=r"The collection lacks 1 of the 2 documents of the index in .*/run, such as '1'"
    ):
        made_of("Neon glows.")
    index = made_of("Neon glows.", replace=True)
    index.add([{"doc_id": "b", "text": "Bees dance."}])
    index.save(tmp_path / "run")
    with pytest.raises(ValueError, match="say that the updates may go"):
        made_of("Neon glows.")
    assert len(made_of("Neon glows.", discard_updates=True).snapshot.documents) == 1


def test_one_text_is_an_index_too(sentence_bert_folder, tmp_path):
    encoder = {"encoder": {"name": str(sentence_bert_folder)}}
    config = dsi.Config().without_training().with_changes(encoder)
    retriever = dsi.train(Collection.from_records(["Neon glows."]), tmp_path / "run", config=config, device="cpu")
    retriever.add([{"doc_id": "b", "title": "Danube", "text": "A river."}])
    assert [hit.doc_id for hit in retriever.search("river", k=2)] == ["b", "0"]


@pytest.mark.programs
def test_an_index_without_a_folder_lives_as_long_as_python(sentence_bert_folder):
    code = """
import dsi, sys
retriever = dsi.index(["Neon glows in advertising signs.", "The Danube flows through Vienna."], encoder=sys.argv[1])
print(retriever.search("gas that glows", k=1)[0].doc_id)
from dsi.training.indexing import _temporary_folder
print(_temporary_folder().name)
"""
    command = [sys.executable, "-c", code, str(sentence_bert_folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found, folder = done.stdout.split()
    assert found == "0"
    assert not Path(folder).exists()


@needs_readers
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs files of a Linux system")
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_what_has_no_end_is_not_read_from_a_folder(tmp_path, name):
    (tmp_path / name).symlink_to("/proc/self/pagemap")
    with pytest.raises(FileNotFoundError, match="it holds no such file"):
        dsi.Collection.from_files(tmp_path)


def test_ids_may_be_whole_numbers_everywhere():
    collection = dsi.Collection.from_records(
        [{"id": 1, "text": "neon"}, {"id": 2, "text": "argon"}],
        queries={1: "which gas"},
        qrels={"test": {numpy.int64(1): {numpy.int64(2): 1}}},
    )
    assert collection.qrels["test"] == {"1": {"2": 1}}
    assert list(collection.rows) == ["1", "2"]


@needs_readers
def test_a_table_of_too_many_columns_is_refused_before_it_is_parsed(tmp_path):
    (tmp_path / "a.csv").write_text("id,text" + "," * 10**6 + "\n1,a\n")
    with pytest.raises(ValueError, match=r"a\.csv, line 1: a table has at most 1,000 columns, got 1,000,002"):
        dsi.Collection.from_files(tmp_path)


@needs_readers
@pytest.mark.parametrize("before", ["\n\n", '"\n",'])
def test_columns_are_counted_behind_blank_lines_and_in_names_of_several(tmp_path, before):
    (tmp_path / "a.csv").write_text(f"{before}id,text" + "," * 10**6 + "\n1,a\n")
    with pytest.raises(ValueError, match=r"a\.csv, line 1: a table has at most 1,000 columns, got 1,000,00"):
        dsi.Collection.from_files(tmp_path)


@needs_readers
def test_rows_that_are_too_short_are_refused_before_their_cells_fill_the_memory(tmp_path):
    columns = ",".join(f"c{number}" for number in range(900))
    (tmp_path / "a.csv").write_text(f"id,text,{columns}\n" + "1,a\n" * 300_000)
    with pytest.raises(ValueError, match=r"a\.csv is not a table .*Row #2: Expected 902 columns, got 2"):
        dsi.Collection.from_files(tmp_path)


@needs_readers
@pytest.mark.parametrize(
    ("values", "read"),
    [
        (["1", "-20", ""], [1, -20, None]),
        (["1", "2.5", "1e3"], [1.0, 2.5, 1000.0]),
        (["true", "False", ""], [True, False, None]),
        (["1", "two"], ["1", "two"]),
        (["7", "8" * 400], ["7", "8" * 400]),
        (["7", "1e400"], ["7", "1e400"]),
        (["0x10", "1"], ["0x10", "1"]),
        (["fal\u017fe", "true"], ["fal\u017fe", "true"]),
        (["nan", "1"], ["nan", "1"]),
    ],
)
def test_a_column_of_a_table_has_the_type_of_all_its_values(tmp_path, values, read):
    rows = "".join(f"{number},text,{value}\n" for number, value in enumerate(values))
    (tmp_path / "a.csv").write_text("id,text,value\n" + rows)
    assert dsi.Collection.from_files(tmp_path).documents["value"][:] == read


@needs_readers
def test_a_folder_in_beir_layout_is_not_taken_for_texts(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "x"}')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "y"}')
    with pytest.raises(ValueError, match=r"is in BEIR layout, .*; dsi\.read_collection reads it"):
        dsi.Collection.from_files(tmp_path)


@needs_readers
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id,text," + b",".join(b"%d" % n + b"x" * 1100 for n in range(980)) + b"\n", "is not a table of values sep"),
        (b"id,text,a\0b\n1,t,3\n", r"the column 'a\\x00b' has an unprintable character; leave it out"),
        (b"id,text,a\n1,t,3,\x1b[2J\n", r"Row #2: Expected 3 columns, got 4: 1,t,3,\\x1b\[2J"),
    ],
    ids=["names of a megabyte", "NUL", "control characters"],
)
def test_names_of_columns_that_readers_take_differently_are_refused(tmp_path, content, message):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        dsi.Collection.from_files(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            pandas.DataFrame({"id": ["1"], "text": ["a"], "x": [1j]}),
            "metadata 'x' must be a text, a finite number, .* got 1j; write it as a text",
        ),
        (
            pyarrow.table([["1"], ["a"], [1], [2]], names=["id", "text", "x", "x"]),
            "documents: the column 'x' comes twice; give each a name of its own",
        ),
        ([{"id": 10**5000, "text": "a"}], "doc_id must be a string, got an integer of 16610 bits"),
        ([{"id": "1", "text": "a", "metadata": numpy.ones(2)}], r"metadata must be an object, got \[1\.0, 1\.0\]"),
    ],
    ids=["complex", "a name twice", "a long number", "an array"],
)
def test_odd_values_are_named(source, message):
    with pytest.raises(ValueError, match=message):
        dsi.Collection.from_records(source)


def test_pictures_of_a_data_set_are_never_opened(monkeypatch):
    features = datasets.Features(
        {"id": datasets.Value("string"), "text": datasets.Value("string"), "im": datasets.Image()}
    )
    table = pyarrow.table(
        {"id": ["a"], "text": ["x"], "im": [{"bytes": None, "path": "http://127.0.0.1:9/leak.png"}]},
        features.arrow_schema,
    )
    assert list(dsi.Collection.from_records(datasets.Dataset(table)).rows) == ["a"]


def test_times_of_nanoseconds_are_dates_and_series_are_lists():
    when = numpy.datetime64("2020-01-02T03:04:05", "ns")
    collection = dsi.Collection.from_records([{"id": "a", "text": "x", "when": when}])
    assert collection.documents["when"][:] == [datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)]
    assert list(dsi.Collection.from_records(pandas.Series(["a", "b"])).rows) == ["0", "1"]


def test_dates_that_python_does_not_have_are_refused():
    table = pyarrow.table({"id": ["a"], "text": ["x"], "when": pyarrow.array([2**62], pyarrow.timestamp("s"))})
    with pytest.raises(ValueError, match=r"documents hold a value that Python cannot .*; write texts"):
        dsi.Collection.from_records(table)


@needs_readers
def test_a_heading_of_many_spaces_takes_no_time(tmp_path):
    (tmp_path / "a.md").write_text("# a" + " " * 10**6 + "#b\n" + "#" * 10**6)
    started = time.perf_counter()
    assert dsi.Collection.from_files(tmp_path).documents["title"][:] == ["a #b"]
    assert time.perf_counter() - started < 10


@pytest.mark.usefixtures("tiny_default")
def test_the_shell_indexes_a_folder_of_texts_and_says_that_there_are_no_train_queries(notes, tmp_path, capsys):
    assert main(["train", str(notes), str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert " 0 train queries: encoder, docids, lexical, memory\n" in capsys.readouterr().err
    assert main(["search", str(tmp_path / "run"), "bees", "-k", "1"]) == 0
    assert "bee" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "run"), str(notes)]) == 2
    assert "has no test judgements to measure on; add qrels/test.tsv" in capsys.readouterr().err
    assert main(["update", str(tmp_path / "run"), "--texts", str(notes), "--device", "cpu"]) == 0
    assert "0 documents removed, 0 added" in capsys.readouterr().out


def test_a_collection_is_saved_over_a_collection_only(tmp_path):
    collection = Collection.from_records(["a", "b"], queries={"q": "a"}, qrels={"test": {"q": {"0": 1}}})
    collection.save(tmp_path / "beir")
    collection.save(tmp_path / "beir")
    (tmp_path / "beir" / "paper.tex").write_text("mine")
    with pytest.raises(FileExistsError, match=r"beir holds 'paper.tex', which would be lost; name a new folder"):
        collection.save(tmp_path / "beir")
    assert (tmp_path / "beir" / "paper.tex").read_text() == "mine"


def test_a_collection_is_shown_by_its_counts():
    collection = Collection.from_records(["a", "b"], queries={"q": "a"}, qrels={"test": {"q": {"0": 1}}})
    assert repr(collection).endswith("2 documents, 1 queries; judged: train 0, dev 0, test 1)")


def test_a_series_of_texts_is_a_list_of_texts():
    assert Collection.from_records(pandas.Series(["a", "b"])).documents["doc_id"][:] == ["0", "1"]


@needs_readers
@pytest.mark.parametrize("folder", [None, 3, ["notes"]])
def test_a_folder_that_is_no_path_is_named(folder):
    with pytest.raises(TypeError, match=r"A path must be a string or a Path, got .*; from_records takes records"):
        Collection.from_files(folder)


def test_judgements_that_are_no_dictionary_are_named():
    with pytest.raises(ValueError, match=r"qrels must be \{split: .*\} of the splits train, dev, test, got "):
        Collection.from_records(["a"], qrels=pandas.DataFrame({"query": ["q"]}))


def test_what_is_no_retriever_is_not_measured():
    with pytest.raises(TypeError, match=r"evaluate\(\) measures a retriever, got 'runs/B'; dsi.load"):
        dsi.evaluate("runs/B", Collection.from_records(["a"]))


@needs_readers
@pytest.mark.parametrize(
    ("values", "read"),
    [
        (["1234567890123456789", "1234567890123456788"], [1234567890123456789, 1234567890123456788]),
        (["12345678901234567890", "1"], ["12345678901234567890", "1"]),
        (["0.5", "00501"], ["0.5", "00501"]),
        (["0.5", "12345678901234567"], ["0.5", "12345678901234567"]),
        (["-0", "1"], ["-0", "1"]),
        (["00501", "02134"], ["00501", "02134"]),
        (["123456789012345678", "-5", "0"], [123456789012345678, -5, 0]),
        (["0.5", "-3", ".25", "5.", "1e3"], [0.5, -3.0, 0.25, 5.0, 1000.0]),
    ],
)
def test_numbers_of_tables_are_exact_or_texts(values, read, tmp_path):
    rows = "".join(f"{n},text {n},{value}\n" for n, value in enumerate(values))
    (tmp_path / "table.csv").write_text(f"id,text,value\n{rows}")
    assert dsi.Collection.from_files(tmp_path).documents["value"][:] == read


VALUES = {
    "numbers": ([1, 2], [1, 2], pyarrow.int64()),
    "a missing number": ([1.5, float("nan")], [1.5, None], pyarrow.float64()),
    "lists": ([["a", "b"], ["c"]], [["a", "b"], ["c"]], pyarrow.list_(pyarrow.string())),
    "tuples and sets": ([(1, 2), {3}], [[1, 2], [3]], pyarrow.list_(pyarrow.int64())),
    "arrays": ([numpy.array([0.5, 1.0]), numpy.zeros(0)], [[0.5, 1.0], []], pyarrow.list_(pyarrow.float64())),
    "a list and a single value": ([["a"], "b"], [["a"], ["b"]], pyarrow.list_(pyarrow.string())),
    "dates": ([date(2024, 1, 15), "2024-02-29"], [date(2024, 1, 15), date(2024, 2, 29)], pyarrow.date32()),
    "texts that look like dates": (["2024-01-15", "2024-02-30"], ["2024-01-15", "2024-02-30"], pyarrow.string()),
    "times": (
        ["2024-01-15T12:00:00+02:00", datetime(2024, 1, 15, 12)],
        [datetime(2024, 1, 15, 10, tzinfo=UTC), datetime(2024, 1, 15, 12, tzinfo=UTC)],
        pyarrow.timestamp("us", "UTC"),
    ),
    "a date beside a time": (
        [date(2024, 1, 15), pandas.Timestamp("2024-01-15T12:00", tz="Europe/Vienna")],
        [datetime(2024, 1, 15, tzinfo=UTC), datetime(2024, 1, 15, 11, tzinfo=UTC)],
        pyarrow.timestamp("us", "UTC"),
    ),
    "NumPy's": ([numpy.datetime64("2024-01-15"), pandas.NaT], [datetime(2024, 1, 15, tzinfo=UTC), None], None),
    "UUID and Decimal": (
        [uuid.UUID(int=1), decimal.Decimal("1.50")],
        ["00000000-0000-0000-0000-000000000001", "1.50"],
        pyarrow.string(),
    ),
    "numbers beside texts": ([12, "xii"], ["12", "xii"], pyarrow.string()),
    "truth beside texts": ([True, "no"], ["true", "no"], pyarrow.string()),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_of_metadata_are_what_they_are(case, tmp_path):
    values, read, kind = VALUES[case]
    records = [{"id": str(n), "text": "x", "value": value} for n, value in enumerate(values)]
    collection = Collection.from_records(records)
    assert collection.documents["value"][:] == read
    assert kind is None or collection.documents.data.schema.field("value").type == kind
    collection.save(tmp_path / "saved")
    again = read_collection(tmp_path / "saved").documents
    assert again["value"][:] == read
    assert again.data.schema.field("value").type == collection.documents.data.schema.field("value").type


def test_what_no_column_can_hold_is_counted_once_a_kind(caplog):
    values = [{"a": 1}, {"a": 2}, [["x"]], 1, "2", ["3"]]
    records = [{"id": str(n), "text": "x", "value": value} for n, value in enumerate(values)]
    assert Collection.from_records(records).documents["value"][:] == [None, None, None, ["1"], ["2"], ["3"]]
    assert caplog.messages == [
        "documents: objects as metadata 'value': 2 ('documents[0]', 'documents[1]'); they are left out.",
        "documents: lists of lists or objects as metadata 'value': 1 ('documents[2]'); they are left out.",
        "documents: metadata of lists and single values: 1 ('value'); these become lists of one.",
        "documents: metadata of several types (integer, text): 1 ('value'); all become texts.",
    ]


QUERY_ROWS = {"qid": ["a", "b"], "query": ["gas", ""]}
QUERY_TABLES = {
    "DataFrame": lambda: pandas.DataFrame(QUERY_ROWS, index=["x", "y"]),
    "polars": lambda: pytest.importorskip("polars").DataFrame(QUERY_ROWS),
    "Arrow table": lambda: pyarrow.table(QUERY_ROWS),
    "Arrow batch": lambda: pyarrow.RecordBatch.from_pydict(QUERY_ROWS),
    "Arrow data set": lambda: pyarrow.dataset.dataset(pyarrow.table(QUERY_ROWS)),
    "Dataset": lambda: datasets.Dataset.from_dict(QUERY_ROWS),
    "records": lambda: [{"_id": "a", "text": "gas"}, {"_id": "b", "text": None}],
}


@pytest.mark.parametrize("table", QUERY_TABLES)
def test_every_table_of_queries_is_read(table):
    assert Collection.from_records(ROWS, queries=QUERY_TABLES[table]()).queries == {"a": "gas", "b": ""}
    assert ids_and_texts(QUERY_TABLES[table]()) == (["a", "b"], ["gas", ""])


@pytest.mark.parametrize("kind", ["list", "pandas", "polars", "iterator"])
def test_a_series_of_queries_has_places_as_ids(kind):
    texts = ["gas", "river"]
    series = {
        "list": lambda: texts,
        "pandas": lambda: pandas.Series(texts, index=["x", "y"]),
        "polars": lambda: pytest.importorskip("polars").Series(texts),
        "iterator": lambda: iter(texts),
    }[kind]()
    assert ids_and_texts(series) == (["0", "1"], texts)


@needs_readers
@pytest.mark.parametrize(
    ("content", "title", "text", "metadata"),
    [
        ("```sh\n# a comment\n```\n\n# Danube\n\nFlows.", "Danube", None, {}),
        ("~~~\n# a comment\n```\n# more\n~~~~\n## Volga", "Volga", None, {}),
        (
            "---\ntitle: Rhine\ntags: [river, border]\ndate: 2024-01-15\n---\n# Source\n",
            "Rhine",
            "# Source\n",
            {"tags": ["river", "border"], "date": date(2024, 1, 15)},
        ),
        ("---\nlang: en\n---\n# Elbe\nFlows.", "Elbe", "# Elbe\nFlows.", {"lang": "en"}),
        ("---\n: [\n---\n# Oder\n", "Oder", None, {}),  # misspelt
        ("---\n\nA line above, a line below.\n\n---\n", "notes", None, {}),
    ],
)
def test_a_title_is_no_comment_and_front_matter_is_no_text(content, title, text, metadata, tmp_path):
    (tmp_path / "notes.md").write_text(content)
    (row,) = Collection.from_files(tmp_path).documents
    assert own(row) == {"doc_id": "notes.md", "title": title, "text": content if text is None else text, **metadata}


@needs_readers
def test_every_kind_of_file_holds_the_same_documents(tmp_path):
    rows = [
        {"id": "a", "title": "A", "text": "one", "year": 1990},
        {"id": "b c", "title": None, "text": "two", "year": None},
    ]
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("id,title,text,year\na,A,one,1990\nb c,,two,\n")
    (tmp_path / "t.tsv").write_text("id\ttitle\ttext\tyear\na\tA\tone\t1990\nb c\t\ttwo\t\n")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = Collection.from_records(rows).documents[:]
    for name in ("t.parquet", "t.csv", "t.tsv", "t.jsonl"):
        assert own(Collection.from_files(tmp_path / name).documents[:]) == expected
        assert own(read_collection(tmp_path / name).documents[:]) == expected
    (tmp_path / "bare.tsv").write_text("a\tone\nb c\ttwo\n")
    bare = Collection.from_files(tmp_path / "bare.tsv").documents
    assert (bare["doc_id"][:], bare["text"][:]) == (["a", "b c"], ["one", "two"])


@needs_readers
def test_a_table_of_columns_alone_gets_a_line(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("id,text\n")
    (tmp_path / "b.txt").write_text("words")
    assert list(Collection.from_files(tmp_path).rows) == ["b.txt"]
    assert f"{tmp_path / 'a.csv'} names columns, and has no row below them." in caplog.messages


@needs_readers
def test_several_sources_are_one_collection(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "one"}')
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "b.txt").write_text("two")
    assert list(Collection.from_files(tmp_path / "a.jsonl", tmp_path / "notes").rows) == ["a", "b.txt"]
    (tmp_path / "c.jsonl").write_text('{"id": "a", "text": "three"}')
    with pytest.raises(ValueError, match="duplicate doc_id 'a'"):
        Collection.from_files(tmp_path / "a.jsonl", tmp_path / "c.jsonl")
    with pytest.raises(FileNotFoundError, match=r"The collection folder .*none does not exist"):
        Collection.from_files(tmp_path / "none")


@needs_readers
def test_an_index_takes_the_settings_of_a_training(sentence_bert_folder, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "a b", "text": "Neon glüht"}\n{"id": "b", "text": "Bienen tanzen"}')
    config = Config().with_changes({"docids": {"max_leaf_size": 3}, "contrastive": {"loss": "scl"}})
    retriever = dsi.index(
        [tmp_path / "a.jsonl"], tmp_path / "run", config=config, encoder=str(sentence_bert_folder), language="german",
        pieces=2, device="cpu",
    )  # fmt: skip
    written = read_config(tmp_path / "run" / "config.toml")
    assert (written.docids.max_leaf_size, written.docids.pieces, written.contrastive.loss) == (3, 2, "none")
    assert (written.lexical.language, retriever.snapshot.lexical.language) == ("german", "german")
    assert list(retriever.snapshot.documents.rows) == ["a b", "b"]  # ids with spaces are loaded again
    arguments = ["index", str(tmp_path / "a.jsonl"), str(tmp_path / "shell"), "--encoder", str(sentence_bert_folder)]
    settings = ["--language", "german", "--pieces", "2", "--set", "docids.max_leaf_size=3", "--device", "cpu"]
    assert main([*arguments, *settings]) == 0
    assert dataclasses.replace(read_config(tmp_path / "shell" / "config.toml")) == written
    with pytest.raises(ValueError, match=r"lexical.language must be \"auto\", \"none\" or one of"):
        dsi.index(["a", "b"], language="klingon")


@pytest.fixture(scope="module")
def dated_run(tmp_path_factory, sentence_bert_folder):
    """The folder of an index of documents with dates and lists."""
    folder = tmp_path_factory.mktemp("dated")
    records = [
        {"id": "a", "text": "Neon glows", "day": "2024-01-15", "at": "2024-01-15T23:59:59Z", "tags": ["gas"]},
        {
            "id": "b",
            "text": "Bees dance",
            "day": "2024-01-31",
            "at": "2024-01-31T12:00:00Z",
            "tags": ["insect", "field"],
        },
        {"id": "c", "text": "Rivers flow", "day": "2024-02-01", "at": "2024-02-01"},
    ]
    dsi.index(records, folder / "run", encoder=str(sentence_bert_folder), device="cpu")
    return folder / "run"


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("= '2024-01-15'", "a"),
        ("<> '2024-01-15'", "bc"),
        ("between '2024-01-01' and '2024-01-31'", "ab"),
        ("<= '2024-01-31'", "ab"),
        ("< '2024-01-31'", "a"),
        ("> '2024-01-31'", "c"),
        (">= '2024-01-31'", "bc"),
        ("in ('2024-01-15', '2024-02-01')", "ac"),
        ("not between '2024-01-16' and '2024-12-31'", "a"),
        ("is not null", "abc"),
    ],
)
@pytest.mark.parametrize("column", ["day", "at"])
def test_in_a_filter_a_day_is_the_whole_day(column, where, found, dated_run):
    retriever = dsi.load(dated_run, device="cpu")
    hits = retriever.search("what", where=f"{column} {where}")
    assert sorted(hit.doc_id for hit in hits) == list(found)


def test_a_moment_in_a_filter_is_of_its_zone_and_a_text_is_no_date(dated_run):
    retriever = dsi.load(dated_run, device="cpu")
    for where, found in (("at = '2024-01-31T13:00:00+01:00'", ["b"]), ("at > '2024-01-31T12:00'", ["c"])):
        assert [hit.doc_id for hit in retriever.search("what", where=where)] == found
    with pytest.raises(
        ValueError, match="at is a column of time values, got the text 'soon'; it takes dates in single"
    ):
        retriever.search("what", where="at = 'soon'")


def test_dates_and_lists_come_back_and_json_has_them(dated_run, tmp_path, capsys):
    retriever = dsi.load(dated_run, device="cpu")
    assert retriever.get("a").metadata == {
        "day": date(2024, 1, 15), "at": datetime(2024, 1, 15, 23, 59, 59, tzinfo=UTC), "tags": ["gas"],
    }  # fmt: skip
    shown = json.loads(json.dumps(retriever.search("neon", k=1, allow=["a"])[0].as_dict()))
    assert shown["metadata"] == {"day": "2024-01-15", "at": "2024-01-15T23:59:59+00:00", "tags": ["gas"]}
    retriever.add([{"id": "d", "text": "new", "day": "2025-01-01", "at": date(2025, 1, 1), "tags": "one"}])
    assert retriever.get("d").metadata == {
        "day": date(2025, 1, 1), "at": datetime(2025, 1, 1, tzinfo=UTC), "tags": ["one"],
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"'e': metadata 'day' must be of type date32\[day\], got 'soon'"):
        retriever.add([{"id": "e", "text": "new", "day": "soon"}])


def test_the_answer_of_an_empty_query_is_empty(dated_run, caplog):
    retriever = dsi.load(dated_run, device="cpu")
    alone = retriever.search("neon", k=2)
    assert retriever.search("  ") == []
    caplog.clear()
    for method in ("generate", "exact"):
        found, empty, again = retriever.search(["neon", "", "neon"], k=2, method=method)
        assert [hit.doc_id for hit in found] == [hit.doc_id for hit in again] == [hit.doc_id for hit in alone]
        assert empty == []
    assert caplog.messages == ["1 empty query, number 2; its answer is empty."] * 2
    retriever.search(["", "neon", " "], k=2)
    assert caplog.messages[-1] == "2 empty queries, the first number 1; their answers are empty."
    frame = pandas.DataFrame({"qid": ["x", "y"], "text": ["neon", None]})
    assert retriever.run(frame, k=2) == {"x": {hit.doc_id: hit.score for hit in alone}, "y": {}}
    judged = "queries: empty queries: 1 ('y'); their answers are empty, and count as 0 where they are judged."
    assert caplog.messages[-1] == judged
    assert [list(own) for own in retriever.search(frame, k=2)] == [list(alone), []]


@needs_readers
@pytest.mark.parametrize("name", ["new.csv", "new.tsv", "new.parquet", "new.jsonl", "new.txt", "notes"])
def test_an_update_adds_files_of_every_kind(name, dated_run, tmp_path, capsys):
    run, path = tmp_path / "run", tmp_path / name
    shutil.copytree(dated_run, run)
    doc_id, rows = "new one", [{"id": "new one", "text": "An old mill", "day": "2024-03-01"}]
    if name == "notes":
        path.mkdir()
        (path / "mill.txt").write_text("An old mill")
        doc_id = "mill.txt"
    elif name == "new.txt":
        path.write_text("An old mill")
        doc_id = name
    elif name == "new.jsonl":
        path.write_text(json.dumps(rows[0]))
    elif name == "new.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        separator = "," if name == "new.csv" else "\t"
        path.write_text("\n".join(separator.join(own) for own in (rows[0], rows[0].values())))
    assert main(["update", str(run), "--device", "cpu", "--add", str(path), "--remove", "a"]) == 0
    assert "1 document removed, 1 added, 0 replaced, 3 documents now; generation 2" in capsys.readouterr().out
    again = dsi.load(run, device="cpu")
    assert list(again.snapshot.documents.rows) == ["b", "c", doc_id]


def test_an_index_says_what_it_is(dated_run, capsys):
    info = index_info(dated_run)
    assert (info["documents"], info["pieces"], info["generation"]) == (3, 3, 1)
    assert info["columns"] == ["doc_id", "title", "text", "day", "at", "tags"]
    assert info["chosen"] == "the defaults of [search], the weight of words by how far the encoder's scores lie apart"
    assert set(info["megabytes"]) == {"encoder", "docids", "lexical", "memory"}
    assert info["generator"] is None
    assert info["language"] in ("none", "english")
    assert not {"alpha", "beta", "ann_temperature"} & set(info["search"])
    assert main(["info", str(dated_run)]) == 0
    shown = capsys.readouterr().out
    assert re.match(r"documents +3\ncolumns +doc_id, title, text, day, at, tags\npieces +3\n", shown)
    assert re.search(r"\ngenerator +none\n", shown)
    assert "alpha" not in shown
    own = {**info, "generator": {"docid_tokens": "digits", "objective": "ce"}}
    assert re.search(r"\ngenerator +docid_tokens digits, objective ce\n", as_lines(own))
    tuned = {**info, "search": {"alpha": 1.0, "lexical_weight": 0.3712345678, "beam_width": 12345, "method": "exact"}}
    assert re.search(r"\nsearch +alpha 1, lexical_weight 0.371, beam_width 12,345, method exact\n", as_lines(tuned))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"tried": [[{"alpha": 1.0}, 0.9]]}, "tuned on dev queries of its collection, or train queries set aside"),
        ({"tried": []}, "the defaults of [search], the weight of words by how far the encoder's scores lie apart"),
    ],
)
def test_an_index_says_who_chose_its_weights(dated_run, tmp_path, record, said):
    shutil.copytree(dated_run, tmp_path / "run")
    (tmp_path / "run" / "tuning.json").write_text(json.dumps(record))
    assert index_info(tmp_path / "run")["chosen"] == said


def test_a_query_id_with_a_space_is_refused_before_the_search(dated_run, tmp_path, capsys):
    ids = {"q 1": "neon"}
    (tmp_path / "q.jsonl").write_text(
        "".join(json.dumps({"_id": own, "text": text}) + "\n" for own, text in ids.items())
    )
    search = [
        "search",
        str(dated_run),
        "--queries",
        str(tmp_path / "q.jsonl"),
        "--run",
        str(tmp_path / "a.run"),
        "--device",
        "cpu",
    ]
    assert main(search) == 2
    assert "'q 1' must not be empty or hold white space" in capsys.readouterr().err
    assert not (tmp_path / "a.run").exists()


def test_two_systems_are_compared(dated_run, tmp_path, capsys):
    qrels, queries = {"test": {"q1": {"a": 1}, "q2": {"b": 1}}}, {"q1": "neon", "q2": "bees"}
    records = [{"id": own, "text": text} for own, text in (("a", "Neon"), ("b", "Bees"))]
    Collection.from_records(records, queries=queries, qrels=qrels).save(tmp_path / "data")
    retriever = dsi.load(dated_run, device="cpu")
    write_run(retriever.run(queries, 10), tmp_path / "a.run", "a")
    compare = ["compare", str(tmp_path / "a.run"), str(dated_run), str(tmp_path / "data"), "--device", "cpu"]
    assert main(compare) == 0
    shown = capsys.readouterr().out
    assert "| Hit@1   |" in shown
    assert re.search(r"\| \+0\.00 +\| 1\.0000 \|", shown)
    assert "2 queries; second minus first, with 95 % intervals; p of paired" in shown
    write_run({"q": {"a": 1.0}}, tmp_path / "a.run", "a")
    assert main(compare) == 2
    assert "The run and the judgements have no query in common: the first query_id is 'q' in" in capsys.readouterr().err


def test_judgements_are_written_as_trec_tools_read_them(tmp_path):
    write_qrels({"q": {"a": 1, "c": 0.5}}, tmp_path / "test.qrels")
    assert (tmp_path / "test.qrels").read_text() == "q 0 a 1\nq 0 c 0.5\n"
    with pytest.raises(ValueError, match=r"test.qrels: 'a b' must not be empty or hold white space, which separates"):
        write_qrels({"q": {"a b": 1}}, tmp_path / "test.qrels")


def test_a_training_takes_the_short_options_of_an_index(tmp_path, capsys):
    train = ["train", "minipedia", str(tmp_path / "run"), "--device", "cpu"]
    assert main([*train, "--pieces", "few"]) == 2
    assert "docids.pieces" in capsys.readouterr().err
    assert main([*train, "--encoder", str(tmp_path / "no-model")]) == 2
    assert "no-model" in capsys.readouterr().err


def test_a_first_line_of_three_columns_without_names_is_refused_and_tabs_in_later_texts_are_kept(tmp_path):
    (tmp_path / "queries.tsv").write_text("1\tnoble gas\ten\n2\triver\ten\n")
    with pytest.raises(
        ValueError, match=r"queries.tsv, line 1 has 3 columns, and no line names them; write their names"
    ):
        read_queries_file(tmp_path / "queries.tsv")
    (tmp_path / "queries.tsv").write_text("id\ttext\tlanguage\n1\tnoble gas\ten\n2\triver\ten\n")
    assert read_queries_file(tmp_path / "queries.tsv") == {"1": "noble gas", "2": "river"}
    (tmp_path / "queries.txt").write_text("\n1\tnoble gas\n2\triver\twith a tab\n")
    assert read_queries_file(tmp_path / "queries.txt") == {"1": "noble gas", "2": "river\twith a tab"}


def test_records_are_read_while_another_thread_imports_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", types.ModuleType("pandas"))
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
    assert list(records_of([{"id": "a", "text": None}])) == [("documents[0]", {"id": "a", "text": None})]
    assert [is_missing(value) for value in (None, float("nan"), 0, "")] == [True, True, False, False]
