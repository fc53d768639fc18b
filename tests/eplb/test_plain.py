"""Plain data: JSON can hold whatever a snapshot holds."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from collectors.facts import Phase
from eplb.plain import plain


@dataclass(frozen=True, slots=True)
class Fact:
    phase: Phase
    rows: np.ndarray


def test_facts_become_mappings():
    """By field name; enums by their name, bytes as hexadecimal text, sets in order."""
    value = {
        Phase.DECODE: Fact(Phase.PREFILL, np.array([[1, 2]])),
        3: b"\x01\xff",
        "set": {2, 1},
        "flag": np.True_,
    }

    assert plain(value) == {
        "decode": {"phase": "prefill", "rows": [[1, 2]]},
        "3": "01ff",
        "set": [1, 2],
        "flag": True,
    }


@given(st.integers(-(2**70), 2**70))
def test_integers_stay_exact(number):
    """Digests are 64 bits wide."""
    assert json.loads(json.dumps(plain(number))) == number


@given(hnp.arrays(np.float64, hnp.array_shapes(max_dims=3)))
def test_arrays_become_lists_of_their_shape_with_null_for_what_is_not_finite(array):
    """The text is strict JSON."""
    text = json.dumps(plain(array), allow_nan=False)

    back = np.array(json.loads(text), dtype=np.float64)
    np.testing.assert_array_equal(back, np.where(np.isfinite(array), array, np.nan))
