"""Why something is not done: a code and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Refusals = tuple[tuple[int, str, str], ...]
"""(rank, code, sentence) of every rank that refused, in rank order."""


class Code(StrEnum):
    """Reasons of a rank, and of a daemon, not to do what is asked."""

    DAMAGED_OFFER = "damaged_offer"
    POOL_DIFFERS = "pool_differs"
    RUN_DIFFERS = "run_differs"
    MODEL_DIFFERS = "model_differs"
    SHAPE = "shape"
    ID_RANGE = "id_range"
    NO_COVERAGE = "no_coverage"
    TWIN = "twin"
    SHARES = "shares"
    BASE_DIFFERS = "base_differs"
    TARGET_DIGEST = "target_digest"
    OLD_TERM = "old_term"
    CLOSED = "closed"
    BUSY = "busy"
    STUCK = "stuck"
    STEP_DIFFERS = "step_differs"
    NO_SOURCE = "no_source"
    NO_MEMORY = "no_memory"
    TRANSFER_FAILED = "transfer_failed"
    WEIGHTS_DIFFER = "weights_differ"
    PROBE_DIFFERS = "probe_differs"
    NOT_PREPARED = "not_prepared"
    OFFER_DIFFERS = "offer_differs"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    NOT_MEMBER = "not_member"
    EXPERT_LOST = "expert_lost"
    NOT_UNANIMOUS = "not_unanimous"
    STORE_AWAY = "store_away"
    APPLY_UNVERIFIED = "apply_unverified"
    GROUP_FAILED = "group_failed"
    INTERNAL = "internal"
    IN_DOUBT = "in_doubt"
    ONE_WAVE = "one_wave"
    NOT_LIVE = "not_live"
    STALE = "stale"
    LEASE_HELD = "lease_held"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One no."""

    code: Code
    sentence: str

    @classmethod
    def of(cls, code: Code, error: BaseException) -> Refusal:
        """A refusal that quotes an error."""
        return cls(code, f"{type(error).__name__}: {error!s:.180}")
