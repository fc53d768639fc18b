"""Before the first forward: do all ranks agree on the pool, the map, the shares and the layout of the weights?"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import live_map_digest
from eplb.agent.memory import ExpertMemory, check_memory
from eplb.agent.refusal import Code, Refusal, decode_refusals, encode_refusal
from eplb.errors import MigrationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.group import Group
    from eplb.agent.live import LiveMap

_COMPARED = ("facts of the pool", "map", "shares", "names or sizes of expert tensors")


def register(facts: PoolFacts, group: Group, memory: ExpertMemory, live: LiveMap, run_id: int) -> int:
    """Compare what must be equal and return rank 0's ``run_id``; every rank calls it.

    Raises:
        MigrationError: on all ranks alike, naming the ranks and what differs.
    """
    words, refusal = _own_words(facts, group, memory, live)
    refusals = decode_refusals(group.gather(encode_refusal(refusal)))
    if refusals:
        raise MigrationError("; ".join(f"rank {rank}: {sentence}" for rank, _, sentence in refusals))
    everywhere = group.gather(words)
    for rank, name in np.argwhere(everywhere != everywhere[0]):
        raise MigrationError(
            f"rank {rank}: its {_COMPARED[name]} differs from rank 0's; start all ranks alike"
        )
    return int(group.broadcast(np.array([run_id], dtype=np.int64))[0])


def _own_words(
    facts: PoolFacts, group: Group, memory: ExpertMemory, live: LiveMap
) -> tuple[NDArray[np.int64], Refusal | None]:
    words = np.zeros(len(_COMPARED), dtype=np.int64)
    try:
        _check_shapes(facts, group, live)
        shares = b"" if live.shares is None else live.shares.tobytes()
        words[0] = _word(repr(facts).encode())
        words[1] = live_map_digest(live.digests) >> 1
        words[2] = _word(shares)
        words[3] = check_memory(facts, group.rank, memory)
    except Exception as error:  # noqa: BLE001 - the other ranks wait in the gather, so this one must come to it too
        return words, Refusal(Code.SHAPE, f"{error!s:.200}")
    return words, None


def _check_shapes(facts: PoolFacts, group: Group, live: LiveMap) -> None:
    if group.size != facts.ranks:
        raise MigrationError(f"the group has {group.size} ranks, the pool {facts.pool!r} has {facts.ranks}")
    shape = (facts.layers, facts.slots)
    if live.rows.shape != shape:
        raise MigrationError(
            f"physical_to_logical is {live.rows.shape}, the pool {facts.pool!r} needs {shape}"
        )
    if live.rows.min() < -1 or live.rows.max() >= facts.experts:
        raise MigrationError(
            f"physical_to_logical holds {live.rows.max()}, ids are 0..{facts.experts - 1} or -1"
        )
    if live.shares is not None and live.shares.shape != shape:
        raise MigrationError(f"shares are {live.shares.shape}, the pool {facts.pool!r} needs {shape}")


def _word(raw: bytes) -> int:
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little") >> 1
