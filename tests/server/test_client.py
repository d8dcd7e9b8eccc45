"""The client of the server, synchronous and asynchronous, against the real app."""

import asyncio
import shutil

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import httpx

from dsi.client import AsyncClient, Client, ServerError
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from tests.support.serving import QUERY, TOKEN, live, save_index
from tests.support.small import PROMPTS


@pytest.fixture(scope="module")
def run(tmp_path_factory, sentence_t5_folder):
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    folder = tmp_path_factory.mktemp("client") / "index"
    save_index(encoder, folder)
    return folder


@pytest.fixture
def served(run, tmp_path, monkeypatch):
    monkeypatch.setenv("DSI_TOKEN", TOKEN)
    shutil.copytree(run, tmp_path / "index")
    with live(tmp_path / "index", writable=True) as server:
        yield server


def test_a_client_answers_as_the_server_does(served):
    body = {"query": QUERY, "k": 3, "beam_width": 4, "parts": True}
    _, said = served.ask("search", body)
    with Client(served.url, token=TOKEN) as client:
        assert client.search(QUERY, k=3, beam_width=4, parts=True) == said["answers"][0]
        two = client.search([QUERY, "noble gases"], k=2)
        assert [len(answer["hits"]) for answer in two] == [2, 2]
        _, explained = served.ask("explain", {"query": QUERY, "k": 2, "doc_id": "danube"})
        assert client.explain(QUERY, "danube", k=2) == explained
        assert "target" not in client.explain(QUERY)
        assert client.get("danube") == served.ask("documents/danube")[1]


def test_documents_are_added_learned_and_removed(served):
    new = {"doc_id": "a/b c?", "title": "Neretva", "text": "A river in Bosnia."}
    with Client(served.url, token=TOKEN) as client:
        assert client.add(iter([new])) == 61
        assert client.get("a/b c?")["title"] == "Neretva"
        with pytest.raises(ServerError, match=r"a/b c\?"):
            client.add([new])
        assert client.add([new | {"title": "Neretva (river)"}], replace=True) == 61
        assert client.learn([("green river", "a/b c?"), ("green river", "nowhere")]) == 1
        assert client.remove("a/b c?") == 60
        with pytest.raises(ServerError, match="HTTP 404") as refused:
            client.get("a/b c?")
        assert refused.value.status == 404


def test_awaited_calls_give_the_same(served):
    async def ask():
        async with AsyncClient(served.url, token=TOKEN) as client:
            found = await asyncio.gather(*(client.search(QUERY, k=k) for k in (1, 2, 3)))
            added = await client.add([{"doc_id": "n", "title": "Neretva", "text": "A river."}])
            learned = await client.learn([("green river", "n")])
            title = (await client.get("n"))["title"]
            explained = await client.explain(QUERY, "n")
            return found, added, learned, title, explained["target"]["doc_id"], await client.remove("n")

    found, *others = asyncio.run(ask())
    assert [len(answer["hits"]) for answer in found] == [1, 2, 3]
    assert others == [61, 1, "Neretva", "n", 60]


def test_what_is_refused_is_an_error_with_its_status_and_message(served):
    with Client(served.url) as client:
        with pytest.raises(ServerError, match=r"alpha must be .* \(HTTP 400\)") as refused:
            client.search(QUERY, alpha=2)
        assert refused.value.status == 400
        with pytest.raises(ServerError, match="Authorization") as refused:
            client.remove("danube")
        assert refused.value.status == 401


def test_what_is_no_server_of_ours_is_named(served):
    with Client(f"{served.url}/docs#") as client, pytest.raises(ServerError):
        client.search(QUERY)
    with Client("http://127.0.0.1:9") as client, pytest.raises(httpx.TransportError):
        client.search(QUERY)
