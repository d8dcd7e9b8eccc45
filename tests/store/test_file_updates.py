"""An index of a folder of files: the same by command and from Python, hits name their places, and an update touches changes."""

import json
import logging

import pytest

import dsi
from dsi.commands.main import main
from dsi.contrastive.encoder import Encoder
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
    forward = Encoder.forward
    monkeypatch.setattr(
        Encoder, "forward", lambda self, texts, kind: encoded.extend(texts) or forward(self, texts, kind)
    )
    change(notes)
    assert retriever.update_from(notes) == (1, 1, 1, 11)
    assert sorted(encoded) == ["Changed # Changed\n\nAnother text.", "new A new text."]
    expected = {*NAMES, "new.txt", "paper.pdf#page=1", "paper.pdf#page=2"} - {"note05.md"}
    assert {*retriever.documents.rows} == expected
    assert retriever.get("note03.md").title == "Changed"
    retriever.save_update(tmp_path / "run")
    again = dsi.GenerativeRetriever.from_pretrained(tmp_path / "run", device="cpu")
    assert again.update_from(str(notes)) == (0, 0, 0, 13)
    assert again.generation == 2


def test_an_update_counts_files_whatever_the_number_of_their_documents(notes, retriever):
    paragraph = f"{'word ' * 1000}\n\n"
    (notes / "note03.md").write_text(paragraph * 40)
    (notes / "long.txt").write_text(f"New: {paragraph * 40}")
    assert retriever.update_from(notes) == (1, 1, 0, 12)
    assert sum(doc_id.startswith(("note03.md", "long.txt")) for doc_id in retriever.documents.rows) >= 8
    (notes / "long.txt").write_text("Short.")
    assert retriever.update_from(notes) == (0, 1, 0, 13)


def test_what_was_never_in_the_folder_stays_and_metadata_without_a_column_is_counted(
    notes, retriever, caplog, tmp_path
):
    retriever.add([{"id": "mine", "text": "By hand."}])
    (notes / "note01.md").write_text("---\nyear: 1990\n---\nWords.\n")
    (notes / "note02.md").write_bytes(b"")
    caplog.set_level(logging.WARNING)
    assert retriever.update_from(notes) == (0, 2, 0, 11)
    assert "mine" in retriever.documents.rows
    assert "note02.md" not in retriever.documents.rows
    assert (
        f"{notes}: metadata that no column of the index can hold: 1, the first 'year'; they are left out."
        in caplog.messages
    )
    assert f"{notes}: files that are empty: 1, the first 'note02.md'; they are left out." in caplog.messages
    assert retriever.update_from(notes / "note03.md") == (0, 0, 0, 1)


def test_a_folder_that_moved_is_read_again(notes, retriever, tmp_path):
    notes.rename(tmp_path / "moved")
    assert retriever.update_from(tmp_path / "moved") == (13, 0, 13, 0)
    (hit,) = retriever.search("changed", k=1)
    assert hit.location.file.startswith(str(tmp_path / "moved"))
    assert len(retriever.documents) == 14


def test_an_index_of_records_has_no_files_to_compare(tmp_path, notes, sentence_bert_folder):
    retriever = dsi.index(
        ["Neon glows.", "Bees dance."], tmp_path / "run", encoder=str(sentence_bert_folder), device="cpu"
    )
    with pytest.raises(
        ValueError, match=r"^The index was not made of files, so no folder can be compared with it; use --add or"
    ):
        retriever.update_from(notes)
    retriever.add([notes / "note01.md"])
    assert retriever.get("note01.md").metadata == {}


def test_the_shell_does_the_same(notes, tmp_path, sentence_bert_folder, capsys):
    run, settings = str(tmp_path / "run"), ["--encoder", str(sentence_bert_folder), "--device", "cpu"]
    assert main(["index", str(notes), run, *settings]) == 0
    assert "14 documents" in capsys.readouterr().out
    assert main(["search", run, "--query", "words of number 7", "-k", "14", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert f"\n{'':17}{notes}/note07.md:1  Note 7\n" in shown
    assert f"\n{'':17}{notes}/paper.pdf#page=2\n" in shown
    assert main(["search", run, "--query", "words", "--json", "-k", "14", "--device", "cpu"]) == 0
    hits = {hit["doc_id"]: hit for hit in json.loads(capsys.readouterr().out)["hits"]}
    place = {"address": f"{notes}/note07.md:1", "file": f"{notes}/note07.md", "lines": [1, 4], "heading": "Note 7"}
    assert hits["note07.md"]["location"] == place
    assert "metadata" not in hits["note07.md"]
    models = pytest.importorskip("dsi.server.models")
    assert models.HitAnswer(**hits["note07.md"]).location.model_dump(exclude_defaults=True) == place
    change(notes)
    assert main(["update", run, str(notes), "--device", "cpu"]) == 0
    assert capsys.readouterr().out == (
        f"{run}: files: 1 new, 1 changed, 1 gone, 11 the same, 14 documents now; generation 2\n"
    )
    assert main(["update", run, str(notes), "--device", "cpu"]) == 0
    assert "files: 0 new, 0 changed, 0 gone, 13 the same, 14 documents now; generation 2" in capsys.readouterr().out
