"""Maps as three tensors: what is written is read back, and tensors that contradict each other are refused."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from damage import answers, damaged, damages, settle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from eplb.errors import FileError
from eplb.formats import deepseek, registry
from eplb.formats.facts import Layers, MapFacts
from eplb.formats.neutral import NeutralMap
from placement import Placement

ROWS = [[0, 1, 2, 3, 0, 1], [3, 1, 2, 0, 3, 1]]
SLOTS = [
    [[0, 4], [1, 5], [2, -1], [3, -1]],
    [[3, -1], [1, 5], [2, -1], [0, 4]],
]
COUNTS = [[2, 2, 1, 1], [1, 2, 1, 2]]
TWO = MapFacts(ranks=2)


def neutral(rows=ROWS, ranks=2, shares=None):
    array = np.array(rows)
    return NeutralMap(ranks, 1, array.shape[1] // ranks, int(array.max()) + 1, None, Placement(array, shares))


def literal(**changes):
    arrays = {"phy2log": np.array(ROWS), "log2phy": np.array(SLOTS), "logcnt": np.array(COUNTS)}
    return {name: value for name, value in (arrays | changes).items() if value is not None}


def saved(path, arrays):
    """A file of these arrays, of the kind that its suffix names."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".pt":
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    else:
        save_file(arrays, path)
    os.utime(path, (1, 1))
    return path


def refused(path, facts=TWO):
    with pytest.raises(FileError) as caught:
        deepseek.read_map(path, facts)
    assert str(caught.value).count(str(path)) == 1
    return str(caught.value)


def rows_of(found):
    return found.placement.physical_to_logical.tolist()


def test_the_literal_inverse():
    """Slots of an expert ascending, -1 behind them, as many places as the most replicas."""
    found = deepseek.inverse(neutral())
    assert {name: array.tolist() for name, array in found.items()} == {
        "phy2log": ROWS,
        "log2phy": SLOTS,
        "logcnt": COUNTS,
    }
    assert {array.dtype for array in found.values()} == {np.dtype(np.int64)}


@pytest.mark.parametrize("suffix", deepseek.SUFFIXES)
def test_a_map_is_read_back_as_written(tmp_path, suffix):
    """Rows exactly; ranks and layers are the reader's to give."""
    path = tmp_path / f"map{suffix}"
    written = deepseek.write_map(path, neutral())
    assert written.files == (path,)
    assert str(path) in written.start_with[0]
    assert "give" not in written.notes[0].sentence
    assert written.notes[0].fix == "read it back with --ranks 2"
    assert registry.recognise(path).name == "deepseek"
    found = registry.read_map(path, MapFacts(ranks=2, nodes=2, layers=Layers((3, 4), 5)))
    assert rows_of(found) == ROWS
    assert (found.ranks, found.nodes, found.slots_per_rank, found.experts) == (2, 2, 3, 4)
    assert (found.model_layer, found.hidden_layers) == ((3, 4), 5)


@pytest.mark.parametrize("suffix", deepseek.SUFFIXES)
def test_equal_maps_give_equal_bytes(tmp_path, suffix):
    """Whenever they are written."""
    one, two = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    deepseek.write_map(one, neutral())
    deepseek.write_map(two, neutral())
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("suffix", deepseek.SUFFIXES)
def test_the_map_alone_is_enough(tmp_path, suffix):
    """The other two follow from it."""
    path = saved(tmp_path / f"m{suffix}", literal(log2phy=None, logcnt=None))
    assert rows_of(deepseek.read_map(path, TWO)) == ROWS


def test_a_tuple_is_what_the_function_returned(tmp_path):
    """(phy2log, log2phy, logcnt), saved as it came; its names are not in the file, so it has to be said what it is."""
    path = tmp_path / "m.pt"
    torch.save(tuple(torch.tensor(each) for each in (ROWS, SLOTS, COUNTS)), path)
    assert not deepseek.recognises(path)
    assert rows_of(registry.read_map(path, TWO, "deepseek")) == ROWS


def test_slots_of_an_expert_may_stand_in_any_order_and_in_more_room(tmp_path):
    """Replicas are equal, and engines pad as they like."""
    other = np.pad(np.array(SLOTS), ((0, 0), (0, 0), (0, 3)), constant_values=-1)
    other[0, 0, :2] = [4, 0]
    path = saved(tmp_path / "m.npz", literal(log2phy=other.astype(np.int32)))
    assert rows_of(deepseek.read_map(path, TWO)) == ROWS


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"phy2log": None}, "holds no phy2log"),
        ({"phy2log": np.array(ROWS, dtype=float)}, "phy2log is float64, expected whole numbers"),
        ({"phy2log": np.array(ROWS[0])}, "phy2log is [6], expected [layers, slots]"),
        ({"phy2log": np.zeros((0, 6), dtype=int)}, "phy2log is [0, 6], expected"),
        ({"phy2log": np.array([[0, 1, 2, 3, 0, 2**40]])}, "layer 0, slot 5 is 1099511627776, expected"),
        ({"phy2log": np.array([[0, 1, 2, 3, 0, -1]])}, "layer 0, slot 5 is -1"),
        ({"phy2log": np.array([[0, 1, 0, 3, 0, 1]])}, "holds expert 0 a second time on its rank"),
        ({"phy2log": np.array([[0, 1, 4, 3, 0, 1]])}, "expert 2 has no slot"),
        ({"phy2log": np.array([[0, 1, 2, 3, 0]])}, "5 slots a layer cannot be shared evenly by 2 ranks"),
        ({"logcnt": np.array(COUNTS[:1])}, "logcnt is [1, 4], phy2log makes it [2, 4]"),
        ({"logcnt": np.array([[2, 2, 1, 1], [1, 1, 2, 2]])}, "logcnt[1][1] is 1, phy2log makes it 2"),
        ({"log2phy": np.array(SLOTS)[0]}, "log2phy is [4, 2], phy2log makes it [2, 4, 2]"),
        ({"log2phy": np.array(SLOTS)[..., :1]}, "log2phy is [2, 4, 1], phy2log makes it [2, 4, 2]"),
        ({"log2phy": np.array(SLOTS)[..., ::-1]}, "log2phy[0][2] is [-1, 2]: -1 may only stand at the end"),
        ({"log2phy": np.array(SLOTS)[::-1]}, "log2phy[0][0] is [3, -1], phy2log makes it [4, 0]"),
    ],
)
@pytest.mark.parametrize("suffix", deepseek.SUFFIXES)
def test_tensors_that_are_no_map_are_refused_with_their_place(tmp_path, suffix, changes, part):
    """Each message names the tensor, the place, the value and what was expected."""
    arrays = {name: np.ascontiguousarray(array) for name, array in literal(**changes).items()}
    assert part in refused(saved(tmp_path / f"m{suffix}", arrays))


