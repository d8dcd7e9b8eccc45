"""`dsi serve`: answers are those of the library, explanations are true, bad input gets its messages, a stop is clean."""

import gzip
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import SemLock
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

import numpy as np
from tqdm import tqdm
from tqdm.std import TqdmDefaultWriteLock

from dsi.commands.main import main
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.files.declarations import declarations
from dsi.docids.files.reading import catching_panics
from dsi.docids.words.common import COMMON_WORDS
from dsi.search.request import OPTIONS, SearchConfig
from dsi.server import service
from dsi.server.app import app_from_environment
from dsi.server.models import ExplainBody, SearchBody
from dsi.server.settings import ServerSettings
from dsi.store.documents.topics import Topics
from dsi.store.retriever import load
from tests.support.memory import resident_megabytes
from tests.support.serving import QUERY, Client, error, live, save_index
from tests.support.small import PROMPTS

RUNNING = Path(__file__).parents[2] / "docs/use/running.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sentence_t5_folder):
    """Two indexes, `vectors` and `digits`, the second without texts."""
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    folder = tmp_path_factory.mktemp("served")
    save_index(encoder, folder / "vectors")
    save_index(encoder, folder / "digits", vectors=False, texts=False)
    return folder


@pytest.fixture(scope="module")
def client(folder):
    with live(folder / "vectors") as client:
        yield client


@pytest.fixture(scope="module")
def digits_client(folder):
    with live(folder / "digits") as client:
        yield client


@pytest.fixture(scope="module")
def library(folder):
    return load(folder / "vectors", device="cpu")


# Searching.


def test_a_body_of_unknown_options_never_waits_for_the_index(client):
    body = {"query": "x", **{f"option{number}": 1 for number in range(300_000)}}
    batcher = client.app.state.service.batcher
    with mock.patch.object(batcher, "submit", side_effect=AssertionError("it waits for the index")):
        status, message = error(client.ask("search", body))
        assert status == 400
        assert message.startswith("search() has no option 'option0'; there are k, method")
        assert "extra_scores" not in message  # no request can hold it
        status, message = error(client.ask("search", {"query": "x", "b" * 7_000_000: 1}))
        assert status == 400
        assert len(message) < 300


@pytest.mark.parametrize(
    "options",
    [
        {"k": 4, "beam_width": 2, "candidates": 5, "lexical_weight": 0.02},
        {"k": 4, "deny": ["danube"], "where": "number < 50", "method": "generate", "token_weight": 0},
        {"k": 70, "method": "exact"},
        {"method": "exact", "allow": ["danube"]},
    ],
    ids=str,
)
def test_answers_are_those_of_the_library(client, library, options):
    status, found = client.ask("search", {"queries": [QUERY, "noble gases"], **options})
    assert status == 200
    for answer, hits in zip(found["answers"], library.search([QUERY, "noble gases"], **options), strict=True):
        assert answer["exact"] == hits.exact
        assert [hit["doc_id"] for hit in answer["hits"]] == [hit.doc_id for hit in hits]
        assert [hit["score"] for hit in answer["hits"]] == pytest.approx([hit.score for hit in hits], rel=1e-5)
        assert answer["hits"][0]["text"] == hits[0].text


@pytest.mark.parametrize(
    "options", [{}, {"lexical_weight": 0.0}, {"method": "exact"}, {"where": "number > 30"}], ids=str
)
def test_parts_are_vectors_and_words(client, library, options):
    _, found = client.ask("search", {"query": QUERY, "parts": True, **options})
    z, vectors = library.encode_queries([QUERY]).embeddings[0], library.snapshot.tree.embeddings[:]
    words = library.snapshot.lexical.shares([QUERY])[0]
    weight = options.get("lexical_weight", library.search_config.lexical_weight)
    assert len(found["answers"][0]["hits"]) == 10
    for hit in found["answers"][0]["hits"]:
        row = library.snapshot.documents.rows[hit["doc_id"]]
        vector = vectors[library.snapshot.tree.positions[row]]
        expected = {"dense": vector @ z, "BM25": weight * words[row]}
        if not weight:
            del expected["BM25"]
        assert hit["parts"] == pytest.approx(expected, abs=1e-5)
        assert sum(hit["parts"].values()) == pytest.approx(hit["score"], abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"alpha": 0.0}, {"alpha": 1.0}, {"method": "exact"}], ids=str)
