"""Steps of the ranks: gates with their votes, transfers, switches, clocks, records and re-forming."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from eplb.protocol.check.world import EMPTY, WRONG, Rank, Record, own, wire_digests
from eplb.protocol.facts import NOTHING_ASKED, Arrived, Asked, Known, Profile, RankState
from eplb.protocol.lives import left_broken
from eplb.protocol.rank import Effect, Event, Transition, decide_rank
from eplb.protocol.refusals import Code, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eplb.protocol.check.world import Cache, Group, Left, Offer, Row, Shape

CACHE_OLD_S, LONG_S, GOOD_FOR_S = 60.0, 2.0, 1.0
STEP, OTHER_STEP = 7, 8
_POOL = "p"
_EXPIRED = frozenset(("expired",))
_OTHER = frozenset(("other",))
_GROUP_FAILED = frozenset((str(Code.GROUP_FAILED),))


class Gate(NamedTuple):
    """What one gate leads to; ``wrong`` the rule that a switch broke, "" = none."""

    name: str
    ranks: tuple[Rank, ...]
    left: Left
    fault: bool = False
    wrong: str = ""


class _Call(NamedTuple):
    """A called vote: on what, from which cache, in which life of the group, whether the store was away, and on which ranks time is over."""

    offer: Offer
    cache: Cache
    group: Group
    away: bool
    late: frozenset[int] = frozenset()


class Ranks:
    """Steps of ranks under a set of guards; every decision is the protocol's own."""

    def __init__(self, shape: Shape, guards: frozenset[str], profile: Profile = Profile.STAGED) -> None:
        self.shape, self.guards, self.profile = shape, guards, profile
        self._digests: dict[Row, int] = {}
        self._identities: dict[Offer, int] = {}

    def digest(self, row: Row) -> int:
        """A number for a row, never 0."""
        return self._digests.setdefault(row, len(self._digests) + 1)

    def asked(self, offer: Offer | None) -> Asked:
        """The offer as the protocol sees it."""
        if offer is None:
            return NOTHING_ASKED
        return Asked(
            digest=self._identities.setdefault(offer, len(self._identities) + 1),
            pool=_POOL if offer.pool == 0 else "q",
            term=offer.term,
            run_id=offer.run,
            model_digest=offer.model,
            layers=(offer.layer,),
            bases=(self.digest(offer.base),),
            targets=(self.digest(offer.named),),
            found=(self.digest(offer.target),),
            others=(tuple(map(self.digest, offer.bases)),) if offer.bases else (),
            fault=self._fault(offer.target),
        )

    def _fault(self, row: Row) -> Refusal | None:
        if set(range(self.shape.experts)) <= set(row):
            return None
        return Refusal(Code.NO_COVERAGE, "an expert would have no slot")

    def decide(self, rank: Rank, event: Event, offer: Offer | None, known: Known) -> Transition:
        """What the table says for one rank."""
        asked = self.asked(offer)
        return decide_rank(rank.state, event, asked, known, guards=self.guards, profile=self.profile)

    def take(
        self, rank: Rank, done: Transition, offer: Offer | None, codes: frozenset[str] = frozenset()
    ) -> Rank:
        """The rank after a transition and its bookkeeping, as ``eplb.agent.standing`` does it."""
        if done.refusal is not None and not codes:
            codes = frozenset((str(done.refusal.code),))
        rank = rank._replace(state=done.state)
        for effect in done.effects:
            if effect is Effect.RELEASE:
                rank = self.release(rank)
            elif effect is Effect.REMEMBER and offer is not None:
                rank = rank._replace(closed=rank.closed | {offer})
            elif effect is Effect.REPORT and done.state is not RankState.STUCK:
                rank = rank._replace(about=offer or rank.about, codes=codes)
        return rank

    def release(self, rank: Rank) -> Rank:
        """Let go of the offer in hand; a transfer that runs goes on."""
        leaving = rank.leaving or rank.arrived is Arrived.RUNNING
        return rank._replace(hand=None, arrived=Arrived.NONE, staged="", leaving=leaving)

    def settle(self, rank: Rank, *, late: bool) -> Rank:
        """A forward without a gate: the rank looks at its clock, which may say that time is over, and at its transfer."""
        if rank.hand is None or rank.state is RankState.COMMITTING:
            return rank
        offer = rank.hand
        done = self.decide(rank, Event.TIME_PASSED, offer, _aged(late))
        after = self.take(rank, done, offer)
        if done.refusal is None and rank.state is RankState.STAGING and rank.arrived is not Arrived.RUNNING:
            ended = self.decide(rank, Event.TRANSFER_ENDED, offer, Known(arrived=rank.arrived))
            after = self.take(rank, ended, offer)
        return after

    # A gate.

    def gate(self, ranks: tuple[Rank, ...], cache: Cache, group: Group, left: Left) -> Iterator[Gate]:
        """All that can come of a gate on which every member is present.

        The store may have been away for long, and the time of an offer may be over on any rank's clock: the model keeps no
        clocks, so that both can be so at any moment.
        """
        for away in (False, True):
            yield from self._gate(ranks, cache, group, left, away=away)

    def _gate(
        self, ranks: tuple[Rank, ...], cache: Cache, group: Group, left: Left, *, away: bool
    ) -> Iterator[Gate]:
        now = dict(enumerate(ranks))
        first = group.members[0]
        action, offer, now[first] = self._choose(now[first], cache, away=away)
        for number in group.members:
            now[number] = now[number]._replace(term=max(now[number].term, now[first].term))
        if action != "apply":
            self._let_go(now, offer, group)
        if action == "keep" or offer is None:
            yield Gate("keep", self._all(ranks, now), left)
        elif action == "prepare":
            wrong = "asked for what a store that is away asked for" if away else ""
            yield Gate("prepare", self._all(ranks, self._prepare(now, offer, group)), left, wrong=wrong)
        else:
            call = _Call(offer, cache, group, away)
            holders = [number for number in group.members if now[number].hand is not None]
            for late in (frozenset(), *(frozenset((number,)) for number in holders)):
                yield from self._apply(now, call._replace(late=late), left)

    def _let_go(self, now: dict[int, Rank], named: Offer | None, group: Group) -> None:
        for number in group.members:
            held = now[number].hand
            if held is not None and held != named:
                done = self.decide(now[number], Event.UNNAMED, held, Known())
                now[number] = self.take(now[number], done, held, frozenset(("withdrawn",)))

    @staticmethod
    def _all(ranks: tuple[Rank, ...], now: dict[int, Rank]) -> tuple[Rank, ...]:
        return tuple(now[number] for number in range(len(ranks)))

    def _choose(self, rank: Rank, cache: Cache, *, away: bool) -> tuple[str, Offer | None, Rank]:
        aged = Known(cache_age_s=CACHE_OLD_S if away else 0.0)
        if self.decide(rank, Event.LOOKED, None, aged).refusal is not None:
            return "keep", rank.hand, rank
        rank = rank._replace(term=max(rank.term, cache.term))
        if rank.state is RankState.COMMITTING:
            return "keep", rank.hand, rank
        if rank.hand is not None:
            return self._with_hand(rank, cache)
        found = cache.offer
        if found is None or not self._worth(rank, found):
            return "keep", None, rank
        live = not found.bases and found.pool == 0 and rank.serves[found.layer] == found.target == found.named
        done = self.decide(
            rank, Event.FOUND_LIVE if live else Event.WEIGHED, found, Known(good_for_s=GOOD_FOR_S)
        )
        rank = self.take(rank, done, found)
        return ("prepare", found, rank) if Effect.ASK_GROUP in done.effects else ("keep", None, rank)

    def _worth(self, rank: Rank, found: Offer) -> bool:
        known = Known(stuck=rank.state is RankState.STUCK, closed=found in rank.closed, leaving=rank.leaving)
        return self.decide(rank, Event.FOUND, found, known).refusal is None

    def _with_hand(self, rank: Rank, cache: Cache) -> tuple[str, Offer | None, Rank]:
        offer = rank.hand
        compared = self.decide(rank, Event.COMPARED, offer, Known(still_wanted=cache.offer == offer))
        if compared.refusal is not None:
            return "keep", None, self.take(rank, compared, offer)
        due = self.decide(rank, Event.CALL_DUE, offer, Known(arrived=rank.arrived))
        return ("apply" if Effect.CALL_VOTE in due.effects else "keep"), offer, rank

    def _reported(self, rank: Rank, number: int) -> tuple[Row, ...]:
        # An agent whose slot failed its read-back in the staged profile takes no offer at all, whatever it compares.
        return rank.serves if self.profile is Profile.STAGED else wire_digests(self.shape, rank, number)

    def _unmended(self, rank: Rank, number: int, offer: Offer) -> Refusal | None:
        told = self._reported(rank, number)
        broken = {layer for layer, row in enumerate(told) if row != rank.serves[layer]}
        if rank.state is RankState.STUCK and rank.about and told[rank.about.layer] != rank.about.named:
            broken.add(rank.about.layer)
        left = left_broken(sorted(broken), (offer.layer,))
        return None if left is None else Refusal(Code.STUCK, "a wrong layer is left as it is")

    def _known(self, rank: Rank, offer: Offer, group: Group, *, number: int, late: bool = False) -> Known:
        held = self.asked(rank.hand).digest
        touched = {slot // self.shape.width for slot, expert in enumerate(offer.target) if expert != EMPTY}
        stray = touched - set(group.members)
        return Known(
            pool=_POOL,
            run_id=group.run,
            model_digest=group.model,
            term_seen=rank.term,
            step=OTHER_STEP if rank.skewed else STEP,
            stuck=rank.state is RankState.STUCK,
            served=(self.digest(self._reported(rank, number)[offer.layer]),),
            held=held,
            named=self.asked(offer).digest,
            named_step=STEP,
            named_run=group.run,
            closed=offer in rank.closed,
            leaving=rank.leaving,
            age_s=LONG_S if late else 0.0,
            good_for_s=GOOD_FOR_S,
            arrived=rank.arrived,
            stray=Refusal(Code.NOT_MEMBER, "a slot of no member") if stray else None,
            unmended=self._unmended(rank, number, offer),
        )

    def _prepare(self, now: dict[int, Rank], offer: Offer, group: Group) -> dict[int, Rank]:
        said = {
            number: self.decide(
                now[number], Event.ASKED, offer, self._known(now[number], offer, group, number=number)
            ).refusal
            for number in group.members
        }
        codes = frozenset(str(refusal.code) for refusal in said.values() if refusal is not None)
        noes = Known(noes=tuple(number for number, refusal in said.items() if refusal is not None))
        after = dict(now)
        for number, refusal in said.items():
            event = Event.SAID_NO if refusal is not None else Event.VOTED_TO_STAGE
            done = self.decide(now[number], event, offer, noes)
            rank = self.take(now[number], done, offer, codes)
            if Effect.BEGIN_MOVE in done.effects:
                rank = rank._replace(hand=offer)
            if Effect.BEGIN_TRANSFER in done.effects:
                rank = rank._replace(hand=offer, arrived=Arrived.RUNNING, staged="")
            after[number] = rank
        return after

    def _apply(self, now: dict[int, Rank], call: _Call, left: Left) -> Iterator[Gate]:
        said: dict[int, Refusal | None] = {}
        for number in call.group.members:
            known = self._known(now[number], call.offer, call.group, number=number, late=number in call.late)
            said[number] = self.decide(now[number], Event.CALLED, now[number].hand, known).refusal
        codes = frozenset(str(refusal.code) for refusal in said.values() if refusal is not None)
        noes = Known(noes=tuple(number for number, refusal in said.items() if refusal is not None))
        after, writers = dict(now), []
        for number, refusal in said.items():
            held = now[number].hand
            event = Event.SAID_NO if refusal is not None or held is None else Event.VOTED_TO_SWITCH
            done = self.decide(now[number], event, held, noes)
            if Effect.WRITE_SLOTS in done.effects:
                writers.append(number)
            after[number] = self.take(now[number], done, held or now[number].about, codes)
        if writers:
            yield from self._switch(now, after, writers, call, left)
        else:
            yield Gate("apply", tuple(after.values()), left)

    def _switch(
        self, now: dict[int, Rank], after: dict[int, Rank], writers: list[int], call: _Call, left: Left
    ) -> Iterator[Gate]:
        wrong = self._rule_broken(now, call, writers)
        switched = {
            **after,
            **{number: self._write(number, now[number], after[number]) for number in writers},
        }
        yield Gate("switch", tuple(switched.values()), left, wrong=wrong)
        if (less := left.spend("writes")) is not None:
            for number in writers:
                deaf = {**switched, number: self._write(number, now[number], after[number], takes=False)}
                if deaf != switched:
                    yield Gate("switch, a slot deaf", tuple(deaf.values()), less, fault=True)
        if (less := left.spend("messages")) is not None:
            for heard in _some(writers):
                unheard = {n: self.broken_off(now[n]) for n in writers if n not in heard}
                if unheard:
                    yield Gate(
                        "a vote not heard by all", tuple({**switched, **unheard}.values()), less, fault=True
                    )
        if (less := left.spend("crashes")) is not None:
            for number in call.group.members:
                for heard in _some([writer for writer in writers if writer != number]):
                    deaf = {n: self.broken_off(now[n]) for n in writers if n not in heard}
                    gone = {**switched, **deaf, number: crashed(now[number])}
                    yield Gate("crash in the switch", tuple(gone.values()), less, fault=True)

    def _write(self, number: int, before: Rank, rank: Rank, *, takes: bool = True) -> Rank:
        """Write what is staged into the slots and read it back; ``takes`` False: the slots keep what they held."""
        offer = before.hand
        if offer is None:
            return rank
        target, held = own(self.shape, offer.target, number), before.holds[offer.layer]
        row = own(self.shape, before.serves[offer.layer], number)
        bad = before.arrived is not Arrived.COMPLETE or bool(before.staged)
        slots = []
        for place, expert in enumerate(target):
            moved = expert not in (EMPTY, row[place])
            slots.append((held[place] if not takes else WRONG if bad else expert) if moved else held[place])
        holds = _with(before.holds, offer.layer, tuple(slots))
        serves = _with(before.serves, offer.layer, offer.target)
        served = rank.served | {(offer.layer, offer.target)}
        rank = rank._replace(holds=holds, serves=serves, served=served)
        fault = any(expert != EMPTY and slots[place] != expert for place, expert in enumerate(target))
        found = Known(weights_fault=Refusal(Code.WEIGHTS_DIFFER, "read back wrong") if fault else None)
        return rank._replace(state=self.decide(rank, Event.WRITTEN, offer, found).state)

    def _rule_broken(self, now: dict[int, Rank], call: _Call, writers: list[int]) -> str:
        offer, cache, group, away, late = call
        members = [now[number] for number in group.members]
        rules = {
            "switched under a term older than one that the group has seen": offer.term
            < max(r.term for r in members),
            "switched an offer of another pool": offer.pool != 0,
            "switched an offer of another life of the group": offer.run != group.run,
            "switched an offer made for another model": offer.model != group.model,
            "switched from a map that the offer was not made for": any(
                now[n].serves[offer.layer] != offer.base for n in writers
            ),
            "switched to a row that the offer's digest does not name": offer.target != offer.named,
            "switched an offer that all ranks had answered": all(offer in r.closed for r in members),
            "switched at different forwards": len({now[n].skewed for n in writers}) > 1,
            "switched an offer whose time was over on a rank's own clock": any(n in late for n in writers),
            "switched on what a store that is away asked for": away,
            "switched an offer that rank 0 knew to be withdrawn": cache.offer != offer,
            "switched a wave before all ranks served the one before it": not offer.flaw
            and offer.wave > 0
            and any(r.serves[offer.layer - 1] != self.shape.target for r in members),
            "switched a rank whose slots were read back wrong": any(
                r.state is RankState.STUCK for r in members
            ),
        }
        return next((name for name, broken in rules.items() if broken), "")

    # Records and lives.

    def group_fails(self, ranks: tuple[Rank, ...], group: Group, left: Left) -> Iterator[Gate]:
        """A member hears that its group has lost a rank."""
        for number in group.members:
            rank = ranks[number]
            if rank.alive and rank.state is not RankState.STUCK:
                after = {**dict(enumerate(ranks)), number: self.broken_off(rank)}
                yield Gate(f"rank {number} leaves its broken group", tuple(after.values()), left)

    def broken_off(self, rank: Rank) -> Rank:
        """The rank once a collective of its group has failed."""
        after = self.take(rank, self.decide(rank, Event.GROUP_FAILED, None, Known()), None)
        return after._replace(codes=_GROUP_FAILED)

    def record(self, rank: Rank, number: int, group: Group) -> Record:
        """What a rank reports now."""
        digests = wire_digests(self.shape, rank, number)
        state, about = rank.state, rank.about
        if state is RankState.PREPARED:
            state = RankState.STAGING  # a daemon asks only whether an offer is held
        if state in (RankState.SERVING, RankState.SWITCHED) and not rank.went_back:
            state, about = RankState.SERVING, None
        return Record(group.run, group.members, state, about, rank.codes, digests, rank.term)

    def plain(self, rank: Rank, number: int, group: Group) -> Rank:
        """The same rank without what nobody asks: of a vote, only the first member reports the result."""
        if rank.state is RankState.PREPARED:
            rank = rank._replace(state=RankState.STAGING)  # all that has come is what ``arrived`` says
        if rank.state is RankState.REFUSED and number == group.members[0]:
            return rank._replace(codes=rank.codes if rank.codes == _EXPIRED else _OTHER)
        if rank.state in (RankState.SERVING, RankState.SWITCHED, RankState.REFUSED) and not rank.went_back:
            return rank._replace(state=RankState.SERVING, about=None, codes=frozenset())
        return rank._replace(codes=rank.codes & _GROUP_FAILED)


def crashed(rank: Rank) -> Rank:
    """A rank that is gone with all that it held; what it had served is kept for the rule about waves taken for live."""
    return Rank(holds=(), serves=(), alive=False, served=rank.served)


def _some(numbers: list[int]) -> Iterator[frozenset[int]]:
    """Every choice of these but none at all."""
    for size in range(len(numbers), 0, -1):
        yield from map(frozenset, combinations(numbers, size))


def _aged(late: bool) -> Known:
    return Known(age_s=LONG_S if late else 0.0, good_for_s=GOOD_FOR_S)


def _with(rows: tuple[Row, ...], layer: int, row: Row) -> tuple[Row, ...]:
    return (*rows[:layer], row, *rows[layer + 1 :])
