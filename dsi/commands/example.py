"""`dsi example`: train, measure and search the collection that ships (Minipedia), offline, in a minute on 2 cores.

Trains as `dsi.train` does by default, measures the index beside BM25 and dense search, answers three queries, explains one
search, and prints where the index is.
"""

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsi.commands.arguments import add_device, add_settings, in_words, parser, with_settings
from dsi.commands.libraries import load_libraries, set_up
from dsi.commands.values import output_folder

if TYPE_CHECKING:
    from dsi.store.retriever import GenerativeRetriever

QUERIES = (
    "which capitals are on the danube",
    "gas that glows in advertising signs",
    "how do bees tell each other about food",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, measure, search."""
    command_line = parser("example", __doc__)
    command_line.add_argument(
        "--output", type=output_folder, default=Path("runs/example"), metavar="RUN", help="of the run"
    )
    add_settings(command_line)
    add_device(command_line)
    arguments = command_line.parse_args(argv)
    started = time.perf_counter()
    print("Minipedia: 600 short encyclopedia documents, 3,600 queries.", flush=True)
    set_up()
    from dsi.config import Config

    config = with_settings(Config(), arguments.settings)
    load_libraries()
    from dsi.docids.data.collection import read_collection
    from dsi.measuring.evaluation import evaluate
    from dsi.store.retriever import GenerativeRetriever
    from dsi.training.pipeline import TrainingRun

    collection = read_collection("minipedia")
    run = TrainingRun(arguments.output, collection, config, arguments.device)
    run.train()
    retriever = GenerativeRetriever.from_pretrained(run.folder, device=arguments.device)
    before = time.perf_counter()
    evaluation = evaluate(retriever, collection)
    run.seconds["evaluation"] = time.perf_counter() - before
    print(f"\n{evaluation}")
    _answer(retriever)
    print(f"\nOne search, level by level:\n\n{retriever.explain(QUERIES[0], k=3)}")
    print(f"\n{in_words(run.seconds)}; {time.perf_counter() - started:.0f} s in all")
    print(_next_steps(run.folder))


def _answer(retriever: "GenerativeRetriever") -> None:
    for query, hits in zip(QUERIES, retriever.search(list(QUERIES), k=3), strict=True):
        print(f"\n{query}")
        for hit in hits:
            print(
                f"  {hit.rank}. {hit.score:7.3f}  {hit.title}  ({hit.doc_id})  docid {'.'.join(map(str, hit.digits))}"
            )


def _next_steps(folder: Path) -> str:
    installed = _installed()
    activate = "" if installed == Path("dsi") else f"\n    # or first: . {installed.with_name('activate')}, then: dsi …"
    return f"""
The index is in {folder}. From the shell:

    {installed} search {folder}{activate}

From Python{"" if installed == Path("dsi") else f" ({installed.with_name('python')})"}:

    import dsi
    retriever = dsi.GenerativeRetriever.from_pretrained("{folder}")
    for hit in retriever.search("{QUERIES[0]}", k=5):
        print(hit.rank, hit.score, hit.doc_id, hit.title, hit.digits)
    print(retriever.explain("{QUERIES[0]}"))"""


def _installed() -> Path:
    """Return the command `dsi` as the user has to type it here."""
    command = Path(sys.executable).with_name("dsi")
    if shutil.which("dsi") == str(command):
        return Path("dsi")
    return command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
