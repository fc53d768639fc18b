"""What is asked of a rank or a daemon, and what it knows: all that a guard may look at.

The running agent fills these from digests and clocks, the model check from small integers. A field that an event does
not concern keeps its default.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eplb.protocol.refusals import Refusal


class Profile(StrEnum):
    """Who moves the weights."""

    STAGED = "staged"
    """The agent brings them into staging, and the switch is one step of the whole group."""
    DELEGATED = "delegated"
    """The engine moves and commits them layer by layer once the group has agreed."""


class RankState(StrEnum):
    """Where a rank stands."""

    SERVING = "serving"
    """No offer was taken up yet."""
    STAGING = "staging"
    """Weights of the offer in hand are on their way."""
    PREPARED = "prepared"
    """All ranks' weights have come and are right."""
    COMMITTING = "committing"
    """The engine moves and commits layers of the offer; it cannot be stopped."""
    REFUSED = "refused"
    """The last offer was not applied."""
    SWITCHED = "switched"
    """The last offer is served."""
    STUCK = "stuck"
    """A slot was read back wrong, or the group was left; no further offer is taken but one that rewrites all broken layers of an engine."""


class Arrived(StrEnum):
    """How far the transfer of the offer in hand is."""

    NONE = "none"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Asked:
    """What an offer asks for, as one rank read it.

    ``digest`` identity of the offer's bytes, 0 = no offer. ``layers`` positions that it touches; ``bases`` and ``targets``
    the digests that it names for them, ``found`` the digests of the rows that came with it; ``others`` further bases by layer
    that it starts from on some ranks, () = none. ``fault`` the first thing wrong with a field or a row itself.
    """

    digest: int = 0
    key: str = ""
    pool: str = ""
    term: int = 0
    run_id: int = 0
    model_digest: int = 0
    layers: tuple[int, ...] = ()
    bases: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    found: tuple[int, ...] = ()
    others: tuple[tuple[int, ...], ...] = ()
    fault: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What one rank knows at the moment of a decision.

    ``served`` digests that it serves in the layers asked for; ``held`` identity of the offer in hand, 0 = none; ``named``
    identity that the header names, and ``named_step``, ``named_run`` its step and run; ``closed`` this offer was refused or
    applied here before; ``leaving`` a transfer of an earlier offer still runs; ``age_s`` since this rank, or rank 0's cache
    of the store, first saw the offer, by its own monotonic clock, and ``good_for_s`` what the offer gives; ``cache_age_s``
    since the store last answered; ``still_wanted`` the store still asks for the offer in hand; ``arrived`` and ``failure``
    the state of the transfer on all ranks; ``stray`` a slot of no member that is to hold an expert; ``unmended`` a layer that this
    rank was read back to serve otherwise than asked and that the offer leaves as it is; ``weights_fault``, ``probe_fault`` what a comparison of bytes, and of outputs on
    the probe vector, found wrong; ``noes`` ranks that said no in the vote, or -1 in place of them if their names were lost.
    """

    pool: str = ""
    run_id: int = 0
    model_digest: int = 0
    term_seen: int = 0
    step: int = 0
    stuck: bool = False
    served: tuple[int, ...] = ()
    held: int = 0
    named: int = 0
    named_step: int = 0
    named_run: int = 0
    closed: bool = False
    leaving: bool = False
    age_s: float = 0.0
    good_for_s: float = 0.0
    cache_age_s: float = 0.0
    still_wanted: bool = True
    arrived: Arrived = Arrived.NONE
    failure: Refusal | None = None
    stray: Refusal | None = None
    unmended: Refusal | None = None
    weights_fault: Refusal | None = None
    probe_fault: Refusal | None = None
    noes: tuple[int, ...] = ()


NOTHING_ASKED = Asked()
NOTHING_KNOWN = Known()
