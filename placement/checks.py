"""Take numbers and arrays as callers hand them over: Python's, numpy's or lists, and refuse by name what is none."""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from placement.errors import PlacementError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

SMALLEST, LARGEST = 1e-100, 1e100
"""Range of weights and speeds: products and sums of them neither vanish nor overflow."""


def instance(name: str, value: object, kind: type[Any], error: type[PlacementError] = PlacementError) -> None:
    """Refuse a ``value`` that is no ``kind``.

    Raises:
        error: names both types.
    """
    if not isinstance(value, kind):
        raise error(f"{name} is a {type(value).__name__}, expected a {kind.__name__}: make one from it")


def whole(
    name: str,
    value: object,
    least: int | None = None,
    error: type[PlacementError] = PlacementError,
    most: int | None = None,
) -> int:
    """``value`` as a Python int.

    Raises:
        error: it is no whole number (True and 2.0 are none), below ``least`` or above ``most``.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise error(f"{name} is {value!r}, must be a whole number")
    number = int(value)
    if least is not None and number < least:
        raise error(f"{name} is {number}, must be at least {least}")
    if most is not None and number > most:
        raise error(f"{name} is {number}, above the limit of {most}")
    return number


def whole_tuple(
    name: str, values: object, least: int | None = None, error: type[PlacementError] = PlacementError
) -> tuple[int, ...]:
    """``values`` as Python ints.

    Raises:
        error: they are no sequence, or one is no whole number or below ``least``; says which.
    """
    parts = _sequence(name, values, error)
    return tuple(whole(f"{name}[{at}]", part, least, error) for at, part in enumerate(parts))


def real(name: str, value: object, error: type[PlacementError] = PlacementError) -> float:
    """``value`` as a Python float.

    Raises:
        error: it is no number, NaN or infinite.
    """
    try:
        known = not isinstance(value, bool) and isinstance(value, Real) and isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        known = False
    if not known:
        raise error(f"{name} is {value!r}, must be a finite number")
    return float(cast("float", value))


def real_tuple(name: str, values: object, error: type[PlacementError] = PlacementError) -> tuple[float, ...]:
    """``values``, one for each rank, as Python floats.

    Raises:
        error: they are no sequence, or one is no finite number; says of which rank.
    """
    parts = _sequence(name, values, error)
    return tuple(real(f"{name} of rank {at}", part, error) for at, part in enumerate(parts))


def _sequence(name: str, values: object, error: type[PlacementError]) -> list[Any]:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, (tuple, list, range)):
        raise error(f"{name} is {values!r}, must be a sequence of numbers")
    return list(values)


def raw_array(name: str, values: ArrayLike, error: type[PlacementError]) -> NDArray[Any]:
    """``values`` as an array of whatever type and shape they have.

    Raises:
        error: they are ragged, or too large for any type, or some are masked.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise error(f"{name} are masked in places: fill them, or leave them out")
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as cause:
        raise error(f"{name} are no array: {cause}") from cause


def real_array(name: str, values: ArrayLike, error: type[PlacementError]) -> NDArray[np.float64]:
    """``values`` as a new float64 array in C order, not yet looked at for NaN.

    Raises:
        error: they are no array of numbers.
    """
    raw = raw_array(name, values, error)
    if raw.dtype.kind not in "iuf":
        raise error(f"{name} have type {raw.dtype}, expected numbers")
    return np.array(raw, dtype=np.float64, order="C")
