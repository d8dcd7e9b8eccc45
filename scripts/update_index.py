"""`dsi update`: add documents to an index and remove others, without training.

New documents come from a corpus.jsonl (`_id`, `title`, `text`) and are searchable at once. Documents are removed first, so a
document in both lists is replaced. --texts keeps the texts of documents in the index, for rerankers that read them. The index
on disk changes atomically; on any error it stays as it is.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.arguments import add_device, parser, quiet_libraries
from scripts.main import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """Update, print the number of documents."""
    arguments = parser("update", __doc__)
    arguments.add_argument("run", type=Path, metavar="RUN", help="an index")
    arguments.add_argument(
        "--add", type=Path, metavar="FILE", help="corpus.jsonl or corpus.jsonl.gz of the new documents"
    )
    arguments.add_argument("--remove", nargs="+", default=[], metavar="DOC_ID", help="documents to remove")
    arguments.add_argument("--remove-file", type=Path, metavar="FILE", help="documents to remove, one doc_id per line")
    arguments.add_argument(
        "--texts", type=Path, metavar="DIR", help="collection whose texts the index keeps from now on"
    )
    add_device(arguments)
    given = arguments.parse_args(argv)
    removed = list(given.remove)
    if given.remove_file:
        removed += [line for line in given.remove_file.read_text(encoding="utf-8").splitlines() if line]
    if not removed and not given.add and not given.texts:
        raise ValueError(
            "There is nothing to do; give --add FILE, --remove DOC_ID …, --remove-file FILE or --texts DIR."
        )
    quiet_libraries()
    from docids.collection import document_records, read_documents
    from dsi.retriever import GenerativeRetriever

    added = list(document_records(given.add)) if given.add else []
    retriever = GenerativeRetriever.from_pretrained(given.run, device=given.device)
    if given.texts:
        retriever.keep_texts(read_documents(given.texts))
    retriever.remove(removed)
    retriever.add(added)
    generation = retriever.save_update(given.run)
    print(
        f"{given.run}: {len(set(removed))} documents removed, {len(added)} added, {len(retriever.documents)} now; "
        f"generation {generation}"
    )


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
