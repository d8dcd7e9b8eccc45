"""What heavy requests, and many, do to a server: they are cut into slices, given up, refused, and fill no memory."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

import uvicorn

from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.server import batching, service
from dsi.server.app import create_app
from dsi.server.batching import Batcher, BusyError
from dsi.server.service import Service
from dsi.server.settings import ServerSettings
from dsi.store.retriever import load
from tests.support.memory import resident_megabytes
from tests.support.serving import QUERY, Client, error, live, save_index
from tests.support.small import PROMPTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sentence_t5_folder):
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    folder = tmp_path_factory.mktemp("loaded")
    save_index(encoder, folder / "index")
    return folder / "index"


class Slow:
    """A search that takes some seconds for each character, and notes its slices."""

    def __init__(self, seconds=1e-5):
        self.slices, self.seconds = [], seconds

    def __call__(self, options, queries):
        self.slices.append(list(queries))
        time.sleep(self.seconds * sum(map(len, queries)))
        return [query[:8] for query in queries]

    @property
    def done(self):
        return sum(map(len, self.slices))


@pytest.fixture
def make_batcher():
    made = []

    def make(search, **options):
        made.append(Batcher(search, **options))
        return made[-1]

    yield make
    for batcher in made:
        batcher.close()


LONG = [f"{number:08}" + "x" * 1992 for number in range(100)]
HEADS = [query[:8] for query in LONG]


@pytest.mark.programs
def test_a_long_request_is_cut_into_slices_and_others_have_their_turn_between_them(make_batcher):
    search = Slow(3e-5)  # 60 ms a query, 6 s in all
    batcher = make_batcher(search)
    long, times = batcher.submit("a", LONG), []
    for number in range(5):
        begun = time.monotonic()
        assert batcher.submit("ab"[number % 2], ["short"]).result(9) == ["short"]
        times.append(time.monotonic() - begun)
    assert not long.done()
    assert max(times) < 1.5  # a slice of half a second, on a machine that is busy
    assert long.result(60) == HEADS
    assert len(search.slices) > 5


@pytest.mark.parametrize(
    ("queries", "most"), [(LONG, 1), (["x" * 500] * 100, 4), (["x"] * 100, 4)], ids=["2,000 letters", "500", "1"]
)
def test_the_first_slice_is_small_whatever_its_queries(make_batcher, queries, most):
    search = Slow(0)
    make_batcher(search).submit("a", queries).result(9)
    assert len(search.slices[0]) <= most
    assert [query for own in search.slices for query in own] == queries


def test_slices_grow_while_they_are_fast_and_shrink_when_one_was_slow(make_batcher):
    search = Slow(0)
    batcher = make_batcher(search)
    for _ in range(4):
        batcher.submit("a", ["x"] * 100).result(9)
    assert len(search.slices[-2]) == 32  # max_batch
    search.seconds = 0.03
    batcher.submit("a", ["x"] * 64).result(9)
    assert max(map(len, search.slices[-2:])) < 20  # half a second


def test_several_long_requests_take_turns(make_batcher):
    search = Slow(1e-6)
    batcher = make_batcher(search)
    futures = [batcher.submit("a", [f"{name}{n:04}" + "x" * 1995 for n in range(30)]) for name in "pqr"]
    assert [[answer[0] for answer in future.result(20)] for future in futures] == [[name] * 30 for name in "pqr"]
    order = [own[0][0] for own in search.slices]
    assert sorted(order[:3]) == ["p", "q", "r"]


def test_a_request_that_is_given_up_is_not_worked_on_further(make_batcher):
    search = Slow(1e-5)
    batcher = make_batcher(search)
    future = batcher.submit("a", LONG)
    while search.done < 3:
        time.sleep(0.001)
    assert future.cancel()
    done = search.done
    assert batcher.submit("b", ["next"]).result(9) == ["next"]
    assert search.done <= done + 1
    assert batcher.waiting == 0


def test_a_function_can_tell_that_nobody_waits(make_batcher):
    batcher, steps, ended = make_batcher(Slow()), [], threading.Event()

    def count(check):
        try:
            for step in range(1000):
                steps.append(step)
                time.sleep(0.01)
                check()
        except CancelledError:
            ended.set()
            raise

    future = batcher.call(count)
    while len(steps) < 3:
        time.sleep(0.001)
    future.cancel()
    assert ended.wait(5)
    assert len(steps) < 900
    assert batcher.submit("a", ["next"]).result(5) == ["next"]


def test_a_slice_that_fails_ends_its_request_alone(make_batcher):
    def search(options, queries):
        if "bad" in queries:
            raise ValueError("a bad query")
        time.sleep(0.01)
        return queries

    batcher = make_batcher(search)
    bad = batcher.submit("a", [*["x" * 2000] * 5, "bad", *["x" * 2000] * 5])
    good = batcher.submit("a", ["y" * 2000] * 9)
    with pytest.raises(ValueError, match="a bad query"):
        bad.result(9)
    assert good.result(9) == ["y" * 2000] * 9


def test_what_waits_is_bounded_in_characters(make_batcher, monkeypatch):
    monkeypatch.setattr(batching, "_MOST_HELD", 10_000)
    gate = threading.Event()

    def search(options, queries):
        gate.wait()
        return queries

    batcher = make_batcher(search, max_batch=1, max_wait=0)
    running = batcher.submit("a", ["x"])
    while batcher.waiting:
        time.sleep(0.001)
    waiting = [batcher.submit("a", ["x" * 2000]) for _ in range(3)]
    with pytest.raises(BusyError, match="Too many requests wait"):
        batcher.submit("a", ["x"], held=5000)
    gate.set()
    for future in (running, *waiting):
        future.result(9)
    assert batcher.submit("a", ["x"], held=9000).result(9) == ["x"]


# A server.


@pytest.fixture
def slow(monkeypatch):
    """Searches that take 20 ms a query more; counts them."""
    seen, own = [], service.answers

    def answers(index, queries, request, **shown):
        seen.append((index, request, list(queries)))
        time.sleep(0.02 * len(queries) * len(queries[0]) / 1000)
        return own(index, queries, request, **shown)

    monkeypatch.setattr(service, "answers", answers)
    return seen


def computed(seen):
    return sum(len(queries) for *_, queries in seen)


def test_a_server_gives_up_what_exceeds_its_time_and_answers_others_meanwhile(folder, slow):
    with live(folder, timeout=1.0) as client, ThreadPoolExecutor(1) as pool:
        heavy = pool.submit(client.ask, "search", {"queries": ["river " * 333] * 100})
        time.sleep(0.3)
        assert client.ask("search", {"query": QUERY})[0] == 200
        status, said = error(heavy.result())
        assert (status, said[:35]) == (503, "The search took longer than 1 s; tr")
        before = computed(slow)
        time.sleep(1)
        assert computed(slow) <= before + 16  # the slice in work
        assert before < 100
        assert client.ask("search", {"query": QUERY})[0] == 200


def test_a_request_whose_client_has_gone_is_given_up(folder, slow):
    with live(folder) as client:
        body = json.dumps({"queries": ["river " * 333] * 100}).encode()
        host, port = client.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            while not slow:
                time.sleep(0.001)
        assert client.ask("search", {"query": QUERY})[0] == 200
        time.sleep(1)
        before = computed(slow)
        time.sleep(0.5)
        assert computed(slow) == before < 100


def test_all_slices_search_one_state_of_the_index_with_one_filter(folder, slow):
    served = Service(ServerSettings(str(folder), "cpu"))
    try:
        future = served.search([f"{number} " * 600 for number in range(30)], 3, {"where": "number < 50"})
        while len(slow) < 2:
            time.sleep(0.001)
        served.retriever = load(folder, device="cpu")  # as an update does
        served.retriever.remove(["danube"])
        assert len(future.result(60)) == 30
        assert len({id(index) for index, *_ in slow}) == len({id(request) for _, request, _ in slow}) == 1
        assert len(slow) > 2
    finally:
        served.close()


def test_a_wrong_query_is_named_by_its_number_in_the_request(folder):
    with live(folder) as client:
        status, said = error(client.ask("search", {"queries": [*["x" * 2000] * 40, 3]}))
        assert (status, said) == (400, "Query 40 must be a string, got 3; write it as a text.")
        status, said = error(client.ask("search", {"queries": [*["x" * 2000] * 40, "a\0"]}))
        assert (status, said[:27]) == (400, "Query 40 must be a text wit")


def test_a_stop_answers_what_takes_too_long(folder, slow):
    app = create_app(ServerSettings(str(folder), "cpu"))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    client = Client(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
    with ThreadPoolExecutor(1) as pool:
        heavy = pool.submit(client.ask, "search", {"queries": ["river " * 333] * 100})
        while not slow:
            time.sleep(0.001)
        server.should_exit, begun = True, time.monotonic()
        thread.join()
        assert time.monotonic() - begun < 5
        assert error(heavy.result()) == (503, "The server is stopping; ask another one, or try again later.")


SCRIPTS = [range(0x61, 0x7B), range(0x4E00, 0x9000), range(0x0E01, 0x0E2F), range(0x0410, 0x0450)]


SERVER = """
import sys
from dsi.docids.words import analyzer
from tests.support.serving import live

analyzer._MOST_BYTES = 1 << 22
with live(sys.argv[1]) as client:
    print(client.url, flush=True)
    sys.stdin.read()
"""


@pytest.mark.programs
def test_queries_of_random_letters_fill_no_memory(folder):
    chosen = random.Random(0)

    def query(length):
        letters = [chr(code) for code in chosen.choice(SCRIPTS)]
        return "".join(chosen.choices([*letters, " "] if chosen.random() < 0.5 else letters, k=length))

    command = [sys.executable, "-c", SERVER, str(folder)]  # other tests leave memory behind in this process
    variables = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }  # what is freed of large arrays goes back to the system
    with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        client = Client(server.stdout.readline().strip())

        def use(requests):
            for _ in range(requests):
                assert client.ask("search", {"queries": [query(2000) for _ in range(50)], "k": 1})[0] == 200
            return resident_megabytes(server.pid)

        use(1)
        before = use(1)
        assert use(2) <= before + 10  # without a bound 7.5 MB a request stay
