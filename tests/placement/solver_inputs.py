"""Inputs for the solver's rules, and an exact search for small ones."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from placement import LoadTrace, Placement, Topology, evaluate, violations
from placement.layer import make_layer


def one_slice(loads):
    """A trace of one slice and one layer."""
    return LoadTrace(np.array(loads, dtype=np.int64)[None, None, :])


def skewed(experts, slices=3, layers=2, seed=0):
    """A trace with lognormal loads."""
    rng = np.random.default_rng(seed)
    return LoadTrace(np.rint(rng.lognormal(3, 1, (slices, layers, experts))).astype(np.int64))


def nodes_of_groups(placement, topology, experts):
    """Nodes that hold each group in each layer, as sets [layers][groups]."""
    node = np.array(topology.node_of_rank)[topology.rank_of_slot()]
    size = experts // topology.expert_groups
    return [
        [set(node[(row >= 0) & (row // size == group)].tolist()) for group in range(topology.expert_groups)]
        for row in placement.physical_to_logical
    ]


def arrivals(new, old, topology, experts):
    """Slots whose expert was not on their rank before."""
    rank_of_slot = topology.rank_of_slot()
    total = 0
    for row, before in zip(new, np.asarray(old), strict=True):
        had = {
            (r, e) for r, e in zip(rank_of_slot.tolist(), before.tolist(), strict=True) if 0 <= e < experts
        }
        total += sum(
            e >= 0 and (r, e) not in had for r, e in zip(rank_of_slot.tolist(), row.tolist(), strict=True)
        )
    return total


def best_max(loads, ranks, slots_per_rank):
    """Lowest possible hottest rank of any map without twins that fills every slot, by trying all of them."""
    experts = range(len(loads))
    groups = list(itertools.combinations(experts, slots_per_rank))
    best = np.inf
    for map_ in itertools.combinations_with_replacement(groups, ranks):
        counts = np.bincount(np.concatenate(map_), minlength=len(loads))
        if counts.all():
            best = min(best, max(sum(loads[e] / counts[e] for e in group) for group in map_))
    return best


@st.composite
def pools(draw, most_ranks=6, most_slots=4):
    """A topology, with dead ranks, uneven slots and speeds at times, and a number of experts that it holds."""
    ranks = draw(st.integers(1, most_ranks))
    slots = draw(st.lists(st.integers(1, most_slots), min_size=ranks, max_size=ranks))
    if draw(st.booleans()):
        slots = [slots[0]] * ranks
    dead = draw(st.sets(st.integers(0, ranks - 1), max_size=ranks - 1))
    speeds = tuple(draw(st.lists(st.sampled_from([0.5, 1.0, 1.25]), min_size=ranks, max_size=ranks)))
    nodes = draw(st.integers(1, ranks))
    node_of_rank = tuple(rank * nodes // ranks for rank in range(ranks))
    topology = Topology(tuple(slots), node_of_rank, speeds if draw(st.booleans()) else (), frozenset(dead))
    usable = sum(count for rank, count in enumerate(slots) if rank not in dead)
    return topology, draw(st.integers(1, usable))


@st.composite
def problems(draw):
    """A pool and a trace for it: zeros, one expert with all the load, and weights at times."""
    topology, experts = draw(pools())
    slices, layers = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    shape = st.sampled_from(["random", "zero", "one"])
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tokens = np.zeros((slices, layers, experts), dtype=np.int64)
    for layer in range(layers):
        kind = draw(shape)
        if kind == "random":
            tokens[:, layer] = np.rint(rng.lognormal(2, 1.5, (slices, experts))).astype(np.int64)
        elif kind == "one":
            tokens[:, layer, rng.integers(experts)] = 100
    weights = rng.integers(0, 3, slices).astype(float) if draw(st.booleans()) else None
    if weights is not None and not weights.any():
        weights[0] = 1.0
    return topology, LoadTrace(tokens, weights=weights)


@st.composite
def problems_with_map(draw):
    """A problem and a live map with twins, gaps, unknown ids and lost experts."""
    topology, trace = draw(problems())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = np.tile(np.arange(topology.slots) % trace.experts, (trace.layers, 1))
    if draw(st.booleans()):
        rows = rng.integers(-1, trace.experts + draw(st.integers(0, 1)), rows.shape)
    return topology, trace, rows


def layer_of(loads, slots_of_rank, speeds=()):
    """A layer over loads [slices, experts] whose ranks have the given slots."""
    topology = Topology(tuple(slots_of_rank), (0,) * len(slots_of_rank), tuple(speeds))
    tokens = np.atleast_2d(np.array(loads, dtype=np.int64))
    return make_layer(tokens, np.ones(len(tokens)), topology)


def best_of_all_maps(trace, topology):
    """Lowest possible mean ratio of a trace of one layer over every map without violations; infinite when there is none."""
    choices = []
    for rank, size in enumerate(topology.slots_of_rank):
        full = 0 if rank in topology.dead else min(size, trace.experts)
        # A node whose groups have fewer experts than a rank has slots leaves the rest empty.
        least = min(1, full) if topology.expert_groups else full
        choices.append(
            [
                (*held, *(-1,) * (size - count))
                for count in range(least, full + 1)
                for held in itertools.combinations(range(trace.experts), count)
            ]
        )
    maps = Placement([sum(parts, ()) for parts in itertools.product(*choices)])
    broken = {violation.layer for violation in violations(maps, topology, trace.experts)}
    rows = maps.physical_to_logical[[at for at in range(maps.layers) if at not in broken]]
    if not len(rows):
        return np.inf
    tokens = np.repeat(trace.tokens, len(rows), axis=1)
    score = evaluate(Placement(rows), LoadTrace(tokens, weights=trace.weights), topology)
    return score.layer_ratio().min()


@st.composite
def tiny_pools(draw):
    """A topology of at most three ranks or four single slots, so that every map can be tried, and a number of experts."""
    sizes = draw(st.sampled_from([(1, 1, 1, 1), (2, 2), (2, 2, 1), (2, 1, 1), (3, 2), (2, 2, 2), (3,)]))
    speeds = tuple(
        draw(st.lists(st.sampled_from([0.5, 1.0, 1.25]), min_size=len(sizes), max_size=len(sizes)))
    )
    dead = (
        frozenset(draw(st.sets(st.integers(0, len(sizes) - 1), max_size=1)))
        if len(sizes) > 1
        else frozenset()
    )
    node_of_rank = draw(st.sampled_from([(0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 1, 1), (0, 1, 0, 1)]))[
        : len(sizes)
    ]
    slots = sum(size for rank, size in enumerate(sizes) if rank not in dead)
    experts = draw(st.integers(1, min(slots, 5)))
    groups = draw(st.integers(1, experts))
    topology = Topology(
        sizes, tuple(node_of_rank), speeds if draw(st.booleans()) else (), dead,
        expert_groups=groups, policy=draw(st.sampled_from(["global", "auto", "hierarchical"])),
    )  # fmt: skip
    return topology, experts