def test_parts_of_digits_are_generator_and_encoder(digits_client, options):
    _, found = digits_client.ask("search", {"query": QUERY, "parts": True, **options})
    assert len(found["answers"][0]["hits"]) == 10
    for hit in found["answers"][0]["hits"]:
        assert set(hit["parts"]) == {"generator", "encoder"}
        assert sum(hit["parts"].values()) == pytest.approx(hit["score"], abs=1e-4)
        assert bool(hit["parts"]["generator"]) == (options.get("alpha") != 0)
        assert bool(hit["parts"]["encoder"]) == (options.get("alpha") != 1)


def test_several_queries_have_parts_of_their_own(client):
    queries = [QUERY, "noble gases", "gold"]
    _, together = client.ask("search", {"queries": queries, "parts": True})
    for query, answer in zip(queries, together["answers"], strict=True):
        _, alone = client.ask("search", {"query": query, "parts": True})
        for hit, other in zip(answer["hits"], alone["answers"][0]["hits"], strict=True):
            assert hit["parts"] == pytest.approx(other["parts"], abs=1e-5)


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/serch", 404, "This server has no path '/serch'; did you mean '/search'?"),  # misspelt
        ("POST", "/query", 404, "This server has no path '/query'; there are /, "),
        ("GET", "/documents/nope", 404, "The doc_id 'nope' is not in the index."),
        ("GET", "/search", 405, "/search takes POST, got GET."),
        ("DELETE", "/index", 405, "/index takes GET, HEAD, got DELETE."),
        (
            "POST",
            "/documents/%1B[2J%00",
            405,
            "/documents/\\x1b[2J\\x00 takes DELETE, GET, HEAD, got POST.",
        ),  # one plain line
    ],
)
def test_a_path_that_is_not_there_is_named(client, method, path, status, words):
    found, message = error(client.ask(path.removeprefix("/"), b"{}" if method == "POST" else None, method=method))
    assert found == status
    assert message.startswith(words)


def test_a_filter_that_allows_nothing_gives_an_empty_answer(client):
    _, found = client.ask("search", {"query": QUERY, "parts": True, "where": "number > 99"})
    assert found["answers"] == [{"query": QUERY, "exact": True, "hits": []}]
    _, picture = client.ask("explain", {"query": QUERY, "where": "number > 99", "doc_id": "danube"})
    assert (picture["children"], picture["pruned"], picture["walked"]) == ([], 0, False)
    assert picture["target"]["reason"] == "The filter excludes it."


def test_the_schema_has_every_option_that_json_can_hold():
    for body in (SearchBody, ExplainBody):
        described = body.model_json_schema()["properties"]
        assert described.keys() - body.model_fields.keys() == set(OPTIONS) - {"extra_scores"}
        assert described["alpha"] == {
            "type": "number", "minimum": 0, "maximum": 1, "examples": [0.7],
            "description": declarations(SearchConfig)["alpha"].meaning,
        }  # fmt: skip
        assert described["method"]["enum"] == ["generate", "exact"]
        assert described["allow"]["items"] == {"type": "string"}


def test_the_schema_describes_options_with_examples(client):
    _, schema = client.ask("openapi.json")
    body = schema["components"]["schemas"]["SearchBody"]["properties"]
    assert body["beam_width"]["type"] == "integer"
    assert all(body[name]["examples"] for name in OPTIONS if name != "extra_scores")
    assert "4XX" in schema["paths"]["/search"]["post"]["responses"]


