"""Pseudo-queries: questions a document could answer, for documents that have no train query (DSI-QG; docT5query).

Two methods: a seq2seq model that writes queries (any Hub or local one), and "extractive", which needs no model and takes
spans and keyword combinations from the document's title and full text. Knows nothing of docids or training.
"""

import json
import os
import random
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import datasets
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from docids.collection import read_once

_READ = ("doc_id", "title", "text")
_WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n+")


@dataclass(frozen=True)
class QueriesConfig:
    """How pseudo-queries are made.

    Attributes:
        method: "extractive", "none", or a seq2seq model (Hub name or folder) that turns a document into a query.
        per_document: how many.
        document_tokens: what a seq2seq model reads of a document.
        query_tokens: what it writes at most.
        top_k: it samples among this many next tokens.
        batch_size: documents a forward pass.
        seed: of sampling.
    """

    method: str = "extractive"
    per_document: int = 5
    document_tokens: int = 512
    query_tokens: int = 32
    top_k: int = 10
    batch_size: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.per_document < 1:
            raise ValueError(
                f'queries.per_document must be at least 1 (method = "none" for none), got {self.per_document}.'
            )


def generate_queries(
    documents: datasets.Dataset, config: QueriesConfig, path: Path, *, held_out: Iterable[str] = ()
) -> dict[str, int]:
    """Write pseudo-queries as one JSON line {doc_id, queries} a document; goes on where a killed run stopped.

    Args:
        documents: with doc_id, title, text; a batch of them is in memory at a time.
        config: the settings.
        path: the file to write or continue.
        held_out: texts of dev and test queries; a pseudo-query equal to one (case and spacing aside) is dropped.

    Returns:
        Counts: {"written": n, "dropped": how many equalled a held-out query}, of this call.
    """
    finished = _finished_documents(path)
    forbidden = {_normal(text) for text in held_out}
    counts = {"written": 0, "dropped": 0}
    path.parent.mkdir(parents=True, exist_ok=True)
    todo = (document for document in documents.select_columns(list(_READ)) if document["doc_id"] not in finished)
    generated = _extractive(todo, config) if config.method == "extractive" else _seq2seq(todo, config)
    bar = tqdm(total=len(documents), initial=len(finished), desc="pseudo-queries", unit="doc")
    with path.open("a", encoding="utf-8") as file:
        for doc_id, queries in generated:
            kept = [query for query in queries if _normal(query) not in forbidden]
            counts["written"] += len(kept)
            counts["dropped"] += len(queries) - len(kept)
            file.write(json.dumps({"doc_id": doc_id, "queries": kept}, ensure_ascii=False) + "\n")
            bar.update(1)
    bar.close()
    return counts


def read_queries_file(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(doc_id, pseudo-queries) of each document in a file that `generate_queries` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line is not what was written.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; generate pseudo-queries first (dsi generate-queries).")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                yield record["doc_id"], list(record["queries"])
            except (json.JSONDecodeError, KeyError, TypeError):
                raise ValueError(f"{path}, line {number}: expected {{doc_id, queries}}, got {line[:60]!r}.") from None


def read_queries_table(path: Path, most: int) -> datasets.Dataset:
    """The first `most` pseudo-queries of each document of such a file: a table of doc_id and text, mapped into memory."""
    return read_once(_query_rows, {"doc_id": "string", "text": "string"}, path, most=most)


def _query_rows(path: str, version: str, most: int) -> Iterator[dict[str, str]]:
    for doc_id, queries in read_queries_file(Path(path)):
        for text in queries[:most]:
            yield {"doc_id": doc_id, "text": text}


def extractive_queries(title: str, text: str, count: int, rng: random.Random) -> list[str]:
    """Different query-like texts from a document: spans, title with a span, title with keywords, keywords.

    Args:
        title: may be empty.
        text: the document's full text.
        count: how many to aim for; a very short document gives fewer.
        rng: the source of chance.
    """
    sentences = [words for part in _SENTENCE_END.split(text) if len(words := _WORD.findall(part.lower())) >= 3]
    title_words = _WORD.findall(title.lower())
    if not sentences:
        sentences = [title_words or _WORD.findall(text.lower()) or [text.strip().lower()]]
    found: dict[str, None] = {}
    for attempt in range(4 * count):
        make = _MAKERS[(attempt + rng.randrange(2)) % len(_MAKERS)]
        query = " ".join(make(title_words, rng.choice(sentences), rng))
        if query and len(found) < count:
            found[query] = None
    return list(found)


def _span(title: list[str], sentence: list[str], rng: random.Random, longest: int = 10) -> list[str]:
    length = rng.randint(min(3, len(sentence)), min(longest, len(sentence)))
    start = rng.randint(0, len(sentence) - length)
    return sentence[start : start + length]


def _title_and_span(title: list[str], sentence: list[str], rng: random.Random) -> list[str]:
    return title + _span(title, sentence, rng, longest=5)


def _keywords(title: list[str], sentence: list[str], rng: random.Random) -> list[str]:
    words = [word for word in dict.fromkeys(sentence) if word not in ENGLISH_STOP_WORDS]
    chosen = set(rng.sample(words, min(len(words), rng.randint(2, 6))))
    return [word for word in words if word in chosen]


def _title_and_keywords(title: list[str], sentence: list[str], rng: random.Random) -> list[str]:
    return title + [word for word in _keywords(title, sentence, rng) if word not in title][:3]


_MAKERS = (_span, _title_and_keywords, _keywords, _title_and_span)


def _extractive(documents: Iterator[dict[str, str]], config: QueriesConfig) -> Iterator[tuple[str, list[str]]]:
    for document in documents:
        rng = random.Random(f"{config.seed} {document['doc_id']}")  # the same for it wherever a run was resumed
        yield document["doc_id"], extractive_queries(document["title"], document["text"], config.per_document, rng)


def reading_text(title: str, text: str) -> str:
    """What a seq2seq model reads of a document, in training as in use."""
    return f"{title} {text}".strip()


@torch.no_grad()
def _seq2seq(documents: Iterator[dict[str, str]], config: QueriesConfig) -> Iterator[tuple[str, list[str]]]:
    """Sampled queries of a seq2seq model, as docT5query does (top-k sampling); without documents none is loaded."""
    batch, start = list(islice(documents, config.batch_size)), 0
    if not batch:
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(config.method)
    model = AutoModelForSeq2SeqLM.from_pretrained(config.method).to(device).eval()
    while batch:
        inputs = tokenizer(
            [reading_text(document["title"], document["text"]) for document in batch],
            truncation=True, max_length=config.document_tokens, padding=True, return_tensors="pt",
        ).to(device)  # fmt: skip
        inputs.pop("token_type_ids", None)
        torch.manual_seed(config.seed + start)
        output = model.generate(
            **inputs, do_sample=True, top_k=config.top_k, num_return_sequences=config.per_document,
            max_new_tokens=config.query_tokens,
        )  # fmt: skip
        texts = [text.strip() for text in tokenizer.batch_decode(output, skip_special_tokens=True)]
        for row, document in enumerate(batch):
            own = texts[row * config.per_document : (row + 1) * config.per_document]
            yield document["doc_id"], [text for text in dict.fromkeys(own) if text]
        start += len(batch)
        batch = list(islice(documents, config.batch_size))


def _finished_documents(path: Path) -> Collection[str]:
    """doc_ids already in the file; a torn last line (no newline) is cut off first."""
    if not path.exists():
        return set()
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    return {doc_id for doc_id, _ in read_queries_file(path)}


def _normal(text: str) -> str:
    return " ".join(_WORD.findall(text.lower()))
