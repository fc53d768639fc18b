"""Mutation control: for each guard, bounds within which its absence lets a rule be broken.

``TOGETHER`` names guards that cover one hazard with another: the hazard comes only when both are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.protocol import ALL_GUARDS, Profile
from eplb.protocol.check.explore import explore
from eplb.protocol.check.world import Bounds

if TYPE_CHECKING:
    from eplb.protocol.check.explore import Result

TOGETHER: dict[str, tuple[str, str]] = {
    "base_checked": (
        "base_live",
        "a daemon that offers a plan on another map than the plan's is refused by every rank",
    ),
}
"""By guard: the other one that covers its hazard, and why."""

CONTROLS: dict[str, Bounds] = {
    "same_pool": Bounds(strays=1),
    "row_sound": Bounds(strays=1),
    "term_not_old": Bounds(pauses=1),
    "same_run": Bounds(strays=1),
    "same_model": Bounds(strays=1),
    "base_live": Bounds(strays=1),
    "target_right": Bounds(strays=1),
    "members_only": Bounds(ranks=3, daemons=1, waves=1, plans=0, crashes=1, strays=1),
    "not_stuck": Bounds(writes=1, strays=1),
    "mends_broken": Bounds(writes=1, strays=1, profile=Profile.DELEGATED),
    "not_closed": Bounds(transfers=1),
    "not_busy": Bounds(pauses=1),
    "same_step": Bounds(skews=1),
    "same_offer": Bounds(),
    "not_expired": Bounds(),
    "transfer_complete": Bounds(),
    "weights_right": Bounds(transfers=1),
    "probe_right": Bounds(transfers=1),
    "read_back": Bounds(writes=1),
    "unanimous_vote": Bounds(transfers=1),
    "store_fresh": Bounds(),
    "still_wanted": Bounds(wishes=1),
    "one_wave": Bounds(plans=2),
    "all_ranks_live": Bounds(),
    "no_abort_in_doubt": Bounds(),
    "base_checked": Bounds(crashes=1),
    "one_run": Bounds(crashes=1),
    "fence": Bounds(pauses=1, crashes=1),
    "lease": Bounds(),
}


def without(name: str, *, alone: bool = False) -> Result:
    """Search with this guard taken away, and the other one of its pair unless ``alone``."""
    gone = {name} if alone or name not in TOGETHER else {name, TOGETHER[name][0]}
    return explore(CONTROLS[name], ALL_GUARDS - gone, states_max=200_000, progress=False)
