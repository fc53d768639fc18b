"""Tensor files: nothing is executed, nothing is believed that the file does not hold."""

import pickle
import struct
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from damage import answers, damaged, damages, settle
from hypothesis import given, settings

from eplb.errors import FileError
from eplb.formats.tensors import is_torch, load_torch, read_safetensors

torch = pytest.importorskip("torch")


def refused(action, *arguments):
    with pytest.raises(FileError) as caught:
        action(*arguments)
    return str(caught.value)


class Harmful:
    """Would write a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def saved(path, value):
    torch.save(value, path)
    return settle(path, path.read_bytes())


def test_tensors_and_plain_data_are_read(tmp_path):
    """Lists, mappings, numbers, None and text around tensors."""
    path = saved(tmp_path / "a.pt", {"rank": 0, "records": [{"count": torch.arange(3)}], "none": None})
    found = load_torch(path)
    assert found["records"][0]["count"].tolist() == [0, 1, 2]
    assert (found["rank"], found["none"]) == (0, None)
    assert is_torch(path)


def test_code_in_a_file_is_not_run(tmp_path):
    """Neither in torch's archive nor as a bare pickle."""
    mark = tmp_path / "mark"
    assert "cannot be read as a torch file" in refused(load_torch, saved(tmp_path / "a.pt", Harmful(mark)))
    bare = settle(tmp_path / "b.pt", pickle.dumps(Harmful(mark)))
    assert "not a torch file" in refused(load_torch, bare)
    assert not mark.exists()


def test_a_tensor_larger_than_the_file_is_refused(tmp_path):
    """A view can claim any shape over four bytes."""
    path = saved(tmp_path / "a.pt", {"count": [torch.zeros(1).expand(2**40)]})
    assert "[1099511627776] is not stored in full" in refused(load_torch, path)


def test_a_container_that_is_named_often_is_looked_at_once(tmp_path):
    """A list of lists of one list, 24 levels: ten to the 24th numbers in a few hundred bytes."""
    found = [torch.zeros(1)]
    for _ in range(24):
        found = [found] * 10
    assert len(load_torch(saved(tmp_path / "a.pt", found))) == 10


def test_a_sparse_tensor_is_refused(tmp_path):
    """Its shape costs nothing, what is done with it would."""
    sparse = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (2**40,), check_invariants=True)
    refused(load_torch, saved(tmp_path / "a.pt", sparse))


def test_a_compressed_archive_is_refused(tmp_path):
    """torch.save stores; a packed member could unpack to anything."""
    path = saved(tmp_path / "a.pt", torch.ones(3))
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert "is compressed" in refused(load_torch, tmp_path / "b.pt")


def test_safetensors_are_read_one_at_a_time(tmp_path):
    """Names sorted; a shape without the data; an unknown name is a KeyError."""
    safetensors.numpy.save_file(
        {"b": np.arange(4), "a": np.ones((2, 3), np.int32)}, tmp_path / "a.safetensors"
    )
    found = read_safetensors(tmp_path / "a.safetensors")
    assert list(found) == ["a", "b"]
    assert found.shape("a") == (2, 3)
    assert found["b"].tolist() == [0, 1, 2, 3]
    with pytest.raises(KeyError):
        found["c"]


def test_a_safetensors_header_that_claims_more_than_the_file_is_refused(tmp_path):
    """Before anything of that size is made."""
    header = b'{"a":{"dtype":"I64","shape":[1099511627776],"data_offsets":[0,8796093022208]}}'
    path = settle(tmp_path / "a.safetensors", struct.pack("<Q", len(header)) + header + b"\0" * 64)
    assert "cannot be read as safetensors" in refused(read_safetensors, path)
    assert "cannot be read" in refused(read_safetensors, tmp_path / "none.safetensors")


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    torch.save({"logical_count": torch.arange(24).reshape(2, 3, 4)}, folder / "a.pt")
    safetensors.numpy.save_file({"3": np.arange(12).reshape(3, 4)}, folder / "a.safetensors")
    return folder


@given(damage=damages(1500))
@settings(max_examples=60)
def test_a_damaged_torch_file_is_read_or_refused(originals, damage):
    """Whatever the bytes, the answer is a value or a FileError."""
    data = (originals / "a.pt").read_bytes().ljust(1500, b"\0")
    assert answers(load_torch, settle(originals / "damaged.pt", damaged(data, damage)))


@given(damage=damages(160))
@settings(max_examples=60)
def test_a_damaged_safetensors_file_is_read_or_refused(originals, damage):
    """Whatever the bytes, the answer is tensors or a FileError."""
    data = (originals / "a.safetensors").read_bytes().ljust(160, b"\0")
    path = settle(originals / "damaged.safetensors", damaged(data, damage))
    assert answers(lambda path: dict(read_safetensors(path)), path)