GONE = [
    "fusion",
    "probed",
    "exact",
    "max_expansions",
    "simulations",
    "reward",
    "query_map_weight",
]
BAD = [
    *(({"query": "x", name: 1}, f"search() has no option '{name}'") for name in GONE),
    ({"query": "x", "beam_with": 3}, "search() has no option 'beam_with'; did you mean 'beam_width'?"),
    ({"query": "x", "alpha": "y"}, "alpha must be a number, got 'y'."),
    ({"query": "x", "k": "ten"}, "k must be an integer, got 'ten'."),
    ({"query": "x", "k": 0}, "k must be at least 1, got 0."),
    ({"query": "x", "k": -1}, "k must be at least 1, got -1."),
    ({"query": "x", "k": 1.5}, "k must be an integer, got 1.5."),
    ({"query": "x", "k": True}, "k must be an integer, got True."),
    ({"query": "x", "k": [3]}, "k must be an integer, got [3]."),
    ({"query": "x", "k": float("nan")}, "k must be an integer, got nan."),
    ({"query": "x", "k": 101}, "k must be at most 100 on this server, got 101."),
    ({"query": "x", "k": 10**30}, "k must be at most 100 on this server, got an integer of 100 bits."),
    ({"query": "x", "beam_width": 501}, "beam_width must be at most 500 on this server, got 501."),
    ({"query": "x", "candidates": 10_001}, "candidates must be at most 10,000 on this server, got 10001."),
    ({"query": "x", "beam_width": 0}, "beam_width must be at least 1, got 0."),
    ({"query": "x", "candidates": 0}, "candidates must be at least 1, got 0."),
    ({"query": "x", "method": "mcts"}, "method must be one of generate, exact, got 'mcts'."),
    ({"query": "x", "method": "exact", "beam_width": 3}, 'search() does not use beam_width with method "exact"'),
    ({"query": "x", "method": "exact", "alpha": 0.3}, "search() does not use alpha: this index has no generator"),
    ({"query": "x", "token_weight": 0.5}, "token_weight is 0.5, but this index has no token vectors; use 0"),
    ({"query": "x", "lexical_weight": -1}, "lexical_weight must be between 0 and 1e6, got -1"),
    ({"query": "x", "deny": ["nobody"]}, "deny names the doc_id 'nobody', which is not in the index."),
    ({"query": "x", "where": "number <"}, "where 'number <' does not work at character 9: expected a value, got the end."),
    ({"query": "\ud800"}, "Query 0 must be Unicode text, got the lone surrogate"),
    ({"query": "x", "extra_scores": [1]}, "extra_scores is a Python object, which no request can hold; leave it out."),
    ({"query": "x", "queries": ["y"]}, "Give query, a text, or queries, a list of texts; one of the two."),
    ({"queries": "y"}, "queries must be a list of texts, got 'y'."),
    ([1], "The body must be a JSON object, got [1]."),
    (b"{", "The body is not JSON: "),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_input_gets_one_plain_message(client, body, message):
    status, said = error(client.ask("search", body))
    assert status == 400
    assert said.startswith(message)
    assert "Traceback" not in said


LONG = "x" * 20_000


@pytest.mark.parametrize(
    "body",
    [
        {"query": "x", "k": 10**4000}, {"query": [LONG]}, {"query": {LONG: LONG}}, {"queries": LONG}, [LONG],
        {"query": "x", "deny": [LONG]}, {"query": "x", "where": f'"{LONG}" = 1'}, {"query": "x", "where": '"a\n\x1b[2J" = 1'},
        {"query": "x", "where": "number = 'a\nb'"}, {"query": "x", "parts": LONG},
    ],
)  # fmt: skip
def test_a_message_is_one_short_line_however_long_the_value(client, body):
    status, said = error(client.ask("search", body))
    assert status == 400
    assert len(said) < 600
    assert said.isprintable()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"query": "x" * 2001}, "Query 0 must have at most 2,000 characters on this server, got 2,001; shorten it."),
        ({"queries": ["x"] * 101}, "A request may have 100 queries on this server, got 101;"),
        (b" " * 8_000_001, "The body of a request may have 8,000,000 bytes on this server; send less at a time."),
    ],
)
def test_requests_beyond_a_limit_are_refused(client, body, message):
    status, said = error(client.ask("search", body))
    assert status == 413
    assert said.startswith(message)


def test_a_search_that_takes_too_long_is_given_up(folder, monkeypatch):
    with live(folder / "vectors", timeout=0.05) as client:
        monkeypatch.setattr(service, "answers", lambda *arguments, **options: time.sleep(1))
        status, said = error(client.ask("search", {"query": "x"}))
    assert status == 503
    assert said.startswith("The search took longer than 0.05 s; try again later")


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/json"])
def test_a_body_is_json_whatever_its_content_type_says(client, kind):
    request = urllib.request.Request(f"{client.url}/search", json.dumps({"query": QUERY, "k": 2}).encode())
    request.add_unredirected_header("Content-type", kind or "")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert len(json.load(answer)["answers"][0]["hits"]) == 2


