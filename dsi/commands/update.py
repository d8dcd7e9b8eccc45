"""`dsi update`: bring an index up to date with its files, add and remove documents, learn from use: all without training.

A SOURCE is a file or a folder of `dsi index`: its new and changed files are read, those that are gone leave the index, and
nothing else is touched. With --add, files of any kind that `dsi index` reads add documents, searchable at once. A document that
is both removed and added is replaced. --learn learns which documents users chose for their queries, and --forget undoes that;
--since and --before limit it to pairs learned in that period (`dsi info INDEX --learned` lists them). --texts keeps the texts
of documents in the index, for rerankers that read them. --vectors keeps their vectors in fewer bytes. The index on disk changes
atomically; on any error it stays as it is. Simultaneous updates wait for each other.
"""

import argparse
from collections.abc import Sequence

from dsi.commands.arguments import add_device, add_index, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import collection_folder, existing_file, source_path
from dsi.docids.files.checks import counted


def main(argv: Sequence[str] | None = None) -> None:
    """Update, print the number of documents."""
    arguments = _parse(argv)
    load_libraries()
    from dsi.docids.data.collection import read_documents
    from dsi.docids.data.sources import text_lines
    from dsi.measuring.cloze import renew_best_scores
    from dsi.store.folder.writing import index_lock
    from dsi.store.retriever import load

    in_file = [line for _, line in text_lines(arguments.remove_file)] if arguments.remove_file else []
    removed = list(dict.fromkeys([*arguments.remove, *in_file]))
    when = {"since": arguments.since, "before": arguments.before}
    forgets = arguments.forget or ([None] if any(when.values()) else [])  # None: all pairs
    with index_lock(arguments.run):  # from reading to writing, so that no other update comes between
        retriever = load(arguments.run, device=arguments.device)
        changes = retriever.update(
            *arguments.sources, add=arguments.add, remove=removed,
            texts=read_documents(arguments.texts) if arguments.texts else None,
            vectors=arguments.vectors,
        )  # fmt: skip
        learned = sum(map(retriever.learn, arguments.learn))
        forgotten = sum(retriever.forget(pairs, **when) for pairs in forgets)
        renew_best_scores(retriever)
        generation = retriever.save(arguments.run)
    told, uses = [], ""
    if files := changes.files:
        told.append(f"files: {files.new} new, {files.changed} changed, {files.gone} gone, {files.same} the same")
    if removed or arguments.add or not files:
        gone = counted(changes.removed, "document")
        told.append(f"{gone} removed, {changes.added} added, {changes.replaced} replaced")
    if arguments.learn or forgets:
        uses = (
            f"{counted(learned, 'pair')} learned, {forgotten} forgotten, {len(retriever.snapshot.memory)} remembered; "
        )
    now = f"{counted(len(retriever), 'document')} now"
    print(f"{arguments.run}: {'; '.join(told)}, {now}; {uses}generation {generation}")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("update", __doc__)
    add_index(command_line)
    add = command_line.add_argument
    add("sources", nargs="*", type=source_path, metavar="SOURCE", help="files or folders of the index, or more of them")
    new = "files or folders of new documents, as for dsi index"
    add("--add", type=source_path, nargs="+", default=[], metavar="FILE", help=new)
    add("--remove", nargs="+", default=[], metavar="DOC_ID", help="documents, or files, to remove")
    add("--remove-file", type=existing_file, metavar="FILE", help="documents, or files, to remove, one a line")
    for name, what in (("learn", "learn"), ("forget", "forget; an empty query stands for all of a document")):
        pairs = f"files of query<TAB>doc_id, or with these keys (.tsv, .csv, .jsonl, .parquet), to {what}"
        add(f"--{name}", type=existing_file, nargs="+", default=[], metavar="FILE", help=pairs)
    for name in ("since", "before"):
        add(f"--{name}", metavar="TIME", help=f"forget only what was learned {name} this time in UTC: 2026-11-28T14:30")
    add("--texts", type=collection_folder, metavar="COLLECTION", help="keep the texts of its documents in the index")
    add("--vectors", choices=("float32", "int8"), help="how vectors are kept from now on")
    add_device(command_line)
    return command_line


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    arguments = build_parser().parse_args(argv)
    if arguments.learn and not arguments.forget and (arguments.since or arguments.before):
        raise ValueError("--since and --before limit what is forgotten, not what --learn learns; leave them out.")
    if not any(value for name, value in vars(arguments).items() if name not in ("run", "device")):
        raise ValueError(
            "There is nothing to do; give a folder of files, --add FILE, --remove DOC_ID …, --remove-file FILE, --learn FILE, "
            "--forget FILE, --since TIME, --before TIME, --texts COLLECTION or --vectors KIND."
        )
    return arguments
