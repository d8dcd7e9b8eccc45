"""`dsi serve`: documents come and go with the token, and no answer is of two moments; requests share batches."""

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import numpy as np
import pytest

from dsi.store.retriever import Retriever

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

import dsi
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.query_memory import MemoryConfig, QueryMemory
from dsi.server.batching import Batcher, BusyError
from dsi.server.service import Rate, RateError
from dsi.store.folder.manifest import read_manifest
from dsi.store.retriever import load
from tests.support.serving import TOKEN, error, live, save_index

# Documents.

NEW = {"doc_id": "a/ä", "title": "Neretva", "text": "A river in Bosnia and Croatia.", "metadata": {"number": 70}}


@pytest.fixture
def writable(tmp_path, encoder, monkeypatch):
    monkeypatch.setenv("DSI_TOKEN", TOKEN)
    save_index(encoder, tmp_path / "run")
    with live(tmp_path / "run", writable=True) as client:
        client.run = tmp_path / "run"
        yield client


@pytest.mark.parametrize("doc_id", ["a/ä", "€" * 1365])  # the longest
def test_documents_come_and_go_on_disk_too(writable, doc_id):
    path, new = f"documents/{quote(doc_id)}", {**NEW, "doc_id": doc_id}
    assert writable.ask("documents", {"documents": [new]}, token=TOKEN) == (200, {"documents": 61})
    _, found = writable.ask(path)
    assert (found["title"], found["metadata"]) == ("Neretva", {"number": 70})
    assert len(load(writable.run, device="cpu").snapshot.documents) == 61
    assert writable.ask(path, method="DELETE", token=TOKEN) == (200, {"documents": 60})
    assert error(writable.ask(path))[0] == 404
    assert len(load(writable.run, device="cpu").snapshot.documents) == 60


def test_the_path_of_a_file_deletes_all_of_its_documents(tmp_path, sentence_bert_folder, monkeypatch):
    monkeypatch.setenv("DSI_TOKEN", TOKEN)
    folder, run = tmp_path / "files", tmp_path / "run"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "rows.jsonl").write_text(
            "".join(json.dumps({"id": f"{name}{number}", "text": f"A text, {number}."}) + "\n" for number in range(3))
        )
    (folder / "long.txt").write_text("".join(f"Sentence {number} of a long text.\n" for number in range(1500)))
    dsi.index(folder, run, encoder=str(sentence_bert_folder), device="cpu")
    with live(run, writable=True) as client:

        def delete(name):
            return client.ask(f"documents/{quote(name, safe='')}", method="DELETE", token=TOKEN)

        status, message = error(delete("rows.jsonl"))
        assert (status, message[:49]) == (404, "remove names 'rows.jsonl', which 2 files are call")
        assert delete("a/rows.jsonl") == (200, {"documents": 4})
        assert delete(str(folder / "b" / "rows.jsonl")) == (200, {"documents": 1})
        assert error(delete("b/rows.jsonl"))[0] == 404
        assert client.ask("documents", {"documents": [{"doc_id": "x", "text": "New."}]}, token=TOKEN)[0] == 200
        assert delete("long.txt") == (200, {"documents": 1})
        (hit,) = client.ask("search", {"query": "a sentence of a long text"})[1]["answers"][0]["hits"]
        assert hit["doc_id"] == "x"
    assert [*dsi.load(run, device="cpu").snapshot.documents.rows] == ["x"]


def test_documents_are_safe_without_the_token(writable, monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda *texts: compared.append(texts) or texts[0] == texts[1])
    with live(writable.run) as client:
        said = error(client.ask("documents", {"documents": [NEW]}, token=TOKEN))
    assert said == (403, "This server is read-only; start it with --writable and a token in DSI_TOKEN.")
    for token in (None, "wrong", "ö"):
        status, message = error(writable.ask("documents/danube", method="DELETE", token=token))
        assert status == 401
        assert "Authorization: Bearer TOKEN" in message
    assert len(compared) == 3  # in constant time
    assert len(writable.app.state.service.retriever.snapshot.documents) == 60


def test_after_an_update_from_elsewhere_the_server_loads_it_and_takes_the_change_again(writable):
    other = load(writable.run, device="cpu")
    gone = other.snapshot.documents.column("doc_id")[0]
    other.remove([gone])
    other.save(writable.run)
    status, message = error(writable.ask("documents", {"documents": [NEW]}, token=TOKEN))
    assert status == 409
    assert "It has loaded the index again: send the change once more" in message
    assert str(writable.run) not in message
    assert error(writable.ask("documents/a/%C3%A4"))[0] == error(writable.ask(f"documents/{gone}"))[0] == 404
    assert writable.ask("documents", {"documents": [NEW]}, token=TOKEN) == (200, {"documents": 60})
    assert len(load(writable.run, device="cpu").snapshot.documents) == 60


