"""Calls with one argument that is wrong, or is another way to write the right one."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.compute as pc

import dsi
from dsi import SearchConfig
from dsi.docids.data.collection import read_collection
from dsi.search.queries import EncodedQueries
from tests.support.tiny_index import QUERIES, RECORDS, TinyIndex
from tests.support.trials import Case

NAN, INF = math.nan, math.inf
QUERY, MASK = QUERIES[0], np.arange(len(RECORDS)) % 3 > 0
THINGS = [object(), b"x", {}, [], (), {"x": 1}, 1j, len, np.zeros(2), [None], Decimal("5"), ["5"], range(3), float]
"""What is right nowhere."""


@dataclass(frozen=True)
class Argument:
    """An argument of a call.

    Attributes:
        good: a right value.
        wrong: values that must be refused, beside those of `THINGS` that are not left out.
        twins: other ways to write `good`, with the same answer.
        names: one of them stands in the message.
        allows: types in `THINGS` that are right here.
    """

    good: Any
    wrong: tuple[Any, ...]
    twins: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    allows: tuple[type, ...] = ()


def whole(good: int, *, least: int = 1) -> Argument:
    wrong = ("5", "", float(good), 5.5, True, NAN, least - 1, -(10**30))
    return Argument(good, wrong, (np.int64(good), np.int32(good), np.uint8(good)))


def number(good: float, *outside: float) -> Argument:
    wrong = (str(good), "", True, NAN, np.float64(NAN), -1, -INF, *outside)
    return Argument(good, wrong, (np.float64(good), Decimal(str(good))), allows=(Decimal,))


def choice(good: str) -> Argument:
    return Argument(good, (good.upper(), good.encode(), "", f" {good}", 1, True))


def some_ids(ids: list[str]) -> Argument:
    wrong = ("neon", b"neon", ["missing"], [*ids, "missing"], [3], {"missing"}, 3, True, [b"x"], [ids], np.array([3]))
    return Argument(
        ids,
        wrong,
        (tuple(ids), set(ids), dict.fromkeys(ids), np.array(ids), frozenset(ids), iter([*ids])),
        (),
        (list, tuple, dict),
    )


QUERIES_GIVEN = Argument(
    QUERIES,
    ([3], [None], [b"x"], set(QUERIES), 3, ["a\0b"], ["\ud800"], [["a"]]),
    (tuple(QUERIES), np.array(QUERIES)),
    ("uer",),
    (list, tuple),
)
OPTIONS = {
    "beam_width": whole(12),
    "candidates": whole(12),
    "lexical_weight": number(0.5, 1e7, INF),
    "token_weight": number(0.0, 0.5, 1e7, INF),  # the index has no token vectors
    "method": choice("exact"),
    "allow": some_ids([RECORDS[n]["_id"] for n in (1, 2, 5)]),
    "deny": some_ids([RECORDS[n]["_id"] for n in (0, 3)]),
    "where": Argument(
        "year > 1",
        (
            "",
            "year",
            "yaer > 1",  # misspelt
            "year > '1'",
            3,
            True,
            MASK[1:],
            MASK * 1,
            MASK[None],
            list(MASK),
            pc.field("yaer") > 1,  # misspelt
            pc.field("year"),
            pc.field("year") > "x",
        ),
        (pc.field("year") > 1,),
    ),
    "extra_scores": Argument(
        np.ones((3, 40)),
        (
            np.ones((2, 40)),
            np.ones(40),
            np.full((3, 40), NAN),
            np.full((3, 40), 1e31),
            [[0.0] * 40] * 3,
            1.0,
            np.ones((3, 40), bool),
            np.full((3, 40), "x"),
            np.ones((3, 40), object),
        ),
        (np.ones((3, 40), np.float32), np.ones((3, 40), int)),
    ),
}
SEARCHES = ("search", "run", "explain")


def option_calls(index: TinyIndex, chance: Random) -> Case:
    """A search by any method with one option that is wrong, or written in another way."""
    method = chance.choice(SEARCHES)
    option = chance.choice(sorted(OPTIONS))
    argument, own = OPTIONS[option], index.retriever
    if method == "explain" and option == "extra_scores":
        argument = Argument(np.ones((1, 40)), argument.wrong)
    given = {
        "search": (QUERIES,),
        "run": (dict(zip("abc", QUERIES, strict=True)),),
        "explain": (QUERY,),
    }[method]
    return _altered(
        f"{method}({option}=",
        lambda value: _plain(getattr(own, method)(*given, **{option: value})),
        Argument(
            argument.good,
            argument.wrong,
            argument.twins,
            argument.names or (option,),
            argument.allows,
        ),
        chance,
    )


def plain_calls(index: TinyIndex, chance: Random, folder: Path) -> Case:
    """Another call with one argument that is wrong, or written in another way."""
    calls = _plain_calls(index, folder)
    name = chance.choice(sorted(calls))
    call, argument = calls[name]
    return _altered(f"{name}=", lambda value: _plain(call(value)), argument, chance)


def len_of(hits: dsi.Hits) -> list[int]:
    """A model: the length of a title."""
    return [len(hit.title) for hit in hits]


def _plain_calls(index: TinyIndex, folder: Path) -> dict[str, tuple[Callable[[Any], Any], Argument]]:
    """{call: (it, its argument)}."""
    from dsi.rerankers import rerank

    own, ids = index.own_retriever(), index.ids
    document = {"doc_id": "new", "title": "a", "text": "b"}
    queries_by_id = Argument(
        dict(zip("abc", QUERIES, strict=True)),
        ({3: "x"}, {"a": 3}, {"a": None}, 3, "x"),
        (),
        ("uer",),
        (list, tuple, dict),
    )
    paths = (3, "", folder / "none", "/dev/null", "\0", "x" * 300)
    loads = lambda value: dsi.load(value, device="cpu")  # noqa: E731
    hits = own.search(QUERIES, 5)
    return {
        "search(queries": (own.search, QUERIES_GIVEN),
        "run(queries": (own.run, queries_by_id),
        "encode_queries(queries": (own.encode_queries, replace(QUERIES_GIVEN, allows=(list, tuple, dict))),
        "encode_queries(batch_size": (
            lambda value: own.encode_queries(QUERIES, batch_size=value).texts,
            _named(whole(5), "batch_size"),
        ),
        "search(query": (
            own.search,
            Argument(QUERY, ("", " ", "\0", "\ud800", 3, None, b"x"), (np.str_(QUERY),), ("uer",), (list, tuple, dict)),
        ),
        "explain(query": (
            own.explain,
            Argument(QUERY, ("", " ", "\0", "\ud800", 3, None, b"x"), (np.str_(QUERY),), ("uer",)),
        ),
        "search(k": (lambda value: own.search(QUERIES, value), _named(whole(5), "k")),
        "explain(k": (lambda value: own.explain(QUERY, value), _named(whole(5), "k")),
        "get(doc_id": (
            own.get,
            Argument(
                ids[0],
                ("missing", "", 3, None, True, b"x"),
                (np.str_(ids[0]),),
                ("get",),
                (list, tuple, dict, np.ndarray),
            ),
        ),
        "follow(doc_ids": (
            lambda value: own.snapshot.follow(QUERIES, value),
            Argument(
                [ids[:2]] * 3,
                ([ids[:2]], [], [[]] * 3, "abc", 3, [ids[:1], ids[:2], ids[:2]], [["missing"]] * 3, [[3]] * 3),
                (),
                ("doc_ids",),
            ),
        ),
        "remove(doc_ids": (
            lambda value: index.own_retriever().remove(value),
            _named(
                Argument(ids[:2], ("neon", b"x", ["missing"], [3], 3, None, ids), (), (), (list, tuple, dict, range)),
                "remove",
                "ndex",
            ),
        ),
        "add(documents": (
            lambda value: index.own_retriever().add(value),
            Argument(
                [document],
                (
                    "x",
                    3,
                    None,
                    document,
                    [3],
                    [{}],
                    [{"doc_id": "a"}],
                    [document] * 2,
                    [{**document, "x": 1}],
                    [{**document, "text": 3}],
                ),
                (),
                ("dd()", "ocument"),
                (list, tuple, dict, np.ndarray),
            ),
        ),
        "add(replace": (
            lambda value: index.own_retriever().add([document], replace=value),
            Argument(True, ("yes", 1, 0, None), (np.bool_(True),), ("replace",)),
        ),
        "from_pretrained(folder": (
            loads,
            Argument(index.index, paths, (str(index.index),), ("index", "folder", "none", "null", "path", "x")),
        ),
        "from_pretrained(dtype": (
            lambda value: dsi.load(index.index, device="cpu", dtype=value),
            _named(choice("float32"), "dtype"),
        ),
        "from_pretrained(device": (
            lambda value: dsi.load(index.index, device=value),
            _named(Argument("cpu", ("", "cpx", "cuda:99", 3, True)), "device"),
        ),
        "read_collection(folder": (
            read_collection,
            Argument(index.collection, paths, (str(index.collection),), ("folder", "path", "null", "none", "x")),
        ),
        "read_collection(dev_queries": (
            lambda value: read_collection(index.collection, dev_queries=value),
            _named(whole(5, least=0), "dev_queries"),
        ),
        "read_collection(seed": (
            lambda value: read_collection(index.collection, seed=value),
            _named(whole(5, least=0), "seed"),
        ),
        "Config.named": (
            dsi.Config.named,
            Argument("digits", ("digtis", "", 3, "\0"), (), ("configuration", "nfig")),
        ),
        "Config.with_changes": (
            dsi.Config().with_changes,
            Argument(
                {"search": {"alpha": 0.5}},
                (
                    {"serach": {}},  # misspelt
                    {"search": 3},
                    {"search": {"alhpa": 1.0}},  # misspelt
                    3,
                    "x",
                    {3: 4},
                ),
                (),
                ("changes", "setting"),
                (dict,),
            ),
        ),
        "SearchConfig(alpha": (lambda value: SearchConfig(alpha=value), _named(number(0.3, 2, INF), "alpha")),
        "SearchConfig(beam_width": (lambda value: SearchConfig(beam_width=value), _named(whole(7), "beam_width")),
        "rerank(hits": (
            lambda value: rerank(value, len_of),
            Argument(hits, (QUERIES, 3, None, own), (), ("hits",), (list,)),
        ),
        "rerank(model": (
            lambda value: rerank(hits, value),
            Argument(len_of, (3, None, "linear", [3]), (), ("odel",)),
        ),
        "evaluate(collection": (
            lambda value: _measured(dsi.evaluate(own, value)),
            _named(Argument(index.collection_read, (str(index.collection), index.collection, 3, None)), "ollection"),
        ),
        "evaluate(split": (
            lambda value: _measured(dsi.evaluate(own, index.collection_read, value)),
            _named(choice("test"), "split"),
        ),
        "evaluate(depth": (
            lambda value: _measured(dsi.evaluate(own, index.collection_read, depth=value)),
            _named(whole(10), "depth"),
        ),
        "search_config": (
            lambda value: setattr(index.own_retriever(), "search_config", value),
            _named(Argument(SearchConfig(), (3, {"alpha": 1}, None, SearchConfig)), "search_config"),
        ),
    }


def _measured(evaluation: dsi.Evaluation) -> list[Any]:
    """What does not depend on time."""
    return [(row.name, row.values) for row in evaluation.rows]


def _named(argument: Argument, *names: str) -> Argument:
    return Argument(argument.good, argument.wrong, argument.twins, names, argument.allows)


def _altered(text: str, call: Callable[[Any], Any], argument: Argument, chance: Random, *, things: bool = True) -> Case:
    """The call with a wrong value, a twin of the right one, or the right one."""
    odd = [thing for thing in THINGS if not isinstance(thing, (*argument.allows, type(argument.good)))]
    wrong, twins = [*argument.wrong, *(odd if things else [])], [argument.good, *argument.twins]
    if wrong and chance.random() < 0.8:
        value = chance.choice(wrong)
        return Case(f"{text}{value!r})", lambda: call(value), argument.names, good=False)
    twin = chance.choice(twins)

    def check(answer: Any) -> None:
        assert repr(answer) == repr(call(argument.good)), f"{answer!r} differs"

    return Case(f"{text}{twin!r})", lambda: call(twin), argument.names, good=True, check=check)


def _plain(answer: Any) -> Any:
    """An answer in a form whose `repr` tells all that matters."""
    if isinstance(answer, EncodedQueries):
        return answer.embeddings.tolist()
    return type(answer).__name__ if hasattr(answer, "encoder") else answer
