"""``eplb config``: check a configuration file, print the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from eplb.config import DaemonConfig, load_config, to_yaml


@click.group()
def config() -> None:
    """Check a configuration file, or print its schema."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "settings",
    metavar="PATH=VALUE",
    multiple=True,
    help="Replace a setting: pools[0].gate.mode=auto.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
def check(file: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Check FILE with the present environment and print every setting, defaults included."""
    from eplb.window.size import check_size

    checked = load_config(file, parse_settings(settings))
    for pool in checked.pools:
        window = pool.window
        check_size(
            pool.facts(),
            (pool.count_kind(),),
            phases=len(pool.phases),
            window_s=window.window_s,
            max_slices=window.max_slices,
            window_bytes=window.window_bytes,
        )
    if as_json:
        click.echo(json.dumps(_tree(checked), indent=2))
    else:
        click.echo(to_yaml(checked), nl=False)


@config.command()
def schema() -> None:
    """Print the JSON schema of a configuration file, with every default and its reason."""
    click.echo(json.dumps(DaemonConfig.model_json_schema(), indent=2))


def parse_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """``PATH=VALUE`` texts as overrides of :func:`eplb.config.load_config`.

    Raises:
        click.UsageError: a text has no ``=``.
    """
    overrides: dict[str, Any] = {}
    for text in settings:
        path, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--set {text!r} has no value; write --set pools[0].gate.mode=auto")
        overrides[path] = value
    return overrides


def _tree(checked: DaemonConfig) -> Any:
    import yaml

    return yaml.safe_load(to_yaml(checked))
