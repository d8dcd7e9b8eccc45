"""An index whose columns are lists, dates, nested and odd: what the server and its tools say of them, and of their values."""

import asyncio
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("mcp")

import datasets
import pyarrow as pa
from mcp import Client

from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.server.agents import make_server
from dsi.store.folder.info import index_info
from tests.support.parts import from_parts
from tests.support.serving import QUERY, live, save_index
from tests.support.small import PROMPTS

COLUMNS = {
    "readers": (["anna", "bob"], "list of text"),
    "years": ([2020, 2024], "list of integer"),
    "weights": ([0.5], "list of float"),
    "flags": ([True, None], "list of boolean"),
    "days": ([date(2024, 1, 15)], "list of date"),
    "none": ([], "list of null"),
    "published": (date(2024, 1, 15), "date"),
    "moment": (datetime(2024, 1, 15, 12, tzinfo=UTC), "time"),
    "open": (True, "boolean"),
    "price": (1.5, "float"),
    "unknown": (float("nan"), "float"),
    "lists": ([["a"], []], "list of list of text"),
    "author": ({"name": "anna", "born": 1990}, "struct<name: string, born: int64>"),
    "authors": ([{"name": "anna"}], "list of struct<name: string>"),
    "exact": (Decimal("1.50"), "decimal128(3, 2)"),
    "raw": (b"\xff\x00", "binary"),
}  # fmt: skip
SHOWN = {name: value for name, (value, _) in COLUMNS.items()} | {
    "days": ["2024-01-15"], "published": "2024-01-15", "moment": "2024-01-15T12:00:00+00:00", "unknown": None, "exact": "1.50",
    "raw": "_wA=", "number": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sentence_t5_folder):
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    folder = tmp_path_factory.mktemp("columns") / "index"
    own = save_index(encoder, folder / "plain")
    table = own.snapshot.documents.table
    for name, (value, _) in COLUMNS.items():
        table = table.append_column(name, pa.array([value] * len(table)))
    index = own.snapshot
    parts = index.encoder, index.tree, index.generator, datasets.Dataset(table), index.search_config, index.lexical
    from_parts(*parts).save(folder / "odd")
    return folder / "odd"


@pytest.fixture(scope="module")
def client(folder):
    with live(folder, mcp=True) as client:
        yield client


def test_the_server_names_the_kind_of_every_column(client, folder):
    status, about = client.ask("index")
    assert status == 200
    kinds = {name: kind for name, (_, kind) in COLUMNS.items()}
    assert about["columns"] == {"doc_id": "text", "title": "text", "number": "integer", **kinds}
    assert set(index_info(folder)["columns"]) == {*about["columns"], "text"}


def test_values_of_every_kind_are_answered(client):
    status, found = client.ask("search", {"query": QUERY, "k": 2, "allow": ["danube"], "parts": True, "matches": True})
    assert status == 200
    assert found["answers"][0]["hits"][0]["metadata"] == SHOWN
    status, document = client.ask("documents/danube")
    assert (status, document["metadata"]) == (200, SHOWN)
    assert client.ask("explain", {"query": QUERY, "doc_id": "danube"})[0] == 200


def test_agents_get_values_of_every_kind(client):
    service = client.app.state.service

    async def loaded():
        return service

    async def ask():
        async with Client(make_server(loaded)) as agent:
            calls = ("search", {"query": QUERY, "allow": ["danube"]}), ("document", {"doc_id": "danube"})
            return [await agent.call_tool(*call) for call in calls]

    def strict(text):
        return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    found, document = (strict(result.content[0].text) for result in asyncio.run(ask()))
    assert found["passages"][0]["metadata"] == document["metadata"] == SHOWN


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("readers contains 'anna'", 60),
        ("readers not contains 'anna'", 0),
        ("years contains 2024 and flags contains true", 60),
        ("days contains '2024-01-15'", 60),
        ("lists is empty", "lists is a column of type list<item: list<item: string>>; filter it by a mask of booleans"),
        ("author = 'anna'", "author is a column of type struct<"),
        ("none contains 'x'", "none is a column of type list<item: null>; filter it by a mask of booleans"),
    ],
)
def test_filters_take_lists_and_say_what_they_cannot_read(client, where, count):
    status, found = client.ask("search", {"query": QUERY, "k": 100, "where": where})
    if isinstance(count, int):
        assert (status, len(found["answers"][0]["hits"])) == (200, count)
    else:
        assert status == 400
        assert count in found["error"]
