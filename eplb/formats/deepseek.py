"""Maps as the three tensors that DeepSeek's EPLB returns, in ``.safetensors``, ``.npz`` or, with torch, ``.pt``.

    phy2log  int64 [layers, slots]            the expert of every slot
    log2phy  int64 [layers, experts, most]    the slots of every expert, -1 = none; most = largest number of replicas
    logcnt   int64 [layers, experts]          replicas of every expert

Slots are numbered rank by rank; neither the ranks nor the layers' numbers are in the file. ``phy2log`` alone is a map; the others
are checked against it. A ``.pt`` may also hold the three as a tuple, as the function returns them.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats import files, tensors
from eplb.formats.facts import Format, Layers, MapFacts, Note, Written
from eplb.formats.layers import layers_of
from eplb.formats.map_rules import beside, check_moe_rows, check_sound, in_model_order, map_of, uneven_shares
from eplb.formats.members import open_archive

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.formats.neutral import NeutralMap

NAMES = ("phy2log", "log2phy", "logcnt")
SUFFIXES = (".safetensors", ".npz", ".pt")
HEAD_BYTES = 2**16


def recognises(path: Path) -> bool:
    """Whether a file names ``phy2log`` where its kind names tensors."""
    names = tensors.zip_names(path)
    if "phy2log.npy" in names:
        return True
    pickles = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
    if pickles:
        return b"phy2log" in _head_of_member(path, pickles[0])
    return (
        not names
        and files.head(path, HEAD_BYTES)[8:9] == b"{"
        and b'"phy2log"' in files.head(path, HEAD_BYTES)
    )


def read_map(path: Path, facts: MapFacts) -> NeutralMap:
    """Read a map; ``facts.ranks`` must be given.

    Raises:
        FileError: names the file, tensor, place, value and what was expected.
    """
    return files.steady(path, lambda: _read_map(path, facts))


def _read_map(path: Path, facts: MapFacts) -> NeutralMap:
    with files.in_file(path):
        return _parsed(_load(path), facts)


def _parsed(found: dict[str, Any], facts: MapFacts) -> NeutralMap:
    arrays = {name: _array(value, name) for name, value in found.items()}
    if "phy2log" not in arrays:
        raise FileError("holds no phy2log, expected it, and log2phy and logcnt if they are known")
    rows = arrays["phy2log"]
    if rows.ndim != 2 or 0 in rows.shape:
        raise FileError(f"phy2log is {list(rows.shape)}, expected [layers, slots]")
    neutral = map_of(rows, replace(facts, layers=layers_of(Layers(), facts.layers, len(rows))), "phy2log")
    check_sound(neutral)
    _check_inverse(neutral, arrays)
    return neutral


def write_map(path: Path, neutral: NeutralMap) -> Written:
    """Write the three tensors, rows in the order of the model; the suffix names the kind of file. Shares are left out.

    Raises:
        FileError: the suffix is another, the map breaks a rule, or it cannot be written.
    """
    check_map(path, neutral)
    files.write_bytes(path, _packed(path, inverse(in_model_order(neutral))))
    return Written((path,), (_loading(path),), _notes(neutral))


def check_map(path: Path, neutral: NeutralMap) -> None:
    """Refuse a map that these tensors cannot stand for.

    Raises:
        FileError: the suffix is another, or a slot is empty, an expert has none or stands twice on a rank.
    """
    if path.suffix not in SUFFIXES:
        raise FileError(
            f"{path}: ends in {path.suffix or 'nothing'!r}, expected one of {', '.join(SUFFIXES)}"
        )
    with files.in_file(path):
        check_moe_rows(neutral)
        check_sound(neutral)


def inverse(neutral: NeutralMap) -> dict[str, NDArray[np.int64]]:
    """The three tensors of a valid map, by name, slots of an expert ascending."""
    rows = neutral.placement.physical_to_logical.astype(np.int64)
    counts = neutral.placement.replicas(neutral.experts)
    order = np.argsort(rows, axis=1, kind="stable")
    layer = np.arange(len(rows))[:, None]
    held = rows[layer, order]
    first = np.cumsum(counts, axis=1) - counts
    place = np.arange(rows.shape[1]) - first[layer, held]
    slots = np.full((*counts.shape, int(counts.max())), -1, dtype=np.int64)
    slots[layer, held, place] = order
    return {"phy2log": rows, "log2phy": slots, "logcnt": counts}


def _check_inverse(neutral: NeutralMap, arrays: dict[str, NDArray[Any]]) -> None:
    expected = inverse(neutral)
    counts, slots = arrays.get("logcnt"), arrays.get("log2phy")
    if counts is not None:
        _refuse_unequal("logcnt", counts, expected["logcnt"])
    if slots is not None:
        right = expected["log2phy"]
        most = right.shape[2]
        if slots.ndim == 3 and (slots[..., most:] != -1).any():
            raise FileError(
                f"log2phy names more than {most} slots of an expert, phy2log at most {most}: the tensors are of different maps, or "
                "-1 does not stand at the end"
            )
        _refuse_unequal("log2phy", _descending(slots[..., :most]), _descending(right))


def _descending(slots: NDArray[Any]) -> NDArray[Any]:
    """Any order of an expert's slots is right, but the empty places must stand behind them."""
    signed = slots.astype(np.int64)
    gap = (signed[..., :-1] < 0) & (signed[..., 1:] >= 0)
    if gap.any():
        layer, expert = (int(i) for i in np.unravel_index(int(gap.argmax()), gap.shape)[:2])
        raise FileError(
            f"log2phy[{layer}][{expert}] is {signed[layer, expert].tolist()}: -1 may only stand at the end"
        )
    return np.asarray(np.sort(signed, axis=-1)[..., ::-1])


