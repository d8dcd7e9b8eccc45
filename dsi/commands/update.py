"""`dsi update`: add documents to an index and remove others, without training.

New documents come from a corpus.jsonl (`_id`, `title`, `text`) and are searchable at once. Documents are removed first, so a
document in both lists is replaced. --texts keeps the texts of documents in the index, for rerankers that read them. --vectors
keeps their vectors in fewer bytes. The index on disk changes atomically; on any error it stays as it is. Updates at the same
time wait for each other.
"""

import sys
from collections.abc import Sequence

from dsi.commands.arguments import add_device, add_index, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.main import run_command
from dsi.commands.values import collection_folder, count, existing_file


def main(argv: Sequence[str] | None = None) -> None:
    """Update, print the number of documents."""
    arguments = parser("update", __doc__)
    add_index(arguments)
    arguments.add_argument(
        "--add", type=existing_file, metavar="FILE", help="corpus.jsonl or corpus.jsonl.gz of the new documents"
    )
    arguments.add_argument("--remove", nargs="+", default=[], metavar="DOC_ID", help="documents to remove")
    arguments.add_argument(
        "--remove-file", type=existing_file, metavar="FILE", help="documents to remove, one doc_id per line"
    )
    arguments.add_argument(
        "--texts", type=collection_folder, metavar="DIR", help="collection whose texts the index keeps from now on"
    )
    arguments.add_argument(
        "--vectors", choices=("float32", "float16", "int8", "pq"), help="how vectors are kept from now on"
    )
    arguments.add_argument(
        "--code-bytes",
        type=count,
        metavar="N",
        help="with --vectors: bytes of a document's codes (see vectors.code_bytes)",
    )
    add_device(arguments)
    given = arguments.parse_args(argv)
    if given.code_bytes and not given.vectors:
        raise ValueError("--code-bytes needs --vectors, which says how vectors are kept.")
    if not (given.remove or given.remove_file or given.add or given.texts or given.vectors):
        raise ValueError(
            "There is nothing to do; give --add FILE, --remove DOC_ID …, --remove-file FILE, --texts DIR or --vectors KIND."
        )
    load_libraries()
    from docids.data.collection import document_records, read_documents
    from docids.data.lines import text_lines
    from dsi.retriever import GenerativeRetriever
    from dsi.store.loading import updating

    in_file = [line for _, line in text_lines(given.remove_file)] if given.remove_file else []
    removed = [*given.remove, *in_file]
    added = list(document_records(given.add)) if given.add else []
    with updating(given.run):  # from reading to writing, so that no other update comes between
        retriever = GenerativeRetriever.from_pretrained(given.run, device=given.device)
        if given.texts:
            retriever.keep_texts(read_documents(given.texts))
        if given.vectors:
            retriever.keep_vectors(given.vectors, given.code_bytes or 0)
        retriever.remove(removed)
        retriever.add(added)
        generation = retriever.save_update(given.run)
    print(
        f"{given.run}: {len(set(removed))} documents removed, {len(added)} added, {len(retriever.documents)} now; "
        f"generation {generation}"
    )


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
