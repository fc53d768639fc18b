"""The sliding window of one pool: frames in, sums and balance out.

Two things are kept apart. *Sums* come from running totals: they are right whatever frames were lost, late, repeated or
reordered, whichever rank restarted and whichever layer switched its map. *Slices* come from step samples of all ranks:
they are proven by conservation or dropped.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from collectors.facts import Frame, Kind, Phase, PoolFacts
from eplb.agent.header import MAX_TERM
from eplb.errors import WindowError
from eplb.window.admission import Admission, Refused
from eplb.window.intervals import Intervals
from eplb.window.lives import Lives
from eplb.window.maps import MapRegistry
from eplb.window.membership import Members
from eplb.window.reading import Reading, read
from eplb.window.rekey import layer_places
from eplb.window.sequence import Arrival
from eplb.window.size import WINDOW_BYTES, check_size
from eplb.window.steps import StepRing, StepRows
from eplb.window.unread import UnreadRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eplb.window.totals import Growth, Place
    from eplb.window.view import WindowView

COUNTERS = (
    "frames", "bytes", "lost", "late", "duplicates", "empty", "refused", "refused_damaged", "refused_pool", "refused_shape",
    "refused_kind", "refused_scope", "refused_counts", "samples", "complete", "incomplete", "misaligned", "unknown_map",
    "restarts", "lost_rows", "dropped_rows", "cleared",
)  # fmt: skip
"""Names of the counters, all of them totals since the window was made."""


class Window:
    """Counts of one pool over the last ``window_s`` seconds; used by one thread.

    ``kind`` None = that of the first frame. ``phases`` that steps of this pool have, for the check of its size. At most ``max_slices`` complete steps are kept, the newest ones.
    A rank is stale, and a step that it still owes is incomplete, after ``stale_after_s`` without a frame of it.
    All times are the store's, in milliseconds.

    Raises:
        ConfigError: the window does not fit in ``window_bytes``.
    """

    def __init__(
        self,
        facts: PoolFacts,
        kind: Kind | None = None,
        *,
        phases: int = 1,
        window_s: float = 60.0,
        max_slices: int = 256,
        window_bytes: int = WINDOW_BYTES,
        stale_after_s: float = 15.0,
    ) -> None:
        self._given_kind, self._phases = kind, phases
        self._window_s, self._max_slices, self._window_bytes = window_s, max_slices, window_bytes
        self._window_ms, self._stale_ms = int(window_s * 1000), int(stale_after_s * 1000)
        self._counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.last_refusal = ""
        self.term_seen = 0
        self._begin(facts)

    def _begin(self, facts: PoolFacts) -> None:
        kinds = tuple(Kind) if self._given_kind is None else (self._given_kind,)
        check_size(
            facts,
            kinds,
            phases=self._phases,
            window_s=self._window_s,
            max_slices=self._max_slices,
            window_bytes=self._window_bytes,
        )
        self.facts = facts
        self.maps = MapRegistry(facts)
        self._members = Members(facts.ranks)
        self._admission = Admission(facts, self._given_kind)
        self._ring: StepRing | None = None
        self._intervals = Intervals(facts, self._window_ms)
        self._lives = Lives(self._window_ms)
        self._unread = UnreadRows(facts.slots)
        self._newest_ms, self._sampled_ms = 0, -1
        self._refused_ms: int | None = None
        self._live_digest, self._stride = 0, 1
        self._seen_ms = np.full(facts.ranks, -1, dtype=np.int64)
        self._expected_from_ms = np.zeros(facts.ranks, dtype=np.int64)

    @property
    def kind(self) -> Kind | None:
        """Kind of count, None = no frame yet and none was given."""
        return self._admission.kind

    # --- in -------------------------------------------------------------------------------------------------------

    def add_map(
        self,
        layer_digests: NDArray[np.uint64],
        rows: NDArray[np.int32],
        shares: NDArray[np.float64] | None = None,
    ) -> None:
        """Say what the slots of a live map hold: uint64 [layers], int32 [layers, slots], float64 [layers, slots] or None.

        The map added last is the one that loads of kind ROUTED are predicted with. Counts that waited for it are read.

        Raises:
            WindowError: a shape or an id is wrong, or the digests are not those of the rows.
        """
        self.maps.add(layer_digests, rows, shares)
        for number, phase, layer, row, counts in self._unread.take(self.maps):
            if self._intervals.get(number) is not None:
                sums = self._intervals.sums_at(number * self._intervals.length_ms, phase)
                sums.logical[layer] += self.maps.row_to_logical(row, counts)
        if self._ring is not None:
            self._ring.read_again()

    def set_members(self, run_id: int, members: Sequence[int]) -> None:
        """Say which ranks form the life ``run_id`` of the group, which serves now: its steps wait for no other rank.

        Slices of another membership stay, for planning; they are no part of what the present one shows.
        """
        if self._members.name(run_id, members) and self._ring is not None:
            self._ring.close_again()

    def ingest(self, time_ms: int, node: int, frame: Frame | bytes | None) -> bool:
        """Take one entry of a stream, as ``Store.tail_load`` gives it; False = it was empty, refused or a repeat.

        Never raises for what a frame holds: a refusal is counted by reason, ``last_refusal`` says why in a sentence.
        """
        if frame is None:
            self._counters["empty"] += 1
            return False
        self._counters["bytes"] += len(frame) if isinstance(frame, bytes) else 0
        admitted = self._admission.admit(frame)
        if isinstance(admitted, Refused):
            self._counters["refused"] += 1
            self._counters[f"refused_{admitted.code}"] += 1
            self.last_refusal = f"node {node}: {admitted.sentence}"
            self._refused_ms = time_ms
            return False
        return self._take(admitted, time_ms)

    def refuses(self, now_ms: int) -> bool:
        """Whether a frame was refused within the last window, and since it was last cleared."""
        return self._refused_ms is not None and now_ms - self._refused_ms <= self._window_ms

    def clear(self) -> None:
        """Forget all counts, and the scope, but not the maps nor the counters; for an emptied store or another model."""
        maps, members, admission_kind = self.maps, self._members, self._given_kind
        self._keep_counts()
        self._begin(self.facts)
        self._members = members
        self.maps, self._admission.kind = maps, admission_kind
        self._counters["cleared"] += 1

    def refit(self, facts: PoolFacts) -> None:
        """Go on with another topology of the same model: tokens by (model layer, expert) are kept, loads by rank are not.

        New ranks count as missing only after ``stale_after_s``. The new topology's map must be added.

        Raises:
            WindowError: the number of experts differs, so that it is another model.
            ConfigError: the window does not fit any more.
        """
        if facts.experts != self.facts.experts:
            raise WindowError(
                f"pool {facts.pool!r}: {facts.experts} experts, the window has {self.facts.experts}; another model needs a new window"
            )
        old, rows, intervals, now_ms = self.facts, self._rows(), self._intervals, self._newest_ms
        kind, sampled_ms = self.kind, self._sampled_ms
        self._keep_counts()
        self._begin(facts)
        layers = layer_places(old.model_layers, facts.model_layers)
        self._intervals.adopt(intervals, layers)
        if rows is not None and kind is not None:
            self._admission.kind = kind
            self._steps_of(kind).adopt(rows, layers)
        self._newest_ms, self._sampled_ms = now_ms, sampled_ms
        self._expected_from_ms[old.ranks :] = now_ms + self._stale_ms

    # --- out ------------------------------------------------------------------------------------------------------

    def sums(self, phase: Phase | None = None) -> NDArray[np.int64]:
        """Tokens by logical expert counted in the window, of one phase or of all: int64 [layers, experts]."""
        self._forget(self._newest_ms)
        copies = self._admission.scope_copies or 1
        return (self._intervals.total(phase).logical + copies // 2) // copies

    def view(self, now_ms: int, phase: Phase | None = None) -> WindowView:
        """What the window shows at the store's time ``now_ms``, of one phase or of all."""
        now_ms = max(now_ms, self._newest_ms)
        self._forget(now_ms)
        return read(
            Reading(
                facts=self.facts,
                kind=self.kind,
                phase=phase,
                now_ms=now_ms,
                oldest_ms=now_ms - self._window_ms,
                stale_ms=self._stale_ms,
                sampled=self._sampled_ms >= max(0, now_ms - self._window_ms),
                rows=self._rows(now_ms - self._window_ms),
                intervals=self._intervals,
                gap_ms=self._lives.gap_ms,
                maps=self.maps,
                members=self._members,
                seen_ms=self._seen_ms,
                expected_from_ms=self._expected_from_ms,
                stride=self._stride,
                live_digest=self._live_digest,
                term_seen=self.term_seen,
                copies=self._admission.scope_copies or 1,
                counters=self.counters,
                shares_followed=math.nan if self._ring is None else self._ring.dispatch.shares_followed,
            )
        )

    @property
    def counters(self) -> dict[str, int]:
        """Totals by name since the window was made, see COUNTERS.

        ``lost`` frames that never came: gaps in the ranks' numbers, or entries without a frame if those are more, because an
        empty entry leaves a gap too.
        """
        counts = dict(self._counters)
        counts["lost"] = max(counts["lost"] + self._lives.lost, counts["empty"])
        counts["restarts"] += self._lives.restarts
        counts["dropped_rows"] += self._unread.dropped
        return counts

    # --- one frame ------------------------------------------------------------------------------------------------

    def _take(self, frame: Frame, time_ms: int) -> bool:
        header = frame.header
        self._counters["frames"] += 1
        arrival, grown = self._lives.arrive(frame, time_ms)
        if arrival is Arrival.REPEATED:
            self._counters["duplicates"] += 1
            return False
        self._counters["late"] += arrival is Arrival.LATE
        if time_ms >= self._newest_ms:
            self._live_digest, self._stride = header.live_digest, header.stride
        self._newest_ms = max(self._newest_ms, time_ms)
        self._seen_ms[header.rank] = max(int(self._seen_ms[header.rank]), time_ms)
        if header.term_seen <= MAX_TERM:
            # No rank follows a higher one: a leader that took it for the newest would lock the pool for good.
            self.term_seen = max(self.term_seen, header.term_seen)
        self.maps.note_whole(frame.layer_digests)
        in_window = time_ms >= self._newest_ms - self._window_ms
        if grown is not None and in_window:
            self._add_growth(frame, grown, time_ms)
        self._add_samples(frame, time_ms)
        return True

    def _add_growth(self, frame: Frame, grown: Growth, time_ms: int) -> None:
        self._counters["lost_rows"] += grown.lost_rows
        interval = self._intervals.at(time_ms)
        interval.newest_ms = max(interval.newest_ms, time_ms)
        interval.group_step = max(interval.group_step, frame.header.group_step)
        waits = False
        for phase, rows in grown.rows.items():
            sums = self._intervals.sums_at(time_ms, phase)
            sums.tokens += grown.tokens[phase]
            sums.rank_steps += grown.steps[phase]
            self._add_rank_load(sums.rank_load, frame, rows)
            waits |= self._add_rows(sums.logical, frame, grown.digests, (phase, time_ms), rows)
        for place, counts in grown.closed.items():
            waits |= self._add_closed(frame, place, counts, time_ms)
        self._counters["unknown_map"] += waits

    def _add_rank_load(self, rank_load: NDArray[np.int64], frame: Frame, rows: NDArray[np.int64]) -> None:
        header, facts = frame.header, self.facts
        if header.kind is Kind.RECEIVED_SLOTS:
            rank_load[:, header.rank] += rows.sum(axis=1)
        elif header.kind is Kind.ROUTED_SLOTS:
            rank_load += rows.reshape(len(rows), facts.ranks, facts.slots_per_rank).sum(axis=2)

    def _add_rows(
        self,
        logical: NDArray[np.int64],
        frame: Frame,
        digests: NDArray[np.uint64],
        when: tuple[Phase, int],
        rows: NDArray[np.int64],
    ) -> bool:
        """Add a phase's rows to its tokens by expert; True = some rows wait for their map."""
        if frame.header.kind is Kind.ROUTED:
            logical += rows
            return False
        first_slot = self._first_slot(frame)
        index = self.maps.index(digests)
        if index is not None:
            logical += self.maps.to_logical(index, rows, first_slot)
            return False
        phase, time_ms = when
        waits = [
            self._add_row((layer, phase, digest), rows[layer], first_slot, time_ms)
            for layer, digest in enumerate(digests.tolist())
            if rows[layer].any()
        ]
        return any(waits)

    def _add_closed(self, frame: Frame, place: Place, counts: NDArray[np.int64], time_ms: int) -> bool:
        layer, phase, _ = place
        sums = self._intervals.sums_at(time_ms, phase)
        self._add_rank_load(sums.rank_load[layer : layer + 1], frame, counts[np.newaxis])
        return self._add_row(place, counts, self._first_slot(frame), time_ms)

    def _add_row(self, place: Place, counts: NDArray[np.int64], first_slot: int, time_ms: int) -> bool:
        layer, phase, digest = place
        row = self.maps.row(layer, digest)
        if row is None:
            number = self._intervals.number(time_ms)
            self._unread.add(number, phase, (layer, digest), counts, first_slot)
            return True
        logical = self._intervals.sums_at(time_ms, phase).logical
        logical[layer] += self.maps.row_to_logical(row, counts, first_slot)
        return False

    def _first_slot(self, frame: Frame) -> int:
        per_rank = frame.header.kind is Kind.RECEIVED_SLOTS
        return frame.header.rank * self.facts.slots_per_rank if per_rank else 0

    def _add_samples(self, frame: Frame, time_ms: int) -> None:
        if not frame.samples:
            return
        ring = self._steps_of(frame.header.kind)
        self._sampled_ms = max(self._sampled_ms, time_ms)
        for sample in frame.samples:
            new = ring.add(frame.header, sample, time_ms)
            self._counters["samples" if new else "duplicates"] += 1

    # --- keeping --------------------------------------------------------------------------------------------------

    def _steps_of(self, kind: Kind) -> StepRing:
        if self._ring is None:
            self._ring = StepRing(
                self.facts,
                kind,
                self.maps,
                self._members,
                max_slices=self._max_slices,
                ended=self._step_ended,
            )
        return self._ring

    def _step_ended(self, how: str, time_ms: int) -> None:
        self._counters[how] += 1
        steps = self._intervals.at(time_ms).steps
        steps[how] = steps.get(how, 0) + 1

    def _rows(self, oldest_ms: int = 0) -> StepRows | None:
        return None if self._ring is None else self._ring.rows(oldest_ms)

    def _forget(self, now_ms: int) -> None:
        if self._ring is not None:
            self._ring.expire(now_ms - self._stale_ms, now_ms - self._window_ms)
        self._unread.forget_before(self._intervals.forget_before(now_ms))
        self._lives.forget_before(now_ms)

    def _keep_counts(self) -> None:
        """Before parts with counters of their own are replaced."""
        self._counters["lost"] += self._lives.lost
        self._counters["restarts"] += self._lives.restarts
        self._counters["dropped_rows"] += self._unread.dropped
