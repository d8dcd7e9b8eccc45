"""`dsi generate-queries`: write pseudo-queries for every document to RUN/pseudo_queries; resumes where it stopped."""

import sys
from collections.abc import Sequence

from scripts.arguments import in_words, training_parser, training_run
from scripts.main import run_command
from scripts.values import count


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stage."""
    parser = training_parser("generate-queries", __doc__)
    parser.add_argument("--method", help='"extractive", or a seq2seq model (Hub name or folder): document -> query')
    parser.add_argument("--per-document", type=count, help="queries per document")
    arguments = parser.parse_args(argv)
    run = training_run(arguments, method=arguments.method, per_document=arguments.per_document)
    run.generate_queries()
    print(f"generate-queries: {in_words(run.seconds)} -> {run.folder / 'pseudo_queries' / 'queries.jsonl'}")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
