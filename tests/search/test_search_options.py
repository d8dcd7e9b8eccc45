"""Every wrong call of a search, from Python and from the shell: refused in one line that says what to do."""

import argparse
import dataclasses
import json
import math
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
from dsi.search.request import OPTIONS
from tests.support.parts import from_parts
from tests.support.small import MINIPEDIA, PROMPTS, random_generator

NAN, INF = math.nan, math.inf
BY_VECTORS, BY_PATHS = ("candidates", "lexical_weight", "token_weight"), ("alpha", "beta", "ann_temperature")


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
    ("vectors", {"beam_with": 3}, "'beam_width'?"),
    ("vectors", {"lexical_wieght": 0.1}, "'lexical_weight'?"),  # misspelt
    *(("vectors", {name: 5}, "did you mean 'k'?") for name in ("top_k", "num_results")),
    ("vectors", {"filter": "year > 3"}, "'where'?"),
    ("vectors", {"zzz": 1}, f"there are {', '.join(['k', *OPTIONS])}."),
    # Options of another method, or of other tokens.
    *((kind, {"method": "exact", name: 1}, name) for kind in ("vectors", "digits") for name in ("beam_width", "candidates")),
    *(("vectors", {name: 1, **more}, name) for name in BY_PATHS for more in ({}, {"method": "exact"})),
    *(("digits", {name: 1}, name) for name in BY_VECTORS),
    ("digits", {"extra_scores": np.ones((1, 30))}, "extra_scores"),
    # Parts of the score that the index lacks.
    ("vectors", {"token_weight": 0.5}, "token_weight"),
    ("no words", {"lexical_weight": 0.5}, "lexical_weight"),
    # Values out of range, or of another type.
    *(("vectors", {"method": own}, "method") for own in ("mcts", True)),
    *(
        ("vectors", {name: own}, name)
        for name in ("k", "beam_width", "candidates") for own in (0, -1, 10**12, True, 2.0, NAN, "5")
    ),
    *(("vectors", {"alpha": own}, "alpha") for own in (-0.1, 1.5, NAN, INF)),
    *(("vectors", {name: own}, name) for name in ("lexical_weight", "token_weight") for own in (-0.1, NAN, INF, True, "high")),
    ("digits", {"beta": -1.0}, "beta"),
    *(("digits", {"ann_temperature": own}, "ann_temperature") for own in (0.0, -1.0, NAN, INF)),
    # Filters.
    ("vectors", {"allow": ["nope"]}, "allow"),
    ("vectors", {"deny": "danube"}, "deny"),
    ("vectors", {"where": "yeer > 3"}, "yeer"),
]  # fmt: skip
"""(kind of index, options of a call, what its error names)."""


def called(index: Retriever, name: str, k: int = 3, **options) -> object:
    """The answer of a method of the index for one query."""
    given = {
        "search": ("river",), "run": ({"q": "river"},), "explain": ("river",),
    }[name]  # fmt: skip
    return getattr(index, name)(*given, k=k, **options)


@pytest.mark.parametrize(("kind", "options", "named"), WRONG)
def test_a_wrong_call_from_python_is_one_line(indexes, kind, options, named):
    for name in ("search", "run", "explain"):
        with pytest.raises((ValueError, TypeError)) as raised:
            called(indexes[kind], name, **options)
        assert type(raised.value) is (ValueError if options.keys() <= {"k", *OPTIONS} else TypeError)
        assert named in str(raised.value)
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


LINES = [
    ("vectors", "--beam-with 3", "did you mean --beam-width?"),
    ("vectors", "--exact", "--exact"),
    ("vectors", "--method mcts", "--method"),
    ("vectors", "--method exact --beam-width 1", "beam_width"),
    ("vectors", "--alpha 0.5", "alpha"),
    ("digits", "--candidates 5", "candidates"),
    ("no words", "--lexical-weight 0.5", "lexical_weight"),
    *(("vectors", f"{name} {own}", name) for name in ("-k", "--beam-width") for own in ("0", "2.5", "nan", "True")),
    *(("vectors", f"{name} {own}", name) for name in ("--alpha", "--lexical-weight") for own in ("-1", "nan", "True")),
    *(("digits", f"{line}", line.split()[0]) for line in ("--beta -1", "--ann-temperature 0", "--alpha 2")),
    ("vectors", "--allow nope", "allow"),
]  # fmt: skip
"""(kind of index, options of a line, what its error names)."""


@pytest.mark.parametrize(("kind", "line", "named"), LINES)
def test_a_wrong_line_in_the_shell_is_one_line(indexes, kind, line, named, capsys):
    (run,) = indexes[kind]._saved
    for command in ("search", "explain"):
        assert main([command, str(run), "river", "--device", "cpu", *line.split()]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("dsi: ")
        assert printed.err.count("\n") == 1
        assert named in printed.err
        assert printed.out == ""


def test_a_filter_that_allows_nothing_is_answered_in_the_shell(indexes, capsys):
    (run,) = indexes["vectors"]._saved
    assert main(["search", str(run), "--device", "cpu", "river", "--json", "--where", "doc_id = 'nope'"]) == 0
    assert json.loads(capsys.readouterr().out) == {"query": "river", "exact": True, "hits": []}


def test_an_option_may_be_a_number_without_bounds():
    read = argument_of(Setting("", "min_score", float, None, "Answers score at least this."))["type"]
    assert read("-1.5") == -1.5
    with pytest.raises(argparse.ArgumentTypeError, match=r"^must be a number, got 'x'\.$"):
        read("x")


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
