"""Sampled routes: which experts one token went to together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placement.checks import raw_array
from placement.errors import TraceError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

NO_PICK = -1
"""Id of a place in a token's set that holds no expert (a dropped token, a layer without routes)."""

MOST_EXPERTS = 2**15
"""Ids of sampled experts stay below this, so that they fit int16 and leave room for ``NO_PICK``."""

HELD_OUT_EVERY = 4
"""One request of so many is kept from the planning and only scored."""


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Routes:
    """The experts that sampled tokens selected in every layer, and the request that each token belongs to.

    ``experts``: int16 [samples, layers, top_k], logical experts, -1 = no pick; no expert twice in a set (read-only copy).
    ``requests``: int64 [samples], id of the request (sequence) of each sample. Tokens of one request resemble each other,
    so routes are held out by request, never by token.
    ``sources``: int64 [samples] or None, rank on which each token started; None = unknown.

    Raises:
        TraceError: a shape, a type or an id does not fit, or a set names an expert twice.
    """

    experts: NDArray[np.int16]
    requests: NDArray[np.int64]
    sources: NDArray[np.int64] | None

    def __init__(self, experts: ArrayLike, requests: ArrayLike, sources: ArrayLike | None = None) -> None:
        sets = _checked_sets(raw_array("routes", experts, TraceError))
        object.__setattr__(self, "experts", sets)
        object.__setattr__(self, "requests", _checked_ids("requests", requests, len(sets)))
        known = None if sources is None else _checked_ids("sources", sources, len(sets))
        if known is not None and (known < 0).any():
            at = int(np.argmax(known < 0))
            raise TraceError(f"sources[sample {at}] is {known[at]}, must be a rank, 0 or more")
        object.__setattr__(self, "sources", known)

    @property
    def samples(self) -> int:
        """Number of sampled tokens."""
        return int(self.experts.shape[0])

    @property
    def layers(self) -> int:
        """Number of MoE layers."""
        return int(self.experts.shape[1])

    @property
    def top_k(self) -> int:
        """Places in every set."""
        return int(self.experts.shape[2])

    def part(self, keep: NDArray[np.bool_]) -> Routes:
        """The samples for which ``keep`` (bool [samples]) is true.

        Raises:
            TraceError: no sample remains.
        """
        sources = None if self.sources is None else self.sources[keep]
        return Routes(self.experts[keep], self.requests[keep], sources)

    def held_out(self) -> tuple[Routes, Routes]:
        """Split by request into (to plan with, to score with): every fourth request, in rising id, is only scored.

        Raises:
            TraceError: all samples belong to one request, so that nothing can be held out.
        """
        ids, number = np.unique(self.requests, return_inverse=True)
        if len(ids) < 2:
            raise TraceError(
                f"all {self.samples} routes belong to request {ids[0]}: at least 2 requests are needed to hold one out"
            )
        # The last of each block of four, or the last of all when there are fewer.
        kept = number % HELD_OUT_EVERY == min(HELD_OUT_EVERY, len(ids)) - 1
        return self.part(~kept), self.part(kept)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def _checked_ids(name: str, ids: ArrayLike, samples: int) -> NDArray[np.int64]:
    array = raw_array(name, ids, TraceError)
    if array.dtype.kind not in "iu" or array.shape != (samples,):
        raise TraceError(
            f"{name} is {array.dtype} {list(array.shape)}, expected whole numbers [{samples}], one for every sample"
        )
    if array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise TraceError(f"{name} has {array.max()}, above int64")
    return _frozen(array.astype(np.int64))


def _checked_sets(raw: NDArray[Any]) -> NDArray[np.int16]:
    if raw.ndim != 3 or 0 in raw.shape:
        raise TraceError(
            f"routes have shape {list(raw.shape)}, expected [samples, layers, top_k] with at least 1 each"
        )
    if raw.dtype.kind not in "iu":
        raise TraceError(f"routes have type {raw.dtype}, expected whole numbers")
    bad = (raw < NO_PICK) | (raw >= MOST_EXPERTS)
    if bad.any():
        sample, layer, place = (int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
        raise TraceError(
            f"routes[sample {sample}, layer {layer}, place {place}] is {raw[sample, layer, place]}, "
            f"must be an expert below {MOST_EXPERTS}, or {NO_PICK} for no pick"
        )
    sets = np.array(raw, dtype=np.int16, order="C")
    ordered = np.sort(sets, axis=2)
    twice = ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] != NO_PICK)).any(axis=2)
    if twice.any():
        sample, layer = (int(i) for i in np.unravel_index(int(np.argmax(twice)), twice.shape))
        raise TraceError(
            f"routes[sample {sample}, layer {layer}] names an expert twice: {sets[sample, layer].tolist()}"
        )
    return _frozen(sets)
