"""Before the first forward: do all ranks agree on the pool, the map, the shares and the layout of the weights?"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from eplb.agent.live import LiveMap
from eplb.agent.memory import ExpertMemory, check_memory
from eplb.agent.refusal import Code, Refusal, decode_refusals, encode_refusal
from eplb.errors import MigrationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.group import Group

_COMPARED = (
    "facts of the pool",
    "map",
    "shares",
    "names or sizes of expert tensors",
    "gate_steps",
    "map_version",
)


@dataclass(frozen=True, slots=True)
class Start:
    """What the engine says that it starts with, not yet checked; fields as in ``Agent``."""

    physical_to_logical: NDArray[np.int32]
    shares: NDArray[np.float64] | None
    map_version: int
    gate_steps: int
    run_id: int


def register(facts: PoolFacts, group: Group, memory: ExpertMemory, start: Start) -> tuple[LiveMap, int]:
    """Compare what must be equal; return the live map and rank 0's ``run_id``; every rank calls it.

    Raises:
        MigrationError: on all ranks alike, naming the ranks and what differs or is malformed.
    """
    live, refusal = _own_map(facts, group, start)
    words = np.zeros(len(_COMPARED), dtype=np.int64)
    if live is not None:
        words, refusal = _own_words(facts, group, memory, live, start.gate_steps)
    refusals = decode_refusals(group.gather(encode_refusal(refusal)))
    if refusals or live is None:
        raise MigrationError("; ".join(f"rank {rank}: {sentence}" for rank, _, sentence in refusals))
    everywhere = group.gather(words)
    for rank, name in np.argwhere(everywhere != everywhere[0]):
        raise MigrationError(
            f"rank {rank}: its {_COMPARED[name]} differs from rank 0's; start all ranks alike"
        )
    return live, int(group.broadcast(np.array([start.run_id], dtype=np.int64))[0])


def _own_map(facts: PoolFacts, group: Group, start: Start) -> tuple[LiveMap | None, Refusal | None]:
    try:
        _check_start(facts, group, start)
        return LiveMap(facts, start.physical_to_logical, start.shares, start.map_version), None
    except Exception as error:  # noqa: BLE001 - the other ranks wait in the gather, so this one must come to it too
        return None, Refusal(Code.SHAPE, f"{error!s:.200}")


def _own_words(
    facts: PoolFacts, group: Group, memory: ExpertMemory, live: LiveMap, gate_steps: int
) -> tuple[NDArray[np.int64], Refusal | None]:
    words = np.zeros(len(_COMPARED), dtype=np.int64)
    try:
        shares = b"" if live.shares is None else live.shares.tobytes()
        words[0] = _word(repr(facts).encode())
        words[1] = _word(live.rows.tobytes())
        words[2] = _word(shares)
        words[3] = check_memory(facts, group.rank, memory)
        words[4], words[5] = gate_steps, live.map_version
    except Exception as error:  # noqa: BLE001 - the other ranks wait in the gather, so this one must come to it too
        return words, Refusal(Code.SHAPE, f"{error!s:.200}")
    return words, None


def _check_start(facts: PoolFacts, group: Group, start: Start) -> None:
    if group.size != facts.ranks:
        raise MigrationError(f"the group has {group.size} ranks, the pool {facts.pool!r} has {facts.ranks}")
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
    if start.shares is not None and np.shape(start.shares) != shape:
        raise MigrationError(f"shares are {np.shape(start.shares)}, the pool {facts.pool!r} needs {shape}")


def _word(raw: bytes) -> int:
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little") >> 1