def test_what_others_changed_is_loaded_before_a_change_is_judged(writable):
    other = load(writable.run, device="cpu")
    gone = next(iter(other.snapshot.documents.rows))
    other.remove([gone])
    other.add([NEW])
    other.save(writable.run)
    assert error(writable.ask("documents/a/%C3%A4", method="DELETE", token=TOKEN))[0] == 409
    assert writable.ask("documents/a/%C3%A4", method="DELETE", token=TOKEN) == (200, {"documents": 59})
    status, message = error(writable.ask("documents/a/%C3%A4", method="DELETE", token=TOKEN))
    assert (status, message) == (404, "remove names the doc_id 'a/ä', which is not in the index.")
    assert writable.ask("documents", {"documents": []}, token=TOKEN) == (200, {"documents": 59})
    assert read_manifest(writable.run)["generation"] == 3


def test_answers_name_no_folder_of_the_server(writable):
    writable.run.rename(writable.run.with_name("elsewhere"))
    for answer in (
        writable.ask("documents", {"documents": [NEW]}, token=TOKEN),
        writable.ask("documents/danube", method="DELETE", token=TOKEN),
    ):
        status, message = error(answer)
        assert (status, message) == (500, "The server failed on this request; its log says why.")
    assert len(writable.app.state.service.retriever.snapshot.documents) == 60


def test_a_token_may_have_any_characters_and_a_long_body_is_refused_before_it_is_cut_off(
    tmp_path, encoder, monkeypatch
):
    monkeypatch.setenv("DSI_TOKEN", "пароль ü")
    save_index(encoder, tmp_path / "run")
    with live(tmp_path / "run", writable=True, max_body=1000) as client:
        host = client.url.removeprefix("http://")

        def ask(path: str, body: bytes, token: str) -> tuple[int, str]:
            connection = http.client.HTTPConnection(host, timeout=30)
            connection.putrequest("POST", path)
            connection.putheader("Content-Type", "application/json")
            connection.putheader("Authorization", f"Bearer {token}".encode())
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders()
            connection.send(body)  # all of it, as most clients do, before an answer is read
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        assert ask("/documents", json.dumps({"documents": [NEW]}).encode(), "пароль ü")[0] == 200
        assert ask("/documents", b"{}", "пароль")[0] == 401
        for _ in range(3):
            status, text = ask("/search", b'{"query": "' + b"x" * 30_000_000 + b'"}', "")
            assert status == 413
            assert "may have 1,000 bytes" in text


def test_every_answer_is_that_of_one_snapshot(writable):
    """Two documents that match a query come together, and go one by one: every answer is one of three."""
    new = [{**NEW, "doc_id": f"new-{n}", "text": "zebra quagga okapi"} for n in (1, 2)]
    ask = {"query": "zebra quagga okapi", "k": 10, "lexical_weight": 10.0}
    expected = {}

    def note():
        expected[tuple(hit["doc_id"] for hit in writable.ask("search", ask)[1]["answers"][0]["hits"])] = True

    def change(observe):
        observe()
        assert writable.ask("documents", {"documents": new}, token=TOKEN)[0] == 200
        observe()
        for n in (1, 2):
            assert writable.ask(f"documents/new-{n}", method="DELETE", token=TOKEN)[0] == 200
            observe()

    change(note)
    assert len(expected) == 3
    done, seen = threading.Event(), []

    def search():
        while not done.is_set():
            status, found = writable.ask("search", {**ask, "parts": True})
            hits = found["answers"][0]["hits"]
            seen.append((status, tuple(hit["doc_id"] for hit in hits)))
            assert all(sum(hit["parts"].values()) == pytest.approx(hit["score"], abs=1e-3) for hit in hits)

    with ThreadPoolExecutor(6) as pool:
        searches = [pool.submit(search) for _ in range(6)]
        for _ in range(4):
            change(lambda: time.sleep(0.05))
        done.set()
        for each in searches:
            each.result()
    assert {status for status, _ in seen} == {200}
    assert {ids for _, ids in seen} <= set(expected)
    assert len({ids for _, ids in seen}) > 1


