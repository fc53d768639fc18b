"""Suspicions: every known way in which a recorder goes astray is seen, a healthy trace is not suspected, each has a fix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb.formats.facts import Layers, TraceFile
from eplb.formats.neutral import NeutralMap
from eplb.formats.suspicions import map_suspicions, trace_suspicions
from placement import LoadTrace, Placement


def healthy(*, slices=6, layers=4, experts=16, tokens=200, top_k=2, seed=0):
    """Counts of tokens that pick distinct experts, some more than others."""
    rng = np.random.default_rng(seed)
    chance = rng.dirichlet(np.full(experts, 3.0), layers)
    counts = np.zeros((slices, layers, experts), dtype=np.int64)
    for at in range(slices):
        for layer in range(layers):
            clocks = rng.exponential(1.0, (tokens, experts)) / chance[layer]
            picks = np.argpartition(clocks, top_k, axis=1)[:, :top_k]
            counts[at, layer] = np.bincount(picks.ravel(), minlength=experts)
    return counts


def found(counts, layers=None, top_k=2):
    file = TraceFile(LoadTrace(counts), layers or Layers(), "", "")
    return {note.code: note for note in trace_suspicions(file, top_k)}


@given(st.integers(0, 2**32))
@settings(max_examples=20)
def test_a_healthy_trace_is_not_suspected(seed):
    """Whatever its skew."""
    assert found(healthy(seed=seed)) == {}


def changed(change):
    counts = healthy()
    result = change(counts)
    return counts if result is None else result


def one_layer(counts):
    counts[:, [0, 1, 3]] = 0


def dense(counts):
    counts[:, :2] = 0


def dropped(counts):
    counts[3, 1] //= 2


def repeated(counts):
    counts[4] = counts[5] = counts[1]


def idle(counts):
    counts[2] = 0


def same_layer(counts):
    counts[:, 3] = counts[:, 0]


def alone(counts):
    counts[:, 2] = 0
    counts[:, 2, 5] = 400


def copied(counts):
    return counts * 8


def running(counts):
    return counts.cumsum(axis=0)


def empty(counts):
    return counts * 0


def summed(counts):
    return counts.sum(axis=0, keepdims=True)


def too_many_experts(counts):
    return np.pad(counts, ((0, 0), (0, 0), (0, 17)))


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        (one_layer, "one_layer", "only row 2 of 4 has counts"),
        (dense, "empty_layers", "rows 0, 1 have no counts at all"),
        (dropped, "totals_differ", "in 1 of 6 slices"),
        (repeated, "repeated_slices", "2 of 6 slices repeat an earlier one"),
        (idle, "idle_slices", "1 of 6 slices are empty"),
        (same_layer, "layers_alike", "1 layers repeat another in every count, first rows 0, 3"),
        (
            alone,
            "one_expert",
            "in row 2 one expert takes nearly everything, worst expert 5 of row 2 with 100% of the picks",
        ),
        (copied, "copies", "every count is a multiple of 8"),
        (running, "running_totals", "no count ever falls"),
        (empty, "no_load", "every count is 0"),
        (summed, "one_slice", "one slice only"),
        (too_many_experts, "many_zero_cells", "68 of 132 (layer, expert) pairs were never picked"),
    ],
)
def test_each_fault_is_seen_alone(change, code, part):
    """The code, the place and the numbers, and what to do; nothing else is suspected."""
    notes = found(changed(change))
    assert list(notes) == [code]
    assert part in notes[code].sentence
    assert notes[code].fix


def test_rows_are_named_by_the_models_layers_where_they_are_known():
    """Row 2 is model layer 5."""
    notes = found(changed(one_layer), Layers((3, 4, 5, 6), 7))
    assert "only model layer 5 of 4 has counts" in notes["one_layer"].sentence


def test_an_expert_that_every_token_picks_is_seen_if_top_k_is_known():
    """It has one k-th of the picks, which is little for small k only."""
    counts = healthy(top_k=4, experts=32)
    counts[:, 1] = (200 * 3) // 31
    counts[:, 1, 7] = 200
    assert "one_expert" in found(counts, top_k=4)
    assert "one_expert" not in found(counts, top_k=None)
    assert "of the tokens" in found(counts, top_k=4)["one_expert"].sentence


def test_totals_within_a_thousandth_are_not_suspected():
    """Some engines sample layers at slightly different moments."""
    counts = healthy() * 1000 + np.arange(16)
    counts[0, 0, 0] += 100
    assert "totals_differ" not in found(counts)
    counts[0, 0, 0] += 1000
    assert "totals_differ" in found(counts)


def test_experts_that_were_never_picked_are_guessed_from_the_model():
    """62 experts in 26 layers: DeepSeek-V2-Lite has 64."""
    notes = found(healthy(layers=26, experts=62, top_k=6, slices=2), top_k=6)
    assert "give --experts 64" in notes["experts_unclear"].fix
    assert "experts_unclear" not in found(healthy(layers=26, experts=64, top_k=6, slices=2), top_k=6)


def test_a_broken_map_is_told_by_kind():
    """One note for each rule that is broken, with how often, and what to do."""
    broken = NeutralMap(2, 1, 3, 4, None, Placement([[0, 0, 1, 1, 2, -1], [0, 0, 1, 2, 3, 1]]))
    notes = {note.code: note for note in map_suspicions(broken)}
    assert set(notes) == {"twin", "missing_expert", "gap"}
    assert "(and 1 more)" in notes["twin"].sentence
    assert "plan again" in notes["missing_expert"].fix
    assert map_suspicions(NeutralMap(2, 1, 2, 3, None, Placement([[0, 1, 1, 2]]))) == ()
