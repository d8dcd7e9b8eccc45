"""Documents like others over HTTP: what the library finds, under filters, and what is refused."""

import pytest

pytest.importorskip("fastapi")

from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from tests.support.serving import error, live, save_index
from tests.support.small import PROMPTS


@pytest.fixture(scope="module")
def library(sentence_t5_folder, tmp_path_factory):
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    folder = tmp_path_factory.mktemp("similar") / "index"
    return save_index(encoder, folder), folder


@pytest.fixture(scope="module")
def client(library):
    with live(library[1], max_queries=3) as client:
        yield client


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"where": "number >= 30"}, {"method": "exact", "passages": 2}])
def test_a_server_finds_what_the_library_finds(library, client, count, options):
    index = library[0]
    doc_ids = list(index.snapshot.documents.rows)[:count] or "danube"
    status, found = client.ask("similar", {"doc_ids": doc_ids, "k": 5, "matches": True, **options})
    hits = index.similar(doc_ids, 5, **options)
    assert status == 200
    assert [hit["doc_id"] for hit in found["hits"]] == list(hits.ids)
    assert (found["query"], found["exact"]) == (hits.query, hits.exact)
    assert all("excerpt" in hit and "matches" in hit for hit in found["hits"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"doc_ids": ["nowhere"]}, "doc_ids names the doc_id 'nowhere', which is not in the index"),
        ({"doc_ids": []}, "similar() takes one doc_id or more, got none. Name a document."),
        ({}, "doc_ids must"),
        ({"doc_ids": 5}, "doc_ids names the doc_id '5', which is not in the index"),
        ({"doc_ids": ["danube", 5]}, "doc_ids names the doc_id '5', which is not in the index"),
        ({"doc_ids": ["danube"], "beamwidth": 3}, "similar() has no option 'beamwidth'"),
        ({"doc_ids": ["danube"], "passages": 0}, "passages must be between 1 and 100, got 0"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(client, body, message):
    status, said = error(client.ask("similar", body))
    assert status == 400
    assert message in said
    assert "\n" not in said


def test_documents_count_as_queries(client):
    status, said = error(client.ask("similar", {"doc_ids": ["danube"] * 4}))
    assert status == 413
    assert "A request may have 3 queries" in said
