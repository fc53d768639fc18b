"""Where the parts of a state stand: in blocks of parts that change together, so that a state is a row of few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.errors import ProtocolError
from eplb.protocol.check.numbers import Rows
from eplb.protocol.check.parts import BITS
from eplb.protocol.check.world import Cache, Control, Daemon, Group, Live, Rank

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.protocol.check.numbers import Column, Columns
    from eplb.protocol.check.world import Bounds

    States = NDArray[np.int32]
    """[4, states]: numbers of the blocks POOL, LEAD and LIVES, and the key of what is left."""

POOL, LEAD, LIVES, LEFT = range(4)
BLOCK_BITS = (22, 16, 24)
"""Of numbers of blocks, so that a state but for what is left is one word."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of ranks, the cache, the group; control, daemons; a live record by rank: in this order, block by block."""

    ranks: range
    cache: int
    group: int
    control: int
    daemons: range
    lives: range

    @classmethod
    def of(cls, bounds: Bounds) -> Layout:
        """The places of a world within these bounds."""
        size = bounds.ranks
        daemons = range(size + 3, size + 3 + bounds.daemons)
        return cls(range(size), size, size + 1, size + 2, daemons, range(daemons.stop, daemons.stop + size))

    @property
    def kinds(self) -> tuple[type, ...]:
        """The type of the part at each place."""
        size, daemons = len(self.ranks), len(self.daemons)
        return (*(Rank,) * size, Cache, Group, Control, *(Daemon,) * daemons, *(Live,) * size)

    @property
    def blocks(self) -> tuple[range, range, range]:
        """The places of each block."""
        return range(self.control), range(self.control, self.lives.start), self.lives


class Block:
    """Rows of parts' keys that were met, by number; ``places`` of the state that they hold."""

    def __init__(self, which: int, places: range) -> None:
        self.bits, self.places = BLOCK_BITS[which], places
        self._rows = Rows((BITS,) * len(places))
        self._columns: Column = np.empty((len(places), 0), np.int32)

    def numbers(self, columns: Columns) -> Column:
        """The number of each row of keys.

        Raises:
            ProtocolError: there are more rows than numbers.
        """
        numbers, fresh = self._rows.of(columns)
        if fresh.size:
            more = np.stack([column[fresh] for column in columns])
            self._columns = np.concatenate([self._columns, more], axis=1)
            if self._rows.count >> self.bits:
                raise ProtocolError(
                    f"model check: more than {1 << self.bits} rows of places {self.places}; raise BLOCK_BITS in {__name__}"
                )
        return numbers

    def part(self, place: int, numbers: Column) -> Column:
        """The keys at a place."""
        keys: Column = self._columns[place - self.places.start]
        return keys.take(numbers)

    def parts(self, numbers: Column) -> Column:
        """All keys, [places, rows]."""
        return np.take(self._columns, numbers, axis=1)
