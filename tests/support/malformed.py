"""Requests to a server that are malformed in some way, as bytes on a connection, and the judge of their answers."""

import json
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.support.grammars import change_bytes
from tests.support.serving import QUERY, TOKEN

SECONDS, LONGEST = 15, 1500
"""Limits of an answer: its seconds, the characters of a message."""
STATUSES = (200, 204, 307, 400, 401, 403, 404, 405, 409, 413)
TEXTS = [
    "", " ", "x" * 3000, "a\0b", "\ud800", "\u202e\x1b[2J", "𝕏" * 600, "-" * 2000, "\n" * 900 + "x", "ﷺ" * 900, "../..",
    "%s%n{0}", "'", '"', "null",
]  # fmt: skip
CONDITIONS = [
    "(" * 10**5, "not " * 10**4 + "number = 1", '"\ud800" = 1', '"a\nb" = 1', f'"{"x" * 10**4}" = 1', "''",
    "number = 1 or " * 999 + "1", "number in (" + "1," * 9000 + "1)", f"title like '{'%a' * 250}'", f"title like '{'_' * 501}'",
    "number = 9e999", "number = ", "number = 'x'", "nothing = 1", f"number = {'9' * 60}", "number < 1e308",
    "title = '" + "x" * 10**5 + "'", "number = 1 -- x",
    "number is null", "number between 1", "title like '\\E(?s)((a+)+)+$'", "\u0663 = 1", "; drop table", "number\0= 1",
]  # fmt: skip
VALUES: list[Any] = [
    0, -1, 1, 7, 10**6, 2**63, 10**30, 10**4000, 0.5, -0.5, 1e300, -0.0, float("nan"), float("inf"), -float("inf"), True, False,
    [], [[]], [None], [0], ["danube"], ["danube"] * 10**4, {}, {"x": 1}, {"": {}}, [{}], *TEXTS, *CONDITIONS,
]  # fmt: skip
SHORT = [value for value in VALUES if len(repr(value)) < 5000]
"""A document of a longer id could not be named in an address."""
FIELDS = (
    "query", "queries", "k", "alpha", "beam_width", "candidates", "lexical_weight", "token_weight", "method", "allow", "deny",
    "where", "extra_scores", "parts", "matches", "doc_id", "self", "__class__", "", "a\nb", "\ud800", "x" * 10**4,
)  # fmt: skip
PATHS = ("/", "/search", "/explain", "/tree", "/documents", "/documents/danube", "/index", "/health", "/ready", "/metrics",
         "/openapi.json", "/page.js")  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "search", "G" * 300)


class Request(NamedTuple):
    """What is sent, and whether it is HTTP; else the connection may be closed without an answer."""

    data: bytes
    is_http: bool = True


