"""Fan-out: equal to listing the choices, near its formula at random, and nothing where the dispatcher does not dedupe."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement import MapError, Placement, Routes, Topology, UnsupportedError
from placement.choice import CHOICES, tokens_of
from placement.traffic import DISPATCHERS, bins_of, fan_out, layer_fan_out, random_fan_out

TOP = Topology.uniform(ranks=4, nodes=2, slots_per_rank=2)


@pytest.mark.parametrize(
    ("experts", "top_k", "bins", "shown"),
    [
        (256, 8, 2, 1.99), (256, 8, 4, 3.61), (256, 8, 32, 7.27), (256, 8, 64, 7.68),
        (128, 8, 16, 6.60), (160, 8, 32, 7.32), (512, 10, 64, 9.40), (128, 4, 4, 2.75), (896, 16, 32, 12.83),
        (64, 8, 8, 5.43),
    ],
)  # fmt: skip
def test_the_random_baseline_is_the_published_table(experts, top_k, bins, shown):
    """Rows of the field's table of fan-out at random."""
    assert random_fan_out(experts, top_k, bins) == pytest.approx(shown, abs=0.006)


@given(st.integers(2, 8), st.data())
def test_the_random_baseline_is_the_mean_over_all_sets(experts, data):
    """Also where the bins do not divide the experts, the formula is what listing every set gives."""
    top_k, bins = data.draw(st.integers(1, experts)), data.draw(st.integers(1, experts))
    home = np.arange(experts) % bins
    sets = list(itertools.combinations(range(experts), top_k))
    mean = np.mean([len({home[e] for e in one}) for one in sets])
    assert random_fan_out(experts, top_k, bins) == pytest.approx(mean)


@st.composite
def maps_and_routes(draw):
    """A map of 3 nodes with replicas anywhere, and routes over it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    topology = Topology((2, 2, 2, 2), (0, 1, 2, 2))
    row = np.concatenate([rng.permutation(5), rng.integers(-1, 5, 3)])
    rng.shuffle(row)
    sets = np.stack([rng.permutation(5)[:3] for _ in range(draw(st.integers(1, 6)))])
    sources = rng.integers(4, size=len(sets)) if draw(st.booleans()) else None
    return Placement(row[None]), Routes(sets[:, None], np.arange(len(sets)), sources), topology


def listed(placement, routes, topology, choice, bin_of_rank, *, remote=False):
    """Mean over tokens, started on each rank they may have started on, and over all choices of one copy each."""
    bins = np.array(bin_of_rank)[topology.rank_of_slot()]
    row, total = placement.physical_to_logical[0], 0.0
    everywhere = list(range(len(bin_of_rank)))
    if choice != "per_source":
        everywhere = [bin_of_rank.index(bin_) for bin_ in sorted(set(bin_of_rank))]
    for sample, picks in enumerate(routes.experts[:, 0].tolist()):
        starts = everywhere if routes.sources is None else [int(routes.sources[sample])]
        for start in starts:
            own = bin_of_rank[start]
            options = [bins[row == expert].tolist() for expert in picks]
            if choice == "nearest":
                options = [[own] if own in some else some for some in options]
            if choice == "per_source":
                options = [[some[start % len(some)]] for some in options]
            counts = [len(set(taken) - ({own} if remote else set())) for taken in itertools.product(*options)]
            total += (min(counts) if choice == "fewest" else np.mean(counts)) / len(starts)
    return total / routes.samples


@given(
    maps_and_routes(),
    st.sampled_from(CHOICES),
    st.sampled_from(["node_dedupe", "rank_dedupe"]),
    st.booleans(),
)
def test_fan_out_is_what_listing_every_choice_gives(case, choice, dispatcher, remote):
    """Expectation for chosen copies, smallest number for the fewest; over nodes and over ranks; with and without the own one."""
    placement, routes, topology = case
    remote = remote and routes.sources is not None
    bin_of_rank = topology.node_of_rank if dispatcher == "node_dedupe" else tuple(range(topology.ranks))
    got = fan_out(placement, routes, topology, dispatcher=dispatcher, choice=choice, remote=remote)
    assert got[0] == pytest.approx(listed(placement, routes, topology, choice, bin_of_rank, remote=remote))


def test_the_nodes_beside_a_tokens_own_need_sources():
    """And a dispatcher that sends a token once to a node."""
    placement, known = Placement([[0] * 8]), Routes([[[0]]], [0], [1])
    assert fan_out(placement, known, TOP, choice="nearest", remote=True).tolist() == [0.0]
    for routes, dispatcher in ((Routes([[[0]]], [0]), "node_dedupe"), (known, "per_expert")):
        with pytest.raises(UnsupportedError, match="remote nodes need routes with sources"):
            fan_out(placement, routes, TOP, dispatcher=dispatcher, remote=True)


def test_without_dedupe_the_map_does_not_matter():
    """Per expert a token costs its picks, under all-gather every rank."""
    routes = Routes([[[0, 1, 2]], [[3, 4, -1]]], [0, 1])
    for row in ([0, 1, 2, 3, 4, 5, 0, 1], [5, 4, 3, 2, 1, 0, 3, 4]):
        placement = Placement([row])
        assert fan_out(placement, routes, TOP, dispatcher="per_expert").tolist() == [2.5]
        assert fan_out(placement, routes, TOP, dispatcher="all_gather").tolist() == [4.0]


def test_an_empty_slot_and_a_missing_pick_do_not_meet():
    """Both are written as the number of experts inside the solver; a dropped pick touches nothing all the same."""
    bins = bins_of(Topology.uniform(ranks=2, nodes=2, slots_per_rank=2))
    row = np.array([0, 2, 1, 2])
    for picks, touched in (([0, -1], 1.0), ([0, 1], 2.0)):
        tokens = tokens_of(Routes([[picks]], [0]), 0, 2, bins, "even")
        assert layer_fan_out(row, tokens, bins, 2, "even") == touched


def test_a_layer_without_routes_has_no_fan_out():
    """Nothing sampled is not a number, not zero."""
    routes = Routes([[[0], [-1]]], [0])
    value = fan_out(Placement([[0] * 8, [0] * 8]), routes, TOP)
    assert value[0] == 1.0
    assert np.isnan(value[1])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dispatcher": "broadcast"}, UnsupportedError, ", ".join(DISPATCHERS)),
        ({"choice": "best"}, UnsupportedError, ", ".join(CHOICES)),
        ({"placement": Placement([[0, 1]])}, MapError, r"expected \[1 layers, 8 slots\]"),
        ({"placement": Placement([[0, 1, 1, -1, 0, 0, 1, 1]])}, MapError, "layer 0: routes select expert 2"),
        ({"routes": Routes([[[0]]], [0], [9]), "choice": "nearest"}, MapError, "source rank 9"),
    ],
)
def test_what_does_not_fit_is_named(change, error, message):
    """Unknown names, other shapes, lost experts and unknown ranks."""
    ask = {
        "placement": Placement([[0, 1, 2, 3, 0, 1, 2, 3]]),
        "routes": Routes([[[0, 2]]], [0]),
        "topology": TOP,
    }
    with pytest.raises(error, match=message):
        fan_out(**(ask | change))


def test_fewest_refuses_more_nodes_than_it_can_try():
    """All sets of 13 nodes are too many."""
    topology = Topology.uniform(ranks=13, nodes=13, slots_per_rank=1)
    with pytest.raises(UnsupportedError, match="at most 12"):
        fan_out(Placement([list(range(13))]), Routes([[[0, 1]]], [0]), topology, choice="fewest")
