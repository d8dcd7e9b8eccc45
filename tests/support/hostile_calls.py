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


def whole(good: int, *names: str, least: int = 1) -> Argument:
    wrong = ("5", "", float(good), 5.5, True, NAN, least - 1, -(10**30))
    return Argument(good, wrong, (np.int64(good), np.int32(good), np.uint8(good)), names)


def number(good: float, *outside: float, names: tuple[str, ...] = ()) -> Argument:
    wrong = (str(good), "", True, NAN, np.float64(NAN), -1, -INF, *outside)
    return Argument(good, wrong, (np.float64(good), Decimal(str(good))), names, (Decimal,))


def choice(good: str, *names: str) -> Argument:
    return Argument(good, (good.upper(), good.encode(), "", f" {good}", 1, True), (), names)


def some_ids(ids: list[str]) -> Argument:
    wrong = ("neon", b"neon", ["missing"], [*ids, "missing"], [3], {"missing"}, 3, True, [b"x"], [ids], np.array([3]))
    twins = (tuple(ids), set(ids), dict.fromkeys(ids), np.array(ids), frozenset(ids), iter([*ids]))
    return Argument(ids, wrong, twins, (), LISTS)


LISTS = (list, tuple, dict)
QUERIES_GIVEN = Argument(
    QUERIES, ([3], [None], [b"x"], set(QUERIES), 3, ["a\0b"], ["\ud800"], [["a"]]), (tuple(QUERIES), np.array(QUERIES)),
    ("uer",), (list, tuple),
)  # fmt: skip
ONE_QUERY = Argument(QUERY, ("", " ", "\0", "\ud800", 3, None, b"x"), (np.str_(QUERY),), ("uer",))
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
        ("", "year", "yaer > 1", "year > '1'", 3, True, MASK[1:], MASK * 1, MASK[None], list(MASK),  # misspelt
         pc.field("yaer") > 1, pc.field("year"), pc.field("year") > "x"),  # misspelt
        (pc.field("year") > 1,),
    ),
    "extra_scores": Argument(
        np.ones((3, 40)),
        (np.ones((2, 40)), np.ones(40), np.full((3, 40), NAN), np.full((3, 40), 1e31), [[0.0] * 40] * 3, 1.0,
         np.ones((3, 40), bool), np.full((3, 40), "x"), np.ones((3, 40), object)),
        (np.ones((3, 40), np.float32), np.ones((3, 40), int)),
    ),
}  # fmt: skip


