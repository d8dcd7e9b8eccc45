"""Crash trials: processes that update and search one index, killed again and again, beside a model of it in memory.

Two writers, each with documents of its own, log what they will do and what is saved; a reader loads and searches. After each
kill everything is compared with the model: documents, texts, scores by brute force, words in the vocabulary, folders.
"""

import json
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np

import dsi
from dsi import Retriever
from dsi.docids.words.analyzer import ENGLISH, Analyzer
from dsi.store.folder.writing import index_lock
from tests.support.kills import fork, status_of
from tests.support.oracles import bm25_shares

QUERIES = ["noble gas", "electric current", "tidal gauge", "copper lantern"]
WORDS = (
    "tidal", "gauge", "copper", "lantern", "noble", "gas", "current", "meadow", "harbour", "quartz", "violet", "orbit",
)  # fmt: skip
WRITERS = ("left", "right")
MOST = 8
"""Documents of a writer."""

Documents = dict[str, tuple[str, str]]
"""{doc_id: title and text}."""


def load(run: Path) -> Retriever:
    return dsi.load(run, device="cpu")


def write_on_and_on(run: Path, name: str, log: Path, chance: Random) -> None:
    """Change the documents of a writer without a pause."""
    with log.open("a") as file:
        while True:
            with index_lock(run):
                index = load(run)
                own = [doc_id for doc_id in index.snapshot.documents.rows if doc_id.startswith(name)]
                change = _change(name, own, chance)
                print(json.dumps(change), file=file, flush=True)
                index.remove(change["remove"])
                index.add(change["add"], replace=True)
                index.save(run)
                print("saved", file=file, flush=True)


def _change(name: str, own: list[str], chance: Random) -> dict[str, list]:
    removed = chance.sample(own, chance.randint(min(1, len(own)), min(2, len(own)))) if chance.random() < 0.5 else []
    kept = [doc_id for doc_id in own if doc_id not in removed]
    replaced = chance.sample(kept, min(1, len(kept))) if chance.random() < 0.3 else []
    room = MOST - len(kept)
    new = [f"{name}-{chance.randrange(10**9)}" for _ in range(chance.randint(1, room) if room else 0)]
    return {"remove": removed, "add": [_document(doc_id, chance) for doc_id in [*replaced, *new]]}


def _document(doc_id: str, chance: Random) -> dict[str, str]:
    words = [*chance.choices(WORDS, k=5), f"word{chance.randrange(10**9)}"]
    return {"doc_id": doc_id, "title": " ".join(words[-2:]), "text": " ".join(words)}


def read_on_and_on(run: Path, log: Path) -> None:
    """Load and search without a pause; an answer is that of one generation."""
    with log.open("a") as file:
        while True:
            index = load(run)
            for hits in index.search(QUERIES, k=10, lexical_weight=0.5):
                assert len({hit.doc_id for hit in hits}) == 10
                assert all(index.get(hit.doc_id).text == hit.text for hit in hits)
            print("searched", file=file, flush=True)


