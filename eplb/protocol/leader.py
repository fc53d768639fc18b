"""Leadership as the store decides it, in one step each: who may lead, and whose write counts.

The store runs the same rules as scripts (``eplb.store.scripts``), because only there reading and writing are one step; a
test holds the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from eplb.protocol.refusals import Code, Refusal


@dataclass(frozen=True, slots=True)
class StoreGuard:
    """A named condition that the store itself checks."""

    name: str
    hazard: str
    codes: tuple[Code, ...]


STORE_GUARDS: tuple[StoreGuard, ...] = (
    StoreGuard("fence", "a leader that was paused wakes up and writes over its successor", (Code.OLD_TERM,)),
    StoreGuard(
        "lease",
        "a leader in good standing is deposed, or another writes beside it, so that two pull a plan to and fro",
        (Code.LEASE_HELD,),
    ),
)


def may_write(term: int, fence: int, held: int = 0, *, guards: frozenset[str]) -> Refusal | None:
    """Why a write under ``term`` is refused by a store that has seen the term ``fence`` and whose lease is ``held`` under a term (0 = by nobody), or None."""
    if term < fence and "fence" in guards:
        return Refusal(Code.OLD_TERM, f"the store has seen term {fence}, this write is under {term}")
    if held not in (0, term) and "lease" in guards:
        return Refusal(Code.LEASE_HELD, f"the lease is held under term {held}, this write is under {term}")
    return None


def may_lead(asker: int, holder: int, *, guards: frozenset[str]) -> Refusal | None:
    """Why ``asker`` gets no lease while ``holder`` has it (0 = nobody), or None."""
    if holder in (0, asker) or "lease" not in guards:
        return None
    return Refusal(Code.LEASE_HELD, f"{holder} holds the lease")


def next_term(fence: int, floor: int) -> int:
    """The term of a new leader: above what the store has seen and above ``floor``, the newest known from elsewhere."""
    return 1 + max(fence, floor)
