"""From a view of the window to what the gate and the metrics need to know."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.hot_experts import HotExpert, hot_set_drift, hottest, least_ratio
from eplb.noise import noise_floor
from eplb.snapshot import PhaseReading

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.window import WindowView

TOP_RANKS = 8


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the gate knows about the window, restricted to slices served by the map that is live now.

    ``excess`` and ``recoverable_excess``: means over slices and layers. ``recent_recoverable``: the *smallest* recoverable
    excess, mean over layers, of the newest slices that the trigger looks at, so that all of them must exceed it.
    ``ratio_by_layer``: float64 [layers], NaN = no load. ``fixable_excess``: mean of the ratio minus the least that any map with these slots could show,
    sampling noise included. ``hot_expert`` the one that binds most. ``drift``: share of the load of the hottest experts now that those do not carry which
    were hottest when the last plan was made, NaN = no such plan is known. ``full``: the window keeps no more slices than these. ``shares_followed`` how far tokens go where shares say, 1 = wholly, 0 = not at all; NaN = not
    known, or dispatch is not weighted.
    """

    ranks_expected: int
    ranks_seen: int
    missing_ranks: tuple[int, ...]
    coverage: float
    slices: int
    tokens: int
    misaligned_share: float
    excess: float
    recoverable_excess: float
    recent_recoverable: float
    ratio_by_layer: NDArray[np.float64]
    fixable_excess: float = math.inf
    hot_expert: HotExpert | None = None
    drift: float = math.nan
    full: bool = False
    shares_followed: float = math.nan


def assess(
    view: WindowView,
    facts: PoolFacts,
    *,
    live_digest: int,
    trigger_slices: int,
    planned_tokens: NDArray[np.int64] | None = None,
    max_slices: int | None = None,
    dispatch: str = "even",
) -> Assessment:
    """What the gate is to know, from slices that were served by the live map alone.

    ``live_digest`` 0 = unknown, then all slices count. Intervals carry no digest and always count. ``planned_tokens``: int64 [layers, experts], what the
    last plan was made on, summed; None = unknown. ``max_slices`` that the window keeps, None = unknown. ``dispatch`` as the configuration has it.
    """
    keep, serving = served_by(view, live_digest), len(view.members)
    ratio, tokens, floor = view.ratio[keep], view.tokens[keep], _floor(view, facts)[keep]
    recoverable = ratio - 1.0 - floor
    recent = _mean_by_slice(recoverable)[-trigger_slices:]
    return Assessment(
        ranks_expected=view.ranks_expected,
        ranks_seen=view.ranks_seen,
        missing_ranks=view.stale_ranks,
        coverage=view.coverage,
        slices=int(keep.sum()),
        tokens=int(view.batch_tokens[keep].sum()),
        misaligned_share=view.misaligned_share,
        excess=_mean(ratio) - 1.0,
        recoverable_excess=_mean(recoverable),
        recent_recoverable=float(recent.min()) if recent.size else math.nan,
        ratio_by_layer=_mean_by_layer(ratio),
        fixable_excess=_mean(ratio - np.maximum(1.0 + floor, least_ratio(tokens, facts, serving))),
        hot_expert=hottest(tokens, facts, serving),
        drift=_drift(tokens, facts, planned_tokens, trigger_slices),
        full=max_slices is not None and int(keep.sum()) >= max_slices,
        shares_followed=view.shares_followed if dispatch == "weighted" else math.nan,
    )


def _drift(
    tokens: NDArray[np.int64], facts: PoolFacts, planned: NDArray[np.int64] | None, trigger_slices: int
) -> float:
    """Of the newest quarter of the slices: fewer would be noise, all of them would answer late."""
    newest = len(tokens) // 4
    if planned is None or newest < trigger_slices:
        return math.nan
    return hot_set_drift(planned, tokens[-newest:].sum(axis=0), facts.ranks)


def read_phase(view: WindowView, facts: PoolFacts, phase: str, *, live_digest: int) -> PhaseReading:
    """What metrics, API and table show about one phase; ratios are those of slices served by the live map."""
    keep = served_by(view, live_digest)
    ratio = view.ratio[keep]
    floor = _floor(view, facts)[keep]
    excess = _mean(ratio) - 1.0
    load = view.rank_load / _positive(view.rank_load[:, view.members].mean(axis=1, keepdims=True))
    by_node = view.rank_load.sum(axis=0).reshape(facts.nodes, -1) / max(view.steps, 1)
    return PhaseReading(
        phase=phase,
        quality=view.quality,
        slices=int(keep.sum()),
        steps=view.steps,
        tokens=view.total_tokens,
        ratio_by_layer=_mean_by_layer(ratio),
        excess=excess,
        noise_floor=_mean(floor),
        recoverable_excess=_mean(ratio - 1.0 - floor),
        waste_share=_mean(1.0 - 1.0 / ratio),
        node_max_tokens=by_node.max(axis=1),
        node_mean_tokens=by_node.mean(axis=1),
        top_ranks=_top_ranks(view.rank_load.sum(axis=0), view.members),
        layer_rank_load=load,
        step_us=view.step_us,
        moe_wait_us=view.moe_wait_us,
        a2a_us=view.a2a_us,
        expert_us=view.expert_us,
        batch_tokens=float(view.batch_tokens.mean()) if view.slices else None,
    )


def served_by(view: WindowView, live_digest: int) -> NDArray[np.bool_]:
    """Which slices the live map served on the ranks that serve now: bool [slices]; whatever map where no digest is known."""
    if live_digest == 0:
        return view.same_members.copy()
    return view.same_members & np.isin(view.live_digests, np.array([0, live_digest], dtype=np.uint64))


def balanced_ratio(
    view: WindowView, facts: PoolFacts, keep: NDArray[np.bool_], target_excess: float
) -> float:
    """Mean ratio at which a map counts as balanced on these slices: bool [slices]; sampling noise and ``target_excess`` above 1."""
    return 1.0 + target_excess + _mean(_floor(view, facts)[keep])


def _floor(view: WindowView, facts: PoolFacts) -> NDArray[np.float64]:
    members = len(view.members)
    per_rank = view.tokens.sum(axis=2) / members
    return noise_floor(per_rank, members, facts.experts, facts.top_k)


def _positive(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(values > 0.0, values, np.nan)


def _mean(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan


def _mean_by_layer(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([_mean(column) for column in values.T], dtype=np.float64)


def _mean_by_slice(values: NDArray[np.float64]) -> NDArray[np.float64]:
    means = np.array([_mean(row) for row in values], dtype=np.float64)
    return means[np.isfinite(means)]


def _top_ranks(load: NDArray[np.float64], members: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
    """Lost ranks take no tokens: the mean is over those that serve."""
    serving = load[list(members)]
    mean = float(np.nanmean(serving)) if np.isfinite(serving).any() else 0.0
    if mean <= 0.0:
        return ()
    order = np.argsort(-np.nan_to_num(load), kind="stable")[:TOP_RANKS]
    return tuple((int(rank), float(load[rank] / mean)) for rank in order)
