"""Where one rank stands with offers: its state, what it holds and what it has answered; it changes by the table only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.agent.hand import Hand
from eplb.protocol import Effect, Known, Profile, RankState, Transition, decide_rank

if TYPE_CHECKING:
    from eplb.agent.delegated import Move
    from eplb.agent.refusal import Refusals
    from eplb.agent.transfer import Transfer
    from eplb.protocol import Asked, Event

CLOSED_KEPT = 64


class Standing:
    """What a rank remembers between two gates.

    ``offer_key`` and ``refusals`` are what its record says of the last offer; ``leaving`` transfers that were let go of and
    still run; ``refused`` counts offers that were not applied. ``broken`` why, by layer, an engine that moves by itself was
    read back to route otherwise than it was asked to.
    """

    def __init__(self, rank: int, guards: frozenset[str], profile: Profile) -> None:
        self.guards, self.profile = guards, profile
        self.state = RankState.SERVING
        self.refusals: Refusals = ()
        self.offer_key = ""
        self.term_seen = 0
        self.hand: Hand | Move | None = None
        self.broken: dict[int, str] = {}
        self.leaving: list[Transfer] = []
        self.refused = 0
        self._rank = rank
        self._closed: dict[int, None] = {}

    @property
    def held(self) -> int:
        """Identity of the offer in hand, 0 = none."""
        return self.hand.digest if self.hand else 0

    @property
    def staging_bytes(self) -> int:
        """Bytes held beside the live storage now, those of a wave that was let go in mid-transfer included."""
        held = self.hand.staging.bytes if isinstance(self.hand, Hand) else 0
        return held + sum(transfer.staging_bytes for transfer in self.leaving)

    def has_closed(self, digest: int) -> bool:
        """Whether this offer was refused or applied here."""
        return digest in self._closed

    def decide(self, event: Event, asked: Asked, known: Known) -> Transition:
        """What the table says; nothing changes yet."""
        return decide_rank(self.state, event, asked, known, guards=self.guards, profile=self.profile)

    def take(self, done: Transition, asked: Asked, said: Refusals = ()) -> None:
        """Go where the table says and do its bookkeeping; ``said`` who refused, () = this rank's own guard if one did."""
        if done.refusal is not None and not said:
            said = ((self._rank, str(done.refusal.code), done.refusal.sentence),)
        if done.state is RankState.STUCK is not self.state:
            self.refusals = said
        self.state = done.state
        for effect in done.effects:
            if effect is Effect.RELEASE:
                self.release()
            elif effect is Effect.REMEMBER:
                self.remember(asked.digest)
            elif effect is Effect.REPORT and done.state is not RankState.STUCK:
                self.offer_key, self.refusals = asked.key, said
                self.refused += done.state is RankState.REFUSED

    def release(self) -> None:
        """Let go of the offer in hand."""
        running = self.hand.let_go() if isinstance(self.hand, Hand) else None
        if running is not None:
            self.leaving.append(running)
        self.hand = None

    def prune(self) -> None:
        """Forget transfers that have ended."""
        self.leaving = [transfer for transfer in self.leaving if not transfer.done]

    def remember(self, digest: int) -> None:
        """Never take this offer again; the oldest of 64 is forgotten."""
        self._closed[digest] = None
        while len(self._closed) > CLOSED_KEPT:
            self._closed.pop(next(iter(self._closed)))
