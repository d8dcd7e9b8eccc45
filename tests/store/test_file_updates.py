"""An index of a folder of files: the same by command and from Python, hits name their places, and an update touches changes."""

import gzip
import itertools
import json
import logging
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.contrastive.text_encoder import TextEncoder
from dsi.files import changes, folders
from dsi.files.worker import Worker
from dsi.store import updating
from tests.support.files import pdf

NAMES = [f"note{number:02}.md" for number in range(12)]


@pytest.fixture
def notes(tmp_path):
    """A folder of twelve notes and a PDF."""
    folder = tmp_path / "notes"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        (folder / name).write_text(f"# Note {number}\n\nWords of number {number}, and\nmore.\n")
    (folder / "paper.pdf").write_bytes(pdf(["Neon glows in signs.", "The Volga is long."]))
    return folder


@pytest.fixture
def retriever(notes, tmp_path, sentence_bert_folder):
    """An index of the notes."""
    return dsi.index(notes, tmp_path / "run", encoder=str(sentence_bert_folder), device="cpu")


def change(notes):
    """Change one file, remove one, add one."""
    (notes / "note03.md").write_text("# Changed\n\nAnother text.\n")
    (notes / "note05.md").unlink()
    (notes / "new.txt").write_text("A new text.")


def test_an_update_encodes_the_files_that_changed_and_no_other(notes, retriever, monkeypatch, tmp_path):
    encoded = []
    forward = TextEncoder.forward
    monkeypatch.setattr(
        TextEncoder, "forward", lambda self, texts, kind: encoded.extend(texts) or forward(self, texts, kind)
    )
    change(notes)
    assert retriever.update(notes).files == (1, 1, 1, 11)
    assert sorted(encoded) == ["Changed # Changed\n\nAnother text.", "new A new text."]
    expected = {*NAMES, "new.txt", "paper.pdf#page=1", "paper.pdf#page=2"} - {"note05.md"}
    assert {*retriever.snapshot.documents.rows} == expected
    assert retriever.get("note03.md").title == "Changed"
    retriever.save(tmp_path / "run")
    again = dsi.load(tmp_path / "run", device="cpu")
    assert again.update(str(notes)).files == (0, 0, 0, 13)
    assert again.snapshot.generation == 2


def test_a_folder_below_that_of_an_index_names_its_files_as_the_index_does(tmp_path, sentence_bert_folder):
    below = tmp_path / "notes" / "below"
    below.mkdir(parents=True)
    for name in ("one.txt", "two.txt"):
        (below / name).write_text(f"Words of {name}.")
    (tmp_path / "notes" / "three.txt").write_text("Other words.")
    own = dsi.index(tmp_path / "notes", encoder=str(sentence_bert_folder), device="cpu")
    (below / "new.txt").write_text("New words.")
    (below / "two.txt").write_text("Changed words.")
    assert own.update(below).files == (1, 1, 0, 1)
    expected = {"below/one.txt", "below/two.txt", "below/new.txt", "three.txt"}
    assert {*own.snapshot.documents.rows} == expected
    assert own.update(tmp_path / "notes").files == (0, 0, 0, 4)
    with pytest.raises(ValueError, match=r"The doc_id 'below/.*' is in the index already"):
        own.add([below])
    own.add([below], replace=True)
    assert {*own.snapshot.documents.rows} == expected
    own.remove(["below/one.txt"])
    own.add([below / "one.txt"])
    assert {*own.snapshot.documents.rows} == expected - {"below/one.txt"} | {"one.txt"}


def test_an_update_counts_files_whatever_the_number_of_their_documents(notes, retriever):
    paragraph = f"{'word ' * 1000}\n\n"
    (notes / "note03.md").write_text(paragraph * 40)
    (notes / "long.txt").write_text(f"New: {paragraph * 40}")
    assert retriever.update(notes).files == (1, 1, 0, 12)
    assert len(retriever.snapshot.documents) == 15
    (notes / "long.txt").write_text("Short.")
    assert retriever.update(notes).files == (0, 1, 0, 13)


