"""`dsi serve` before it serves."""

import socket
import sys

from dsi.commands import serve
from dsi.commands.main import main


def test_serve_without_its_extra_is_refused_before_the_libraries_load(monkeypatch, tmp_path, capsys):
    def load(**_):
        raise AssertionError("the libraries were loaded")

    monkeypatch.setattr(serve, "load_libraries", load)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    (tmp_path / "manifest.json").write_text("{}")
    assert main(["serve", str(tmp_path)]) == 2
    assert capsys.readouterr().err == 'dsi: fastapi is not installed; run pip install "dr-scl[server]".\n'


def test_a_port_that_is_taken_is_said_before_the_libraries_load(monkeypatch, tmp_path, capsys):
    def load(**_):
        raise AssertionError("the libraries were loaded")

    monkeypatch.setattr(serve, "load_libraries", load)
    (tmp_path / "manifest.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(tmp_path), "--port", str(port), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert (
        error == f"dsi: Cannot listen on port {port} of 127.0.0.1: Address already in use. Choose another (--port).\n"
    )
