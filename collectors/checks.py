"""Checks of what an engine hands over: each gives the counts to add, or a refusal with a named reason.

A refusal is a value, not an exception: these run between the forwards of an engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collectors.facts import NO_MAP_DIGEST, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

MAX_STEP_COUNT = 1 << 40
"""Largest count that one step may add to one counter, in tokens; more is a broken counter, not load."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why input was refused: a short name to count by, and a sentence with the place, the value and what to do."""

    reason: str
    sentence: str


def checked_counts(counts: Any, shape: tuple[int, ...]) -> NDArray[np.int64] | Refusal:
    """The counts as int64 of this shape, values 0 to MAX_STEP_COUNT tokens.

    Refusals: ``wrong_type``, ``wrong_shape``, ``not_finite``, ``not_whole``, ``negative``, ``overflow``.
    """
    array = np.asarray(counts)
    if array.dtype.kind not in "iuf":
        return Refusal(
            "wrong_type", f"counts are {array.dtype}, expected whole numbers; hand over an integer array"
        )
    if array.shape != shape:
        return Refusal(
            "wrong_shape", f"counts have shape {array.shape}, expected {shape}; check kind and layers"
        )
    if array.dtype.kind == "f":
        refusal = _float_refusal(array)
        if refusal is not None:
            return refusal
    return array.astype(np.int64, copy=False) if _in_range(array) else _range_refusal(array)


def _in_range(array: NDArray[Any]) -> bool:
    if not array.size:
        return True
    if array.dtype == np.int64 and array.flags.c_contiguous:
        # One pass for both ends: seen as unsigned, a negative number is larger than any count.
        return int(array.view(np.uint64).max()) <= MAX_STEP_COUNT
    return bool(array.min() >= 0 and array.max() <= MAX_STEP_COUNT)


def _float_refusal(array: NDArray[Any]) -> Refusal | None:
    if not np.isfinite(array).all():
        place = _place(~np.isfinite(array))
        return Refusal(
            "not_finite", f"count at {place} is not finite; the counter was read before it was written"
        )
    if (np.trunc(array) != array).any():
        place = _place(np.trunc(array) != array)
        return Refusal("not_whole", f"count at {place} is not a whole number; hand over tokens, not shares")
    return None


def _range_refusal(array: NDArray[Any]) -> Refusal:
    if array.min() < 0:
        place = _place(array < 0)
        return Refusal(
            "negative", f"count at {place} is {array[place]}; hand over tokens of this step, not differences"
        )
    place = _place(array > MAX_STEP_COUNT)
    return Refusal("overflow", f"count at {place} is {array[place]}, the limit of a step is {MAX_STEP_COUNT}")


def _place(wrong: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def conservation_refusal(counts: NDArray[np.int64], tokens: int, top_k: int) -> Refusal | None:
    """Check that every layer routed each token to top_k experts: int64 [layers, width] -> None or why not.

    Refusals: ``one_layer_only`` (a hook without layer context), ``totals_mismatch``. Formula:
    ``sum over width == tokens * top_k`` in every layer.
    """
    per_layer = counts.sum(axis=1)
    expected = tokens * top_k
    wrong = per_layer != expected
    if not wrong.any():
        return None
    if len(per_layer) > 1 and np.count_nonzero(per_layer) == 1:
        layer = int(np.flatnonzero(per_layer)[0])
        return Refusal(
            "one_layer_only",
            f"only layer {layer} of {len(per_layer)} has counts; the hook lacks layer context",
        )
    layer = int(np.flatnonzero(wrong)[0])
    return Refusal(
        "totals_mismatch",
        f"layer {layer} counts {int(per_layer[layer])}, expected {tokens} tokens x top-{top_k} = {expected}; "
        "padding, warm-up or tokens of other ranks were counted, or some were not",
    )


def run_refusal(run_id: int, group_step: int) -> Refusal | None:
    """Check the numbers of a run that rank 0 of the group gave; refusal: ``bad_run``."""
    if 0 <= run_id < 1 << 64 and -1 <= group_step < 1 << 62:
        return None
    return Refusal(
        "bad_run", f"run_id {run_id}, group_step {group_step}; hand over what rank 0 of the group gave"
    )


def digests_refusal(digests: NDArray[np.uint64], layers: int, *, by_slot: bool) -> Refusal | None:
    """Check the map digests of a run: uint64 [layers], and none missing where counts are by slot.

    Refusal: ``bad_digests``.
    """
    if digests.shape != (layers,):
        return Refusal("bad_digests", f"layer_digests have shape {digests.shape}, expected [{layers}]")
    if by_slot and not (digests != NO_MAP_DIGEST).all():
        return Refusal(
            "bad_digests", "a layer has no map digest; counts by slot mean nothing without their map"
        )
    return None


def layers_refusal(layers: Iterable[int], rows: int) -> Refusal | None:
    """Check that layers are positions of rows; refusal: ``bad_layer``."""
    wrong = [layer for layer in layers if not 0 <= layer < rows]
    if not wrong:
        return None
    return Refusal("bad_layer", f"layers {wrong} of {rows} rows; name positions of rows")


def step_refusal(group_step: Any, phase: Any, tokens: Any, last_step: int) -> Refusal | None:
    """Check the facts of a step; refusals: ``bad_step``, ``stale_step``, ``bad_phase``, ``bad_tokens``."""
    if not _is_whole(group_step) or not 0 <= group_step < 1 << 62:
        return Refusal("bad_step", f"group_step is {group_step!r}, expected a whole number from 0")
    if group_step <= last_step:
        return Refusal("stale_step", f"group_step {group_step} was recorded already, the last is {last_step}")
    if not _is_phase(phase):
        return Refusal("bad_phase", f"phase is {phase!r}, expected one of {[p.name for p in Phase]}")
    if not _is_whole(tokens) or not 0 <= tokens <= MAX_STEP_COUNT:
        return Refusal(
            "bad_tokens", f"tokens is {tokens!r}, expected a whole number from 0 to {MAX_STEP_COUNT}"
        )
    return None


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_phase(value: Any) -> bool:
    return _is_whole(value) and int(value) in list(Phase)


def checked_time(value_us: Any) -> float | Refusal | None:
    """A time in microseconds, None = not measured; refusal: ``bad_time``."""
    if value_us is None:
        return None
    try:
        number = float(value_us)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        return Refusal(
            "bad_time", f"a time is {value_us!r}, expected microseconds from 0, or None where not measured"
        )
    return number
