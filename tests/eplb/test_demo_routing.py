"""Traces of the demo: what is read, what is refused, what is generated."""

from __future__ import annotations

import numpy as np
import pytest

from eplb.demo.errors import TraceUnusable
from eplb.demo.generator import EXPERTS, SEQUENCES_BY_DOMAIN, TOP_K, synthetic
from eplb.demo.routing import DEMO_LAYERS, evenly_spaced, recorded, routing_of


def write(path, **changes):
    """A small sound trace with some arrays replaced (None = left out)."""
    picks = np.argsort(np.random.default_rng(0).random((30, 6, 8)), axis=2)[..., :2].astype(np.uint8)
    arrays = {
        "picks": picks,
        "offsets": np.arange(0, 31, 5),
        "domain": np.array(["a"] * 4 + ["b"] * 2),
    } | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_a_sound_trace_is_read_with_its_smaller_domain_first(tmp_path):
    """The second domain is served for longer and must be the larger one."""
    read = recorded(write(tmp_path / "t.npz"))
    assert read.domains == ("b", "a")
    assert read.domain_of.tolist() == [1, 1, 1, 1, 0, 0]
    assert read.length(3) == 5
    tokens = np.array([5], dtype=np.int32), np.array([2], dtype=np.int32)
    assert read.picks_of(*tokens).shape == (1, DEMO_LAYERS, 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"picks": None}, "cannot be read"),
        ({"picks": np.zeros((30, 5, 2), dtype=np.uint8)}, ">= 6 layers"),
        ({"picks": np.zeros((30, 6, 2), dtype=np.uint8)}, "one expert twice"),
        ({"picks": np.full((30, 6, 2), -1)}, "from 0 to 255"),
        ({"offsets": np.arange(0, 31, 6)}, "offsets must rise"),
        ({"offsets": np.array([0, 5, 5, 15, 20, 25, 30])}, "offsets must rise"),
        ({"domain": np.array(["a"] * 6)}, "one domain"),
    ],
)
def test_a_damaged_trace_is_refused_with_the_reason(tmp_path, changes, reason):
    """Every refusal names the file and what is wrong with it."""
    with pytest.raises(TraceUnusable, match=reason) as refusal:
        recorded(write(tmp_path / "bad.npz", **changes))
    assert "bad.npz" in str(refusal.value)


def test_a_missing_trace_says_what_to_do(tmp_path):
    """The generator is the way out where no recording is at hand."""
    with pytest.raises(TraceUnusable, match="--trace synthetic"):
        recorded(tmp_path / "none.npz")


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    """Garbage is a named error."""
    path = tmp_path / "x.npz"
    path.write_bytes(b"not an archive")
    with pytest.raises(TraceUnusable, match="cannot be read"):
        recorded(path)


@pytest.mark.parametrize("content", [b"", b"step,expert\n1,2\n", b"PK\x03\x04damaged"])
def test_a_text_file_is_called_what_it_is(tmp_path, content):
    """No advice of numpy's to load pickles reaches the user, and no traceback."""
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(TraceUnusable, match=r"not an \.npz file") as refusal:
        recorded(path)
    assert "pickle" not in str(refusal.value)


def test_a_single_array_and_a_damaged_archive_are_refused(tmp_path):
    """Neither is a trace, and neither ends in a traceback."""
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(TraceUnusable, match=r"not an \.npz file"):
        recorded(tmp_path / "one.npy")
    raw = bytearray(write(tmp_path / "t.npz").read_bytes())
    raw[200:260] = bytes(60)
    (tmp_path / "t.npz").write_bytes(raw)
    with pytest.raises(TraceUnusable, match="cannot be read"):
        recorded(tmp_path / "t.npz")


def test_layers_are_evenly_spaced():
    """Six of 24 layers."""
    assert evenly_spaced(24, 6) == (0, 4, 8, 12, 16, 20)


def test_without_a_recording_the_generator_is_used(tmp_path, monkeypatch):
    """No --trace and no file: synthetic, and it says so."""
    monkeypatch.chdir(tmp_path)
    assert routing_of(None, 0).name == "synthetic"


def test_generated_routing_follows_from_the_seed_and_has_distinct_picks():
    """Same seed, same bytes; two domains of the stated sizes; no token picks an expert twice."""
    one, again, other = synthetic(1), synthetic(1), synthetic(2)
    assert np.array_equal(one.picks, again.picks)
    assert not np.array_equal(one.picks[:1000], other.picks[:1000])
    assert np.bincount(one.domain_of).tolist() == list(SEQUENCES_BY_DOMAIN)
    ordered = np.sort(one.picks, axis=2)
    assert (np.diff(ordered.astype(int), axis=2) > 0).all()
    assert one.picks.shape[1:] == (DEMO_LAYERS, TOP_K)
    assert one.picks.max() < EXPERTS


def test_generated_domains_prefer_different_experts():
    """A change of domain must change which experts are hot, or there would be nothing to do."""
    made = synthetic(0)
    domain = np.repeat(made.domain_of, np.diff(made.offsets))
    first, second = (np.bincount(made.picks[domain == d, 0].ravel(), minlength=EXPERTS) for d in (0, 1))
    assert np.corrcoef(first, second)[0, 1] < 0.8
    assert first.max() / first.mean() > 1.5


def test_the_recorded_trace_has_both_domains_and_six_layers(shared_data):
    """gpt-oss: layers 0 4 8 12 16 20, humanities_law then science_med_eng."""
    read = recorded(shared_data / "gptoss20b_decode.npz")
    assert read.model_layers == (0, 4, 8, 12, 16, 20)
    assert read.domains == ("humanities_law", "science_med_eng")
    assert (read.experts, read.top_k) == (32, 4)
    assert np.bincount(read.domain_of + 1).tolist() == [114, 126, 192]
