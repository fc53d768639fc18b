"""Sampled steps: gathered rank by rank, proven by conservation, kept as maximum, sum and tokens by expert."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collectors.facts import Kind, Phase
from eplb.window.dispatch import SeenDispatch
from eplb.window.rekey import rekeyed

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from collectors.facts import FrameHeader, PoolFacts, StepSample
    from eplb.window.maps import MapRegistry
    from eplb.window.membership import Members

MAX_OPEN_STEPS = 256
ENDED_REMEMBERED = 4096
RUNS_REMEMBERED = 256
TIMES = ("step_us", "moe_wait_us", "a2a_us", "expert_us")

StepKey = tuple[int, int]
"""(run_id, group_step): samples of different runs never meet."""


@dataclass(slots=True)
class OpenStep:
    """A step that some ranks still owe: ``counts`` int64 [layers, slots], or [layers, experts] for ROUTED.

    ``live_digest`` of the samples; ``map_digest`` the live map to predict with (ROUTED) or to read slots with.
    """

    phase: Phase
    live_digest: int
    map_digest: int
    copies: int
    counts: NDArray[np.int64]
    seen: NDArray[np.bool_]
    time_sum_us: NDArray[np.float64]
    time_ranks: NDArray[np.int64]
    tokens: int = 0
    torn: bool = False
    newest_ms: int = 0


@dataclass(frozen=True, slots=True)
class StepRows:
    """Complete steps, oldest first.

    ``tokens`` int64 [steps, layers, experts]; ``load_max``, ``load_sum`` float64 [steps, layers], tokens by rank;
    ``group_steps``, ``batch_tokens`` int64 [steps]; ``run_ids`` uint64 [steps]; ``phases`` int8 [steps];
    ``times_us`` float64 [steps, 4] in the order of TIMES, mean over ranks, NaN = not measured;
    ``live_digests`` uint64 [steps]; ``done_ms`` int64 [steps], store time at which the last rank's frame came;
    ``run_orders`` int64 [steps], place of the step's run among the runs, the first one seen first.
    """

    tokens: NDArray[np.int64]
    load_max: NDArray[np.float64]
    load_sum: NDArray[np.float64]
    group_steps: NDArray[np.int64]
    batch_tokens: NDArray[np.int64]
    run_ids: NDArray[np.uint64]
    phases: NDArray[np.int8]
    times_us: NDArray[np.float64]
    live_digests: NDArray[np.uint64]
    done_ms: NDArray[np.int64]
    run_orders: NDArray[np.int64]


class StepRing:
    """The newest ``max_slices`` complete steps; never a series by rank. ``dispatch`` what all of the present run's tell of how the engine dispatches.

    ``ended(how, time_ms)`` is called once for each step that ended: ``complete``, ``incomplete``, ``misaligned`` or
    ``unknown_map``.
    """

    def __init__(
        self,
        facts: PoolFacts,
        kind: Kind,
        maps: MapRegistry,
        members: Members,
        *,
        max_slices: int,
        ended: Callable[[str, int], None],
    ) -> None:
        self._facts, self._kind, self._maps, self._size = facts, kind, maps, max_slices
        self._members = members
        self._ended = ended
        self._open: OrderedDict[StepKey, OpenStep] = OrderedDict()
        self._unread: OrderedDict[StepKey, OpenStep] = OrderedDict()
        self._done: OrderedDict[StepKey, None] = OrderedDict()
        self._runs: OrderedDict[int, int] = OrderedDict()
        self._runs_seen = 0
        self._stored = 0
        self.dispatch = SeenDispatch()
        layers, experts = facts.layers, facts.experts
        self._rows = StepRows(
            tokens=np.zeros((max_slices, layers, experts), dtype=np.int64),
            load_max=np.zeros((max_slices, layers)),
            load_sum=np.zeros((max_slices, layers)),
            group_steps=np.zeros(max_slices, dtype=np.int64),
            batch_tokens=np.zeros(max_slices, dtype=np.int64),
            run_ids=np.zeros(max_slices, dtype=np.uint64),
            phases=np.zeros(max_slices, dtype=np.int8),
            times_us=np.zeros((max_slices, len(TIMES))),
            live_digests=np.zeros(max_slices, dtype=np.uint64),
            done_ms=np.zeros(max_slices, dtype=np.int64),
            run_orders=np.zeros(max_slices, dtype=np.int64),
        )

    def add(self, header: FrameHeader, sample: StepSample, time_ms: int) -> bool:
        """Take one rank's sample of one step; False = it was had before."""
        key = (header.run_id, sample.group_step)
        if key in self._done or key in self._unread:
            return False
        step = self._open.get(key)
        if step is None:
            step = self._open[key] = self._begin(header, sample)
        if step.seen[header.rank]:
            return False
        step.seen[header.rank] = True
        step.newest_ms = max(step.newest_ms, time_ms)
        step.torn = step.torn or step.live_digest != sample.live_digest
        if sample.tokens:
            # An idle rank has no phase of its own, and ranks in different phases make a mixed step.
            step.phase = sample.phase if not step.tokens or step.phase is sample.phase else Phase.MIXED
        step.tokens += sample.tokens
        step.counts[:, self._columns(header.rank)] += sample.counts
        _add_times(step, sample)
        if self._told(key, step):
            del self._open[key]
            self._close(key, step)
        elif len(self._open) > MAX_OPEN_STEPS:
            self._give_up(next(iter(self._open)))
        return True

    def expire(self, open_before_ms: int, unread_before_ms: int) -> None:
        """Give up steps whose newest sample is older: those that ranks still owe, and those that wait for their map."""
        for key in [key for key, step in self._open.items() if step.newest_ms < open_before_ms]:
            self._give_up(key)
        for key in [key for key, step in self._unread.items() if step.newest_ms < unread_before_ms]:
            self._end(key, "unknown_map", self._unread.pop(key).newest_ms)

    def close_again(self) -> None:
        """Close steps that only ranks outside their life still owed, after the members of a life became known."""
        for key in [key for key, step in self._open.items() if self._told(key, step)]:
            self._close(key, self._open.pop(key))

    def read_again(self) -> None:
        """Read complete steps that waited for their map, after a map became known."""
        for key in list(self._unread):
            self._store(key, self._unread.pop(key))

    def rows(self, oldest_ms: int, phase: Phase | None = None) -> StepRows:
        """Copies of the complete steps since ``oldest_ms``, of one phase or of all, in the order of the group's steps."""
        rows, held = self._rows, min(self._stored, self._size)
        keep = rows.done_ms[:held] >= oldest_ms
        if phase is not None:
            keep &= rows.phases[:held] == int(phase)
        places = np.flatnonzero(keep)
        order = places[np.lexsort((rows.group_steps[places], rows.run_orders[places]))]
        return StepRows(*(getattr(rows, name)[order] for name in StepRows.__slots__))

    def adopt(self, rows: StepRows, layers: NDArray[np.int64]) -> None:
        """Take over the tokens of complete steps of another topology; their loads by rank mean nothing here.

        ``layers`` int64 [layers]: place of each of our layers among theirs, -1 = they have none.
        """
        for place in range(max(0, len(rows.group_steps) - self._size), len(rows.group_steps)):
            at = self._stored % self._size
            for name in StepRows.__slots__:
                if name not in ("tokens", "load_max", "load_sum"):
                    getattr(self._rows, name)[at] = getattr(rows, name)[place]
            self._rows.tokens[at] = rekeyed(rows.tokens[place], layers)
            self._rows.load_max[at] = self._rows.load_sum[at] = np.nan
            self._rows.run_orders[at] = self._run_order(int(rows.run_ids[place]))
            self._stored += 1

    # --- one step -------------------------------------------------------------------------------------------------

    def _told(self, key: StepKey, step: OpenStep) -> bool:
        return bool(step.seen[self._members.of(key[0])].all())

    def _begin(self, header: FrameHeader, sample: StepSample) -> OpenStep:
        facts = self._facts
        width = facts.experts if self._kind is Kind.ROUTED else facts.slots
        return OpenStep(
            phase=sample.phase,
            live_digest=sample.live_digest,
            map_digest=header.live_digest if self._kind is Kind.ROUTED else sample.live_digest,
            copies=header.scope_copies,
            counts=np.zeros((facts.layers, width), dtype=np.int64),
            seen=np.zeros(facts.ranks, dtype=np.bool_),
            time_sum_us=np.zeros(len(TIMES)),
            time_ranks=np.zeros(len(TIMES), dtype=np.int64),
        )

    def _columns(self, rank: int) -> slice:
        if self._kind is not Kind.RECEIVED_SLOTS:
            return slice(None)
        first = rank * self._facts.slots_per_rank
        return slice(first, first + self._facts.slots_per_rank)

    def _close(self, key: StepKey, step: OpenStep) -> None:
        whole = step.copies == 1 or not (step.counts % step.copies).any()
        pairs = step.tokens * self._facts.top_k
        if step.torn or not whole or any(total != pairs for total in step.counts.sum(axis=1).tolist()):
            self._end(key, "misaligned", step.newest_ms)
            return
        step.counts //= step.copies
        step.tokens //= step.copies
        self._store(key, step)

    def _store(self, key: StepKey, step: OpenStep) -> None:
        """Keep a proven step, or let it wait while the map of its slots is not known."""
        digests = self._maps.whole(step.map_digest)
        index = None if digests is None or self._kind is Kind.ROUTED else self._maps.index(digests)
        if self._kind is not Kind.ROUTED and index is None:
            self._wait(key, step)
            return
        tokens = step.counts if index is None else self._maps.to_logical(index, step.counts)
        if index is not None and digests is not None:
            self._see_dispatch(key[0], digests, index, step.counts, tokens)
        load = self._rank_load(step, digests)
        rows, at = self._rows, self._stored % self._size
        rows.tokens[at] = tokens
        rows.load_max[at] = np.nan if load is None else load.max(axis=1)
        rows.load_sum[at] = np.nan if load is None else load.sum(axis=1)
        rows.group_steps[at] = key[1]
        rows.run_ids[at] = key[0]
        rows.run_orders[at] = self._run_order(key[0])
        rows.batch_tokens[at] = step.tokens
        rows.phases[at] = int(step.phase)
        rows.times_us[at] = _means(step)
        rows.live_digests[at] = step.map_digest
        rows.done_ms[at] = step.newest_ms
        self._stored += 1
        self._end(key, "complete", step.newest_ms)

    def _see_dispatch(
        self,
        run_id: int,
        digests: NDArray[np.uint64],
        index: NDArray[np.int64],
        counts: NDArray[np.int64],
        tokens: NDArray[np.int64],
    ) -> None:
        tilt = self._maps.tilt(digests)
        if tilt is not None and tilt.any():
            self.dispatch.note(self._run_order(run_id), tilt, counts, np.append(tokens.ravel(), 0)[index])

    def _rank_load(self, step: OpenStep, digests: NDArray[np.uint64] | None) -> NDArray[np.float64] | None:
        facts = self._facts
        if self._kind is not Kind.ROUTED:
            shape = (facts.layers, facts.ranks, facts.slots_per_rank)
            by_rank: NDArray[np.int64] = step.counts.reshape(shape).sum(axis=2)
            return by_rank.astype(np.float64)
        live = self._maps.newest if digests is None else digests
        return None if live is None else self._maps.predicted_load(live, step.counts)

    def _run_order(self, run_id: int) -> int:
        if run_id not in self._runs:
            self._runs[run_id] = self._runs_seen
            self._runs_seen += 1
            if len(self._runs) > RUNS_REMEMBERED:
                self._runs.popitem(last=False)
        return self._runs[run_id]

    def _wait(self, key: StepKey, step: OpenStep) -> None:
        self._unread[key] = step
        if len(self._unread) > MAX_OPEN_STEPS:
            oldest, lost = self._unread.popitem(last=False)
            self._end(oldest, "unknown_map", lost.newest_ms)

    def _give_up(self, key: StepKey) -> None:
        self._end(key, "incomplete", self._open.pop(key).newest_ms)

    def _end(self, key: StepKey, how: str, time_ms: int) -> None:
        self._done[key] = None
        if len(self._done) > ENDED_REMEMBERED:
            self._done.popitem(last=False)
        self._ended(how, time_ms)


def _add_times(step: OpenStep, sample: StepSample) -> None:
    for place, name in enumerate(TIMES):
        value = getattr(sample, name)
        if value is not None:
            step.time_sum_us[place] += value
            step.time_ranks[place] += 1


def _means(step: OpenStep) -> NDArray[np.float64]:
    ranks = np.where(step.time_ranks > 0, step.time_ranks, 1)
    return np.where(step.time_ranks > 0, step.time_sum_us / ranks, np.nan)
