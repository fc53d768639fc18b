"""What plans promised and what they brought: the record that corrects the next promise and bounds how far ahead it counts."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eplb.thrash import Places

MOST_OUTCOMES = 8
"""Plans that are remembered: enough for a mean, few enough that the model of last week does not count."""

KEPT_MS = 86_400_000
"""Age at which a plan counts no more: a day has seen all its traffic, and a bad one must not close the gate for good."""

PRIOR_PLANS = 2.0
"""Plans that are taken to have delivered exactly what they promised, so that one surprise does not decide everything."""

MOST_READ = 2**53
"""What is read back from the log is below: beyond it, sums leave float64, and nothing that a daemon writes comes near."""

LONGEST_ID = 256
"""Characters of a plan's name that are read back."""

LEAST_CORRECTION = 0.25
MOST_CORRECTION = 1.25
"""A record, however bad, does not count a promise as nothing, nor, however good, as more than it may be."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One plan after the fact.

    ``applied_ms`` store time at which all ranks served it. ``predicted``, ``realised`` fall of the mean ratio, NaN = not measured, or nothing was promised; ``error`` standard error
    of the realised one. ``half_life_s`` seconds after which half of it was gone: infinite while it has not fallen. ``bytes`` moved; ``slowdown_s``
    serving time lost while they moved. ``missed`` it brought surely too little, or the ratio stayed far above the promised one. ``rolled_back`` the map before
    was put back.
    """

    plan_id: str
    applied_ms: int
    predicted: float
    realised: float = math.nan
    error: float = 0.0
    half_life_s: float = math.inf
    bytes: int = 0
    slowdown_s: float = 0.0
    missed: bool = False
    rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class Departure:
    """Experts that left ranks with one plan, and when: store time in ms."""

    applied_ms: int
    places: Places


@dataclass(frozen=True, slots=True)
class Gains:
    """The last plans, oldest first, and what left which rank with them."""

    outcomes: tuple[Outcome, ...] = ()
    departed: tuple[Departure, ...] = ()

    def with_outcome(self, outcome: Outcome) -> Gains:
        """The record with one more plan, or with news of one."""
        others = tuple(known for known in self.outcomes if known.plan_id != outcome.plan_id)
        return replace(self, outcomes=(*others, outcome)[-MOST_OUTCOMES:])

    def with_departure(self, departure: Departure) -> Gains:
        """The record with what one more plan took from where."""
        return replace(self, departed=(*self.departed, departure)[-MOST_OUTCOMES:])

    def recent(self, now_ms: int) -> Gains:
        """The record without plans older than :data:`KEPT_MS`."""
        kept = tuple(o for o in self.outcomes if now_ms - o.applied_ms < KEPT_MS)
        return self if len(kept) == len(self.outcomes) else replace(self, outcomes=kept)

    @property
    def last(self) -> Outcome | None:
        """The newest plan whose gain was measured."""
        measured = [outcome for outcome in self.outcomes if math.isfinite(outcome.realised)]
        return measured[-1] if measured else None

    @property
    def correction(self) -> float:
        """Factor on what plans promise: realised over promised gain of the last plans, drawn towards 1.

        ``(n0 + n x sum realised / sum promised) / (n0 + n)`` with :data:`PRIOR_PLANS` as n0, within its bounds.
        """
        measured = [o for o in self.outcomes if math.isfinite(o.realised) and o.predicted > 0.0]
        promised = math.fsum(outcome.predicted for outcome in measured)
        if not measured:
            return 1.0
        ratio = math.fsum(outcome.realised for outcome in measured) / promised
        count = len(measured)
        shrunk = (PRIOR_PLANS + count * ratio) / (PRIOR_PLANS + count)
        return min(MOST_CORRECTION, max(LEAST_CORRECTION, shrunk))

    @property
    def half_life_s(self) -> float:
        """Median over the last plans of the time in which half of the gain was gone; infinite = none of them is known to fade."""
        known = [o.half_life_s for o in self.outcomes if math.isfinite(o.realised) and not o.rolled_back]
        return median(known) if known else math.inf

    @property
    def slowdown_s_per_byte(self) -> float:
        """Serving time lost for each byte that earlier plans moved; 0 = none was measured."""
        moved = [outcome for outcome in self.outcomes if outcome.bytes > 0]
        total = sum(outcome.bytes for outcome in moved)
        return math.fsum(outcome.slowdown_s for outcome in moved) / total if total else 0.0

    def left_since(self, since_ms: int) -> Places:
        """What left a rank with a plan that went live at that store time or later."""
        return tuple(place for gone in self.departed if gone.applied_ms >= since_ms for place in gone.places)


def half_life_s(first: float, later: float, elapsed_s: float, noise: float) -> float:
    """Half-life of a gain by two measurements ``elapsed_s`` apart, ``first x 2^(-elapsed / half-life) = later``.

    Infinite while the fall is within the noise; a gain that is gone counts as fallen to the noise, or to a 64th.
    """
    if not (first > 0.0 and elapsed_s > 0.0) or later >= first - noise:
        return math.inf
    floor = max(later, min(noise, first / 2.0), first / 64.0)
    return elapsed_s / math.log2(first / floor)


def read_gains(records: Iterable[bytes]) -> Gains:
    """The record as the decision log has it, oldest record first; what cannot be read is passed over."""
    gains = Gains()
    for raw in records:
        if b'"outcome":{' in raw or b'"departed":{' in raw:
            try:
                body = json.loads(raw)
                gains = _with(gains, body.get("outcome"), body.get("departed"))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                continue
    return gains


def _with(gains: Gains, outcome: Any, departed: Any) -> Gains:
    if outcome is not None:
        gains = gains.with_outcome(_outcome(outcome))
    if departed is not None:
        places = tuple(
            (_whole(layer), _whole(rank), _whole(expert)) for layer, rank, expert in departed["places"]
        )
        gains = gains.with_departure(Departure(_whole(departed["applied_ms"]), places))
    return gains


def _outcome(body: dict[str, Any]) -> Outcome:
    """From plain data, which has no word for NaN and infinity: both are None. The log is not ours alone, so every value is checked."""
    return Outcome(
        plan_id=str(body["plan_id"])[:LONGEST_ID],
        applied_ms=_whole(body["applied_ms"]),
        predicted=_number(body["predicted"], math.nan),
        realised=_number(body["realised"], math.nan),
        error=_number(body["error"], math.inf),
        half_life_s=_number(body["half_life_s"], math.inf),
        bytes=_whole(body["bytes"]),
        slowdown_s=_number(body["slowdown_s"], 0.0),
        missed=body["missed"] is True,
        rolled_back=body["rolled_back"] is True,
    )


def _whole(value: Any) -> int:
    number = int(value)
    if not 0 <= number < MOST_READ:
        raise ValueError(f"{value!s:.40} is out of range")
    return number


def _number(value: Any, absent: float) -> float:
    number = absent if value is None else float(value)
    if value is not None and not abs(number) < MOST_READ:
        raise ValueError(f"{number} is out of range")
    return number