def test_other_origins_may_call_only_if_that_is_set(folder, client):
    def allowed(url, origin):
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        request = urllib.request.Request(f"{url}/search", headers=headers, method="OPTIONS")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.headers["Access-Control-Allow-Origin"]
        except urllib.error.HTTPError:
            return None

    assert allowed(client.url, "https://example.org") is None
    with live(folder / "vectors", allow_origin="https://example.org") as own:
        assert allowed(own.url, "https://example.org") == "https://example.org"
        assert allowed(own.url, "https://example.com") is None
    for wrong in ("example.org", "https://example.org/", "null", "https://a.org, https://b.org"):
        with pytest.raises(ValueError, match="allow_origin must be an origin such as"):
            ServerSettings("run", allow_origin=wrong)


def test_the_documented_answer_has_the_form_of_answers(client):
    documented = json.loads(re.search(r"```json\n(.*?)```", RUNNING.read_text(encoding="utf-8"), re.DOTALL)[1])
    _, found = client.ask("search", {"query": QUERY})
    assert documented.keys() < found.keys()
    ((shown, answer),) = zip(documented["answers"], found["answers"], strict=True)
    assert shown.keys() < answer.keys()
    for name, value in shown["hits"][0].items():
        assert type(answer["hits"][0][name]) is type(value)


def keys_in(value, but=("config", "metadata", "parts", "returned_by", "columns", "search_config", "limits")):
    """The keys of an answer and of the records in it, but not those that depend on the index."""
    if isinstance(value, dict):
        return {*value, *(key for name, own in value.items() if name not in but for key in keys_in(own, but))}
    return {key for own in value for key in keys_in(own, but)} if isinstance(value, list) else set()


def test_every_key_of_an_answer_is_described_on_the_page(client):
    described = dict(re.findall(r"^\| `(\w+ /[^`]*)` \| (.*) \|$", RUNNING.read_text(encoding="utf-8"), re.MULTILINE))
    asked = {"query": QUERY, "k": 3, "doc_id": "neon"}
    found = {
        "POST /search": client.ask("search", {"queries": [QUERY, "neon"], "parts": True, "matches": True}),
        "POST /explain": client.ask("explain", asked),
        "GET /tree": client.ask("tree"),
        "GET /documents/ID": client.ask("documents/danube"),
        **{f"GET /{name}": client.ask(name) for name in ("index", "health", "ready")},
    }
    for path, (status, answer) in found.items():
        assert status == 200, path
        assert keys_in(answer) <= {*re.findall(r"`(\w+)`", described[path])}, path


def test_answers_have_matched_words(client, library):
    _, found = client.ask("search", {"query": QUERY, "matches": True})
    hits = library.search(QUERY)
    for shown, hit, matches in zip(found["answers"][0]["hits"], hits, hits.matches(), strict=True):
        assert shown["metadata"] == hit.metadata
        assert [match["word"] for match in shown["matches"]] == [match.word for match in matches]
        for match in shown["matches"]:
            assert all(shown[at["field"]][at["start"] : at["end"]] == at["text"] for at in match["spans"])


# Explaining.


def every_node(children):
    for child in children:
        yield child
        yield from every_node(child.get("children", []))


PICTURES = [
    ("vectors", {"beam_width": 3}),
    ("vectors", {"beam_width": 1, "lexical_weight": 5.0}),
    ("vectors", {"method": "exact"}),
    ("vectors", {"where": "number < 20"}),
    ("digits", {"beam_width": 3}),
    ("digits", {"method": "exact"}),
]


