"""The load that a placement is solved for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placement.checks import LARGEST, SMALLEST, raw_array, real_array
from placement.errors import TraceError
from placement.routes import Routes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

MOST_TOKENS = 2**62
"""Largest sum of one layer in one slice: sums of two still fit int64."""


@dataclass(frozen=True, slots=True, init=False, eq=False)
class LoadTrace:
    """Tokens by slice, layer and expert; a slice is an interval of the window or one step.

    ``tokens``: int64 [slices, layers, experts], tokens routed to each logical expert (read-only copy).
    ``weights``: float64 [slices] >= 0 or None, how much each slice counts; None = all equal.
    ``steps_per_slice``: int64 [slices] >= 1 or None, steps that each slice sums; None = unknown.
    ``routes``: sampled sets of experts that tokens went to together, or None.
    ``source_tokens``: int64 [ranks, layers, experts] or None, tokens by the rank on which they started.
    ``batch_tokens``: float64 [slices] > 0 or None, tokens (not token-expert pairs) that the group routed in one step, on average.

    Raises:
        TraceError: a count is negative, not finite, not whole or overflowing (names the place and the value),
            or a shape does not fit.
    """

    tokens: NDArray[np.int64]
    weights: NDArray[np.float64] | None
    steps_per_slice: NDArray[np.int64] | None
    routes: Routes | None
    source_tokens: NDArray[np.int64] | None
    batch_tokens: NDArray[np.float64] | None

    def __init__(
        self,
        tokens: ArrayLike,
        weights: ArrayLike | None = None,
        steps_per_slice: ArrayLike | None = None,
        *,
        routes: Routes | None = None,
        source_tokens: ArrayLike | None = None,
        batch_tokens: ArrayLike | None = None,
    ) -> None:
        object.__setattr__(self, "tokens", _frozen(_checked_tokens(tokens)))
        slices = self.tokens.shape[0]
        object.__setattr__(
            self, "weights", None if weights is None else _frozen(_checked_weights(weights, slices))
        )
        steps = None if steps_per_slice is None else _frozen(_checked_steps(steps_per_slice, slices))
        object.__setattr__(self, "steps_per_slice", steps)
        object.__setattr__(self, "routes", _checked_routes(routes, self.layers, self.experts))
        sources = None if source_tokens is None else _frozen(_checked_sources(source_tokens, self.tokens))
        object.__setattr__(self, "source_tokens", sources)
        batch = None if batch_tokens is None else _frozen(_checked_batch(batch_tokens, slices))
        object.__setattr__(self, "batch_tokens", batch)

    @property
    def slices(self) -> int:
        """Number of slices."""
        return int(self.tokens.shape[0])

    @property
    def layers(self) -> int:
        """Number of MoE layers."""
        return int(self.tokens.shape[1])

    @property
    def experts(self) -> int:
        """Number of logical experts in every layer."""
        return int(self.tokens.shape[2])

    def slice_weights(self) -> NDArray[np.float64]:
        """Weight of every slice, float64 [slices], ones when none were given."""
        return np.ones(self.slices) if self.weights is None else self.weights


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def _place(bad: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))


def _refuse(bad: NDArray[np.bool_], values: NDArray[Any], what: str, of: tuple[str, str]) -> None:
    if bad.any():
        at = _place(bad)
        (name, row), (first, layer, expert) = of, at
        raise TraceError(
            f"{name}[{row} {first}, layer {layer}, expert {expert}] is {values[at]}, {what}; "
            f"{int(bad.sum())} such counts: drop or mend them where they are recorded"
        )


def _checked_tokens(tokens: ArrayLike, of: tuple[str, str] = ("tokens", "slice")) -> NDArray[np.int64]:
    """Check counts; ``of``: their name and what their first axis counts, for the messages."""
    name, row = of
    raw = raw_array(name, tokens, TraceError)
    if raw.ndim != 3 or 0 in raw.shape:
        raise TraceError(
            f"{name} have shape {list(raw.shape)}, expected [{row}s, layers, experts] with at least 1 each"
        )
    if raw.dtype.kind == "O":
        raw = _from_objects(raw, of)
    if raw.dtype.kind not in "iuf":
        raise TraceError(f"{name} have type {raw.dtype}, expected whole numbers")
    if raw.dtype.kind == "f":
        _refuse(~np.isfinite(raw), raw, "not a finite number", of)
        _refuse(raw != np.floor(raw), raw, "not a whole number", of)
    _refuse(raw < 0, raw, "below 0", of)
    # A narrow float has no 2^62: it would turn into infinity.
    most = min(MOST_TOKENS, float(np.finfo(raw.dtype).max)) if raw.dtype.kind == "f" else MOST_TOKENS
    _refuse(raw > most, raw, f"above the limit of {MOST_TOKENS} tokens", of)
    counts = np.array(raw, dtype=np.int64, order="C")
    total = counts.sum(axis=2, dtype=np.float64)
    if (total > MOST_TOKENS).any():
        first, layer = _place(total > MOST_TOKENS)
        raise TraceError(
            f"{name} of {row} {first}, layer {layer} sum to {total[first, layer]:.6g}, above the limit of {MOST_TOKENS}"
        )
    return counts


def _from_objects(raw: NDArray[Any], of: tuple[str, str]) -> NDArray[Any]:
    bad = np.array([not isinstance(v, int) or isinstance(v, bool) for v in raw.ravel()]).reshape(raw.shape)
    _refuse(bad, raw, "not a whole number", of)
    wide = np.array([abs(v) > MOST_TOKENS for v in raw.ravel()]).reshape(raw.shape)
    _refuse(wide, raw, f"outside 0..{MOST_TOKENS}", of)
    return raw.astype(np.int64)


def _checked_routes(routes: Routes | None, layers: int, experts: int) -> Routes | None:
    if routes is None:
        return None
    if not isinstance(routes, Routes):
        raise TraceError(f"routes are {type(routes).__name__}, expected Routes(experts, requests)")
    if routes.layers != layers:
        raise TraceError(f"routes have {routes.layers} layers, tokens {layers}")
    over = routes.experts >= experts
    if over.any():
        sample, layer, place = _place(over)
        raise TraceError(
            f"routes[sample {sample}, layer {layer}, place {place}] is {routes.experts[sample, layer, place]}, "
            f"but experts are 0..{experts - 1}"
        )
    return routes


def _checked_sources(source_tokens: ArrayLike, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    counts = _checked_tokens(source_tokens, ("source_tokens", "rank"))
    if counts.shape[1:] != tokens.shape[1:]:
        raise TraceError(
            f"source_tokens have shape {list(counts.shape)}, expected [ranks, {tokens.shape[1]}, {tokens.shape[2]}]"
        )
    total = counts.sum(axis=(0, 2), dtype=np.float64)
    if (total > MOST_TOKENS).any():
        (layer,) = _place(total > MOST_TOKENS)
        raise TraceError(
            f"source_tokens of layer {layer} sum to {total[layer]:.6g}, above the limit of {MOST_TOKENS}"
        )
    return counts


def _checked_weights(weights: ArrayLike, slices: int) -> NDArray[np.float64]:
    array = real_array("weights", weights, TraceError)
    if array.shape != (slices,):
        raise TraceError(f"weights have shape {list(array.shape)}, expected [{slices}]")
    bad = ~np.isfinite(array) | (array < 0)
    if bad.any():
        (at,) = _place(bad)
        raise TraceError(f"weights[slice {at}] is {array[at]}, must be finite and at least 0")
    extreme = (array > 0) & ~((array >= SMALLEST) & (array <= LARGEST))
    if extreme.any():
        (at,) = _place(extreme)
        raise TraceError(f"weights[slice {at}] is {array[at]}, must be 0 or from {SMALLEST} to {LARGEST}")
    if not (array > 0).any():
        raise TraceError("every slice has weight 0: at least one must count")
    return array


def _checked_steps(steps: ArrayLike, slices: int) -> NDArray[np.int64]:
    array = raw_array("steps_per_slice", steps, TraceError)
    if array.dtype.kind not in "iu" or array.shape != (slices,):
        raise TraceError(
            f"steps_per_slice is {array.dtype} {list(array.shape)}, expected whole numbers [{slices}]"
        )
    bad = (array < 1) | (array > MOST_TOKENS)
    if bad.any():
        (at,) = _place(bad)
        raise TraceError(f"steps_per_slice[slice {at}] is {array[at]}, must be from 1 to {MOST_TOKENS}")
    return array.astype(np.int64)


def _checked_batch(batch: ArrayLike, slices: int) -> NDArray[np.float64]:
    array = real_array("batch_tokens", batch, TraceError)
    if array.shape != (slices,):
        raise TraceError(f"batch_tokens have shape {list(array.shape)}, expected [{slices}]")
    bad = ~np.isfinite(array) | (array <= 0)
    if bad.any():
        (at,) = _place(bad)
        raise TraceError(f"batch_tokens[slice {at}] is {array[at]}, must be finite and above 0")
    return array
