"""The links of one layer: its change cut so that each boundary is a sound row, no slower than the start, and fits staging.

Links are built part by part, most relief of the busiest rank first. Where that fails on a row of at most ``EXACT_SLOTS``
changes, all orders are searched, so that a refusal of such a row names the smallest staging that works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.errors import NeedsStaging
from eplb.migration.parts import is_sound, parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eplb.migration.parts import Part
    from eplb.migration.row import RowChange

EXACT_SLOTS = 10
"""Changes of a row up to which all orders are searched: 3 to this power steps."""

LINKS_MAX = 8
"""Links of one layer, unless staging asks for more: each carries a whole row through the store."""


def links_of(change: RowChange, limit: int) -> tuple[tuple[int, ...], ...]:
    """Slots of each link in order, one link without slots for shares alone; ``limit``: most arrivals on one rank in a link.

    Raises:
        NeedsStaging: no order works within the limit.
    """
    whole = tuple(change.changed)
    if not whole:
        return ((),)
    if change.load is None and change.arrivals(whole) <= limit:
        return (whole,)
    parts = parts_of(change.base, change.target, change.experts, change.slots_per_rank)
    found = _search(change, parts, limit)
    if found is not None:
        return _merged(change, found, limit)
    least = change.arrivals(whole)
    enough = (n for n in range(limit + 1, least) if _search(change, parts, n) is not None)
    raise NeedsStaging(change.layer, next(enough, least), limit)


def _search(change: RowChange, parts: Sequence[Part], limit: int) -> list[tuple[int, ...]] | None:
    found = _Greedy(change, parts, limit).run()
    if found is None and len(change.changed) <= EXACT_SLOTS:
        return _shortest(change, limit)
    return found


class _Greedy:
    """Parts one by one; a link stays open while its boundary would be slower than the start."""

    def __init__(self, change: RowChange, parts: Sequence[Part], limit: int) -> None:
        self._change, self._parts, self._limit = change, parts, limit
        self._left = dict.fromkeys(range(len(parts)))
        self._done: list[int] = []
        self._open: list[int] = []

    def run(self) -> list[tuple[int, ...]] | None:
        """Slots by link, or None where it came to a dead end."""
        links: list[tuple[int, ...]] = []
        while self._left and len(links) < LINKS_MAX - 1 and (part := self._relief()) is not None:
            links.append(self._close([part]))
        rest = [slot for part in self._left for slot in self._parts[part].slots]
        if rest and self._change.arrivals(rest) <= self._limit:
            return [*links, tuple(rest)]
        while self._left:
            chosen = self._next()
            if chosen is None:
                return None
            part, peak = chosen
            self._open += self._parts[part].slots
            del self._left[part]
            if peak <= self._change.ceiling:
                links.append(self._close([]))
        return links

    def _close(self, more: list[int]) -> tuple[int, ...]:
        for part in more:
            self._open += self._parts[part].slots
            del self._left[part]
        link = tuple(self._open)
        self._done += link
        self._open = []
        return link

    def _relief(self) -> int | None:
        """The part that relieves the busiest rank most, None where none does."""
        if self._change.load is None:
            return None
        hot = self._change.hot_slots(self._done)
        touching = (part for part in self._left if any(hot[slot] for slot in self._parts[part].slots))
        best = min(
            ((self._peak_after(part), part) for part in touching if self._ready(part)), default=(np.inf, -1)
        )
        return best[1] if best[0] < self._change.peak(self._done) else None

    def _next(self) -> tuple[int, float] | None:
        """The first part whose boundary is no slower than the start, else the least slow, and its busiest rank's load."""
        tried: list[tuple[float, int]] = []
        for part in filter(self._ready, self._left):
            peak = self._peak_after(part)
            if peak <= self._change.ceiling:
                return part, peak
            tried.append((peak, part))
        return (min(tried)[1], min(tried)[0]) if tried else None

    def _ready(self, part: int) -> bool:
        each = self._parts[part]
        return (
            each.after not in self._left and self._change.arrivals([*self._open, *each.slots]) <= self._limit
        )

    def _peak_after(self, part: int) -> float:
        return self._change.peak([*self._done, *self._open, *self._parts[part].slots])


def _shortest(change: RowChange, limit: int) -> list[tuple[int, ...]] | None:
    """The fewest links over all orders of single slots: breadth first over the sets of slots that are done."""
    slots = change.changed
    full = (1 << len(slots)) - 1

    def of(mask: int) -> tuple[int, ...]:
        return tuple(slot for i, slot in enumerate(slots) if mask >> i & 1)

    allowed = [m == full or _allowed(change, of(m)) for m in range(full + 1)]
    fits = [change.arrivals(of(m)) <= limit for m in range(full + 1)]
    came: dict[int, int] = {0: 0}
    queue = [0]
    for mask in queue:
        step = rest = full ^ mask
        while step:
            after = mask | step
            if after not in came and fits[step] and allowed[after]:
                came[after] = mask
                queue.append(after)
            step = (step - 1) & rest
    if full not in came:
        return None
    links: list[tuple[int, ...]] = []
    while full:
        links.append(of(full ^ came[full]))
        full = came[full]
    return links[::-1]


def _allowed(change: RowChange, applied: tuple[int, ...]) -> bool:
    sound = is_sound(change.row(applied), change.experts, change.slots_per_rank)
    return sound and change.peak(applied) <= change.ceiling


def _merged(change: RowChange, links: list[tuple[int, ...]], limit: int) -> tuple[tuple[int, ...], ...]:
    """Neighbouring links in one, the last ones first, until there are few enough or none fits with its neighbour.

    What relieves most comes first and stays fine, so that many layers' best parts fit into one wave. Without loads all parts
    are alike, and few links are best.
    """
    most = 1 if change.load is None else LINKS_MAX
    while len(links) > most:
        at = next(
            (i for i in reversed(range(1, len(links))) if change.arrivals(links[i - 1] + links[i]) <= limit),
            0,
        )
        if not at:
            break
        links = [*links[: at - 1], links[at - 1] + links[at], *links[at + 1 :]]
    return tuple(links)
