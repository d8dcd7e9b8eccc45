"""A Hub on this machine: repositories in memory behind what huggingface_hub asks for when indexes are pushed and loaded."""

import base64
import hashlib
import json
import re
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_test"
LFS = (".safetensors", ".npy", ".arrow")


class Repository:
    """Commits of one repository: {commit: {path: content}}, oldest first."""

    def __init__(self, *, private=False):
        self.private = private
        self.commits = {self._name({}): {}}

    @property
    def head(self):
        return list(self.commits)[-1]

    def commit(self, files):
        self.commits[self._name(files)] = files

    def _name(self, files):
        numbered = f"{len(getattr(self, 'commits', ()))}{sorted(files)}"
        return hashlib.sha1(numbered.encode()).hexdigest()

    def find(self, revision):
        return self.head if revision == "main" else revision if revision in self.commits else None


class Hub:
    """Repositories, blobs that were uploaded by the LFS protocol, and what was asked for."""

    def __init__(self):
        self.repositories, self.blobs = {}, {}
        self.requests, self.cards = Counter(), []


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, content=b"", **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code):
        self.answer(status, {"error": code}, **{"X-Error-Code": code, "X-Error-Message": code})

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def route(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.requests[f"{self.command} {path}"] += 1
        for method, pattern, act in ROUTES:
            if self.command in method and (found := re.fullmatch(pattern, path)):
                return act(self, *found.groups())
        return self.refuse(404, "NotFound")

    do_GET = do_HEAD = do_POST = do_PUT = route  # noqa: N815

    def repository(self, name):
        found = self.hub.repositories.get(name)
        allowed = found and (not found.private or self.headers.get("Authorization") == f"Bearer {TOKEN}")
        if not allowed:
            self.refuse(401, "RepoNotFound")
        return found if allowed else None

    def at(self, name, revision):
        """(repository, commit) of a revision; commit is None if the revision does not exist, and the answer says so."""
        repository = self.repository(name)
        commit = repository.find(revision) if repository else None
        if repository and commit is None:
            self.refuse(404, "RevisionNotFound")
        return repository, commit

    def create(self):
        asked = json.loads(self.body())
        name = f"{asked['organization']}/{asked['name']}"
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401, "Unauthorized")
        exists = name in self.hub.repositories
        self.hub.repositories.setdefault(name, Repository(private=asked.get("visibility") == "private"))
        return self.answer(409 if exists else 200, {"url": f"{self.base}/{name}"})

    def validate(self):
        self.hub.cards.append(json.loads(self.body())["content"])
        self.answer(200, {"errors": [], "warnings": []})

    def preupload(self, name, _):
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(LFS) else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(self.body())["files"]
        ]
        self.answer(200, {"files": files})

    def batch(self, name):
        objects = json.loads(self.body())["objects"]
        upload = [{**one, "actions": {"upload": {"href": f"{self.base}/blobs/{one['oid']}"}}} for one in objects]
        self.answer(200, {"transfer": "basic", "objects": upload})

    def blob(self, oid):
        content = self.body()
        assert hashlib.sha256(content).hexdigest() == oid
        self.hub.blobs[oid] = content
        self.answer(200)

    def commit(self, name, _):
        repository = self.repository(name)
        if repository is None:
            return None
        files = dict(repository.commits[repository.head])
        for line in self.body().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        repository.commit(files)
        url = f"{self.base}/{name}/commit/{repository.head}"
        return self.answer(200, {"commitUrl": url, "commitOid": repository.head, "success": True})

    def info(self, name, revision="main"):
        repository, commit = self.at(name, revision)
        if commit is None:
            return None
        siblings = [{"rfilename": path} for path in repository.commits[commit]]
        return self.answer(
            200, {"id": name, "sha": commit, "siblings": siblings, "private": repository.private, "tags": []}
        )

    def tree(self, name, revision):
        repository, commit = self.at(name, revision)
        if commit is None:
            return None
        files = repository.commits[commit].items()
        return self.answer(
            200, [{"type": "file", "path": path, "size": len(text), "oid": etag(text)} for path, text in files]
        )

    def resolve(self, name, revision, path):
        repository, commit = self.at(name, revision)
        if commit is None:
            return None
        if path not in repository.commits[commit]:
            return self.answer(404, **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        content = repository.commits[commit][path]
        return self.answer(200, content, **{"X-Repo-Commit": commit, "ETag": f'"{etag(content)}"'})


def etag(content):
    return hashlib.sha1(content).hexdigest()


_REPO = r"([^/]+/[^/]+)"
ROUTES = [
    (("POST",), r"/api/repos/create", Handler.create),
    (("POST",), r"/api/validate-yaml", Handler.validate),
    (("POST",), rf"/api/models/{_REPO}/preupload/(.+)", Handler.preupload),
    (("POST",), rf"/{_REPO}\.git/info/lfs/objects/batch", Handler.batch),
    (("PUT",), r"/blobs/(\w+)", Handler.blob),
    (("POST",), rf"/api/models/{_REPO}/commit/(.+)", Handler.commit),
    (("GET",), rf"/api/models/{_REPO}", Handler.info),
    (("GET",), rf"/api/models/{_REPO}/revision/(.+)", Handler.info),
    (("GET",), rf"/api/models/{_REPO}/tree/([^/]+)", Handler.tree),
    (("GET", "HEAD"), rf"/{_REPO}/resolve/([^/]+)/(.+)", Handler.resolve),
]


@contextmanager
def serve():
    """Yield (hub, its address) while it answers."""
    hub = Hub()
    handler = type("BoundHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub, handler.base
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
