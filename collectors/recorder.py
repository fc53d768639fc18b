"""The recorder: running totals, rows closed by a switch of map, and step samples of one rank.

The engine's thread records; another thread takes snapshots. Recording never waits: while a snapshot copies the totals,
steps are put aside (at most PENDING_STEPS) and added by whoever holds the lock next. Nothing here raises into the
engine: what cannot be counted is refused and counted by a named reason.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from collectors.checks import (
    Refusal,
    checked_time,
    digests_refusal,
    layers_refusal,
    run_refusal,
    step_refusal,
)
from collectors.counters import Counters, frozen_copy
from collectors.digests import live_map_digest
from collectors.errors import CollectorError, FactsError
from collectors.facts import (
    NO_MAP_DIGEST,
    Frame,
    FrameHeader,
    Kind,
    Phase,
    PoolFacts,
    StepSample,
)
from collectors.frame import MAX_FRAME_BYTES
from collectors.samples import SampleRing
from collectors.step import Step, checked_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

PENDING_STEPS = 64
"""Steps put aside while a snapshot copies; more are refused as ``busy``."""
_SAMPLE_BYTES = MAX_FRAME_BYTES // 2
"""Samples may fill half of a frame, so that totals and closed rows always fit."""
_CLOSED_BYTES = MAX_FRAME_BYTES // 4


class Recorder:
    """Counts the tokens of one rank of one pool.

    One thread records (``record_step``, ``skip_step``, ``switch``, ...), any other may call ``snapshot``. Counting
    starts with ``register``: what comes earlier is warm-up and is refused.

    ``refused`` counts refusals by reason, ``last_refusal`` is the newest one's sentence. Reasons: those of
    ``collectors.checks``, and ``not_registered``, ``busy``, ``bad_digests``, ``bad_run``, ``bad_layer``,
    ``total_overflow``, ``internal``.

    Raises:
        FactsError: rank outside the pool, or a number that is not positive.
    """

    def __init__(
        self,
        facts: PoolFacts,
        rank: int,
        kind: Kind,
        *,
        scope_copies: int = 1,
        stride: int = 1,
        incarnation: int | None = None,
        layer_digests: NDArray[np.uint64] | None = None,
        sample_capacity: int = 64,
        closed_keep_frames: int = 30,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.facts = facts
        self.rank = rank
        self.kind = Kind(kind)
        self.scope_copies = scope_copies
        self.incarnation = secrets.randbits(62) + 1 if incarnation is None else incarnation
        self.refused: Counter[str] = Counter()
        self.last_refusal = ""
        self._check_facts(stride, sample_capacity, closed_keep_frames)
        self._shape = (facts.layers, facts.width(self.kind))
        self._counters = Counters(
            self._shape, closed_keep_frames, max(1, _CLOSED_BYTES // (self._shape[1] * 8))
        )
        self._dropped: Counter[str] = Counter()
        self._stride = stride
        self._samples = SampleRing(sample_capacity, self._shape[0] * self._shape[1] * 8, _SAMPLE_BYTES)
        self._pending: deque[Step] = deque()
        self._lock = threading.Lock()
        self._no_counts = np.zeros(self._shape, dtype=np.int64)
        self._no_counts.flags.writeable = False
        self._map_digests = np.full(facts.layers, NO_MAP_DIGEST, dtype=np.uint64)
        self._live_digest = NO_MAP_DIGEST
        self._in_flight: frozenset[int] = frozenset()
        self._registered = False
        self._run_id = 0
        self._added_step = -1
        self._accepted_step = -1
        self._seq = 0
        self._largest_possible = 0
        self._clock = clock
        self._born_s = clock()
        if layer_digests is not None:
            self._set_digests(np.asarray(layer_digests, dtype=np.uint64))

    def _check_facts(self, stride: int, sample_capacity: int, closed_keep_frames: int) -> None:
        numbers = {
            "scope_copies": self.scope_copies,
            "stride": stride,
            "sample_capacity": sample_capacity,
            "closed_keep_frames": closed_keep_frames,
            "incarnation": self.incarnation,
        }
        for name, value in numbers.items():
            if value < 1:
                raise FactsError(f"pool {self.facts.pool!r}: {name} is {value}, must be at least 1")
        if not 0 <= self.rank < self.facts.ranks:
            raise FactsError(f"pool {self.facts.pool!r}: rank {self.rank} of {self.facts.ranks} ranks")

    @property
    def registered(self) -> bool:
        """Whether the group has given this rank its run_id, so that counts have a meaning."""
        return self._registered

    @property
    def sample_capacity(self) -> int:
        """Most step samples held between two frames."""
        return self._samples.capacity

    @property
    def stride(self) -> int:
        """Steps between step samples."""
        return self._stride

    @stride.setter
    def stride(self, steps: int) -> None:
        self._stride = max(1, int(steps))

    @property
    def dropped(self) -> dict[str, int]:
        """What was left out on purpose, by reason.

        ``rows_in_flight``, ``samples_in_flight``; ``samples_full`` (ring full, the oldest went), ``samples_old_run``;
        ``closed_full`` (closed rows that went before they were repeated often enough).
        """
        lost = {"samples_full": self._samples.lost, "closed_full": self._counters.closed_lost}
        counts = {**self._dropped, **lost}
        return {reason: count for reason, count in counts.items() if count}

    @property
    def group_step(self) -> int:
        """The last step that was accepted, -1 before the first."""
        return self._accepted_step

    def register(self, run_id: int, group_step: int, layer_digests: NDArray[np.uint64] | None = None) -> bool:
        """Begin a run of the group: steps after group_step count, under these map digests, uint64 [layers].

        The values come from rank 0 of the group. Samples of an earlier run are dropped: they can never meet these.
        Gives whether they were accepted; refused values leave everything as it was.
        """
        return self._guarded(lambda: self._register(run_id, group_step, layer_digests))

    def _register(self, run_id: int, group_step: int, layer_digests: NDArray[np.uint64] | None) -> bool:
        digests = self._map_digests if layer_digests is None else np.array(layer_digests, dtype=np.uint64)
        run_id, group_step = int(run_id), int(group_step)
        by_slot = self.kind is not Kind.ROUTED
        refusal = run_refusal(run_id, group_step) or digests_refusal(
            digests, self.facts.layers, by_slot=by_slot
        )
        if refusal is not None:
            return self._refuse(refusal)
        with self._lock:
            self._add_pending()
            changed = np.flatnonzero(digests != self._map_digests)
            self._close_rows({int(layer): int(digests[layer]) for layer in changed})
            self._set_digests(digests)
            self._dropped["samples_old_run"] += len(self._samples.take())
            self._in_flight = frozenset()
            self._run_id = run_id
            self._added_step = self._accepted_step = group_step
            self._registered = True
        return True

    def record_step(
        self,
        group_step: int,
        phase: Phase,
        counts: Any,
        tokens: int,
        *,
        step_us: float | None = None,
        moe_wait_us: float | None = None,
        a2a_us: float | None = None,
        expert_us: float | None = None,
    ) -> None:
        """Add one forward: counts [layers, width] tokens in the ids of the kind, tokens that this rank routed.

        Times are microseconds, None = not measured. The counts may be reused by the caller afterwards.
        """

        def record() -> bool:
            refusal = self._not_ready()
            if refusal is not None:
                return self._refuse(refusal)
            given = {"group_step": group_step, "phase": phase, "counts": counts, "tokens": tokens}
            step = checked_step(self.facts, self.kind, self._accepted_step, **given)
            if isinstance(step, Refusal):
                return self._refuse(step)
            waits_us = (self._time(moe_wait_us), self._time(a2a_us), self._time(expert_us))
            return self._accept(replace(step, times_us=(self._time(step_us), *waits_us)))

        self._guarded(record)

    def skip_step(self, group_step: int, phase: Phase = Phase.MIXED) -> None:
        """Advance over a forward in which this rank routed nothing; phase is what the step was for the group.

        For ``routed`` and ``routed_slots`` a sampled step still gets a sample of zeros, because an idle rank is seen,
        not missing. For ``received_slots`` an idle rank may still have received tokens: record them with tokens=0.
        """

        def skip() -> bool:
            refusal = self._not_ready() or step_refusal(group_step, phase, 0, self._accepted_step)
            if refusal is not None:
                return self._refuse(refusal)
            return self._accept(Step(int(group_step), Phase(phase), 0, self._no_counts, idle=True))

        self._guarded(skip)

    def begin_flight(self, layers: Sequence[int]) -> None:
        """Mark layers as between two maps: their counts in physical ids are dropped until ``end_flight``."""
        self._guarded(lambda: self._set_flight(frozenset(layers), begins=True))

    def end_flight(self, layers: Sequence[int]) -> None:
        """Mark layers as serving one map again."""
        self._guarded(lambda: self._set_flight(frozenset(layers), begins=False))

    def switch(self, layer_digests: Mapping[int, int]) -> None:
        """Close the rows of layers that now serve another map: layer -> its new map digest; their rows start at 0."""
        self._guarded(lambda: self._switch(layer_digests))

    def snapshot(self, term_seen: int) -> Frame:
        """Everything counted so far as a frame, and the samples since the last one; the lock is held for a copy only.

        Raises:
            CollectorError: ``register`` was not called yet.
        """
        with self._lock:
            if not self._registered:
                raise CollectorError("recorder: call register(run_id, group_step, layer_digests) first")
            self._add_pending()
            frame = self._frame(term_seen)
            self._seq += 1
        return frame

    def undelivered(self, frame: Frame) -> None:
        """Say that a frame never reached the store, so that the rows it closed are sent as often as the others."""
        with self._lock:
            self._counters.repeat(frame.closed, self._map_digests)

    def _guarded(self, action: Callable[[], bool]) -> bool:
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - a counter must never stop an engine
            return self._refuse(Refusal("internal", f"recording failed: {error!r}; please report this"))

    def _refuse(self, refusal: Refusal) -> bool:
        self.refused[refusal.reason] += 1
        self.last_refusal = refusal.sentence
        return False

    def _not_ready(self) -> Refusal | None:
        if self._registered:
            return None
        return Refusal("not_registered", "a step came before register(): warm-up is not load")

    def _time(self, value_us: Any) -> float | None:
        checked = checked_time(value_us)
        if isinstance(checked, Refusal):
            # The counts are good without it.
            self._refuse(checked)
            return None
        return checked

    def _accept(self, step: Step) -> bool:
        # The sum of the largest counts bounds every total, so that overflow is seen before it happens.
        largest = int(step.counts.max()) if step.counts.size else 0
        if self._largest_possible + max(largest, step.tokens) > np.iinfo(np.int64).max:
            return self._refuse(
                Refusal("total_overflow", "a running total would pass 2**63; restart the rank's recorder")
            )
        if self._lock.acquire(blocking=False):
            try:
                self._add_pending()
                self._add(step)
            finally:
                self._lock.release()
        elif len(self._pending) < PENDING_STEPS:
            self._pending.append(step if step.idle else replace(step, counts=frozen_copy(step.counts)))
        else:
            return self._refuse(
                Refusal("busy", f"{PENDING_STEPS} steps passed during one snapshot; the step is lost")
            )
        self._largest_possible += max(largest, step.tokens)
        self._accepted_step = step.group_step
        return True

    def _add_pending(self) -> None:
        while self._pending:
            self._add(self._pending.popleft())

    def _add(self, step: Step) -> None:
        self._added_step = step.group_step
        in_flight = self._physical_in_flight()
        if not step.idle:
            self._counters.add(step.phase, step.counts, step.tokens, in_flight)
            self._dropped["rows_in_flight"] += len(in_flight)
        elif self.kind is Kind.RECEIVED_SLOTS:
            # What an idle rank received is unknown here, and a sample of zeros would deny it.
            return
        if step.group_step % self._stride == 0:
            self._add_sample(step, in_flight)

    def _physical_in_flight(self) -> list[int]:
        return [] if self.kind is Kind.ROUTED else sorted(self._in_flight)

    def _add_sample(self, step: Step, in_flight: list[int]) -> None:
        if in_flight:
            # Part of a step would fail conservation; the group switches together, so no rank samples it.
            self._dropped["samples_in_flight"] += 1
            return
        counts = step.counts if step.idle else frozen_copy(step.counts)
        digest = NO_MAP_DIGEST if self.kind is Kind.ROUTED else self._live_digest
        self._samples.add(
            StepSample(step.group_step, step.phase, step.tokens, digest, counts, *step.times_us)
        )

    def _set_flight(self, layers: frozenset[int], *, begins: bool) -> bool:
        refusal = layers_refusal(layers, self.facts.layers)
        if refusal is not None:
            return self._refuse(refusal)
        with self._lock:
            self._add_pending()
            self._in_flight = self._in_flight | layers if begins else self._in_flight - layers
        return True

    def _switch(self, layer_digests: Mapping[int, int]) -> bool:
        refusal = layers_refusal(layer_digests, self.facts.layers)
        if refusal is not None:
            return self._refuse(refusal)
        digests = self._map_digests.copy()
        for layer, digest in layer_digests.items():
            digests[layer] = digest
        with self._lock:
            self._add_pending()
            self._close_rows(layer_digests)
            self._set_digests(digests)
        return True

    def _set_digests(self, digests: NDArray[np.uint64]) -> None:
        if digests.shape != (self.facts.layers,):
            raise FactsError(f"layer_digests have shape {digests.shape}, expected [{self.facts.layers}]")
        self._map_digests = digests
        self._live_digest = live_map_digest(digests) if digests.all() else NO_MAP_DIGEST

    def _close_rows(self, layer_digests: Mapping[int, int]) -> None:
        if self.kind is Kind.ROUTED:
            # Logical ids mean the same under every map.
            return
        for layer, digest in layer_digests.items():
            self._counters.switch(layer, int(self._map_digests[layer]), digest)

    def _frame(self, term_seen: int) -> Frame:
        header = FrameHeader(
            pool=self.facts.pool,
            rank=self.rank,
            ranks=self.facts.ranks,
            kind=self.kind,
            scope_copies=self.scope_copies,
            incarnation=self.incarnation,
            run_id=self._run_id,
            term_seen=term_seen,
            seq=self._seq,
            group_step=self._added_step,
            age_ms=int((self._clock() - self._born_s) * 1000),
            stride=self._stride,
            live_digest=self._live_digest,
            layers_in_flight=tuple(sorted(self._in_flight)),
        )
        digests = np.zeros_like(self._map_digests) if self.kind is Kind.ROUTED else self._map_digests.copy()
        digests.flags.writeable = False
        totals, closed = self._counters.totals(), self._counters.closed_rows()
        return Frame(header, digests, totals, closed, self._samples.take())