def test_what_was_never_in_the_folder_stays_and_metadata_without_a_column_is_counted(
    notes, retriever, caplog, tmp_path
):
    retriever.add([{"id": "mine", "text": "By hand."}])
    (notes / "note01.md").write_text("---\nyear: 1990\n---\nWords.\n")
    (notes / "note02.md").write_bytes(b"")
    caplog.set_level(logging.WARNING)
    assert retriever.update(notes).files == (0, 1, 0, 12)
    assert "mine" in retriever.snapshot.documents.rows
    assert retriever.get("note02.md").title == "Note 2"
    assert (
        f"{notes}: values for which the index has no column: 1 ('year: 1990'); no filter finds them." in caplog.messages
    )
    line = f"{notes}: files that are empty: 1 ('note02.md'); what the index has of them stays."
    assert line in caplog.messages
    assert retriever.update(notes / "note03.md").files == (0, 0, 0, 1)


def test_a_changed_file_of_an_empty_document_ends_nothing(notes, retriever, monkeypatch, caplog):
    encode = updating.encoded_pieces

    def with_a_token(tree, encoder, pieces):
        """Encode as models do whose tokenizer begins every text with a token of its own."""
        return encode(tree, encoder, [piece.strip() or "x" for piece in pieces])

    monkeypatch.setattr(updating, "encoded_pieces", with_a_token)
    (notes / "rows.tsv").write_text("id\ttext\nr0\t\n")
    (notes / "note05.md").unlink()
    caplog.set_level(logging.WARNING)
    assert retriever.update(notes).files == (1, 0, 1, 12)
    assert not retriever.get("r0").text.strip()
    line = f"{notes}: documents with neither title nor text: 1 ('r0'); no query finds them by words."
    assert line in caplog.messages


def test_what_others_remove_while_files_are_read_takes_no_other_document(notes, retriever, monkeypatch):
    change(notes)
    removed, call = threading.Thread(target=lambda: retriever.remove(["note00.md"])), changes.source_files

    def slow(*arguments):
        removed.start()
        removed.join(0.5)
        return call(*arguments)

    monkeypatch.setattr(changes, "source_files", slow)
    assert retriever.update(notes).files == (1, 1, 1, 11)
    removed.join()
    expected = {*NAMES, "new.txt", "paper.pdf#page=1", "paper.pdf#page=2"} - {"note05.md", "note00.md"}
    assert {*retriever.snapshot.documents.rows} == expected
    assert retriever.get("note03.md").title == "Changed"


def test_a_folder_that_moved_is_read_again(notes, retriever, tmp_path):
    notes.rename(tmp_path / "moved")
    assert retriever.update(tmp_path / "moved").files == (13, 0, 13, 0)
    (hit,) = retriever.search("changed", k=1)
    assert hit.location.file.startswith(str(tmp_path / "moved"))
    assert len(retriever.snapshot.documents) == 14


def test_a_folder_that_moved_and_changed_keeps_nothing_that_it_lacks(notes, retriever, tmp_path):
    (notes / "note05.md").unlink()
    (notes / "note07.md").write_text("Other words.")
    notes.rename(tmp_path / "moved")
    assert retriever.update(tmp_path / "moved").files == (12, 0, 13, 0)
    assert len(retriever.snapshot.documents) == 13
    assert "note05.md" not in retriever.snapshot.documents.rows
    assert retriever.get("note07.md").text == "Other words."


def test_a_line_names_folders_most_of_whose_files_are_new(notes, retriever, tmp_path, caplog):
    new, other = "folders most of whose files are new to the index", tmp_path / "other"
    other.mkdir()
    for name in ("words.txt", "more.txt"):
        (other / name).write_text(f"Other words of {name}.")
    (notes / "new.txt").write_text("A new text.")
    assert retriever.update(other, notes / "new.txt", notes).files == (3, 0, 0, 13)
    assert f"{new}: 1 ('{other}'); they are added." in caplog.text
    caplog.clear()
    notes.rename(tmp_path / "moved")
    retriever.update(tmp_path / "moved", other)
    assert new not in caplog.text
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(f"Text {number}.")
    retriever.update(tmp_path)  # the folder above
    assert f"{new}: 1 ('{tmp_path}')" in caplog.text


