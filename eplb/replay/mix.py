"""Which domains new requests come from, as time goes on."""

from __future__ import annotations

from dataclasses import dataclass

from eplb.errors import ReplayError

MIXES = ("stationary", "switch", "ramp", "daily", "turns")

RAMP_SPAN = 0.25
"""A ramp begins and ends so much of the run before and after its middle."""

DAYS = 2
"""Days that a daily run spans."""

TURNS = 6
"""Turns of such a run: the first group, the second, the first again, and so on."""


@dataclass(frozen=True, slots=True)
class Mix:
    """How the share of the second group of domains moves.

    ``kind``: ``stationary`` = only the first group; ``switch`` = the second from ``at`` on; ``ramp`` = straight from first to second
    around ``at``; ``daily`` = up and down in straight lines, twice; ``turns`` = either group alone, three times each. ``at``: part of
    the run.

    Raises:
        ReplayError: the kind is unknown or ``at`` is not inside the run.
    """

    kind: str = "stationary"
    at: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in MIXES:
            raise ReplayError(f"mix {self.kind!r} is unknown: use one of {', '.join(MIXES)}")
        if not 0 < self.at < 1:
            raise ReplayError(f"the mix changes at {self.at} of the run, must be above 0 and below 1")

    def second_share(self, progress: float) -> float:
        """Chance that a new request is of the second group, ``progress`` (0 to 1) of the run being over."""
        if self.kind == "stationary":
            return 0.0
        if self.kind == "switch":
            return 1.0 if progress >= self.at else 0.0
        if self.kind == "ramp":
            return min(1.0, max(0.0, (progress - self.at + RAMP_SPAN) / (2 * RAMP_SPAN)))
        if self.kind == "turns":
            return float(int(progress * TURNS) % 2)
        hour = progress * DAYS % 1.0
        return 2 * min(hour, 1.0 - hour)
