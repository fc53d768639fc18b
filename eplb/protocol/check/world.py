"""The world of the model check: a small pool, and its state as interned parts.

A map row is a tuple of experts by slot; all parts of a state are interned, so that a state is a row of small integers and each
step is worked out once for the parts that it concerns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from eplb.protocol import Arrived, Code, Profile, RankState

Row = tuple[int, ...]
EMPTY, WRONG = -1, -2


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large the world is and how often each fault may come.

    ``crashes`` of ranks and daemons together; ``losses`` of all keys of the store; ``messages`` lost, repeated or read out of
    order; ``transfers`` that fail or bring damage; ``writes`` of a slot that do not take; ``pauses`` of a leader past its
    lease; ``skews`` of a rank's step count; ``strays`` offers that nobody's plan made, each wrong in one field; ``wishes`` of an operator to stop a plan;
    ``faults`` all kinds together; ``plans`` that daemons make; ``profile`` delegated has 2 ranks.
    """

    ranks: int = 2
    daemons: int = 2
    waves: int = 2
    plans: int = 1
    crashes: int = 0
    losses: int = 0
    messages: int = 0
    transfers: int = 0
    writes: int = 0
    pauses: int = 0
    skews: int = 0
    strays: int = 0
    wishes: int = 0
    faults: int = 99
    profile: Profile = Profile.STAGED


@dataclass(frozen=True, slots=True)
class Shape:
    """Maps of the pool: ``base`` and ``target`` rows, slots by rank; every layer is alike."""

    experts: int
    width: int
    base: Row
    target: Row


SHAPES = {
    2: Shape(3, 2, (0, 1, 2, 0), (0, 2, 1, 0)),
    3: Shape(4, 2, (0, 1, 2, 3, 0, 3), (0, 2, 1, 3, 0, 3)),
}
"""By number of ranks. Ranks 0 and 1 exchange experts that have one copy each, so that any mistake loses one."""
MENDABLE = Shape(3, 2, (0, 1, 2, 0), (0, 1, 2, 1))
"""For an engine that moves by itself: the slot that changes takes one more copy, so that a way back is there when it is written wrong."""


def shape_of(bounds: Bounds) -> Shape:
    """The maps of the world within these bounds."""
    return MENDABLE if bounds.profile is Profile.DELEGATED else SHAPES[bounds.ranks]


class Offer(NamedTuple):
    """An offer of one layer; ``flaw`` names what is wrong with a stray one, "" = a daemon's; ``bases`` of a way back: all that ranks report."""

    plan: int
    wave: int
    waves: int
    term: int
    run: int
    layer: int
    base: Row
    named: Row
    target: Row
    model: int = 0
    pool: int = 0
    flaw: str = ""
    bases: tuple[Row, ...] = ()


class Rank(NamedTuple):
    """One rank: what its slots hold and what it routes by, and where it stands.

    ``holds`` by layer the experts that really stand in its own slots; ``serves`` the rows by layer; ``staged`` what a
    damaged transfer brought ("" = what was sent); ``served`` all (layer, row) that it served in this run.
    """

    holds: tuple[Row, ...]
    serves: tuple[Row, ...]
    alive: bool = True
    state: RankState = RankState.SERVING
    about: Offer | None = None
    codes: frozenset[str] = frozenset()
    hand: Offer | None = None
    arrived: Arrived = Arrived.NONE
    staged: str = ""
    leaving: bool = False
    closed: frozenset[Offer] = frozenset()
    term: int = 0
    skewed: bool = False
    served: frozenset[tuple[int, Row]] = frozenset()

    @property
    def left(self) -> bool:
        """Whether a collective of its group has failed here, so that it serves no further step in this life."""
        return self.state is RankState.STUCK and str(Code.GROUP_FAILED) in self.codes

    @property
    def transferring(self) -> bool:
        """Whether a transfer of this rank still runs."""
        return self.leaving or self.arrived is Arrived.RUNNING

    @property
    def went_back(self) -> bool:
        """Whether it says that it has taken a way back: its row alone may have been the one before."""
        return self.state is RankState.SWITCHED and self.about is not None and bool(self.about.bases)


class Record(NamedTuple):
    """What a rank reports; ``digests`` by layer the row that it serves verified, or one with a gap."""

    run: int
    members: tuple[int, ...]
    state: RankState
    about: Offer | None
    codes: frozenset[str]
    digests: tuple[Row, ...]
    term: int


class Cache(NamedTuple):
    """The first member's copy of what the store asks for."""

    offer: Offer | None = None
    term: int = 0


