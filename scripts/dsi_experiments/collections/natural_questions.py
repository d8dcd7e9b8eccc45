"""Natural Questions (Kwiatkowski et al. 2019) as a BEIR folder, from records in any of its three forms.

A document is a Wikipedia page: its `doc_id` is a number in order of first appearance, its text the page's paragraphs; of pages
with the same title the first is kept. A query is a question with its page; duplicate pairs count once.

`prepare` works in two passes. `stage` streams the records and appends each new page and question to two files, with a journal
from which a killed run continues; only titles and questions stay in memory. `select` draws pairs and pages and writes the
collection. Knows nothing of models.
"""

import gzip
import html
import json
import logging
import random
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import parse_qs, urlsplit

from dsi.docids.data import folder_for_collection
from dsi.docids.data.judgements import write_judgements
from dsi.docids.files.checks import folder_to_replace
from dsi.docids.files.progress import progress
from dsi.docids.files.reading import folder_sums
from dsi.docids.files.storage import replace_folder, write_json, write_json_line

logger = logging.getLogger(__name__)

HUB_NAME = "google-research-datasets/natural_questions"
_STAGED = ("journal.json", "documents.jsonl", "pairs.jsonl")
SIZES = {"nq10k": (10_000, 8_000, 2_000), "nq100k": (100_000, 80_000, 20_000), "nq320k": (0, 0, 0)}
"""{name: (documents, train pairs, test pairs)}, 0 for all: DR-SCL, Table 1, and all of Natural Questions."""
_JOURNAL_EVERY = 1000
_NAMED_PROBLEMS = 10
_SPACE_BEFORE = re.compile(r" ([,.;:!?%)\]]|'s\b|n't\b)")
_SPACE_AFTER = re.compile(r"([(\[]) ")

Records = Iterable[tuple[str, dict[str, Any] | ValueError]]
"""(source, the record or its problem)."""


@dataclass(frozen=True)
class Example:
    """A question and its page."""

    example_id: str
    question: str
    title: str
    text: str


@dataclass
class Journal:
    """The progress of `stage`."""

    records: dict[str, int] = field(default_factory=dict)  # read so far, by source
    skipped: int = 0  # malformed ones among them
    documents: int = 0  # pages written
    pairs: int = 0  # questions written
    sizes: tuple[int, int] = (0, 0)  # bytes of the two files at that moment; more is an unfinished write


def prepare(
    output: Path,
    *,
    files: Sequence[Path] = (),
    test_files: Sequence[Path] = (),
    hub: bool = False,
    size: str = "nq10k",
    counts: Sequence[int] = (),
    seed: int = 0,
    keep_staged: bool = False,
) -> tuple[Journal, dict[str, Any]]:
    """Write a collection of Natural Questions; a killed run continues where it was.

    `counts`: (documents, train pairs, test pairs) instead of those of `size`; 0 for all. Without `test_files` the test
    set is drawn from all questions. Returned are the final journal, and the report of `select`.
    """
    # 1) Checks, before anything is read.
    _check_sources(files, test_files, size, hub=hub)
    folder_for_collection(output, "output")
    if hub:
        check_hub()
    documents, train, test = counts or SIZES[size]
    test_sources = [path.name for path in test_files] + ["hub:validation"] * (hub and not test)
    if not test and not test_sources:
        raise ValueError(
            f"{size} is tested on other questions than it trains on; name their files: test_files (--test)."
        )
    # 2) Records become pages and questions.
    staged = folder_to_replace(output.with_name(f"{output.name}.staged"), "output", lambda own: own.name in _STAGED)
    staged.mkdir(parents=True, exist_ok=True)
    journal = read_journal(staged)
    splits = ["train", *["validation"] * bool(test_sources)] if hub else []
    sources = [read_files([*files, *test_files], journal.records)]
    sources += [_read_hub(split, journal.records) for split in splits]
    journal = stage(chain.from_iterable(sources), journal, staged)
    # 3) Some of them become the collection.
    report = select(staged, output, documents=documents, train=train, test=test, seed=seed, test_sources=test_sources)
    if not keep_staged:
        shutil.rmtree(staged)
    return journal, report


def _check_sources(files: Sequence[Path], test_files: Sequence[Path], size: str, *, hub: bool) -> None:
    missing = [path for path in (*files, *test_files) if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"{missing[0]} does not exist; give raw Natural Questions files, or hub=True (--hub).")
    if not files and not hub:
        raise ValueError("Give raw Natural Questions files, or hub=True (--hub) to stream them from the Hub.")
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}.")


