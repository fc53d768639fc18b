"""A plan: an immutable proposal from one live map to another, with what it gains, costs and rests on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import layer_map_digests
from eplb.agent.sound import check_types
from eplb.agent.wire import LayerChange, read_changes, seal, unseal
from eplb.errors import OfferError, PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts

PLAN_SCHEMA = "eplb.plan/1"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is proposed, from which map, and why.

    ``changes`` the layers that change, each with base and target digest and row. ``base_digests`` map digest of every layer
    at the start. ``moves`` slots that get an expert their rank does not hold; ``bytes`` that cross between ranks.
    ``gain_ratio`` fall of the mean imbalance ratio;
    ``reasons`` (code, sentence).
    """

    pool: str
    plan_id: str
    created_ms: int
    base_digests: tuple[int, ...]
    changes: tuple[LayerChange, ...]
    moves: int
    bytes: int
    gain_ratio: float
    reasons: tuple[tuple[str, str], ...] = ()


def make_plan(
    facts: PoolFacts,
    base: NDArray[np.int32],
    target: NDArray[np.int32],
    *,
    created_ms: int,
    shares: NDArray[np.float64] | None = None,
    base_shares: NDArray[np.float64] | None = None,
    gain_ratio: float = 0.0,
    reasons: Sequence[tuple[str, str]] = (),
) -> Plan:
    """Compare two maps, int32 [layers, slots] each, and shares, float64 [layers, slots] or None.

    ``created_ms`` (store time) is part of the plan's identity, so that the same proposal made again is a new plan.

    Raises:
        PlanError: an array has not the pool's shape.
    """
    _check_shapes(facts, base=base, target=target, shares=shares, base_shares=base_shares)
    base_digests = layer_map_digests(facts.model_layers, base)
    target_digests = layer_map_digests(facts.model_layers, target)
    changes = tuple(
        LayerChange(
            layer=layer,
            base_digest=int(base_digests[layer]),
            target_digest=int(target_digests[layer]),
            target=tuple(int(x) for x in target[layer]),
            shares=None if shares is None else tuple(float(x) for x in shares[layer]),
        )
        for layer in range(facts.layers)
        if base_digests[layer] != target_digests[layer] or _new_shares(shares, base_shares, layer)
    )
    moves = sum(len(_moved_slots(facts, base[change.layer], target[change.layer])) for change in changes)
    return Plan(
        pool=facts.pool,
        plan_id=_plan_id(created_ms, base_digests, changes),
        created_ms=created_ms,
        base_digests=tuple(int(x) for x in base_digests),
        changes=changes,
        moves=moves,
        bytes=moves * facts.bytes_per_expert,
        gain_ratio=float(gain_ratio),
        reasons=tuple((str(code), str(sentence)) for code, sentence in reasons),
    )


def encode_plan(plan: Plan) -> bytes:
    """The plan as bytes for the store."""
    return seal(PLAN_SCHEMA, asdict(plan))


def decode_plan(raw: bytes) -> Plan:
    """Read a plan.

    Raises:
        OfferError: the record is damaged, of another schema, or a field has the wrong type.
    """
    body = unseal(PLAN_SCHEMA, raw)
    try:
        changes = read_changes(body.pop("changes"))
        base_digests = tuple(int(x) for x in body.pop("base_digests"))
        reasons = tuple((str(code), str(sentence)) for code, sentence in body.pop("reasons"))
        plan = Plan(changes=changes, base_digests=base_digests, reasons=reasons, **body)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise OfferError(f"plan: a field is missing or of the wrong type ({error!s:.120})") from error
    check_types(plan)
    return plan


def _moved_slots(facts: PoolFacts, base: NDArray[np.int32], target: NDArray[np.int32]) -> list[int]:
    width = facts.slots_per_rank
    held = [set(base[rank * width : (rank + 1) * width].tolist()) for rank in range(facts.ranks)]
    return [
        slot
        for slot, expert in enumerate(target.tolist())
        if expert >= 0 and expert not in held[slot // width]
    ]


def _new_shares(shares: NDArray[np.float64] | None, base: NDArray[np.float64] | None, layer: int) -> bool:
    if shares is None:
        return False
    return base is None or not np.array_equal(shares[layer], base[layer])


def _plan_id(created_ms: int, base_digests: NDArray[np.uint64], changes: Sequence[LayerChange]) -> str:
    digest = blake2b(str(created_ms).encode(), digest_size=5)
    digest.update(base_digests.astype("<u8").tobytes())
    digest.update(repr([(change.layer, change.target_digest, change.shares) for change in changes]).encode())
    return f"p{digest.hexdigest()}"


def _check_shapes(facts: PoolFacts, **arrays: NDArray[np.generic] | None) -> None:
    for name, array in arrays.items():
        if array is not None and array.shape != (facts.layers, facts.slots):
            raise PlanError(
                f"{name} is {array.shape}, pool {facts.pool!r} needs {(facts.layers, facts.slots)}"
            )