def test_few_files_from_a_folder_that_is_not_there_are_not_the_folder(notes, retriever, tmp_path):
    (tmp_path / "few").mkdir()
    for number in range(3):
        (notes / f"note0{number}.md").rename(tmp_path / "few" / f"note0{number}.md")
    notes.rename(tmp_path / "away")  # as a drive that is not mounted
    assert retriever.update(tmp_path / "few").files == (3, 0, 3, 0)
    assert len(retriever.snapshot.documents) == 14


def test_a_file_with_another_name_keeps_what_was_learned(notes, retriever):
    retriever.learn([("which words", "note05.md"), ("other words", "note06.md")])
    (notes / "note05.md").rename(notes / "renamed.md")
    assert retriever.update(notes).files == (1, 0, 1, 12)
    assert "note05.md" not in retriever.snapshot.documents.rows
    assert {pair.doc_id for pair in retriever.learned()} == {"renamed.md", "note06.md"}
    assert retriever.search("which words", k=1)[0].doc_id == "renamed.md"


def test_an_index_of_records_has_no_files_to_compare(tmp_path, notes, sentence_bert_folder):
    retriever = dsi.index(
        ["Neon glows.", "Bees dance."], tmp_path / "run", encoder=str(sentence_bert_folder), device="cpu"
    )
    with pytest.raises(
        ValueError, match=r"^The index was not made of files, so no folder can be compared with it; use --add or"
    ):
        retriever.update(notes)
    retriever.add([notes / "note01.md"])
    assert retriever.get("note01.md").metadata == {}


