"""Pseudo-queries: queries that a document could answer, for documents without train queries (DSI-QG; docT5query).

Two methods: a seq2seq or causal model that writes queries (from the Hub or local), and "extractive", which needs no model and
takes spans and keywords from the document's title and full text. Knows nothing of docids or training.
"""

import json
import os
import random
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from dsi.config import EXTRACTIVE, PseudoQueriesConfig
from dsi.contrastive.devices import choose_device
from dsi.contrastive.models import is_local, load_complete
from dsi.docids.data.records import stored
from dsi.docids.files.progress import Bar
from dsi.docids.files.reading import sha256
from dsi.docids.files.storage import write_json_line

DOCUMENT_TOKENS, QUERY_TOKENS = 512, 32
"""Tokens of a document that a model reads, and of a query that it generates, at most."""
TOP_K = 10
"""It samples from this many most probable tokens, as docT5query does."""
_BATCH = 16
"""Documents per forward pass."""
_COPIED = 5
"""Words in a row from which on a query is a copy of its document."""
_OF_THE_TEXT = re.compile(
    r"\b(this|the above|the given|the following) (text|document|passage|article|paragraph|page)\b"
)
_READ = ("doc_id", "title", "text")
_QUERY_WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n+")


def generate_queries(
    documents: datasets.Dataset, config: PseudoQueriesConfig, path: Path, *, held_out: Iterable[str] = (),
    seed: int = 0, device: str | None = None,
) -> int:  # fmt: skip
    """Write pseudo-queries, one JSON line {doc_id, queries} per document; a killed run continues where it stopped.

    One that equals a held-out text (ignoring case and spacing) is dropped. Returned is how many this call wrote.
    """
    finished = _finished_documents(path)
    forbidden = {_normal(text) for text in held_out}
    count = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    documents = documents.select_columns(list(_READ))
    if config.method == EXTRACTIVE:
        generated = _extractive(documents, finished, config.per_document, seed)
    else:
        generated = model_queries(documents, config, finished=finished, seed=seed, device=device)
    bar = Bar("pseudo-queries", unit="doc", total=len(documents), done=len(finished))
    with bar, path.open("a", encoding="utf-8") as file:
        for doc_id, queries in generated:
            allowed = [query for query in queries if _normal(query) not in forbidden]
            count += len(allowed)
            write_json_line(file, {"doc_id": doc_id, "queries": allowed})
            bar.update()
    return count


def read_queries_file(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (doc_id, pseudo-queries) of each document in a file that `generate_queries` wrote."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; generate pseudo-queries first (dsi train).")
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            yield record["doc_id"], list(record["queries"])


def read_queries_table(path: Path) -> datasets.Dataset:
    """Return the pseudo-queries of a file: a memory-mapped table of doc_id and text."""
    rows = ({"doc_id": doc_id, "text": text} for doc_id, queries in read_queries_file(path) for text in queries)
    table = stored(rows, pa.schema({"doc_id": pa.string(), "text": pa.string()}), on_disk=True)
    return datasets.Dataset(table, fingerprint=sha256(path))


def extractive_queries(title: str, text: str, count: int, rng: random.Random) -> list[str]:
    """Return different query-like texts from a document: spans, keywords, and the title with either."""
    sentences = [words for part in _SENTENCE_END.split(text) if len(words := _QUERY_WORD.findall(part.lower())) >= 3]
    title_words = _QUERY_WORD.findall(title.lower())
    if not sentences:
        sentences = [title_words or _QUERY_WORD.findall(text.lower()) or [text.strip().lower()]]
    unique: dict[str, None] = {}
    for attempt in range(4 * count):
        make = _MAKERS[(attempt + rng.randrange(2)) % len(_MAKERS)]
        query = " ".join(make(title_words, rng.choice(sentences), rng))
        if query and len(unique) < count:
            unique[query] = None
    return list(unique)


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


def _extractive(
    documents: datasets.Dataset, finished: Container[str], count: int, seed: int
) -> Iterator[tuple[str, list[str]]]:
    for document in documents:
        if document["doc_id"] not in finished:
            rng = random.Random(f"{seed} {document['doc_id']}")  # does not depend on where a run was resumed
            yield document["doc_id"], extractive_queries(document["title"], document["text"], count, rng)


def reading_text(title: str, text: str) -> str:
    """Return the text of a document that a model reads, in training and in use."""
    return f"{title} {text}".strip()


