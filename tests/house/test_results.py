"""results/README.md: each of its commands is understood today, and those that are cheap write their first row."""

import argparse
import contextlib
import re
import shlex
from pathlib import Path

import pytest
from dsi_experiments.rows import Rows
from transformers import Trainer

from dsi.commands.main import main
from tests.support.small import thin_out

ROOT = Path(__file__).parents[2]
TODAY, HISTORY = (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("\n## History\n")
HISTORY, REBUILT = HISTORY.split("\n## What can be rebuilt\n")
ROWS = [line.split(" | ") for line in TODAY.splitlines() if line.startswith("| [")]
COMMANDS = sorted({command for cells in ROWS for command in re.findall(r"`(dsi [^`]+)`", cells[2])})
ON_COLLECTIONS = [
    command
    for command in COMMANDS
    if re.match(r"dsi reproduce (?!toy|synthetic|ltr|diversity|parsing|treebank)", command)
]
"""Those that train rows over a collection; the other experiments have tests of their own."""


class Stop(BaseException):
    """What a command has shown is enough."""


def arguments(command, **values):
    """A command's arguments, with values in place of DATA, INDEX and the like."""
    words = shlex.split(command)[1:]
    return [
        re.sub(r"^(DATA|COLLECTION|INDEX|OUT|DIR|FOLDER)", lambda found: str(values[found[1]]), word) for word in words
    ]


@pytest.fixture
def parsing_stops(monkeypatch):
    """Commands end once their arguments are understood."""
    parse = argparse.ArgumentParser.parse_intermixed_args

    def parse_and_stop(self, *args, **options):
        parse(self, *args, **options)
        raise Stop

    monkeypatch.setattr(argparse.ArgumentParser, "parse_intermixed_args", parse_and_stop)


def test_every_file_of_a_row_has_a_command_or_is_history():
    assert len(ROWS) > 30
    for cells in ROWS:
        assert re.search(r"`dsi[ .]", cells[2]), cells[0]
    kept = [line for line in HISTORY.splitlines() if line.startswith(("| [", "| nq10k"))]
    assert kept
    assert all("| history: cannot be run today; " in line for line in kept)


@pytest.mark.parametrize("command", [*COMMANDS, *re.findall(r"`(dsi [^`]+)`", REBUILT)])
def test_every_command_is_understood(command, beir, tmp_path, parsing_stops, capsys):
    data, index = beir(), tmp_path / "index"
    index.mkdir()
    (index / "manifest.json").write_text("{}")
    values = {
        "DATA": data,
        "COLLECTION": data,
        "INDEX": index,
        "OUT": tmp_path / "out",
        "DIR": tmp_path,
        "FOLDER": tmp_path,
    }
    values["DIR"] = data if "benchmark-" in command else tmp_path
    with pytest.raises(Stop):
        main(arguments(command, **values))
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("command", ON_COLLECTIONS)
def test_every_command_on_a_collection_writes_its_first_row(command, beir, sentence_bert_folder, tmp_path, monkeypatch):
    put = Rows.put

    def put_and_stop(self, *args, **options):
        put(self, *args, **options)
        raise Stop

    monkeypatch.setattr(Rows, "put", put_and_stop)
    monkeypatch.setattr(Trainer, "_save_checkpoint", lambda *_: None)  # none of these trainings is killed
    out = tmp_path / "out"
    small = [
        f"encoder.name={sentence_bert_folder}",
        "encoder.document_length=16",
        "docids.branching=8",
        *([] if "vectors-small" in command else ["training.epochs=1"]),
    ]
    changes = [word for change in small for word in ("--set", change)]
    words = arguments(command, DATA=thin_out(beir(), dev=6, test=2), OUT=out)
    with contextlib.suppress(Stop):
        assert main([*words, *changes, "--device", "cpu"]) == 0
    (written,) = (path for path in out.glob("*.json") if path.name != "settings.json")  # what dev chose
    assert written.stat().st_size > 100
