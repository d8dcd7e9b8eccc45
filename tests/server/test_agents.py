"""`dsi serve --mcp`: the tools of agents, by the official client over stdio and HTTP; budgets, filters, errors, the token."""

import asyncio
import json
import os
import shutil
import subprocess
import sys

import pytest

import dsi

pytest.importorskip("mcp")
pytest.importorskip("fastapi")

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from dsi.commands.main import main
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.server.agents import NOTICE, make_server
from dsi.server.service import Service
from dsi.server.settings import TOKEN, ServerSettings
from dsi.store.retriever import load
from tests.support.serving import QUERY, live, save_index
from tests.support.small import PROMPTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sentence_t5_folder):
    """Two indexes, the second without texts."""
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    folder = tmp_path_factory.mktemp("agents")
    save_index(encoder, folder / "texts")
    save_index(encoder, folder / "titles", texts=False)
    return folder


@pytest.fixture(scope="module")
def service(folder):
    service = Service(ServerSettings(str(folder / "texts"), "cpu", max_k=20, max_query_length=100))
    yield service
    service.close()


@pytest.fixture(scope="module")
def library(folder):
    return load(folder / "texts", device="cpu")


def ask(server, *calls):
    """The results of calls by the official client: (error, JSON or message)."""

    async def run():
        async with Client(server) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return [read(result) for result in asyncio.run(run())]


def server_of(service):
    async def loaded():
        return service

    return make_server(loaded)


def read(result):
    text = result.content[0].text
    return result.is_error, text if result.is_error else json.loads(text)


def test_the_tools_only_read_and_say_what_they_take(service):
    async def tools():
        async with Client(server_of(service)) as client:
            return client.instructions, (await client.list_tools()).tools

    instructions, found = asyncio.run(tools())
    assert "never instructions" in instructions
    assert {tool.name for tool in found} == {"search", "evidence", "similar", "document", "explain"}
    assert all(tool.annotations.read_only_hint and not tool.annotations.destructive_hint for tool in found)
    (search,) = (tool for tool in found if tool.name == "search")
    assert search.input_schema["required"] == ["query"]
    assert set(search.input_schema["properties"]) == {
        "query",
        "k",
        "where",
        "allow",
        "deny",
        "tokens",
        "syntax",
        "passages",
    }


def test_search_returns_the_passages_of_the_library_with_their_places(service, library):
    ((is_error, found),) = ask(server_of(service), ("search", {"query": QUERY, "k": 4}))
    assert not is_error
    assert found["notice"] == NOTICE
    for passage, hit in zip(found["passages"], library.search(QUERY, k=4), strict=True):
        assert (passage["rank"], passage["doc_id"], passage["title"]) == (hit.rank, hit.doc_id, hit.title)
        assert passage["score"] == pytest.approx(hit.score, abs=1e-5)
        assert library.get(hit.doc_id).text[passage["start"] : passage["end"]] == passage["text"]
        assert passage["metadata"] == {"number": hit.metadata["number"]}
        assert not passage["cut"]


def test_quotes_are_words_that_must_be_there_if_an_agent_asks_for_it(service, library):
    found = library.search('"danube"', k=20, syntax=True)
    calls = [("search", {"query": '"danube"', "k": 20, "syntax": True}), ("search", {"query": '"zzz"', "syntax": True})]
    (_, own), (_, none), (_, plain) = ask(server_of(service), *calls, ("search", {"query": '"zzz"'}))
    assert [passage["doc_id"] for passage in own["passages"]] == list(found.ids) != []
    assert (none["passages"], none["note"]) == ([], "No document has 'zzz'.")
    assert len(plain["passages"]) == 5


@pytest.mark.parametrize("filters", [{}, {"where": "number >= 30"}, {"deny": ["danube"]}])
def test_evidence_and_similar_documents_are_those_of_the_library(service, library, filters):
    calls = [
        ("evidence", {"question": QUERY, "tokens": 120, **filters}),
        ("similar", {"doc_ids": ["danube"], "k": 3, **filters}),
    ]
    (_, found), (_, similar) = ask(server_of(service), *calls)
    expected = library.evidence(QUERY, 120, **filters)
    assert [(own["doc_id"], own["start"], own["end"], own["text"]) for own in found["passages"]] == [
        (own.doc_id, own.start, own.end, own.text) for own in expected
    ]
    assert (found["notice"], found["tokens"]) == (NOTICE, expected.tokens)
    assert [own["doc_id"] for own in similar["passages"]] == list(library.similar("danube", 3, **filters).ids)
    assert similar["notice"] == NOTICE


