"""Trace files: counts are taken as they are, picks become slices of one domain, damage is named."""

import zipfile

import numpy as np
import pytest
from damage import answers, damaged, damages, settle
from hypothesis import given, settings

from eplb.errors import FileError
from eplb.formats import members
from eplb.formats.facts import Layers, ReadOptions
from eplb.formats.npz import read_sequences, read_trace

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


def test_what_a_trace_says_of_itself_is_read(tmp_path):
    """Layers of the model, experts, phases of sequences."""
    path = saved(
        tmp_path,
        picks=PICKS,
        offsets=OFFSETS,
        model_layer=np.array([3]),
        hidden_layers=np.array(5),
        experts=np.array(6),
        phase=np.array(["prefill", "decode", "", "decode"]),
    )
    file = read(path, sequences_per_slice=1)
    assert file.layers == Layers((3,), 5)
    assert file.trace.experts == 6
    assert file.phase == ("", "decode", "decode", "prefill")
    assert [each.phase for each in read_sequences(path, ReadOptions())] == [
        "prefill",
        "decode",
        None,
        "decode",
    ]
    assert [len(each.picks) for each in read_sequences(path, ReadOptions(phase="decode"))] == [2, 1]


def test_slices_say_phase_domain_and_steps(tmp_path):
    """Beside counts these stand by slice."""
    path = saved(
        tmp_path,
        counts=np.arange(8).reshape(2, 2, 2),
        phase=np.array(["prefill", "decode"]),
        domain=np.array(["a", "b"]),
        steps=np.array([3, 4]),
    )
    file = read(path)
    assert (file.phase, file.domain) == (("prefill", "decode"), ("a", "b"))
    assert file.trace.steps_per_slice.tolist() == [3, 4]


def test_fortran_order_and_compression_change_nothing(tmp_path):
    """numpy writes both."""
    counts = np.arange(24).reshape(2, 3, 4)
    np.savez_compressed(tmp_path / "a.npz", counts=np.asfortranarray(counts))
    assert read(tmp_path / "a.npz").trace.tokens.tolist() == counts.tolist()


@pytest.mark.parametrize(
    ("arrays", "part"),
    [
        ({"hidden_layers": np.array([5])}, "hidden_layers is int64 [1], expected one whole number"),
        ({"hidden_layers": np.array(0)}, "hidden_layers is 0"),
        ({"experts": np.array(2.0)}, "experts is float64"),
        ({"model_layer": np.array([[1]])}, "model_layer is int64 [1, 1]"),
        ({"model_layer": np.array([7]), "hidden_layers": np.array(7)}, "--hidden-layers"),
        ({"phase": np.array([1, 2, 3, 4])}, "phase has shape [4] and type int64"),
        ({"phase": np.array(["warm"] * 4)}, "phase is 'warm'"),
    ],
)
def test_facts_that_cannot_be_are_refused(tmp_path, arrays, part):
    """Each message names the array and the value."""
    assert part in refused(tmp_path, picks=PICKS, offsets=OFFSETS, **arrays)


def crafted(path, name, header, data, *, compress=zipfile.ZIP_STORED):
    """An archive with one member of raw bytes: an npy header as text, and data."""
    raw = header.encode().ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w", compress) as archive:
        archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw + data)
    return settle(path, path.read_bytes())


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776, 1, 1)}", "claims int64"),
        ("{'descr': '<i8', 'fortran_order': False, 'shape': (-1, 1, 1)}", "expected sizes of 0 or more"),
        ("{'descr': '<i8', 'fortran_order': False, 'shape': (1, 1, True)}", "expected sizes of 0 or more"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1, 1, 1)}", "holds object"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (1, 1, 1)}", "expected numbers or text"),
        ("{'descr': '<i8', 'shape': (1, 1, 1)}", "damaged header"),
        ("__import__('os').abort()", "damaged header"),
        ("{" * 100, "damaged header"),
    ],
)
def test_a_header_is_held_against_the_archive_before_memory_is_taken(tmp_path, header, part):
    """A claim of 2^40 numbers is an error, not an allocation; a header is never run."""
    with pytest.raises(FileError, match=r"a\.npz: counts") as caught:
        read(crafted(tmp_path / "a.npz", "counts", header, b"\0" * 8))
    assert part in str(caught.value)


def test_a_directory_that_claims_more_than_its_bytes_can_hold_is_refused(tmp_path):
    """Deflate makes at most a thousand bytes of one."""
    path = crafted(
        tmp_path / "a.npz",
        "counts",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (1, 1, 1000)}",
        b"\0" * 8000,
        compress=zipfile.ZIP_DEFLATED,
    )
    data = path.read_bytes()
    size = (8128).to_bytes(4, "little")
    assert data.count(size) == 2
    settle(path, data.replace(size, (2**31).to_bytes(4, "little")))
    with pytest.raises(FileError, match="the archive is damaged"):
        read(path)


def test_a_large_array_in_fortran_order_is_refused_with_the_cure(tmp_path, monkeypatch):
    """It cannot be read piece by piece."""
    monkeypatch.setattr(members, "MOST_WHOLE_BYTES", 100)
    np.savez(tmp_path / "a.npz", counts=np.asfortranarray(np.ones((2, 3, 4), int)))
    with pytest.raises(FileError, match="C order"):
        read(tmp_path / "a.npz")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("npz")
    np.savez_compressed(folder / "a.npz", picks=PICKS, offsets=OFFSETS, domain=np.array(list("abab")))
    return folder / "a.npz"


@given(damage=damages(1200))
@settings(max_examples=120)
def test_a_damaged_archive_is_read_or_refused(original, damage):
    """Whatever the bytes, the answer is a trace or a FileError."""
    data = original.read_bytes()
    path = settle(original.parent / "damaged.npz", damaged(data.rjust(1200, b"\0"), damage))
    assert answers(read, path)
    assert answers(lambda path: list(read_sequences(path, ReadOptions())), path)
