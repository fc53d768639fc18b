"""A group forms again after a rank was lost or has come back: what do its members hold, and what must be loaded?

A crash between vote and switch can leave survivors with different maps. So nobody's map counts: each rank tells what its own slots
hold, proven by digest, and the joint map is made of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import layer_map_digests
from collectors.shares import even_shares
from eplb.agent.digests import DigestTable
from eplb.agent.emergency import emergency_rows, living_copies
from eplb.agent.loader import LOAD_TIMEOUT_S, load_everywhere
from eplb.agent.membership import by_slot
from eplb.agent.memory import own_slots
from eplb.agent.refusal import Code, Refusal, decode_refusals, encode_refusal
from eplb.agent.registration import word
from eplb.agent.wire import LiveRecord
from eplb.errors import ExpertLost, MigrationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.agent import Agent
    from eplb.agent.group import Group
    from eplb.agent.link import Link
    from eplb.agent.loader import ExpertLoader
    from eplb.agent.memory import ExpertMemory
    from eplb.agent.refusal import Refusals

_TABLE, _FACTS, _VERSION, _TERM, _RUN, _SHARES, _PROBE_VALUES = range(7)
_NAMED = 8
"""Experts that a sentence names; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Past:
    """What a rank brings from its last life.

    ``rows``: int32 [layers, slots], of which only its own slots count. ``shares``: float64 [layers, slots] or None.
    """

    rows: NDArray[np.int32]
    shares: NDArray[np.float64] | None
    table: DigestTable
    map_version: int
    term_seen: int
    run_id: int


@dataclass(frozen=True, slots=True)
class Reformed:
    """What the new life starts with, the same on all its ranks; give it to :class:`eplb.agent.Agent`.

    ``rows``: int32 [layers, slots], -1 where a rank is no member. ``shares``: float64 [layers, slots] or None. ``run_id`` above
    that of any life before. ``reloaded`` (layer, slot, expert) that came from the checkpoint.
    """

    members: tuple[int, ...]
    rows: NDArray[np.int32]
    shares: NDArray[np.float64] | None
    table: DigestTable
    map_version: int
    term_seen: int
    run_id: int
    reloaded: tuple[tuple[int, int, int], ...]


def leave(agent: Agent) -> Past:
    """End an agent's life, its transfer included, and keep what the next one needs.

    Raises:
        MigrationError: its engine moves weights by itself, so that the agent knows none.
    """
    agent.close()
    if agent.table is None:
        raise MigrationError(
            f"rank {agent.rank}: its engine moves weights by itself; let it re-form, then make a new Agent with the map that it routes by"
        )
    return Past(agent.live, agent.shares, agent.table, agent.map_version, agent.term_seen, agent.run_id)


def reform(
    facts: PoolFacts,
    group: Group,
    memory: ExpertMemory,
    members: Sequence[int],
    past: Past | None,
    *,
    loader: ExpertLoader | None = None,
    link: Link | None = None,
    incarnation: int = 0,
    load_timeout_s: float = LOAD_TIMEOUT_S,
) -> Reformed:
    """Find the joint map of a new life and load what no member holds; every member calls it before it makes its agent.

    ``members`` pool ranks by place in ``group``; ``past`` None = this rank has just started. ``link`` is told when nobody can serve.

    Raises:
        MigrationError: on all ranks alike: nobody brings a table, or two bring different ones, or the facts differ.
        GroupTooSmall: on all ranks alike: the members have fewer slots than experts.
        ExpertLost: on all ranks alike: an expert has no living copy and no rank could load it.
    """
    told = _tell(facts, group, members, past)
    table = _joint_table(facts, group, past, told)
    rows, shares = _joint_map(facts, group, memory, members, past)
    after, loads = emergency_rows(facts, members, rows)
    reformed = Reformed(
        members=tuple(members),
        rows=after,
        shares=_whole_shares(facts, rows, after, shares) if told[:, _SHARES].any() else None,
        table=table,
        map_version=int(told[:, _VERSION].max()),
        term_seen=int(told[:, _TERM].max()),
        run_id=int(told[:, _RUN].max()) + 1,
        reloaded=loads,
    )
    own = own_slots(facts, members[group.rank])
    wanted = [load for load in loads if load[1] in own]
    lost = load_everywhere(group, members, wanted, memory, loader, table=table, timeout_s=load_timeout_s)
    if lost:
        if link is not None:
            own_word = _last_word(facts, reformed, lost, rank=members[group.rank], incarnation=incarnation)
            link.publish(own_word, changed=True)
        raise ExpertLost(_lost_sentence(facts, rows, lost))
    return reformed


