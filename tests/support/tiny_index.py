"""A tiny index for random trials: every document's score by definition, searches, updates and calls with wrong arguments."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from copy import copy
from pathlib import Path
from random import Random
from typing import Any

import datasets
import numpy as np

import dsi
from dsi import Retriever, SearchConfig
from dsi.config import write_config
from dsi.contrastive.encoder import Encoder
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.data.collection import read_collection
from dsi.docids.words.bm25 import BM25
from dsi.search import vector_search
from dsi.search.hits import Hits
from dsi.store.retriever import load
from tests.support.grammars import condition, words
from tests.support.oracles import path_scores
from tests.support.parts import from_parts
from tests.support.small import MINIPEDIA, random_generator
from tests.support.trials import Case

QUERIES = ["noble gas", "electric current", "which metal is light"]
NAN, INF = float("nan"), float("inf")
RECORDS = [
    {
        **json.loads(line),
        "metadata": {
            "lang": ["en", "de", "EN", "o'k", "", "é", None][n % 7],
            "year": None if n % 6 == 0 else n * 37 % 11 - 5,
            "score": None if n % 5 == 0 else n % 9 / 2,
            "flag": None if n % 4 == 0 else n % 3 == 0,
        },
    }
    for n, line in enumerate((MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:40])
]


class TinyIndex:
    """An index without a generator, with BM25 and metadata, in a folder beside its collection.

    Attributes:
        retriever: loaded; not to be changed.
        paths: the same documents with a decoder over paths of (level, digit) tokens.
        index: folder of `retriever`.
        collection: its collection's folder.
        collection_read: the same, read.
        ids: doc_ids in collection order.
        parts: {"dense", "words": [queries, documents] in collection order}, computed one document at a time.
    """

    def __init__(self, encoder: Encoder, folder: Path) -> None:
        self.ids = [record["_id"] for record in RECORDS]
        columns = {name: [record["metadata"][name] for record in RECORDS] for name in RECORDS[0]["metadata"]}
        titles, texts = ([record[name] for record in RECORDS] for name in ("title", "text"))
        documents = datasets.Dataset.from_dict({"doc_id": self.ids, "title": titles, **columns})
        vectors = encoder.encode(encoder.document_texts(titles, texts), "document")
        tree = build_tree(vectors, DocidsConfig(branching=4, max_leaf_size=3))
        bm25 = BM25(self.ids, [f"{title} {text}" for title, text in zip(titles, texts, strict=True)])
        config = SearchConfig(alpha=0.3, beam_width=2, candidates=5, lexical_weight=0.05)
        self.index, self.collection = folder / "index", folder / "collection"
        built = from_parts(encoder, tree, None, documents, config, bm25)
        built.save(self.index)
        write_config(dsi.Config(), self.index / "config.toml")
        self.retriever = load(self.index, device="cpu")
        decoder, by_paths = random_generator(tree, layers=1), SearchConfig(alpha=0.3, beam_width=8)
        self.paths = from_parts(encoder, tree, decoder, documents, by_paths, bm25)
        self.parts = self._parts(vectors)
        _write_collection(self.collection)
        self.collection_read = read_collection(self.collection)

    def _parts(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        own = self.paths
        queries = [
            own.snapshot.encoder.forward(own.snapshot.encoder.query_texts([query]), "query") for query in QUERIES
        ]
        assert own.snapshot.lexical is not None
        dense = np.stack([vectors @ embedding[0] for _, _, embedding, _ in queries])
        self._queries = [encoded[:3] for encoded in queries]
        return {"dense": dense, "words": own.snapshot.lexical.shares(QUERIES)}

    def scores(self, config: SearchConfig, extra: np.ndarray | float = 0.0, *, by_vectors: bool = True) -> np.ndarray:
        """[queries, documents] by vectors and words, or of paths, by definition."""
        if by_vectors:
            return self.parts["dense"] + config.lexical_weight * self.parts["words"] + extra
        own, settings = self.paths, (config.alpha, config.beta, config.ann_temperature)
        scores = np.zeros((len(QUERIES), len(self.ids)))
        for number, (states, mask, embedding) in enumerate(self._queries):
            found = path_scores(own.snapshot.tree, own.snapshot.generator, states, mask, embedding, *settings)
            scores[number, own.snapshot.tree.doc_rows] = found[0].numpy()
        return scores

    def own_retriever(self) -> Retriever:
        """One that may be changed."""
        return copy(self.retriever)

    # Searches, against the scores of all documents

    def searches(self, chance: Random, folder: Path) -> Case:
        """Right options of either method over either kind of tokens; the answer is judged by the scores of all documents."""
        by_vectors = chance.random() < 0.7
        retriever, (options, allowed) = (
            (self.retriever if by_vectors else self.paths),
            self._options(chance, by_vectors=by_vectors),
        )
        k, config = chance.choice([1, 2, 5, 8, 20, 40, 100]), {} if by_vectors else self._path_config(chance)
        few = chance.choice([0, 10, 1000])  # from so many allowed documents on, a filter is applied inside the walk

        def call() -> tuple[SearchConfig, list[Hits]]:
            own, vector_search._OUTRIGHT = copy(retriever), few
            own.search_config = dataclasses.replace(retriever.search_config, **config)
            return own.snapshot.request("search", k, options).config, own.search(QUERIES, k, **options)

        def check(answer: tuple[SearchConfig, list[Hits]]) -> None:
            used, answers = answer
            expected = self.scores(used, options.get("extra_scores", 0.0), by_vectors=by_vectors)
            for hits, own in zip(answers, expected, strict=True):
                scores = dict(zip(self.ids, own, strict=True))
                check_hits(hits, scores, allowed, k, sure=used.method == "exact")

        return Case(f"k={k} by_vectors={by_vectors} outright={few} {config} {options}", call, good=True, check=check)

    def _path_config(self, chance: Random) -> dict[str, Any]:
        """Settings of an index that scores paths, which no call changes."""
        beta = {"beta": 0.0} if chance.random() < 0.2 else {}
        return {"ann_temperature": chance.choice([1e-3, 0.05, 0.7, 1.0, 1e3]), **beta}

    def _options(self, chance: Random, *, by_vectors: bool) -> tuple[dict[str, Any], set[str]]:
        """Right options of a search, and the doc_ids that they allow."""
        sample = [chance.sample(self.ids, chance.choice([0, 1, 5, 30])) for _ in range(2)]
        where, test = condition(chance)
        rng = np.random.default_rng(chance.randrange(10**6))
        method = chance.choice(["generate", "generate", "exact"])
        values = {
            "alpha": chance.choice([0, 0.0, 0.2, 0.7, 1.0, np.float64(0.5)]),
            "beam_width": chance.choice([1, 2, 5, 100, np.int64(101)]),
            "candidates": chance.choice([1, 3, np.int32(10), 100]),
            "lexical_weight": chance.choice([0, 0.1, 3.0]),
            "token_weight": 0,
            "extra_scores": rng.normal(size=(len(QUERIES), len(self.ids))),
            "allow": chance.choice([list, set, tuple])(sample[0]),
            "deny": sample[1],
            "where": where,
        }
        unused = {"beam_width", "candidates"} if method == "exact" else set()
        unused |= {"alpha"} if by_vectors else {"candidates", "lexical_weight", "extra_scores"}
        options: dict[str, Any] = {
            name: value for name, value in values.items() if name not in unused and chance.random() < 0.3
        }
        options["method"] = method
        allowed = {record["_id"] for record in RECORDS if "where" not in options or test(record["metadata"])}
        allowed &= set(options.get("allow", self.ids))
        return options, allowed - set(options.get("deny", []))

    def filters(self, chance: Random, folder: Path) -> Case:
        """A condition finds the documents that Python finds; one that is changed is refused with its place, or harmless."""
        where, test = condition(chance)
        expected = [bool(test(record["metadata"])) for record in RECORDS]
        documents, changed = self.retriever.snapshot.documents, chance.random() < 0.4
        if not changed:

            def check(found: np.ndarray) -> None:
                assert found.tolist() == expected, f"{found.nonzero()[0]} for {np.nonzero(expected)[0]}"

            return Case(where, lambda: documents.matching(where), good=True, check=check)
        letters = list(where)
        for _ in range(chance.choice([1, 1, 3])):
            place = chance.randrange(len(letters) + 1)
            letters[place : place + chance.choice([0, 1, 5])] = chance.choice(
                ["", "(", ")", "'", '"', "not ", "9" * 30, "é\0", "null", " or ", "%"]
            )
        text = "".join(letters)
        return Case(text, lambda: documents.matching(text), ["where"])

    # Updates, against a dictionary

    def updates(self, chance: Random, folder: Path) -> Case:
        """Documents added, replaced and removed, some of them wrong; the index holds what a dictionary holds."""
        retriever, model = self.own_retriever(), {record["_id"]: record for record in RECORDS}
        steps = [self._step(chance, model) for _ in range(chance.randrange(1, 5))]
        save = chance.random() < 0.2

        def call() -> Retriever:
            for name, argument, options, good in steps:
                _step_ends(
                    lambda name=name, argument=argument, options=options: getattr(retriever, name)(argument, **options),
                    good,
                )
            if save:
                return _saved_and_loaded(retriever, self.index, folder)
            return retriever

        return Case(str(steps)[:1000], call, good=True, check=lambda own: check_content(own, model))

    def _step(self, chance: Random, model: dict[str, Any]) -> tuple[str, Any, dict[str, Any], bool]:
        """(method, argument, options, whether it is right); the model takes it."""
        if chance.random() < 0.4:
            gone = chance.sample(sorted(model), chance.choice([0, 1, 3]))
            if chance.random() < 0.3:
                return (
                    "remove",
                    chance.choice([[*gone, "missing"], "neon", b"x", [3], None, list(model), [None]]),
                    {},
                    False,
                )
            for doc_id in gone:
                del model[doc_id]
            return "remove", gone, {}, True
        replace = chance.random() < 0.4
        new = [
            self._document(chance, doc_id)
            for doc_id in chance.sample(["n1", "n2", "é", "007", self.ids[0], self.ids[7]], 2)
        ]
        if chance.random() < 0.3:
            return "add", _spoilt(new, chance), {"replace": replace}, False
        if not replace and any(document["_id"] in model for document in new):
            return "add", new, {"replace": replace}, False
        model.update({document["_id"]: document for document in new})
        return "add", new, {"replace": replace}, True

    def _document(self, chance: Random, doc_id: str) -> dict[str, Any]:
        metadata = {"lang": words(chance), "year": chance.randrange(9), "score": 0.5, "flag": True}
        own = {name: value for name, value in metadata.items() if chance.random() < 0.5}
        return {"_id": doc_id, "title": words(chance), "text": words(chance) + " x", "metadata": own}


def check_hits(hits: Hits, scores: dict[str, float], allowed: set[str], k: int, *, sure: bool) -> None:
    """As many as there can be, allowed ones, each with its own score, in order; the best of all if certified."""
    found = [hit.doc_id for hit in hits]
    assert len(found) == len(set(found)) == min(k, len(allowed)), f"{len(found)} answers of {len(allowed)} for k = {k}"
    assert set(found) <= allowed, f"not allowed: {set(found) - allowed}"
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    scale = max(1.0, *map(abs, scores.values())) * 1e-5
    own = [hit.score for hit in hits]
    assert np.allclose(own, [scores[doc_id] for doc_id in found], rtol=0, atol=scale), (
        f"{own} for {[scores[d] for d in found]}"
    )
    assert own == sorted(own, reverse=True)
    assert hits.exact or not sure, "an exact answer was asked for"
    if hits.exact:
        best = sorted((scores[doc_id] for doc_id in allowed), reverse=True)[:k]
        assert np.allclose(own, best, rtol=0, atol=scale), f"{own} is not the best: {best}"


def check_content(retriever: Retriever, model: dict[str, Any]) -> None:
    """The index holds these documents, and a search finds each once, with the score of its vector."""
    assert set(retriever.snapshot.documents.rows) == set(model)
    for doc_id, record in model.items():
        document, metadata = retriever.get(doc_id), record.get("metadata", {})
        assert document.title == record["title"]
        assert document.metadata == {name: value for name, value in metadata.items() if value is not None}
    hits = retriever.search(QUERIES[0], len(model) + 5, lexical_weight=0)
    encoder = retriever.snapshot.encoder
    texts = encoder.document_texts(
        [model[hit.doc_id]["title"] for hit in hits], [model[hit.doc_id]["text"] for hit in hits]
    )
    query = encoder.encode(encoder.query_texts([QUERIES[0]]), "query")[0]
    expected = encoder.encode(texts, "document") @ query
    assert [hit.doc_id for hit in hits] != [] and len(hits) == len(model)  # noqa: PT018
    assert np.allclose([hit.score for hit in hits], expected, atol=1e-4)


def _spoilt(documents: list[dict[str, Any]], chance: Random) -> Any:
    wrong = chance.choice(
        [
            {"text": 3},
            {"_id": ""},
            {"_id": "a b"},
            {"title": 1},
            {"metadata": {"new": 1}},
            {"metadata": {"year": "x"}},
            {"metadata": {"flag": 1}},
            {"metadata": 3},
            {"txet": "x"},
            {"text": "\ud800"},
        ]
    )
    return chance.choice(
        [[documents[0], {**documents[1], **wrong}], [documents[0], documents[0]], documents[0], "x", 3, [documents]]
    )


def _step_ends(step: Callable[[], Any], good: bool) -> None:
    """Run a step; one that is wrong must be refused by a ValueError or TypeError, and changes nothing."""
    try:
        step()
    except (ValueError, TypeError):
        if good:
            raise
    else:
        assert good, "a wrong step was taken"


def _saved_and_loaded(retriever: Retriever, index: Path, folder: Path) -> Retriever:
    target = Path(shutil.copytree(index, folder / "index"))
    retriever._saved[target.resolve()] = retriever._saved[index.resolve()]
    retriever.save(target)
    return load(target, device="cpu")


def _write_collection(folder: Path) -> None:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, RECORDS)))
    ids = [record["_id"] for record in RECORDS]
    (folder / "queries.jsonl").write_text(
        "\n".join(json.dumps({"_id": f"q{n}", "text": text}) for n, text in enumerate(QUERIES))
    )
    for split in ("dev", "test"):
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(f"q{n}\t{ids[n]}\t1" for n in range(len(QUERIES))))
