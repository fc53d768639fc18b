"""The command line's frame: lazy commands, streams and exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from eplb.cli import exits
from eplb.cli import main as main_module
from eplb.cli.lazy import LazyCommand, LazyGroup
from eplb.errors import EplbError

ROOT = Path(__file__).parents[2]


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "eplb", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_imports_no_heavy_library():
    """`eplb --help` lists every command and loads neither numpy nor pydantic."""
    code = (
        "import sys; from eplb.cli.main import main; main(['--help']); "
        "print(sorted({'numpy', 'pydantic', 'redis', 'torch', 'starlette', 'yaml'} & set(sys.modules)), file=sys.stderr)"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert result.stderr.strip() == "[]"
    for name in (
        "run",
        "status",
        "history",
        "pause",
        "resume",
        "place",
        "eval",
        "convert",
        "replay",
        "report",
        "inspect",
        "demo",
        "config",
    ):
        assert f"\n  {name} " in result.stdout


def test_an_unknown_command_is_an_error_of_usage():
    """Exit code 2, the message on stderr."""
    result = run("plcae")

    assert (result.returncode, result.stdout) == (exits.USAGE, "")
    assert "plcae" in result.stderr


def test_the_version_is_printed():
    """Exit code 0."""
    result = run("--version")

    assert (result.returncode, result.stdout) == (0, "eplb, version 0.1.0\n")


def group(function):
    """A group whose one command ``x`` is the function."""
    made = click.Group("eplb")
    made.add_command(click.Command("x", callback=function))
    return made


@pytest.mark.parametrize("code", [exits.OK, exits.NOTHING_TO_DO, exits.REFUSED])
def test_a_command_that_returns_a_code_ends_with_it(monkeypatch, code):
    """None is 0; a number is the exit code."""
    monkeypatch.setattr(main_module, "root", lambda: group(lambda: code))

    assert main_module.main(["x"]) == code


def test_a_command_that_returns_nothing_ends_well(monkeypatch):
    """The usual case."""
    monkeypatch.setattr(main_module, "root", lambda: group(lambda: None))

    assert main_module.main(["x"]) == exits.OK


def raising(error):
    def command():
        raise error

    return command


def test_a_named_error_is_one_message_without_traceback(monkeypatch, capsys):
    """It carries its own explanation."""
    monkeypatch.setattr(main_module, "root", lambda: group(raising(EplbError("what, where, what to do"))))

    assert main_module.main(["x"]) == exits.ERROR
    assert capsys.readouterr().err == "error: what, where, what to do\n"


def test_a_file_error_names_the_file(monkeypatch, capsys):
    """The system's words, not a traceback."""
    monkeypatch.setattr(
        main_module, "root", lambda: group(raising(FileNotFoundError(2, "No such file", "a.npz")))
    )

    assert main_module.main(["x"]) == exits.ERROR
    assert capsys.readouterr().err == "error: a.npz: No such file\n"


def test_a_fault_of_the_program_is_not_hidden(monkeypatch):
    """An unnamed error keeps its traceback."""
    monkeypatch.setattr(main_module, "root", lambda: group(raising(RuntimeError("bug"))))

    with pytest.raises(RuntimeError, match="bug"):
        main_module.main(["x"])


def test_an_interrupt_ends_as_shells_expect(monkeypatch, capsys):
    """Exit code 130."""
    monkeypatch.setattr(main_module, "root", lambda: group(raising(KeyboardInterrupt())))

    assert main_module.main(["x"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_command_whose_library_is_missing_says_what_to_install(tmp_path, monkeypatch, capsys):
    """A base install has the command, but not what it needs."""
    (tmp_path / "needs_missing.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    table = {"x": LazyCommand("needs_missing:x", "help", extra="demo")}
    monkeypatch.setattr(main_module, "root", lambda: LazyGroup("eplb", table, help="test"))

    assert main_module.main(["x"]) == exits.ERROR
    assert "'not_installed_anywhere'; pip install 'eplb-daemon[demo]'" in capsys.readouterr().err


def test_every_command_of_the_table_can_be_imported():
    """A name in the help leads to a command."""
    root = main_module.root()
    context = click.Context(root)

    found = {name: root.get_command(context, name) for name in root.list_commands(context)}

    assert all(isinstance(command, click.Command) for command in found.values())