def load_query_model(name: str, setting: str = "pseudo_queries.method") -> tuple[Any, Any]:
    """Return the tokenizer and the weights of a seq2seq or causal model that writes queries."""
    try:
        options = {"local_files_only": is_local(name)}
        config = AutoConfig.from_pretrained(name, **options)
        if not config.is_encoder_decoder and config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
            raise ValueError(f"{config.model_type} reads and does not write")
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        model = load_complete(lambda: kind.from_pretrained(name, **options))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise FileNotFoundError(
            f"{setting} {name!r} cannot be loaded ({reason}); name a seq2seq or causal model."
        ) from None
    if not config.is_encoder_decoder:
        tokenizer.padding_side = "left"  # it goes on where the prompt ends
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer, model


def model_queries(
    documents: datasets.Dataset, config: PseudoQueriesConfig, *, finished: Container[str] = (), seed: int = 0,
    device: str | None = None,
) -> Iterator[tuple[str, list[str]]]:  # fmt: skip
    """Yield (doc_id, queries) sampled from a model by top-k sampling (docT5query), of the documents that are not finished.

    A seq2seq model reads the document. A causal one reads it as `prompt` lays it out, and writes to the end of the line.
    Batches, and the seed of each, are the same wherever a run was resumed; one that was written in part is generated again.
    """
    ids, starts = documents["doc_id"], range(0, len(documents), _BATCH)
    todo = [start for start in starts if not all(doc_id in finished for doc_id in ids[start : start + _BATCH])]
    if not todo:
        return
    device = choose_device(device)
    tokenizer, model = load_query_model(config.method)
    model = model.to(device).eval()
    for start in todo:
        batch = documents[start : start + _BATCH]
        texts = [reading_text(*pair) for pair in zip(batch["title"], batch["text"], strict=True)]
        torch.manual_seed(seed + start)
        written = _sample(tokenizer, model, texts, config)
        for doc_id, text, queries in zip(batch["doc_id"], texts, written, strict=True):
            if doc_id not in finished:
                yield doc_id, [query for query in dict.fromkeys(queries) if is_query(query, text)]


@torch.no_grad()
def _sample(tokenizer: Any, model: Any, texts: Sequence[str], config: PseudoQueriesConfig) -> list[list[str]]:
    """Return `per_document` texts that a model writes for each of some documents."""
    count, sampling = config.per_document, {"do_sample": True, "top_k": TOP_K, "max_new_tokens": QUERY_TOKENS}
    is_causal, cut = not model.config.is_encoder_decoder, {"truncation": True, "max_length": DOCUMENT_TOKENS}
    if is_causal:
        texts, cut = [prompt_text(tokenizer, config.prompt, text, DOCUMENT_TOKENS) for text in texts], {}
    inputs = tokenizer(list(texts), padding=True, return_tensors="pt", **cut).to(model.device)
    inputs.pop("token_type_ids", None)
    # [texts * count, tokens]
    new = model.generate(**inputs, **sampling, num_return_sequences=count, pad_token_id=tokenizer.pad_token_id)
    if is_causal:
        new = new[:, inputs["input_ids"].shape[1] :]
    lines = [text.strip().partition("\n")[0].strip() for text in tokenizer.batch_decode(new, skip_special_tokens=True)]
    return [lines[start : start + count] for start in range(0, len(lines), count)]


def prompt_text(tokenizer: Any, prompt: str, text: str, count: int) -> str:
    """Return a prompt with the first tokens of a document, at most `count`."""
    cut = tokenizer(text, truncation=True, max_length=count, add_special_tokens=False, return_offsets_mapping=True)
    ends = [end for _, end in cut["offset_mapping"]]
    return prompt.replace("{document}", text[: max(ends, default=0)])


def is_query(query: str, text: str) -> bool:
    """Return whether a text that a model wrote may be a query for a document.

    It has at least two words, says nothing of "this text", and is not copied: five words or more in a row are.

    >>> is_query("which gas glows", "Neon is a gas that glows."), is_query("what is this text about", "Neon.")
    (True, False)
    """
    words = _normal(query)
    copied = words.count(" ") >= _COPIED - 1 and f" {words} " in f" {_normal(text)} "
    return " " in words and not copied and not _OF_THE_TEXT.search(words)


def _finished_documents(path: Path) -> set[str]:
    """Return the doc_ids already in the file, after cutting off an incomplete last line."""
    if not path.exists():
        return set()
    content = path.read_bytes()
    complete = content.rfind(b"\n") + 1
    if complete < len(content):
        os.truncate(path, complete)
    return {doc_id for doc_id, _ in read_queries_file(path)}


def _normal(text: str) -> str:
    return " ".join(_QUERY_WORD.findall(text.lower()))
