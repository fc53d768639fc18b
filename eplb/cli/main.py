"""The command ``eplb``: data on stdout, progress and errors on stderr, exit codes of :mod:`eplb.cli.exits`.

A command returns None (all well) or one of the exit codes; it raises a named error rather than printing one.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from eplb import __version__
from eplb.cli import exits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import click

INTERRUPTED = 130
"""What a shell shows for a process ended by Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``arguments`` default to those of the process."""
    try:
        code = _run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; what is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = exits.ERROR
    except OSError as error:
        code = _fail(
            f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        )
    except Exception as error:
        if not isinstance(error, _named_errors()):
            raise
        code = _fail(str(error))
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        import click
    except ModuleNotFoundError:
        return _fail("the command line needs more than the base install; pip install 'eplb-daemon[daemon]'")
    given = None if arguments is None else list(arguments)
    try:
        code = root().main(args=given, prog_name="eplb", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        return exits.USAGE
    except click.ClickException as error:
        return _fail(error.format_message())
    except click.Abort as error:
        raise KeyboardInterrupt from error
    return code if isinstance(code, int) else exits.OK


def root() -> click.Group:
    """The group of all commands; no command's own module is imported."""
    import click

    from eplb.cli.lazy import LazyCommand, LazyGroup

    daemon = "eplb.cli.daemon"
    table = {
        "run": LazyCommand(f"{daemon}:run", "Serve the pools of a configuration: measure, plan, migrate."),
        "status": LazyCommand(f"{daemon}:status", "Show what a running daemon sees and what it decided."),
        "history": LazyCommand(f"{daemon}:history", "Show past decisions and why they were taken."),
        "pause": LazyCommand(f"{daemon}:pause", "Stop acting on a pool; measuring goes on."),
        "resume": LazyCommand(f"{daemon}:resume", "Act on a paused pool again."),
        "place": LazyCommand("eplb.cli.place:place", "Compute a placement from a routing trace."),
        "eval": LazyCommand("eplb.cli.evaluate:evaluate_cmd", "Score a placement on a routing trace."),
        "convert": LazyCommand("eplb.cli.convert:convert", "Write a map or a trace in another format."),
        "inspect": LazyCommand(
            "eplb.cli.inspect:inspect", "Say what a trace or map file is, and what looks wrong with it."
        ),
        "replay": LazyCommand("eplb.cli.replay:replay", "Replay a trace under policies and price each."),
        "report": LazyCommand(
            "eplb.cli.report:report", "Show a trace and what a better placement brings, as one HTML page."
        ),
        "generate": LazyCommand(
            "eplb.cli.generate:generate", "Write a synthetic routing trace of any model's shape."
        ),
        "demo": LazyCommand(
            "eplb.cli.demo:demo", "Run the whole loop on this host and show it.", extra="demo"
        ),
        "config": LazyCommand(
            "eplb.cli.config_cmd:config", "Check a configuration file, or print its schema."
        ),
    }
    group = LazyGroup("eplb", table, help="Balance the experts of mixture-of-experts models over their GPUs.")
    return click.version_option(__version__, prog_name="eplb")(group)


def _named_errors() -> tuple[type[Exception], ...]:
    """Errors that carry their own explanation; anything else is a fault of the program and shows its traceback."""
    from collectors.errors import CollectorError
    from eplb.errors import EplbError
    from placement.errors import PlacementError

    return (EplbError, CollectorError, PlacementError)


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return exits.ERROR


if __name__ == "__main__":
    sys.exit(main())