def check_hub() -> None:
    """Raise ConnectionError, with the remedy, if the Hub cannot be reached, where reading would try again and again."""
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(HUB_NAME, timeout=10)
    except Exception as error:
        raise ConnectionError(
            f"{HUB_NAME} cannot be reached on the Hub ({type(error).__name__}); give raw files instead, which "
            "https://ai.google.com/research/NaturalQuestions has: v1.0-simplified_nq-train.jsonl.gz, or nq-train-??.jsonl.gz."
        ) from None


def parse(record: dict[str, Any]) -> Example:
    """Parse a record in the simplified form (`document_text`), the original (`document_tokens`) or the Hub's (`document`)."""
    try:
        if "document_text" in record:
            tokens = [
                (token, token.startswith("<") and token.endswith(">")) for token in record["document_text"].split(" ")
            ]
            example_id, question, title = record["example_id"], record["question_text"], _title(record["document_url"])
        elif "document_tokens" in record:
            tokens = [(token["token"], token["html_token"]) for token in record["document_tokens"]]
            example_id, question, title = record["example_id"], record["question_text"], record["document_title"]
        elif "document" in record:
            document = record["document"]
            tokens = list(zip(document["tokens"]["token"], document["tokens"]["is_html"], strict=True))
            example_id, question, title = record["id"], record["question"]["text"], document["title"]
        else:
            raise ValueError("has none of the keys document_text, document_tokens and document")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"lacks or misuses a key ({type(error).__name__}: {error})") from None
    example = Example(str(example_id), str(question).strip(), str(title).strip(), paragraphs(tokens))
    for name in ("question", "title", "text"):
        if not getattr(example, name):
            raise ValueError(f"has an empty {name}")
    return example


def paragraphs(tokens: Iterable[tuple[str, bool]]) -> str:
    """Return the text inside <P> … </P>; all text of a page without paragraphs.

    >>> paragraphs([("Contents", False), ("<P>", True), ("Neon", False), ("glows", False), (".", False), ("</P>", True)])
    'Neon glows.'
    """
    inside, everything, kept = False, [], []
    for token, is_html in tokens:
        if is_html:
            inside = token.upper().startswith("<P>") or (inside and token.upper() != "</P>")
            continue
        everything.append(token)
        if inside:
            kept.append(token)
    return _SPACE_AFTER.sub(r"\1", _SPACE_BEFORE.sub(r"\1", " ".join(kept or everything))).strip()


def _title(url: str) -> str:
    """Return the page's title from `…/w/index.php?title=Trade_winds&amp;oldid=…`."""
    titles = parse_qs(urlsplit(html.unescape(url)).query).get("title")
    if not titles:
        raise ValueError(f"has a document_url without a title: {url!r}")
    return titles[0].replace("_", " ")


def read_files(paths: Sequence[Path], done: dict[str, int]) -> Records:
    """Yield the records of raw .jsonl[.gz] files, without the first `done[file name]` of each."""
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if number <= done.get(path.name, 0):
                    continue
                yield path.name, _json(line)


def _json(line: str) -> dict[str, Any] | ValueError:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        return ValueError(f"is not valid JSON ({error.msg})")
    return record if isinstance(record, dict) else ValueError(f"is not a JSON object: {line[:60]!r}")


def _read_hub(split: str, done: dict[str, int]) -> Records:
    """Yield records streamed from the Hub; nothing is stored."""
    import datasets

    stream = datasets.load_dataset(HUB_NAME, split=split, streaming=True)
    source = f"hub:{split}"
    for record in stream.skip(done.get(source, 0)):
        yield source, record


def stage(records: Records, journal: Journal, folder: Path) -> Journal:
    """Append pages and questions to `documents.jsonl` and `pairs.jsonl` in a folder; return the final journal."""
    titles = _titles(folder / "documents.jsonl")
    seen = {(pair["question"], pair["document"]) for pair in _read_jsonl(folder / "pairs.jsonl")}
    with (
        (folder / "documents.jsonl").open("a", encoding="utf-8") as documents,
        (folder / "pairs.jsonl").open("a", encoding="utf-8") as pairs,
    ):
        for count, (source, record) in enumerate(progress(records, "records", unit="record"), start=1):
            journal.records[source] = journal.records.get(source, 0) + 1
            try:
                if isinstance(record, ValueError):
                    raise record
                example = parse(record)
            except ValueError as error:
                journal.skipped += 1
                if journal.skipped <= _NAMED_PROBLEMS:
                    logger.warning("%s, record %d %s; skipped.", source, journal.records[source], error)
                continue
            if example.title not in titles:
                titles[example.title] = len(titles)
                write_json_line(
                    documents, {"_id": str(titles[example.title]), "title": example.title, "text": example.text}
                )
            pair = (example.question, titles[example.title])
            if pair not in seen:
                seen.add(pair)
                write_json_line(
                    pairs, {"_id": example.example_id, "question": pair[0], "document": pair[1], "source": source}
                )
            if count % _JOURNAL_EVERY == 0:
                _save_journal(journal, titles, seen, (documents, pairs), folder)
        _save_journal(journal, titles, seen, (documents, pairs), folder)
    return journal


