"""The schedule: recorded sequences through a continuous batch, window by window; the picks are real, their order is ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from eplb.errors import ReplayError
from eplb.replay.batch import NOBODY, Batch, Request
from eplb.replay.mix import Mix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from eplb.replay.arrivals import Arrival
    from eplb.replay.recording import Recording


MOST_RUNNING = 2**20
"""More sequences in flight than any pool serves."""


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """How recorded sequences become steps.

    ``steps`` of the whole run, ``window_steps`` of a window; a last smaller window is left out. ``running`` requests in flight,
    with arrivals the most. ``first``, ``second``: groups of domains; empty = the domain with most tokens, and the next one.
    ``passes``: times that a sequence may be served, in a new order each time. ``requests_per_sequence``: equal requests that
    each sequence stands for. ``step_ms``: time between two steps on the schedule's clock. ``arrivals``: requests by time; empty =
    there is always a next one.

    Raises:
        ReplayError: a number is below its least or above its largest value.
    """

    steps: int = 1600
    window_steps: int = 8
    running: int = 64
    mix: Mix = field(default_factory=Mix)
    first: tuple[str, ...] = ()
    second: tuple[str, ...] = ()
    passes: int = 1
    requests_per_sequence: int = 16
    step_ms: int = 5000
    arrivals: tuple[Arrival, ...] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "window_steps", "running", "passes", "requests_per_sequence", "step_ms"):
            if getattr(self, name) < 1:
                raise ReplayError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.running > MOST_RUNNING:
            raise ReplayError(f"running is {self.running}, must be at most {MOST_RUNNING}")
        if self.steps < self.window_steps:
            raise ReplayError(f"{self.steps} steps are less than one window of {self.window_steps}")

    def groups(self, recording: Recording) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The first and the second group of domains.

        Raises:
            ReplayError: there is no second group where the mix needs one, or a domain is in both.
        """
        domains = recording.domains()
        first = self.first or tuple(domain for domain in domains if domain not in self.second)[:1]
        second = self.second or tuple(domain for domain in domains if domain not in first)[:1]
        if self.mix.kind != "stationary" and not second:
            raise ReplayError(
                f"mix {self.mix.kind!r} goes from one group of domains to another, but the trace has only "
                f"{', '.join(map(repr, domains))}"
            )
        both = sorted(set(first) & set(second))
        if both:
            raise ReplayError(f"domain {both[0]!r} is in both groups; keep it in one")
        return first, second


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of one window, or some of them.

    ``index``: number of the window. ``first_step``: number of the first one. ``tokens``: int64 [steps, ranks, layers, experts],
    token-expert pairs by the rank that routed them. ``batch``: int64 [steps, ranks], tokens that each rank routed.
    ``end_ms``: int64 [steps], time at the end of each, on the schedule's clock.
    """

    index: int
    first_step: int
    tokens: NDArray[np.int64]
    batch: NDArray[np.int64]
    end_ms: NDArray[np.int64]

    def parts(self, steps: int) -> Iterator[Steps]:
        """The same steps, at most so many at a time."""
        for at in range(0, len(self.batch), steps):
            part = slice(at, at + steps)
            yield Steps(
                self.index, self.first_step + at, self.tokens[part], self.batch[part], self.end_ms[part]
            )

    def routed(self) -> NDArray[np.int64]:
        """Pairs of the whole group, int64 [steps, layers, experts]."""
        total: NDArray[np.int64] = self.tokens.sum(axis=1)
        return total


def schedule(recording: Recording, options: ScheduleOptions, ranks: int, seed: int) -> Iterator[Steps]:
    """Serve the run and give it window by window; equal input and seed give equal steps.

    Request r lives on rank r % ranks. Without arrivals the batch is full from the start, and its first requests begin in the
    middle. With arrivals a request takes a recorded sequence, up to as many tokens as it generated; steps without a
    request are no steps, and the run ends with the arrivals.

    Raises:
        ReplayError: a domain is unknown, or its sequences are used up.
    """
    source = _Requests(recording, options, seed)
    batch = Batch(options.running, source.next)
    source.begun = True
    for index in range(options.steps // options.window_steps):
        rows = list(_window(batch, source, options.window_steps))
        if len(rows) < options.window_steps:
            return
        sequences, positions, end_ms = (np.array(column) for column in zip(*rows, strict=True))
        tokens, served = _counts(recording, sequences, positions, ranks)
        times = options.requests_per_sequence
        yield Steps(index, index * options.window_steps, tokens * times, served * times, end_ms)


def _window(
    batch: Batch, source: _Requests, steps: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], int]]:
    """Sequence and position of every place and the time at the end, step by step; fewer steps when nobody comes any more."""
    for _ in range(steps):
        while not batch.running:
            if not source.wait():
                return
            batch.fill()
        source.step_over()
        yield batch.sequences.copy(), batch.positions.copy(), source.now_ms
        batch.advance()


def _counts(
    recording: Recording, sequences: NDArray[np.int32], positions: NDArray[np.int32], ranks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs by rank, int64 [steps, ranks, layers, experts], and tokens, int64 [steps, ranks], of int32 [steps, places]."""
    steps = len(sequences)
    step, place = np.nonzero(sequences != NOBODY)
    picks = recording.picks[recording.offsets[sequences[step, place]] + positions[step, place]].astype(
        np.int64
    )
    row = step * ranks + place % ranks
    layers, experts = recording.layers, recording.experts
    cell = (row[:, None] * layers + np.arange(layers))[:, :, None] * experts + picks
    size = steps * ranks * layers * experts
    counts = np.bincount(cell.ravel(), minlength=size).reshape(steps, ranks, layers, experts)
    served = np.bincount(row, minlength=steps * ranks).reshape(steps, ranks)
    return counts.astype(np.int64), served.astype(np.int64)