def _tell(facts: PoolFacts, group: Group, members: Sequence[int], past: Past | None) -> NDArray[np.int64]:
    """What each member says of itself, int64 [members, words]; the table's word is 0 for a rank that just started."""
    words = np.zeros(_PROBE_VALUES + 1, dtype=np.int64)
    words[_FACTS] = word(repr(facts).encode())
    if past is not None:
        words[_TABLE] = past.table.model_digest or 1
        words[_VERSION], words[_TERM], words[_RUN] = past.map_version, past.term_seen, past.run_id
        words[_SHARES] = past.shares is not None
        words[_PROBE_VALUES] = 0 if past.table.probes is None else past.table.probes.shape[2]
    told = group.gather(words)
    known = told[told[:, _TABLE] != 0]
    for place in range(len(told)):
        if told[place, _FACTS] != told[0, _FACTS]:
            raise MigrationError(
                f"rank {members[place]}: its facts of the pool differ from rank {members[0]}'s"
            )
        if len(known) and told[place, _TABLE] not in (0, known[0, _TABLE]):
            raise MigrationError(
                f"rank {members[place]} holds another model than the other members; restart it, so that it joins empty"
            )
    if not len(known):
        raise MigrationError(
            f"none of the members {list(members)} was in a group before; load the model and start agents instead"
        )
    return told


def _joint_table(facts: PoolFacts, group: Group, past: Past | None, told: NDArray[np.int64]) -> DigestTable:
    """The table of the first member that has one, given to all if a member has none."""
    if past is not None and told[:, _TABLE].all():
        return past.table
    source, values = int(np.flatnonzero(told[:, _TABLE])[0]), int(told[:, _PROBE_VALUES].max())
    digests = np.zeros((facts.layers, facts.experts), dtype=np.int64)
    probes = np.zeros((facts.layers, facts.experts, values))
    if group.rank == source and past is not None:
        digests = past.table.digests.view(np.int64)
        probes = probes if past.table.probes is None else past.table.probes
    digests = group.broadcast(digests, source)
    given = group.broadcast(probes, source) if values else None
    return DigestTable(digests.view(np.uint64), given)


def _joint_map(
    facts: PoolFacts, group: Group, memory: ExpertMemory, members: Sequence[int], past: Past | None
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """What the members' slots hold, int32 [layers, slots], and the shares they had, float64 [layers, slots]."""
    shape = (facts.layers, facts.slots_per_rank)
    held, shares = np.full(shape, -1, dtype=np.int32), np.zeros(shape)
    refusal = None
    if past is not None:
        try:
            slots = own_slots(facts, members[group.rank])
            held = _proven(past, memory, slots)
            shares = shares if past.shares is None else np.where(held >= 0, past.shares[:, slots], 0.0)
        except Exception as error:  # noqa: BLE001 - the other ranks wait in the gather, so this one must come to it too
            refusal = Refusal.of(Code.INTERNAL, error)
    refusals = decode_refusals(group.gather(encode_refusal(refusal)), members)
    if refusals:
        raise MigrationError("; ".join(f"rank {rank}: {sentence}" for rank, _, sentence in refusals))
    rows = by_slot(facts, group.gather(held + 1), members) - 1
    return rows.astype(np.int32), by_slot(facts, group.gather(shares), members)


def _proven(past: Past, memory: ExpertMemory, slots: range) -> NDArray[np.int32]:
    """The experts of this rank's slots, int32 [layers, slots_per_rank]; -1 where the weights are not those of the table."""
    held = np.array(past.rows[:, slots.start : slots.stop], dtype=np.int32)
    for layer, place in np.argwhere(held >= 0).tolist():
        tensors = memory.tensors(layer, slots[place])
        if past.table.check(memory, layer, int(held[layer, place]), tensors) is not None:
            held[layer, place] = -1
    return held


def _whole_shares(
    facts: PoolFacts, before: NDArray[np.int32], after: NDArray[np.int32], shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Shares that add up to 1 for every expert again: as they were where no copy was lost, else even among its copies."""
    whole = np.stack([even_shares(row) for row in after])
    for layer, row in enumerate(after):
        held = row >= 0
        total = np.bincount(row[held], weights=shares[layer, held], minlength=facts.experts)
        kept = held & (row == before[layer]) & (np.abs(total[np.where(held, row, 0)] - 1.0) < 1e-6)
        whole[layer, kept] = shares[layer, kept]
    return whole


def _lost_sentence(facts: PoolFacts, rows: NDArray[np.int32], lost: Refusals) -> str:
    missing = np.argwhere(living_copies(facts, rows) == 0)
    named = ", ".join(f"layer {layer} expert {expert}" for layer, expert in missing[:_NAMED].tolist())
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    why = "; ".join(f"rank {rank}: {sentence}" for rank, _, sentence in lost[:4])
    return (
        f"expert lost: no member holds {named}{more}; {why}. Give the agent a loader or mend it, or bring back a rank that holds "
        "them; nobody serves until then"
    )


def _last_word(
    facts: PoolFacts, reformed: Reformed, lost: Refusals, *, rank: int, incarnation: int
) -> LiveRecord:
    """What the daemon hears of a group that cannot serve."""
    return LiveRecord(
        pool=facts.pool,
        rank=rank,
        incarnation=incarnation,
        run_id=reformed.run_id,
        term_seen=reformed.term_seen,
        map_version=reformed.map_version,
        group_step=-1,
        state="stuck",
        offer="",
        digests=tuple(int(digest) for digest in layer_map_digests(facts.model_layers, reformed.rows)),
        members=reformed.members,
        model_digest=reformed.table.model_digest,
        refusals=lost[:_NAMED],
    )