def read_journal(folder: Path) -> Journal:
    """Return the journal of an earlier run; unfinished writes are cut off its files."""
    path = folder / "journal.json"
    journal = Journal(**json.loads(path.read_text())) if path.exists() else Journal()
    for name, size in zip(("documents.jsonl", "pairs.jsonl"), journal.sizes, strict=True):
        with (folder / name).open("ab") as file:
            file.truncate(size)
    return journal


def _save_journal(
    journal: Journal, titles: dict[str, int], seen: set[tuple[str, int]], files: tuple[TextIO, TextIO], folder: Path
) -> None:
    for file in files:
        file.flush()
    journal.documents, journal.pairs = len(titles), len(seen)
    journal.sizes = ((folder / "documents.jsonl").stat().st_size, (folder / "pairs.jsonl").stat().st_size)
    write_json(folder / "journal.json", asdict(journal))


def select(
    staged: Path, output: Path, *, documents: int, train: int, test: int, seed: int, test_sources: Sequence[str] = ()
) -> dict[str, Any]:
    """Draw a collection from the staged files and write it as a BEIR folder, atomically.

    Pairs are drawn at random; the collection has their pages and further random pages. 0 stands for all. Test pairs are
    those of `test_sources`, by default drawn from all. Returned are counts, the overlap in percent and the sha256 of
    each file, as in `collection.json`.
    """
    # 1) Pairs and their pages, and further pages.
    rng = random.Random(seed)
    drawn = _draw_pairs(list(_read_jsonl(staged / "pairs.jsonl")), train, test, test_sources, rng)
    pages = {pair["document"] for split in drawn.values() for pair in split}
    total = sum(1 for _ in _read_jsonl(staged / "documents.jsonl"))
    _check_count("documents", documents, total)
    if documents and len(pages) > documents:
        raise ValueError(f"The pairs drawn have {len(pages)} pages, more than the {documents} documents requested.")
    others = [number for number in range(total) if number not in pages]
    pages.update(rng.sample(others, (documents or total) - len(pages)))
    # 2) The folder and its report.
    with replace_folder(output) as folder:
        _write_collection(staged, folder, pages, drawn)
        train_pages = {pair["document"] for pair in drawn["train"]}
        overlap = sum(pair["document"] in train_pages for pair in drawn["test"]) / max(1, len(drawn["test"]))
        report = {
            "documents": len(pages),
            **{split: len(pairs) for split, pairs in drawn.items()},
            "overlap": round(100 * overlap, 2),
            "seed": seed,
            "sha256": folder_sums(folder),
        }
        write_json(folder / "collection.json", report)
    return report


def _draw_pairs(
    pairs: list[dict[str, Any]], train: int, test: int, test_sources: Sequence[str], rng: random.Random
) -> dict[str, list[dict[str, Any]]]:
    """Draw train and test pairs, as `select` says."""
    rng.shuffle(pairs)
    testing = [pair for pair in pairs if pair["source"] in test_sources] if test_sources else pairs
    _check_count("test pairs", test, len(testing))
    testing = testing[: test or len(testing)]
    rest = pairs[len(testing) :]
    training = [pair for pair in pairs if pair["source"] not in test_sources] if test_sources else rest
    _check_count("train pairs", train, len(training))
    return {"train": training[: train or len(training)], "test": testing}


def _check_count(what: str, requested: int, available: int) -> None:
    if requested > available:
        raise ValueError(
            f"{requested} {what} were requested, the source has {available}; request fewer or give more files."
        )


def _write_collection(staged: Path, folder: Path, pages: set[int], drawn: dict[str, list[dict[str, Any]]]) -> None:
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as corpus:
        for number, page in enumerate(_read_jsonl(staged / "documents.jsonl")):
            if number in pages:
                write_json_line(corpus, page)
    (folder / "qrels").mkdir()
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as queries:
        for split, pairs in drawn.items():
            for pair in pairs:
                write_json_line(queries, {"_id": pair["_id"], "text": pair["question"]})
            write_judgements([(pair["_id"], pair["document"], 1) for pair in pairs], folder / "qrels" / f"{split}.tsv")


def _titles(path: Path) -> dict[str, int]:
    return {page["title"]: number for number, page in enumerate(_read_jsonl(path))}


def _read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file; none if the file is missing."""
    if path.exists():
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
