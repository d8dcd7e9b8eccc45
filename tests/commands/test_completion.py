"""Shell completion, and what is suggested for a wrong command."""

import shutil
import subprocess

import pytest

from dsi.commands.arguments import parser_of
from dsi.commands.completion import SHELLS
from dsi.commands.main import COMMANDS, command_modules, main

pytest.importorskip("shtab")


def script(shell, capsys):
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_command_and_option_and_is_understood(shell, capsys, tmp_path):
    text = script(shell, capsys)
    for name in command_modules():
        assert name in text
    for name in COMMANDS:
        for action in parser_of(command_modules()[name])._actions:
            options = [option for option in action.option_strings if option.startswith("--")]
            assert all((f"-l {option[2:]}" if shell == "fish" else option) in text for option in options)
    (tmp_path / "script").write_text(text)
    if shutil.which(shell):
        assert subprocess.run([shell, "-n", str(tmp_path / "script")], check=False).returncode == 0


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("dsi sear", ["search"]),
        ("dsi search --beam", ["--beam-width"]),
        ("dsi search --method g", ["generate"]),
        ("dsi search run", ["runs"]),
        ("dsi search --queries quer", ["queries.jsonl"]),
        ("dsi update x --vectors f", ["float32", "float16"]),
        ("dsi search --nothing", []),
    ],
)
def test_bash_completes(line, completed, capsys, tmp_path):
    (tmp_path / "script").write_text(script("bash", capsys))
    (tmp_path / "runs").mkdir()
    (tmp_path / "queries.jsonl").touch()
    program = 'source ./script; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_dsi; printf "%s\\n" "${COMPREPLY[@]}"'
    command = ["bash", "-c", program, "bash", *line.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == completed


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("trian", "did you mean 'train'?"),
        ("evalute", "did you mean 'evaluate'?"),
        ("query", "did you mean 'search'?"),
        ("add", "did you mean 'update'?"),
        ("xyz", "dsi --help lists the commands."),
        ("", "dsi --help lists the commands."),
    ],
)
def test_a_wrong_command_is_answered_with_a_near_one_if_there_is_one(name, hint, capsys):
    assert main([name]) == 2
    assert capsys.readouterr().err == f"dsi: unknown command {name!r}; {hint}\n"


def test_a_wrong_shell_is_refused(capsys):
    assert main(["completion", "tcl"]) == 2
    assert "invalid choice: 'tcl'" in capsys.readouterr().err