class Plan(NamedTuple):
    """A plan in the store: base and target rows by layer."""

    number: int
    base: tuple[Row, ...]
    target: tuple[Row, ...]


class Control(NamedTuple):
    """What daemons write; ``holder`` of the lease is 1 + the daemon's number, 0 = nobody; ``before`` what a read gives that is still on its way."""

    fence: int = 0
    holder: int = 0
    plan: Plan | None = None
    offer: Offer | None = None
    before: Cache | None = None


class Live(NamedTuple):
    """What the store has of one rank; ``older`` one that was overwritten and is to come again."""

    record: Record | None = None
    older: Record | None = None


class Write(NamedTuple):
    """A write that a daemon has decided on and not yet made; ``over`` the offer that it has read a rank to be stuck with."""

    act: str
    plan: Plan | None
    offer: Offer | None
    over: Offer | None = None


class Daemon(NamedTuple):
    """One daemon; ``term`` 0 = it does not lead; ``idea`` the map that its next plan is made on."""

    term: int = 0
    idea: tuple[Row, ...] | None = None
    write: Write | None = None


class Group(NamedTuple):
    """The group's present life."""

    run: int
    members: tuple[int, ...]
    model: int = 0


class Left(NamedTuple):
    """Faults that may still come, and plans that may still be made."""

    plans: int
    crashes: int
    losses: int
    messages: int
    transfers: int
    writes: int
    pauses: int
    skews: int
    strays: int
    wishes: int
    faults: int

    def spend(self, kind: str) -> Left | None:
        """What is left after one fault of this kind, None = there was none left."""
        if not getattr(self, kind) or not self.faults:
            return None
        left = self._replace(**{kind: getattr(self, kind) - 1, "faults": self.faults - 1})
        if left.faults:
            return left
        return Left(left.plans, *(0,) * 10)


KINDS = tuple(kind for kind in Left._fields if kind not in ("plans", "faults"))


def whole(bounds: Bounds, plans: int) -> Left:
    """One fault of each kind that may come at all, any of them, and so many plans."""
    once = {kind: min(1, getattr(bounds, kind)) for kind in KINDS}
    return Left(**once, plans=plans, faults=2)


class State(NamedTuple):
    """One state, its parts in full."""

    ranks: tuple[Rank, ...]
    cache: Cache
    control: Control
    lives: tuple[Live, ...]
    daemons: tuple[Daemon, ...]
    group: Group
    left: Left


def own(shape: Shape, row: Row, rank: int) -> Row:
    """The part of a row that lies on one rank."""
    return row[rank * shape.width : (rank + 1) * shape.width]


def start(bounds: Bounds) -> State:
    """All ranks serve the base; nothing is known to anybody."""
    shape = shape_of(bounds)
    serves = (shape.base,) * bounds.waves
    served = frozenset((layer, shape.base) for layer in range(bounds.waves))
    members = tuple(range(bounds.ranks))
    return State(
        ranks=tuple(
            Rank((own(shape, shape.base, rank),) * bounds.waves, serves, served=served) for rank in members
        ),
        cache=Cache(),
        control=Control(),
        lives=(Live(),) * bounds.ranks,
        daemons=(Daemon(),) * bounds.daemons,
        group=Group(1, members),
        left=Left(
            bounds.plans, bounds.crashes, bounds.losses, bounds.messages, bounds.transfers, bounds.writes,
            bounds.pauses, bounds.skews, bounds.strays, bounds.wishes, bounds.faults,
        ),
    )  # fmt: skip


def wire_digests(shape: Shape, rank: Rank, number: int) -> tuple[Row, ...]:
    """What a rank reports by layer: the row, with a gap for each slot that it knows to be wrong."""
    if rank.state not in (RankState.STUCK, RankState.COMMITTING):
        return rank.serves
    first = number * shape.width
    rows = []
    for row, held in zip(rank.serves, rank.holds, strict=True):
        gaps = {first + place for place in range(shape.width) if held[place] != row[first + place]}
        rows.append(tuple(EMPTY if slot in gaps else expert for slot, expert in enumerate(row)))
    return tuple(rows)


ALL_FAULTS = Bounds(
    crashes=2, losses=1, messages=2, transfers=1, writes=1, pauses=1, skews=1, strays=1, wishes=1, faults=1
)
"""Every kind of fault as often as it may come; ``faults`` says how many of them in one run."""

MAIN_FAULTS = Bounds(crashes=2, losses=1, messages=2, faults=5)
"""What clusters do of themselves: crashes, an emptied store, and messages; all of them in one run."""