@pytest.mark.parametrize(("name", "options"), PICTURES, ids=str)
def test_the_picture_shows_the_search_that_was_made(folder, name, options):
    retriever = load(folder / name, device="cpu")
    with live(folder / name) as client:
        _, picture = client.ask("explain", {"query": QUERY, "k": 3, **options})
    explanation, hits = retriever.explain(QUERY, 3, **options), retriever.search(QUERY, 3, **options)
    known = {node.digits: node for level in explanation.levels for node in level}
    drawn = {tuple(node["digits"]): node for node in every_node(picture["children"])}
    needed = {digits for digits, node in known.items() if node.kept or node.children}
    assert needed <= set(drawn) <= set(known)
    for digits, node in drawn.items():
        own = known[digits]
        assert node["score"] == (None if own.score is None else pytest.approx(own.score, rel=1e-5))
        assert (node["rank"], node["kept"], node["found_by"]) == (own.rank, own.kept, list(own.found_by))
        assert node["parts"] == pytest.approx(own.parts, abs=1e-5)
    ranked = sorted((node["rank"], digits) for digits, node in drawn.items() if node["rank"])
    assert ranked == [(hit.rank, hit.digits) for hit in hits]
    for depth, counts in enumerate(picture["levels"], start=1):
        inner = [node for digits, node in known.items() if len(digits) == depth and not is_document(retriever, digits)]
        scored = [node for node in inner if node.score is not None]
        answers = sum(len(hit.digits) == depth for hit in hits)
        assert counts == {"scored": len(scored), "kept": sum(n.kept for n in scored), "answers": answers}
    assert picture["walked"] == ("beam_width" in options)
    assert picture["config"]["beam_width"] == explanation.config.beam_width
    assert picture["read"] == explanation.read


def is_document(retriever, digits):
    return retriever.snapshot.tree.node(digits) >= retriever.snapshot.tree.num_inner


LAW = "the law of light and gases in physics"


def test_documents_that_words_found_outside_the_walk_are_said_to_be(client):
    asked = {"query": LAW, "k": 5, "beam_width": 1, "lexical_weight": 5.0}
    _, picture = client.ask("explain", asked)
    found = list(answers_below(picture["children"], kept=True))
    assert len(found) == 5
    assert any(node["found_by"] == ["words"] for node, _ in found)
    for node, kept in found:  # the walk found exactly those below nodes that it kept
        assert ("walk" in node["found_by"]) == kept
    _, dense = client.ask("explain", {**asked, "lexical_weight": 0})
    assert [node["found_by"] for node, _ in answers_below(dense["children"], kept=True)] == [["walk"]] * 5


def answers_below(children, *, kept):
    """Yield answers, and whether all nodes above were kept."""
    for child in children:
        if child["rank"]:
            yield child, kept
        yield from answers_below(child.get("children", []), kept=kept and child["kept"])


def test_a_document_is_explained_as_by_the_library(client, library):
    hits = library.search(QUERY, k=3, beam_width=1)
    for doc_id in library.snapshot.documents.column("doc_id")[:20]:
        _, picture = client.ask("explain", {"query": QUERY, "k": 3, "beam_width": 1, "doc_id": doc_id})
        target, own = picture["target"], hits.explain(doc_id)
        assert target["reason"] == own.reason
        assert (target["rank"], target["overall_rank"], target["total"]) == (own.rank, own.overall_rank, 60)
        assert [tuple(step["digits"]) for step in target["path"]] == [step.digits for step in own.path]
        assert [step["state"] for step in target["path"]] == [step.state for step in own.path]
        assert [match["word"] for match in target["matches"]] == [match.word for match in own.matches]


def test_a_document_outside_the_index_cannot_be_followed(client):
    said = error(client.ask("explain", {"query": "x", "doc_id": "nobody"}))
    assert said == (400, "The doc_id 'nobody' is not in the index.")


# The tree.


def test_telling_words_follow_the_formula(library):
    topics = Topics(library.snapshot.tree, library.snapshot.documents)
    titles, texts = library.snapshot.documents.column("title"), library.snapshot.documents.column("text")
    words = [
        set(re.findall(r"[^\W\d_]{3,}", f"{title} {text}".lower())) - COMMON_WORDS
        for title, text in zip(titles, texts, strict=True)
    ]

    def weight(word, rows):
        here, everywhere = sum(word in words[row] for row in rows), sum(word in own for own in words)
        return here * np.log((here / len(rows)) / (everywhere / len(words)))

    for node in range(1, library.snapshot.tree.num_inner):
        rows = library.snapshot.tree.doc_rows[
            library.snapshot.tree.doc_start[node] : library.snapshot.tree.doc_end[node]
        ]
        weights = {word: weight(word, rows) for word in set().union(*(words[row] for row in rows))}
        best = sorted(weights, key=lambda word: (-round(weights[word], 6), word))[:5]
        assert topics.telling_words(node) == [word for word in best if weights[word] > 0]


