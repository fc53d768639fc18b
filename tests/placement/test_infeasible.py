"""Infeasible pools: the change that the error names makes a solve possible, and one less does not."""

import re
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placement import InfeasibleError, Limits, LoadTrace, Topology, least_redundancy, solve, violations


@st.composite
def tight_pools(draw):
    """A topology whose slots, live ranks or nodes may be too few for a number of experts, whole groups asked for at times."""
    ranks = draw(st.integers(1, 6))
    slots = draw(st.lists(st.integers(1, 4), min_size=ranks, max_size=ranks))
    if draw(st.booleans()):
        slots = [slots[0]] * ranks
    nodes = draw(st.integers(1, ranks))
    node_of_rank = tuple(rank * nodes // ranks for rank in range(ranks))
    dead = frozenset(draw(st.sets(st.integers(0, ranks - 1))))
    policy = draw(st.sampled_from(["auto", "global", "hierarchical", "hierarchical"]))
    groups = draw(st.integers(1 if policy == "hierarchical" else 0, 8))
    return Topology(tuple(slots), node_of_rank, (), dead, groups, policy), draw(st.integers(1, 30))


def refusal(topology, experts):
    """The message of a refused solve; None after one whose map has no violations."""
    trace = LoadTrace(np.arange(1, experts + 1)[None, None])
    try:
        result = solve(trace, topology, effort="fast", limits=Limits(evaluations=0))
    except InfeasibleError as error:
        return str(error)
    assert violations(result.placement, topology, experts) == []
    return None


def number(message, pattern):
    """The number in the part of a message that fits a pattern, None without such a part."""
    found = re.search(pattern, message)
    return None if found is None else int(found.group(1))


def with_slots(topology, slots):
    return replace(topology, slots_of_rank=(slots,) * topology.ranks)


def with_more(topology, added, ranks):
    more = tuple(size + added * (rank in ranks) for rank, size in enumerate(topology.slots_of_rank))
    return replace(topology, slots_of_rank=more)


def on_nodes(topology, nodes):
    ranks = topology.ranks
    return replace(topology, node_of_rank=tuple(rank * nodes // ranks for rank in range(ranks)))


@given(tight_pools())
@settings(max_examples=300)
def test_too_few_slots(case):
    """Slots per rank, redundant slots, slots to add, live ranks: each number is enough, and the least that is."""
    topology, experts = case
    topology = replace(topology, policy="global")
    message = refusal(topology, experts)
    if message is None or not topology.live_ranks:
        return
    live = topology.live_ranks
    each = number(message, r"at least (\d+) slots per rank")
    if each is not None:
        assert refusal(with_slots(topology, each), experts) is None
        assert each == 1 or refusal(with_slots(topology, each - 1), experts) is not None
        assert number(message, r"\((\d+) redundant slots\)") == each * len(live) - experts
    else:
        added = number(message, r"add at least (\d+) slots")
        assert refusal(with_more(topology, added, live[:1]), experts) is None
        assert refusal(with_more(topology, added - 1, live[:1]), experts) is not None
    ranks, wide = number(message, r"at least (\d+) live ranks"), number(message, r"live ranks of (\d+) slots")
    assert refusal(Topology((wide,) * ranks, (0,) * ranks), experts) is None
    assert ranks == 1 or refusal(Topology((wide,) * (ranks - 1), (0,) * (ranks - 1)), experts) is not None


@given(tight_pools())
@settings(max_examples=100)
def test_no_live_rank(case):
    """The widest ranks, as many as are named, hold every expert; one fewer does not. Or not even all of them do."""
    topology, experts = case
    topology = replace(topology, dead=frozenset(range(topology.ranks)), policy="global")
    message = refusal(topology, experts)
    widest = sorted(range(topology.ranks), key=lambda rank: -topology.slots_of_rank[rank])
    fewest = number(message, r"at least (\d+) must live")
    if fewest is None:
        short = number(message, r"add at least (\d+) slots")
        alive = replace(topology, dead=frozenset())
        assert refusal(with_more(alive, short, [0]), experts) is None
        assert refusal(with_more(alive, short - 1, [0]), experts) is not None
        return
    assert refusal(replace(topology, dead=frozenset(widest[fewest:])), experts) is None
    assert refusal(replace(topology, dead=frozenset(widest[fewest - 1 :])), experts) is not None


@given(tight_pools())
@settings(max_examples=400)
def test_groups_that_cannot_stay_whole(case):
    """All changes together are enough; with one slot a rank less, or one node more, it is refused again."""
    topology, experts = case
    if topology.policy != "hierarchical" or not topology.live_ranks:
        return
    message = refusal(topology, experts)
    if message is None:
        return
    flat = refusal(replace(topology, policy="global"), experts)
    assert (flat is None) == message.endswith("or policy global")
    changed = topology
    groups = number(message, r"(?:use|and) (\d+) groups")
    if groups is not None:
        assert experts % topology.expert_groups
        assert experts % groups == 0
        changed = replace(changed, expert_groups=groups)
    nodes = number(message, r"at most (\d+) nodes")
    spread = changed if nodes is None else on_nodes(changed, nodes)
    each, added = (
        number(message, r"at least (\d+) slots per rank"),
        number(message, r"at least (\d+) more slots"),
    )
    finished, less = spread, None
    if each is not None:
        finished, less = with_slots(spread, each), with_slots(spread, each - 1)
    elif added is not None:
        live = spread.live_ranks
        finished, less = with_more(spread, added, live), with_more(spread, added - 1, live)
    assert groups or nodes or each or added
    assert refusal(finished, experts) is None
    assert less is None or refusal(less, experts) is not None
    for more in range(nodes + 1, topology.nodes + 1) if nodes is not None else ():
        assert refusal(on_nodes(finished, more), experts) is not None


@given(st.integers(1, 400), st.integers(1, 80), st.integers(-5, 90))
def test_redundant_slots_that_do_not_divide(experts, ranks, redundant):
    """The number that is named divides, and no smaller one from the asked one on does."""
    try:
        assert least_redundancy(experts, ranks, redundant)[0] == redundant
    except InfeasibleError as error:
        message = str(error)
    else:
        return
    named = number(message, r"use (?:at least )?(\d+)")
    assert least_redundancy(experts, ranks, named) == (named, (experts + named) // ranks)
    assert all((experts + fewer) % ranks for fewer in range(max(0, redundant), named))


def test_more_slots_than_copies_are_no_obstacle():
    """Every rank holds every expert at most once; slots beyond that stay empty, which is no violation."""
    assert refusal(Topology.uniform(ranks=3, slots_per_rank=4), 2) is None
    assert refusal(Topology.uniform(ranks=3, slots_per_rank=4), 1) is None
    whole = Topology.uniform(ranks=4, nodes=2, slots_per_rank=4, expert_groups=2, policy="hierarchical")
    assert refusal(whole, 2) is None
