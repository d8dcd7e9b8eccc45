"""`dsi search`: search an index, with --query, with a query a line at a prompt or in a pipe, with a file of queries, or --like.

Ctrl-D leaves the prompt. A line that fails gives a message, or with --json an object with "error"; the others are answered, and
the exit status is 2. --queries with --run writes a TREC run. --rerank orders the first --rerank-depth answers again.
"""

import argparse
import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import (
    add_device,
    add_index,
    add_search_options,
    open_retriever,
    parser,
    search_options,
)
from dsi.commands.libraries import load_libraries
from dsi.commands.queries_file import read_queries_file
from dsi.commands.values import count, existing_file, output_file, query_text

if TYPE_CHECKING:
    from dsi.search.hits import Hits
    from dsi.store.retriever import GenerativeRetriever

_BOLD = "\033[1m{}\033[0m"
"""Marks matched words on a terminal."""


def main(argv: Sequence[str] | None = None) -> None:
    """Answer one query, all queries of a file, or those from a prompt or a pipe."""
    arguments = _parse(argv)
    queries = read_queries_file(arguments.queries) if arguments.queries else {}
    load_libraries()
    retriever = open_retriever(arguments)
    most = max(arguments.k, arguments.rerank_depth or 50)
    syntax = arguments.syntax or (arguments.query is None and sys.stdin.isatty())
    options, models = search_options(arguments), _models(retriever, arguments)
    searches = _Searches(retriever, options, arguments.k, models, most, arguments.json, syntax)
    if queries:
        searches.write_run(queries, arguments)
    elif arguments.like:
        searches.answer_like(arguments.like)
    elif arguments.query is not None:
        searches.answer_query(arguments.query)
    else:
        searches.answer_lines(_lines(f"{retriever!r}\nA query, or Ctrl-D to leave"))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    command_line = parser("search", __doc__)
    add_index(command_line)
    command_line.add_argument("--query", type=query_text, help="answer this query and exit")
    command_line.add_argument(
        "--like", nargs="+", metavar="DOC_ID", help="find documents that are like this one, or like several, and exit"
    )
    command_line.add_argument(
        "--queries",
        type=existing_file,
        metavar="FILE",
        help="queries.jsonl, a .csv, .tsv or .parquet with columns id and text, or id, a tab and the text a line; needs --run",
    )
    command_line.add_argument(
        "--run", type=output_file, metavar="OUT", dest="output", help="TREC run to write for --queries"
    )
    command_line.add_argument("--json", action="store_true", help="print one JSON object per query")
    command_line.add_argument("-k", type=count, default=10, help="documents per query")
    command_line.add_argument(
        "--rerank",
        metavar="NAME",
        help="a reranker of RUN/rerank (A+B: one after another), or cross-encoder:MODEL, a Hub name or a folder",
    )
    command_line.add_argument(
        "--rerank-depth", type=count, metavar="N", help="answers that --rerank reorders; 50 by default"
    )
    syntax = """take documents that have each "quote" and no -word of a query, as at the prompt"""
    command_line.add_argument("--syntax", action="store_true", help=syntax)
    add_search_options(command_line)
    add_device(command_line, searches=True)
    arguments = command_line.parse_args(argv)
    if arguments.rerank_depth and not arguments.rerank:
        raise ValueError("--rerank-depth says how many answers --rerank reorders; give --rerank too, or leave it out.")
    if (arguments.queries is None) != (arguments.output is None):
        raise ValueError("--queries FILE and --run OUT belong together; give both, or neither.")
    if arguments.queries and (arguments.query is not None or arguments.json or arguments.syntax):
        raise ValueError("--queries writes a TREC run of plain queries; leave out --query, --json and --syntax.")
    if arguments.like and (arguments.query is not None or arguments.queries or arguments.rerank):
        raise ValueError("--like takes documents as the query; leave out --query, --queries and --rerank.")
    return arguments


