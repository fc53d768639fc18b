"""The files of a folder of TensorRT-LLM statistics, checked against each other before a number is used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Note
from eplb.formats.files import read_json
from eplb.formats.model_rows import listed
from eplb.formats.plain_values import shown, whole
from eplb.formats.tensors import SafeTensors, read_safetensors
from placement.routes import MOST_EXPERTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.formats.facts import ReadOptions

META = "meta_info.json"
COUNTS = re.compile(r"rank(\d{1,6})\.safetensors")
PICKS = re.compile(r"(?:rank(\d{1,6})_raw|token_selected_experts_rank(\d{1,6}))\.safetensors")
TOKENS = re.compile(r"rank(\d{1,6})_numtokens\.json")
KEY = re.compile(r"(\d{1,12})_(\d{1,6})")

Key = tuple[int, int]
"""Iteration and layer."""


@dataclass(frozen=True, slots=True, eq=False)
class Folder:
    """One recording. ``ranks``: 0.. . ``iterations``: those that every rank holds whole. ``layers``: of the model, rising.

    ``counts``, ``picks``: by rank, empty where the run wrote none. ``tokens``: by rank, tokens by key.
    """

    path: Path
    experts: int
    top_k: int
    ranks: tuple[int, ...]
    iterations: tuple[int, ...]
    layers: tuple[int, ...]
    counts: Mapping[int, SafeTensors]
    picks: Mapping[int, SafeTensors]
    tokens: Mapping[int, dict[str, Any]]
    notes: tuple[Note, ...]


def opened_folder(path: Path, options: ReadOptions) -> Folder:
    """Open the files of a folder and check which ranks, iterations and layers are there.

    Raises:
        FileError: a file cannot be read, a rank is missing, or iterations and layers have holes.
    """
    experts, top_k, ep_size = _meta(path, options)
    counts = {rank: read_safetensors(path / name) for rank, name in _files(path, COUNTS)}
    picks = {rank: read_safetensors(path / name) for rank, name in _files(path, PICKS)}
    tokens = {rank: _token_counts(path / name) for rank, name in _files(path, TOKENS)}
    ranks = _ranks(path, ep_size, counts, picks)
    keys = {rank: _keys(path, (counts or picks)[rank], rank) for rank in ranks}
    for rank in picks if counts else ():
        if _keys(path, picks[rank], rank) != keys[rank]:
            raise FileError(
                f"{path}: rank {rank} holds other iterations and layers in its picks than in its counts: take away one of them"
            )
    iterations, layers, cut = _grid(path, keys)
    return Folder(
        path,
        experts,
        top_k,
        ranks,
        iterations,
        layers,
        counts,
        picks,
        tokens,
        (*_rank_notes(ep_size, ranks), *_cut_notes(cut)),
    )


def _meta(path: Path, options: ReadOptions) -> tuple[int, int, int | None]:
    meta = read_json(path / META)
    if not isinstance(meta, dict):
        raise FileError(f"{path / META}: holds {shown(meta)}, expected num_experts and num_experts_per_token")
    experts = whole(meta.get("num_experts"), f"{path / META}: num_experts", 1, MOST_EXPERTS)
    top_k = whole(meta.get("num_experts_per_token"), f"{path / META}: num_experts_per_token", 1, experts)
    ep_size = meta.get("ep_size")
    if ep_size is not None:
        whole(ep_size, f"{path / META}: ep_size", 1, MOST_EXPERTS)
    if options.experts not in {None, experts}:
        raise FileError(f"{path / META}: num_experts is {experts}, asked for {options.experts}")
    return experts, top_k, ep_size


def _files(path: Path, pattern: re.Pattern[str]) -> list[tuple[int, str]]:
    try:
        names = sorted(each.name for each in path.iterdir())
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from error
    found: dict[int, str] = {}
    for name in names:
        match = pattern.fullmatch(name)
        if match is None:
            continue
        rank = int(next(group for group in match.groups() if group is not None))
        if rank in found:
            raise FileError(f"{path}: rank {rank} has {found[rank]} and {name}: take away one of them")
        found[rank] = name
    return sorted(found.items())


def _token_counts(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise FileError(f"{path}: holds {shown(found)}, expected tokens by iteration and layer")
    return found


def _ranks(
    path: Path, ep_size: int | None, counts: Mapping[int, SafeTensors], picks: Mapping[int, SafeTensors]
) -> tuple[int, ...]:
    ranks = sorted(counts or picks)
    if not ranks:
        raise FileError(
            f"{path}: holds no rank*.safetensors: did the run reach the last iteration of its range?"
        )
    expected = set(range(max(ep_size or 0, ranks[-1] + 1)))
    missing = sorted(expected - set(ranks)) or sorted(set(ranks) - set(picks) if counts and picks else ())
    if missing:
        raise FileError(
            f"{path}: has no file of ranks {listed(missing)} (of {len(expected)}): their tokens would be missing in silence; copy the "
            "files of all ranks here"
        )
    if ep_size is not None and len(ranks) > ep_size:
        raise FileError(
            f"{path}: has files of ranks {listed(ranks)}, {META} says ep_size {ep_size}: keep one run a folder"
        )
    return tuple(ranks)


def _keys(path: Path, tensors: SafeTensors, rank: int) -> frozenset[Key]:
    found = set()
    for name in tensors:
        match = KEY.fullmatch(name)
        if match is None:
            raise FileError(
                f"{path}: rank {rank} has a tensor {shown(name)}, expected names such as '100_3' (iteration, layer)"
            )
        found.add((int(match[1]), int(match[2])))
    if len(found) != len(tensors):
        raise FileError(f"{path}: rank {rank} names an iteration and layer twice, with other leading zeros")
    return frozenset(found)


def _grid(
    path: Path, keys: dict[int, frozenset[Key]]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Iterations that are whole, layers, and iterations cut off at either end (a run that was stopped)."""
    every = frozenset().union(*keys.values())
    if not every:
        raise FileError(f"{path}: holds no counts: did the run reach the iterations of its range?")
    layers = tuple(sorted({layer for _, layer in every}))
    seen = sorted({iteration for iteration, _ in every})
    held = [
        iteration
        for iteration in seen
        if all((iteration, layer) in found for found in keys.values() for layer in layers)
    ]
    if not held:
        raise FileError(
            f"{path}: no iteration has all layers {listed(layers)} on all ranks: are the files of one run?"
        )
    if held[-1] - held[0] + 1 != len(held):
        kept = set(held)
        gap = next(at for at in range(held[0], held[-1]) if at not in kept)
        lacking = [
            f"rank {rank} lacks layers {listed(set(layers) - {layer for at, layer in found if at == gap})}"
            for rank, found in sorted(keys.items())
            if any((gap, layer) not in found for layer in layers)
        ]
        raise FileError(f"{path}: iteration {gap} is not whole ({lacking[0]}), later ones are: record again")
    return tuple(held), layers, tuple(at for at in seen if not held[0] <= at <= held[-1])


