"""How the share of the second domains moves over a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb.errors import ReplayError
from eplb.replay.mix import MIXES, Mix


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        ("stationary", [0, 0, 0, 0, 0]),
        ("switch", [0, 0, 1, 1, 1]),
        ("ramp", [0, 0, 0.5, 1, 1]),
        ("daily", [0, 1, 0, 1, 0]),
        ("turns", [0, 1, 1, 0, 0]),
    ],
)
def test_shares_at_the_quarters_of_a_run(kind, shares):
    """Stationary stays, a switch jumps at its place, a ramp goes straight around it, days go up and down twice, six turns alternate."""
    assert [Mix(kind).second_share(quarter / 4) for quarter in range(5)] == shares


@given(kind=st.sampled_from(MIXES), at=st.floats(0.01, 0.99), progress=st.floats(0, 1))
def test_a_share_is_a_chance(kind, at, progress):
    """Never below 0 nor above 1."""
    assert 0.0 <= Mix(kind, at).second_share(progress) <= 1.0


@pytest.mark.parametrize(("kind", "at"), [("weekly", 0.5), ("switch", 0.0), ("ramp", 1.0)])
def test_an_unknown_mix_or_place_is_refused(kind, at):
    """The message names what can be used."""
    with pytest.raises(ReplayError, match=r"use one of|must be above 0 and below 1"):
        Mix(kind, at)
