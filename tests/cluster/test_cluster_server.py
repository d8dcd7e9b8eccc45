"""`dsi serve --cluster`: answers of shards over HTTP, partial ones with 206 or 503, readiness and numbers for Prometheus."""

import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

from dsi.commands.main import main
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.store.retriever import load
from tests.support.serving import QUERY, TOKEN, live, save_index
from tests.support.small import PROMPTS

pytest_plugins = ("tests.support.ray_cluster",)
BODY = {"query": QUERY, "k": 5}


@pytest.fixture
def run(tmp_path, sentence_t5_folder):
    save_index(Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu"), tmp_path / "run")
    return tmp_path / "run"


def processes(client, shard):
    fleet = client.app.state.service.shards.fleet
    return [int(own.process.split(":")[1]) for own in fleet.status() if own.shard == shard]


def check_whole_answers(client, expected):
    """Searches, explanations, updates, readiness and numbers are there as without shards."""
    status, answer = client.ask("search", BODY)
    assert status == 200
    (found,) = answer["answers"]
    assert [hit["doc_id"] for hit in found["hits"]] == [hit.doc_id for hit in expected]
    assert [hit["score"] for hit in found["hits"]] == pytest.approx([hit.score for hit in expected], abs=1e-5)
    assert "coverage" not in found
    assert client.ask("explain", {"query": QUERY})[0] == 200
    document = {"doc_id": "new", "title": "Neretva", "text": "A river in Bosnia."}
    assert client.ask("documents", {"documents": [document]}, token=TOKEN) == (200, {"documents": 61})
    found = client.ask("search", {"query": "Neretva river Bosnia"})[1]["answers"][0]
    assert found["hits"][0]["doc_id"] == "new"
    assert client.ask("documents/new", method="DELETE", token=TOKEN) == (200, {"documents": 60})
    assert client.ask("ready") == (200, {"status": "ready"})
    numbers = client.ask("metrics")[1]
    for line in (
        'dsi_shard_generation{replica="0",shard="1"} 3.0',
        'dsi_shard_restarts_total{replica="0",shard="0"} 0.0',
        'dsi_shard_hedges_total{shard="1"}',
    ):
        assert line in numbers
    assert 'dsi_shard_p99{shard="0"}' in numbers


@pytest.mark.parametrize("address", ["local", pytest.param("ray", marks=pytest.mark.cluster)])
def test_a_server_with_shards_answers_as_one_without_and_says_what_is_missing(run, address, monkeypatch, request):
    monkeypatch.setenv("DSI_TOKEN", TOKEN)
    where = "local" if address == "local" else request.getfixturevalue("ray_address")
    expected = load(run, device="cpu").search(QUERY, k=5)
    with live(run, cluster=where, shards=2, replicas=1, shard_timeout=5.0, writable=True) as client:
        check_whole_answers(client, expected)
        if address == "local":
            return
        client.app.state.service.shards.fleet.timeout = 1.0
        os.kill(processes(client, 1)[0], signal.SIGSTOP)
        try:
            status, answer = client.ask("search", BODY)
            assert status == 206
            (partial,) = answer["answers"]
            assert partial["missing"] == [1]
            assert 0 < partial["coverage"] < 1
            assert not partial["exact"]
            assert "dsi_partial_answers_total 1.0" in client.ask("metrics")[1]
            client.app.state.service.shards.fleet.require_all = True
            status, answer = client.ask("search", BODY)
            assert status == 503
            assert answer["error"] == "Shards 1 did not answer within 1 s; try again later."
        finally:
            os.kill(processes(client, 1)[0], signal.SIGKILL)
        deadline, seen = time.monotonic() + 60, set()
        while (status := client.ask("ready")[0]) != 200 or 503 not in seen:
            seen.add(status)
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert client.ask("search", BODY)[0] == 200
        workers = [pid for shard in (0, 1) for pid in processes(client, shard)]
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "shards outlive their server"
        time.sleep(0.05)


def test_options_that_do_not_go_together_are_refused(run, capsys):
    for arguments, message in (
        (["--cluster", "local", "--workers", "2"], "--cluster needs --workers 1"),
        (["--cluster", "local", "--shards", "9"], "shards must be from 1 to 4, the number of children of the root"),
    ):
        assert main(["serve", str(run), "--port", "0", *arguments]) == 2
        *_, line = capsys.readouterr().err.splitlines()
        assert message in line
