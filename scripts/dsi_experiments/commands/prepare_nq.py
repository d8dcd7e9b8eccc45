"""`dsi prepare-nq`: write Natural Questions as a collection (a BEIR folder).

Reads raw files (v1.0-simplified_nq-train.jsonl.gz, or the original nq-train-??.jsonl.gz) or streams from the Hub. One document
per Wikipedia page title. nq10k: 10,000 documents, 8,000 train and 2,000 test pairs; nq100k: 100,000, 80,000 and 20,000 (DR-SCL,
Table 1), drawn with a seed; nq320k: every page and train question, tested on the questions of --test. Two published
collections are called NQ320k, and their numbers are not comparable: DSI's has about 228,000 documents, NCI's 109,739. This one
has a document for every title in the given files. A killed run resumes where it stopped.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dsi.commands.arguments import parser
from dsi.commands.libraries import quiet_logging
from dsi.commands.values import number, output_folder
from dsi_experiments.collections.natural_questions import SIZES, prepare


def main(argv: Sequence[str] | None = None) -> None:
    """Write the collection, print its counts and hashes."""
    arguments = build_parser().parse_args(argv)
    quiet_logging()
    journal, report = prepare(
        arguments.output,
        files=arguments.files,
        test_files=arguments.test,
        hub=arguments.hub,
        size=arguments.size,
        counts=arguments.counts,
        seed=arguments.seed,
        keep_staged=arguments.keep_staged,
    )
    records = sum(journal.records.values())
    print(f"{records} records: {journal.documents} pages, {journal.pairs} questions, {journal.skipped} skipped")
    print(f"{arguments.output}: {report['documents']} documents, {report['train']} train and {report['test']} test pairs, "
          f"{report['overlap']} % of the test pairs Overlap")  # fmt: skip
    for name, digest in report["sha256"].items():
        print(f"  {digest}  {name}")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("prepare-nq", __doc__)
    command_line.add_argument("files", nargs="*", type=Path, help="raw files, .jsonl or .jsonl.gz")
    command_line.add_argument("--hub", action="store_true", help="stream from the Hub instead")
    command_line.add_argument("--test", nargs="+", type=Path, default=[], help="raw files of the test questions")
    command_line.add_argument("--size", choices=tuple(SIZES), default="nq10k", help="see above")
    command_line.add_argument(
        "--counts",
        nargs=3,
        type=number(int, 0),
        default=[],
        metavar=("DOCUMENTS", "TRAIN", "TEST"),
        help="other sizes; 0 for all",
    )
    command_line.add_argument("--seed", type=number(int, 0), default=0, help="of the choice of pairs and pages")
    command_line.add_argument(
        "--output", type=output_folder, required=True, metavar="DIR", help="folder of the collection"
    )
    command_line.add_argument(
        "--keep-staged", action="store_true", help="keep DIR.staged, so that another size can be drawn from it"
    )
    return command_line
