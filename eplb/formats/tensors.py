"""Tensors that engines save: torch files without code, safetensors one at a time."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, cast

from eplb.errors import FileError
from eplb.formats.files import opened, size_bytes, steady

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MOST_VALUES = 2**28
"""Most values of one tensor that is read as a whole; a file with holes can claim far more than it takes of the disk."""
DEEPEST = 32
"""Levels of lists and mappings in a file of tensors; a deeper one is damage."""


def is_torch(path: Path) -> bool:
    """Whether a file is a zip archive as ``torch.save`` writes it. Never raises."""
    return any(name.endswith("/data.pkl") or name == "data.pkl" for name in zip_names(path))


def zip_names(path: Path) -> tuple[str, ...]:
    """Names of the members of a zip archive; none where it is no archive. Never raises."""
    try:
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            return tuple(archive.namelist())
    except (FileError, OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return ()


def load_torch(path: Path) -> Any:
    """What ``torch.save`` wrote: tensors on the CPU in plain containers, mapped rather than read; no code is run.

    Raises:
        FileError: it is no such file, it holds more than tensors and plain data, or a tensor claims more than the file holds.
    """
    return steady(path, lambda: _load_torch(path))


def _load_torch(path: Path) -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise FileError(
            f"{path}: reading torch files needs torch; pip install 'eplb-daemon[formats-torch]'"
        ) from error
    _check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        reason = str(error).split("\n", maxsplit=1)[0]
        raise FileError(
            f"{path}: cannot be read as a torch file of tensors and plain data: {reason or type(error).__name__}"
        ) from error
    _check_tensors(path, found, size_bytes(path), set())
    return found


def _check_archive(path: Path) -> None:
    if not is_torch(path):
        raise FileError(f"{path}: not a torch file: expected the zip archive that torch.save writes")
    with opened(path) as file, zipfile.ZipFile(file) as archive:
        packed = [info.filename for info in archive.infolist() if info.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise FileError(f"{path}: member {packed[0]!r} is compressed, which torch.save never does")


def _check_tensors(path: Path, value: Any, most_bytes: int, seen: set[int], level: int = 0) -> None:
    """Refuse what a view can pretend: an expanded tensor is larger than its storage.

    ``seen``: containers that were looked at; a file may name one very often, or in itself.
    """
    import torch

    if level > DEEPEST:
        raise FileError(f"{path}: holds containers more than {DEEPEST} levels deep")
    if isinstance(value, torch.Tensor):
        plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
        if not plain or value.numel() * value.element_size() > most_bytes:
            raise FileError(
                f"{path}: a tensor of {value.dtype} {list(value.shape)} is not stored in full ({most_bytes:,} bytes of file)"
            )
    elif isinstance(value, Mapping | list | tuple | set) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_tensors(path, item, most_bytes, seen, level + 1)


class SafeTensors(Mapping[str, "NDArray[Any]"]):
    """The tensors of a safetensors file as numpy arrays, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            FileError: it is no such file, or its header does not fit its size.
        """
        try:
            import safetensors
        except ModuleNotFoundError as error:
            raise FileError(
                f"{path}: reading safetensors needs the package; pip install 'eplb-daemon[daemon]'"
            ) from error
        size_bytes(path)
        self._path = path
        try:
            self._file = cast("Any", safetensors.safe_open(path, framework="numpy"))
            self._names = frozenset(self._file.keys())
        except Exception as error:
            raise FileError(f"{path}: cannot be read as safetensors: {error}") from error

    def __getitem__(self, name: str) -> NDArray[Any]:
        """One tensor.

        Raises:
            KeyError: there is none of that name.
            FileError: numpy has no such type, or the file changed.
        """
        if name not in self._names:
            raise KeyError(name)
        if prod(self.shape(name)) > MOST_VALUES:
            raise FileError(
                f"{self._path}: tensor {name!r} is {list(self.shape(name))}, expected at most {MOST_VALUES:,} values"
            )
        try:
            found: NDArray[Any] = self._file.get_tensor(name)
        except Exception as error:
            raise FileError(f"{self._path}: tensor {name!r} cannot be read: {error}") from error
        return found

    def __iter__(self) -> Iterator[str]:
        """Names, sorted."""
        return iter(sorted(self._names))

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor, from the header alone."""
        return tuple(int(size) for size in self._file.get_slice(name).get_shape())


def read_safetensors(path: Path) -> SafeTensors:
    """Open a safetensors file, again while it is being written; its tensors are read when they are asked for.

    Raises:
        FileError: see ``SafeTensors``.
    """
    return steady(path, lambda: SafeTensors(path))
