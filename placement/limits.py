"""What a solve may spend and how close to the best it must come."""

from __future__ import annotations

from dataclasses import dataclass

from placement.checks import real, whole
from placement.errors import PlacementError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on the outcome and on the work.

    ``slack``: the chosen point may be this much above the bound, or else above the best found (0.005 = 0.5 %).
    ``moves``: most moves of the chosen point, over all layers; None = no limit. Repairs count and are never left out.
    ``evaluations``: most exchanges that one kind of search weighs, over all layers: levelling, annealing, the descent by the asked
    value, and with traffic each of these for every choice of nodes; None = what the effort gives. 0 = no search.
    ``bytes_per_expert``: bytes that one move brings; None = unknown.

    Raises:
        PlacementError: a limit is below 0, or ``slack`` is no finite number, or another is no whole number.
    """

    slack: float = 0.005
    moves: int | None = None
    evaluations: int | None = None
    bytes_per_expert: int | None = None

    def __post_init__(self) -> None:
        slack = real("limits.slack", self.slack)
        if slack < 0:
            raise PlacementError(f"limits.slack is {slack}, must be at least 0")
        object.__setattr__(self, "slack", slack)
        for name in ("moves", "evaluations", "bytes_per_expert"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole(f"limits.{name}", value, 0))