def option_calls(index: TinyIndex, chance: Random) -> Case:
    """A search by any method with one option that is wrong, or written in another way."""
    given = {"search": (QUERIES,), "run": (dict(zip("abc", QUERIES, strict=True)),), "explain": (QUERY,)}
    method, option = chance.choice(sorted(given)), chance.choice(sorted(OPTIONS))
    argument = replace(OPTIONS[option], names=(option,))
    if method == "explain" and option == "extra_scores":
        argument = Argument(np.ones((1, 40)), argument.wrong, names=(option,))
    call = getattr(index.retriever, method)
    return _altered(
        f"{method}({option}=", lambda value: _plain(call(*given[method], **{option: value})), argument, chance
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

    own, ids, evaluate = index.own_retriever(), index.ids, dsi.evaluate
    new = {"doc_id": "new", "title": "a", "text": "b"}
    by_id, hits = dict(zip("abc", QUERIES, strict=True)), own.search(QUERIES, 5)
    paths = (3, "", folder / "none", "/dev/null", "\0", "x" * 300)
    of_paths = ("index", "folder", "none", "null", "path", "x")
    odd_lists = ([ids[:2]], [], [[]] * 3, "abc", 3, [ids[:1], ids[:2], ids[:2]], [["missing"]] * 3, [[3]] * 3)
    documents = ("x", 3, None, new, [3], [{}], [{"doc_id": "a"}], [new] * 2, [{**new, "x": 1}], [{**new, "text": 3}])
    changes = ({"serach": {}}, {"search": 3}, {"search": {"alhpa": 1.0}}, 3, "x", {3: 4})  # misspelt
    return {
        "search(queries": (own.search, QUERIES_GIVEN),
        "search(query": (own.search, replace(ONE_QUERY, allows=LISTS)),
        "search(k": (lambda value: own.search(QUERIES, value), whole(5, "k")),
        "run(queries": (own.run, Argument(by_id, ({3: "x"}, {"a": 3}, {"a": None}, 3, "x"), (), ("uer",), LISTS)),
        "encode_queries(queries": (own.encode_queries, replace(QUERIES_GIVEN, allows=LISTS)),
        "encode_queries(batch_size": (
            lambda value: own.encode_queries(QUERIES, batch_size=value).texts, whole(5, "batch_size")
        ),
        "explain(query": (own.explain, ONE_QUERY),
        "explain(k": (lambda value: own.explain(QUERY, value), whole(5, "k")),
        "get(doc_id": (
            own.get,
            Argument(ids[0], ("missing", "", 3, None, True, b"x"), (np.str_(ids[0]),), ("get",), (*LISTS, np.ndarray)),
        ),
        "follow(doc_ids": (
            lambda value: own.snapshot.follow(QUERIES, value), Argument([ids[:2]] * 3, odd_lists, (), ("doc_ids",))
        ),
        "remove(doc_ids": (
            lambda value: index.own_retriever().remove(value),
            Argument(ids[:2], ("neon", b"x", ["missing"], [3], 3, None, ids), (), ("remove", "ndex"), (*LISTS, range)),
        ),
        "add(documents": (
            lambda value: index.own_retriever().add(value),
            Argument([new], documents, (), ("dd()", "ocument"), (*LISTS, np.ndarray)),
        ),
        "add(replace": (
            lambda value: index.own_retriever().add([new], replace=value),
            Argument(True, ("yes", 1, 0, None), (np.bool_(True),), ("replace",)),
        ),
        "load(folder": (
            lambda value: dsi.load(value, device="cpu"), Argument(index.index, paths, (str(index.index),), of_paths)
        ),
        "load(dtype": (lambda value: dsi.load(index.index, device="cpu", dtype=value), choice("float32", "dtype")),
        "load(device": (
            lambda value: dsi.load(index.index, device=value),
            Argument("cpu", ("", "cpx", "cuda:99", 3, True), (), ("device",)),
        ),
        "read_collection(folder": (
            read_collection, Argument(index.collection, paths, (str(index.collection),), of_paths)
        ),
        "read_collection(dev_queries": (
            lambda value: read_collection(index.collection, dev_queries=value), whole(5, "dev_queries", least=0)
        ),
        "read_collection(seed": (
            lambda value: read_collection(index.collection, seed=value), whole(5, "seed", least=0)
        ),
        "Config.named": (
            dsi.Config.named, Argument("digits", ("digtis", "", 3, "\0"), (), ("configuration", "nfig"))
        ),
        "Config.with_changes": (
            dsi.Config().with_changes,
            Argument({"search": {"alpha": 0.5}}, changes, (), ("changes", "setting"), (dict,)),
        ),
        "SearchConfig(alpha": (lambda value: SearchConfig(alpha=value), number(0.3, 2, INF, names=("alpha",))),
        "SearchConfig(beam_width": (lambda value: SearchConfig(beam_width=value), whole(7, "beam_width")),
        "rerank(hits": (
            lambda value: rerank(value, len_of), Argument(hits, (QUERIES, 3, None, own), (), ("hits",), (list,))
        ),
        "rerank(model": (
            lambda value: rerank(hits, value), Argument(len_of, (3, None, "linear", [3]), (), ("odel",))
        ),
        "evaluate(collection": (
            lambda value: _measured(evaluate(own, value)),
            Argument(index.collection_read, (str(index.collection), index.collection, 3, None), (), ("ollection",)),
        ),
        "evaluate(split": (
            lambda value: _measured(evaluate(own, index.collection_read, value)), choice("test", "split")
        ),
        "evaluate(depth": (
            lambda value: _measured(evaluate(own, index.collection_read, depth=value)), whole(10, "depth")
        ),
        "search_config": (
            lambda value: setattr(index.own_retriever(), "search_config", value),
            Argument(SearchConfig(), (3, {"alpha": 1}, None, SearchConfig), (), ("search_config",)),
        ),
    }  # fmt: skip


def _measured(evaluation: dsi.Evaluation) -> list[Any]:
    """What does not depend on time."""
    return [(row.name, row.values) for row in evaluation.rows]


def _altered(text: str, call: Callable[[Any], Any], argument: Argument, chance: Random) -> Case:
    """The call with a wrong value, a twin of the right one, or the right one."""
    odd = [thing for thing in THINGS if not isinstance(thing, (*argument.allows, type(argument.good)))]
    wrong, twins = [*argument.wrong, *odd], [argument.good, *argument.twins]
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
