"""`dsi serve`: answers are those of the library, explanations are true, bad input gets its messages, a stop is clean."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import SemLock

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

import numpy as np
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from tqdm import tqdm
from tqdm.std import TqdmDefaultWriteLock

from contrastive.encoder import Encoder, EncoderConfig
from dsi.retriever import GenerativeRetriever
from dsi.search.request import OPTIONS
from dsi.server.app import app_from_environment
from dsi.server.models import NOT_IN_JSON, SearchFields
from dsi.server.settings import ServerSettings
from dsi.server.topics import Topics
from scripts.main import main
from tests.serving import QUERY, Client, error, live, save_index


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sentence_t5_folder):
    """Two indexes, `tied` and `digits`, the second without texts."""
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder)), device="cpu")
    folder = tmp_path_factory.mktemp("served")
    save_index(encoder, folder / "tied")
    save_index(encoder, folder / "digits", tied=False, texts=False)
    return folder


@pytest.fixture(scope="module")
def client(folder):
    with live(folder / "tied") as client:
        yield client


@pytest.fixture(scope="module")
def library(folder):
    return GenerativeRetriever.from_pretrained(folder / "tied", device="cpu")


# Searching.


def test_answers_are_those_of_the_library(client, library):
    options = {"k": 4, "alpha": 0.2, "beam_width": 9, "deny": ["danube"], "where": "number < 50", "exact": True}
    status, found = client.ask("search", {"queries": [QUERY, "noble gases"], **options})
    assert status == 200
    for answer, hits in zip(found["answers"], library.search([QUERY, "noble gases"], **options), strict=True):
        assert answer["exact"] == hits.exact
        assert [hit["doc_id"] for hit in answer["hits"]] == [hit.doc_id for hit in hits]
        assert [hit["score"] for hit in answer["hits"]] == pytest.approx([hit.score for hit in hits], rel=1e-5)
        assert answer["hits"][0]["text"] == hits[0].text


@pytest.mark.parametrize("name", ["tied", "digits"])
@pytest.mark.parametrize(
    "options",
    [{}, {"alpha": 0.0}, {"lexical_weight": 0.0}, {"where": "number > 30"}, {"alpha": 1.0}, {"where": "number > 99"}],
    ids=str,
)
def test_parts_sum_to_the_score(folder, name, options):
    with live(folder / name) as client:
        _, found = client.ask("search", {"query": QUERY, "parts": True, **options})
        _, plain = client.ask("search", {"query": QUERY, "alpha": 0, "lexical_weight": 0, "k": 60, "beam_width": 60})
    dense = {hit["doc_id"]: hit["score"] for hit in plain["answers"][0]["hits"]}
    assert len(found["answers"][0]["hits"]) == (0 if options.get("where") == "number > 99" else 10)
    for hit in found["answers"][0]["hits"]:
        assert sum(hit["parts"].values()) == pytest.approx(hit["score"], abs=1e-4)
        share = 1 if name == "tied" else 1 - options.get("alpha", 0.5)
        assert hit["parts"]["encoder"] == pytest.approx(share * dense[hit["doc_id"]], abs=1e-4)
        assert bool(hit["parts"]["generator"]) == (options.get("alpha") != 0)


def test_the_schema_has_every_option_that_json_can_hold():
    assert set(SearchFields.model_fields) - {"k"} == set(OPTIONS) - set(NOT_IN_JSON)


def test_the_schema_describes_options_with_examples(client):
    _, schema = client.ask("openapi.json")
    body = schema["components"]["schemas"]["SearchBody"]["properties"]
    assert body["beam_width"]["type"] == "integer"
    assert all(body[name]["examples"] for name in OPTIONS if name not in NOT_IN_JSON)
    assert "4XX" in schema["paths"]["/search"]["post"]["responses"]


BAD = [
    ({"query": "x", "beam_with": 3}, "search() has no option 'beam_with'; did you mean 'beam_width'?"),
    ({"query": "x", "alpha": "y"}, "alpha must be a number, got 'y'."),
    ({"query": "x", "k": "ten"}, "k must be an integer, got 'ten'."),
    ({"query": "x", "k": 9, "beam_width": 3}, "k must be between 1 and 3 (the beam width), got 9; widen beam_width."),
    ({"query": "x", "deny": ["nobody"]}, "deny names the doc_id 'nobody', which is not in the index."),
    ({"query": "x", "where": "number <"}, "where 'number <' does not work at character 9: expected a value, got the end."),
    ({"query": " "}, "Query 0 must be a text that is not empty, got ' '."),
    ({"query": "\ud800"}, "Query 0 must be Unicode text, got the lone surrogate"),
    ({"query": "x", "reward": 1}, "reward is a Python object, which no request can hold; leave it out."),
    ({"query": "x", "queries": ["y"]}, "Give query, a text, or queries, a list of texts; one of the two."),
    ({"queries": "y"}, "queries must be a list of texts, got 'y'."),
    ({"query": "x", "parts": True, "method": "mcts", "k": 1}, "Only the scores of a beam search have parts;"),
    ([1], "The body must be a JSON object, got [1]."),
    (b"{", "The body is not JSON: "),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_input_gets_one_plain_message(client, body, message):
    status, said = error(client.ask("search", body))
    assert status == 400
    assert said.startswith(message)
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"query": "x", "k": 101}, "k must be at most 100 on this server, got 101."),
        ({"query": "x", "beam_width": 501}, "beam_width must be at most 500"),
        ({"query": "x", "simulations": 10**9, "method": "mcts"}, "simulations must be at most 10,000"),
        ({"query": "x" * 2001}, "Query 0 must have at most 2,000 characters on this server, got 2,001; shorten it."),
        ({"queries": ["x"] * 101}, "A request may have 100 queries on this server, got 101;"),
        (b" " * 8_000_001, "The body of a request may have 8,000,000 bytes on this server; send less at a time."),
    ],
)
def test_requests_beyond_a_limit_are_refused(client, body, message):
    status, said = error(client.ask("search", body))
    assert status == 413
    assert said.startswith(message)


def test_a_search_that_takes_too_long_is_given_up(folder):
    with live(folder / "tied", timeout=1e-4) as client:
        status, said = error(client.ask("search", {"query": "x"}))
    assert status == 503
    assert said.startswith("The search took longer than 0.0001 s; try again later")


# Explaining.


def every_node(children):
    for child in children:
        yield child
        yield from every_node(child.get("children", []))


@pytest.mark.parametrize("name", ["tied", "digits"])
def test_the_picture_shows_the_nodes_of_the_explanation(folder, name):
    retriever = GenerativeRetriever.from_pretrained(folder / name, device="cpu")
    with live(folder / name) as client:
        _, picture = client.ask("explain", {"query": QUERY, "k": 3, "beam_width": 3})
    known = {node.digits: node for level in retriever.explain(QUERY, 3, beam_width=3).levels for node in level}
    drawn = {tuple(node["digits"]): node for node in every_node(picture["children"])}
    assert {digits for digits, node in known.items() if node.kept} <= set(drawn) <= set(known)
    for digits, node in drawn.items():
        assert node["score"] == pytest.approx(known[digits].score, rel=1e-5)
        assert node["generator"] + node["rest"] == pytest.approx(node["score"], abs=1e-4)
        assert (node["rank"], node["kept"]) == (known[digits].rank, known[digits].kept)
    assert sorted(node["rank"] for node in drawn.values() if node["rank"]) == [1, 2, 3]
    assert picture["levels"][0] == {"scored": len(known_at(known, 1)), "kept": sum(n.kept for n in known_at(known, 1))}


def known_at(known, depth):
    return [node for digits, node in known.items() if len(digits) == depth]


def test_every_document_has_a_reason_that_is_true(client, library):
    hits = library.search(QUERY, k=3, beam_width=3, where="number < 55")
    ranks = {hit.doc_id: hit.rank for hit in hits}
    reasons = set()
    for row, doc_id in enumerate(library.documents.dataset["doc_id"]):
        asked = {"query": QUERY, "k": 3, "beam_width": 3, "where": "number < 55", "doc_id": doc_id}
        target = client.ask("explain", asked)[1]["target"]
        states = [step["state"] for step in target["path"]]
        assert target["rank"] == ranks.get(doc_id)
        if doc_id in ranks:
            assert target["reason"] == f"It is here, at rank {ranks[doc_id]}."
            assert states == ["kept"] * len(states)
        elif row >= 55:
            assert target["reason"] == "The filter excludes it."
        else:
            lost = states.index("pruned")
            assert states == ["kept"] * lost + ["pruned"] + ["not reached"] * (len(states) - lost - 1)
            expected = "It was scored, but" if lost == len(states) - 1 else f"level {lost + 1}"
            assert expected in target["reason"]
        reasons.add(re.sub(r"[\d.−-]+", "", target["reason"]).strip()[:20])
    assert len(reasons) >= 3


def test_a_document_outside_the_index_cannot_be_followed(client):
    said = error(client.ask("explain", {"query": "x", "doc_id": "nobody"}))
    assert said == (400, "doc_id names the doc_id 'nobody', which is not in the index.")


# The tree.


def test_telling_words_follow_the_formula(library):
    topics = Topics(library.tree, library.documents)
    titles, texts = library.documents.dataset["title"], library.documents.dataset["text"]
    words = [
        set(re.findall(r"[^\W\d_]{3,}", f"{title} {text}".lower())) - ENGLISH_STOP_WORDS
        for title, text in zip(titles, texts, strict=True)
    ]

    def weight(word, rows):
        here, everywhere = sum(word in words[row] for row in rows), sum(word in own for own in words)
        return here * np.log((here / len(rows)) / (everywhere / len(words)))

    for node in range(1, library.tree.num_inner):
        rows = library.tree.doc_rows[library.tree.doc_start[node] : library.tree.doc_end[node]]
        weights = {word: weight(word, rows) for word in set().union(*(words[row] for row in rows))}
        best = sorted(weights, key=lambda word: (-round(weights[word], 6), word))[:5]
        assert topics.of(node) == [word for word in best if weights[word] > 0]


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
    assert sorted(found) == sorted(library.documents.dataset["doc_id"])
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
        with live(folder / "tied", max_batch=1) as client:
            asked = [pool.submit(client.ask, "search", {"query": f"query {n}", "exact": True}) for n in range(20)]
            while not batches(client):
                time.sleep(0.001)
        assert [future.result()[0] for future in asked] == [200] * 20


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_stops_the_command_cleanly(folder, workers):
    command = [sys.executable, "-m", "scripts.serve", str(folder / "tied"), "--port", "0", "--workers", workers]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    begun = ""
    while "running on" not in begun or "startup complete" not in begun:
        begun += next(process.stderr)
    assert Client(re.search(r"http://[\d.:]+", begun)[0]).ask("search", {"query": "x"})[0] == 200
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
    monkeypatch.setenv("DSI_SERVER", json.dumps({"run": str(folder / "tied"), "device": "cpu"}))
    app_from_environment().state.service.batcher.close()
    assert not made


def test_the_command_refuses_what_cannot_work(folder, monkeypatch, capsys):
    monkeypatch.delenv("DSI_TOKEN", raising=False)
    run = str(folder / "tied")
    assert main(["serve", run, "--writable"]) == 2
    assert main(["serve", run, "--writable", "--workers", "2"]) == 2
    assert main(["serve", run, "--port", "70000"]) == 2
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", run]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("dsi: A writable server needs a token; set the environment variable DSI_TOKEN")
    assert said[1] == "dsi: --writable needs --workers 1: an update in one process would not reach the others."
    assert "70000" in said[2]
    assert "uvicorn" in said[3]
    assert said[3].endswith('pip install "dr-scl[server]".')


def test_settings_travel_through_the_environment(monkeypatch):
    monkeypatch.setenv("DSI_SERVER", "")
    settings = ServerSettings("runs/x", max_k=7, timeout=1.5)
    settings.to_environment()
    assert ServerSettings.from_environment() == settings
    assert json.loads(os.environ["DSI_SERVER"])["max_k"] == 7
    with pytest.raises(ValueError, match="max_k must be at least 1, got 0"):
        ServerSettings("runs/x", max_k=0)
