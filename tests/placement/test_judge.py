"""Judge: rows are ranked by the value that was asked, and the descent by that value alone keeps maps valid."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placement import LoadTrace, Placement, Topology, evaluate, violations
from placement.frontier import Stop
from placement.judge import Judge, falling
from placement.layer import make_layer
from placement.objective import Objective
from placement.search import Task, Track
from placement.split import mean_loads

TOPOLOGY = Topology.uniform(ranks=4, slots_per_rank=3, dead=frozenset({1}))


def judged(seed, dispatch, **facts):
    """The trace of one layer, its judge, and a track that holds one row of the live ranks."""
    rng = np.random.default_rng(seed)
    trace = LoadTrace(rng.integers(0, 60, (6, 1, 6)) + 1, **facts)
    small, live_slots = TOPOLOGY.live()
    layer = make_layer(trace.tokens[:, 0], trace.slice_weights(), small)
    mean = mean_loads(trace)[0] if dispatch == "weighted" else None
    objective = Objective(dispatch, "tokens", trace, TOPOLOGY, dealt=False)
    judge = Judge(objective.layer(0), layer, mean, live_slots, TOPOLOGY.slots)
    row = np.array([0, 1, 2, 3, 4, 5, 0, 1, 3])
    track = Track(layer, layer.holds(row))
    track.note(row, layer.value(row))
    return trace, judge, track


def map_of(judge, stop):
    """The stop as a map of all ranks."""
    rows, shares = np.full((1, judge.slots), -1), np.zeros((1, judge.slots))
    rows[0, judge.live_slots] = stop.row
    if stop.shares is not None:
        shares[0, judge.live_slots] = stop.shares
    return Placement(rows, shares)


@given(st.integers(0, 2**32), st.sampled_from(["hash_row", "per_source", "optimal", "weighted"]))
@settings(deadline=None, max_examples=40)
def test_every_stop_is_a_valid_map_with_the_value_that_evaluate_gives(seed, dispatch):
    """Moves rise, the value falls from that of the row the track began with, all stops score what they claim."""
    trace, judge, track = judged(seed, dispatch, batch_tokens=[9.0] * 6)
    stops = judge.stops(track, Task(100, 10**9, 0.0, seed), "fast")
    first = evaluate(map_of(judge, track_stop(track)), trace, TOPOLOGY, dispatch=dispatch).mean_ratio
    assert stops[-1].value <= first + 1e-9
    assert list(stops) == list(falling(list(stops)))
    for stop in stops:
        made = map_of(judge, stop)
        assert violations(made, TOPOLOGY, 6) == []
        assert abs(evaluate(made, trace, TOPOLOGY, dispatch=dispatch).mean_ratio - stop.value) < 1e-9
        assert stop.moves == track.moves(stop.row)


def track_stop(track):
    """The row that a track began with."""
    ((value, row),) = track.rows.values()
    return Stop(0, value, row)


def test_the_descent_sees_what_even_shares_hide():
    """One row a batch: the first copy takes every token (vLLM), so a second copy of a hot expert is worth nothing there."""
    _, judge, track = judged(3, "hash_row", batch_tokens=[1.0] * 6)
    before = judge.value(track_stop(track).row)
    after = judge.stops(track, Task(100, 10**9, 0.0, 1), "normal")[-1]
    assert after.value < before - 0.05


def test_no_exchange_is_weighed_where_none_is_allowed():
    """``evaluations`` bounds the descent too: none leaves the row as it was."""
    _, judge, track = judged(3, "hash_row", batch_tokens=[1.0] * 6)
    (only,) = judge.stops(track, Task(0, 0, 0.0, 1), "normal")
    assert (only.row == track_stop(track).row).all()
