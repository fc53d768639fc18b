"""Parts of states as small integers: equal parts have one key, so that a state is a row of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eplb.errors import ProtocolError
from eplb.protocol.check.numbers import Memo, each

if TYPE_CHECKING:
    from collections.abc import Callable

BITS = 18
"""Of a key, so that many of them fit into one word."""


class Parts:
    """All parts met so far, by key and back. Types are numbered apart, because named tuples of two types can be equal."""

    def __init__(self) -> None:
        self._parts: dict[type, list[Any]] = {}
        self._keys: dict[type, dict[Any, int]] = {}

    def key(self, part: object) -> int:
        """The key of a part among those of its type.

        Raises:
            ProtocolError: there are more parts of a type than keys.
        """
        kind = type(part)
        known = self._keys.setdefault(kind, {})
        found = known.get(part)
        if found is None:
            found = known[part] = len(known)
            self.all(kind).append(part)
            if found >> BITS:
                raise ProtocolError(
                    f"model check: more than {1 << BITS} parts of type {kind.__name__}; raise BITS in eplb.protocol.check.parts"
                )
        return found

    def all(self, kind: type) -> list[Any]:
        """All parts of a type, by key."""
        return self._parts.setdefault(kind, [])

    def part(self, kind: type, key: int) -> Any:
        """The part of a type with this key."""
        return self._parts[kind][key]

    def fact(self, kind: type, say: Callable[[Any], int]) -> Memo:
        """A number that a function gives each part of a type, by key."""
        return Memo((BITS,), 1, each(lambda key: say(self._parts[kind][key])))
