"""What commands share: arguments, and search options.

Imports nothing heavy, so that `dsi COMMAND --help` answers at once, and a wrong argument is refused at once.
"""

import argparse
import re
import textwrap
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from dsi.commands.libraries import set_up
from dsi.commands.values import argument_of, collection_folder, count, existing_file, flag, index_folder, setting

if TYPE_CHECKING:
    from dsi.config import Config
    from dsi.docids.data.collection import Collection as Texts
    from dsi.store.retriever import Retriever


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of a description, and names the defaults."""

    def _get_help_string(self, action: argparse.Action) -> str:
        default = shown_default(action)
        return f"{action.help or ''} (default: {default})" if default else action.help or ""


def shown_default(action: argparse.Action) -> str:
    """Return the default of an argument as it is written, or "" if it goes without saying."""
    default = action.default
    if default in (None, False, [], argparse.SUPPRESS):
        return ""
    return " ".join(map(str, default)) if isinstance(default, list) else str(default)


class _Parser(argparse.ArgumentParser):
    """Wrong arguments are a ValueError, which `dsi.commands.main.run_command` shows as one line."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse arguments, of which options may stand before, between and after the others."""
        return super().parse_intermixed_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments:.*?(--?\w[\w-]*)", message)
        near = get_close_matches(unknown[1], self._option_string_actions, 1, 0.75) if unknown else []
        quotes = "" if unknown or "unrecognized" not in message else "; put a query of several words into quotes"
        see = "" if message.startswith("argument ") else f"{quotes}; see {self.prog} --help"
        raise ValueError(f"{message}; did you mean {near[0]}?" if near else f"{message}{see}")


def parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser for a command."""
    return _Parser(prog=f"dsi {command}", description=description, formatter_class=_Help, allow_abbrev=False)


def add_index(arguments: argparse.ArgumentParser) -> None:
    """Add INDEX, a finished index."""
    arguments.add_argument("run", type=index_folder, metavar="INDEX", help="an index")


def add_collection(
    arguments: argparse.ArgumentParser, what: str = "the collection, a folder in BEIR layout or of texts"
) -> None:
    """Add COLLECTION."""
    what = f"{what}; minipedia: the one that ships"
    arguments.add_argument("data", type=collection_folder, metavar="COLLECTION", help=what)


def add_judgements(arguments: argparse.ArgumentParser, what: str) -> None:
    """Add COLLECTION, with the judgements to measure on, --pairs, --split and --measures."""
    add_collection(arguments, what)
    add_pairs(arguments, "questions to measure on, beside those of --split: query, positive and perhaps query_id")
    arguments.add_argument("--split", default="test", choices=("train", "dev", "test"), help="judgements to measure on")
    help_text = "such as nDCG@10, Recall@100, MAP; by default those that the judgements ask for"
    arguments.add_argument("--measures", nargs="+", default=[], metavar="NAME", help=help_text)


def add_pairs(arguments: argparse.ArgumentParser, what: str) -> None:
    """Add --pairs."""
    forms = f"{what}, as .jsonl, .parquet, .csv or .tsv, by texts or by ids"
    arguments.add_argument("--pairs", type=existing_file, metavar="FILE", help=forms)


def read_judged(arguments: argparse.Namespace, **cut: Any) -> "Texts":
    """Return the collection of the command line, with the judgements of --pairs."""
    from dsi.docids.data.collection import read_collection

    collection = read_collection(arguments.data, **cut)
    return collection.with_pairs(arguments.pairs, arguments.split, **cut) if arguments.pairs else collection


def add_rerank(arguments: argparse.ArgumentParser, **kind: Any) -> None:
    """Add --rerank and --rerank-depth."""
    names = "rerankers of INDEX/rerank (A+B: one after another), or cross-encoder:MODEL, a Hub name or a folder"
    arguments.add_argument("--rerank", metavar="NAME", help=names, **kind)
    depth = "answers that --rerank reorders"
    arguments.add_argument("--rerank-depth", type=count, default=50, metavar="N", help=depth)


def add_device(arguments: argparse.ArgumentParser, *, searches: bool = False) -> None:
    """Add --device, and --dtype for commands that search."""
    arguments.add_argument("--device", help="cpu, cuda, …; the best available by default")
    if searches:
        kinds = ("float32", "bfloat16")
        arguments.add_argument("--dtype", default="float32", choices=kinds, help="of encoder and decoder")


def open_retriever(arguments: argparse.Namespace) -> "Retriever":
    """Return the index that the command line names, on its device."""
    from dsi.store.retriever import load

    return load(arguments.run, device=arguments.device, dtype=arguments.dtype)


def add_search_options(arguments: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """Add an argument for each search option that fits on a command line, but for some."""
    from dsi.search.request import option_declarations, written_as

    group = arguments.add_argument_group("search options", "options that you omit keep the tuned values of the index")
    for name, option in option_declarations().items():
        if option.kind is not object and name not in without:
            metavar = written_as(name).metavar if option.default is None else None
            group.add_argument(flag(name), metavar=metavar, **argument_of(option))


def search_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the search options that were given."""
    from dsi.search.request import OPTIONS

    values = {name: getattr(arguments, name, None) for name in OPTIONS}
    return {name: value for name, value in values.items() if value is not None}


