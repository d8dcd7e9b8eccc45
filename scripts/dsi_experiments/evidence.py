"""How often evidence within a budget of tokens holds the answer: `python -m dsi_experiments.evidence DIR INDEX`.

DIR is a BEIR folder with test judgements, INDEX a folder that is made if it is not there. With --joined the texts of a title
are one document, as the paragraphs of an article of SQuAD. A question is answered if passages hold all of the sentence
that answers it, marked by hand for some questions of SQuAD (`MARKS`), or else some of the judged text. Beside `evidence` stand
what programs do without it: top documents or pieces, as an index ranks them or bm25s, whole until the budget is used.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import bm25s  # type: ignore[import-untyped]
import numpy as np

import dsi
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.data.collection import Collection, read_collection
from dsi.docids.words.sentences import sentences
from dsi.store.retriever import Retriever

MARKS = """7317:2 4685:1 400:3 1839:2 7782:0 683:0 3005:0 6546:2 1314:1 5860:3 2270:0 6239:0 5408:3 5374:0 4793:0 5300:1
7654:4 9239:0 10543:0 5235:0 6715:5 5870:4 876:0 9046:0 4339:0 4579:3 6783:1 722:0 10326:3 537:3 7731:1 5417:1 781:0 4078:0
2935:1 9045:0 6941:3 9344:0 3610:1 9317:4 7886:0 9557:3 7944:1 1577:2 1391:1 6950:0 6766:2 1182:1 9073:0 4879:1 9512:1 7583:0
8046:1 7896:1 6413:3 9379:1 5249:4 7842:0 2213:4 6871:0 1415:1 2106:1 6828:3 3251:0 3859:10 9717:0 10398:0 9777:0 4624:0
5272:3 3177:0 5146:1 4366:3 7833:2 710:2 7555:0 7868:0 10564:0 3829:0 6423:1 3159:0 1337:1 5865:3 2223:4 6177:0 6042:6 5583:1
1764:1 6907:0 7145:1 3876:0 1110:6 8596:3 3432:0 1288:2 6855:1 7753:0 5102:1 2473:3 7103:2 1592:0 6421:2 3503:1 9627:2 90:0
6489:0 5732:1 6345:0 5454:0 8229:1 1160:5"""
"""Questions of SQuAD (their numbers in `squad2k`), each with the sentence of its paragraph, from 0, that answers it."""
BUDGETS = (250, 500, 1000, 2000)
DOCUMENTS, PIECES = 20, 10
"""Documents that are searched for, and pieces of each."""
Span: TypeAlias = tuple[str, int, int]
"""A doc_id, and characters start to end of its text."""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure an index and print the table."""
    command_line = argparse.ArgumentParser(description=__doc__)
    command_line.add_argument("data", type=Path, metavar="DIR")
    command_line.add_argument("index", type=Path, metavar="INDEX")
    command_line.add_argument("--joined", action="store_true", help="the texts of a title are one document")
    command_line.add_argument("--marked", action="store_true", help="only questions of MARKS, by their sentences")
    command_line.add_argument("--questions", type=int, default=200, help="drawn at random, at most")
    arguments = command_line.parse_args(argv)
    collection = read_collection(arguments.data)
    places = joined_places(collection) if arguments.joined else own_places(collection)
    if not arguments.index.exists():
        dsi.index(list(documents_of(collection, places)), arguments.index, device="cpu")
    retriever = dsi.load(arguments.index, device="cpu")
    answers = marked_sentences(collection, places) if arguments.marked else judged_texts(collection, places, retriever)
    asked = sorted(answers)
    random.Random(0).shuffle(asked)
    questions = {query_id: collection.queries[query_id] for query_id in asked[: arguments.questions]}
    print(f"{arguments.data.name}: {len(questions)} questions, {len(retriever)} documents")
    for name, system in systems(retriever).items():
        found = np.array(
            [
                [holds(spans, answers[query_id], whole=arguments.marked) for spans in system(question)]
                for query_id, question in questions.items()
            ]
        )  # [questions, budgets]
        print(f"| {name} | " + " | ".join(f"{100 * share:.1f}" for share in found.mean(axis=0)) + " |", flush=True)


def own_places(collection: Collection) -> dict[str, Span]:
    """Return where each document's text stands: in the document of its id."""
    rows = zip(collection.documents["doc_id"], collection.documents["text"], strict=True)
    return {doc_id: (doc_id, 0, len(text)) for doc_id, text in rows}


def joined_places(collection: Collection) -> dict[str, Span]:
    """Return where each document's text stands in the document of its title."""
    lengths, places = dict[str, int](), dict[str, Span]()
    for doc_id, title, text in zip(*(collection.documents[name] for name in ("doc_id", "title", "text")), strict=True):
        start = lengths.get(title, 0)
        places[doc_id] = title, start, start + len(text)
        lengths[title] = start + len(text) + 1
    return places


