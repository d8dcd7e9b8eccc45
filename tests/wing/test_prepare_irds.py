"""`dsi prepare-irds` on small data sets of ir_datasets' own TSV and TREC formats, registered for the test."""

import sys

import ir_datasets
import pytest
from dsi_experiments.collections.irds import prepare

from dsi.commands.main import main
from dsi.docids.data.collection import read_collection


@pytest.fixture
def registered(tmp_path):
    (tmp_path / "docs.tsv").write_text("d1\tneon glows\nd2\thelium — naïve\nd3\t\n", encoding="utf-8")
    (tmp_path / "other.tsv").write_text("x\tone document\n")
    (tmp_path / "train.tsv").write_text("t1\twhat glows\nt2\tnever judged\n")
    (tmp_path / "test.tsv").write_text("q1\twhich gas\nt1\twhat glows\n")
    (tmp_path / "train.qrels").write_text("t1 0 d1 1\nt1 0 d3 1\n")
    (tmp_path / "test.qrels").write_text("q1 0 d2 2\nq1 0 d1 0\nt1 0 d1 1\n")
    names = []

    def register(name: str, docs: str, split: str) -> str:
        data_set = ir_datasets.create_dataset(
            docs_tsv=tmp_path / docs, queries_tsv=tmp_path / f"{split}.tsv", qrels_trec=tmp_path / f"{split}.qrels"
        )
        ir_datasets.registry.register(name, data_set)
        names.append(name)
        return name

    yield register
    for name in names:
        del ir_datasets.registry._registered[name]


def test_a_data_set_becomes_a_collection(registered, tmp_path, capsys):
    train, test = registered("own/train", "docs.tsv", "train"), registered("own/test", "docs.tsv", "test")
    folder = tmp_path / "collection"
    assert main(["prepare-irds", "--train", train, "--test", test, "--output", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "3 documents\n" in printed
    assert "test: 3 judgements, from own/test\n" in printed
    assert "train: 2 judgements, from own/train\n" in printed
    collection = read_collection(folder)
    assert collection.documents["text"][:] == ["neon glows", "helium — naïve", ""]
    assert collection.queries == {"t1": "what glows", "q1": "which gas"}
    assert collection.qrels["test"] == {"q1": {"d2": 2, "d1": 0}, "t1": {"d1": 1}}
    assert collection.qrels["train"] == {"t1": {"d1": 1, "d3": 1}}


def test_from_python_it_tells_what_it_wrote(registered, tmp_path):
    names = {"train": registered("own/c", "docs.tsv", "train"), "test": registered("own/d", "docs.tsv", "test")}
    written = prepare(names, tmp_path / "collection")
    assert written[0] == 3
    assert written[1] == {"train": 2, "test": 3}


def test_whatever_the_data_set_holds_is_read_again(registered, tmp_path):
    (tmp_path / "test.tsv").write_text("q1\twhich gas\nq1\twhich gas\nq2\t \n")
    (tmp_path / "test.qrels").write_text("q1 0 d2 0\nq1 1 d2 2\nq1 2 d2 1\nq2 0 d1 1\nunknown 0 d1 1\n")
    written = prepare({"test": registered("own/e", "docs.tsv", "test")}, tmp_path / "collection")
    assert written[1] == {"test": 3}
    collection = read_collection(tmp_path / "collection")
    assert collection.queries == {"q1": "which gas", "q2": " "}
    assert collection.qrels["test"] == {"q1": {"d2": 2}, "q2": {"d1": 1}}
    (tmp_path / "docs.tsv").write_text("\tneon\nd2\thelium\n")
    with pytest.raises(ValueError, match="Document '': doc_id '' must be a text that is not empty"):
        prepare({"test": registered("own/f", "docs.tsv", "test")}, tmp_path / "other")


def test_what_does_not_fit_is_named_and_nothing_is_left(registered, tmp_path, capsys, monkeypatch):
    folder = str(tmp_path / "collection")
    assert main(["prepare-irds", "--test", "own/nothing", "--output", folder]) == 2
    assert "ir_datasets knows no data set 'own/nothing'" in capsys.readouterr().err
    (tmp_path / "train.qrels").write_text("t1 0 x 1\n")
    train, test = registered("own/a", "other.tsv", "train"), registered("own/b", "docs.tsv", "test")
    assert main(["prepare-irds", "--train", test, "--test", train, "--output", folder]) == 2
    assert "own/b judges none of the documents of own/a; choose one corpus" in capsys.readouterr().err
    assert not (tmp_path / "collection").exists()
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    assert main(["prepare-irds", "--test", test, "--output", folder]) == 2
    assert 'pip install "dr-scl-experiments[irds]"' in capsys.readouterr().err


def test_a_folder_with_anything_else_is_not_replaced(registered, tmp_path, capsys):
    name = registered("own/e", "docs.tsv", "test")
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    assert main(["prepare-irds", "--test", name, "--output", str(home)]) == 2
    assert "holds 'thesis.tex', which would be lost; name a new folder" in capsys.readouterr().err
    assert [path.name for path in home.iterdir()] == ["thesis.tex"]
    for _ in range(2):  # its own collection is
        assert main(["prepare-irds", "--test", name, "--output", str(tmp_path / "collection")]) == 0


def test_one_id_of_two_queries_is_refused(registered, tmp_path, capsys):
    (tmp_path / "train.tsv").write_text("t1\twhich signs glow\n")
    train, test = registered("own/g", "docs.tsv", "train"), registered("own/h", "docs.tsv", "test")
    assert main(["prepare-irds", "--train", train, "--test", test, "--output", str(tmp_path / "collection")]) == 2
    assert "The query 't1' is 'what glows' in " in capsys.readouterr().err
    assert not (tmp_path / "collection").exists()
