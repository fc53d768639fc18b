"""Waves: the parts of a plan that are moved and switched together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from eplb.errors import NeedsStaging
from eplb.migration.plan import remaining

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LayerChange
    from eplb.migration.plan import Plan


def waves(
    facts: PoolFacts,
    plan: Plan,
    live: NDArray[np.int32],
    digests: Sequence[int],
    *,
    staging_slots: int | None = None,
    bytes_per_rank: int | None = None,
    pace_bytes: int | None = None,
) -> list[tuple[LayerChange, ...]]:
    """Cut what is left of a plan, seen from the live map, int32 [layers, slots], and its digests, one a layer.

    A wave takes links in the plan's order, whole ones, several of one layer merged into one change, while they fit;
    what does not fit waits, and its layer with it. So each boundary is one of the chain's rows in every layer.
    ``staging_slots`` is the largest number of arrivals on one rank in a wave (None = one layer's slots);
    ``bytes_per_rank`` the largest number of bytes that arrive on one rank (None = no limit). ``pace_bytes`` is the same as a
    wish: a link that is larger by itself is a wave of its own.

    Raises:
        PlanStale: a layer serves a map that is nowhere in its chain.
        NeedsStaging: one link alone exceeds a limit.
    """
    limit = wave_slots(facts, staging_slots, bytes_per_rank)
    wish = min(limit, wave_slots(facts, limit, pace_bytes))
    left = _priced(facts, live, remaining(plan, digests))
    for change, arrivals in left:
        if arrivals.max() > limit:
            raise NeedsStaging(change.layer, int(arrivals.max()), limit)
    parts: list[tuple[LayerChange, ...]] = []
    while left:
        wave, left = _next_wave(facts, left, wish)
        parts.append(merged(wave))
    return parts


def merged(links: Sequence[LayerChange]) -> tuple[LayerChange, ...]:
    """Links in order as one change a layer, layers in the order in which they first come."""
    whole: dict[int, LayerChange] = {}
    for link in links:
        first = whole.get(link.layer)
        whole[link.layer] = link if first is None else replace(link, base_digest=first.base_digest)
    return tuple(whole.values())


def arrivals_by_rank(facts: PoolFacts, row: NDArray[np.int32], change: LayerChange) -> NDArray[np.int64]:
    """Slots of each rank that get another expert, copies within a rank included: int64 [ranks]."""
    target = np.array(change.target, dtype=np.int32)
    fresh = (target != row) & (target >= 0)
    return np.asarray(fresh.reshape(facts.ranks, facts.slots_per_rank).sum(axis=1), dtype=np.int64)


def wave_slots(facts: PoolFacts, staging_slots: int | None, bytes_per_rank: int | None) -> int:
    """Experts that one wave may bring to a rank under both limits; see :func:`waves`."""
    limit = facts.slots_per_rank if staging_slots is None else staging_slots
    if bytes_per_rank is not None and facts.bytes_per_expert > 0:
        limit = min(limit, bytes_per_rank // facts.bytes_per_expert)
    return limit


_Priced = list[tuple["LayerChange", "NDArray[np.int64]"]]


def _priced(facts: PoolFacts, live: NDArray[np.int32], links: Sequence[LayerChange]) -> _Priced:
    rows = dict(enumerate(live))
    priced: _Priced = []
    for link in links:
        priced.append((link, arrivals_by_rank(facts, rows[link.layer], link)))
        rows[link.layer] = np.array(link.target, dtype=np.int32)
    return priced


def _next_wave(facts: PoolFacts, left: _Priced, limit: int) -> tuple[list[LayerChange], _Priced]:
    filled = np.zeros(facts.ranks, dtype=np.int64)
    wave: list[LayerChange] = []
    rest: _Priced = []
    waiting: set[int] = set()
    for link, arrivals in left:
        if link.layer in waiting or (wave and int((filled + arrivals).max()) > limit):
            waiting.add(link.layer)
            rest.append((link, arrivals))
        else:
            wave.append(link)
            filled += arrivals
    return wave, rest
