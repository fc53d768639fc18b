"""Where settings come from: a YAML file, the environment, the command line; later ones win key by key.

A setting is addressed by a path of keys and positions, such as ``("pools", 0, "gate", "cooldown_s")``, written
``pools[0].gate.cooldown_s`` in messages and on the command line and ``EPLB_POOLS__0__GATE__COOLDOWN_S`` in the environment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from collectors.urls import masked_url
from eplb.config.pools import DaemonConfig
from eplb.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ENV_PREFIX = "EPLB_"
ENV_DELIMITER = "__"

Location = tuple["str | int", ...]


@dataclass(frozen=True, slots=True)
class Source:
    """One place that gives settings: its name in messages, and a nested tree of mappings, sequences and scalars."""

    name: str
    tree: dict[str, Any]

    def gives(self, path: Location) -> bool:
        """Whether the source itself has something at the path."""
        node: Any = self.tree
        for key in path:
            found, node = _child(node, key)
            if not found:
                return False
        return True


def _child(node: Any, key: str | int) -> tuple[bool, Any]:
    if isinstance(node, dict):
        for candidate in (key, str(key)):
            if candidate in node:
                return True, node[candidate]
    if isinstance(node, (list, tuple)) and isinstance(key, int) and 0 <= key < len(node):
        return True, node[key]
    return False, None


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key given twice, because the first one would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key_node.tag != "tag:yaml.org,2002:merge" and isinstance(key, str | int | float):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} is given twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)


def read_file(path: Path) -> Source:
    """Settings of a YAML file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or is not a mapping of sections.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"{path}: the configuration cannot be read: {reason}; give the path of a YAML file"
        ) from error
    try:
        tree = yaml.load(text, Loader=_Loader)  # noqa: S506 - derived from SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or "unreadable text"
        raise ConfigError(f"{place}: not valid YAML: {problem}") from error
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path}: the file holds a {type(tree).__name__}, not sections; begin with 'store:' and 'pools:'"
        )
    return Source(str(path), tree)


def read_environment() -> Source:
    """Settings of ``EPLB_*`` variables: ``EPLB_CYCLE_S``, ``EPLB_STORE__URL``, ``EPLB_POOLS__0__GATE__MODE``.

    A name that starts with ``EPLB_``, has no double underscore and is no setting is left alone: an orchestrator gives
    every container variables such as ``EPLB_PORT`` for a service called ``eplb``.

    Raises:
        ConfigError: a variable that must hold JSON does not, or its first part is no setting.
    """
    from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

    class Variables(DaemonConfig, BaseSettings):
        model_config = SettingsConfigDict(
            env_prefix=ENV_PREFIX, env_nested_delimiter=ENV_DELIMITER, use_attribute_docstrings=False
        )

    try:
        tree = EnvSettingsSource(Variables)()
    except SettingsError as error:
        raise ConfigError(
            f"environment: {error}; a list or a section in one variable is written as JSON"
        ) from error
    for name in os.environ:
        first, nested, _ = name.removeprefix(ENV_PREFIX).partition(ENV_DELIMITER)
        if name.startswith(ENV_PREFIX) and nested and first.lower() not in DaemonConfig.model_fields:
            tree[first.lower()] = {}
    return Source("environment", tree)


def read_overrides(overrides: Mapping[str, Any]) -> Source:
    """Settings of the command line, by path: ``{"store.embedded": True, "pools[0].gate.mode": "auto"}``.

    Raises:
        ConfigError: a path cannot be read.
    """
    tree: dict[str, Any] = {}
    for text, value in overrides.items():
        path = parse_path(text)
        _refuse_secret(path, value)
        node = tree
        for key in path[:-1]:
            node = node.setdefault(str(key), {})
            if not isinstance(node, dict):
                raise ConfigError(
                    f"command line: {text!r} lies inside a value that is given as well; give one of them"
                )
        node[str(path[-1])] = value
    return Source("command line", tree)


def _refuse_secret(path: Location, value: Any) -> None:
    in_url = path[-1] == "url" and isinstance(value, str) and masked_url(value) != value
    if path[-1] in ("password", "token") or in_url:
        raise ConfigError(
            f"command line: {format_path(path)} holds a secret, and a command line is visible to every user of the host; use "
            f"{path[0]}.password_file, {path[0]}.token_file or the environment"
        )


def parse_path(text: str) -> Location:
    """The path that a text such as ``pools[0].gate.mode`` (or ``pools.0.gate.mode``) means.

    Raises:
        ConfigError: the text is no path.
    """
    parts = re.sub(r"\[(\d+)\]", r".\1", text).split(".")
    if not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in parts):
        raise ConfigError(f"command line: {text!r} is not the path of a setting; write pools[0].gate.mode")
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def format_path(path: Location) -> str:
    """The path as messages write it: ``pools[0].gate.cooldown_s``."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


def merge(low: Any, high: Any) -> Any:
    """Both trees in one, the higher winning key by key; a mapping with numbers for keys changes items of a sequence."""
    if isinstance(low, dict) and isinstance(high, dict):
        merged = dict(low)
        for key, value in high.items():
            merged[key] = merge(low[key], value) if key in low else _grown(value)
        return merged
    if (
        isinstance(low, (list, tuple))
        and isinstance(high, dict)
        and high
        and all(_is_position(key) for key in high)
    ):
        items = list(low)
        for key, value in sorted(high.items(), key=lambda item: int(item[0])):
            position = int(key)
            if position > len(items):
                raise ConfigError(
                    f"item [{position}] is set, but there are {len(items)} items; number them from 0 without gaps"
                )
            if position == len(items):
                items.append(_grown(value))
            else:
                items[position] = merge(items[position], value)
        return items
    return _grown(high)


def _grown(value: Any) -> Any:
    """The value with mappings whose keys count 0, 1, 2, ... turned into sequences."""
    if not isinstance(value, dict):
        return value
    if value and all(_is_position(key) for key in value):
        return merge([], value)
    return {key: _grown(item) for key, item in value.items()}


def _is_position(key: Any) -> bool:
    return isinstance(key, str) and key.isdecimal()
