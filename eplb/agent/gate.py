"""The gate: one small broadcast every ``gate_steps`` group forwards, and the vote that may follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.agent.header import HEADER_WORDS, Header, decode_header
from eplb.agent.refusal import Refusal, Refusals, decode_refusals, encode_refusal
from eplb.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eplb.agent.group import Group

GATE_STEPS_MIN = 20
"""A gate costs one broadcast, about as much as a small layer's synchronisation; rarer than this it is lost in noise."""


class Gate:
    """Counts this rank's forwards and meets the group at every ``gate_steps``-th one.

    Forwards are counted by calls, not by number: forwards are collective, so calls agree by themselves, and the number
    in the header then proves or disproves that the ranks number them alike. ``members`` pool ranks by place in the group.

    Raises:
        ConfigError: ``gate_steps`` is below 20.
    """

    def __init__(self, group: Group, gate_steps: int, members: Sequence[int] | None = None) -> None:
        if gate_steps < GATE_STEPS_MIN:
            raise ConfigError(f"gate_steps is {gate_steps}, must be at least {GATE_STEPS_MIN} group forwards")
        self.group = group
        self._members = members
        self.gate_steps = gate_steps
        self._calls = 0

    def due(self) -> bool:
        """Count one forward; true before the first and then before every ``gate_steps``-th."""
        due = self._calls % self.gate_steps == 0
        self._calls += 1
        return due

    def open(self, words: NDArray[np.int64] | None) -> Header:
        """Broadcast rank 0's encoded header, int64 [8] (the others give None), and return what it says.

        Raises:
            MigrationError: what came is no header, so this rank cannot know what the group does next.
        """
        return decode_header(
            self.group.broadcast(np.zeros(HEADER_WORDS, dtype=np.int64) if words is None else words)
        )

    def fetch(self, raw: bytes | None, offer_bytes: int) -> bytes:
        """Broadcast the offer that a PREPARE header announced; ``offer_bytes`` is its length from the header."""
        if raw is None:
            array = np.zeros(offer_bytes, dtype=np.uint8)
        else:
            array = np.frombuffer(raw, dtype=np.uint8).copy()
        return self.group.broadcast(array).tobytes() if offer_bytes else b""

    def vote(self, refusal: Refusal | None) -> Refusals:
        """One MIN vote; empty = everybody said yes, else who refused and why, the same on all ranks."""
        if self.group.min(0 if refusal else 1) == 1:
            return ()
        return decode_refusals(self.group.gather(encode_refusal(refusal)), self._members)