def test_the_tree_leads_to_every_document(client, library):
    found = []

    def walk(digits):
        _, node = client.ask(f"tree?digits={','.join(map(str, digits))}")
        assert node["documents"] == sum(child["documents"] for child in node["children"])
        for child in node["children"]:
            if "doc_id" in child:
                found.append(child["doc_id"])
            else:
                walk(child["digits"])

    walk([])
    assert sorted(found) == sorted(library.snapshot.documents.column("doc_id"))
    assert error(client.ask("tree?digits=99"))[0] == 400
    assert error(client.ask("tree?digits=a")) == (
        400, "digits must be whole numbers with commas between them, as in 1,4, got 'a'."
    )  # fmt: skip


# The process.


def test_state_and_numbers(client):
    assert client.ask("health") == (200, {"status": "ok"})
    assert client.ask("ready") == (200, {"status": "ready"})
    client.ask("search", {"query": "x"})
    client.ask("nobody")
    _, text = client.ask("metrics")
    assert 'dsi_requests_total{path="/search",status="200"}' in text
    assert 'dsi_requests_total{path="other",status="404"}' in text
    assert "dsi_documents 60.0" in text
    assert re.search(r"dsi_batch_queries_count [1-9]", text)


def test_a_server_whose_search_thread_ended_is_not_ready(folder, monkeypatch):
    with live(folder / "vectors") as client:
        monkeypatch.setattr(client.app.state.service.batcher, "_thread", threading.Thread())
        status, message = error(client.ask("ready"))
        assert status == 503
        assert "its search thread has ended" in message
        monkeypatch.undo()


def test_a_panic_of_the_tokenizer_is_the_error_of_its_request_alone(folder, monkeypatch):
    class Panic(BaseException):
        pass

    def forward(self, texts, kind):
        with catching_panics():
            if any("panic" in text for text in texts):
                raise Panic("index out of bounds")
        return own(self, texts, kind)

    own = TextEncoder.forward
    monkeypatch.setattr(TextEncoder, "forward", forward)
    with live(folder / "vectors") as client:
        assert client.ask("search", {"query": "panic"})[0] == 500
        assert client.ask("search", {"query": QUERY})[0] == 200
        assert client.ask("ready")[0] == 200


def test_a_file_that_is_cut_off_fails_requests_and_not_the_server(folder, tmp_path):
    shutil.copytree(folder / "vectors", tmp_path / "index")
    path = tmp_path / "index" / "docids" / "docids.safetensors"
    data = path.read_bytes()
    with live(tmp_path / "index") as client:
        os.truncate(path, 100)
        assert client.ask("search", {"query": QUERY})[0] == 500
        path.write_bytes(data)
        assert client.ask("search", {"query": QUERY})[0] == 200


def test_many_clients_are_answered_in_few_batches(client, library):
    queries = [f"rivers of country {n}" for n in range(30)]
    expected = [[hit.doc_id for hit in library.search(query, k=3)] for query in queries]
    before = batches(client)
    with ThreadPoolExecutor(30) as pool:
        found = list(pool.map(lambda query: client.ask("search", {"query": query, "k": 3})[1]["answers"][0], queries))
    assert [[hit["doc_id"] for hit in answer["hits"]] for answer in found] == expected
    assert batches(client) - before < 20


def batches(client):
    return float(re.search(r"dsi_batch_queries_count ([\d.]+)", client.ask("metrics")[1])[1])


