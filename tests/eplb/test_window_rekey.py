"""Counts under another topology's keys: by (model layer, expert), and nothing else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eplb.window.rekey import layer_places, rekeyed

layer_lists = st.lists(st.integers(0, 9), max_size=6, unique=True)


@given(layer_lists, layer_lists, st.integers(0, 3))
def test_WIN_11_every_count_is_found_under_its_model_layer_and_expert_and_no_other(old, new, slices):  # noqa: N802
    counts = np.arange(slices * len(old) * 8).reshape(slices, len(old), 8) + 1
    fresh = rekeyed(counts, layer_places(old, new))
    assert fresh.shape == (slices, len(new), 8)
    for place, layer in enumerate(new):
        wanted = counts[:, old.index(layer)] if layer in old else np.zeros((slices, 8))
        assert np.array_equal(fresh[:, place], wanted)
