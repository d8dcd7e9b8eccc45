"""Quotes and minuses of requests are read if they ask for it, and the page does."""

import pytest

pytest.importorskip("fastapi")

from tests.support.serving import live, save_index

QUERIES = ['"danube"', '"nobody has this"', "text -river", "-river", "gas"]


@pytest.fixture
def library(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("requests") / "index"
    return save_index(encoder, folder), folder


def test_a_server_answers_as_the_library_does(library):
    index, folder = library
    with live(folder) as client:
        status, found = client.ask(
            "search", {"queries": QUERIES, "k": 60, "syntax": True, "matches": True, "parts": True}
        )
        assert status == 200
        for query, answer, hits in zip(
            QUERIES, found["answers"], index.search(QUERIES, k=60, syntax=True), strict=True
        ):
            assert ([hit["doc_id"] for hit in answer["hits"]], answer["query"]) == (list(hits.ids), query)
            assert answer.get("note", "") == hits.note
            status, picture = client.ask("explain", {"query": query, "k": 5, "syntax": True})
            assert sum(level["answers"] for level in picture["levels"]) == min(5, len(hits))
        _, plain = client.ask("search", {"query": QUERIES[1]})
        assert len(plain["answers"][0]["hits"]) == 10
        assert "note" not in plain["answers"][0]
        status, refused = client.ask("search", {"query": f'"{"x" * 1500}"', "syntax": True})
        assert (status, "A quote may have 1,000 characters, got 1,500." in str(refused)) == (400, True)


def test_the_page_asks_for_it(library):
    with live(library[1]) as client:
        assert "{ query, syntax: true," in client.ask("page.js")[1]