def _rank_notes(ep_size: int | None, ranks: tuple[int, ...]) -> tuple[Note, ...]:
    if ep_size is not None:
        return ()
    return (
        Note(
            "ranks_by_files",
            f"taken as expert parallelism over {len(ranks)} ranks, because there are so many files; {META} does not say",
            "if the run had more ranks, copy the files of all of them here",
        ),
    )


def _cut_notes(cut: tuple[int, ...]) -> tuple[Note, ...]:
    if not cut:
        return ()
    return (Note("cut_off", f"iterations {listed(cut)} are not whole on every rank and are left out"),)


def counted(folder: Folder, rank: int, iteration: int, layer: int) -> NDArray[np.int64]:
    """Tokens of one rank by expert, int64 [experts]; from the picks where the run wrote no counts.

    Raises:
        FileError: shape, type or a count is wrong, or it contradicts the tokens that the run noted.
    """
    key = f"{iteration}_{layer}"
    where = f"rank {rank}, {key}"
    if not folder.counts:
        picks = picked(folder, rank, iteration, layer)
        return np.bincount(picks[picks >= 0], minlength=folder.experts).astype(np.int64)
    counts = folder.counts[rank][key]
    if counts.dtype.kind not in "iu" or counts.shape != (folder.experts,):
        raise FileError(
            f"{where} is {counts.dtype} {list(counts.shape)}, expected whole numbers [{folder.experts}]"
        )
    if int(counts.min()) < 0 or int(counts.max()) >= 2**48:
        expert = int(np.argmax((counts < 0) | (counts >= 2**48)))
        raise FileError(f"{where}, expert {expert} is {counts[expert]}, expected a number of tokens")
    if rank in folder.tokens:
        tokens = whole(folder.tokens[rank].get(key), f"{where} of rank{rank}_numtokens.json")
        if int(counts.sum()) != tokens * folder.top_k:
            raise FileError(
                f"{where} sums to {int(counts.sum())}, but {tokens} tokens with top-k {folder.top_k} make {tokens * folder.top_k}: "
                "the files are not of one run"
            )
    return counts.astype(np.int64)


def picked(folder: Folder, rank: int, iteration: int, layer: int) -> NDArray[np.int64]:
    """Picks of one rank, int64 [tokens, top_k]; -1 = none.

    Raises:
        FileError: shape or type is wrong, or an id is out of range.
    """
    key = f"{iteration}_{layer}"
    picks = folder.picks[rank][key]
    where = f"picks of rank {rank}, {key}"
    if picks.dtype.kind not in "iu" or picks.ndim != 2 or picks.shape[1] != folder.top_k:
        raise FileError(
            f"{where} are {picks.dtype} {list(picks.shape)}, expected whole numbers [tokens, {folder.top_k}]"
        )
    if picks.size and (int(picks.max()) >= folder.experts or int(picks.min()) < -1):
        bad = (picks >= folder.experts) | (picks < -1)
        token, place = (int(at) for at in np.unravel_index(int(bad.argmax()), bad.shape))
        raise FileError(
            f"{where}[{token}][{place}] is {picks[token, place]}, expected an expert, 0..{folder.experts - 1}, or -1"
        )
    return picks.astype(np.int64)
