"""Why a rank says no: a code and a sentence, and their form as a fixed-size record for a gather."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

RECORD_BYTES = 256

Refusals = tuple[tuple[int, str, str], ...]
"""(rank, code, sentence) of every rank that refused, in rank order."""


class Code(StrEnum):
    """Reasons of a refusal."""

    DAMAGED_OFFER = "damaged_offer"
    POOL_DIFFERS = "pool_differs"
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
    GROUP_FAILED = "group_failed"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One rank's no."""

    code: Code
    sentence: str

    @classmethod
    def of(cls, code: Code, error: BaseException) -> Refusal:
        """A refusal that quotes an error."""
        return cls(code, f"{type(error).__name__}: {error!s:.180}")


def encode_refusal(refusal: Refusal | None) -> NDArray[np.uint8]:
    """One record, uint8 [256]: code, a zero byte, the sentence cut to fit; all zero = no refusal."""
    record = np.zeros(RECORD_BYTES, dtype=np.uint8)
    if refusal is not None:
        raw = f"{refusal.code}\0{refusal.sentence}".encode()[:RECORD_BYTES]
        record[: len(raw)] = np.frombuffer(raw, dtype=np.uint8)
    return record


def decode_refusals(records: NDArray[np.uint8], members: Sequence[int] | None = None) -> Refusals:
    """Read the gathered records, uint8 [members, 256], of the ranks that refused.

    ``members`` pool ranks by place in the group, None = the places themselves.
    """
    found: list[tuple[int, str, str]] = []
    for rank, record in zip(range(len(records)) if members is None else members, records, strict=True):
        raw = record.tobytes().rstrip(b"\0")
        if raw:
            code, _, sentence = raw.decode(errors="ignore").partition("\0")
            found.append((rank, code, sentence))
    return tuple(found)