# Batches.


class Recorder:
    """A search that notes its batches, and may be held up."""

    def __init__(self):
        self.batches, self.gate = [], threading.Event()
        self.gate.set()

    def __call__(self, options, queries):
        self.gate.wait()
        self.batches.append((options, list(queries)))
        if "bad" in queries:
            raise ValueError("bad")
        return [f"{options} {query}" for query in queries]


def test_requests_that_wait_together_share_a_batch_if_their_options_agree():
    search = Recorder()
    batcher = Batcher(search, max_batch=4, max_wait=0.2)
    futures = [batcher.submit(options, [query]) for options, query in ("ap", "bq", "ar", "as", "at")]
    assert [future.result() for future in futures] == [["a p"], ["b q"], ["a r"], ["a s"], ["a t"]]
    assert search.batches == [("a", ["p", "r", "s"]), ("b", ["q"]), ("a", ["t"])]
    batcher.close()


def test_a_bad_query_fails_alone():
    batcher = Batcher(Recorder(), max_wait=0.2)
    good, bad, other = (batcher.submit("a", [query]) for query in ("x", "bad", "y"))
    assert (good.result(), other.result()) == (["a x"], ["a y"])
    with pytest.raises(ValueError, match="bad"):
        bad.result()
    batcher.close()


class Panic(BaseException):
    """What a library in Rust raises, which is not an Exception."""


@pytest.mark.parametrize("broken", ["_search", "_observe", "_answer_batch"])
def test_no_failure_ends_the_thread(monkeypatch, broken):
    batcher = Batcher(Recorder(), max_wait=0)

    def panic(*arguments):
        raise Panic("a library failed")

    with monkeypatch.context() as patch:
        patch.setattr(batcher, broken, panic)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"The search failed \(Panic\('a library failed'\)\)"):
                batcher.submit("a", ["x"]).result(5)
    assert batcher.submit("a", ["x"]).result(5) == ["a x"]
    assert batcher.is_alive
    batcher.close()
    assert not batcher.is_alive


def test_a_full_queue_is_said_and_a_request_given_up_is_not_computed():
    search = Recorder()
    search.gate.clear()
    batcher = Batcher(search, max_batch=1, max_wait=0, max_waiting=2)
    first = batcher.submit("a", ["1"])
    while batcher.waiting:
        time.sleep(0.001)
    second, _third = batcher.submit("a", ["2"]), batcher.submit("a", ["3"])
    with pytest.raises(BusyError, match="Too many requests wait"):
        batcher.submit("a", ["4"])
    second.cancel()
    search.gate.set()
    assert first.result() == ["a 1"]
    batcher.close()
    assert search.batches == [("a", ["1"]), ("a", ["3"])]


@pytest.mark.parametrize("wait", [0, 0.05])
def test_close_finishes_what_waits_and_takes_nothing_more(wait):
    search = Recorder()
    search.gate.clear()
    batcher = Batcher(search, max_batch=3, max_wait=wait)
    futures = [batcher.submit("a", [str(n)]) for n in range(20)] + [batcher.call(lambda check: "called")]
    threading.Timer(0.1, search.gate.set).start()
    batcher.close()
    assert [future.result(0)[0] for future in futures] == [*(f"a {n}" for n in range(20)), "c"]
    with pytest.raises(BusyError, match="The server is stopping"):
        batcher.submit("a", ["x"])
    batcher.close()


# Learning.


def test_pairs_are_learned_on_disk_too(writable):
    pairs = [{"query": "a very rare question", "doc_id": "danube"}] * 2 + [{"query": "lost", "doc_id": "nowhere"}]
    status, learned = writable.ask("learn", {"pairs": pairs}, token=TOKEN)
    assert status == 200
    assert learned.pop("note") == "The index has learned 1 pair without effect: memory_weight is 0."
    assert learned == {"learned": 2, "pairs": 1}
    assert writable.ask("index")[1]["memory"] == 1
    assert len(load(writable.run, device="cpu").snapshot.memory) == 1
    body = {"query": "a very rare question", "memory_weight": 9.0}
    status, found = writable.ask("search", {**body, "parts": True})
    assert found["answers"][0]["hits"][0]["parts"]["memory"] > 0
    explained = writable.ask("explain", {**body, "doc_id": "danube"})[1]["target"]
    assert explained["earlier"] == [{"cosine": pytest.approx(1), "times": 2}]
    assert status == 200


