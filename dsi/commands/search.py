"""`dsi search`: search an index with a QUERY, a file of queries or --like, or with queries typed or piped in, one per line.

Ctrl-D leaves the prompt. A line that fails gives a message, or with --json an object with "error"; the others are answered, and
the exit status is 2. --queries with --run writes a TREC run. With --among it ranks only the documents of another TREC run by
their document scores; a line counts those that the index lacks. --rerank orders the first --rerank-depth answers again.
"""

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import (
    add_device,
    add_index,
    add_rerank,
    add_search_options,
    open_retriever,
    parser,
    search_options,
)
from dsi.commands.libraries import load_libraries
from dsi.commands.values import count, existing_file, output_file, query_text, read_queries_file

if TYPE_CHECKING:
    from dsi.search.hits import Hits
    from dsi.store.retriever import Retriever

_BOLD = "\033[1m{}\033[0m"
"""Marks matched words on a terminal."""


def main(argv: Sequence[str] | None = None) -> None:
    """Answer one query, all queries of a file, or those from a prompt or a pipe."""
    arguments = _parse(argv)
    queries = read_queries_file(arguments.queries) if arguments.queries else {}
    load_libraries()
    retriever = open_retriever(arguments)
    if arguments.like:
        hits = retriever.similar(arguments.like, arguments.k, **search_options(arguments))
        return _show(hits, arguments.json, like=arguments.like)
    search = _search(retriever, arguments)
    if queries:
        return _write_run(retriever, queries, search, arguments)
    if arguments.query is not None:
        return _show(search(arguments.query), arguments.json, query=arguments.query)
    return _answer_lines(_lines(f"{retriever!r}\nA query, or Ctrl-D to leave"), search, arguments.json)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("search", __doc__)
    add_index(command_line)
    add = command_line.add_argument
    add("query", type=query_text, nargs="?", metavar="QUERY", help="answer this query and exit")
    add("--like", nargs="+", metavar="DOC_ID", help="find documents like this one, or like several, and exit")
    forms = "queries.jsonl, a .csv, .tsv or .parquet with columns id and text, or id, a tab and the text a line; needs --run"
    add("--queries", type=existing_file, metavar="FILE", help=forms)
    add("--run", type=output_file, metavar="OUT", dest="output", help="TREC run to write for --queries")
    add("--json", action="store_true", help="print one JSON object per query")
    add(
        "--among", type=existing_file, metavar="FILE", help="rank only the documents of this TREC run (needs --queries)"
    )
    add("-k", type=count, help="documents per query: 10, with --among all of them by default")
    add_rerank(command_line)
    syntax = """return only documents that contain every "quoted phrase" and no -word, as at the prompt"""
    add("--syntax", action="store_true", help=syntax)
    add_search_options(command_line)
    add_device(command_line, searches=True)
    return command_line


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    arguments = build_parser().parse_args(argv)
    if (arguments.queries is None) != (arguments.output is None):
        raise ValueError("--queries FILE and --run OUT belong together; give both, or neither.")
    if arguments.queries and (arguments.query is not None or arguments.json or arguments.syntax):
        raise ValueError("--queries writes a TREC run of plain queries; leave out QUERY, --json and --syntax.")
    if arguments.among and (not arguments.queries or arguments.rerank):
        raise ValueError(
            "--among needs --queries and cannot be combined with --rerank. Add --queries, or remove --rerank."
        )
    if arguments.like and (arguments.query is not None or arguments.queries or arguments.rerank):
        raise ValueError("--like takes documents as the query; leave out QUERY, --queries and --rerank.")
    arguments.k = arguments.k or (None if arguments.among else 10)
    return arguments


def _search(retriever: "Retriever", arguments: argparse.Namespace) -> Callable[[Any], Any]:
    """Return the search of the command line, of a text or of several; rerankers order its first answers again."""
    syntax, options = arguments.syntax or (arguments.query is None and sys.stdin.isatty()), search_options(arguments)
    if not arguments.rerank:
        return lambda queries: retriever.search(queries, arguments.k, syntax=syntax, **options)
    from dsi.rerankers import load_reranker, rerank

    names, most = arguments.rerank.split("+"), max(arguments.k, arguments.rerank_depth)
    models = [load_reranker(retriever, arguments.run, name, device=arguments.device) for name in names]

    def search(queries: Any) -> Any:
        answer: Any = retriever.search(queries, most, syntax=syntax, **options)
        for model in models:
            answer = rerank(answer, model)
        return answer[: arguments.k] if isinstance(queries, str) else [hits[: arguments.k] for hits in answer]

    return search


def _write_run(
    retriever: "Retriever", queries: dict[str, str], search: Callable[[Any], Any], arguments: argparse.Namespace
) -> None:
    """Write the answers of {query_id: text} as a TREC run, with its file's name as the tag."""
    from dsi.docids.files.storage import file_name
    from dsi.eval.trec import check_fields, read_run, write_run

    check_fields(arguments.output, (*queries, *retriever.snapshot.documents.rows))  # before the search
    found_of = ""
    if arguments.among:
        among = read_run(arguments.among)
        found_of = f", of {len(among)} and {sum(map(len, among.values()))} in {arguments.among}"
        asked = {query_id: text for query_id, text in queries.items() if query_id in among} or queries
        k = arguments.k or max(map(len, among.values()), default=1)
        run = retriever.run(asked, k, among=among, **search_options(arguments))
    elif arguments.rerank:
        answers = zip(queries, search([*queries.values()]), strict=True)
        run = {query_id: {hit.doc_id: hit.score for hit in hits} for query_id, hits in answers}
    else:
        run = retriever.run(queries, arguments.k, **search_options(arguments))
    write_run(run, arguments.output, file_name(arguments.output.stem) or "dsi")
    print(f"{arguments.output}: {len(run)} queries, {sum(map(len, run.values()))} documents{found_of}")


def _answer_lines(lines: Iterator[str], search: Callable[[Any], Any], as_json: bool) -> None:
    """Print the answer of every line, and go on after one that fails."""
    done = failed = 0
    for line in lines:
        done += 1
        try:
            _show(search(line), as_json, query=line)
        except ValueError as error:
            failed += 1
            if as_json:
                readable = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                print(_json(query=readable, error=str(error)), flush=True)
            else:
                print(f"dsi: {error}", file=sys.stderr)
    if failed and not sys.stdin.isatty():
        raise ValueError(f"{failed} of {done} lines failed.")


def _lines(greeting: str) -> Iterator[str]:
    """Yield the lines of a terminal or a pipe that are not blank; bytes that are not UTF-8 come as lone surrogates."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    if is_terminal := sys.stdin.isatty():
        with suppress(ModuleNotFoundError):  # on Windows
            import readline  # noqa: F401 (lines can be edited and called again)
        print(greeting)
    with suppress(EOFError):
        while True:
            if line := input("dsi> " if is_terminal else "").strip():
                yield line


def _show(hits: "Hits", as_json: bool, **asked: Any) -> None:
    if as_json:
        note = {"note": hits.note} if hits.note else {}
        said = note | hits.uncovered.as_dict()
        print(_json(**asked, **said, exact=hits.exact, hits=[hit.as_dict() for hit in hits]), flush=True)
        return
    mark = _BOLD.format if sys.stdout.isatty() and "NO_COLOR" not in os.environ else str
    print(hits.format(mark), flush=True)


def _json(**record: Any) -> str:
    return json.dumps(record, ensure_ascii=False)
