"""What was read from the store has the types and ranges that it claims, so that nothing later trips over it."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from eplb.agent.header import MAX_TERM
from eplb.errors import OfferError

if TYPE_CHECKING:
    from collections.abc import Callable

    from eplb.agent.wire import LiveRecord

INT_LIMIT = 1 << 64
LONGEST_TEXT = 1 << 16
LONGEST_TUPLE = 1 << 20
MOST_VERSIONS = 1 << 62


def check_types(record: Any) -> None:
    """Hold every field of a frozen dataclass against its annotation, inner ones too.

    Integers must fit 64 bits, signed or not; floats must be finite; text has at most :data:`LONGEST_TEXT` characters.

    Raises:
        OfferError: a field is not what its annotation says.
    """
    for name, hint in _hints(_kind(record)).items():
        if not _fits(getattr(record, name), hint):
            raise OfferError(
                f"{type(record).__name__}: {name} is of the wrong type, out of range or too long"
            )


def check_live(record: LiveRecord) -> None:
    """The counters of a live record are in range, and its rows are one rectangle that fits its facts and its digests.

    Raises:
        OfferError: they do not.
    """
    if not 0 <= record.term_seen <= MAX_TERM or not 0 <= record.map_version < MOST_VERSIONS:
        raise OfferError("LiveRecord: term_seen or map_version is out of range")
    rows, facts = record.map_rows, record.facts
    if rows is None and record.shares_rows is None:
        return
    if rows is None or facts is None:
        raise OfferError("LiveRecord: rows of a map come together with the pool's facts, or not at all")
    for name, table in (("map_rows", rows), ("shares_rows", record.shares_rows)):
        if table is None:
            continue
        if len(table) != facts.layers or any(len(row) != facts.slots for row in table):
            raise OfferError(f"LiveRecord: {name} are not {facts.layers} rows of {facts.slots} slots")
    if len(record.digests) != facts.layers or any(
        not -1 <= expert < facts.experts for row in rows for expert in row
    ):
        raise OfferError("LiveRecord: digests or ids do not fit the pool's facts")


def _kind(record: Any) -> Any:
    return type(record)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _fits(value: Any, hint: Any) -> bool:
    check = _PLAIN.get(hint)
    if check is not None:
        return check(value)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is tuple:
        return _fits_tuple(value, get_args(hint))
    return isinstance(value, hint) and is_dataclass(hint) and _all_fit(value)


_PLAIN: dict[Any, Callable[[Any], bool]] = {
    int: lambda value: type(value) is int and -INT_LIMIT < value < INT_LIMIT,
    float: lambda value: (
        math.isfinite(value) if type(value) is float else type(value) is int and abs(value) < INT_LIMIT
    ),
    str: lambda value: type(value) is str and len(value) <= LONGEST_TEXT,
    bool: lambda value: type(value) is bool,
    NoneType: lambda value: value is None,
}


def _all_fit(record: Any) -> bool:
    return all(_fits(getattr(record, name), hint) for name, hint in _hints(_kind(record)).items())


def _fits_tuple(value: Any, hints: tuple[Any, ...]) -> bool:
    if type(value) is not tuple or len(value) > LONGEST_TUPLE:
        return False
    if hints[-1] is Ellipsis:
        return all(_fits(item, hints[0]) for item in value)
    return len(value) == len(hints) and all(
        _fits(item, hint) for item, hint in zip(value, hints, strict=True)
    )
