"""Turn what the window holds into what it shows; nothing here changes anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collectors.facts import Kind, Phase, PoolFacts
from eplb.window.intervals import Interval, Intervals, PhaseSums, chosen
from eplb.window.steps import TIMES, StepRows
from eplb.window.view import WindowView

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.window.maps import MapRegistry
    from eplb.window.membership import Members

GAPS_PER_SLICE = 10
"""An interval slice spans so many gaps between frames, so that one frame more or less of a rank is 10 % of it."""
NO_PHASE = -1


@dataclass(frozen=True, slots=True)
class Reading:
    """All that a view is computed from; ``rows`` are of all phases, None = no sample yet."""

    facts: PoolFacts
    kind: Kind | None
    phase: Phase | None
    now_ms: int
    oldest_ms: int
    stale_ms: int
    sampled: bool
    rows: StepRows | None
    intervals: Intervals
    gap_ms: int
    maps: MapRegistry
    members: Members
    seen_ms: NDArray[np.int64]
    expected_from_ms: NDArray[np.int64]
    stride: int
    live_digest: int
    term_seen: int
    copies: int
    counters: dict[str, int]
    shares_followed: float


def read(reading: Reading) -> WindowView:
    """The view of one phase or of all."""
    all_rows = reading.rows if reading.rows is not None and reading.sampled else _interval_rows(reading)
    rows = _of_phase(all_rows, reading.phase)
    total = reading.intervals.total(reading.phase)
    present = reading.members.present
    seen = present & (reading.seen_ms >= max(0, reading.oldest_ms))
    expected = present & (seen | (reading.expected_from_ms <= reading.now_ms))
    stale = np.flatnonzero(expected & (reading.seen_ms < max(0, reading.now_ms - reading.stale_ms)))
    times = _mean_times(rows.times_us)
    return WindowView(
        time_ms=reading.now_ms,
        tokens=rows.tokens,
        group_steps=rows.group_steps,
        run_ids=rows.run_ids,
        live_digests=rows.live_digests,
        phases=rows.phases,
        batch_tokens=rows.batch_tokens,
        step_us_by_slice=rows.times_us[:, 0],
        ratio=_ratio(rows, reading.members.counts(rows.run_ids)),
        rank_load=_rank_load(reading, total),
        quality=_quality(reading, all_rows),
        ranks_expected=int(expected.sum()),
        ranks_seen=int(seen.sum()),
        coverage=float(seen.sum() / max(1, expected.sum())),
        stale_ranks=tuple(stale.tolist()),
        newest_age_s=(reading.now_ms - int(rows.done_ms.max())) / 1000 if len(rows.done_ms) else None,
        complete_steps=reading.intervals.steps("complete"),
        incomplete_steps=reading.intervals.steps("incomplete"),
        misaligned_steps=reading.intervals.steps("misaligned"),
        steps=round(total.rank_steps / max(1, int(seen.sum()))),
        total_tokens=total.tokens // reading.copies,
        counters=reading.counters,
        step_us=times[0],
        moe_wait_us=times[1],
        a2a_us=times[2],
        expert_us=times[3],
        live_digest=_newest_digest(all_rows) or reading.live_digest,
        term_seen=reading.term_seen,
        scope_copies=reading.copies,
        members=tuple(np.flatnonzero(present).tolist()),
        same_members=reading.members.same(rows.run_ids),
        shares_followed=reading.shares_followed,
        span_s=(reading.now_ms - max(reading.oldest_ms, reading.intervals.first_ms(reading.now_ms))) / 1000,
    )


def _newest_digest(rows: StepRows) -> int:
    return int(rows.live_digests[-1]) if len(rows.live_digests) else 0


def _of_phase(rows: StepRows, phase: Phase | None) -> StepRows:
    if phase is None:
        return rows
    keep = (rows.phases == int(phase)) | (rows.phases == NO_PHASE)
    return StepRows(*(getattr(rows, name)[keep] for name in StepRows.__slots__))


def _ratio(rows: StepRows, members: NDArray[np.int64]) -> NDArray[np.float64]:
    """Maximum / mean over the members of each slice's life, int64 [slices]; a layer without load has no ratio."""
    loaded = rows.load_sum > 0
    return np.where(
        loaded, rows.load_max * members[:, np.newaxis] / np.where(loaded, rows.load_sum, 1.0), np.nan
    )