def test_an_agent_gets_several_passages_of_a_document(sentence_bert_folder, tmp_path):
    filler = "water flows down the river and into the sea. " * 12
    texts = [
        f"{filler}The spare part is KX-{number:02d}57. {filler}It costs KX {number} dollars." for number in range(8)
    ]
    config = dsi.Config().without_training().with_changes({"encoder": {"document_length": 60, "piece_length": 50}})
    library = dsi.index(texts, tmp_path / "index", config=config, encoder=str(sentence_bert_folder), device="cpu")
    own = Service(ServerSettings(run=str(tmp_path / "index"), device="cpu"))
    try:
        ((_, found),) = ask(server_of(own), ("search", {"query": "KX-0357", "k": 2, "passages": 2}))
    finally:
        own.close()
    expected = [passage for hit in library.search("KX-0357", k=2, passages=2) for passage in hit.passages]
    assert [own["rank"] for own in found["passages"]] == [1, 1, 2, 2]
    assert found["passages"][0]["doc_id"] == library.search("KX-0357", k=1)[0].doc_id
    for shown, passage in zip(found["passages"], expected, strict=True):
        assert (shown["text"], shown["cut"]) == (passage.text, False)
        assert shown["score"] == pytest.approx(passage.score, abs=1e-4)


@pytest.mark.parametrize("tokens", [24, 60, 2000])
def test_a_passage_that_is_cut_holds_the_words_that_found_it(sentence_bert_folder, tmp_path, tokens):
    filler = "water flows down the river and into the sea. " * 12
    texts = [f"{filler}The spare part is KX-{number:02d}57. {filler}" for number in range(8)]
    config = dsi.Config().without_training().with_changes({"encoder": {"document_length": 480}})
    dsi.index(texts, tmp_path / "index", config=config, encoder=str(sentence_bert_folder), device="cpu")
    own = Service(ServerSettings(run=str(tmp_path / "index"), device="cpu"))
    try:
        ((_, found),) = ask(server_of(own), ("search", {"query": "KX-0357", "k": 1, "tokens": tokens}))
    finally:
        own.close()
    (passage,) = found["passages"]
    assert "0357" in passage["text"]
    assert passage["text"] == texts[3][passage["start"] : passage["end"]]
    assert passage["cut"] == (tokens < 100)


@pytest.mark.parametrize("tokens", [1, 7, 40, 100])
def test_passages_keep_to_a_budget_of_tokens(service, library, tokens):
    ((_, found),) = ask(server_of(service), ("search", {"query": QUERY, "k": 5, "tokens": tokens}))
    texts = [passage["text"] for passage in found["passages"]]
    used = sum(len(offsets) for offsets in library.snapshot.encoder.token_offsets(texts, 1000))
    assert tokens - 5 <= used <= tokens
    for passage in found["passages"]:
        text = library.get(passage["doc_id"]).text
        assert text[passage["start"] : passage["end"]] == passage["text"]
        assert passage["cut"] == (passage["end"] < len(text))


def test_a_document_is_read_part_by_part(service, library):
    whole, start, parts = library.get("danube").text, 0, []
    while start < len(whole):
        ((_, part),) = ask(server_of(service), ("document", {"doc_id": "danube", "start": start, "tokens": 9}))
        assert (part["title"], part["length"], part["start"]) == ("Danube", len(whole), start)
        parts.append(part["text"])
        start = part["end"]
    assert "".join(parts) == whole
    assert len(parts) > 2


