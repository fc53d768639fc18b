"""A group of commands whose modules are imported when they are called, so that ``eplb --help`` starts fast."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command stands (``module:attribute``), its one-line help, and the extra that its libraries come with."""

    target: str
    help: str
    extra: str = "daemon"


class LazyGroup(click.Group):
    """A click group over a table of :class:`LazyCommand`."""

    def __init__(self, name: str, table: Mapping[str, LazyCommand], help: str) -> None:  # noqa: A002 - click's own name
        super().__init__(name=name, help=help)
        self._table = dict(table)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        del ctx
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now.

        Raises:
            click.ClickException: a library that it needs is not installed.
        """
        del ctx
        entry = self._table.get(cmd_name)
        if entry is None:
            return None
        module_name, _, attribute = entry.target.partition(":")
        try:
            module = import_module(module_name)
        except ModuleNotFoundError as error:
            ours = (error.name or "").split(".")[0] in ("eplb", "placement", "collectors")
            if ours:
                raise
            raise click.ClickException(
                f"'eplb {cmd_name}' needs the package {error.name!r}; pip install 'eplb-daemon[{entry.extra}]'"
            ) from error
        command: click.Command = getattr(module, attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands from the table alone; the base class would import every one."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self._table.items()])
