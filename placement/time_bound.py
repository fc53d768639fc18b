"""What no placement can beat where cost is a rank's time: the mean of the least work, and the least largest copy.

Derived from the roofline: all slots are filled; an expert is read at least once however its copies share; one more expert
read spares at most the tokens that come free with it. Copies of any shares are covered, as one of n takes at least 1 / n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placement.bounds import Bound
from placement.cost import Clock
from placement.layer import kept_slices, ordered_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer
    from placement.trace import LoadTrace


def time_bound(layer: Layer, trace: LoadTrace, at: int, clock: Clock, *, groups: int = 0) -> Bound:
    """Bound the mean ratio of layer ``at`` over every map without violations, whatever its copies and shares.

    ``layer``: all slices of ``trace`` with load and weight. ``groups``: see ``layer_bound``.
    """
    if not layer.loaded:
        return Bound(loaded=False)
    weights, speed = trace.slice_weights(), 1.0 / layer.inverse_speed
    kept = kept_slices(trace.tokens[:, at], weights)
    tokens, clock = trace.tokens[kept, at], Clock(clock.model, clock.activation.only(kept))
    balanced = clock.least_us(tokens, speed)
    held = np.full(layer.ranks, 1) if groups else layer.capacity()
    mean = _least_work(tokens, clock, layer.ranks, max(int(held.sum()), layer.experts), layer.slots)
    mean /= ordered_sum(speed) * balanced
    copy = mean
    model = clock.model
    if model.activated_us - model.idle_us >= model.token_us * model.free_tokens:
        most = int(np.bincount(layer.node_of_rank).max()) if groups else layer.ranks
        others = model.base_us + model.idle_us * (int(held.min()) - 1)
        copy = (_least_largest(tokens, clock, layer.slots, most) + others) / (float(speed.max()) * balanced)
    level = ordered_sum(layer.weights * mean)
    return Bound(ordered_sum(layer.weights * np.maximum(copy - mean, 0.0)), mean=level)


def _least_work(
    tokens: NDArray[np.int64], clock: Clock, ranks: int, held: int, slots: int
) -> NDArray[np.float64]:
    """Least time of all ranks together, float64 [slices]; ``held``: copies at least, ``slots``: copies at most."""
    model, read = clock.model, clock.read(tokens)
    each = tokens.sum(axis=1) / clock.activation.steps
    kink = each / model.free_tokens if model.free_tokens else read
    # Linear on both sides of the number of reads from which on all tokens come free.
    reads = (read, np.full(len(read), float(slots)), np.clip(kink, read, slots))
    times = [
        (model.activated_us - model.idle_us) * a
        + model.token_us * np.maximum(0.0, each - model.free_tokens * a)
        for a in reads
    ]
    least: NDArray[np.float64] = np.min(times, axis=0)
    return least + ranks * model.base_us + held * model.idle_us


def _least_largest(
    tokens: NDArray[np.int64], clock: Clock, slots: int, most_copies: int
) -> NDArray[np.float64]:
    """Smallest possible largest time of one copy, float64 [slices]: the next copy goes to the dearest, as more never cost more."""
    counts = np.ones(tokens.shape, dtype=np.int64)
    each = np.arange(len(tokens))
    unit = clock.copy_us(tokens, counts)
    for _ in range(slots - tokens.shape[1]):
        dearest = unit.argmax(axis=1)
        grow = counts[each, dearest] < most_copies
        if not grow.any():
            break
        counts[each, dearest] += grow
        picked = clock.copy_us(tokens[each, dearest][:, None], counts[each, dearest][:, None])[:, 0]
        unit[each, dearest] = np.where(grow, picked, unit[each, dearest])
    largest: NDArray[np.float64] = unit.max(axis=1)
    return largest
