"""Lives of a group as records tell them: which one serves, whose words count in it, and which rank's weights are in doubt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.protocol.facts import RankState
from eplb.protocol.refusals import Code

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_GROUP_LOST = frozenset({str(Code.GROUP_FAILED), str(Code.EXPERT_LOST)})


@dataclass(frozen=True, slots=True)
class Told:
    """What one rank's record says of its life: ``members`` that the life has, ``carries_map`` it is the first member's."""

    run_id: int
    members: tuple[int, ...]
    carries_map: bool


def serving_run(told: Iterable[Told]) -> int | None:
    """The ``run_id`` of the life that serves now, None without a record.

    Run ids need not grow, and ranks have no common clock. What tells lives apart is that a rank has one record: the members of a
    life that is over report another, so the life that serves is the one whose members report it, all of them once it has settled. While they
    change over, a life whose first member has reported comes before one whose map nobody tells.
    """
    lives: dict[int, list[Told]] = {}
    for record in told:
        lives.setdefault(record.run_id, []).append(record)

    def standing(run_id: int) -> tuple[bool, bool, float, int]:
        here = lives[run_id]
        present = len(here) / len(here[0].members)
        return present >= 1.0, any(record.carries_map for record in here), present, run_id

    return max(lives, key=standing, default=None)


def ranks_of_run(runs: Mapping[int, int], run_id: int | None, *, guards: frozenset[str]) -> frozenset[int]:
    """Ranks whose records count: those of the group's present life, as its first member names it (None = it is silent).

    ``runs``: the ``run_id`` of each rank's record. A record of an earlier life of the group says nothing about this one.
    """
    if run_id is None or "one_run" not in guards:
        return frozenset(runs)
    return frozenset(rank for rank, found in runs.items() if found == run_id)


def weights_in_doubt(state: str, codes: Collection[str]) -> bool:
    """Whether a rank is stuck with weights that failed their read-back; one that only lost its group waits for it to form again.

    ``codes`` of what it says against itself.
    """
    return state == RankState.STUCK and not _GROUP_LOST.intersection(codes)


def left_broken(broken: Iterable[int], layers: Collection[int]) -> int | None:
    """The first layer that was read back wrong and that an offer of these layers does not touch; None = it touches all."""
    return next((layer for layer in broken if layer not in layers), None)