def _rank_load(reading: Reading, total: PhaseSums) -> NDArray[np.float64]:
    if reading.kind is not Kind.ROUTED:
        return total.rank_load / reading.copies
    load = _predicted(reading, total.logical)
    if load is None:
        return np.full(total.rank_load.shape, np.nan)
    return load / reading.copies


def _predicted(reading: Reading, logical: NDArray[np.int64]) -> NDArray[np.float64] | None:
    live = reading.maps.newest
    return None if live is None else reading.maps.predicted_load(live, logical)


def _quality(reading: Reading, rows: StepRows) -> str:
    if reading.kind is Kind.ROUTED or not (reading.sampled and reading.rows is not None):
        return "predicted"
    newest_run = rows.run_orders == (rows.run_orders.max() if len(rows.run_orders) else 0)
    steps = rows.group_steps[newest_run]
    span = int(steps[-1] - steps[0]) + 1 if len(steps) else 0
    if reading.stride == 1 and span == len(steps):
        return "exact"
    return f"sampled 1/{max(reading.stride, round(span / max(1, len(steps))), 1)}"


def _mean_times(times_us: NDArray[np.float64]) -> tuple[float | None, ...]:
    measured = ~np.isnan(times_us)
    return tuple(
        float(times_us[measured[:, place], place].mean()) if measured[:, place].any() else None
        for place in range(len(TIMES))
    )


# --- interval slices ----------------------------------------------------------------------------------------------


def _interval_rows(reading: Reading) -> StepRows:
    """Slices of time for counts without step samples, oldest first; already of the phase that was asked for."""
    per_slice = max(1, -(-GAPS_PER_SLICE * reading.gap_ms // reading.intervals.length_ms))
    intervals = [interval for interval in reading.intervals if chosen(interval, reading.phase)]
    start = len(intervals) % per_slice if len(intervals) > per_slice else 0
    groups = [intervals[at : at + per_slice] for at in range(start, len(intervals), per_slice)]
    slices = [_merged(group, reading.phase) for group in groups]
    facts, count = reading.facts, len(groups)
    load_max, load_sum = np.full((2, count, facts.layers), np.nan)
    tokens = np.zeros((count, facts.layers, facts.experts), dtype=np.int64)
    for place, sums in enumerate(slices):
        tokens[place] = (sums.logical + reading.copies // 2) // reading.copies
        load = _rank_load(reading, sums)
        load_max[place], load_sum[place] = load.max(axis=1), load.sum(axis=1)
    return StepRows(
        tokens=tokens,
        load_max=load_max,
        load_sum=load_sum,
        group_steps=np.array([max(i.group_step for i in group) for group in groups], dtype=np.int64),
        batch_tokens=np.array([sums.tokens // reading.copies for sums in slices], dtype=np.int64),
        run_ids=np.zeros(count, dtype=np.uint64),
        live_digests=np.zeros(count, dtype=np.uint64),
        phases=np.full(count, NO_PHASE if reading.phase is None else int(reading.phase), dtype=np.int8),
        times_us=np.full((count, len(TIMES)), np.nan),
        done_ms=np.array([group[-1].newest_ms for group in groups], dtype=np.int64),
        run_orders=np.zeros(count, dtype=np.int64),
    )


def _merged(group: list[Interval], phase: Phase | None) -> PhaseSums:
    parts = [sums for interval in group for sums in chosen(interval, phase)]
    return PhaseSums(
        logical=np.sum([sums.logical for sums in parts], axis=0),
        rank_load=np.sum([sums.rank_load for sums in parts], axis=0),
        tokens=sum(sums.tokens for sums in parts),
        rank_steps=sum(sums.rank_steps for sums in parts),
    )
