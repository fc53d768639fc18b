"""Plans as bytes for the store: of a chain only the first row is written whole, the others as what differs."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from eplb.agent.sound import check_types
from eplb.agent.wire import LayerChange, seal, unseal
from eplb.errors import OfferError
from eplb.migration.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAN_SCHEMA = "eplb.plan/2"
MOST_CELLS = 1 << 23
"""Slots of all links that a reader unfolds: 61 layers x 320 slots x 400 links, about 100 MB."""


def encode_plan(plan: Plan) -> bytes:
    """The plan as bytes for the store."""
    body = {field.name: getattr(plan, field.name) for field in fields(plan)}
    before: dict[int, LayerChange] = {}
    links: list[dict[str, Any]] = []
    for change in plan.changes:
        first = before.get(change.layer)
        if first is None:
            links.append(asdict(change))
        else:
            rows = _difference(first.target, change.target)
            shares = _difference(first.shares or (), change.shares or ())
            links.append({**asdict(change), "target": rows, "shares": shares})
        before[change.layer] = change
    return seal(PLAN_SCHEMA, {**body, "changes": links})


def decode_plan(raw: bytes) -> Plan:
    """Read a plan.

    Raises:
        OfferError: the record is damaged, of another schema, or a field has the wrong type.
    """
    body = unseal(PLAN_SCHEMA, raw)
    try:
        changes = _read_links(body.pop("changes"))
        base_digests = tuple(int(x) for x in body.pop("base_digests"))
        reasons = tuple((str(code), str(sentence)) for code, sentence in body.pop("reasons"))
        plan = Plan(changes=changes, base_digests=base_digests, reasons=reasons, **body)
    except (TypeError, KeyError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise OfferError(f"plan: a field is missing or of the wrong type ({error!s:.120})") from error
    check_types(plan)
    return plan


def _read_links(items: list[dict[str, Any]]) -> tuple[LayerChange, ...]:
    before: dict[int, LayerChange] = {}
    links: list[LayerChange] = []
    cells = 0
    for item in items:
        layer = int(item["layer"])
        first = before.get(layer)
        if first is None:
            target = tuple(int(x) for x in item["target"])
            shares = None if item["shares"] is None else tuple(float(x) for x in item["shares"])
        else:
            target = tuple(int(x) for x in _patched(first.target, item["target"]))
            given = _patched(first.shares or (), item["shares"])
            shares = tuple(float(x) for x in given) if given else None
        bases = tuple(int(x) for x in item.get("bases", ()))
        change = LayerChange(
            layer, int(item["base_digest"]), int(item["target_digest"]), target, shares, bases
        )
        before[layer] = change
        links.append(change)
        # A link that changes nothing is three words on the wire and a whole row here.
        cells += len(change.target)
        if cells > MOST_CELLS:
            raise ValueError(f"its links have more than {MOST_CELLS} slots in all")
    return tuple(links)


def _difference(before: Sequence[Any], after: Sequence[Any]) -> list[list[Any]]:
    """Pairs (place, value) of what is new; the chain's rows have one length, and all have shares or none has."""
    return [[i, new] for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]


def _patched(before: Sequence[Any], difference: list[list[Any]]) -> list[Any]:
    patched = list(before)
    for place, value in difference:
        patched[place] = value
    return patched
