"""What an offer asks for, and what is wrong with it in itself, whatever the rank serves."""

from __future__ import annotations

import math
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import layer_map_digest
from eplb.agent.header import MAX_TERM, signed_word
from eplb.agent.refusal import Code, Refusal
from eplb.protocol import Asked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectors.facts import PoolFacts
    from eplb.agent.live import LiveMap
    from eplb.agent.wire import LayerChange, Offer

SHARE_SUM_TOLERANCE = 1e-6


def offer_digest(raw: bytes) -> int:
    """Identity of an offer's bytes, signed 64-bit, never 0."""
    return signed_word(int.from_bytes(blake2b(raw, digest_size=8).digest(), "little") or 1)


def asked_of(facts: PoolFacts, offer: Offer, digest: int) -> Asked:
    """What an offer asks for, with the first thing wrong in its fields or rows; ``digest`` is the identity of its bytes."""
    fault = _check_fields(offer) or _check_layers(facts, offer)
    asked = Asked(
        digest=digest,
        key=offer.key,
        pool=offer.pool,
        term=offer.term,
        run_id=offer.run_id,
        model_digest=offer.model_digest,
        fault=fault,
    )
    if fault is not None:
        return asked
    faults = [check_row(facts, change) for change in offer.changes]
    return replace(
        asked,
        layers=tuple(change.layer for change in offer.changes),
        bases=tuple(change.base_digest for change in offer.changes),
        targets=tuple(change.target_digest for change in offer.changes),
        found=tuple(
            _found_digest(facts, change, fault) for change, fault in zip(offer.changes, faults, strict=True)
        ),
        others=tuple(change.bases for change in offer.changes) if offer.puts_back else (),
        fault=next((fault for fault in faults if fault is not None), None),
    )


def already_live(facts: PoolFacts, live: LiveMap, offer: Offer) -> bool:
    """True when the live map serves all that an offer asks for, shares included, and all ranks can be taken to."""
    return (
        not offer.puts_back
        and offer.pool == facts.pool
        and all(
            0 <= change.layer < facts.layers
            and len(change.target) == facts.slots
            and int(live.digests[change.layer]) == change.target_digest == change_digest(facts, change)
            for change in offer.changes
        )
    )


def change_digest(facts: PoolFacts, change: LayerChange) -> int:
    """Digest of what a change asks for: its row and its shares."""
    shares = None if change.shares is None else np.array(change.shares, dtype=np.float64)
    row = np.array(change.target, dtype=np.int32)
    return layer_map_digest(facts.model_layers[change.layer], row, shares)


def _found_digest(facts: PoolFacts, change: LayerChange, fault: Refusal | None) -> int:
    if fault is None or fault.code in (Code.NO_COVERAGE, Code.TWIN):
        return change_digest(facts, change)
    return 0  # it is not even a row


def check_row(facts: PoolFacts, change: LayerChange) -> Refusal | None:
    """The first reason against a target row itself: slot count, ids, coverage of all experts, twins on a rank, shares."""
    where, target = f"layer {change.layer}", change.target
    if len(target) != facts.slots:
        return Refusal(Code.SHAPE, f"{where}: target has {len(target)} slots, this pool has {facts.slots}")
    for slot, expert in enumerate(target):
        if not _is_int(expert) or not -1 <= expert < facts.experts:
            return Refusal(
                Code.ID_RANGE, f"{where} slot {slot}: expert {expert}, ids are 0..{facts.experts - 1} or -1"
            )
    missing = set(range(facts.experts)).difference(target)
    if missing:
        return Refusal(
            Code.NO_COVERAGE, f"{where}: expert {min(missing)} would have no slot ({len(missing)} in all)"
        )
    for rank in range(facts.ranks):
        held = [x for x in target[rank * facts.slots_per_rank : (rank + 1) * facts.slots_per_rank] if x >= 0]
        if len(set(held)) != len(held):
            twin = next(x for x in held if held.count(x) > 1)
            return Refusal(Code.TWIN, f"{where} rank {rank}: expert {twin} would stand there twice")
    return _check_shares(where, target, change.shares)


def _check_fields(offer: Offer) -> Refusal | None:
    numbers = (offer.term, offer.wave, offer.waves, offer.map_version, offer.run_id, offer.model_digest)
    sound = (
        all(_is_int(x) and 0 <= x < 1 << 63 for x in numbers)
        and offer.term <= MAX_TERM
        and isinstance(offer.plan_id, str)
        and isinstance(offer.expires_after_s, int | float)
        and math.isfinite(offer.expires_after_s)
        and offer.expires_after_s > 0
        and offer.wave < offer.waves
        and len(offer.changes) > 0
    )
    if sound:
        return None
    return Refusal(
        Code.DAMAGED_OFFER, "term, wave, map_version, expiry or the list of layers is missing or out of range"
    )


def _check_layers(facts: PoolFacts, offer: Offer) -> Refusal | None:
    layers = [change.layer for change in offer.changes]
    if len(set(layers)) == len(layers) and all(_is_int(x) and 0 <= x < facts.layers for x in layers):
        return None
    return Refusal(
        Code.SHAPE, f"offer names layers {layers[:8]}, this pool has 0..{facts.layers - 1}, each once"
    )


def _check_shares(where: str, target: Sequence[int], shares: Sequence[float] | None) -> Refusal | None:
    if shares is None:
        return None
    if len(shares) != len(target):
        return Refusal(Code.SHARES, f"{where}: {len(shares)} shares for {len(target)} slots")
    total: dict[int, float] = {}
    for slot, (expert, share) in enumerate(zip(target, shares, strict=True)):
        if not math.isfinite(share) or share < 0 or (expert < 0 and share > 0):
            return Refusal(Code.SHARES, f"{where} slot {slot}: share {share} of expert {expert}")
        total[expert] = total.get(expert, 0.0) + share
    for expert, whole in total.items():
        if expert >= 0 and abs(whole - 1.0) > SHARE_SUM_TOLERANCE:
            return Refusal(Code.SHARES, f"{where} expert {expert}: shares add up to {whole:.6f}, not to 1")
    return None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
