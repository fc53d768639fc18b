"""The header that rank 0 broadcasts at every gate: eight 64-bit words with a checksum."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from eplb.errors import MigrationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER_WORDS = 8
HEADER_MAGIC = 0x45504C4247415445  # "EPLBGATE"
MAX_OFFER_BYTES = 8 << 20
"""Largest offer that rank 0 broadcasts; 58 layers x 288 slots with shares need about 0.5 MB."""

MAX_TERM = 1 << 53
"""Largest leadership term: beyond it the numbers of frames are refused, so no rank may take such a term over."""
UNKNOWN_STEP = -1
"""``group_step`` of a KEEP that rank 0 sends when it could not make the header that it wanted."""

_WORD_MASK = (1 << 64) - 1


class Action(IntEnum):
    """What the group does at this gate."""

    KEEP = 0
    """Serve on with the live map."""
    APPLY = 1
    """Vote on the prepared offer; all switch or nobody does."""
    DEFAULT = 2
    """The engine's own solver may act; an engine without one keeps its map."""
    PREPARE = 3
    """The offer's bytes follow by broadcast; vote on whether to stage it."""


@dataclass(frozen=True, slots=True)
class Header:
    """What rank 0 asks for.

    ``term`` newest leadership term that rank 0 knows; ``run_id`` and ``group_step`` the life of the group and the number
    of the forward that follows the gate, by rank 0's count, or ``UNKNOWN_STEP``; ``offer_digest`` signed 64-bit identity of the offer in hand
    (0 = none): a rank that holds another one lets it go; ``offer_bytes`` length of the offer that follows a PREPARE.
    """

    action: Action
    term: int
    run_id: int
    group_step: int
    offer_digest: int = 0
    offer_bytes: int = 0


def _crc(words: NDArray[np.int64]) -> int:
    return zlib.crc32(words.astype("<i8").tobytes())


def encode_header(header: Header) -> NDArray[np.int64]:
    """The header as int64 [8]: magic, action, term, run_id, group_step, offer_digest, offer_bytes, crc32.

    Raises:
        OverflowError, TypeError, ValueError: a field is no 64-bit integer.
    """
    words = np.array(
        [
            HEADER_MAGIC,
            int(header.action),
            header.term,
            header.run_id,
            header.group_step,
            header.offer_digest,
            header.offer_bytes,
            0,
        ],
        dtype=np.int64,
    )
    words[-1] = _crc(words[:-1])
    return words


def decode_header(words: NDArray[np.int64]) -> Header:
    """Read a header, int64 [8].

    Raises:
        MigrationError: magic, checksum, action or length is wrong: the ranks are not at the same gate.
    """
    if words.shape != (HEADER_WORDS,) or int(words[0]) != HEADER_MAGIC or int(words[-1]) != _crc(words[:-1]):
        raise MigrationError(
            "gate header: magic or checksum is wrong; give the gate a process group of its own"
        )
    _, action, term, run_id, group_step, offer_digest, offer_bytes, _ = (int(word) for word in words)
    if action not in set(Action):
        raise MigrationError(f"gate header: action {action} is unknown; run the same version on all ranks")
    if not 0 <= offer_bytes <= MAX_OFFER_BYTES:
        raise MigrationError(f"gate header: an offer of {offer_bytes} bytes, the limit is {MAX_OFFER_BYTES}")
    return Header(Action(action), term, run_id, group_step, offer_digest, offer_bytes)


def signed_word(value: int) -> int:
    """An unsigned 64-bit number as the signed one with the same bits, for a word of the header."""
    value &= _WORD_MASK
    return value - (1 << 64) if value >> 63 else value
