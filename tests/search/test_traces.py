"""What is removed leaves no trace: no file after the next save, and no memory after many updates, holds any of it."""

import gc
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dsi import Retriever
from dsi.commands.main import main
from dsi.store.retriever import load
from tests.support.files import needs_readers
from tests.support.memory import resident_megabytes
from tests.support.small_index import DOCUMENTS, QUERIES, small_index
from tests.support.tiny_settings import VECTORS, write_settings

GONE = {
    "_id": "zylophant-7", "title": "Qwixoda", "text": "The qwixoda is a vrombelic instrument of the zylophants of Ymbria.",
    "metadata": {"author": "Jorquil Vandermeule"},
}  # fmt: skip
WORDS = ("zylophant", "qwixoda", "vrombelic", "ymbria", "jorquil", "vandermeule")


def files_with(folder: Path, parts: list[bytes]) -> list[str]:
    """The files that hold one of some bytes, or whose name does; texts in any case."""
    found = []
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        if any(part in content or part in content.lower() or part in str(path).lower().encode() for part in parts):
            found.append(path.relative_to(folder).as_posix())
    return found


def vectors_of(retriever: Retriever, doc_id: str) -> list[bytes]:
    """The embeddings and token codes of a document, as files hold them."""
    places, _ = retriever.snapshot.tree.places_of(np.array(retriever.snapshot.documents.rows_of([doc_id], "doc_id")))
    assert retriever.snapshot.tree.tokens is not None
    codes = retriever.snapshot.tree.tokens.gather(places).codes
    return [retriever.snapshot.tree.embeddings.numbers(places)[0].tobytes(), codes[:8].tobytes()]


@needs_readers
@pytest.mark.parametrize("later", [pytest.param(False, marks=pytest.mark.slow), True])
def test_no_file_holds_anything_of_a_removed_document_after_the_next_save(
    later, beir, tmp_path, sentence_t5_folder, t5_folder
):
    """It was trained with, or came later; it was alone in its cluster, so the centroid was its embedding."""
    lines = [json.loads(line) for line in (beir() / "corpus.jsonl").read_text().splitlines()]
    lines = [{**line, "metadata": {"author": "nobody"}} for line in lines]
    corpus = "\n".join(map(json.dumps, lines if later else [*lines, GONE]))
    (tmp_path / "collection" / "corpus.jsonl").write_text(corpus)
    config = write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder,
        docids={"branching": 4, "max_leaf_size": 1, "pieces": 2}, contrastive={"loss": "none"},
        **VECTORS,
    )  # fmt: skip
    run, data = tmp_path / "run", str(tmp_path / "collection")
    assert main(["train", "--config", str(config), data, str(run), "--device", "cpu"]) == 0
    assert main(["update", str(run), "--device", "cpu", "--texts", data]) == 0
    if later:
        (tmp_path / "new.jsonl").write_text(json.dumps(GONE))
        assert main(["update", str(run), "--device", "cpu", "--add", str(tmp_path / "new.jsonl")]) == 0
    parts = [word.encode() for word in WORDS]
    vectors = vectors_of(load(run, device="cpu"), GONE["_id"])
    holders = {name.split("/")[0] for name in files_with(run, parts + vectors)}
    assert holders >= ({"docids-3", "lexical-3"} if later else {"docids-2", "lexical", "states"})
    assert all(files_with(run, [vector]) for vector in vectors)
    assert main(["update", str(run), "--device", "cpu", "--remove", GONE["_id"]]) == 0
    assert files_with(run, parts + vectors) == []
    loaded = load(run, device="cpu")
    assert loaded.snapshot.lexical is not None
    assert len(loaded.snapshot.lexical.query_terms(["qwixoda " + lines[0]["title"]])[0].numbers) > 0
    loaded.save(tmp_path / "copy")
    assert files_with(tmp_path / "copy", parts + vectors) == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
def test_memory_does_not_grow_with_searches_and_updates(encoder, tmp_path, capsys):
    """20,000 searches in every way, and 500 cycles of adding, removing and saving."""
    retriever = small_index(encoder, vectors=True)
    retriever.save(tmp_path / "run")
    words = [word for document in DOCUMENTS for word in document["text"].split()]

    def search(numbers: range) -> float:
        for number in numbers:
            query = " ".join(words[(number * 7 + n * 31) % len(words)] for n in range(4)) + " x"
            method = ("generate", "exact")[number % 2]
            retriever.search(query, k=1 + number % 20, method=method, deny=[DOCUMENTS[number % 40]["doc_id"]])
        return resident_megabytes()

    def update(numbers: range) -> float:
        for number in numbers:
            text = " ".join(f"word{number}x{n}" for n in range(20))
            retriever.add([{"doc_id": f"new-{number}", "title": text, "text": text}])
            retriever.remove([f"new-{number}"])
            if number % 5 == 0:
                retriever.save(tmp_path / "run")
        return resident_megabytes()

    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), len(retriever.snapshot.lexical._vocabulary)

    search(range(1000))
    update(range(50))
    before = held()
    searched = [search(range(start, start + 4000)) for start in range(1000, 21_000, 4000)]
    updated = [update(range(start, start + 100)) for start in range(50, 550, 100)]
    after = held()
    with capsys.disabled():
        megabytes = " ".join(f"{own:.0f}" for own in (*searched, *updated))
        sys.stdout.write(f"\nmegabytes: {megabytes}; open files and words: {before} to {after}\n")
    assert searched[-1] <= searched[0] + 10, searched
    assert updated[-1] <= updated[0] + 10, updated
    assert after[0] <= before[0] + 1
    assert after[1] <= 1.1 * before[1]


@pytest.mark.parametrize("cycles", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_words_and_files_do_not_grow_with_updates_and_scores_stay(cycles, encoder, tmp_path):
    """Documents come and go; what is held, in memory and on disk, is what a few of them take."""
    retriever = small_index(encoder, vectors=True)
    texts = pa.array([d["text"] for d in DOCUMENTS[:50]])
    retriever.update(texts=retriever.snapshot.documents.table.append_column("text", texts))
    retriever.save(tmp_path / "run")
    before, sizes = retriever.search(QUERIES, k=10, method="exact"), []
    for number in range(cycles):
        text = " ".join(f"word{number}x{n}" for n in range(20))
        retriever.add([{"doc_id": f"new-{number}", "title": text, "text": text}])
        if number % 2:
            retriever.remove([f"new-{number - 1}"])
            retriever.remove([f"new-{number}"])
        if number % (cycles // 5) == cycles // 5 - 1:
            retriever.save(tmp_path / "run")
            gc.collect()
            files = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
            chunks = retriever.snapshot.documents.table["doc_id"].num_chunks
            sizes.append(
                (files, len(retriever.snapshot.lexical._vocabulary), chunks, retriever.snapshot.tree.num_places)
            )
    after = retriever.search(QUERIES, k=10, method="exact")
    assert [[hit.doc_id for hit in hits] for hits in after] == [[hit.doc_id for hit in hits] for hits in before]
    (files, words, chunks, places), last = sizes[0], sizes[-1]
    assert last[0] <= files * 1.01
    assert last[1] <= 2 * words
    assert last[2] <= chunks + 2
    assert last[3] <= 1.25 * places