def test_a_stop_answers_what_was_asked_before(folder):
    with ThreadPoolExecutor(20) as pool:
        with live(folder / "vectors", max_batch=1) as client:
            asked = [pool.submit(client.ask, "search", {"query": f"query {n}", "method": "exact"}) for n in range(20)]
            while not batches(client):
                time.sleep(0.001)
        assert [future.result()[0] for future in asked] == [200] * 20


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_stops_the_command_cleanly(folder, workers):
    command = [sys.executable, "-m", "dsi", "serve", str(folder / "vectors"), "--port", "0", "--workers", workers]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    begun = ""
    while "running on" not in begun or "startup complete" not in begun:
        begun += next(process.stderr)
    url = urllib.parse.urlsplit(re.search(r"http://[\d.:]+", begun)[0])
    while socket.socket().connect_ex((url.hostname, url.port)):  # workers say that they have started before they listen
        time.sleep(0.05)
    assert Client(url.geturl()).ask("search", {"query": "x"})[0] == 200
    process.send_signal(signal.SIGTERM)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 0
    assert "Traceback" not in said
    assert "leaked" not in said


def test_a_process_of_a_server_makes_no_semaphore_that_would_outlive_it(folder, monkeypatch):
    made, make = [], SemLock.__init__
    monkeypatch.setattr(SemLock, "__init__", lambda *own, **more: (made.append(own), make(*own, **more))[1])
    monkeypatch.delattr(tqdm, "_lock", raising=False)
    monkeypatch.delattr(TqdmDefaultWriteLock, "mp_lock", raising=False)
    monkeypatch.setenv("DSI_SERVER", json.dumps({"run": str(folder / "vectors"), "device": "cpu"}))
    app_from_environment().state.service.batcher.close()
    assert not made


def test_the_command_refuses_what_cannot_work(folder, monkeypatch, capsys):
    monkeypatch.delenv("DSI_TOKEN", raising=False)
    run = str(folder / "vectors")
    assert main(["serve", run, "--writable"]) == 2
    assert main(["serve", run, "--writable", "--workers", "2"]) == 2
    assert main(["serve", run, "--writable", "--port", "0", "--dtype", "bfloat16"]) == 2
    assert main(["serve", run, "--shard-timeout", "3"]) == main(["serve", run, "--require-all"]) == 2
    assert main(["serve", run, "--port", "70000"]) == 2
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", run]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("dsi: A writable server needs a token; set the environment variable DSI_TOKEN")
    assert said[1] == "dsi: --writable needs --workers 1: an update in one process would not reach the others."
    assert "A writable server needs the dtype float32" in said[2]
    assert said[3] == "dsi: --shard-timeout needs --cluster, which says where shards are served."
    assert said[4] == "dsi: --require-all needs --cluster, which says where shards are served."
    assert "70000" in said[5]
    assert "uvicorn" in said[6]
    assert said[6].endswith('pip install "dr-scl[server]".')


@pytest.mark.parametrize(("more", "host"), [([], "127.0.0.1"), (["--host", "0.0.0.0"], "0.0.0.0")])
def test_a_server_listens_at_this_machine_alone(folder, monkeypatch, capsys, more, host):
    given = {}
    monkeypatch.setenv("DSI_SERVER", "")
    monkeypatch.setattr("uvicorn.run", lambda app, **options: given.update(options))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["serve", str(folder / "vectors"), *more]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert given["host"] == host
    assert given["log_level"] == "info"  # so that uvicorn says when it is ready, and where
    assert capsys.readouterr().err.startswith(f"dsi: loading the libraries and the index {folder / 'vectors'} …\n")


@pytest.mark.slow
def test_ten_thousand_requests_leave_memory_and_files_as_they_were(folder):
    """Searches, explanations, errors: 10,000 in one run, of eight clients at once."""
    requests = [
        ("search", {"query": QUERY, "k": 5}), ("search", {"query": "noble gas", "method": "exact"}), ("search", {"query": ""}),
        ("search", {"query": QUERY, "where": "number < 9"}), ("explain", {"query": QUERY}), ("search", {"k": "x"}),
        ("nothing", None),
    ]  # fmt: skip
    expected = [200, 200, 200, 200, 200, 400, 404]
    with live(folder / "vectors") as client:

        def ask(number):
            assert client.ask(*requests[number % 7])[0] == expected[number % 7]

        def use(numbers):
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(ask, numbers))
            return resident_megabytes(), len([*Path("/proc/self/fd").iterdir()]), threading.active_count()

        use(range(1000))  # caches are filled
        before = use(range(1000))
        after = use(range(8000))
    assert after[0] <= before[0] + 20
    assert after[1] <= before[1] + 4
    assert after[2] <= before[2] + 1


