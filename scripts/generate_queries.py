"""`dsi generate-queries`: pseudo-queries for every document into RUN/queries; goes on where it was stopped."""

import sys
from collections.abc import Sequence

from scripts.arguments import training_parser, training_run
from scripts.main import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stage."""
    parser = training_parser("generate-queries", __doc__)
    parser.add_argument("--method", help='"extractive", or a seq2seq model (Hub name or folder): document -> query')
    parser.add_argument("--per-document", type=int, help="queries a document")
    arguments = parser.parse_args(argv)
    run = training_run(arguments, method=arguments.method, per_document=arguments.per_document)
    run.generate_queries()
    print(f"generate-queries: {run.seconds.get('queries', 0):.0f} s -> {run.folder / 'queries' / 'queries.jsonl'}")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
