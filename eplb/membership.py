"""Membership of one pool as its loop needs it: who serves, what that asks for, and what of it is news."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.decisions import Code
from eplb.evacuation import Evacuation
from eplb.gate import refuse

if TYPE_CHECKING:
    from typing import Any

    from eplb.decisions import Decision
    from eplb.evacuation import Need
    from eplb.follow_up import FollowUp
    from eplb.gate import Verdict
    from eplb.planning import Planning
    from eplb.ranks import LiveRanks
    from eplb.window import Window


class Membership:
    """Keeps window, plans and log in step with the group and the model that serve; ``asked`` the need of this cycle."""

    def __init__(self, log: Any) -> None:
        self._watch, self._evacuation = MembershipWatch(log), Evacuation()
        self.asked: Need | None = None

    def observe(self, ranks: LiveRanks, window: Window, planning: Planning, follow_up: FollowUp) -> None:
        """Take note of what the ranks say, before their frames are read."""
        if self._watch.observe(ranks):
            planning.close()
            follow_up.drop()
            window.clear()
        if ranks.run_id is not None:
            window.set_members(ranks.run_id, ranks.members)

    def problem(self, ranks: LiveRanks) -> Verdict | None:
        """Why nothing may be planned now."""
        return self._watch.problem(ranks)

    def need(self, ranks: LiveRanks, now_ms: int) -> Need | None:
        """What membership asks for at store time ``now_ms``."""
        self.asked = self._evacuation.need(ranks, now_ms)
        return self.asked

    def note(self, decision: Decision, ranks: LiveRanks) -> None:
        """Learn from a cycle's decision."""
        self._evacuation.note(decision, ranks)


@dataclass(slots=True)
class MembershipWatch:
    """Compares what the ranks say with what they said before; ``model_changed`` in this cycle."""

    log: Any
    model_changed: bool = False
    _lost: tuple[int, ...] = ()
    _model_digest: int = 0
    _told_run: int | None = None
    _experts_lost: str = ""

    def observe(self, ranks: LiveRanks) -> bool:
        """Log what is new; true when the ranks have loaded another model, so that all that was counted and planned is of no use."""
        if ranks.run_id is None:
            return False
        self._tell_ranks(ranks)
        self._tell_experts(ranks)
        digest = ranks.first.model_digest if ranks.first is not None else 0
        known, self._model_digest = self._model_digest, digest or self._model_digest
        self.model_changed = bool(known and digest and known != digest)
        if self.model_changed:
            self.log.warning("model_changed", before=f"{known:016x}", now=f"{digest:016x}")
        return self.model_changed

    def problem(self, ranks: LiveRanks) -> Verdict | None:
        """Why nothing may be planned now."""
        if ranks.experts_lost:
            sentence = f"an expert is lost, and nobody serves: {ranks.experts_lost}"
            return refuse(Code.EXPERT_LOST, sentence, "a loader for the ranks, or a rank that holds it")
        if self.model_changed:
            sentence = "the ranks have loaded another model; the window is cleared, and plans are dropped"
            return refuse(Code.MODEL_CHANGED, sentence, "load on the new model")
        return None

    def _tell_ranks(self, ranks: LiveRanks) -> None:
        before, self._lost = self._lost, ranks.lost
        if gone := sorted(set(ranks.lost).difference(before)):
            self.log.warning("rank_lost", ranks=gone, members=len(ranks.members))
        if back := sorted(set(before).difference(ranks.lost)):
            self.log.info("rank_back", ranks=back, members=len(ranks.members))

    def _tell_experts(self, ranks: LiveRanks) -> None:
        first = ranks.first
        if first is not None and first.reloaded_experts and ranks.run_id != self._told_run:
            self._told_run = ranks.run_id
            shown = [f"layer {layer} expert {expert}" for layer, expert in first.reloaded]
            self.log.warning("expert_reloaded", count=first.reloaded_experts, experts=shown)
        before, self._experts_lost = self._experts_lost, ranks.experts_lost
        if ranks.experts_lost and ranks.experts_lost != before:
            self.log.critical("expert_lost", reason=ranks.experts_lost)