def add_configuration(arguments: argparse.ArgumentParser, config: str) -> None:
    """Add --config, --set, --settings, and --encoder, --language and --pieces, short for settings of --set."""
    arguments.add_argument("--config", metavar="NAME", help=config)
    add_settings(arguments)
    add = partial(arguments.add_argument, dest="settings", action="append", default=[])
    for option, name, metavar, text in (
        ("--encoder", "encoder.name", "MODEL", "a sentence-transformers model: a Hub name or a folder"),
        ("--language", "lexical.language", "NAME", 'of the documents, for stemming; "none" turns it off'),
        ("--pieces", "docids.pieces", "N", "cut a long text into at most N pieces with an embedding each"),
    ):
        add(option, type=partial(_short, name), metavar=metavar, help=text)


def add_settings(arguments: argparse.ArgumentParser) -> None:
    """Add --set, for single settings of a configuration, and --settings, which lists all."""
    add, form = partial(arguments.add_argument, "--set", dest="settings", action="append"), "SECTION.NAME=VALUE"
    example = "change one setting of the configuration, such as docids.branching=10; may be repeated"
    add(type=setting, default=[], metavar=form, help=example)
    arguments.add_argument(
        "--settings", action=_Settings, help="list all settings, of the --config before it, and exit"
    )


def _short(name: str, value: str) -> tuple[str, str, Any]:
    return setting(f"{name}={value}")


class _Settings(argparse.Action):
    """Prints the settings of the configuration that --config named before it, and ends, as --help does."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002 (argparse's name)
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        set_up()
        from dsi.commands.values import toml_value
        from dsi.config import Config, all_settings

        named = getattr(namespace, "config", None)
        for declared in all_settings(Config.named(named) if named else None):
            values = declared.range or declared.kind.__name__
            print(f"{declared.section}{declared.name} = {toml_value(declared.default)}   ({values})")
            print(textwrap.indent(textwrap.fill(declared.meaning, 100), "    "))
        parser.exit()


def with_settings(config: "Config", settings: Sequence[tuple[str, str, Any]]) -> "Config":
    """Return the configuration with the settings of --set, all at once: some go together only."""
    changes: dict[str, Any] = {}
    for section, name, value in settings:
        held = changes.setdefault(section, {}) if section else changes
        if not isinstance(held, dict):
            raise ValueError(f"--set gives {section!r} a value and settings; give it one of them.")
        held[name] = value
    return config.with_changes(changes)


def add_overwriting(arguments: argparse.ArgumentParser) -> None:
    """Add --discard-updates and --replace."""
    updated = "make the index again even if `dsi update` has changed it; those changes are lost"
    arguments.add_argument("--discard-updates", action="store_true", help=updated)
    lacking = "make the index even if INDEX holds documents that are no longer given; they are lost"
    arguments.add_argument("--replace", action="store_true", help=lacking)
