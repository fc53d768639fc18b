"""Parts of states as small integers: equal parts have one key, so that a state is a tuple of keys."""

from __future__ import annotations

from typing import Any


class Parts:
    """All parts met so far, by key and back. Types are kept apart, because named tuples of two types can be equal."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._keys: dict[type, dict[Any, int]] = {}

    def key(self, part: object) -> int:
        """The key of a part."""
        known = self._keys.setdefault(type(part), {})
        found = known.get(part)
        if found is None:
            found = known[part] = len(self._parts)
            self._parts.append(part)
        return found

    def __getitem__(self, key: int) -> Any:
        return self._parts[key]
