"""For tests of the server: a tiny index on disk, a server that runs in a thread, and a client."""

import json
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import datasets

from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.words.bm25 import BM25
from dsi.search.request import SearchConfig
from tests.support.parts import from_parts
from tests.support.small import MINIPEDIA, random_generator

TOKEN = "open sesame"
QUERY = "which capitals are on the danube"


def save_index(encoder, folder, *, vectors=True, texts=True):
    """Save an index of 60 documents, with a column of metadata."""
    rows = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [*(row for row in rows if row["_id"] == "danube"), *(row for row in rows[:60] if row["_id"] != "danube")][
        :60
    ]
    columns = {"doc_id": [row["_id"] for row in rows], "title": [row["title"] for row in rows]}
    columns["number"] = list(range(60))
    if texts:
        columns["text"] = [row["text"] for row in rows]
    full = encoder.document_texts(columns["title"], [row["text"] for row in rows])
    tree = build_tree(encoder.encode(full, "document"), DocidsConfig(branching=4, max_leaf_size=4))
    generator = None if vectors else random_generator(tree)
    own = {"lexical_weight": 0.1} if vectors else {"ann_temperature": 0.1}
    config = SearchConfig(alpha=0.5, beam_width=6, **own)
    lexical = BM25(columns["doc_id"], full)
    retriever = from_parts(encoder, tree, generator, datasets.Dataset.from_dict(columns), config, lexical)
    retriever.save(folder)
    return retriever


@contextmanager
def live(run, **settings):
    """Run a server on a free port of this machine; give its client, whose `app` is the app."""
    import uvicorn

    from dsi.server.app import create_app
    from dsi.server.settings import ServerSettings

    app = create_app(ServerSettings(str(run), "cpu", **settings))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        client = Client(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
        client.app = app
        yield client
    finally:
        server.should_exit = True
        thread.join()


class Client:
    def __init__(self, url):
        self.url = url

    def ask(self, path, body=None, *, method=None, token=None):
        """(status, answer): JSON where it is JSON."""
        data = json.dumps(body).encode() if body is not None and not isinstance(body, bytes) else body
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        request = urllib.request.Request(f"{self.url}/{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, kind, text = answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            status, kind, text = error.code, error.headers["Content-Type"], error.read().decode()
        return status, json.loads(text) if kind == "application/json" else text


def error(answer):
    """(status, message) of a request that failed."""
    status, body = answer
    assert set(body) == {"error"}
    return status, body["error"]
