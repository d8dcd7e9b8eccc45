"""`dsi serve` after malformed requests: `python -m pytest -m slow -s tests/server/test_malformed.py` sends 20,000."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

from tests.support.malformed import flaw_of, http_status, request_of, send
from tests.support.serving import QUERY, TOKEN, Client, save_index

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
FIRST = int(os.environ.get("DSI_SEED", "0"))


@contextmanager
def serving(run, log):
    """The command `dsi serve`, as a process; gives it and its client."""
    command = [sys.executable, "-m", "dsi", "serve", str(run), "--port", "0", "--writable", "--device", "cpu"]
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file, env=os.environ | {"DSI_TOKEN": TOKEN})
    try:
        while not (found := re.search(r"http://[\d.:]+", log.read_text())):
            assert process.poll() is None, log.read_text()
        yield process.pid, Client(found[0])
    finally:
        process.terminate()
        assert process.wait(60) == 0


def state_of(process):
    """Resident megabytes that are no file's, open files and threads of a process."""
    folder = Path("/proc") / str(process)
    resident, shared = map(int, (folder / "statm").read_text().split()[1:3])
    megabytes = (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return megabytes, len([*(folder / "fd").iterdir()]), len([*(folder / "task").iterdir()])


@pytest.mark.programs
@pytest.mark.parametrize("count", [60, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_server_answers_rightly_after_malformed_requests(count, encoder, tmp_path, capsys):
    """Each gets one plain message or is right; then memory, files, threads, answers and the documents are as they were."""
    ids = set(save_index(encoder, tmp_path / "run").snapshot.documents.rows)
    log, statuses, flaws, seconds = tmp_path / "log", Counter(), [], []
    searches = [{"query": QUERY, "k": 9, "method": method} for method in ("generate", "exact")]
    with serving(tmp_path / "run", log) as (process, client), ThreadPoolExecutor(4) as pool:
        host, port = client.url.removeprefix("http://").split(":")

        def ask(number):
            request = request_of(number)
            started = time.monotonic()
            answer = send((host, int(port)), request)
            seconds.append(time.monotonic() - started)
            status, flaw = http_status(answer), flaw_of(request, answer)
            statuses[status] += 1
            if flaw:
                flaws.append(f"request {number}: {flaw}: {request.data[:600]!r}")

        def answers():
            found = [client.ask("search", search)[1]["answers"][0]["hits"] for search in searches]
            return [[(hit["doc_id"], round(hit["score"], 4)) for hit in hits] for hits in found]

        def remove_new():
            hits = client.ask("search", {"query": QUERY, "k": 100, "method": "exact"})[1]["answers"][0]["hits"]
            for doc_id in {hit["doc_id"] for hit in hits} - ids:
                assert client.ask(f"documents/{quote(doc_id, safe='')}", method="DELETE", token=TOKEN)[0] == 200, doc_id

        expected, states = answers(), []
        for part in range(10):
            list(pool.map(ask, range(FIRST + part * count // 10, FIRST + (part + 1) * count // 10)))
            remove_new()
            states.append(state_of(process))
            assert client.ask("ready") == (200, {"status": "ready"})
            assert answers() == expected
        assert client.ask("index")[1]["documents"] == 60
    with capsys.disabled():
        found = f"{dict(statuses.most_common())}, at most {max(seconds):.1f} s"
        megabytes = " ".join(f"{own[0]:.0f}" for own in states)
        sys.stdout.write(
            f"\n{count} requests: {found}; megabytes {megabytes}; files, threads {states[0][1:]} to {states[-1][1:]}\n"
        )
    assert not flaws, f"{len(flaws)} flaws\n" + "\n".join(flaws[:50])
    assert "Traceback" not in log.read_text()
    assert states[-1][0] <= states[4][0] + 20, states
    assert states[-1][1] <= states[4][1] + 4, states
    assert states[-1][2] <= states[4][2] + 2, states
