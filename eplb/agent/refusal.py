"""Why a rank says no, as a fixed-size record for a gather."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.protocol import Code, Refusal, Refusals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Code", "Refusal", "Refusals", "decode_refusals", "encode_refusal"]

RECORD_BYTES = 256


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
