"""Another version of the model on ranks that stay: every slot is loaded anew, by the map that is served and not by the first one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from eplb.agent.digests import DigestTable
from eplb.agent.loader import LOAD_TIMEOUT_S, load_everywhere
from eplb.agent.memory import own_slots
from eplb.agent.reform import Reformed, leave
from eplb.agent.refusal import Code, Refusal, decode_refusals, encode_refusal
from eplb.errors import ExpertLost, MigrationError

if TYPE_CHECKING:
    from eplb.agent.agent import Agent
    from eplb.agent.group import Group
    from eplb.agent.loader import ExpertLoader
    from eplb.agent.memory import ExpertMemory

TRANSFER_WAIT_S = 60.0
"""A transfer of the old weights ends by its own time limit; what it brings is thrown away."""


def reload_model(
    agent: Agent,
    group: Group,
    memory: ExpertMemory,
    loader: ExpertLoader,
    *,
    load_timeout_s: float = LOAD_TIMEOUT_S,
    transfer_wait_s: float = TRANSFER_WAIT_S,
) -> Reformed:
    """End the agent's life, load every slot by the live map, and make the digest table anew; every member calls it between forwards.

    What was staged of the old model is let go first, so that no transfer writes old weights over new ones. The next agent serves
    the same map under a new ``run_id`` and model digest, so that offers for the old model are refused; :class:`eplb.agent.Agent`
    takes what is returned.

    Raises:
        MigrationError: on all ranks alike: a transfer did not end in time, or replicas of an expert differ after the load.
        ExpertLost: on all ranks alike: an expert could not be loaded.
    """
    past, members = leave(agent), agent.members
    running = None
    if not agent.wait_for_transfers(time.monotonic() + transfer_wait_s):
        running = Refusal(Code.BUSY, f"a transfer of the old model did not end within {transfer_wait_s:g} s")
    busy = decode_refusals(group.gather(encode_refusal(running)), members)
    if busy:
        raise MigrationError("; ".join(f"rank {rank}: {said}; form the group anew" for rank, _, said in busy))
    wanted = [
        (layer, slot, int(row[slot]))
        for layer, row in enumerate(past.rows)
        for slot in own_slots(agent.facts, agent.rank)
        if row[slot] >= 0
    ]
    failed = load_everywhere(group, members, wanted, memory, loader, table=None, timeout_s=load_timeout_s)
    if failed:
        said = "; ".join(f"rank {rank}: {sentence}" for rank, _, sentence in failed[:4])
        raise ExpertLost(f"the new model cannot be served: {said}. Mend the loader and load again")
    return Reformed(
        members=members,
        rows=past.rows,
        shares=past.shares,
        table=DigestTable.build(agent.facts, group, memory, past.rows, members),
        map_version=past.map_version,
        term_seen=past.term_seen,
        run_id=past.run_id + 1,
        reloaded=(),
    )
