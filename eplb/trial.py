"""A plan on trial: what a map is worth on slices that the solver did not see, and which of its moves may not be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collectors.shares import even_shares
from eplb.price import ANY_PHASE
from eplb.rollback import mean_by_slice, standard_error
from eplb.thrash import without_returns
from placement import Placement, evaluate, improve_shares
from placement.layer import ordered_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.planner import PlanRequest
    from placement import LoadTrace, SharesChange, Topology

THRASH = "thrash"


@dataclass(frozen=True, slots=True)
class Judged:
    """A target beside the live map on slices that it was not made on.

    Ratios are means of max/mean; ``gain_error`` standard error over the slices of their mean fall; ``falls`` (phase, mean fall of the sum over layers of the
    costliest rank's tokens), phase -1 = unknown.
    """

    ratio_before: float
    ratio_after: float
    slices_held_out: int
    gain_error: float
    falls: tuple[tuple[int, float], ...]


def judge(request: PlanRequest, target: Placement, unseen: LoadTrace, topology: Topology) -> Judged:
    """What the target is worth beside the live map on the newest slices, which the solver did not see."""
    current = Placement(request.current, request.shares)
    before = evaluate(current, unseen, topology, dispatch=request.dispatch)
    after = evaluate(target, unseen, topology, dispatch=request.dispatch)
    gain = mean_by_slice(before.ratio) - mean_by_slice(after.ratio)
    fall = _busiest(before.rank_load) - _busiest(after.rank_load)
    return Judged(
        ratio_before=float(np.nanmean(before.ratio)),
        ratio_after=float(np.nanmean(after.ratio)),
        slices_held_out=unseen.slices,
        gain_error=standard_error(gain[np.isfinite(gain)]),
        falls=_by_phase(fall, request.phases),
    )


def shares_first(
    request: PlanRequest, seen: LoadTrace, unseen: LoadTrace, topology: Topology
) -> tuple[SharesChange, Judged] | None:
    """New shares for the live map, if they gain enough on the slices that they were not made on; no bytes move."""
    if request.dispatch != "weighted":
        return None
    change = improve_shares(Placement(request.current, request.shares), seen, topology)
    if not change.layers:
        return None
    found = judge(request, change.placement, unseen, topology)
    return (change, found) if found.ratio_before - found.ratio_after >= request.min_gain_shares else None


def _by_phase(fall: NDArray[np.float64], phases: NDArray[np.int8] | None) -> tuple[tuple[int, float], ...]:
    held_out = np.full(len(fall), ANY_PHASE, dtype=np.int8) if phases is None else phases[-len(fall) :]
    return tuple(
        (int(phase), ordered_sum(fall[held_out == phase]) / int((held_out == phase).sum()))
        for phase in np.unique(held_out)
    )


def without_thrash(request: PlanRequest, target: Placement) -> tuple[Placement, tuple[tuple[str, str], ...]]:
    """The target without layers that would bring an expert back to a rank that it left lately, and the reason."""
    rows = np.asarray(target.physical_to_logical, dtype=np.int32)
    kept, layers = without_returns(request.current, rows, request.barred, request.slots_per_rank)
    if not layers or target.shares is None:
        return target, ()
    shares = np.array(target.shares, dtype=np.float64)
    for layer in layers:
        shares[layer] = (
            even_shares(request.current[layer]) if request.shares is None else request.shares[layer]
        )
    sentence = f"{len(layers)} layers stay as they are, because experts would come back to ranks that they left lately"
    return Placement(kept, shares), ((THRASH, sentence),)


def _busiest(rank_load: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum over layers of the most loaded rank, float64 [slices]."""
    return np.asarray(np.cumsum(rank_load.max(axis=2), axis=1)[:, -1], dtype=np.float64)
