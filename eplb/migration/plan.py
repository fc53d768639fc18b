"""A plan: an immutable proposal from one live map to another, with what it gains, costs and rests on."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import layer_map_digest, layer_map_digests
from collectors.shares import all_shares, quantised_shares
from eplb.agent.wire import LayerChange
from eplb.errors import PlanError, PlanStale
from eplb.migration.align import aligned, newcomers
from eplb.migration.chain import links_of
from eplb.migration.row import RowChange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts


@dataclass(frozen=True, slots=True)
class Plan:
    """What is proposed, from which map, and why.

    ``changes`` in the order in which they are worth most, each with base and target digest, row and shares. A layer may have a
    chain of several, the base of each being the target of the one before; every row of a chain is sound, and its busiest
    rank gets no more than at the start. ``base_digests`` map digest of every layer at the start. ``moves`` slots that get
    an expert their rank does not hold; ``bytes`` that cross between ranks. ``gain_ratio`` fall of the mean imbalance ratio;
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

    @property
    def puts_back(self) -> bool:
        """Whether it leads back after a failed read-back, from what each rank was found to serve."""
        return any(change.bases for change in self.changes)

    def starts_from(self, digests: Sequence[int]) -> bool:
        """Whether a rank that serves these digests, one a layer, serves what the plan was made from."""
        bases = {change.layer: change.bases for change in self.changes}
        return all(
            digest == base or digest in bases.get(layer, ())
            for layer, (digest, base) in enumerate(zip(digests, self.base_digests, strict=True))
        )


def make_plan(
    facts: PoolFacts,
    base: NDArray[np.int32],
    target: NDArray[np.int32],
    *,
    created_ms: int,
    shares: NDArray[np.float64] | None = None,
    base_shares: NDArray[np.float64] | None = None,
    load: NDArray[np.float64] | None = None,
    wave_slots: int | None = None,
    gain_ratio: float = 0.0,
    reasons: Sequence[tuple[str, str]] = (),
) -> Plan:
    """Compare two maps, int32 [layers, slots] each, and shares, float64 [layers, slots] or None; the order within a rank is ours.

    ``load``: float64 [layers, experts], tokens that experts are expected to get; without it whole layers follow one another.
    ``wave_slots``: most experts that one wave may bring to a rank, None = one layer's slots. ``created_ms`` (store time) is
    part of the plan's identity, so that the same proposal made again is a new plan.

    Raises:
        PlanError: an array has not the pool's shape.
        NeedsStaging: a layer cannot be changed in waves as small as that.
    """
    _check_shapes(facts, base=base, target=target, shares=shares, base_shares=base_shares)
    if load is not None and load.shape != (facts.layers, facts.experts):
        raise PlanError(f"load is {load.shape}, pool {facts.pool!r} needs {(facts.layers, facts.experts)}")
    target, shares = aligned(facts, base, target, shares)
    shares = None if shares is None else all_shares(target, shares)
    base_digests = layer_map_digests(facts.model_layers, base, base_shares)
    target_digests = layer_map_digests(facts.model_layers, target, shares)
    limit = facts.slots_per_rank if wave_slots is None else wave_slots
    links: list[_Link] = []
    for layer in np.flatnonzero(base_digests != target_digests).tolist():
        change = RowChange(
            layer=layer,
            base=base[layer],
            target=target[layer],
            base_shares=None if base_shares is None else base_shares[layer],
            target_shares=None if shares is None else shares[layer],
            slots_per_rank=facts.slots_per_rank,
            experts=facts.experts,
            load=None if load is None else load[layer],
        )
        links += _links(facts, change, limit)
    changes = tuple(link.change for link in sorted(links, key=lambda link: link.rank))
    moves = int(newcomers(facts, base, target).sum())
    return Plan(
        pool=facts.pool,
        plan_id=plan_id(created_ms, base_digests, changes),
        created_ms=created_ms,
        base_digests=tuple(int(x) for x in base_digests),
        changes=changes,
        moves=moves,
        bytes=moves * facts.bytes_per_expert,
        gain_ratio=float(gain_ratio),
        reasons=tuple((str(code), str(sentence)) for code, sentence in reasons),
    )


