"""``eplb run`` and the commands that look at, pause and resume a running daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eplb.cli import exits
from eplb.cli.config_cmd import parse_settings
from eplb.config import load_config
from eplb.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eplb.config import DaemonConfig
    from eplb.store.client import Store


def _configured(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which daemon is meant."""
    command = click.option(
        "--set", "settings", metavar="PATH=VALUE", multiple=True, help="Replace a setting."
    )(command)
    return click.option(
        "--config",
        "file",
        type=click.Path(path_type=Path),
        required=True,
        help="The daemon's configuration file.",
    )(command)


def _one_pool(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command about one pool."""
    return _configured(
        click.option("--pool", help="Name of the pool; needed when there are several.")(command)
    )


@click.command()
@_configured
@click.option(
    "--embedded", is_flag=True, help="Use a private store that ends with the daemon (one host only)."
)
@click.option(
    "--mode",
    type=click.Choice(["observe", "advise", "auto"]),
    help="Mode of every pool, instead of the file's.",
)
def run(file: Path, settings: tuple[str, ...], embedded: bool, mode: str | None) -> int:
    """Serve the pools of a configuration until SIGTERM: measure, plan, migrate."""
    from eplb.daemon import Daemon
    from eplb.log import configure_logging

    overrides = parse_settings(settings)
    if embedded:
        overrides |= {"store.embedded": True, "store.url": None}
    config = load_config(file, overrides)
    if mode is not None:
        from eplb.config import changed

        config = changed(config, {f"pools[{index}].gate.mode": mode for index in range(len(config.pools))})
    configure_logging(config.log.level, config.log.format)
    Daemon(config).run()
    return exits.OK


def _open(file: Path, settings: tuple[str, ...], pool: str | None) -> tuple[DaemonConfig, Store]:
    from eplb.agent.signing import RING
    from eplb.store.client import Store

    config = load_config(file, parse_settings(settings))
    if config.store.url is None:
        raise ConfigError(
            f"{file}: the store is embedded in the daemon; ask its HTTP address, or set store.url"
        )
    if config.map_key_file is not None:
        RING.use(Path(config.map_key_file))
    names = [entry.name for entry in config.pools]
    if pool is None and len(names) > 1:
        raise ConfigError(f"{file} has the pools {', '.join(names)}; say which with --pool")
    if pool is not None and pool not in names:
        raise ConfigError(f"{file} has no pool {pool!r}; it has {', '.join(names)}")
    return config, Store(
        config.store.url,
        pool or names[0],
        socket_timeout_s=config.store.timeout_s,
        access=config.store.access(),
    )


@click.command()
@_one_pool
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(file: Path, settings: tuple[str, ...], pool: str | None, as_json: bool) -> int:
    """Show what the daemon asks for, what the ranks serve, and the last decision."""
    from eplb.status import read_status, status_text

    config, store = _open(file, settings, pool)
    with store:
        facts = read_status(store, config.pool(store.pool).facts())
    click.echo(json.dumps(facts, indent=2) if as_json else status_text(facts))
    return exits.OK


@click.command()
@_one_pool
@click.option(
    "--count",
    default=500,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="How many cycles back, newest last.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def history(file: Path, settings: tuple[str, ...], pool: str | None, count: int, as_json: bool) -> int:
    """Show past decisions and why they were taken; those of one code in a row are one line."""
    from eplb.status import decision_lines, read_decision

    _, store = _open(file, settings, pool)
    with store:
        records = store.read_log(count)
    if as_json:
        readable = filter(None, map(read_decision, records))
        shown: Iterable[str] = (json.dumps(record, separators=(",", ":")) for record in readable)
    else:
        shown = decision_lines(records)
    for line in shown:
        click.echo(line)
    return exits.OK if records else exits.NOTHING_TO_DO


@click.command()
@_one_pool
def pause(file: Path, settings: tuple[str, ...], pool: str | None) -> int:
    """Stop acting on a pool; measuring goes on and a wave under way is finished."""
    return _set_paused(file, settings, pool, paused=True)


@click.command()
@_one_pool
def resume(file: Path, settings: tuple[str, ...], pool: str | None) -> int:
    """Act on a paused pool again."""
    return _set_paused(file, settings, pool, paused=False)


def _set_paused(file: Path, settings: tuple[str, ...], pool: str | None, *, paused: bool) -> int:
    from eplb.store.control import is_paused, set_paused

    _, store = _open(file, settings, pool)
    with store:
        if is_paused(store) is paused:
            click.echo(f"pool {store.pool} is {'paused' if paused else 'not paused'} already", err=True)
            return exits.NOTHING_TO_DO
        set_paused(store, paused=paused)
    click.echo(f"pool {store.pool} is {'paused: it only observes' if paused else 'acted on again'}", err=True)
    return exits.OK
