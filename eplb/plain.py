"""Plain data: what JSON can hold, made from facts, arrays and mappings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """The value as dicts, lists, text, numbers, booleans and None.

    Arrays become nested lists, NaN and infinities None (JSON has no word for them), integers stay exact whatever their
    size, dataclasses become mappings by field name, enums their lower-case name, bytes hexadecimal text. Anything else
    becomes its text.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, np.bool_):
        return bool(value)
    return _plain_container(value)


def _plain_container(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, (Sequence, AbstractSet)):
        items = sorted(value, key=str) if isinstance(value, AbstractSet) else value
        return [plain(item) for item in items]
    return str(value)


def _key(key: Any) -> str:
    return key.name.lower() if isinstance(key, Enum) else str(key)
