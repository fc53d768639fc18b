"""Anneal from a map to better ones, and keep the best map of every number of moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import sqrt
from threading import Lock
from typing import TYPE_CHECKING

from placement import kernel, kernel_anneal
from placement.kernel_state import make_state
from placement.starts import coarse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from placement.kernel import State
    from placement.layer import Layer, Row

GAIN = 1e-9
"""Smallest fall of the objective that counts as better."""

CHUNK = 16_384
"""Proposals between two looks at the goal and at ``should_stop``: some milliseconds."""

MOST_LEVELLING = 4
"""Most swaps that level one slice, for every slot."""

COPY_SHARE = 77
"""Of 256 proposals, those that move a copy: 30 %."""

HOME_SHARE = 26
"""Of 256 proposals from a live map, those that undo a move: 10 %."""

PRICES = 14
"""Prices of a move that a search from a live map goes through. One flat slice gains little by little: it needs low ones."""

PRICES_OF_SLICES = 9
"""The same where several slices keep the excess, and thus the worth of a move, up."""

PRICE_STEP = 0.4
"""Each price over the one before."""


class Halt:
    """An end asked for from outside, by any of the threads that work on layers."""

    __slots__ = ("_ask", "_lock", "asked")

    def __init__(self, ask: Callable[[], bool] | None) -> None:
        self._ask = ask
        self._lock = Lock()
        self.asked = False

    def __bool__(self) -> bool:
        """Ask; once the answer is yes it stays yes."""
        if self._ask is None:
            return False
        with self._lock:
            self.asked = self.asked or bool(self._ask())
            return self.asked


SEED_STEP = 0x9E3779B9
"""Between the seeds of two starts."""

PER_SLOT = {"fast": 200, "normal": 12_000, "thorough": 100_000}
"""Proposals for every slot of a layer."""

MOST = {"fast": 60_000, "normal": 1_200_000, "thorough": 10_000_000}
"""Most proposals for a layer."""

FULL_SLICES = 64
"""Slices from which on proposals are fewer, as each takes longer."""


def proposals(layer: Layer, effort: str, *, cold: bool) -> int:
    """Proposals that an effort gives one layer, for a start from nothing (``cold``) or from a live map."""
    most = min(PER_SLOT[effort] * layer.slots, MOST[effort])
    if cold and effort == "fast" and len(layer.weights) == 1:
        return most // 10  # levelling does the rest
    return most * FULL_SLICES // max(FULL_SLICES, len(layer.weights))


@dataclass(frozen=True, slots=True)
class Task:
    """What one search of a layer may do.

    ``proposals``: most proposals. ``evaluations``: most exchanges weighed outside them. ``goal``: objective at which it ends. ``seed``: of the random numbers.
    """

    proposals: int
    evaluations: int
    goal: float
    seed: int
    halt: Halt = field(default_factory=lambda: Halt(None))


@dataclass(slots=True)
class Track:
    """The best row seen for every number of moves from ``start`` (None = a cold start, where moves do not count).

    ``rows``: moves -> (objective of the layer, row).
    """

    layer: Layer
    start: NDArray[np.bool_] | None
    rows: dict[int, tuple[float, Row]] = field(default_factory=dict)

    def moves(self, row: Row) -> int:
        """Slots whose expert was not on their rank at the start."""
        if self.start is None:
            return 0
        return int((self.layer.holds(row) & ~self.start).sum())

    def note(self, row: Row, value: float) -> bool:
        """Keep ``row`` if no row with as few moves is as good."""
        moves = self.moves(row)
        if any(value > best - GAIN for count, (best, _) in self.rows.items() if count <= moves):
            return False
        self.rows[moves] = (value, row.copy())
        return True

    def pareto(self) -> list[tuple[int, float, Row]]:
        """Rows in rising moves and falling objective."""
        kept: list[tuple[int, float, Row]] = []
        for moves in sorted(self.rows):
            value, row = self.rows[moves]
            if not kept or value < kept[-1][1] - GAIN:
                kept.append((moves, value, row))
        return kept

    def best(self) -> tuple[float, Row]:
        """The row with the lowest objective."""
        _, value, row = self.pareto()[-1]
        return value, row


def cold_temperature(layer: Layer, value: float) -> float:
    """Temperature at which a search ends: 3 % of the excess ``value - 1``, spread over the slots (solver study, step 4).

    One flat slice of few slots ends 16 times as hot: its maps are far apart, so that a cold end visits none but the smooth
    maximum's own best, which is not always that of the costliest rank.
    """
    part = 0.48 if coarse(layer) else 0.03
    return part * max(value - 1.0, 1e-6) / layer.slots


def cool_down(layer: Layer, starts: list[Row], task: Task) -> Row:
    """Anneal without regard to moves from each of ``starts`` and return the best row, by the objective itself.

    The starts share the proposals and the evaluations of ``task``.
    """
    share = replace(
        task, proposals=task.proposals // len(starts), evaluations=task.evaluations // len(starts)
    )
    best, lowest = starts[0], layer.value(starts[0])
    for number, start in enumerate(starts):
        if lowest <= task.goal or task.halt:
            break
        found = _cooled(layer, start, replace(share, seed=task.seed + number * SEED_STEP))
        value = layer.value(found)
        if value < lowest - GAIN:
            best, lowest = found, value
    return best


def _cooled(layer: Layer, row: Row, task: Task) -> Row:
    """Anneal from one row: 32 times as hot as at the end to begin with, and hotter where few slots make every step large.

    One flat slice is levelled before and after.
    """
    state = make_state(layer, row, seed=task.seed)
    _level(state, layer, task)
    lowest = layer.value(_kept(state))
    if lowest <= task.goal or task.proposals < 1:
        return _kept(state)
    cold = cold_temperature(layer, lowest)
    hot = max(32 * cold, 2.0 / layer.slots**2)
    state.now[kernel.TEMPERATURE] = hot
    state.now[kernel.COOLING] = cooling(cold / hot, task.proposals)
    best = _kept(state)
    for _ in _chunks(state, layer, task, 0):
        found = _kept(state)
        value = layer.value(found)
        if value < lowest - GAIN:
            best, lowest = found, value
        if lowest <= task.goal:
            return best
    if len(layer.weights) > 1:
        return best
    kernel.restore(state)
    _level(state, layer, task)
    return _kept(state)


def _kept(state: State) -> Row:
    """The best row of a search that does not count moves."""
    found: Row = state.kept_rows[0].astype("int64")
    return found


def _level(state: State, layer: Layer, task: Task) -> None:
    """With one slice, make the best swaps of the costliest rank until none helps."""
    if len(layer.weights) > 1 or layer.ranks < 2 or state.kept_values[0] <= task.goal or task.halt:
        return
    exchanges = layer.slots * int(layer.capacity().max())
    kernel_anneal.level(state, min(MOST_LEVELLING * layer.slots, task.evaluations // exchanges))


def walk_away(row: Row, track: Track, live: Row, task: Task) -> None:
    """Anneal coolly from ``row`` near ``live`` while the price of a move falls; note the best row of every number of moves."""
    _along(row, track, live, task, _prices(track.layer, live))


def walk_back(row: Row, track: Track, live: Row, task: Task) -> None:
    """Anneal coolly from ``row`` far from ``live`` while the price of a move rises."""
    _along(row, track, live, task, _prices(track.layer, live)[::-1])


def _prices(layer: Layer, live: Row) -> list[float]:
    """Falling prices of a move: from an eighth of the excess, which only the best moves are worth, to next to nothing."""
    excess = max(layer.value(live) - 1.0, 1e-6)
    steps = PRICES if len(layer.weights) == 1 else PRICES_OF_SLICES
    return [excess / 8 * PRICE_STEP**step for step in range(steps)]


def _along(row: Row, track: Track, live: Row, task: Task, prices: list[float]) -> None:
    layer = track.layer
    state = make_state(layer, row, seed=task.seed, live=live, kept=layer.slots)
    cold = cold_temperature(layer, layer.value(row)) if len(layer.weights) > 1 else 0.0
    each = replace(task, proposals=task.proposals // len(prices))
    state.now[kernel.COOLING] = 1.0
    for price in prices:
        # A move that is not worth its price is taken with a chance of e^-8 only, or depth would turn into churn.
        state.now[kernel.PRICE] = price
        state.now[kernel.TEMPERATURE] = max(price / 8, cold)
        for _ in _chunks(state, layer, each, HOME_SHARE):
            pass
    _note_kept(state, track)


def _note_kept(state: State, track: Track) -> None:
    lowest = float("inf")
    for value, row in zip(state.kept_values, state.kept_rows, strict=True):
        if value < lowest:
            lowest = float(value)
            found = row.astype("int64")
            track.note(found, track.layer.value(found))


def _chunks(state: State, layer: Layer, task: Task, home_share: int) -> Iterator[None]:
    """Run the proposals in chunks, with a pause after each."""
    left = task.proposals
    while left > 0 and not task.halt:
        now = min(CHUNK, left)
        kernel_anneal.anneal(state, now, len(layer.weights), COPY_SHARE, home_share)
        left -= now
        yield


def cooling(reach: float, proposals: int) -> float:
    """Factor every ``COOL_EVERY`` proposals that leads to ``reach``, from products and roots alone."""
    steps = max(1, proposals // kernel_anneal.COOL_EVERY)
    factor, spanned = reach, 1
    while spanned < steps:
        factor, spanned = sqrt(factor), 2 * spanned
    # `factor` spans `spanned` >= steps steps: one linear correction brings it to `steps`.
    return 1.0 - (1.0 - factor) * (spanned / steps)
