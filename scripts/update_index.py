"""`dsi update`: add documents to an index and remove others, without training.

New documents come from a corpus.jsonl (`_id`, `title`, `text`); they are searchable at once. Documents are removed first, so
one that is in both is replaced. The index on disk goes from old to new in one step; when anything is wrong it stays as it is.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from docids.collection import document_records
from dsi.retriever import GenerativeRetriever
from scripts.arguments import quiet_libraries
from scripts.main import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """Update, say what the index holds now."""
    parser = argparse.ArgumentParser(
        prog="dsi update", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="an index")
    parser.add_argument("--add", type=Path, metavar="FILE", help="corpus.jsonl or corpus.jsonl.gz of the new documents")
    parser.add_argument("--remove", nargs="+", default=[], metavar="DOC_ID", help="documents to remove")
    parser.add_argument("--remove-file", type=Path, metavar="FILE", help="the same, a doc_id a line")
    parser.add_argument("--device")
    arguments = parser.parse_args(argv)
    quiet_libraries()
    removed = list(arguments.remove)
    if arguments.remove_file:
        removed += [line for line in arguments.remove_file.read_text(encoding="utf-8").splitlines() if line]
    if not removed and not arguments.add:
        raise ValueError("There is nothing to do; give --add FILE, --remove DOC_ID … or --remove-file FILE.")
    added = list(document_records(arguments.add)) if arguments.add else []
    retriever = GenerativeRetriever.from_pretrained(arguments.run, device=arguments.device)
    retriever.remove(removed)
    retriever.add(added)
    generation = retriever.save_update(arguments.run)
    print(
        f"{arguments.run}: {len(set(removed))} documents removed, {len(added)} added, {len(retriever.documents)} now; "
        f"generation {generation}"
    )


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