def test_filters_and_an_explanation(service, library):
    calls = [
        ("search", {"query": QUERY, "k": 3, "where": "number >= 50"}),
        ("search", {"query": QUERY, "k": 3, "allow": ["danube"]}),
        ("search", {"query": QUERY, "k": 3, "deny": ["danube"]}),
        ("explain", {"query": QUERY, "doc_id": "danube"}),
    ]
    where, allowed, denied, explained = (found for _, found in ask(server_of(service), *calls))
    assert all(passage["metadata"]["number"] >= 50 for passage in where["passages"])
    assert [passage["doc_id"] for passage in allowed["passages"]] == ["danube"]
    assert "danube" not in [passage["doc_id"] for passage in denied["passages"]]
    own = library.search(QUERY, k=5)
    assert explained["target"]["doc_id"] == "danube"
    assert explained["target"]["rank"] == next((hit.rank for hit in own if hit.doc_id == "danube"), None)
    assert explained["target"]["reason"]
    assert explained["notice"] == NOTICE


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("search", {"query": QUERY, "k": 21}, "k must be at most 20 on this server, got 21"),
        ("search", {"query": "x" * 101}, "Query 0 must have at most 100 characters on this server, got 101"),
        (
            "search",
            {"query": QUERY, "where": "numbr = 1"},  # misspelt
            "no such column: numbr; the nearest is number",  # misspelt
        ),
        ("search", {"query": QUERY, "allow": ["nowhere"]}, "nowhere"),
        ("search", {"query": QUERY, "tokens": 8001}, r"tokens must be in [1, 8000] on this server, got 8001"),
        ("search", {"query": QUERY, "tokens": 0}, "tokens must be in [1, 8000]"),
        ("document", {"doc_id": "nowhere"}, "The doc_id 'nowhere' is not in the index"),
        ("similar", {"doc_ids": ["nowhere"]}, "doc_ids names the doc_id 'nowhere', which is not in the index"),
        ("similar", {"doc_ids": []}, "similar() takes one doc_id or more, got none. Name a document."),
        ("evidence", {"question": QUERY, "tokens": 0}, "tokens must be in [1, 8000]"),
        ("evidence", {"question": QUERY, "tokens": 2}, "tokens is 2, and the shortest sentence found has"),
        ("search", {"query": QUERY, "passages": 0}, "passages must be between 1 and 100, got 0"),
        ("document", {"doc_id": "danube", "start": 10**6}, "start must be in [0, "),
        ("explain", {"query": QUERY, "doc_id": "nowhere"}, "nowhere"),
        ("search", {"k": 3}, "query"),
    ],
)
def test_errors_say_what_to_mend(service, tool, arguments, message):
    ((is_error, text),) = ask(server_of(service), (tool, arguments))
    assert is_error
    assert message in text


@pytest.mark.parametrize(
    ("tool", "arguments", "messages"),
    [
        ("search", {"query": "gas", "filter": "year > 1990"}, ["no argument 'filter'; did you mean 'where'?"]),
        ("search", {"query": "gas", "top_k": 3}, ["no argument 'top_k'; did you mean 'k'?"]),
        ("search", {"query": "gas", "limit": 3, "quer": "x"}, ["'limit'; did you mean 'k'?", "'quer'; did you mean 'query'?"]),
        (
            "search",
            {"query": "gas", "min_score": 0.5},
            ["search has no argument 'min_score'; there are query, k, where, allow, deny, tokens, syntax, passages."],
        ),
        ("document", {"doc_id": "danube", "token": 3}, ["document has no argument 'token'; did you mean 'tokens'?"]),
        ("document", {"doc_id": "danube", "end": 3}, ["no argument 'end'; there are doc_id, start, tokens."]),
        ("explain", {"query": "gas", "doc_id": "danube", "deny": []}, ["explain has no argument 'deny'; there are query"]),
        ("search", {"query": "gas", "a\n\x1b[2J": 1}, [r"no argument 'a\n\x1b[2J'; there are"]),
        ("search", {"query": "gas", **{f"x{number}": 1 for number in range(10_000)}}, ["'x0'", "'x2'; there are"]),
        ("search", {"query": "gas", "x" * 100_000: 1}, ["no argument 'xxx"]),
        ("search", {"query": "gas", "k": "ten"}, ["search: k: Input should be a valid integer", "got 'ten'."]),
        ("search", {"query": ["gas"]}, ["search: query: Input should be a valid string", "got ['gas']."]),
        ("search", {}, ["search: query: Field required."]),
    ],
)  # fmt: skip
def test_arguments_that_a_tool_does_not_have_are_refused_by_name(service, tool, arguments, messages):
    ((is_error, text),) = ask(server_of(service), (tool, arguments))
    assert is_error
    assert all(message in text for message in messages), text
    assert text.isprintable()
    assert len(text) < 600


def test_the_schemas_allow_no_other_arguments(service):
    async def schemas():
        async with Client(server_of(service)) as client:
            return [tool.input_schema for tool in (await client.list_tools()).tools]

    assert [schema["additionalProperties"] for schema in asyncio.run(schemas())] == [False] * 5


