"""The switch itself: staging into the live storage, and proof that it arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from eplb.agent.live import LiveMap
    from eplb.agent.refusal import Refusal
    from eplb.agent.rounds import Arrival
    from eplb.agent.staging import Staging
    from eplb.agent.tables import Tables
    from eplb.agent.wire import Offer


class Recorder(Protocol):
    """What the agent tells the recorder of counts about a switch."""

    def begin_flight(self, layers: Sequence[int]) -> None:
        """These layers are between two maps: counts in slot ids do not count."""
        ...

    def end_flight(self, layers: Sequence[int]) -> None:
        """These layers serve one map again."""
        ...

    def switch(self, layer_digests: Mapping[int, int]) -> None:
        """From the next forward on, these layers are counted under these maps."""
        ...


@dataclass(frozen=True, slots=True)
class Switched:
    """What the engine must take over before its next forward.

    ``layers`` positions that changed; ``rows``: int32 [changed, slots]; ``shares``: float64 [changed, slots], or None
    while dispatch is not weighted; ``tables`` of these layers for the router; ``map_version`` that is served now; ``broken`` (layer, slot) of this rank whose
    weights failed the read-back.
    """

    offer: str
    layers: tuple[int, ...]
    rows: NDArray[np.int32]
    shares: NDArray[np.float64] | None
    tables: Tables
    map_version: int
    broken: tuple[tuple[int, int], ...] = ()


def take_over(
    live: LiveMap, offer: Offer, tables: Tables, broken: Sequence[tuple[int, int, str]]
) -> Switched:
    """Serve the rows of an offer; ``broken`` (layer, slot, why) of this rank that do not hold what they should."""
    places = tuple((layer, slot) for layer, slot, _ in broken)
    last = offer.wave == offer.waves - 1 and not places
    live.replace(offer.changes, places, offer.map_version if last else None)
    layers = tuple(sorted(change.layer for change in offer.changes))
    shares = None if live.shares is None else live.shares[list(layers)]
    return Switched(offer.key, layers, live.rows[list(layers)], shares, tables, live.map_version, places)


def write_slots(staging: Staging) -> tuple[tuple[int, int, str], ...]:
    """Write all arrivals into the live storage, then digest what stands there; never raises.

    Returns (layer, slot, sentence) of every slot that does not hold what it should.
    """
    broken = [_attempt(staging.write, arrival) for arrival in staging.arrivals]
    broken += [_attempt(staging.read_back, arrival) for arrival in staging.arrivals]
    return tuple({(layer, slot): (layer, slot, why) for layer, slot, why in filter(None, broken)}.values())


def _attempt(action: Callable[[Arrival], Refusal | None], arrival: Arrival) -> tuple[int, int, str] | None:
    try:
        refusal = action(arrival)
    except Exception as error:  # noqa: BLE001 - the group has switched: this slot is reported, the engine goes on
        return arrival.layer, arrival.destination, f"{type(error).__name__}: {error!s:.120}"
    return None if refusal is None else (arrival.layer, arrival.destination, refusal.sentence)
