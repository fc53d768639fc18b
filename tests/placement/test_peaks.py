"""Peaks: the figure of every step is what counting anew gives, and slopes point where it falls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.coactivation import Touched, merged_sets
from placement.peaks import UNITS, Peaks
from tests.placement.routing import nodes_touched


@st.composite
def peak_cases(draw):
    """Loads of some slices, homes, sets and speeds, small enough to recount."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    experts, nodes, slices = draw(st.integers(2, 8)), draw(st.integers(2, 3)), draw(st.integers(1, 4))
    sets = np.stack([rng.permutation(experts)[:2] for _ in range(draw(st.integers(1, 12)))]).astype(np.int16)
    speed = rng.choice([0.5, 1.0, 2.0], nodes)
    loads = rng.dirichlet(np.ones(experts), slices) * speed.sum()
    weights = rng.dirichlet(np.ones(slices))
    return (
        sets,
        rng.integers(nodes, size=experts),
        loads,
        weights,
        speed,
        draw(st.sampled_from([0.0, 0.3, 4.0])),
    )


def figure(case, home):
    sets, _, loads, weights, speed, weight = case
    cost = np.stack([loads[:, home == node].sum(axis=1) / speed[node] for node in range(len(speed))])
    touched = np.mean(nodes_touched(sets, home)) - 1
    return float(weights @ cost.max(axis=0)) + weight * touched


def tables(case):
    sets, home, loads, weights, speed, weight = case
    distinct, counts, _ = merged_sets(sets, len(home))
    touched = Touched(distinct, counts, home.copy(), len(speed))
    return Peaks(touched, loads, weights, speed, weight=weight, tokens=len(sets)), touched


@given(peak_cases())
def test_the_figure_of_every_move_is_exact(case):
    """Mean hottest node + weight × (nodes touched - 1), before, after and once settled."""
    peaks, touched = tables(case)
    home, nodes = case[1], len(case[4])
    assert peaks.value == pytest.approx(figure(case, home))
    steps = [[(expert, node)] for expert in range(len(home)) for node in range(nodes) if home[expert] != node]
    rise = np.array([touched.move[step[0]] for step in steps])
    for step, value in zip(steps, peaks.after(steps, rise), strict=True):
        (expert, node), moved = step[0], home.copy()
        moved[expert] = node
        assert value == pytest.approx(figure(case, moved))
    peaks.settle(steps[-1])
    touched.settle(steps[-1])
    peaks.refresh()
    assert peaks.value == pytest.approx(figure(case, touched.home[:-1]))


@given(peak_cases())
def test_staying_has_no_slope_and_touching_is_in_the_same_units(case):
    """0 at home; with balanced peaks out of the way a slope is the weighted rise of the nodes touched."""
    peaks, touched = tables(case)
    home = case[1]
    assert (peaks.slopes()[np.arange(len(home)), home] == 0).all()
    units = peaks.touched_units(touched.move) / UNITS**2
    assert units == pytest.approx(touched.move * case[5] / len(case[0]), abs=1e-9)


def test_slopes_lead_away_from_the_hottest_node():
    """Without routes' weight, leaving the hot node for the cold one has the lowest slope."""
    sets = np.array([[0, 1]], dtype=np.int16)
    loads = np.array([[1.4, 0.4, 0.1, 0.1]])
    case = (sets, np.array([0, 0, 1, 1]), loads, np.ones(1), np.ones(2), 0.0)
    peaks, _ = tables(case)
    assert np.unravel_index(peaks.slopes().argmin(), (4, 2)) == (0, 1)
