"""One state for all that differ in nothing that a later step or rule could ask.

Each reduction keeps what can follow: a state and its representative allow the same steps, up to the same reduction.

* Daemons are alike. One without lease and without a write can only begin anew, as one that has just started.
* While no plan is to be made, daemons take all rows that no plan or offer at hand names for stale: they count as one.
* A rank's answer to an offer matters only while the offer can come: it is in the store, in a cache or about to be written, or a
  plan that is there could make it again under a term that is still granted. A new life of the group forgets the answers of the
  one before: whoever switches such an offer breaks the rule on offers of another life.
* A record about an offer, and what a rank would report of it, matter only while daemons can find the offer in the store: what
  only a cache still has, nobody writes again.
* A rank that is stuck because its group is lost says nothing against its weights, so that daemons take it as one that serves.
* A plan without an offer is never looked at: the next plan replaces it.
* While nothing can be offered any more, daemons look at terms only.
* A rank's term in the store matters only above the term that the store has granted; a term in the cache only above rank 0's.
* Lives of the group are compared for order and equality, and a new one is above all: they are numbered anew, without gaps.
  So are terms, when the store cannot be lost any more and has granted the highest: a term of a rank that no offer at hand is
  below counts as none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.protocol.check.layout import BLOCK_BITS, LEAD, LIVES, POOL
from eplb.protocol.check.matters import LOSSES, ROWS, Hearing, View, live, may_come, rest, twin
from eplb.protocol.check.numbers import Memo, each
from eplb.protocol.check.parts import BITS
from eplb.protocol.check.rename import SAME, Names, Sign, joined, names, renamed, sign
from eplb.protocol.check.world import Cache, Control, Daemon, Group, Left, Live, Rank
from eplb.protocol.facts import Profile, RankState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eplb.protocol.check.layout import Block, Layout, States
    from eplb.protocol.check.numbers import Column, Columns
    from eplb.protocol.check.parts import Parts
    from eplb.protocol.check.ranks import Ranks
    from eplb.protocol.check.world import Bounds, Shape


class Alike:
    """Representatives of states, worked out once for the parts that each reduction looks at."""

    def __init__(
        self,
        bounds: Bounds,
        shape: Shape,
        layout: Layout,
        *,
        blocks: Sequence[Block],
        ranks: Ranks,
        parts: Parts,
    ) -> None:
        self._bounds, self._shape, self._layout = bounds, shape, layout
        self._ranks, self._parts, self._blocks = ranks, parts, blocks
        rows = ROWS * (bounds.profile is not Profile.STAGED)
        self._may_come = parts.fact(Left, lambda left: may_come(left) | rows)
        self._first = Memo(BLOCK_BITS[:1], 1, self._first_terms)
        self._rest = Memo((4, BITS, BITS, BLOCK_BITS[LEAD]), 4, self._rests)
        self._pool = Memo((BLOCK_BITS[POOL], BITS, BITS), 1, self._pools)
        self._rank = Memo((2, BITS, BITS, BITS), 1, each(self._rank_of))
        self._live = Memo((BITS, BITS), 1, each(self._live_of))
        self._lives = Memo((BLOCK_BITS[LIVES], BITS), 1, self._all_lives)
        self._numbering = Numbering(layout, blocks, parts)
        self._twin = parts.fact(Control, lambda control: parts.key(twin(control)))
        self._ordered = Memo((BLOCK_BITS[LEAD],), 1, self._in_order)

    def of(self, states: States) -> States:
        """The representatives of states."""
        pool, lead, lives, left = states
        come, cache = self._may_come.one(left), self._blocks[POOL].part(self._layout.cache, pool)
        cache, lead, view, hearing = self._rest.of(come, self._first.one(pool), cache, lead)
        now = np.stack([self._pool.one(pool, cache, view), lead, self._lives.one(lives, hearing), left])
        if not self._bounds.strays:
            self._numbering.renew(now, come & LOSSES)
        if len(self._layout.daemons) == 2:
            now[LEAD] = self._ordered.one(now[LEAD])
        return now

    def hearings(self, states: States) -> Column:
        """By representative, what its records matter for."""
        pool, lead, _, left = states
        cache = self._blocks[POOL].part(self._layout.cache, pool)
        found: Column = self._rest.of(self._may_come.one(left), self._first.one(pool), cache, lead)[3]
        return found

    def heard(self, live: Column, hearings: Column) -> Column:
        """Records without what no daemon asks."""
        return self._live.one(live, hearings)

    # All but ranks and records.

    def _first_terms(self, pools: Column) -> Columns:
        def term(group: int, *ranks: int) -> int:
            life: Group = self._parts.part(Group, group)
            seen: Rank = self._parts.part(Rank, ranks[life.members[0]])
            return seen.term

        block = self._blocks[POOL]
        ranks = (block.part(place, pools) for place in self._layout.ranks)
        return each(term)(block.part(self._layout.group, pools), *ranks)

    def _rests(self, come: Column, first_term: Column, cache: Column, lead: Column) -> Columns:
        block = self._blocks[LEAD]
        cache, view, hearing, *parts = each(self._rest_of)(come, first_term, cache, *block.parts(lead))
        return cache, block.numbers(parts), view, hearing

    def _rest_of(self, come: int, first_term: int, *keys: int) -> Sequence[int]:
        part = self._parts.part
        daemons = [part(Daemon, key) for key in keys[2:]]
        found = rest(part(Cache, keys[0]), part(Control, keys[1]), daemons, first_term, come)
        cache, control, daemons, view, hearing = found
        return [self._parts.key(each) for each in (cache, view, hearing, control, *daemons)]

    def _in_order(self, lead: Column) -> Columns:
        block = self._blocks[LEAD]
        control, one, two = block.parts(lead)
        turned = one > two
        control[turned] = self._twin.one(control[turned])
        return (block.numbers([control, np.minimum(one, two), np.maximum(one, two)]),)

    # Ranks and records.

    def _pools(self, pools: Column, cache: Column, view: Column) -> Columns:
        block, layout = self._blocks[POOL], self._layout
        now = block.parts(pools)
        for number in layout.ranks:
            which = np.full_like(pools, number)
            now[number] = self._rank.one(which, now[number], now[layout.group], view)
        now[layout.cache] = cache
        return (block.numbers(now),)

    def _rank_of(self, number: int, key: int, group_key: int, view_key: int) -> int:
        view, group = self._parts.part(View, view_key), self._parts.part(Group, group_key)
        rank = self._ranks.plain(self._parts.part(Rank, key), number, group)
        if rank.state is RankState.REFUSED and not view.may_be_stored(rank.about):
            rank = rank._replace(state=RankState.SERVING, about=None, codes=frozenset())
        served = rank.served
        if (
            not self._bounds.strays and self._bounds.profile is Profile.STAGED
        ):  # daemons claim the plan's targets only
            served = frozenset((layer, row) for layer, row in served if row == self._shape.target)
        closed = frozenset(offer for offer in rank.closed if view.may_be_asked(offer))
        return self._parts.key(rank._replace(closed=closed, served=served))

    def _all_lives(self, lives: Column, hearing: Column) -> Columns:
        block = self._blocks[LIVES]
        return (block.numbers([self._live.one(column, hearing) for column in block.parts(lives)]),)

    def _live_of(self, key: int, hearing_key: int) -> int:
        return self._parts.key(live(self._parts.part(Live, key), self._parts.part(Hearing, hearing_key)))


class Numbering:
    """Numbers of terms and of lives of the group, given anew."""

    def __init__(self, layout: Layout, blocks: Sequence[Block], parts: Parts) -> None:
        self._parts, self._same = parts, parts.key(SAME)
        self._sign = {kind: self._sign_of(kind) for kind in layout.kinds}
        self._part = {kind: self._renamed(kind) for kind in layout.kinds}
        kinds = [[layout.kinds[place] for place in block.places] for block in blocks]
        found = list(zip(BLOCK_BITS, blocks, kinds, strict=True))
        self._signs = [Memo((bits,), 1, self._block_signs(block, of)) for bits, block, of in found]
        self._names = Memo((1, *(BITS,) * len(blocks)), 1, each(self._names_of))
        self._under = [Memo((bits, BITS), 1, self._blocks_under(block, of)) for bits, block, of in found]

    def renew(self, states: States, losses: Column) -> None:
        """Number states anew in place; ``losses``: the store may still be lost."""
        signs = [known.one(numbers) for known, numbers in zip(self._signs, states, strict=False)]
        given = self._names.one(losses, *signs)
        others = np.flatnonzero(given != self._same)
        if others.size:
            for which, under in enumerate(self._under):
                states[which, others] = under.one(states[which, others], given[others])

    def _names_of(self, losses: int, *signs: int) -> int:
        return self._parts.key(names([self._parts.part(Sign, key) for key in signs], losses=bool(losses)))

    def _sign_of(self, kind: type) -> Memo:
        return self._parts.fact(kind, lambda part: self._parts.key(sign(part)))

    def _block_signs(self, block: Block, kinds: list[type]) -> Callable[..., Columns]:
        def together(*signs: int) -> int:
            return self._parts.key(joined(self._parts.part(Sign, key) for key in signs))

        known = Memo((BITS,) * len(kinds), 1, each(together))

        def signs(numbers: Column) -> Columns:
            columns = zip(kinds, block.parts(numbers), strict=True)
            return known.of(*(self._sign[kind].one(column) for kind, column in columns))

        return signs

    def _renamed(self, kind: type) -> Memo:
        def under(key: int, given: int) -> int:
            return self._parts.key(renamed(self._parts.part(kind, key), self._parts.part(Names, given)))

        return Memo((BITS, BITS), 1, each(under))

    def _blocks_under(self, block: Block, kinds: list[type]) -> Callable[..., Columns]:
        def under(numbers: Column, given: Column) -> Columns:
            columns = zip(kinds, block.parts(numbers), strict=True)
            return (block.numbers([self._part[kind].one(column, given) for kind, column in columns]),)

        return under