def _refuse_unequal(name: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
    if found.shape != expected.shape:
        raise FileError(f"{name} is {list(found.shape)}, phy2log makes it {list(expected.shape)}")
    bad = found != expected
    if bad.any():
        at = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))[:2]
        raise FileError(
            f"{name}[{at[0]}][{at[1]}] is {found[at].tolist()}, phy2log makes it {expected[at].tolist()}: the tensors "
            "are of different maps"
        )


def _load(path: Path) -> dict[str, Any]:
    """Those of the three tensors that are there, by name."""
    names = tensors.zip_names(path)
    if tensors.is_torch(path):
        return _from_torch(path)
    if names or path.suffix == ".npz":
        with open_archive(path) as archive:
            return {name: archive.whole(name) for name in NAMES if name in archive.names}
    stored = tensors.read_safetensors(path)
    return {name: stored[name] for name in NAMES if name in stored}


def _from_torch(path: Path) -> dict[str, Any]:
    found = tensors.load_torch(path)
    if isinstance(found, tuple | list) and len(found) == len(NAMES):
        return dict(zip(NAMES, found, strict=True))
    if not isinstance(found, dict):
        raise FileError(f"holds a {type(found).__name__}, expected tensors named {', '.join(NAMES)}")
    return {name: found[name] for name in NAMES if name in found}


def _head_of_member(path: Path, name: str) -> bytes:
    try:
        with files.opened(path) as file, zipfile.ZipFile(file) as archive, archive.open(name) as member:
            return member.read(HEAD_BYTES)
    except (
        FileError,
        ValueError,
        RuntimeError,
        EOFError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ):
        return b""


def _array(value: Any, name: str) -> NDArray[Any]:
    try:
        array = value if isinstance(value, np.ndarray) else value.detach().numpy()
    except (AttributeError, TypeError, RuntimeError) as error:
        raise FileError(
            f"{name} is a {type(value).__name__}, expected a tensor of whole numbers: {error}"
        ) from error
    if array.dtype.kind not in "iu":
        raise FileError(f"{name} is {array.dtype}, expected whole numbers")
    return np.asarray(array)


def _packed(path: Path, arrays: dict[str, NDArray[np.int64]]) -> bytes:
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()
    if path.suffix == ".safetensors":
        from safetensors.numpy import save

        # It writes memory as it lies: of a view it would write other values than the view shows.
        return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    try:
        import torch
    except ModuleNotFoundError as error:
        raise FileError(
            f"{path}: writing .pt needs torch; pip install 'eplb-daemon[formats-torch]', or name it .safetensors"
        ) from error
    buffer = io.BytesIO()
    torch.save(
        {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}, buffer
    )
    return buffer.getvalue()


def _loading(path: Path) -> str:
    call = {
        ".npz": f"numpy.load({str(path)!r})",
        ".safetensors": f"safetensors.torch.load_file({str(path)!r})",
        ".pt": f"torch.load({str(path)!r}, weights_only=True)",
    }[path.suffix]
    return f"tensors = {call}"


def _notes(neutral: NeutralMap) -> tuple[Note, ...]:
    lost = beside(neutral, ranks=False, layers=False)
    notes = [] if lost is None else [lost]
    if uneven_shares(neutral):
        notes.append(Note("shares_dropped", "tensors of this kind have no shares; the map's are left out"))
    return tuple(notes)


FORMATS = (
    Format(
        name="deepseek",
        title="DeepSeek-style map tensors (phy2log, log2phy, logcnt)",
        recognises=recognises,
        read_map=read_map,
        write_map=write_map,
        check_map=check_map,
        suffix=SUFFIXES[0],
    ),
)
