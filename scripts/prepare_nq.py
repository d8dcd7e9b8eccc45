"""`dsi prepare-nq`: Natural Questions as a collection (a BEIR folder).

From raw files (v1.0-simplified_nq-train.jsonl.gz, or the original nq-train-??.jsonl.gz) or streamed from the Hub. One document
per Wikipedia page title. nq10k: 10,000 documents, 8,000 train and 2,000 test pairs; nq100k: 100,000, 80,000 and 20,000 (DR-SCL,
Table 1), drawn with a seed; nq320k: every page and train question, tested on the questions of --test. Two collections go by
that last name, and their numbers are not comparable: DSI's has about 228,000 documents, NCI's 109,739; this one has a document
for every title in the files that are given. Killed and run again, it goes on where it was.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from docids.natural_questions import Journal, Records, read_files, read_hub, read_journal, select, stage
from scripts.arguments import quiet_libraries
from scripts.main import run_command

SIZES = {"nq10k": (10_000, 8_000, 2_000), "nq100k": (100_000, 80_000, 20_000), "nq320k": (0, 0, 0)}
"""(documents, train pairs, test pairs); 0 for all."""


def main(argv: Sequence[str] | None = None) -> None:
    """Stage the records, draw the collection, print its counts and hashes."""
    arguments = _parse(argv)
    quiet_libraries()
    missing = [str(path) for path in (*arguments.files, *arguments.test) if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"{missing[0]} does not exist; give raw Natural Questions files, or --hub.")
    if not arguments.files and not arguments.hub:
        raise ValueError("Give raw Natural Questions files, or --hub to stream them from the Hub.")
    documents, train, test = SIZES[arguments.size]
    if arguments.counts:
        documents, train, test = arguments.counts
    test_sources = [path.name for path in arguments.test] + ["hub:validation"] * (arguments.hub and not test)
    if not test and not test_sources:
        raise ValueError(
            f"{arguments.size} is tested on other questions than it trains on; name their files with --test."
        )

    work = arguments.output.with_name(f"{arguments.output.name}.staged")
    work.mkdir(parents=True, exist_ok=True)
    journal = read_journal(work)
    journal = stage(_records(arguments, journal, bool(test_sources)), journal, work)
    records = sum(journal.records.values())
    print(f"{records} records: {journal.documents} pages, {journal.pairs} questions, {journal.skipped} skipped")
    report = select(
        work,
        arguments.output,
        documents=documents,
        train=train,
        test=test,
        seed=arguments.seed,
        test_sources=test_sources,
    )
    print(f"{arguments.output}: {report['documents']} documents, {report['train']} train and {report['test']} test pairs, "
          f"{report['overlap']} % of the test pairs Overlap")  # fmt: skip
    for name, digest in report["sha256"].items():
        print(f"  {digest}  {name}")
    if not arguments.keep_staged:
        shutil.rmtree(work)


def _records(arguments: argparse.Namespace, journal: Journal, with_test: bool) -> Records:
    parts: list[Iterator] = [iter(read_files([*arguments.files, *arguments.test], journal.records))]  # type: ignore[type-arg]
    if arguments.hub:
        splits = ["train", "validation"] if with_test else ["train"]
        parts += [iter(read_hub(split, journal.records)) for split in splits]
    return chain(*parts)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dsi prepare-nq", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="raw files, .jsonl or .jsonl.gz")
    parser.add_argument("--hub", action="store_true", help="stream them from the Hub instead")
    parser.add_argument("--test", nargs="+", type=Path, default=[], help="raw files whose questions are the test set")
    parser.add_argument("--size", choices=tuple(SIZES), default="nq10k")
    parser.add_argument(
        "--counts", nargs=3, type=int, metavar=("DOCUMENTS", "TRAIN", "TEST"), help="other sizes; 0 for all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--keep-staged", action="store_true", help="keep DIR.staged, to draw another size from it")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