def _http(method: str, path: str, body: bytes = b"", **headers: str) -> Request:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: x",
        "Connection: close",
        *(f"{key}: {headers[key]}" for key in headers),
    ]
    lines += [f"Content-Length: {len(body)}"] if body or method in ("POST", "PUT", "PATCH") else []
    return Request("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


def _search(chance: Random) -> dict[str, Any]:
    own: dict[str, Any] = {"query": QUERY, "k": 3, "lexical_weight": 0.1, "where": "number < 50", "deny": ["danube"]}
    return {"query": own.pop("query")} | {name: own[name] for name in chance.sample([*own], chance.randrange(4))}


def _document(number: int) -> dict[str, Any]:
    return {"doc_id": f"hostile-{number}", "title": "Neretva", "text": "A river in Bosnia.", "metadata": {"number": 1}}


def _broken(text: str, chance: Random) -> bytes:
    """JSON that is none, or is odd."""
    ways: list[Callable[[], str | bytes]] = [
        lambda: change_bytes(text.encode(), chance), lambda: change_bytes(text.encode(), chance),
        lambda: text[: chance.randrange(len(text))], lambda: "[" * chance.choice([10, 10**3, 10**6]),
        lambda: '{"query": ' * 10**4, lambda: f'{{"query": {"[" * 900}{"]" * 900}}}', lambda: f"[{text}]", lambda: text + text,
        lambda: text.encode("utf-16"), lambda: b"\xef\xbb\xbf" + text.encode(), lambda: text.replace('"', "'"),
        lambda: text.replace("{", '{"query": "y", ', 1), lambda: text.replace("{", '{"k": 1e999, ', 1), lambda: "null",
        lambda: text.replace("{", '{"k": ' + "9" * 5000 + ", ", 1), lambda: chance.randbytes(99), lambda: "", lambda: "NaN",
        lambda: text.encode().replace(b"danube", b"\xff\xfe"), lambda: text + " " * 10**6, lambda: "query=x&k=3",
    ]  # fmt: skip
    made = chance.choice(ways)()
    return made if isinstance(made, bytes) else made.encode()


def broken_json(chance: Random, number: int) -> Request:
    path = chance.choice(["/search", "/search", "/explain", "/documents"])
    body = {"documents": [_document(number)]} if path == "/documents" else _search(chance)
    return _http("POST", path, _broken(json.dumps(body), chance), Authorization=f"Bearer {TOKEN}")


def odd_fields(chance: Random, number: int) -> Request:
    body = _search(chance)
    for _ in range(chance.choice([1, 1, 2, 4])):
        body[chance.choice(FIELDS)] = chance.choice(VALUES)
    if chance.random() < 0.3:
        body["where"] = chance.choice(CONDITIONS)
    if chance.random() < 0.2:
        del body["query"]
    return _http("POST", chance.choice(["/search", "/search", "/explain"]), json.dumps(body).encode())


def odd_documents(chance: Random, number: int) -> Request:
    """A change of documents with a flaw, or without the token."""
    token = chance.choice(
        [f"Bearer {TOKEN}"] * 4 + ["", "Bearer ", f"Basic {TOKEN}", "Bearer \xff\xfe", f"bearer {TOKEN}x"]
    )
    if chance.random() < 0.3:
        return _http("DELETE", f"/documents/{_quoted(chance)}", Authorization=token)
    document: Any = _document(number)
    if chance.random() < 0.8:
        document[chance.choice([*document, "_id", "x", ""])] = chance.choice(SHORT)
    documents = chance.choice(
        [[document]] * 6 + [document, [document] * 2, [[document]], [document, 3], "x", {"": document}]
    )
    body = {"documents": documents, **chance.choice([{}, {}, {"replace": chance.choice(VALUES)}, {"x": 1}])}
    return _http("POST", "/documents", json.dumps(body).encode(), Authorization=token)


def odd_paths(chance: Random, number: int) -> Request:
    known, odd = chance.choice(PATHS), _quoted(chance)
    path = chance.choice(
        [f"/documents/{odd}", f"/tree?digits={odd}", f"/tree?digits={_digits(chance)}", f"/{odd}", f"{known}/",
         f"{known}?{odd}", "/" + "../" * 9 + "etc/passwd", "/" + "x" * 9000, "/%", "//search", "/page/../page.js", "*", "http://example.org/search",
         "/tree?digits=1&digits=2"]
    )  # fmt: skip
    return _http(chance.choice(["GET", "GET", "GET", "POST", "HEAD"]), path)


def _quoted(chance: Random) -> str:
    text = chance.choice(TEXTS)
    return chance.choice(
        [quote(text[:500], safe="", errors="surrogatepass"), "%00", "%ff%fe", "%2e%2e%2f", "%0d%0aX:1", "%zz"]
    )


def _digits(chance: Random) -> str:
    return ",".join(
        str(chance.choice([0, 1, 2, -1, 99, 2**63, 10**30, "", "x", "1.5", "+1", "%201"]))
        for _ in range(chance.randrange(9))
    )


def odd_methods(chance: Random, number: int) -> Request:
    return _http(chance.choice(METHODS), chance.choice(PATHS), chance.choice([b"", b"{}", b"x" * 9000]))


def not_http(chance: Random, number: int) -> Request:
    """What HTTP does not allow, or a request that never ends."""
    body = json.dumps(_search(chance)).encode()
    start = b"POST /search HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    chunked, upgrade = (
        start + b"Transfer-Encoding: chunked\r\n",
        b"Host: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    )
    whole = start + b"Content-Length: %d\r\n\r\n" % len(body) + body
    ways = [
        chance.randbytes(chance.choice([1, 99, 10**5])), change_bytes(whole, chance), change_bytes(whole, chance),
        whole[: chance.randrange(len(whole))], start + b"Content-Length: -1\r\n\r\n" + body,
        start + b"Content-Length: 9\r\nContent-Length: 3\r\n\r\n" + body,
        start + b"Content-Length: 1" + b"0" * 20 + b"\r\n\r\n",
        chunked + b"\r\nzz\r\n" + body, chunked + b"Content-Length: 5\r\n\r\n5\r\nhello\r\n",
        chunked + b"\r\nffffffffffffffff\r\n" + body, start + b"Transfer-Encoding: x\r\n\r\n" + body,
        start + b"X: " + b"x" * 10**6 + b"\r\n\r\n", start + b"X: y\r\n" * 10**4 + b"\r\n", start + b"X\r\n\r\n",
        start + b"X: a\0b\r\n\r\n", start + b" folded: x\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\n\n",
        b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n" * 10**4, b"\x16\x03\x01",
        start + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n", b"POST /search HTTP/1.1\r\n" + upgrade + b"\r\n",
        b"GET /search HTTP/1.1\r\n" + upgrade + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + b"eA==\r\n\r\n",
    ]  # fmt: skip
    return Request(chance.choice(ways), is_http=False)


KINDS: dict[Callable[[Random, int], Request], int] = {
    broken_json: 3, odd_fields: 5, odd_documents: 2, odd_paths: 2, odd_methods: 1, not_http: 2,
}  # fmt: skip
"""{makes a request: its share}."""


def request_of(number: int) -> Request:
    """The request of a number."""
    chance = Random(f"request {number}")
    return chance.choices([*KINDS], [*KINDS.values()])[0](chance, number)


def send(address: tuple[str, int], request: Request) -> bytes:
    """Send a request on a connection of its own, and return all that comes back before that is closed."""
    with socket.create_connection(address, timeout=SECONDS) as connection:
        with suppress(ConnectionError):  # refused before its end
            connection.sendall(request.data)
        if not request.is_http:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_WR)
        found = b""
        with suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                found += part
    return re.sub(rb"\AHTTP/1.1 100 .*\r\n\r\n", b"", found)


def http_status(answer: bytes) -> int:
    """The status of an answer; 0 if there is none."""
    words = answer.split(b" ", 2)
    return int(words[1]) if answer.startswith(b"HTTP/1.1 ") and len(words) == 3 else 0


def flaw_of(request: Request, answer: bytes) -> str:
    """What is wrong with the answer, or the first of several; "" if nothing is."""
    status, (head, _, rest) = http_status(answer), answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    body = rest[: int(length[1])] if length else rest
    if not request.is_http and (not answer or b"Invalid HTTP request received." in body):
        return ""
    if status not in STATUSES:
        return f"status {status}"
    if status < 400 or request.data.startswith(b"HEAD"):
        return ""
    said = json.loads(body) if b"application/json" in head else {}
    if set(said) != {"error"} or not said["error"].isprintable() or not 0 < len(said["error"]) <= LONGEST:
        return f"a message that is not one plain line: {body[:LONGEST]!r}"
    return ""
