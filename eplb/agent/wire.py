"""What daemon and ranks say to each other through the store: offers and live records, as JSON with a checksum.

An offer carries one wave of a plan. A live record is what one rank reports that it serves. Both are refused as a whole
when anything in them is damaged or out of range.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from collectors.errors import FactsError
from collectors.facts import PoolFacts
from eplb.agent.signing import RING
from eplb.agent.sound import check_live, check_types
from eplb.errors import OfferError

if TYPE_CHECKING:
    from numpy.typing import NDArray

OFFER_SCHEMA = "eplb.offer/1"
LIVE_SCHEMA = "eplb.live/1"
MAX_SEALED_BYTES = 64 << 20
"""Largest record that is parsed: a hundred times a plan of 61 layers x 320 slots with shares."""


@dataclass(frozen=True, slots=True)
class LayerChange:
    """The new row of one layer.

    ``layer`` position of the row; ``base_digest`` map digest that the layer must serve now; ``target_digest`` of the new
    row; ``target`` logical ids by slot, -1 = empty; ``shares`` the part of its expert's tokens for each slot, or None.
    ``bases`` only in a plan that puts a map back after a failed read-back: all digests that ranks serve in this layer.
    """

    layer: int
    base_digest: int
    target_digest: int
    target: tuple[int, ...]
    shares: tuple[float, ...] | None = None
    bases: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """One wave of a plan, published under a term, good until ``expires_after_s`` after a rank first sees it.

    ``run_id`` the life of the group that it is made for, ``model_digest`` the weights that its ranks have loaded: another
    group refuses it. ``map_version`` is the version that the pool serves once the *last* wave has switched.
    """

    pool: str
    run_id: int
    model_digest: int
    term: int
    plan_id: str
    wave: int
    waves: int
    map_version: int
    expires_after_s: float
    changes: tuple[LayerChange, ...]

    @property
    def key(self) -> str:
        """Identity of the offer, for acks and logs; a new leader's offer of the same wave is another one."""
        return f"{self.plan_id}/{self.wave}@{self.term}"

    def same_wave(self, key: str) -> bool:
        """Whether a key is of this wave, under whatever term it was offered."""
        return key.rpartition("@")[0] == self.key.rpartition("@")[0]

    @property
    def puts_back(self) -> bool:
        """Whether it leads back from what ranks were found to serve after a failed read-back, each from its own."""
        return any(change.bases for change in self.changes)


@dataclass(frozen=True, slots=True)
class LiveRecord:
    """What one rank reports that it serves.

    ``digests`` map digest by layer. ``model_digest`` of the weights that were loaded. ``state`` one of serving, staging,
    prepared, committing, refused, switched, stuck. ``offer`` the key of the offer the state speaks of, or "". ``refusals`` (rank, code, sentence) who refused and why: all of them from the
    first member, its own from a rank that is stuck, else none. ``members`` pool ranks of the group by place in it, () = all of the pool.
    ``map_rows`` and ``shares_rows`` the whole live map, and ``facts`` the pool's shape, only from the first member.
    ``reloaded`` the first few (layer, expert) that this life began by loading from a checkpoint, ``reloaded_experts`` how many.
    """

    pool: str
    rank: int
    incarnation: int
    run_id: int
    term_seen: int
    map_version: int
    group_step: int
    state: str
    offer: str
    digests: tuple[int, ...]
    members: tuple[int, ...] = ()
    refusals: tuple[tuple[int, str, str], ...] = ()
    map_rows: tuple[tuple[int, ...], ...] | None = None
    shares_rows: tuple[tuple[float, ...], ...] | None = None
    facts: PoolFacts | None = field(default=None)
    model_digest: int = 0
    reloaded: tuple[tuple[int, int], ...] = ()
    reloaded_experts: int = 0

    def physical_to_logical(self) -> NDArray[np.int32] | None:
        """The whole live map, int32 [layers, slots], if this record carries it."""
        return None if self.map_rows is None else np.array(self.map_rows, dtype=np.int32)


def seal(schema: str, body: dict[str, Any]) -> bytes:
    """A record as JSON bytes with its schema, a checksum over the body and, where this process has a key, a signature."""
    text = json.dumps(body, separators=(",", ":"), sort_keys=True, allow_nan=False)
    check = blake2b(text.encode(), digest_size=8).hexdigest()
    signature = RING.load().sign(_signed(schema, text))
    signed = f'"sign":"{signature}",' if signature else ""
    return f'{{"schema":"{schema}","check":"{check}",{signed}"body":{text}}}'.encode()