def test_the_ranks_must_be_given_and_fit(tmp_path):
    """They are not in the file, and a wrong number would shift every slot."""
    path = saved(tmp_path / "m.npz", literal())
    assert "give --ranks" in refused(path, MapFacts())
    assert "6 slots a layer cannot be shared evenly by 4 ranks" in refused(path, MapFacts(ranks=4))
    assert "shared evenly by 0 ranks" in refused(path, MapFacts(ranks=0))
    assert "shared evenly by -2 ranks" in refused(path, MapFacts(ranks=-2))


def test_shares_are_left_out_and_that_is_said(tmp_path):
    """The tensors have no place for them."""
    shares = [[0.7, 0.5, 1.0, 1.0, 0.3, 0.5], [0.5, 0.5, 1.0, 1.0, 0.5, 0.5]]
    written = deepseek.write_map(tmp_path / "m.npz", neutral(shares=shares))
    assert "shares_dropped" in {note.code for note in written.notes}


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    """Another suffix, or a map that no engine can serve."""
    with pytest.raises(FileError, match=r"ends in '\.bin', expected one of \.safetensors"):
        deepseek.write_map(tmp_path / "m.bin", neutral())
    with pytest.raises(FileError, match="second time on its rank"):
        deepseek.write_map(tmp_path / "m.pt", neutral([[0, 0, 1, 1]]))
    assert not list(tmp_path.iterdir())


def test_code_in_a_file_is_not_run(tmp_path):
    """A pickle that would make a file when it is loaded, as a torch file and as a bare one."""
    mark = tmp_path / "mark"

    class Trap:
        def __reduce__(self):
            return (open, (str(mark), "w"))

    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", pickle.dumps({"phy2log": Trap()}))
        archive.writestr("m/version", "3\n")
    os.utime(path, (1, 1))
    assert deepseek.recognises(path)
    refused(path)
    path.write_bytes(pickle.dumps({"phy2log": Trap()}))
    os.utime(path, (1, 1))
    assert not deepseek.recognises(path)
    refused(path)
    np.savez(tmp_path / "m.npz", phy2log=np.array([Trap()], dtype=object))
    mark.unlink(missing_ok=True)
    os.utime(tmp_path / "m.npz", (1, 1))
    refused(tmp_path / "m.npz")
    assert not mark.exists()


def test_a_header_is_not_believed(tmp_path):
    """An archive whose member claims 2^40 values is an error, not an allocation."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((2, 6), dtype=np.int64))
    data = buffer.getvalue().replace(b"(2, 6), }" + b" " * 15, b"(1099511627776, 6), }" + b" " * 3)
    path = tmp_path / "m.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("phy2log.npy", data)
    os.utime(path, (1, 1))
    assert "1099511627776" in refused(path)


@pytest.mark.parametrize("name", ["absent.pt", "absent.npz", "absent.safetensors"])
def test_a_missing_file_is_named(tmp_path, name):
    """Whatever its kind."""
    assert not deepseek.recognises(tmp_path / name)
    refused(tmp_path / name)
    refused(tmp_path)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3))
@settings(deadline=None, max_examples=50)
def test_the_inverse_of_any_map(seed, ranks, layers):
    """Every slot is found under its expert, exactly once."""
    rng = np.random.default_rng(seed)
    slots = int(rng.integers(1, 4))
    experts = int(rng.integers(slots, slots * ranks + 1))
    row = (np.arange(slots * ranks) % experts).reshape(ranks, slots)
    rows = np.array([rng.permutation(experts)[rng.permuted(row, axis=1)].ravel() for _ in range(layers)])
    found = deepseek.inverse(neutral(rows, ranks=ranks))
    for layer in range(layers):
        for expert in range(experts):
            held = np.flatnonzero(rows[layer] == expert).tolist()
            places = found["log2phy"][layer, expert].tolist()
            assert places == held + [-1] * (len(places) - len(held))
            assert found["logcnt"][layer, expert] == len(held)


@given(damages(1000), st.sampled_from(deepseek.SUFFIXES))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_bytes_are_a_map_or_refused(tmp_path, damage, suffix):
    """Truncations, flipped bytes, noise."""
    path = saved(tmp_path / f"m{suffix}", literal())
    settle(path, damaged(path.read_bytes(), damage))
    assert deepseek.recognises(path) in {True, False}
    assert answers(lambda found: deepseek.read_map(found, TWO), path)
