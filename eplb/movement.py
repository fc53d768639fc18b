"""Where the migration stands, as the controller is told it: from what is desired, what the ranks serve and what was asked last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.agent.refusal import Code as RefusalCode
from eplb.migration.status import State as Migration
from eplb.migration.status import serves_plan
from eplb.states import Movement, Name

if TYPE_CHECKING:
    from collectors.facts import PoolFacts
    from eplb.migration import Plan
    from eplb.snapshots import Known
    from eplb.states import State

ROLLBACK = "rollback"
"""Reason code of a plan that puts the map before back; it is in the store, so that the next leader knows it too."""


def movement_of(
    facts: PoolFacts, state: State, known: Known, *, paced: str = "", delegated: bool = False
) -> Movement:
    """The movement that a cycle found; ``paced`` why waves are as large as they are, ``delegated`` whether the engine moves by itself."""
    status, ours, asked = known.status, state.plan, known.desired.plan
    going_back = asked is not None and leads_back(asked)
    moving = state.name is Name.MOVING and status.state is Migration.IDLE
    if (
        moving
        and asked is not None
        and (ours is None or ours.plan_id == asked.plan_id)
        and serves_plan(facts, asked, known.ranks.records)
    ):
        # The answer to our last write was lost, but the write itself was not.
        return Movement(str(Migration.ALL_LIVE), "all ranks serve the plan", going_back=going_back)
    codes = {code for _, code, _ in status.refusals}
    return Movement(
        str(status.state),
        "; ".join(filter(None, (status.sentence, paced))),
        term_refused=codes == {str(RefusalCode.OLD_TERM)},
        place=(status.state, status.offer, status.layers_live, status.waiting),
        waiting=status.waiting,
        delegated=delegated,
        going_back=going_back,
    )


def leads_back(plan: Plan) -> bool:
    """Whether a plan puts the map before an earlier one back."""
    return any(code == ROLLBACK for code, _ in plan.reasons)