class Trials:
    """The trials of one index.

    Args:
        run: an index that keeps texts, without a generator; `documents` are all that it has.
        documents: which nobody changes.
        chance: of the trials.
    """

    def __init__(self, run: Path, documents: Documents, chance: Random) -> None:
        self.run, self.fixed, self.chance = run, documents, chance
        self.saved: dict[str, Documents] = {name: {} for name in WRITERS}
        self.counts: Counter[str] = Counter(dict.fromkeys(("kills", "updates", "searches", "comparisons"), 0))
        self._children: dict[str, int] = {}
        self._read: Counter[str] = Counter()
        self._vectors: dict[tuple[str, str], np.ndarray] = {}

    def go_on(self, seconds: float) -> Counter[str]:
        """Kill and compare for some time, on a busy machine until each happened once, and return what was counted."""
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end or (0 in self.counts.values() and time.monotonic() < end + 60):
                for name in ("reader", *WRITERS):
                    if name not in self._children:
                        self._start(name)
                time.sleep(self.chance.uniform(0.0, 1.5))
                chosen = self.chance.choice(("reader", *WRITERS, "all"))
                killed = list(self._children) if chosen == "all" else [chosen]
                for name in killed:
                    self._kill(name)
                self._compare(killed)
        finally:
            for name in list(self._children):
                self._kill(name)
        return self.counts

    def _start(self, name: str) -> None:
        log, chance = self._log(name), Random(self.chance.random())
        work = (lambda: read_on_and_on(self.run, log)) if name == "reader" else None
        work = work or (lambda: write_on_and_on(self.run, name, log, chance))
        self._children[name] = fork(lambda: _tell(log, work))

    def _log(self, name: str) -> Path:
        return self.run.with_name(f"{name}.log")

    def _kill(self, name: str) -> None:
        child = self._children.pop(name)
        os.kill(child, signal.SIGKILL)
        status = status_of(child)
        self.counts["kills"] += 1
        if status != -signal.SIGKILL:
            raise AssertionError(f"the {name} ended by itself with {status}:\n{self._log(name).read_text()[-3000:]}")

    def _compare(self, killed: list[str]) -> None:
        """Compare everything with the model; what a killed writer had begun to save is there as a whole or not at all."""
        with index_lock(self.run):  # a living writer has logged what it saved
            self.counts["searches"] += len(self._new_lines("reader"))
            index = load(self.run)
            texts = {hit.doc_id: (hit.title, hit.text) for hit in index.search("gas", k=10**6, method="exact")}
            for name in WRITERS:
                self._follow(name, {key: value for key, value in texts.items() if key.startswith(name)}, name in killed)
            expected = self.fixed | self.saved["left"] | self.saved["right"]
            assert texts == expected
            self._compare_scores(index, expected)
            self._compare_files(expected)
        self.counts["comparisons"] += 1

    def _follow(self, name: str, found: Documents, killed: bool) -> None:
        """Apply what a writer logged to its documents."""
        *whole, last = ["", *self._new_lines(name)]
        begun = None
        for line in [*whole, last]:
            if line == "saved" and begun is not None:
                self.saved[name], begun = _changed(self.saved[name], begun), None
                self.counts["updates"] += 1
            elif line:
                begun = json.loads(line)
        if begun is not None:
            assert killed, f"the {name} writer lives and did not log what it did"
            if found == _changed(self.saved[name], begun):
                self.saved[name] = found
                self.counts["saved just before the kill"] += 1
            else:
                self.counts["not saved when killed"] += 1

    def _new_lines(self, name: str) -> list[str]:
        lines = self._log(name).read_text().split("\n") if self._log(name).exists() else [""]
        new = lines[self._read[name] : -1]  # the last one is empty, or was cut off by a kill
        self._read[name] += len(new)
        return new

    def _compare_scores(self, index: Retriever, expected: Documents) -> None:
        ids = list(expected)
        new = [key for key in expected.values() if key not in self._vectors]
        if new:
            own = index.snapshot.encoder.encode(
                index.snapshot.encoder.document_texts(*map(list, zip(*new, strict=True))), "document"
            )
            self._vectors |= dict(zip(new, own, strict=True))
        vectors = np.stack([self._vectors[expected[doc_id]] for doc_id in ids])
        queries = index.snapshot.encoder.encode(index.snapshot.encoder.query_texts(QUERIES), "query")
        terms = [_terms(expected[doc_id]) for doc_id in ids]
        found = index.search(QUERIES, k=len(ids), method="exact", lexical_weight=0.5)
        for query, vector, hits in zip(QUERIES, queries, found, strict=True):
            lexical = bm25_shares(terms, _terms([query]), index.snapshot.lexical.k1, index.snapshot.lexical.b)
            scores = dict(zip(ids, vectors @ vector + 0.5 * np.array(lexical), strict=True))
            assert hits.exact
            np.testing.assert_allclose([hit.score for hit in hits], [scores[hit.doc_id] for hit in hits], atol=1e-4)

    def _compare_files(self, expected: Documents) -> None:
        manifest = json.loads((self.run / "manifest.json").read_text())
        vocabulary = json.loads((self.run / manifest["parts"]["lexical"] / "vocab.index.json").read_text())
        assert vocabulary.keys() == {term for text in expected.values() for term in _terms(text)}
        assert len([path for path in self.run.iterdir() if not path.name.startswith(".")]) <= 8


def _terms(text: Sequence[str]) -> list[str]:
    """Return the terms of a title and a text, or of a query."""
    return Analyzer(ENGLISH).terms(" ".join(text))


def _changed(documents: Documents, change: dict[str, list]) -> Documents:
    kept = {doc_id: own for doc_id, own in documents.items() if doc_id not in change["remove"]}
    return kept | {own["doc_id"]: (own["title"], own["text"]) for own in change["add"]}


def _tell(log: Path, work: Callable[[], object]) -> None:
    """Work; what goes wrong is added to a log."""
    try:
        work()
    except BaseException:
        with log.open("a") as file:
            traceback.print_exc(file=file)
        raise
