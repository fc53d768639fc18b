"""Trace files: counts are taken as they are, picks become slices of one domain, damage is named."""

import numpy as np
import pytest

from eplb.errors import FileError
from eplb.formats.facts import Layers, ReadOptions
from eplb.formats.npz import read_trace

PICKS = np.array([[[0, 1]], [[1, 2]], [[2, 3]], [[3, 0]], [[0, 1]]], dtype=np.uint8)
OFFSETS = np.array([0, 1, 3, 4, 5])


def saved(tmp_path, **arrays):
    path = tmp_path / "trace.npz"
    np.savez(path, **arrays)
    return path


def read(path, **options):
    return read_trace(path, ReadOptions(**options))


def refused(tmp_path, options=None, **arrays):
    with pytest.raises(FileError) as caught:
        read(saved(tmp_path, **arrays), **(options or {}))
    assert "trace.npz" in str(caught.value)
    return str(caught.value)


def test_counts_are_the_slices(tmp_path):
    """One slice a row; which layers of the model they are is not known."""
    file = read(saved(tmp_path, counts=np.arange(12).reshape(2, 2, 3)))
    assert file.trace.tokens.tolist() == np.arange(12).reshape(2, 2, 3).tolist()
    assert file.layers == Layers(None, None)


def test_model_layers_are_kept(tmp_path):
    """A model whose first layers are dense says which rows are which."""
    file = read(saved(tmp_path, counts=np.ones((1, 2, 3), dtype=int), model_layer=np.array([3, 4])))
    assert file.layers.model_layer == (3, 4)


def test_sequences_are_summed_in_groups_and_never_cut(tmp_path):
    """Two sequences a slice: tokens 0-2 and tokens 3-4."""
    file = read(saved(tmp_path, picks=PICKS, offsets=OFFSETS), sequences_per_slice=2)
    assert file.trace.tokens[:, 0].tolist() == [[1, 2, 2, 1], [2, 1, 0, 1]]


def test_a_slice_has_one_domain(tmp_path):
    """Sequences 0, 2 and 1, 3 belong together; the order inside a domain is the file's."""
    path = saved(tmp_path, picks=PICKS, offsets=OFFSETS, domain=np.array([0, 1, 0, 1]))
    file = read(path, sequences_per_slice=2)
    assert file.trace.tokens[:, 0].tolist() == [[2, 1, 0, 1], [1, 2, 2, 1]]
    assert file.slices_from == "groups of 2 sequences, each of one of 2 domains"


def test_a_last_smaller_group_counts_only_when_it_is_alone(tmp_path):
    """Of 3 + 1 sequences in groups of 2: the third of the first domain is left out, the one of the second stays."""
    path = saved(tmp_path, picks=PICKS, offsets=OFFSETS, domain=np.array([0, 0, 0, 1]))
    file = read(path, sequences_per_slice=2)
    assert file.trace.tokens.sum(axis=2).tolist() == [[6], [2]]


def test_experts_can_be_more_than_the_picks_name(tmp_path):
    """A model's last experts may never have been picked."""
    path = saved(tmp_path, picks=PICKS, offsets=OFFSETS)
    assert read(path).trace.experts == 4
    assert read(path, experts=6).trace.experts == 6


@pytest.mark.parametrize(
    ("arrays", "part"),
    [
        ({"other": np.ones(1)}, "expected counts, or picks and offsets"),
        ({"counts": np.ones((2, 2), dtype=int)}, "[slices, layers, experts]"),
        ({"counts": np.full((1, 1, 2), -1)}, "slice 0: counts[layer 0, expert 0] is -1"),
        ({"counts": np.full((1, 1, 2), np.nan)}, "is nan"),
        ({"counts": np.ones((1, 2, 2), dtype=int), "model_layer": np.array([1, 1])}, "expected 2 different"),
        ({"picks": PICKS}, "expected counts, or picks and offsets"),
        ({"picks": PICKS.astype(float), "offsets": OFFSETS}, "picks are float64"),
        ({"picks": PICKS[:, 0], "offsets": OFFSETS}, "[tokens, layers, top_k]"),
        (
            {"picks": PICKS.astype(int) - 2, "offsets": OFFSETS},
            "sequence 0: picks[token 0, layer 0, 0] is -2",
        ),
        ({"picks": PICKS.astype(int) * 10**6, "offsets": OFFSETS}, "is 1000000, expected 0..32767"),
        ({"picks": PICKS, "offsets": OFFSETS[:-1]}, "offsets run from 0 to 4, expected 0 to 5"),
        ({"picks": PICKS, "offsets": np.array([0, 3, 2, 5])}, "never falling"),
        ({"picks": PICKS, "offsets": OFFSETS * 1.0}, "offsets are float64"),
        ({"picks": PICKS, "offsets": OFFSETS, "domain": np.zeros(3)}, "domain has shape [3]"),
        ({"counts": np.array([[[{}]]], dtype=object)}, "counts holds object"),
    ],
)
def test_a_trace_that_cannot_be_is_refused_with_its_place(tmp_path, arrays, part):
    """Each message names the file, the array, the place and the value."""
    assert part in refused(tmp_path, **arrays)


def test_fewer_experts_than_the_picks_name_are_refused(tmp_path):
    """A pick outside the model is damage or another model."""
    assert "is 3, expected 0..2" in refused(tmp_path, {"experts": 3}, picks=PICKS, offsets=OFFSETS)
    assert "asked for 4" in refused(tmp_path, {"experts": 4}, counts=np.ones((1, 1, 3), dtype=int))


def test_a_slice_needs_a_sequence(tmp_path):
    """Zero sequences a slice is no rule."""
    with pytest.raises(FileError, match="at least 1"):
        read(saved(tmp_path, picks=PICKS, offsets=OFFSETS), sequences_per_slice=0)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04damaged", b"not an archive"])
def test_a_damaged_file_is_refused(tmp_path, content):
    """Whatever the reader trips over, the error names the file."""
    path = tmp_path / "damaged.npz"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"damaged\.npz"):
        read(path)


def test_a_text_file_is_called_what_it_is(tmp_path):
    """No advice of numpy's to load pickles reaches the user."""
    path = tmp_path / "trace.csv"
    path.write_text("slice,layer,expert\n")
    with pytest.raises(FileError, match=r"trace\.csv: not an \.npz file") as caught:
        read(path)
    assert "pickle" not in str(caught.value)


def test_a_missing_file_and_a_single_array_are_refused(tmp_path):
    """Neither is an archive of named arrays."""
    with pytest.raises(FileError, match=r"none\.npz"):
        read(tmp_path / "none.npz")
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(FileError, match=r"expected an \.npz archive"):
        read(tmp_path / "one.npy")


def test_the_recorded_trace_keeps_every_pick(shared_data):
    """gpt-oss-20b: 24 layers, 32 experts, 4 picks a token in every layer of every slice."""
    trace = read(shared_data / "gptoss20b_decode.npz").trace
    assert trace.tokens.shape[1:] == (24, 32)
    totals = trace.tokens.sum(axis=2)
    assert (totals == totals[:, :1]).all()
    assert (totals % 4 == 0).all()
