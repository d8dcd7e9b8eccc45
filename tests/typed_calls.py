"""The public face as a type checker sees it: `make lint` checks this file with mypy, nothing runs it.

An ignored error that does not occur is an error itself (`warn_unused_ignores`), so a signature that loses its options fails.
"""

from typing import Any, assert_type

import dsi
from dsi import Evaluation, Hits, Retriever
from dsi.rerankers import rerank
from dsi.search.engine import Followed
from dsi.search.explain.explanation import Explanation
from dsi.search.hits import Answers
from dsi.search.results import SearchResult

CROSS_ENCODER: Any = None


def options_are_typed(retriever: Retriever) -> None:
    assert_type(retriever.search("a query", k=5, beam_width=20, where="year > 2000", candidates=50), Hits)
    assert_type(retriever.search(["one", "two"], alpha=0.5, deny=["d1"]), Answers)
    assert_type(retriever.explain("a query", method="exact"), Explanation)
    assert_type(retriever.snapshot.search(retriever.encode_queries(["a query"]), lexical_weight=0.1), SearchResult)
    assert_type(retriever.run({"q1": "a query"}, k=100, token_weight=0.0), dict[str, dict[str, float]])
    assert_type(retriever.snapshot.follow(["a query"], [["d1"]], allow=["d1"]), Followed)
    assert_type(rerank(retriever.search("a query"), CROSS_ENCODER), Hits)
    assert_type(rerank(retriever.search(["one", "two"]), lambda hits: [0.0] * len(hits)), list[Hits])


def documents_are_typed(retriever: Retriever) -> None:
    document = retriever.get("d1")
    assert_type(document.text, str | None)
    assert_type(retriever.search("a query")[0].text, str | None)
    retriever.add({"doc_id": name, "text": "a text"} for name in "ab")
    retriever.add([{"doc_id": "d1", "text": "another text"}], replace=True)
    retriever.add([{"doc_id": "d1", "text": "another text"}], replace="yes")  # type: ignore[arg-type]
    retriever.remove(name for name in "ab")


def misspelt_options_are_errors(retriever: Retriever) -> None:
    retriever.search("a query", beam_with=20)  # type: ignore[call-overload]
    retriever.explain("a query", beam_with=20)  # type: ignore[call-arg]
    retriever.snapshot.search(retriever.encode_queries(["a query"]), beam_with=20)  # type: ignore[call-arg]
    retriever.run({"q1": "a query"}, beam_with=20)  # type: ignore[call-arg]
    retriever.snapshot.follow(["a query"], [["d1"]], beam_with=20)  # type: ignore[call-arg]


def options_of_another_type_are_errors(retriever: Retriever) -> None:
    retriever.search("a query", beam_width="wide")  # type: ignore[call-overload]
    retriever.explain("a query", candidates="many")  # type: ignore[arg-type]


def the_line_of_the_readme() -> None:
    collection = dsi.read_collection("COLLECTION")
    retriever = dsi.train(collection, "INDEX")
    assert_type(retriever, Retriever)
    assert_type(dsi.evaluate(retriever, collection), Evaluation)
    dsi.tune(retriever, collection)
