"""What a solve hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placement.checks import whole

if TYPE_CHECKING:
    from placement.bounds import Bound
    from placement.frontier import Frontier
    from placement.placement import Placement


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something was fixed, skipped, limited or cut short: a code and a sentence.

    ``places``: (layer, expert) or (layer, slot) pairs, as the sentence says; may be empty.
    """

    code: str
    sentence: str
    places: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """One map of the frontier: ``moves`` slots that receive an expert new to their rank, and the objective then.

    ``bytes``: weights to move, None when ``limits.bytes_per_expert`` is unknown.
    """

    moves: int
    bytes: int | None
    objective: float


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A placement with its price, its proof and its alternatives.

    ``placement``: the chosen map, without violations, with shares 1 / copies, or with dispatch ``weighted`` those it was valued with.
    ``frontier``: points in rising moves and falling objective; ``at(moves)`` gives the map of any of them.
    ``objective``: mean over slices and layers of the costliest rank over perfect balance, by the dispatch and cost that were asked, of
    ``placement``: the ``mean_ratio`` of ``evaluate`` (and the price of traffic, if asked). NaN without any load.
    ``objective_start``: the same of ``current`` as it stands; None without a current map or when that serves not all experts.
    ``bound``: no map of this topology without violations has a lower objective. ``bound_reason``: why.
    ``layer_bounds``: the bound of every layer with its reason.
    ``moves``: moves of ``placement`` (of a cold start: every filled slot).
    ``policy``: ``hierarchical`` = every expert group was kept whole on a node, ``global`` = copies could be on any live rank.
    """

    placement: Placement
    frontier: tuple[Point, ...]
    bound: float
    bound_reason: Reason
    objective: float
    objective_start: float | None
    reasons: tuple[Reason, ...]
    moves: int
    paths: Frontier
    layer_bounds: tuple[Bound, ...] = ()
    policy: str = "global"

    def at(self, moves: int) -> Placement:
        """The best map found within ``moves`` moves; with fewer than the repairs need, the repaired map.

        Raises:
            PlacementError: ``moves`` is no whole number.
        """
        return self.paths.placement(self.paths.within(whole("moves", moves)))