def test_settings_travel_through_the_environment(monkeypatch):
    monkeypatch.setenv("DSI_SERVER", "")
    settings = ServerSettings("runs/x", max_k=7, timeout=1.5)
    settings.to_environment()
    assert ServerSettings.from_environment() == settings
    assert json.loads(os.environ["DSI_SERVER"])["max_k"] == 7
    with pytest.raises(ValueError, match="max_k must be at least 1, got 0"):
        ServerSettings("runs/x", max_k=0)


def test_a_request_that_fails_is_answered_counted_and_has_all_headers(folder, monkeypatch):
    def fails(_):
        raise RuntimeError("no such thing")

    with live(folder / "vectors", allow_origin="*") as client:
        monkeypatch.setattr(client.app.state.service, "about", lambda: fails(None))
        request = urllib.request.Request(f"{client.url}/index", headers={"Origin": "https://example.org"})
        with pytest.raises(urllib.error.HTTPError) as failed:
            urllib.request.urlopen(request, timeout=30)
        headers = failed.value.headers
        assert json.loads(failed.value.read()) == {"error": "The server failed on this request; its log says why."}
        assert (headers["Access-Control-Allow-Origin"], headers["X-Content-Type-Options"]) == ("*", "nosniff")
        _, metrics = client.ask("metrics")
        assert 'dsi_requests_total{path="/index",status="500"} 1.0' in metrics


def test_null_is_the_default_number_of_documents(client):
    _, answer = client.ask("search", {"query": QUERY, "k": None})
    assert len(answer["answers"][0]["hits"]) == 10


def ask_plainly(client, method, path, body=None, **headers):
    """Status, headers and body of an answer; redirects are not followed."""
    connection = http.client.HTTPConnection(client.url.removeprefix("http://"), timeout=30)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/page.css", "/health", "/ready", "/index", "/metrics", "/tree", "/documents/danube"]
)
def test_head_is_answered_as_get_without_the_body(client, path):
    status, headers, body = ask_plainly(client, "HEAD", path)
    assert (status, body) == (200, b"")
    assert headers["content-type"] == ask_plainly(client, "GET", path)[1]["content-type"]
    assert ask_plainly(client, "HEAD", "/nowhere")[::2] == (404, b"")


def test_a_slash_at_the_end_is_no_redirect(client):
    for method, path, meant in (
        ("POST", "/search/", "/search"),
        ("GET", "/health/", "/health"),
        ("POST", "/documents/", ""),
    ):
        status, headers, body = ask_plainly(client, method, path, b"{}")
        assert "location" not in headers
        assert status == (404 if meant else 405)
        assert not meant or f"did you mean {meant!r}?" in json.loads(body)["error"]


@pytest.mark.parametrize("coding", ["gzip", "br", "GZIP", "deflate, gzip"])
def test_compressed_bodies_are_refused_by_the_name_of_their_coding(client, coding):
    body = gzip.compress(json.dumps({"query": QUERY}).encode())
    status, headers, answer = ask_plainly(client, "POST", "/search", body, **{"Content-Encoding": coding})
    assert (status, headers["accept-encoding"]) == (415, "identity")
    message = f"This server reads bodies as they are, got Content-Encoding {coding.lower()!r}; send plain JSON."
    assert json.loads(answer) == {"error": message}
    plain = json.dumps({"query": QUERY}).encode()
    assert ask_plainly(client, "POST", "/search", plain, **{"Content-Encoding": "identity"})[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/documents/danube", "DELETE, GET, HEAD"),
        ("PATCH", "/documents/danube", "DELETE, GET, HEAD"),
        ("PUT", "/documents", "POST"),
        ("GET", "/search", "POST"),
        ("DELETE", "/", "GET, HEAD"),
    ],
)
def test_another_method_is_told_all_that_the_path_takes(client, method, path, allowed):
    status, headers, body = ask_plainly(client, method, path)
    assert (status, headers["allow"]) == (405, allowed)
    assert json.loads(body) == {"error": f"{path} takes {allowed}, got {method}."}