def test_the_shell_does_the_same(notes, tmp_path, sentence_bert_folder, capsys):
    run, settings = str(tmp_path / "run"), ["--encoder", str(sentence_bert_folder), "--device", "cpu"]
    assert main(["index", str(notes), run, *settings]) == 0
    assert "14 documents" in capsys.readouterr().out
    assert main(["search", run, "words of number 7", "-k", "14", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert f"\n{'':17}{notes}/note07.md:1  Note 7\n" in shown
    assert f"\n{'':17}{notes}/paper.pdf#page=2\n" in shown
    assert main(["search", run, "words", "--json", "-k", "14", "--device", "cpu"]) == 0
    hits = {hit["doc_id"]: hit for hit in json.loads(capsys.readouterr().out)["hits"]}
    place = {"address": f"{notes}/note07.md:1", "file": f"{notes}/note07.md", "lines": [1, 4], "heading": "Note 7"}
    assert hits["note07.md"]["location"] == place
    assert "metadata" not in hits["note07.md"]
    change(notes)
    assert main(["update", run, str(notes), "--device", "cpu"]) == 0
    assert capsys.readouterr().out == (
        f"{run}: files: 1 new, 1 changed, 1 gone, 11 the same, 14 documents now; generation 2\n"
    )
    assert main(["update", run, str(notes), "--device", "cpu"]) == 0
    assert "files: 0 new, 0 changed, 0 gone, 13 the same, 14 documents now; generation 2" in capsys.readouterr().out


def of_file(retriever, name):
    return sorted(doc_id for doc_id in retriever.snapshot.documents.rows if doc_id.startswith(name))


ROWS = [json.dumps({"id": f"row{number}", "text": f"Words of row {number}."}) + "\n" for number in range(4)]


def test_an_updated_table_keeps_numbers_beside_a_cell_that_is_none_and_has_each_id_once(
    tmp_path, sentence_bert_folder, caplog
):
    table = tmp_path / "goods.csv"
    lines = ["id,text,price", *(f"g{number},Words of number {number}.,{number}" for number in range(12))]
    table.write_text("\n".join(lines))
    index = dsi.index(table, tmp_path / "run", encoder=str(sentence_bert_folder), device="cpu")
    table.write_text("\n".join([*lines[:-1], "g11,Words of number 11.,n/a"]))
    index.update(table)
    assert index.snapshot.documents.column("price")[:] == [*range(11), None]
    assert "1 ('price: n/a')" in caplog.text
    table.write_text("\n".join([*lines, "g3,Another text.,3"]))
    with pytest.raises(ValueError, match="duplicate doc_id 'g3'"):
        index.update(table)
    moved = tmp_path / "goods-2.csv"
    moved.write_text("\n".join([*lines, "g12,More.,1"]))
    with pytest.raises(ValueError, match=r"'g0' is in the index already, from .*goods\.csv;"):
        index.update(moved)


def test_a_single_value_in_a_column_of_lists_is_kept(tmp_path, sentence_bert_folder):
    table = tmp_path / "goods.jsonl"
    rows = [{"id": f"g{number}", "text": f"Words of number {number}.", "tags": ["new"]} for number in range(12)]
    table.write_text("\n".join(map(json.dumps, rows)))
    index = dsi.index(table, tmp_path / "run", encoder=str(sentence_bert_folder), device="cpu")
    table.write_text("\n".join(map(json.dumps, [{**own, "tags": "old"} for own in rows])))
    index.update(table)
    assert index.snapshot.documents.column("tags")[:] == [["old"]] * 12


def test_an_index_that_was_updated_is_known_among_files(notes, retriever):
    retriever.save(notes / "run")
    again = dsi.load(notes / "run", device="cpu")
    change(notes)
    again.update(notes)
    again.save()
    assert not (notes / "run" / "docids").exists()
    assert again.update(notes).files.new == 0


@pytest.mark.parametrize(
    ("name", "whole", "half"),
    [
        ("a.txt", b"Neon glows.", b""),
        ("a.txt", b"Neon glows.", b"Neon\0\0\0\0"),
        ("LICENSE", b"Neon glows.", b"Neon\0\0\0\0"),
        (
            "a.md.gz",
            gzip.compress(b"# Neon\n\nIt glows.", mtime=0),
            gzip.compress(b"# Neon\n\nIt glows.", mtime=0)[:-9],
        ),
        ("a.pdf", pdf(["Neon glows.", "The Volga is long."]), pdf(["Neon glows.", "The Volga is long."])[:300]),
        ("a.jsonl", "".join(ROWS).encode(), "".join(ROWS)[:-70].encode()),
        ("a.jsonl", "".join(ROWS).encode(), b""),
        ("a.csv", b"id,text\nrow1,one\nrow2,two\n", b"id,text\nrow1,one\nrow2"),
    ],
)
def test_a_file_that_is_half_written_keeps_its_documents_and_what_was_learned(
    notes, tmp_path, sentence_bert_folder, caplog, name, whole, half
):
    (notes / name).write_bytes(whole)
    retriever = dsi.index(notes, tmp_path / "run", encoder=str(sentence_bert_folder), device="cpu")
    ours = [
        own
        for own in retriever.snapshot.documents.rows
        if retriever.get(own).metadata["source_file"] == str(notes / name)
    ]
    retriever.learn([("who shines", doc_id) for doc_id in ours])
    (notes / name).write_bytes(half)
    caplog.set_level(logging.WARNING)
    assert retriever.update(notes).files == (0, 0, 0, 14)
    assert {*ours} <= {*retriever.snapshot.documents.rows}
    assert len(retriever.snapshot.memory) == len(ours)
    assert any(f"1 ('{name}'); what the index has of them stays." in line for line in caplog.messages) or (
        f"files that cannot be looked at: 1 ('{notes / name}'); what the index has of them stays." in caplog.text
    )
    (notes / name).write_bytes(whole)
    assert retriever.update(notes).files == (0, 0, 0, 14)
    (notes / name).unlink()
    assert retriever.update(notes).files == (0, 0, 1, 13)
    assert not {*ours} & {*retriever.snapshot.documents.rows}


@pytest.mark.parametrize("number", [13, pytest.param(5, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("what", ["file", "folder", "entry"])
def test_what_cannot_be_read_for_a_moment_keeps_its_documents(notes, retriever, monkeypatch, caplog, what, number):
    if (what, number) == ("folder", 2):
        pytest.skip("a folder that is gone has no files")
    (notes / "note04.md").write_text("Changed.")
    error = OSError(number, os.strerror(number))

    def failing(call, bad):
        def guarded(path, *arguments, **options):
            if bad(os.fspath(path)):
                raise type(error)(number, error.strerror, os.fspath(path))
            return call(path, *arguments, **options)

        return guarded

    with monkeypatch.context() as patch:
        if what == "file":
            patch.setattr(Path, "open", failing(Path.open, lambda path: path.endswith("note04.md")))
        elif what == "folder":
            patch.setattr(os, "scandir", failing(os.scandir, lambda path: path == str(notes)))
        elif number != 2:
            patch.setattr(Path, "is_file", failing(Path.is_file, lambda path: path.endswith("note04.md")))
        else:
            (notes / "note04.md").unlink()
            (notes / "note04.md").symlink_to(notes / "later.md")
        assert retriever.update(notes).files[:3] == (0, 0, 0)
    assert retriever.get("note04.md").title == "Note 4"
    assert of_file(retriever, "paper.pdf") == ["paper.pdf#page=1", "paper.pdf#page=2"]
    assert "what the index has of them stays." in caplog.text
    (notes / "note04.md").unlink()
    (notes / "note04.md").write_text("Changed.")
    assert retriever.update(notes).files == (0, 1, 0, 12)


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize(("owner", "name"), [(Worker, "ask"), (folders, "_state")])
def test_a_file_that_is_saved_while_it_is_read_is_read_again(
    notes, retriever, monkeypatch, caplog, owner, name, restores
):
    (notes / "note04.md").write_text("# Second")
    once, call = [], getattr(owner, name)

    def saving(*arguments):
        """Save the file between its hash and its reading, or after that."""
        if "note04.md" in str(arguments[-1]):
            once.append(arguments)
            if len(once) == (1 if owner is Worker else 2):
                (notes / "note04.md").write_text("# Third, longer")
        return call(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, saving)
        retriever.update(notes)
    line = f"{notes}: files that were written while they were read: 1 ('note04.md'); the next update reads them again."
    assert line in caplog.messages
    if restores:
        (notes / "note04.md").write_text("# Second")
    assert retriever.update(notes).files == (0, 1, 0, 12)
    assert retriever.get("note04.md").title == ("Second" if restores else "Third, longer")
    assert retriever.update(notes).files == (0, 0, 0, 13)


def test_ids_stay_when_files_of_one_name_change(notes, tmp_path, sentence_bert_folder):
    other = tmp_path / "more"
    other.mkdir()
    (other / "note01.md").write_text("# Another")
    sources = [notes, other]
    retriever = dsi.index(sources, tmp_path / "run", encoder=str(sentence_bert_folder), device="cpu")
    (notes / "note01.md").unlink()
    (other / "note01.md").write_text("# Another one")
    assert retriever.update(*sources).files == (0, 1, 1, 12)
    assert retriever.get("more/note01.md").title == "Another one"
    assert "note01.md" not in retriever.snapshot.documents.rows


def test_a_file_is_removed_as_a_whole_by_its_name_or_path_and_a_page_by_its_id(
    notes, tmp_path, sentence_bert_folder, caplog, monkeypatch
):
    (notes / "sub").mkdir()
    for folder in (notes, notes / "sub"):
        (folder / "rows.jsonl").write_text("".join(ROWS).replace("row", f"{folder.name} "))
    (notes / "long.txt").write_text("".join(f"Sentence {number} of a long text.\n" for number in range(1800)))
    retriever = dsi.index(notes, tmp_path / "run", encoder=str(sentence_bert_folder), device="cpu")
    count = len(retriever.snapshot.documents)
    hits = retriever.search("sentence of a long text", k=4)
    assert sum(hit.doc_id.startswith("long.txt") for hit in hits) == 1
    assert retriever.remove(["long.txt"]) == 1
    found = retriever.search("sentence of a long text", k=count)
    assert len(found) == count - 1
    assert not [hit for hit in found if "Sentence" in hit.text]
    caplog.clear()
    assert retriever.remove(["paper.pdf#page=2"]) == 1
    assert caplog.messages == [
        "remove: documents of files of which others stay: 1 ('paper.pdf#page=2'); they come back when the file "
        "changes.",
    ]
    assert retriever.update(notes).files == (1, 0, 0, 15)  # the long text is back, the page is not
    assert of_file(retriever, "paper.pdf") == ["paper.pdf#page=1"]
    assert retriever.remove(["long.txt", "paper.pdf"]) == 2
    with pytest.raises(
        ValueError, match=r"^remove names 'rows.jsonl', which 2 files are called; give a path, as /.*jsonl\.$"
    ):
        retriever.remove(["note01.md", "rows.jsonl"])
    assert retriever.remove(["sub/rows.jsonl"]) == 4
    monkeypatch.chdir(tmp_path)
    assert retriever.remove(["notes/rows.jsonl"]) == 4
    assert retriever.update(remove=[str(notes / "note00.md")], add=[{"id": "x", "text": "new"}]) == (1, 1, 0, None)
    (notes / "note01.md").unlink()
    caplog.clear()
    assert retriever.remove(["note01.md"]) == 1
    assert not caplog.messages
    with pytest.raises(ValueError, match=r"^remove names the doc_id 'note99.md', which is not in the index"):
        retriever.remove(["note99.md"])
    with pytest.raises(ValueError, match=r"^remove must hold doc_ids, which are strings, got None"):
        retriever.remove([None])
    with pytest.raises(ValueError, match=r"^remove must be a list or set of doc_ids, got the string"):
        retriever.remove("note02.md")
    assert {*retriever.snapshot.documents.rows} == {*NAMES, "x"} - {"note00.md", "note01.md"}


def test_a_document_that_was_removed_comes_back_with_its_folder_and_a_line_says_so(
    notes, retriever, caplog, capsys, tmp_path
):
    assert retriever.remove(["note03.md", "note05.md"]) == 2
    assert caplog.messages[-1] == (
        "remove: documents whose files are still there: 2 ('note03.md', 'note05.md'); the next update of the folder brings "
        "them back, unless the files are deleted or a .gitignore names them."
    )
    (notes / "note05.md").unlink()
    assert retriever.update(notes).files == (1, 0, 0, 11)
    assert main(["update", str(tmp_path / "run"), "--remove", "paper.pdf", "--device", "cpu"]) == 0
    assert "2 documents removed, 0 added, 0 replaced, 12 documents now" in capsys.readouterr().out


def test_every_part_of_a_long_file_is_found_where_it_stands(notes, tmp_path, sentence_bert_folder):
    lines = [f"Nothing of use stands in line {number} of this manual of pumps." for number in range(2200)]
    lines[2150] = "The spare part of the noble gas valve is KX-0357."
    (notes / "manual.txt").write_text("\n".join(lines))
    retriever = dsi.index(notes, tmp_path / "run", encoder=str(sentence_bert_folder), device="cpu")
    row = retriever.snapshot.documents.rows["manual.txt"]
    assert retriever.snapshot.tree.place_counts[row] > 100
    spans = sorted(retriever.snapshot.tree.spans_at(retriever.snapshot.tree.places_of(np.array([row]))[0]))
    text = retriever.get("manual.txt").text
    assert (spans[0][0], spans[-1][1]) == (0, len(text))
    assert all(first[1] >= second[0] for first, second in itertools.pairwise(spans))
    assert [*retriever.snapshot.lexical.run({"query": "KX-0357"}, 3)["query"]] == ["manual.txt"]
    (hit,) = retriever.search("KX-0357", k=1, lexical_weight=100)
    assert hit.doc_id == "manual.txt"


def test_a_copy_of_a_folder_that_stays_is_added_beside_it_and_said(tmp_path, sentence_bert_folder, caplog):
    (tmp_path / "notes").mkdir()
    for name in ("a", "b"):
        (tmp_path / "notes" / f"{name}.md").write_text(f"Of {name}, a gas.")
    retriever = dsi.index(tmp_path / "notes", encoder=str(sentence_bert_folder), device="cpu")
    shutil.copytree(tmp_path / "notes", tmp_path / "copy")
    assert retriever.update(tmp_path / "copy").files == (2, 0, 0, 0)
    assert "files whose content the index has from another path: 2" in caplog.text
    shutil.rmtree(tmp_path / "copy")
    shutil.move(tmp_path / "notes", tmp_path / "moved")
    caplog.clear()
    retriever.update(tmp_path / "moved")
    assert "from another path" not in caplog.text
    assert len(retriever) == 2