def _models(retriever: "GenerativeRetriever", arguments: argparse.Namespace) -> list[Any]:
    """Return the models that --rerank names."""
    if not arguments.rerank:
        return []
    from dsi.rerankers import load_reranker

    names = arguments.rerank.split("+")
    return [load_reranker(retriever, arguments.run, name, device=arguments.device) for name in names]


@dataclass(frozen=True)
class _Searches:
    """Searches with the options of a command line.

    Attributes:
        retriever: the index.
        options: of every search.
        k: documents per query.
        rerankers: reorder the first `most` answers.
        most: see there.
        as_json: print JSON objects.
        syntax: read quotes and minuses of queries.
    """

    retriever: "GenerativeRetriever"
    options: dict[str, Any]
    k: int
    rerankers: list[Any]
    most: int
    as_json: bool
    syntax: bool

    def write_run(self, queries: dict[str, str], arguments: argparse.Namespace) -> None:
        """Write the answers of {query_id: text} as a TREC run, with its file's name as the tag."""
        from dsi.docids.files.storage import file_name
        from dsi.eval.trec import check_fields, write_run

        ids = *queries, *self.retriever.documents.rows
        check_fields(arguments.output, ids)  # before the search
        if self.rerankers:
            found = zip(queries, self._reranked([*queries.values()]), strict=True)
            run = {query_id: {hit.doc_id: hit.score for hit in hits[: self.k]} for query_id, hits in found}
        else:
            run = self.retriever.run(queries, self.k, **self.options)
        tag = file_name(arguments.output.stem) or "dsi"
        write_run(run, arguments.output, tag)
        print(f"{arguments.output}: {len(run)} queries, {sum(map(len, run.values()))} documents")

    def answer_like(self, doc_ids: list[str]) -> None:
        """Print the documents that are like some."""
        hits = self.retriever.similar(doc_ids, self.k, **self.options)
        _show_json(hits, like=doc_ids) if self.as_json else _show_text(hits)

    def answer_query(self, query: str) -> None:
        """Print the answer of one query.

        Raises:
            ValueError: it failed.
        """
        try:
            self._answer(query)
        except ValueError as error:
            if self.as_json:
                self._show_error(query, error)
            raise

    def answer_lines(self, lines: Iterable[str]) -> None:
        """Print the answer of every line, and go on after one that fails.

        Raises:
            ValueError: some failed, and no terminal showed it.
        """
        done = failed = 0
        for line in lines:
            done += 1
            try:
                self._answer(line)
            except ValueError as error:
                failed += 1
                self._show_error(line, error)
        if failed and not sys.stdin.isatty():
            raise ValueError(f"{failed} of {done} lines failed.")

    def _answer(self, query: str) -> None:
        hits = self._search(query)
        _show_json(hits, query=query) if self.as_json else _show_text(hits)

    def _search(self, query: str) -> "Hits":
        if self.rerankers:
            return self._reranked([query])[0][: self.k]
        return self.retriever.search(query, self.k, syntax=self.syntax, **self.options)

    def _reranked(self, queries: list[str]) -> "list[Hits]":
        from dsi.rerankers import rerank

        found = self.retriever.search(queries, self.most, syntax=self.syntax, **self.options)
        return reduce(rerank, self.rerankers, found)

    def _show_error(self, line: str, error: ValueError) -> None:
        if self.as_json:
            readable = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            print(_json(query=readable, error=str(error)), flush=True)
        else:
            print(f"dsi: {error}", file=sys.stderr)


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


def _show_text(hits: "Hits") -> None:
    is_terminal = sys.stdout.isatty()
    mark = _BOLD.format if is_terminal and "NO_COLOR" not in os.environ else str
    print(hits.format(mark, shutil.get_terminal_size().columns if is_terminal else None), flush=True)


def _show_json(hits: "Hits", **asked: Any) -> None:
    note = {"note": hits.note} if hits.note else {}
    print(
        _json(**asked, **note, **hits.uncovered.as_dict(), exact=hits.exact, hits=[hit.as_dict() for hit in hits]),
        flush=True,
    )


def _json(**record: Any) -> str:
    return json.dumps(record, ensure_ascii=False)
