"""Every wrong call of a search, from Python and from the shell: refused in one line that says what to do."""

import argparse
import dataclasses
import json
import math
import re
from contextlib import suppress
from copy import copy

import datasets
import numpy as np
import pytest

from dsi import Retriever, SearchConfig
from dsi.commands.main import main
from dsi.commands.values import argument_of
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.files.declarations import Setting
from dsi.docids.words.bm25 import BM25
from dsi.search.request import OPTIONS, SearchOptions, written_as
from dsi.store.retriever import from_parts
from tests.support.small import MINIPEDIA, PROMPTS, random_generator

NAN, INF = math.nan, math.inf
THERE_ARE = f"there are {', '.join(['k', *OPTIONS])}."
UNUSED = 'does not use {} with method "exact", which scores all documents; "generate" takes it.'
PATHS = "does not use {}: its generator scores paths of docids; leave it out."
NO_GENERATOR = "does not use {}: this index has no generator for it to weigh; leave it out, or train one"
ALPHA = "; it is the generator's weight, and the rest the encoder's."


class Indexes(dict[str, Retriever]):
    """Indexes by their kind; a test of one that cannot be made is skipped."""

    def __missing__(self, kind):
        pytest.skip(f"no index of the kind {kind}")


@pytest.fixture(scope="module")
def indexes(sentence_t5_folder, tmp_path_factory):
    """{kind: an index of the same documents}: "vectors" and "digits", both with BM25, and "no words"."""
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    rows = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:30]]
    documents = datasets.Dataset.from_dict({"doc_id": [r["_id"] for r in rows], "title": [r["title"] for r in rows]})
    tree = build_tree(encoder.encode(documents["title"], "document"), DocidsConfig(branching=3, max_leaf_size=3))
    bm25, config = BM25(documents["doc_id"], documents["title"]), SearchConfig(beam_width=3, lexical_weight=0.1)
    made = Indexes(
        {
            "vectors": from_parts(encoder, tree, None, documents, config, bm25),
            "no words": from_parts(encoder, tree, None, documents, config),
        }
    )
    with suppress(pytest.skip.Exception):  # by `random_generator`
        generator, config = random_generator(tree, layers=1), SearchConfig(beam_width=3)
        made["digits"] = from_parts(encoder, tree, generator, documents, config, bm25)
    for name, index in made.items():
        index.save(tmp_path_factory.mktemp("indexes") / name)
    return made


WRONG = [
    # Options that do not exist: a near name, or all of them.
    ("vectors", {"beam_with": 3}, "has no option 'beam_with'; did you mean 'beam_width'?"),
    ("vectors", {"lexical_wieght": 0.1}, "has no option 'lexical_wieght'; did you mean 'lexical_weight'?"),  # misspelt
    ("vectors", {"candidate": 5}, "has no option 'candidate'; did you mean 'candidates'?"),
    ("vectors", {"top_k": 5}, "has no option 'top_k'; did you mean 'k'?"),
    ("vectors", {"num_results": 5}, "has no option 'num_results'; did you mean 'k'?"),
    ("vectors", {"filter": "year > 3"}, "has no option 'filter'; did you mean 'where'?"),
    *(
        ("vectors", {name: value}, f"has no option {name!r}; {THERE_ARE}")
        for name, value in {
            "fusion": "paper", "probed": 5, "simulations": 9, "reward": None, "max_expansions": 3, "zzz": 1,
        }.items()
    ),
    # Options of another method, or of other tokens.
    *(("vectors", {"method": "exact", name: 1}, UNUSED.format(name)) for name in ("beam_width", "candidates")),
    *(
        ("vectors", {name: 1, **more}, NO_GENERATOR.format(name))
        for name in ("alpha", "beta", "ann_temperature")
        for more in ({}, {"method": "exact"})
    ),
    ("digits", {"beta": -1.0}, "beta must be at least 0, got -1.0; 0 is the generator alone, inf all levels."),
    *(
        ("digits", {"ann_temperature": value}, f"ann_temperature must be between 1e-6 and 1e6, got {value}; 1 is the paper's.")
        for value in (0.0, -1.0, NAN, INF)
    ),
    *(("digits", {"method": "exact", name: 1}, UNUSED.format(name)) for name in ("beam_width", "candidates")),
    ("digits", {"candidates": 5}, PATHS.format("candidates")),
    ("digits", {"token_weight": 0.5}, PATHS.format("token_weight")),
    ("digits", {"lexical_weight": 0.5}, PATHS.format("lexical_weight")),
    ("digits", {"extra_scores": np.ones((1, 30))}, PATHS.format("extra_scores")),
    # Parts of the score that the index lacks.
    ("vectors", {"token_weight": 0.5}, "token_weight is 0.5, but this index has no token vectors; use 0"),
    ("no words", {"lexical_weight": 0.5}, "lexical_weight is 0.5, but this index has no lexical part; use 0, or train with"),
    # Values out of range, or of another type.
    ("vectors", {"method": "mcts"}, "method must be one of generate, exact, got 'mcts'."),
    ("vectors", {"method": "beam"}, "method must be one of generate, exact, got 'beam'."),
    ("vectors", {"method": True}, "method must be a string, got True."),
    *(("vectors", {"k": k}, f"k must be at least 1, got {k}.") for k in (0, -1)),
    *(("vectors", {name: 0}, f"{name} must be at least 1, got 0.") for name in ("beam_width", "candidates")),
    *(("vectors", {name: 10**12}, f"{name} must be at most 1000000000, got 1000000000000.") for name in ("k", "beam_width")),
    *(
        ("vectors", {name: value}, f"{name} must be an integer, got {value!r}.")
        for name in ("k", "beam_width", "candidates")
        for value in (True, 2.0, NAN, INF, "5")
    ),
    *(
        ("vectors", {"alpha": value}, f"alpha must be between 0 and 1, got {value}{ALPHA}")
        for value in (-0.1, 1.5, NAN, INF)
    ),
    *(
        ("vectors", {name: value}, f"{name} must be between 0 and 1e6, got {value}; 0 leaves it out.")
        for name in ("lexical_weight", "token_weight")
        for value in (-0.1, NAN, INF, -INF)
    ),
    *(
        ("vectors", {name: value}, f"{name} must be a number, got {value!r}.")
        for name in ("alpha", "lexical_weight", "token_weight")
        for value in (True, "high")
    ),
    # Filters.
    ("vectors", {"allow": ["nope"]}, "allow names the doc_id 'nope', which is not in the index"),
    ("vectors", {"deny": "danube"}, "deny must be a list or set of doc_ids, got the string 'danube'"),
    ("vectors", {"where": "yeer > 3"}, "no such column: yeer"),
]  # fmt: skip


