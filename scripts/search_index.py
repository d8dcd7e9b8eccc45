"""`dsi search`: search an index, at a prompt with history or with --query.

At the prompt, a query searches, `:explain QUERY` shows the search level by level, `:quit` (or Ctrl-D) leaves.
--rerank orders the first --candidates answers anew.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.arguments import add_device, add_search_options, parser, quiet_libraries, search_options
from scripts.main import run_command

if TYPE_CHECKING:
    from dsi.retriever import GenerativeRetriever
    from dsi.search.answers import Hits

_HISTORY = Path("~/.dsi_history").expanduser()


def main(argv: Sequence[str] | None = None) -> None:
    """Answer one query, or all queries from a prompt or a pipe."""
    arguments = _parse(argv)
    if arguments.candidates and not arguments.rerank:
        raise ValueError("--candidates says how many answers --rerank reorders; give --rerank too, or leave it out.")
    quiet_libraries()
    from dsi.retriever import GenerativeRetriever

    retriever = GenerativeRetriever.from_pretrained(arguments.run, device=arguments.device, dtype=arguments.dtype)
    options, k = search_options(arguments), arguments.k
    search, show = _searcher(arguments, retriever, options), _show_json if arguments.json else _show_text
    if arguments.query is not None:
        show(arguments.query, search(arguments.query))
        return
    for line in _lines(f"{retriever!r}\nA query, :explain QUERY, or :quit"):
        try:
            if line.startswith(":explain "):
                print(retriever.explain(line.removeprefix(":explain "), k, **options))
            else:
                show(line, search(line))
        except ValueError as error:
            print(f"dsi: {error}", file=sys.stderr)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    arguments = parser("search", __doc__)
    arguments.add_argument("run", type=Path, metavar="RUN", help="an index")
    arguments.add_argument("--query", help="answer this query and exit")
    arguments.add_argument("--json", action="store_true", help="print one JSON object per query")
    arguments.add_argument("-k", type=int, default=10, help="documents per query")
    arguments.add_argument(
        "--rerank",
        metavar="NAME",
        help="a reranker of RUN/rerank (A+B: one after another), or cross-encoder:MODEL, a Hub name or a folder",
    )
    arguments.add_argument("--candidates", type=int, metavar="N", help="answers that --rerank reorders; 50 by default")
    add_search_options(arguments)
    add_device(arguments, dtype=True)
    return arguments.parse_args(argv)


def _searcher(
    arguments: argparse.Namespace, retriever: "GenerativeRetriever", options: dict[str, Any]
) -> "Callable[[str], Hits]":
    """Return a function that searches for a query, and reranks the answers if that was asked for."""
    k = arguments.k
    if not arguments.rerank:
        return lambda query: retriever.search(query, k, **options)
    from dsi.reranking import load_rerankers, rerank
    from dsi.search.answers import Hits

    rerankers = load_rerankers(arguments.run, arguments.rerank.split("+"), device=arguments.device)
    features = any(reranker.uses_features for reranker in rerankers)
    most = max(k, arguments.candidates or 50)

    def search(query: str) -> Hits:
        candidates = retriever.candidates([query], most, features=features, **options)
        (hits,) = rerank(candidates, rerankers).hits()
        return Hits(hits[:k], hits.exact)

    return search


def _lines(greeting: str) -> Iterator[str]:
    """Yield the non-blank lines of the prompt (with history) or of a pipe, up to `:quit` or the end of input."""
    interactive = sys.stdin.isatty()
    if interactive:
        _load_history()
        print(greeting)
    while True:
        try:
            line = input("dsi> " if interactive else "").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if line == ":quit":
            return
        if line:
            yield line


def _load_history() -> None:
    try:
        import readline
    except ModuleNotFoundError:  # missing on some platforms; the prompt works without it
        return
    import atexit

    if _HISTORY.exists():
        readline.read_history_file(_HISTORY)
    readline.set_history_length(1000)
    atexit.register(readline.write_history_file, _HISTORY)


def _show_text(query: str, hits: "Hits") -> None:
    print(f"{query}{'' if hits.exact else '  (not certified as the exact top k)'}")
    for hit in hits:
        print(f"{hit.rank:4d}  {hit.score:9.4f}  {hit.doc_id}  {hit.title}  [{'.'.join(map(str, hit.digits))}]")


def _show_json(query: str, hits: "Hits") -> None:
    record: dict[str, Any] = {"query": query, "exact": hits.exact, "hits": [hit._asdict() for hit in hits]}
    print(json.dumps(record, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
