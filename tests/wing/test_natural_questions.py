"""Natural Questions in its three raw forms -> one and the same collection; bad records, kills, draws."""

import json

import datasets
import pytest
from dsi_experiments.collections import natural_questions as nq

from dsi.commands.main import main
from dsi.docids.data.collection import read_collection
from tests.support.raw_questions import FORMS, QUESTIONS, hub, raw_file, simplified

TEXTS = {
    "Trade winds": "The trade winds are winds that blow from the east. They were used by sailors (for centuries).",
    "Email marketing": "Email marketing is sending a message, typically to a group.",
    "Café au lait": "Café au lait is coffee with hot milk.",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_examples(form):
    for example_id, question, title in QUESTIONS:
        assert nq.parse(FORMS[form](example_id, question, title)) == nq.Example(
            str(example_id), question, title, TEXTS[title]
        )


@pytest.mark.parametrize(
    ("form", "name"), [("simplified", "v1.0-simplified_nq-train.jsonl.gz"), ("original", "nq-train-00.jsonl")]
)
def test_raw_files_become_a_collection(form, name, tmp_path, capsys):
    path = raw_file(tmp_path, name, form, QUESTIONS)
    output = tmp_path / "nq"
    assert main(["prepare-nq", str(path), "--counts", "3", "3", "1", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "5 records: 3 pages, 4 questions, 0 skipped" in printed  # one question is there twice
    assert "3 documents, 3 train and 1 test pairs" in printed
    collection = read_collection(output)
    texts = dict(zip(collection.documents["title"], collection.documents["text"], strict=True))
    assert texts == TEXTS
    pairs = {
        (collection.queries[query_id], collection.documents[row]["title"])
        for split in ("train", "test") for query_id, row in collection.pairs(split)
    }  # fmt: skip
    assert pairs == {(question, title) for _, question, title in QUESTIONS}
    report = json.loads((output / "collection.json").read_text())
    assert set(report["sha256"]) == {"corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv"}
    assert all(digest in printed for digest in report["sha256"].values())
    assert not (tmp_path / "nq.staged").exists()
    assert main(["prepare-nq", str(path), "--counts", "3", "3", "1", "--output", str(tmp_path / "again")]) == 0
    assert json.loads((tmp_path / "again" / "collection.json").read_text()) == report  # one seed, one collection


def test_a_collection_is_prepared_from_python_and_another_drawn_from_what_was_staged(tmp_path):
    path, output = raw_file(tmp_path, "train.jsonl", "simplified", QUESTIONS), tmp_path / "nq"
    journal, report = nq.prepare(output, files=[path], counts=(3, 3, 1), keep_staged=True)
    assert (journal.documents, journal.pairs, journal.skipped) == (3, 4, 0)
    assert (report["documents"], report["train"], report["test"]) == (3, 3, 1)
    path.write_text("")  # everything there is was staged
    again, report = nq.prepare(output, files=[path], counts=(0, 2, 2))
    assert again == journal
    assert (report["train"], report["test"]) == (2, 2)
    assert not (tmp_path / "nq.staged").exists()
    with pytest.raises(ValueError, match="size must be one of nq10k, nq100k, nq320k, got 'nq1k'"):
        nq.prepare(output, files=[path], size="nq1k")


def test_the_hub_is_streamed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(nq, "check_hub", lambda: None)
    splits = {"train": QUESTIONS[:3], "validation": QUESTIONS[3:4]}

    def load_dataset(name, *, split, streaming):
        assert (name, streaming) == ("google-research-datasets/natural_questions", True)
        return datasets.Dataset.from_list([hub(*question) for question in splits[split]]).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert main(["prepare-nq", "--hub", "--size", "nq320k", "--output", str(tmp_path / "nq")]) == 0
    assert "3 documents, 3 train and 1 test pairs" in capsys.readouterr().out
    collection = read_collection(tmp_path / "nq")
    assert list(collection.query_texts("test").values()) == ["what is cafe au lait"]


def test_malformed_records_are_named_skipped_and_counted(tmp_path, capsys, caplog):
    bad = ["{not json", "[1]", json.dumps({"example_id": 1}), json.dumps({**simplified(*QUESTIONS[0]), "question_text": " "}),
           json.dumps({**simplified(*QUESTIONS[0]), "document_url": "https://en.wikipedia.org/"}),
           json.dumps({"document_text": "x", "example_id": 3})]  # fmt: skip
    path = raw_file(tmp_path, "train.jsonl.gz", "simplified", [*bad, *QUESTIONS])
    assert main(["prepare-nq", str(path), "--counts", "3", "2", "1", "--output", str(tmp_path / "nq")]) == 0
    assert "11 records: 3 pages, 4 questions, 6 skipped" in capsys.readouterr().out
    problems = [
        "is not valid JSON",
        "is not a JSON object",
        "has none of the keys",
        "has an empty question",
        "without a title",
    ]
    for number, problem in enumerate([*problems, "lacks or misuses a key"], start=1):
        assert any(f"train.jsonl.gz, record {number} " in m and problem in m for m in caplog.messages), problem


class KilledError(Exception):
    pass


def test_a_killed_run_goes_on_and_ends_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(nq, "_JOURNAL_EVERY", 2)
    path = raw_file(tmp_path, "train.jsonl.gz", "original", ["broken", *QUESTIONS])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    nq.stage(nq.read_files([path], {}), nq.read_journal(whole), whole)

    def dying(records, after):
        for number, record in enumerate(records):
            if number == after:
                raise KilledError
            yield record

    for after in (1, 3, 1):
        journal = nq.read_journal(killed)
        with pytest.raises(KilledError):
            nq.stage(dying(nq.read_files([path], journal.records), after), journal, killed)
        with (killed / "documents.jsonl").open("a") as file:
            file.write('{"half a li')  # what a kill in the middle of a write leaves
    journal = nq.read_journal(killed)
    nq.stage(nq.read_files([path], journal.records), journal, killed)
    for name in ("documents.jsonl", "pairs.jsonl", "journal.json"):
        assert (killed / name).read_text() == (whole / name).read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--counts", "3", "9", "1"], "9 train pairs were requested, the source has 3; request fewer"),
        (["--counts", "9", "2", "1"], "9 documents were requested, the source has 3"),
        (["--counts", "1", "3", "1"], "The pairs drawn have 3 pages, more than the 1 documents requested"),
        (["--size", "nq320k"], "nq320k is tested on other questions than it trains on; name their files: test_files"),
        (["--test", "nowhere.gz"], "nowhere.gz does not exist; give raw Natural Questions files"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message, tmp_path, capsys):
    path = raw_file(tmp_path, "train.jsonl", "simplified", QUESTIONS)
    assert main(["prepare-nq", str(path), *arguments, "--output", str(tmp_path / "nq")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "nq").exists()
    assert main(["prepare-nq", "--output", str(tmp_path / "nq")]) == 2
    assert "or hub=True (--hub) to stream them" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["nq", "nq.staged"])
def test_a_folder_with_anything_else_is_not_replaced(folder, tmp_path, capsys):
    path = raw_file(tmp_path, "train.jsonl", "simplified", QUESTIONS)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "mine.txt").write_text("x")
    assert main(["prepare-nq", str(path), "--counts", "3", "3", "1", "--output", str(tmp_path / "nq")]) == 2
    assert f"{folder} holds 'mine.txt', which would be lost" in capsys.readouterr().err
    assert [own.name for own in (tmp_path / folder).iterdir()] == ["mine.txt"]
