"""Which frames may enter a window: whole ones, of this pool, of one kind and one scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectors.errors import FrameError
from collectors.facts import Kind
from collectors.frame import decode_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from collectors.facts import Frame, PoolFacts

LARGEST_COUNT = 2**53
"""A total that no pool reaches in a century; above it sums over ranks could leave int64, and float64 is not exact."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a frame stays out: a code that is counted, and a sentence."""

    code: str
    sentence: str


@dataclass(slots=True)
class Admission:
    """Judge frames; kind and scope are those of the first frame that was admitted, unless the kind is given."""

    facts: PoolFacts
    kind: Kind | None = None
    scope_copies: int | None = None

    def admit(self, frame: Frame | bytes) -> Frame | Refused:
        """The frame if it may enter, else why not."""
        if isinstance(frame, bytes):
            try:
                frame = decode_frame(frame)
            except FrameError as error:
                return Refused("damaged", str(error))
        refused = self._mismatch(frame) or self._mixture(frame) or self._bad_counts(frame)
        if refused is None:
            self.kind, self.scope_copies = frame.header.kind, frame.header.scope_copies
        return refused or frame

    def _mismatch(self, frame: Frame) -> Refused | None:
        header, facts = frame.header, self.facts
        who = f"frame of rank {header.rank}"
        if header.pool != facts.pool:
            return Refused("pool", f"{who}: it is of pool {header.pool!r}, this window is of {facts.pool!r}")
        if header.ranks != facts.ranks or not 0 <= header.rank < facts.ranks:
            sentence = f"{who} of {header.ranks} ranks, this pool has {facts.ranks}; configure the topology that runs"
            return Refused("shape", sentence)
        if len(frame.layer_digests) != facts.layers:
            sentence = f"{who}: {len(frame.layer_digests)} layers, this pool has {facts.layers}; correct model_layers"
            return Refused("shape", sentence)
        if header.kind is Kind.RECEIVED_SLOTS and header.scope_copies != 1:
            sentence = (
                f"{who}: {header.scope_copies} ranks report the same tokens, but what a slot received is counted once; "
                "declare scope_copies 1 with received_slots"
            )
            return Refused("scope", sentence)
        return None

    def _mixture(self, frame: Frame) -> Refused | None:
        header = frame.header
        if self.kind is not None and header.kind != self.kind:
            sentence = f"frame of rank {header.rank}: its kind is {header.kind.name}, this window's is {self.kind.name}; one kind a pool"
            return Refused("kind", sentence)
        if self.scope_copies is not None and header.scope_copies != self.scope_copies:
            sentence = (
                f"frame of rank {header.rank}: {header.scope_copies} ranks report the same tokens, in this window {self.scope_copies}; "
                "scopes cannot be mixed, make the ranks agree or clear the window"
            )
            return Refused("scope", sentence)
        return None

    def _bad_counts(self, frame: Frame) -> Refused | None:
        facts, rank = self.facts, frame.header.rank
        expected = (facts.layers, facts.width(frame.header.kind))
        shapes = {totals.counts.shape for totals in frame.totals} | {s.counts.shape for s in frame.samples}
        shapes |= {(facts.layers, *row.counts.shape) for row in frame.closed}
        if shapes - {expected}:
            return Refused(
                "shape", f"frame of rank {rank}: counts of shape {sorted(shapes)}, expected {expected}"
            )
        for counts in _all_counts(frame):
            if counts.size and (int(counts.min()) < 0 or int(counts.max()) > LARGEST_COUNT):
                sentence = (
                    f"frame of rank {rank}: counts from {counts.min()} to {counts.max()}, must be 0 to 2**53"
                )
                return Refused("counts", sentence)
        if any(not 0 <= number <= LARGEST_COUNT for number in _all_tokens(frame)):
            return Refused("counts", f"frame of rank {rank}: tokens, steps or a term outside 0 to 2**53")
        return None


def _all_counts(frame: Frame) -> Iterator[NDArray[np.int64]]:
    for part in (frame.totals, frame.closed, frame.samples):
        yield from (entry.counts for entry in part)


def _all_tokens(frame: Frame) -> Iterator[int]:
    # The term too: it is the floor of the next leader's, and the store's scripts count in float64.
    yield frame.header.term_seen
    for totals in frame.totals:
        yield from (totals.tokens, totals.steps)
    yield from (sample.tokens for sample in frame.samples)