def unseal(schema: str, raw: bytes) -> dict[str, Any]:
    """The body of a sealed record.

    Raises:
        OfferError: the record is too large, damaged, of another schema, or not signed with a key of this process, if it has one.
    """
    if len(raw) > MAX_SEALED_BYTES:
        raise OfferError(f"{schema}: {len(raw)} bytes, at most {MAX_SEALED_BYTES} are read; it is ignored")
    try:
        outer = json.loads(raw)
        body = dict(outer["body"])
        text = json.dumps(body, separators=(",", ":"), sort_keys=True, allow_nan=False)
        found, check, signature = outer["schema"], outer["check"], outer.get("sign")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OfferError(f"{schema}: not a readable record ({error!s:.120}); it is ignored") from error
    if found != schema:
        raise OfferError(
            f"schema is {found!s:.40}, this version reads {schema!r}; run the same version on both sides"
        )
    if check != blake2b(text.encode(), digest_size=8).hexdigest():
        raise OfferError(
            f"{schema}: checksum does not match; the record was changed on its way and is ignored"
        )
    if not RING.load().accept(_signed(schema, text), signature):
        how = "is not signed" if signature is None else "is signed with a key that is not in the key file"
        raise OfferError(
            f"{schema}: the record {how}, so it is ignored; give all daemons and ranks of the pool the same EPLB_MAP_KEY_FILE"
        )
    return body


def _signed(schema: str, text: str) -> bytes:
    # The schema is part of it, so that a record of one kind cannot be shown as another.
    return f"{schema}\n{text}".encode()


def read_changes(items: list[dict[str, Any]]) -> tuple[LayerChange, ...]:
    """Layer changes from the plain data that ``asdict`` made of them.

    Raises:
        KeyError, TypeError, ValueError: a field is missing or of the wrong type.
    """
    return tuple(
        LayerChange(
            layer=int(item["layer"]),
            base_digest=int(item["base_digest"]),
            target_digest=int(item["target_digest"]),
            target=tuple(int(x) for x in item["target"]),
            shares=None if item["shares"] is None else tuple(float(x) for x in item["shares"]),
            bases=tuple(int(x) for x in item.get("bases", ())),
        )
        for item in items
    )


def encode_offer(offer: Offer) -> bytes:
    """The offer as bytes for the store."""
    return seal(OFFER_SCHEMA, asdict(offer))


def decode_offer(raw: bytes) -> Offer:
    """Read an offer.

    Raises:
        OfferError: the record is damaged, of another schema, or a field has the wrong type.
    """
    body = unseal(OFFER_SCHEMA, raw)
    try:
        changes = read_changes(body.pop("changes"))
        offer = Offer(changes=changes, **body)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise OfferError(f"offer: a field is missing or of the wrong type ({error!s:.120})") from error
    check_types(offer)
    return offer


def encode_live(record: LiveRecord) -> bytes:
    """The live record as bytes for the store."""
    return seal(LIVE_SCHEMA, asdict(record))


def decode_live(raw: bytes) -> LiveRecord:
    """Read a live record.

    Raises:
        OfferError: the record is damaged, of another schema, or a field has the wrong type.
    """
    body = unseal(LIVE_SCHEMA, raw)
    try:
        facts = body.pop("facts")
        if facts is not None:
            facts = PoolFacts(**{**facts, "model_layers": tuple(facts["model_layers"])})
        rows, shares = body.pop("map_rows"), body.pop("shares_rows")
        record = LiveRecord(
            **{
                **body,
                "digests": tuple(int(x) for x in body["digests"]),
                "members": tuple(int(x) for x in body["members"]),
                "reloaded": tuple((int(layer), int(expert)) for layer, expert in body["reloaded"]),
                "refusals": tuple((int(r), str(c), str(s)) for r, c, s in body["refusals"]),
            },
            map_rows=None if rows is None else tuple(tuple(int(x) for x in row) for row in rows),
            shares_rows=None if shares is None else tuple(tuple(float(x) for x in row) for row in shares),
            facts=facts,
        )
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError, FactsError) as error:
        raise OfferError(f"live record: a field is missing or of the wrong type ({error!s:.120})") from error
    check_types(record)
    check_live(record)
    return record
