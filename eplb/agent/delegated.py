"""What a rank does after its group's yes when the engine moves by itself: begin, read back what is committed, serve that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from eplb.agent.memory import own_slots
from eplb.agent.mover import checked
from eplb.agent.refusal import Code, Refusal
from eplb.agent.switch import Switched
from eplb.agent.tables import tables_of
from eplb.protocol import Event, Known, left_broken

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.live import LiveMap
    from eplb.agent.mover import Mover
    from eplb.agent.standing import Standing
    from eplb.agent.wire import LayerChange, Offer
    from eplb.protocol import Asked


@dataclass(slots=True)
class Move:
    """An offer that the engine is asked to carry out; ``pending`` changes by layer that it has not committed.

    ``failure`` why the engine did not even begin, "" = it did.
    """

    offer: Offer
    asked: Asked
    pending: dict[int, LayerChange]
    failure: str = ""

    @classmethod
    def of(cls, offer: Offer, asked: Asked) -> Move:
        """Nothing is begun yet."""
        return cls(offer, asked, {change.layer: change for change in offer.changes})

    @property
    def digest(self) -> int:
        """Identity of the offer's bytes."""
        return self.asked.digest


class Delegated:
    """One rank's side of an engine that moves by itself; it changes ``live`` and ``standing`` by the table only.

    ``tell`` passes a call on to the recorder of counts. ``broken`` layers that this rank reads back other than it was asked for, and why;
    their counts in slot ids stay dropped until an offer puts them right.
    """

    def __init__(
        self,
        facts: PoolFacts,
        rank: int,
        mover: Mover,
        live: LiveMap,
        standing: Standing,
        *,
        tell: Callable[[str, object], None],
    ) -> None:
        self._facts, self._rank, self._mover = facts, rank, mover
        self._live, self._standing, self._tell = live, standing, tell
        self.broken = standing.broken

    def begin(self, move: Move) -> None:
        """Hand the changes to the engine; never raises, because the group has decided."""
        self._standing.hand = move
        self._tell("begin_flight", _moved(move.offer))
        try:
            self._mover.begin(move.offer.changes)
        except Exception as error:  # noqa: BLE001 - the others' engines have begun: this one's layers are read back as they are
            move.failure = f"the engine did not begin: {type(error).__name__}: {error!s:.120}"

    def look(self) -> Switched | None:
        """Read back and serve what the engine has committed since the last look; None = nothing.

        Raises:
            Exception: the engine could not say what it has committed.
        """
        move = self._standing.hand
        if not isinstance(move, Move):
            return None
        committed = list(move.pending) if move.failure else [int(layer) for layer in self._mover.committed()]
        done = [move.pending.pop(layer) for layer in committed if layer in move.pending]
        if not done:
            return None
        served = [self._serve(move, change) for change in done]
        if not move.pending:
            self._end(move)
        return self._switched(move, served)

    def _serve(self, move: Move, asked: LayerChange) -> LayerChange:
        """What is routed by in one layer, as a change; the layer is broken where that is not what was asked for."""
        found, why = self._read(asked)
        layer = asked.layer
        self._live.replace((found,), (), None)
        served = int(self._live.digests[layer])
        if served == asked.target_digest:
            self.broken.pop(layer, None)
        else:
            why = (
                move.failure or why or f"it routes by map {served:016x}, asked was {asked.target_digest:016x}"
            )
            self.broken[layer] = f"layer {layer}: {why}"
        self._tell("switch", {layer: served})
        if layer not in self.broken:
            self._tell("end_flight", [layer])
        self._take(Event.LAYER_COMMITTED, move)
        return found

    def _read(self, asked: LayerChange) -> tuple[LayerChange, str]:
        try:
            row, shares = checked(self._facts, self._mover.read_back(asked.layer))
        except Exception as error:  # noqa: BLE001 - a layer that cannot be read is a layer that nobody can vouch for
            row, shares = self._live.rows[asked.layer].copy(), None
            row[list(own_slots(self._facts, self._rank))] = -1
            return _change(asked, row, shares), f"{type(error).__name__}: {error!s:.120}"
        return _change(asked, row, shares), ""

    def _end(self, move: Move) -> None:
        fault = None
        if self.broken:
            fault = Refusal(Code.APPLY_UNVERIFIED, "; ".join(list(self.broken.values())[:4])[:200])
        elif move.offer.wave == move.offer.waves - 1:
            self._live.replace((), (), move.offer.map_version)
        self._take(Event.WRITTEN, move, Known(weights_fault=fault))

    def _take(self, event: Event, move: Move, known: Known | None = None) -> None:
        done = self._standing.decide(event, move.asked, known or Known())
        self._standing.take(done, move.asked)

    def _switched(self, move: Move, served: list[LayerChange]) -> Switched:
        layers = sorted(change.layer for change in served)
        asked = {change.layer: np.array(change.target, dtype=np.int32) for change in move.offer.changes}
        own = set(own_slots(self._facts, self._rank))
        wrong = [
            (layer, int(slot))
            for layer in layers
            for slot in np.flatnonzero(self._live.rows[layer] != asked[layer])
        ]
        shares = None if self._live.shares is None else self._live.shares[layers]
        return Switched(
            offer=move.offer.key,
            layers=tuple(layers),
            rows=self._live.rows[layers],
            shares=shares,
            tables=tables_of(self._facts, served),
            map_version=self._live.map_version,
            broken=tuple(place for place in wrong if place[1] in own),
        )


def unmended_layer(broken: Mapping[int, str], layers: Collection[int]) -> Refusal | None:
    """The first broken layer that an offer of these layers leaves as it is, or None."""
    left = left_broken(broken, layers)
    return None if left is None else Refusal(Code.STUCK, f"the offer leaves as it is: {broken[left]}")


def _change(asked: LayerChange, row: NDArray[np.int32], shares: NDArray[np.float64] | None) -> LayerChange:
    wire = None if shares is None else tuple(float(x) for x in shares)
    return replace(asked, target=tuple(int(x) for x in row), shares=wire)


def _moved(offer: Offer) -> list[int]:
    """Layers that the engine may change at any forward from now on."""
    return [change.layer for change in offer.changes]