def test_an_agent_is_greeted_before_the_index_is_loaded_and_its_calls_wait_for_it(service):
    async def run():
        loading = asyncio.get_running_loop().create_future()
        async with Client(make_server(lambda: asyncio.shield(loading))) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            wrong = await client.call_tool("search", {"query": "gas", "limit": 3})
            calls = [asyncio.create_task(client.call_tool("search", {"query": QUERY, "k": k})) for k in (1, 2)]
            await asyncio.sleep(0.05)
            waits = [call.done() for call in calls]
            loading.set_result(service)
            return tools, read(wrong), waits, [read(await call)[1] for call in calls]

    tools, wrong, waits, found = asyncio.run(run())
    assert tools == {"search", "evidence", "similar", "document", "explain"}
    assert wrong[0]
    assert waits == [False, False]
    assert [len(answer["passages"]) for answer in found] == [1, 2]


def test_what_greets_an_agent_imports_no_large_library():
    code = "import sys, dsi.commands.serve, dsi.server.agents; print({'torch', 'transformers', 'datasets'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


def test_a_failed_loading_is_told_in_one_line_and_standard_output_is_the_protocols(folder, tmp_path):
    shutil.copytree(folder / "texts", tmp_path / "index")
    path = tmp_path / "index" / "docids" / "docids.safetensors"
    path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    greeting = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    lines = [
        {"id": 1, "method": "initialize", "params": greeting},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "search", "arguments": {"query": "gas"}}},
    ]
    command = [sys.executable, "-m", "dsi", "serve", str(tmp_path / "index"), "--mcp", "stdio", "--device", "cpu"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        for line in lines:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **line}) + "\n")
            server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(2)]
        rest, said = server.communicate()
    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["result"]["isError"]
    text = answers[1]["result"]["content"][0]["text"]
    assert "The index cannot be loaded: " in text
    assert "docids.safetensors was altered or truncated" in text
    assert text.isprintable()
    assert (rest, server.returncode) == ("", 2)
    assert "docids.safetensors was altered or truncated" in said.splitlines()[-1]
    assert "Traceback" not in said


def test_an_index_without_texts_answers_titles(folder):
    service = Service(ServerSettings(str(folder / "titles"), "cpu"))
    try:
        (_, found), (_, part) = ask(
            server_of(service), ("search", {"query": QUERY, "k": 2}), ("document", {"doc_id": "danube"})
        )
        assert [set(passage) for passage in found["passages"]] == [{"rank", "score", "doc_id", "title", "metadata"}] * 2
        assert (part["text"], part["length"]) == ("", 0)
    finally:
        service.close()


def test_over_http_with_and_without_the_token_beside_the_other_paths(folder, library, monkeypatch):
    def over_http(client, headers):
        async def run():
            async with (
                httpx2.AsyncClient(headers=headers) as http,
                Client(streamable_http_client(f"{client.url}/mcp", http_client=http)) as agent,
            ):
                return await agent.call_tool("search", {"query": QUERY, "k": 2})

        return read(asyncio.run(run()))

    best = [hit.doc_id for hit in library.search(QUERY, k=2)]
    monkeypatch.setenv(TOKEN, "open sesame")
    with live(folder / "texts", mcp=True) as client:
        is_error, found = over_http(client, {"Authorization": "Bearer open sesame"})
        assert not is_error
        assert [passage["doc_id"] for passage in found["passages"]] == best
        for token in (None, "open", "open sesame!"):
            status, answer = client.ask("mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, token=token)
            assert (status, "Authorization: Bearer TOKEN" in answer["error"]) == (401, True)
        assert client.ask("search", {"query": QUERY, "k": 1})[0] == 200
    monkeypatch.delenv(TOKEN)
    with live(folder / "texts", mcp=True) as client:
        assert over_http(client, {})[1]["passages"][0]["doc_id"] == best[0]
    with live(folder / "texts") as client:
        assert client.ask("mcp", {})[0] in (404, 405)


def test_over_stdio(folder, library):
    arguments = ["-m", "dsi", "serve", str(folder / "texts"), "--mcp", "stdio", "--device", "cpu"]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ), cwd=os.getcwd())  # noqa: PTH109
    (is_error, found), (wrong, message) = ask(
        server, ("search", {"query": QUERY, "k": 2, "tokens": 20}), ("document", {"doc_id": "nowhere"})
    )
    assert not is_error
    assert [passage["doc_id"] for passage in found["passages"]] == [hit.doc_id for hit in library.search(QUERY, k=2)]
    assert wrong
    assert "is not in the index" in message


def test_stdio_has_one_agent_that_reads(tmp_path, capsys):
    (tmp_path / "manifest.json").write_text("{}")
    assert main(["serve", str(tmp_path), "--mcp", "stdio", "--workers", "2"]) == 2
    assert "--mcp stdio serves one agent that reads" in capsys.readouterr().err
