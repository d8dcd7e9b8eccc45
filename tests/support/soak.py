"""`python -m tests.support.soak`: shards on Ray are killed, stalled and updated; every answer is compared with one process.

Prints a table: how many answers were wrong, partial, or silently partial; dips in coverage without a cause; how long shards
took to come back; times with and without stalls; the share of the true ten in partial answers. Exit status 1 if a promise is
broken.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast

import dsi
from dsi.cluster.cluster import Cluster, serve_shards
from dsi.cluster.fleet import Replica
from dsi.cluster.router import ShardedRetriever
from dsi.config import Config
from dsi.search.queries import EncodedQueries
from dsi.search.results import SearchResult, ShardError
from tests.support.ray_cluster import ray_cluster

_GRACE = 3.0
"""Seconds for which a stall or a kill explains a dip after it ended: what waited must be done first."""


@dataclass
class Count:
    """What happened."""

    complete: int = 0
    partial: int = 0
    failed: int = 0
    wrong: list[str] = field(default_factory=list)
    silent: int = 0
    unexplained: list[str] = field(default_factory=list)
    kills: int = 0
    stalls: int = 0
    updates: int = 0
    calm: list[float] = field(default_factory=list)
    stalled: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)


def make_index(folder: Path) -> None:
    """Index Minipedia by a tiny encoder with random weights, with BM25 and token vectors."""
    collection = dsi.read_collection("minipedia")
    texts = " ".join(collection.documents["text"][:])
    words = sorted(set(texts.lower().split()))[:3000]
    (folder / "base").mkdir()
    (folder / "base" / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    BertModel(BertConfig(vocab_size=len(words) + 5, **shape)).save_pretrained(str(folder / "base"))
    BertTokenizerFast(str(folder / "base" / "vocab.txt")).save_pretrained(str(folder / "base"))
    modules = [Transformer(str(folder / "base")), Pooling(32, pooling_mode="mean"), Normalize()]
    SentenceTransformer(modules=modules).save_pretrained(str(folder / "encoder"), create_model_card=False)
    changes = {
        "encoder": {"name": str(folder / "encoder"), "document_length": 64},
        "docids": {"branching": 16, "max_leaf_size": 8},
        "search": {"lexical_weight": 0.1, "token_weight": 0.5, "beam_width": 6, "candidates": 30},
        "dev_queries": 0,
    }
    dsi.train(collection, folder / "run", config=Config().without_training().with_changes(changes), device="cpu")


class Soak:
    """Searches a served index while it is disturbed.

    Args:
        folder: of the index.
        retriever: served from there.
        seed: of all that is random.
    """

    def __init__(self, folder: Path, retriever: ShardedRetriever, seed: int) -> None:
        self.folder, self.retriever, self.chance, self.count = folder, retriever, random.Random(seed), Count()
        texts = list(dsi.read_collection("minipedia").query_texts("test").values())[:200]
        self.queries = [retriever.encode_queries([text]) for text in texts]
        self.expected: dict[str, list[SearchResult]] = {}
        self._disturbed: dict[Replica, float] = {}
        self._stalled, self._killed = 0, 0.0
        self._recovering: dict[Replica, tuple[float, str]] = {}
        for replica in retriever.fleet.all:
            self._note_loads(replica)
        self.learn()

    def _note_loads(self, replica: Replica) -> None:
        """Note when a replica loads a state of the index: it answers nothing meanwhile."""
        call = replica.worker.call

        def noting(method: str, *args: Any) -> Any:
            if method == "load":
                self._disturbed[replica] = time.monotonic() + _GRACE
            return call(method, *args)

        replica.worker.call = noting  # type: ignore[method-assign]

    def learn(self) -> str:
        """Compute the answers of one process in the state that is on disk."""
        one = dsi.load(self.folder, device="cpu")
        state = one._saved[self.folder.resolve()][0]
        self.expected[state] = [one.snapshot.search(query) for query in self.queries]
        return state

    # Disturbing.

    def _choose(self) -> Replica:
        """Return a replica that lives."""
        return self.chance.choice([replica for replica in self.retriever.fleet.all if replica.states])

    def _signal(self, replica: Replica, number: int) -> bool:
        """Send a signal to the process of a replica that lives."""
        if not replica.states:
            return False
        with suppress(ProcessLookupError):
            os.kill(int(replica.born.split(":")[1]), number)
            return True
        return False

    def kill(self) -> None:
        """Kill a replica."""
        replica = self._choose()
        born, now = replica.born, time.monotonic()
        self._disturbed[replica] = now + _GRACE
        if self._signal(replica, signal.SIGKILL):
            self.count.kills += 1
            self._killed = self._killed or now
            self._recovering[replica] = now, born

    def stall(self) -> None:
        """Stop a replica for a while."""
        replica, seconds = self._choose(), self.chance.uniform(0.2, 1.0)
        self._disturbed[replica] = time.monotonic() + seconds + _GRACE
        if not self._signal(replica, signal.SIGSTOP):
            return
        self.count.stalls += 1
        self._stalled += 1

        def go_on() -> None:
            self._signal(replica, signal.SIGCONT)
            self._stalled -= 1

        threading.Timer(seconds, go_on).start()

    def update(self) -> None:
        """Add a document and remove another, and learn the answers before they are served."""
        new = {"doc_id": f"new-{self.count.updates}", "title": "New", "text": "a noble gas on the danube"}
        old = self.retriever.snapshot.documents.column("doc_id")[self.count.updates]
        fleet = self.retriever.fleet
        refresh = fleet.load

        def load(state: str) -> None:
            assert self.learn() == state
            refresh(state)

        fleet.load = load  # type: ignore[method-assign]
        try:
            if self.count.updates % 2:
                self.retriever.remove([old])
            else:
                self.retriever.add([new])
        finally:
            fleet.load = refresh  # type: ignore[method-assign]
        self.count.updates += 1

    def watch(self) -> None:
        """Note which replicas are back."""
        for replica, (since, born) in list(self._recovering.items()):
            if replica.states and replica.born != born:
                self.count.back.append(time.monotonic() - since)
                self._disturbed[replica] = time.monotonic() + _GRACE
                del self._recovering[replica]

    # Searching.

    def search(self) -> None:
        """Search once, and judge the answer."""
        number, stalled = self.chance.randrange(len(self.queries)), self._stalled
        query: EncodedQueries = self.queries[number]
        states, started = [self.retriever.snapshot.engine.state], time.monotonic()  # type: ignore[attr-defined]
        try:
            found = self.retriever.snapshot.search(query)
        except ShardError:
            self.count.failed += 1
            return
        seconds = time.monotonic() - started
        states.append(self.retriever.snapshot.engine.state)  # type: ignore[attr-defined]
        (self.count.stalled if stalled or self._stalled else self.count.calm).append(seconds)
        answers = [self.expected[state][number] for state in states]
        if found.coverage[0] == 1:
            self.count.complete += 1
            if self._killed:
                self.count.again.append(time.monotonic() - self._killed)
                self._killed = 0.0
            if not any(_equal(found, answer) for answer in answers):
                self.count.wrong.append(f"query {number}: {found.positions[0]} for {answers[0].positions[0]}")
            return
        self.count.partial += 1
        self.count.silent += bool(found.exact[0]) or not found.missing[0]
        ten = max(len(np.intersect1d(found.positions[0], answer.positions[0])) for answer in answers)
        self.count.kept.append(ten / answers[0].counts[0])
        for shard in found.missing[0]:
            own = self.retriever.fleet.replicas[shard]
            if not all(
                replica in self._recovering or replica.is_loading or self._disturbed.get(replica, 0) > started
                for replica in own
            ):
                self.count.unexplained.append(f"shard {shard} after {seconds:.2f} s")

    def run(self, searches: int, kills: int, stalls: int, updates: int) -> None:
        """Search, and disturb at random moments."""
        events = [self.kill] * kills + [self.stall] * stalls
        moments = sorted((self.chance.randrange(searches), number) for number in range(len(events)))
        self.chance.shuffle(events)
        updating = ThreadPoolExecutor(1)
        changes = []
        for search in range(searches):
            while moments and moments[0][0] == search:
                events[moments.pop(0)[1]]()
            if updates and search and search % (searches // (updates + 1)) == 0 and len(changes) < updates:
                changes.append(updating.submit(self.update))
            self.watch()
            self.search()
            if search % 500 == 499:
                wrong, partial = len(self.count.wrong), self.count.partial
                sys.stderr.write(f"{search + 1} searches: {wrong} wrong, {partial} partial\n")
        for change in changes:
            change.result()
        updating.shutdown()

    def lost_share(self) -> float:
        """Return the share of the true ten that is answered while one shard is dead, the mean over queries and shards."""
        state, shares = self.retriever.snapshot.engine.state, []  # type: ignore[attr-defined]
        edges = self.retriever.snapshot.engine.edges  # type: ignore[attr-defined]
        for answer in self.expected[state]:
            own = answer.positions[0][answer.positions[0] >= 0]
            there = np.searchsorted(edges, own, side="right") - 1
            shares += [float((there != shard).mean()) for shard in range(len(edges) - 1)]
        return float(np.mean(shares))


def _equal(found: SearchResult, expected: SearchResult) -> bool:
    """True if documents, scores and certificates are the same, up to the order of scores that are equal but for rounding."""
    if found.exact[0] != expected.exact[0] or not np.allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-5):
        return False
    scores = expected.scores[0]
    ties = np.isclose(scores[:, None], scores[None], rtol=1e-5, atol=1e-5).sum(axis=1) > 1
    last = np.isclose(scores, scores[-1], rtol=1e-5, atol=1e-5)
    return bool(((found.positions[0] == expected.positions[0]) | ties | last).all())


def _times(seconds: list[float]) -> str:
    if not seconds:
        return "—"
    p50, p99 = np.quantile(seconds, [0.5, 0.99])
    return f"{1000 * p50:.0f} / {1000 * p99:.0f} / {1000 * max(seconds):.0f} ms"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak and print its table."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.soak", description=__doc__)
    defaults = {"shards": 8, "replicas": 2, "searches": 10_000, "kills": 200, "stalls": 200, "updates": 20, "seed": 0}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--timeout", type=float, default=1.0)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as made, ray_cluster(nodes=1) as address, Cluster(address) as cluster:
        folder = Path(made)
        make_index(folder)
        options = {"shards": given.shards, "replicas": given.replicas, "timeout": given.timeout, "device": "cpu"}
        with serve_shards(folder / "run", cluster=cluster, **options) as retriever:
            soak, started = Soak(folder / "run", retriever, given.seed), time.monotonic()
            soak.run(given.searches, given.kills, given.stalls, given.updates)
            count, share = soak.count, soak.lost_share()
            hedges = sum(own.hedges for own in retriever.fleet.statistics)
            rows = {
                "shards x replicas, seconds": f"{given.shards} x {given.replicas}, {time.monotonic() - started:.0f}",
                "searches: complete, partial, failed": f"{count.complete}, {count.partial}, {count.failed}",
                "wrong": len(count.wrong),
                "silently partial": count.silent,
                "dips in coverage without a cause": len(count.unexplained),
                "kills, stalls, updates": f"{count.kills}, {count.stalls}, {count.updates}",
                "hedged questions": hedges,
                "from a kill to a complete answer, p50 / p99 / most": _times(count.again),
                "a killed replica is back after, p50 / p99 / most": _times(count.back),
                "a search without a stall, p50 / p99 / most": _times(count.calm),
                "a search during a stall, p50 / p99 / most": _times(count.stalled),
                "share of the true ten in partial answers": f"{np.mean(count.kept):.3f}" if count.kept else "—",
                f"the same while one of {given.shards} shards is dead": f"{share:.3f}",
            }
    lines = ["| what | measured |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())]
    sys.stdout.write("\n".join([*lines, *count.wrong[:10], *count.unexplained[:10]]) + "\n")
    return int(bool(count.wrong or count.silent or count.unexplained))


if __name__ == "__main__":
    sys.exit(main())
