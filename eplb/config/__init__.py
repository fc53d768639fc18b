"""Settings of the daemon: YAML file < environment < command line, every key checked.

    config = load_config(Path("configs/mixed.yaml"), {"pools[0].gate.mode": "auto"})
    config.pools[0].facts()

Numbers given as text are parsed; an unknown key, a value out of range and settings that contradict each other are
:class:`~eplb.errors.ConfigError`, whose message names the place, the setting, the value and what to do.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from collectors.urls import masked_url
from eplb.config.pools import (
    DaemonConfig,
    ModelConfig,
    PoolConfig,
    TopologyConfig,
    format_layers,
    parse_layers,
)
from eplb.config.problems import explain
from eplb.config.sections import (
    AlertConfig,
    GateConfig,
    HistoryConfig,
    HttpConfig,
    LogConfig,
    MetricsConfig,
    MigrationConfig,
    Section,
    SolverConfig,
    StoreConfig,
    WindowConfig,
)
from eplb.config.sources import Source, merge, read_environment, read_file, read_overrides
from eplb.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "AlertConfig",
    "DaemonConfig",
    "GateConfig",
    "HistoryConfig",
    "HttpConfig",
    "LogConfig",
    "MetricsConfig",
    "MigrationConfig",
    "ModelConfig",
    "PoolConfig",
    "Section",
    "SolverConfig",
    "StoreConfig",
    "TopologyConfig",
    "WindowConfig",
    "changed",
    "format_layers",
    "load_config",
    "parse_layers",
    "to_yaml",
]


def load_config(path: Path | str | None = None, overrides: Mapping[str, Any] | None = None) -> DaemonConfig:
    """Settings from a YAML file, ``EPLB_*`` variables and ``overrides`` (path of a setting -> value), later ones winning.

    Raises:
        ConfigError: something cannot be read, is unknown, out of range or contradicts another setting.
    """
    sources: list[Source] = []
    if path is not None:
        sources.append(read_file(Path(path)))
    sources.append(read_environment())
    if overrides:
        sources.append(read_overrides(overrides))
    return _validated(sources)


def changed(config: DaemonConfig, overrides: Mapping[str, Any]) -> DaemonConfig:
    """The same settings with some replaced, checked exactly as at the start.

    Raises:
        ConfigError: as for :func:`load_config`.
    """
    return _validated([Source("running settings", config.model_dump()), read_overrides(overrides)])


def to_yaml(config: DaemonConfig) -> str:
    """All settings, defaults included, as YAML that :func:`load_config` reads; a password in the URL is masked."""
    tree = config.model_dump(mode="json")
    if config.store.url is not None:
        tree["store"]["url"] = masked_url(config.store.url)
    return yaml.safe_dump(tree, sort_keys=False, width=120, allow_unicode=True)


def _validated(sources: list[Source]) -> DaemonConfig:
    tree: Any = reduce(merge, (source.tree for source in sources), {})
    try:
        return DaemonConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, DaemonConfig, sources)) from error
