"""Routing traces in ``.npz``: counts by slice, or the experts that every token picked.

Either ``counts``: whole numbers [slices, layers, experts];
or ``picks``: whole numbers [tokens, layers, top_k], and ``offsets``: int [sequences + 1], sequence i = picks[offsets[i]:offsets[i+1]];
``domain``: optional [sequences], what each sequence is about.
Optional in both: ``model_layer``: int [layers], the model's layer number of every row (otherwise 0, 1, ...).

Picks become slices by this rule: the sequences of one domain, in the order of the file, in groups of
``sequences_per_slice``; a last smaller group is left out unless it is the only one of its domain. Sequences are never cut.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from placement import LoadTrace, TraceError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SEQUENCES_PER_SLICE = 4
MOST_EXPERTS = 65_536
"""Experts of one layer that a trace of picks may name: an id above it is damage, not a model."""


@dataclass(frozen=True, slots=True, eq=False)
class TraceFile:
    """A trace with the model's layer number of every row and a sentence on how its slices were made."""

    trace: LoadTrace
    model_layer: tuple[int, ...]
    slices_from: str


def read_trace(
    path: Path, *, experts: int | None = None, sequences_per_slice: int = SEQUENCES_PER_SLICE
) -> TraceFile:
    """Read a trace file.

    ``experts``: experts of the model; None = the width of ``counts``, or the highest pick + 1.

    Raises:
        FileError: names the file, the array, the place and the value.
    """
    if sequences_per_slice < 1:
        raise FileError(f"sequences per slice is {sequences_per_slice}, must be at least 1")
    arrays = _load(path)
    try:
        tokens, how = _tokens(arrays, experts, sequences_per_slice)
        trace = LoadTrace(tokens)
        return TraceFile(trace, _model_layer(arrays, trace.layers), how)
    except (FileError, TraceError) as error:
        raise FileError(f"{path}: {error}") from error


def _tokens(
    arrays: dict[str, NDArray[Any]], experts: int | None, sequences_per_slice: int
) -> tuple[NDArray[Any], str]:
    if "counts" in arrays:
        return _from_counts(arrays["counts"], experts), "the file's own"
    if "picks" in arrays and "offsets" in arrays:
        return _from_picks(arrays, experts, sequences_per_slice)
    raise FileError(f"holds {sorted(arrays)}, expected counts, or picks and offsets")


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise FileError(f"{path}: not an .npz file; expected an .npz archive, as numpy.savez writes")
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
            return {name: archive[name] for name in archive.files if name in _KNOWN}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise FileError(f"{path}: cannot be read as .npz: {error}") from error


_KNOWN = ("counts", "picks", "offsets", "domain", "model_layer")


def _from_counts(counts: NDArray[Any], experts: int | None) -> NDArray[Any]:
    if counts.ndim != 3:
        raise FileError(f"counts have shape {list(counts.shape)}, expected [slices, layers, experts]")
    if experts is not None and counts.shape[2] != experts:
        raise FileError(f"counts have {counts.shape[2]} experts, asked for {experts}")
    return counts


def _from_picks(
    arrays: dict[str, NDArray[Any]], experts: int | None, group: int
) -> tuple[NDArray[np.int64], str]:
    picks, offsets = arrays["picks"], arrays["offsets"]
    count = _check_picks(picks, experts)
    _check_offsets(offsets, len(picks))
    sequences = len(offsets) - 1
    domain = arrays.get("domain", np.zeros(sequences, dtype=np.int64))
    if domain.shape != (sequences,):
        raise FileError(f"domain has shape {list(domain.shape)}, offsets name {sequences} sequences")
    groups = _groups(domain, offsets, group)
    tokens = np.zeros((len(groups), picks.shape[1], count), dtype=np.int64)
    for at, members in enumerate(groups):
        for sequence in members:
            part = picks[offsets[sequence] : offsets[sequence + 1]]
            for layer in range(picks.shape[1]):
                tokens[at, layer] += np.bincount(part[:, layer].ravel(), minlength=count)
    kinds = len(np.unique(domain))
    return tokens, f"groups of {group} sequences" + (f", each of one of {kinds} domains" if kinds > 1 else "")


def _groups(domain: NDArray[Any], offsets: NDArray[Any], group: int) -> list[list[int]]:
    filled = np.flatnonzero(np.diff(offsets) > 0)
    groups: list[list[int]] = []
    for kind in np.unique(domain[filled]):
        members = filled[domain[filled] == kind].tolist()
        whole = [members[at : at + group] for at in range(0, len(members) - group + 1, group)]
        groups.extend(whole or [members])
    return groups


def _check_picks(picks: NDArray[Any], experts: int | None) -> int:
    if picks.ndim != 3 or picks.dtype.kind not in "iu" or not picks.size:
        raise FileError(
            f"picks are {picks.dtype} {list(picks.shape)}, expected whole numbers [tokens, layers, top_k]"
        )
    count = int(picks.max()) + 1 if experts is None else experts
    bad = (picks < 0) | (picks >= min(count, MOST_EXPERTS))
    if bad.any():
        token, layer, place = (int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
        value = picks[token, layer, place]
        raise FileError(
            f"picks[token {token}, layer {layer}, {place}] is {value}, expected 0..{min(count, MOST_EXPERTS) - 1}"
        )
    return count


def _check_offsets(offsets: NDArray[Any], tokens: int) -> None:
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise FileError(
            f"offsets are {offsets.dtype} {list(offsets.shape)}, expected whole numbers [sequences + 1]"
        )
    bounds = offsets.astype(np.int64)
    if bounds[0] != 0 or bounds[-1] != tokens or (np.diff(bounds) < 0).any():
        raise FileError(
            f"offsets run from {bounds[0]} to {bounds[-1]}, expected 0 to {tokens} and never falling"
        )


def _model_layer(arrays: dict[str, NDArray[Any]], layers: int) -> tuple[int, ...]:
    given = arrays.get("model_layer")
    if given is None:
        return tuple(range(layers))
    if given.shape != (layers,) or given.dtype.kind not in "iu" or len(np.unique(given)) != layers:
        raise FileError(
            f"model_layer is {given.dtype} {list(given.shape)}, expected {layers} different whole numbers"
        )
    return tuple(int(layer) for layer in given)
