"""What a solve may spend and how close to the best it must come."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from placement.errors import PlacementError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on the outcome and on the work.

    ``slack``: the chosen point may be this much above the bound, or else above the best found (0.005 = 0.5 %).
    ``moves``: most moves of the chosen point, over all layers; None = no limit. Repairs count and are never left out.
    ``evaluations``: most exchanges weighed, over all layers; None = what the effort gives. 0 = no search.
    ``bytes_per_expert``: bytes that one move brings; None = unknown.

    Raises:
        PlacementError: a limit is below 0 or not finite.
    """

    slack: float = 0.005
    moves: int | None = None
    evaluations: int | None = None
    bytes_per_expert: int | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.slack) and self.slack >= 0):
            raise PlacementError(f"limits.slack is {self.slack}, must be finite and at least 0")
        for name in ("moves", "evaluations", "bytes_per_expert"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise PlacementError(f"limits.{name} is {value}, must be at least 0 or None")