def called(index: Retriever, name: str, k: int = 3, **options) -> object:
    """The answer of a method of the index for one query."""
    given = {
        "search": ("river",), "run": ({"q": "river"},), "explain": ("river",),
    }[name]  # fmt: skip
    return getattr(index, name)(*given, k=k, **options)


@pytest.mark.parametrize(("kind", "options", "message"), WRONG)
def test_a_wrong_call_from_python_is_one_line(indexes, kind, options, message):
    for name in ("search", "run", "explain"):
        with pytest.raises((ValueError, TypeError)) as raised:
            called(indexes[kind], name, **options)
        assert type(raised.value) is (TypeError if "has no option" in message else ValueError)
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 300


@pytest.mark.parametrize("kind", ["vectors", "digits", "no words"])
def test_none_is_the_same_as_leaving_an_option_out(indexes, kind):
    for name in ("search", "run"):
        plain, none = called(indexes[kind], name), called(indexes[kind], name, **dict.fromkeys(OPTIONS))
        assert plain == none


@pytest.mark.parametrize("kind", ["vectors", "digits", "no words"])
@pytest.mark.parametrize("method", ["generate", "exact"])
def test_a_filter_that_allows_nothing_gives_an_empty_answer(indexes, kind, method):
    index = indexes[kind]
    ids = list(index.snapshot.documents.rows)
    for nothing in ({"allow": []}, {"deny": ids}, {"where": "doc_id = 'nope'"}, {"allow": ids[:1], "deny": ids[:1]}):
        hits = index.search("river", method=method, **nothing)
        assert (list(hits), hits.exact) == ([], True)
        assert index.run({"q": "river"}, method=method, **nothing) == {"q": {}}
        assert index.explain("river", method=method, **nothing).roots == []


@pytest.mark.parametrize("kind", ["vectors", "digits", "no words"])
@pytest.mark.parametrize("method", ["generate", "exact"])
def test_a_filter_that_excludes_nothing_changes_no_answer(indexes, kind, method):
    index, queries = indexes[kind], ["river", "noble gas", "light"]
    plain = index.search(queries, k=5, method=method)
    assert (
        method == "exact" or kind == "digits" or not all(hits.exact for hits in plain)
    )  # a whole scan would prove them
    ids = list(index.snapshot.documents.rows)
    for nothing in (
        {"allow": ids},
        {"deny": []},
        {"where": "doc_id <> 'nope'"},
        {"allow": ids, "where": "doc_id > ''"},
    ):
        found = index.search(queries, k=5, method=method, **nothing)
        assert [(list(hits), hits.exact) for hits in found] == [(list(hits), hits.exact) for hits in plain]
        assert str(index.explain(queries[0], method=method, **nothing)) == str(index.explain(queries[0], method=method))


