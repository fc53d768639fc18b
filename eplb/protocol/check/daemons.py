"""Steps of the daemons: lead, read, decide, write; every decision is the protocol's own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from eplb.protocol.check.world import Control, Daemon, Offer, Plan, Write
from eplb.protocol.facts import Profile
from eplb.protocol.leader import may_lead, may_write, next_term
from eplb.protocol.wave import DUE, Act, WaveState, decide_act, observe_wave

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eplb.protocol.check.sight import Sight
    from eplb.protocol.check.world import Bounds, Left, Record, Row, Shape


class Turn(NamedTuple):
    """What one step of a daemon leads to.

    ``control`` what the store holds then, None = as before. ``due`` False: nothing asked for it, it is an operator's or another
    policy's. ``claim`` (run, layer, row) that it takes for served by all members. ``wrong`` the rule that it broke, "" = none;
    ``left`` what may still come, None = as before.
    """

    name: str
    daemon: Daemon
    control: Control | None = None
    due: bool = True
    claim: tuple[int, int, Row] | None = None
    wrong: str = ""
    left: Left | None = None


class Daemons:
    """Steps of daemons under a set of guards."""

    def __init__(self, shape: Shape, bounds: Bounds, guards: frozenset[str]) -> None:
        self.shape, self.waves, self.guards = shape, bounds.waves, guards
        self.target = (shape.target,) * bounds.waves
        self._goes_back = bounds.profile is Profile.DELEGATED

    # Leadership.

    def acquire(self, daemon: Daemon, control: Control, number: int, floor: int) -> Iterator[Turn]:
        """Ask for the lease; the term is above the store's and above ``floor``, the highest that ranks report."""
        if daemon.term or daemon.write is not None:
            return
        if may_lead(number + 1, control.holder, guards=self.guards) is not None:
            return
        term = next_term(control.fence, floor)
        wrong = "" if control.holder in (0, number + 1) else "deposed a leader in good standing"
        after = control._replace(fence=term, holder=number + 1)
        yield Turn("lead", daemon._replace(term=term), after, wrong=wrong)

    def step_down(self, daemon: Daemon, control: Control, number: int, floor: int) -> Iterator[Turn]:
        """Notice that the lease is gone, or that ranks refuse the term that an emptied store gave."""
        if not daemon.term or daemon.write is not None:
            return
        if control.holder != number + 1:
            yield Turn("step down", daemon._replace(term=0, idea=None))
        elif floor > daemon.term:
            yield Turn("lead anew", daemon._replace(term=0, idea=None), control._replace(holder=0))

    # One cycle: read and decide, then write.

    def cycle(self, daemon: Daemon, sight: Sight, number: int, left: Left) -> Iterator[Turn]:
        """Decide on one write by what was read; nothing is written yet."""
        if not daemon.term or daemon.write is not None or sight.control.holder != number + 1:
            return
        calm = sight.evidence()
        head = sight.head
        if head is not None and self._may_plan(daemon, head, left.plans):
            yield Turn("plan", daemon._replace(idea=head.digests), due=False)
        # The model keeps no clocks: an offer may be overdue at any moment.
        states = {observe_wave(evidence).state: None for evidence in (calm, replace(calm, overdue=True))}
        for state in states:
            yield from self._turns(state, daemon, sight, left)

    def _turns(self, state: WaveState, daemon: Daemon, sight: Sight, left: Left) -> Iterator[Turn]:
        yield from self._way_back(state, daemon, sight)
        for act in Act:
            write = self._write_of(act, daemon, sight, left.plans)
            after, due = self._asked_for(act, state, left)
            stays = state is WaveState.WAVE_LIVE and self._write_of(Act.OFFER_NEXT, daemon, sight, 0) is None
            if act is Act.WITHDRAW and stays:
                after, due = left, True
            if write is None or after is None:
                continue
            served = None if sight.head is None else sight.head.digests
            base_is_live = act is not Act.BEGIN or daemon.idea == served
            facts = sight.act_facts(act, state, base_is_live=base_is_live)
            if decide_act(act, facts, guards=self.guards) is not None:
                continue
            yield Turn(
                name=str(act),
                daemon=daemon._replace(write=write, idea=None if act is Act.BEGIN else daemon.idea),
                due=due,
                claim=sight.claim(state),
                wrong=sight.rule_broken(act),
                left=None if after is left else after,
            )

    def _way_back(self, state: WaveState, daemon: Daemon, sight: Sight) -> Iterator[Turn]:
        """Answer a wave that an engine committed wrong with a plan to the map before, once."""
        plan, head = sight.control.plan, sight.head
        if not self._goes_back or state is not WaveState.UNVERIFIED or plan is None or head is None:
            return
        if plan.target != self.target or sight.control.offer is None or sight.control.offer.flaw:
            return
        # Whatever a rank reports is named as a base of the offer, so that none serves another map than the plan starts from.
        facts = replace(sight.act_facts(Act.BEGIN, state, base_is_live=True), other=())
        back = Plan(plan.number + 1000, head.digests, plan.base)
        write = self._wave(Act.BEGIN, back, daemon.term, sight, back=True)
        if write is not None and decide_act(Act.BEGIN, facts, guards=self.guards) is None:
            yield Turn("begin the way back", daemon._replace(write=write))

    @staticmethod
    def _asked_for(act: Act, state: WaveState, left: Left) -> tuple[Left | None, bool]:
        """What is left if the daemon tries this act, None = nobody asks for it; and whether the state itself asks for it."""
        if act is Act.BEGIN:
            return (left._replace(plans=left.plans - 1), False) if left.plans else (None, False)
        if act is Act.WITHDRAW and state in (WaveState.MOVING, WaveState.WAVE_LIVE):
            return left.spend("wishes"), False
        again = act is Act.OFFER_AGAIN and state in (WaveState.MOVING, WaveState.REFUSED)
        # What a guard should refuse is tried too.
        return left, again or act is DUE[state]

    def write(self, daemon: Daemon, control: Control) -> Iterator[Turn]:
        """Make the write that was decided on; the store checks the term against the fence, and against the lease while somebody holds it.

        A lease that is held was taken under the fence: both rise in one step, and no other term is let through meanwhile.
        """
        write = daemon.write
        if write is None:
            return
        held = control.fence if control.holder else 0
        if may_write(daemon.term, control.fence, held, guards=self.guards) is not None:
            yield Turn("write refused", Daemon())
            return
        wrong = ""
        if daemon.term < control.fence:
            wrong = "wrote under a term older than one that the store had granted"
        elif held and daemon.term > held:
            wrong = "wrote beside a leader in good standing"
        elif write.act == Act.BEGIN and _goes_on(control, write):
            wrong = "wrote a new plan over one on offer"
        after = Control(
            max(control.fence, daemon.term),
            control.holder,
            write.plan,
            write.offer,
        )
        yield Turn(f"write {write.act}", daemon._replace(write=None), after, wrong=wrong)

    def _may_plan(self, daemon: Daemon, record: Record, plans: int) -> bool:
        return (
            plans > 0
            and daemon.idea is None
            and record.digests != self.target
            and len(record.members) * self.shape.width == len(self.shape.target)
        )

    def _write_of(self, act: Act, daemon: Daemon, sight: Sight, plans: int) -> Write | None:
        control, head = sight.control, sight.head
        if act is Act.BEGIN:
            if daemon.idea is None or head is None:
                return None
            return self._wave(act, Plan(plans, daemon.idea, self.target), daemon.term, sight)
        if control.offer is None:
            return None
        if act is Act.OFFER_NEXT:
            return None if control.plan is None or head is None else self._next(control.plan, daemon, sight)
        if act is Act.OFFER_AGAIN:
            again = control.offer._replace(term=daemon.term)
            return Write(act, control.plan, again) if control.offer.term < daemon.term else None
        return Write(act, control.plan if act is Act.CLOSE else None, None)

    def _next(self, plan: Plan, daemon: Daemon, sight: Sight) -> Write | None:
        digests = () if sight.head is None else sight.head.digests
        served = list(zip(digests, plan.base, plan.target, strict=True))
        stale = any(found not in (base, target) for found, base, target in served)
        return None if stale else self._wave(Act.OFFER_NEXT, plan, daemon.term, sight)

    def _wave(self, act: Act, plan: Plan, term: int, sight: Sight, *, back: bool = False) -> Write | None:
        """The next layer; on the way ``back`` first one that ranks do not agree on or of which one reports a gap."""
        record = sight.head
        if record is None:
            return None
        found = [
            tuple(sorted({each.digests[layer] for each in sight.present.values()}))
            for layer in range(self.waves)
        ]
        left = [
            layer
            for layer in range(self.waves)
            if (
                found[layer] != (plan.target[layer],) if back else record.digests[layer] != plan.target[layer]
            )
        ]
        if not left:
            return None
        layer = max(left, key=lambda layer: (back and found[layer] != (self.target[layer],), -layer))
        wave = self.waves - len(left)
        target = plan.target[layer]
        offer = Offer(
            plan.number, wave, self.waves, term, record.run, layer, plan.base[layer], target, target,
            bases=found[layer] if back else (),
        )  # fmt: skip
        return Write(act, plan, offer, sight.given_up() if act is Act.BEGIN else None)


def _goes_on(control: Control, write: Write) -> bool:
    """Whether an offer of a plan is there that the daemon has not read a rank to be stuck with.

    What ranks have reported since is not asked: a record that comes again, or late, takes nothing from what was read before it.
    """
    return control.offer is not None and not control.offer.flaw and control.offer != write.over