def documents_of(collection: Collection, places: dict[str, Span]) -> Iterator[dict[str, str]]:
    """Yield the documents that are indexed."""
    joined: dict[str, dict[str, str]] = {}
    for doc_id, title, text in zip(*(collection.documents[name] for name in ("doc_id", "title", "text")), strict=True):
        own = joined.setdefault(places[doc_id][0], {"doc_id": places[doc_id][0], "title": title, "text": ""})
        own["text"] += "\n" * bool(own["text"]) + text
    yield from joined.values()


def marked_sentences(collection: Collection, places: dict[str, Span]) -> dict[str, list[Span]]:
    """Return {query_id: the sentence that answers it}."""
    texts = dict(zip(collection.documents["doc_id"], collection.documents["text"], strict=True))
    answers = {}
    for mark in MARKS.split():
        number, sentence = mark.split(":")
        (doc_id,) = collection.qrels["test"][f"q{number}"]
        start, end = sentences(texts[doc_id], 0, len(texts[doc_id]))[int(sentence)]
        title, first, _ = places[doc_id]
        answers[f"q{number}"] = [(title, first + start, first + start + len(texts[doc_id][start:end].rstrip()))]
    return answers


def judged_texts(collection: Collection, places: dict[str, Span], retriever: Retriever) -> dict[str, list[Span]]:
    """Return {query_id: where its judged texts stand} of queries whose judged texts are all in the index."""
    there = set(retriever.snapshot.documents.rows)
    judged = {
        query_id: [places[doc_id] for doc_id, grade in own.items() if grade > 0]
        for query_id, own in collection.qrels["test"].items()
    }
    return {query_id: own for query_id, own in judged.items() if own and all(place[0] in there for place in own)}


def holds(spans: Sequence[Span], answers: Sequence[Span], *, whole: bool) -> bool:
    """Return whether passages have all of an answer, or some of it."""
    for doc_id, start, end in answers:
        own = [(first, last) for name, first, last in spans if name == doc_id and first < end and start < last]
        covered = {at for first, last in own for at in range(max(first, start), min(last, end))}
        if own and (not whole or len(covered) >= end - start - 1):
            return True
    return False


def systems(retriever: Retriever) -> dict[str, Callable[[str], list[list[Span]]]]:
    """Return {name: a function of a question that returns its passages at each budget}."""
    index = retriever.snapshot
    texts = dict(zip(index.documents.column("doc_id"), index.documents.column("text"), strict=True))
    spans, tree = list[Span](), index.tree
    ids = list(texts)
    for place, row in enumerate(tree.doc_rows.tolist()):
        (span,) = tree.spans_at(np.array([place]))
        spans.append((ids[row], *(span or (0, len(texts[ids[row]])))))
    words = bm25s.BM25()
    words.index(_terms([f"{doc_id} {texts[doc_id][start:end]}" for doc_id, start, end in spans]), show_progress=False)

    def full(ranked: Sequence[Span]) -> list[list[Span]]:
        return [until_full(index.encoder, texts, ranked, budget) for budget in BUDGETS]

    def documents(question: str) -> list[list[Span]]:
        hits = retriever.search(question, k=DOCUMENTS)
        return full([(hit.doc_id, 0, len(texts[hit.doc_id])) for hit in hits])

    def pieces(question: str) -> list[list[Span]]:
        hits = retriever.search(question, k=DOCUMENTS, passages=PIECES)
        ranked = sorted((own for hit in hits for own in hit.passages), key=lambda own: -own.score)
        return full([own[:3] for own in ranked])

    def by_bm25s(question: str) -> list[list[Span]]:
        found, _ = words.retrieve(_terms([question]), k=min(100, len(spans)), show_progress=False)
        return full([spans[number] for number in found[0]])

    def evidence(question: str) -> list[list[Span]]:
        return [[own[:3] for own in retriever.evidence(question, budget, k=DOCUMENTS)] for budget in BUDGETS]

    return {
        "top documents, whole": documents, "top pieces": pieces, "top pieces by bm25s": by_bm25s, "`evidence`": evidence,
    }  # fmt: skip


def _terms(texts: list[str]) -> Any:
    return bm25s.tokenize(texts, show_progress=False)


def until_full(encoder: TextEncoder, texts: dict[str, str], ranked: Sequence[Span], budget: int) -> list[Span]:
    """Return the first spans that a budget holds, the last cut there; what was taken before does not count again."""
    taken, seen = list[Span](), dict[str, set[int]]()
    for doc_id, start, end in ranked:
        known = seen.setdefault(doc_id, set())
        while start < end and start in known:
            start += 1
        while start < end and end - 1 in known:
            end -= 1
        (offsets,) = encoder.token_offsets([texts[doc_id][start:end]], budget + 1)
        if len(offsets) > budget:
            end = start + (offsets[budget - 1][1] if budget else 0)
        taken.append((doc_id, start, end))
        known.update(range(start, end))
        budget -= min(budget, len(offsets))
        if not budget:
            break
    return taken


if __name__ == "__main__":
    main()