COMMANDS = [
    ("vectors", "--beam-with 3", "unrecognized arguments: --beam-with 3; did you mean --beam-width?"),
    ("vectors", "--fusion paper", "unrecognized arguments: --fusion paper; see dsi"),
    ("vectors", "--probed 5", "unrecognized arguments: --probed 5; see dsi"),
    ("vectors", "--exact", "unrecognized arguments: --exact; see dsi"),
    ("vectors", "--method mcts", "argument --method: invalid choice: 'mcts'"),
    *(
        ("vectors", f"--method exact {option} 1", UNUSED.format(option[2:].replace("-", "_")))
        for option in ("--beam-width", "--candidates")
    ),
    ("vectors", "--alpha 0.5", NO_GENERATOR.format("alpha")),
    ("vectors", "--ann-temperature 0.5", NO_GENERATOR.format("ann_temperature")),
    ("digits", "--beta -1", "argument --beta: must be a number, at least 0, got '-1'"),
    ("digits", "--ann-temperature 0", "argument --ann-temperature: must be a number, from 1e-6 to 1e6, got '0'"),
    ("digits", "--candidates 5", PATHS.format("candidates")),
    ("digits", "--token-weight 0.5", PATHS.format("token_weight")),
    ("digits", "--lexical-weight 0.5", PATHS.format("lexical_weight")),
    ("vectors", "--token-weight 0.5", "token_weight is 0.5, but this index has no token vectors; use 0"),
    ("no words", "--lexical-weight 0.5", "lexical_weight is 0.5, but this index has no lexical part"),
    *(
        ("vectors", f"{option} {value}", f"argument {option}: must be a whole number, at least 1, got '{value}'")
        for option in ("-k", "--beam-width", "--candidates")
        for value in ("0", "-3", "2.5", "nan", "True")
    ),
    *(
        ("vectors", f"--alpha {value}", f"argument --alpha: must be a number, from 0 to 1, got '{value}'")
        for value in ("2", "nan", "inf")
    ),
    *(
        ("vectors", f"{option} {value}", f"argument {option}: must be a number, from 0 to 1e6, got '{value}'")
        for option in ("--lexical-weight", "--token-weight")
        for value in ("-1", "nan", "True")
    ),
    ("vectors", "--allow nope", "allow names the doc_id 'nope', which is not in the index"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "line", "message"), COMMANDS)
def test_a_wrong_line_in_the_shell_is_one_line(indexes, kind, line, message, capsys):
    (run,) = indexes[kind]._saved
    for command in (["search", str(run), "river"], ["explain", str(run), "river"]):
        assert main([*command, "--device", "cpu", *line.split()]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("dsi: ")
        assert printed.err.count("\n") == 1
        assert re.search(re.escape(message), printed.err), printed.err
        assert printed.out == ""


def test_a_filter_that_allows_nothing_is_answered_in_the_shell(indexes, capsys):
    (run,) = indexes["vectors"]._saved
    assert main(["search", str(run), "--device", "cpu", "river", "--json", "--where", "doc_id = 'nope'"]) == 0
    assert json.loads(capsys.readouterr().out) == {"query": "river", "exact": True, "hits": []}


def test_an_option_may_be_a_number_without_bounds_and_says_how_it_is_written(monkeypatch):
    read = argument_of(Setting("", "min_score", float, None, "Answers score at least this."))["type"]
    assert read("-1.5") == -1.5
    with pytest.raises(argparse.ArgumentTypeError, match=r"^must be a number, got 'x'\.$"):
        read("x")
    monkeypatch.setitem(SearchOptions.__annotations__, "min_score", float)
    with pytest.raises(
        TypeError, match=r"SearchOptions.min_score must be Annotated\[…, Written\(…\)\], as its neighbours"
    ):
        written_as("min_score")


def test_what_the_encoder_says_counts_by_alpha_and_temperature_together(indexes):
    index = indexes["digits"]
    plain = index.search("river", k=30, method="exact", alpha=0.5, ann_temperature=1.0)
    other = index.search("river", k=30, method="exact", alpha=0.5, ann_temperature=0.01)
    assert [hit.doc_id for hit in plain] != [hit.doc_id for hit in other]
    alone = index.search("river", k=30, method="exact", beta=0, ann_temperature=0.01)
    assert list(alone) == list(
        index.search("river", k=30, method="exact", alpha=1.0)
    )  # the generator alone, either way
    config = dataclasses.replace(index.search_config, alpha=0.5, ann_temperature=0.01)
    configured = copy(index)
    configured.search_config = config
    assert list(configured.search("river", k=30, method="exact")) == list(other)
