"""`dsi search`: ask an index, at a prompt with history or with --query.

At the prompt: a query searches; `:explain QUERY` shows the search level by level; `:quit` (or Ctrl-D) leaves.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dsi.answers import Hits
from dsi.retriever import GenerativeRetriever
from scripts.arguments import quiet_libraries
from scripts.main import run_command

_HISTORY = Path("~/.dsi_history").expanduser()


def main(argv: Sequence[str] | None = None) -> None:
    """Answer one query, or read them from a prompt (or a pipe) until the end."""
    arguments = _parse(argv)
    quiet_libraries()
    retriever = GenerativeRetriever.from_pretrained(arguments.run, device=arguments.device, dtype=arguments.dtype)
    names = ("alpha", "beta", "fusion", "beam_width")
    settings = {name: getattr(arguments, name) for name in names}
    filters = {name: getattr(arguments, name) for name in ("allow", "deny", "where")}
    options = {**settings, **filters, "exact": arguments.exact}
    show = _show_json if arguments.json else _show_text
    if arguments.query is not None:
        show(arguments.query, retriever.search(arguments.query, arguments.k, **options))
        return
    for line in _lines(f"{retriever!r}\nA query, :explain QUERY, or :quit"):
        try:
            if line.startswith(":explain "):
                print(retriever.explain(line.removeprefix(":explain "), arguments.k, **settings))
            else:
                show(line, retriever.search(line, arguments.k, **options))
        except ValueError as error:
            print(f"dsi: {error}", file=sys.stderr)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dsi search", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="an index")
    parser.add_argument("--query", help="answer this one and leave")
    parser.add_argument("--json", action="store_true", help="one JSON object a query")
    parser.add_argument("-k", type=int, default=10, help="documents a query")
    parser.add_argument("--alpha", type=float, help="the decoder's weight in [0, 1]; as tuned by default")
    parser.add_argument("--beta", type=float, help="levels with dense scores (inf for all)")
    parser.add_argument("--fusion", choices=("bound", "paper"))
    parser.add_argument("--beam-width", type=int)
    parser.add_argument("--exact", action="store_true", help="widen the beam until the answer is certified")
    parser.add_argument("--allow", nargs="+", metavar="DOC_ID", help="only these documents may be returned")
    parser.add_argument("--deny", nargs="+", metavar="DOC_ID", default=(), help="these must not be returned")
    parser.add_argument("--where", metavar="SQL", help="only documents whose metadata fit: lang = 'en' and year > 2000")
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16, of encoder and decoder")
    parser.add_argument("--device")
    return parser.parse_args(argv)


def _lines(greeting: str) -> Iterator[str]:
    """Lines of the prompt with history, or of a pipe, without blank ones; ends at `:quit` or the end of input."""
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
    except ModuleNotFoundError:  # not on every platform; the prompt works without
        return
    import atexit

    if _HISTORY.exists():
        readline.read_history_file(_HISTORY)
    readline.set_history_length(1000)
    atexit.register(readline.write_history_file, _HISTORY)


def _show_text(query: str, hits: Hits) -> None:
    print(f"{query}{'' if hits.exact else '  (beam search; not certified as the exact top k)'}")
    for hit in hits:
        print(f"{hit.rank:4d}  {hit.score:9.4f}  {hit.doc_id}  {hit.title}  [{'.'.join(map(str, hit.digits))}]")


def _show_json(query: str, hits: Hits) -> None:
    record: dict[str, Any] = {"query": query, "exact": hits.exact, "hits": [hit._asdict() for hit in hits]}
    print(json.dumps(record, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