def last_changes(plan: Plan) -> tuple[LayerChange, ...]:
    """The last link of each layer, by layer: what the pool serves once the plan is live."""
    last = {change.layer: change for change in plan.changes}
    return tuple(last[layer] for layer in sorted(last))


def plan_is_live(plan: Plan, digests: Sequence[int]) -> bool:
    """Whether digests, one a layer, are those of the plan's end."""
    return all(int(digests[change.layer]) == change.target_digest for change in last_changes(plan))


def remaining(plan: Plan, digests: Sequence[int]) -> tuple[LayerChange, ...]:
    """The links that are still to come, seen from the live map's digests, one a layer.

    Raises:
        PlanStale: a layer serves a map that is nowhere in its chain.
    """
    wanted: dict[int, int] = {}
    left: list[LayerChange] = []
    for change in plan.changes:
        served = wanted.setdefault(change.layer, int(digests[change.layer]))
        if served == change.base_digest:
            left.append(change)
            wanted[change.layer] = change.target_digest
    last = {change.layer: change.target_digest for change in plan.changes}
    for layer, digest in sorted(wanted.items()):
        if digest != last[layer]:
            raise PlanStale(
                f"plan {plan.plan_id} layer {layer}: serves map {digest:016x}, neither the plan's base nor its target nor a "
                "map between them; plan anew from the live map"
            )
    return tuple(left)


@dataclass(frozen=True, slots=True)
class _Link:
    """One link and its place in the plan: most fall of the layer's ratio for each expert that crosses, first."""

    change: LayerChange
    rank: tuple[float, int, int]


def _links(facts: PoolFacts, change: RowChange, limit: int) -> list[_Link]:
    """The chain of one layer. Links that pay only together with the next have the worth of both."""
    applied: list[int] = []
    peak = change.start
    digest = _digest(facts, change, change.base, change.base_shares)
    mean = 1.0 if change.load is None else max(float(np.cumsum(change.load)[-1]) / facts.ranks, 1e-9)
    made: list[LayerChange] = []
    worth: list[tuple[float, int, int]] = []  # fall of the ratio, arrivals, links
    for slots in links_of(change, limit):
        applied += slots
        row, shares = change.row(applied), change.shares(applied)
        shares = None if shares is None else quantised_shares(row, shares)
        after, now = _digest(facts, change, row, shares), change.peak(applied)
        wire = None if shares is None else tuple(float(x) for x in shares)
        made.append(LayerChange(change.layer, digest, after, tuple(int(x) for x in row), wire))
        worth.append(((peak - now) / mean, int((change.target[list(slots)] >= 0).sum()), 1))
        while len(worth) > 1 and _density(worth[-1]) >= _density(worth[-2]):
            last, before = worth.pop(), worth.pop()
            worth.append((before[0] + last[0], before[1] + last[1], before[2] + last[2]))
        digest, peak = after, now
    order = [-_density(segment) for segment in worth for _ in range(segment[2])]
    return [_Link(each, (order[place], change.layer, place)) for place, each in enumerate(made)]


def _density(segment: tuple[float, int, int]) -> float:
    gain, arrivals, _ = segment
    return gain / arrivals if arrivals else (np.inf if gain >= 0 else -np.inf)


def _digest(
    facts: PoolFacts, change: RowChange, row: NDArray[np.int32], shares: NDArray[np.float64] | None
) -> int:
    return layer_map_digest(facts.model_layers[change.layer], row, shares)


def plan_id(created_ms: int, base_digests: NDArray[np.uint64], changes: Sequence[LayerChange]) -> str:
    """A name of a plan that another start, target or time gives another."""
    digest = blake2b(str(created_ms).encode(), digest_size=5)
    digest.update(base_digests.astype("<u8").tobytes())
    digest.update(repr([(change.layer, change.target_digest) for change in changes]).encode())
    return f"p{digest.hexdigest()}"


def _check_shapes(facts: PoolFacts, **arrays: NDArray[np.generic] | None) -> None:
    for name, array in arrays.items():
        if array is not None and array.shape != (facts.layers, facts.slots):
            raise PlanError(
                f"{name} is {array.shape}, pool {facts.pool!r} needs {(facts.layers, facts.slots)}"
            )