class _Requests:
    """Who is served next: a sequence of the domain that the mix draws, when a request has arrived.

    ``now_ms``: the schedule's time. ``begun``: the first batch is filled, so that requests begin at their beginning.
    """

    def __init__(self, recording: Recording, options: ScheduleOptions, seed: int) -> None:
        self._recording, self._options = recording, options
        self._random = np.random.default_rng([seed, 7])
        groups = options.groups(recording)
        self._piles = [_Pile(recording.of_domains(group), group, options, self._random) for group in groups]
        self._step = 0
        self._arrived = 0
        self.now_ms = 0
        self.begun = bool(options.arrivals)

    def next(self) -> Request | None:
        """The next request, None = none has arrived."""
        options, arrivals = self._options, self._options.arrivals
        limit = None
        if arrivals:
            if self._arrived == len(arrivals) or arrivals[self._arrived].time_s * 1000 > self.now_ms:
                return None
            limit = arrivals[self._arrived].generated_tokens
            self._arrived += 1
        share = options.mix.second_share(self._step / options.steps)
        # Drawn in every case, so that the mixes of one seed differ in nothing else.
        second = bool(self._random.random() < share)
        sequence = self._piles[second].take(self._step)
        length = self._recording.length(sequence)
        first = 0 if self.begun else int(self._random.integers(length))
        return Request(sequence, first, length if limit is None else min(length, limit))

    def step_over(self) -> None:
        """One step has been served."""
        self._step += 1
        self.now_ms += self._options.step_ms

    def wait(self) -> bool:
        """Let the time pass until the next arrival; False = none comes."""
        arrivals = self._options.arrivals
        if self._arrived == len(arrivals):
            return False
        self.now_ms = max(self.now_ms, int(arrivals[self._arrived].time_s * 1000) + 1)
        return True


class _Pile:
    """The sequences of one group of domains, shuffled anew for every pass."""

    def __init__(
        self,
        sequences: tuple[int, ...],
        domains: tuple[str, ...],
        options: ScheduleOptions,
        random: np.random.Generator,
    ) -> None:
        self._sequences, self._domains, self._options, self._random = sequences, domains, options, random
        self._left: list[int] = []
        self._begun = 0

    def take(self, step: int) -> int:
        if not self._left:
            if self._begun == self._options.passes:
                # As if the whole run were of these domains, so rather too many than too few.
                enough = ceil(self._options.passes * self._options.steps / max(step, 1))
                raise ReplayError(
                    f"all {len(self._sequences)} sequences of {', '.join(map(repr, self._domains))} were served by step {step}; "
                    f"give fewer steps, fewer running requests, more domains or more passes, such as --passes {enough}"
                )
            self._left = self._random.permutation(self._sequences).tolist()
            self._begun += 1
        return self._left.pop()