def test_what_was_learned_is_forgotten_by_pairs_and_by_time(writable):
    pairs = [{"query": f"question {number}", "doc_id": "danube"} for number in range(3)]
    assert writable.ask("learn", {"pairs": pairs}, token=TOKEN)[1]["pairs"] == 3
    assert error(writable.ask("forget", {"pairs": pairs}))[0] == 401
    assert writable.ask("forget", {"pairs": pairs[:1]}, token=TOKEN) == (200, {"forgotten": 1, "pairs": 2})
    assert writable.ask("forget", {"since": "2999-01-01"}, token=TOKEN) == (200, {"forgotten": 0, "pairs": 2})
    for body, said in (
        ({}, "Give forget() pairs"),
        ({"since": "soon"}, "got 'soon'"),
        ({"until": "2999-01-01"}, "until"),
    ):
        status, message = error(writable.ask("forget", body, token=TOKEN))
        assert (status, said in message) == (400, True)
    assert writable.ask("forget", {"before": "2999-01-01"}, token=TOKEN) == (200, {"forgotten": 2, "pairs": 0})
    assert not len(load(writable.run, device="cpu").snapshot.memory)


def test_a_query_whose_embedding_is_not_finite_is_refused_and_the_others_are_answered(writable, monkeypatch):
    forward = TextEncoder.forward

    def breaking(self, texts, kind):
        encoded = forward(self, texts, kind)
        which = np.array(["broken" in text for text in texts])
        return encoded._replace(embeddings=np.where(which[:, None], np.float32(np.nan), encoded.embeddings))

    monkeypatch.setattr(TextEncoder, "forward", breaking)
    said = "The embedding of the query 'broken' is not finite"
    status, found = writable.ask("search", {"queries": ["broken", "danube"], "k": 2, "parts": True, "matches": True})
    refused, answered = found["answers"]
    assert (status, refused["hits"], refused["exact"], said in refused["error"]) == (200, [], False, True)
    assert len(answered["hits"]) == 2
    assert "error" not in answered
    for path in ("search", "explain"):
        status, message = error(writable.ask(path, {"query": "broken"}))
        assert (status, said in message) == (400, True)


def test_no_answer_has_a_text_of_an_earlier_query_though_the_index_keeps_them(writable, tmp_path):
    index = load(writable.run, device="cpu")
    keeping = Retriever(index.snapshot.with_memory(QueryMemory(MemoryConfig(keep_queries=True))))
    keeping.learn([("zanzibar holidays of the mayor", "danube")])
    keeping.save(tmp_path / "keeping")
    assert "zanzibar" in str(keeping.search("zanzibar holidays", memory_weight=9.0).explain("danube"))
    body = {"query": "holidays of the mayor", "memory_weight": 9.0}
    with live(tmp_path / "keeping") as client:
        asked = [("search", {**body, "parts": True}), ("explain", {**body, "doc_id": "danube"}), ("index", None)]
        answers = [client.ask(*own) for own in asked]
    assert answers[1][1]["target"]["earlier"]
    assert [status for status, _ in answers] == [200] * 3
    assert "zanzibar" not in json.dumps(answers)


def test_learning_needs_a_writable_server_its_token_and_its_rate(writable):
    pairs = [{"query": "rivers", "doc_id": "danube"}]
    with live(writable.run) as client:
        said = error(client.ask("learn", {"pairs": pairs}, token=TOKEN))
    assert said == (403, "This server is read-only; start it with --writable and a token in DSI_TOKEN.")
    assert error(writable.ask("learn", {"pairs": pairs}))[0] == 401
    status, message = error(writable.ask("learn", {"pairs": [{"query": "rivers", "doc_id": "no"}]}, token=TOKEN))
    assert status == 400
    assert "1 ('no')" in message
    status, message = error(writable.ask("learn", {"pairs": pairs * 601}, token=TOKEN))
    assert (status, "at most 600 pairs a minute, and 599 are left now, got 601" in message) == (429, True)
    assert writable.ask("learn", {"pairs": pairs}, token=TOKEN)[0] == 200


def test_a_rate_is_refilled_with_time():
    now = [0.0]
    rate = Rate(60, lambda: now[0])
    rate.take(60)
    with pytest.raises(RateError, match="at most 60 pairs a minute, and 0 are left now, got 1"):
        rate.take(1)
    now[0] = 10.0
    rate.take(10)
    now[0] = 1000.0
    with pytest.raises(RateError, match="60 are left now, got 61"):
        rate.take(61)
