"""Before the first forward: do all ranks agree on the pool, the map, the shares and the layout of the weights?"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from eplb.agent.live import LiveMap
from eplb.agent.membership import slots_of
from eplb.agent.memory import ExpertMemory, check_memory
from eplb.agent.refusal import Code, Refusal, decode_refusals, encode_refusal
from eplb.errors import MigrationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.digests import DigestTable
    from eplb.agent.group import Group
    from eplb.agent.mover import Mover

_COMPARED = (
    "facts of the pool",
    "map",
    "shares",
    "names or sizes of expert tensors",
    "gate_steps",
    "map_version",
    "table of digests",
    "profile or, of an engine that moves by itself, model_digest",
)


@dataclass(frozen=True, slots=True)
class Start:
    """What the engine says that it starts with, not yet checked; fields as in ``Agent``."""

    physical_to_logical: NDArray[np.int32]
    shares: NDArray[np.float64] | None
    map_version: int
    gate_steps: int
    run_id: int
    members: tuple[int, ...]
    table: DigestTable | None
    mover: Mover | None = None


def register(
    facts: PoolFacts, group: Group, memory: ExpertMemory | None, start: Start
) -> tuple[LiveMap, int]:
    """Compare what must be equal; return the live map and the first rank's ``run_id``; every rank calls it.

    Raises:
        MigrationError: on all ranks alike, naming the ranks and what differs or is malformed.
    """
    live, refusal = _own_map(facts, start)
    words = np.zeros(len(_COMPARED), dtype=np.int64)
    if live is not None:
        words, refusal = _own_words(facts, start.members[group.rank], memory, live, start)
    refusals = decode_refusals(group.gather(encode_refusal(refusal)), start.members)
    if refusals or live is None:
        raise MigrationError("; ".join(f"rank {rank}: {sentence}" for rank, _, sentence in refusals))
    everywhere = group.gather(words)
    for place, name in np.argwhere(everywhere != everywhere[0]):
        raise MigrationError(
            f"rank {start.members[place]}: its {_COMPARED[name]} differs from rank {start.members[0]}'s; "
            "start all ranks alike"
        )
    return live, int(group.broadcast(np.array([start.run_id], dtype=np.int64))[0])


def _own_map(facts: PoolFacts, start: Start) -> tuple[LiveMap | None, Refusal | None]:
    try:
        _check_start(facts, start)
        return LiveMap(facts, start.physical_to_logical, start.shares, start.map_version), None
    except Exception as error:  # noqa: BLE001 - the other ranks wait in the gather, so this one must come to it too
        return None, Refusal(Code.SHAPE, f"{error!s:.200}")


def _own_words(
    facts: PoolFacts, rank: int, memory: ExpertMemory | None, live: LiveMap, start: Start
) -> tuple[NDArray[np.int64], Refusal | None]:
    words = np.zeros(len(_COMPARED), dtype=np.int64)
    try:
        shares = b"" if live.shares is None else live.shares.tobytes()
        words[0] = word(repr(facts).encode())
        words[1] = word(live.rows.tobytes())
        words[2] = word(shares)
        words[3] = 0 if memory is None else check_memory(facts, rank, memory)
        words[4], words[5] = start.gate_steps, live.map_version
        words[6] = 0 if start.table is None else _table_word(facts, start.table, live)
        words[7] = 0 if start.mover is None else 1 + start.mover.model_digest
    except Exception as error:  # noqa: BLE001 - the other ranks wait in the gather, so this one must come to it too
        return words, Refusal(Code.SHAPE, f"{error!s:.200}")
    return words, None


def _check_start(facts: PoolFacts, start: Start) -> None:
    for name in ("map_version", "gate_steps", "run_id"):
        if not 0 <= getattr(start, name) < 1 << 63:
            raise MigrationError(f"{name} is {getattr(start, name)}, must be 0 to 2**63 - 1")
    shape = (facts.layers, facts.slots)
    rows = np.asarray(start.physical_to_logical)
    if rows.shape != shape or rows.dtype.kind not in "iu":
        raise MigrationError(
            f"physical_to_logical is {rows.dtype} {rows.shape}, the pool {facts.pool!r} needs int32 {shape}"
        )
    if rows.min() < -1 or rows.max() >= facts.experts:
        raise MigrationError(
            f"physical_to_logical holds {rows.min()} to {rows.max()}, ids are 0..{facts.experts - 1} or -1"
        )
    stray = np.argwhere((rows >= 0) & ~slots_of(facts, start.members))
    if stray.size:
        layer, slot = (int(x) for x in stray[0])
        raise MigrationError(
            f"layer {layer} slot {slot} is to hold expert {rows[layer, slot]}, but its rank {slot // facts.slots_per_rank} is no "
            "member of the group; leave the slots of such ranks empty (-1)"
        )
    if start.shares is not None and np.shape(start.shares) != shape:
        raise MigrationError(f"shares are {np.shape(start.shares)}, the pool {facts.pool!r} needs {shape}")


def _table_word(facts: PoolFacts, table: DigestTable, live: LiveMap) -> int:
    if table.digests.shape != (facts.layers, facts.experts):
        raise MigrationError(
            f"the table of digests is {table.digests.shape}, the pool {facts.pool!r} needs {(facts.layers, facts.experts)}"
        )
    for layer, row in enumerate(live.rows):
        missing = set(range(facts.experts)).difference(row.tolist())
        if missing:
            raise MigrationError(
                f"layer {layer} expert {min(missing)}: no slot holds it; start with a map that covers all experts"
            )
    return table.model_digest or 1


def word(raw: bytes) -> int:
    """A digest of some bytes, unsigned 63-bit."""
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little") >> 1
