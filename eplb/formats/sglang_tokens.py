"""SGLang per_token recordings: the slots of every token, as requests with their phases.

A prefill pass is cut into its requests; a decode pass holds one token of each of many requests, which it does not name, and is
taken for one sequence. Padding (-1 in every layer) and idle passes are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Note, Sequence, TraceFile
from eplb.formats.files import tell
from eplb.formats.model_rows import ModelRows, moe_rows
from eplb.formats.plain_values import shown, whole
from eplb.formats.sglang_files import Document, array
from eplb.formats.sglang_passes import Record, Recording, gathered, live_map, map_notes
from eplb.formats.slicing import slices_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from eplb.formats.facts import ReadOptions

PHASES = {1: "prefill", 2: "decode", 3: "mixed", 5: "decode"}
"""By forward mode: EXTEND, DECODE, MIXED, TARGET_VERIFY."""
IDLE = 4
CUT = {1, 3}
"""Modes whose ``extend_seq_lens`` name the requests of the pass."""
MOST_MODES = 64


@dataclass(slots=True)
class _Left:
    """What was left out on the way, as counts."""

    idle: int = 0
    other: int = 0
    copies: int = 0
    padding: int = 0
    decode: int = 0


def read_tokens(found: list[Document], options: ReadOptions, name: str) -> TraceFile:
    """A per_token recording as a trace of grouped requests.

    Raises:
        FileError: names the record, the value and what was expected.
    """
    recording = gathered(found, options)
    used, places = _used(recording)
    chosen = moe_rows(used, options.layers)
    left = _Left()
    slices = slices_of(
        _sequences(recording, chosen, places, options, left), replace(options, experts=recording.experts)
    )
    missing = sorted(set(range(recording.ranks[-1] + 1)) - set(recording.ranks))
    return TraceFile(
        slices.trace,
        chosen.layers,
        slices.slices_from,
        name,
        phase=slices.phase,
        domain=slices.domain,
        notes=(*chosen.notes, *map_notes(recording), *_notes(left), *slices.notes),
        live_map=live_map(recording, chosen, missing),
    )


def token_sequences(found: list[Document], options: ReadOptions) -> Iterator[Sequence]:
    """The requests of a per_token recording, in the order of passes and ranks.

    Raises:
        FileError: see ``read_tokens``.
    """
    recording = gathered(found, options)
    used, places = _used(recording)
    chosen = moe_rows(used, options.layers)
    for sequence in _sequences(recording, chosen, places, options, _Left()):
        if options.phase in {None, sequence.phase}:
            yield sequence


def _used(recording: Recording) -> tuple[NDArray[np.bool_], int]:
    """Which layers hold picks, bool [layers], and how many places of a token do: the recorder pads top-k to a fixed width."""
    used, places = np.zeros(recording.shape[0], dtype=bool), 1
    for records in recording.passes.values():
        for record in records:
            filled = _slots(record, recording) >= 0
            used |= filled.any(axis=(1, 2))
            held = np.flatnonzero(filled.any(axis=(0, 1)))
            places = max(places, 1 + int(held[-1]) if len(held) else 1)
    return used, places


def _slots(record: Record, recording: Recording) -> NDArray[Any]:
    """Slot ids [layers, tokens, places] of one pass, checked; no tokens is an array without any."""
    where = f"{record.where}.topk_ids_of_layer"
    value = record.content.get("topk_ids_of_layer")
    layers, slots = recording.shape
    shape = tuple(getattr(value, "shape", ()))
    if len(shape) == 3 and shape[1] == 0:
        return np.full((layers, 0, 1), -1, dtype=np.int32)
    ids = array(value, ("layers", "tokens", "places"), where)
    tokens = record.content.get("input_ids")
    if ids.shape[0] != layers or not isinstance(tokens, list) or len(tokens) != ids.shape[1]:
        count = len(tokens) if isinstance(tokens, list) else type(tokens).__name__
        raise FileError(
            f"{where} is {list(ids.shape)}, the map has {layers} layers and input_ids {count} tokens"
        )
    if int(ids.max()) >= slots or int(ids.min()) < -1:
        bad = (ids >= slots) | (ids < -1)
        layer, token, place = (int(at) for at in np.unravel_index(int(bad.argmax()), bad.shape))
        raise FileError(
            f"{where}[{layer}][{token}][{place}] is {ids[layer, token, place]}, expected a slot, 0..{slots - 1}, or -1: "
            "record with shared-expert fusion off"
        )
    return ids


def _sequences(
    recording: Recording, chosen: ModelRows, places: int, options: ReadOptions, left: _Left
) -> Iterator[Sequence]:
    rows = list(chosen.rows)
    for done, records in enumerate(recording.passes.values()):
        tell(options, done, len(recording.passes))
        taken: list[tuple[Record, NDArray[Any]]] = []
        for record in records:
            mode = whole(record.content.get("forward_mode"), f"{record.where}.forward_mode", 1, MOST_MODES)
            if mode not in PHASES:
                left.idle += mode == IDLE
                left.other += mode != IDLE
                continue
            ids = _slots(record, recording)
            if any(_is_copy(record, ids, other, others) for other, others in taken):
                left.copies += 1
                continue
            taken.append((record, ids))
            left.decode += mode not in CUT
            yield from _requests(record, _picks(record, ids[..., :places], rows), mode, left)


def _is_copy(one: Record, ids: NDArray[Any], other: Record, others: NDArray[Any]) -> bool:
    """Ranks that hold the same tokens at the same positions in the same slots saw one batch."""
    same = all(one.content.get(key) == other.content.get(key) for key in ("input_ids", "positions"))
    return same and np.array_equal(ids, others)


def _picks(record: Record, ids: NDArray[Any], rows: list[int]) -> NDArray[np.int64]:
    """Experts [tokens, layers, places]; -1 = none."""
    slots = ids[rows].astype(np.int64)
    flat = slots.reshape(len(rows), -1)
    experts = np.take_along_axis(record.experts[rows], np.maximum(flat, 0), axis=1).reshape(slots.shape)
    return np.where(slots >= 0, experts, -1).transpose(1, 0, 2)


def _requests(record: Record, picks: NDArray[np.int64], mode: int, left: _Left) -> Iterator[Sequence]:
    ends = [len(picks)]
    lengths = record.content.get("extend_seq_lens")
    if mode in CUT and lengths is not None:
        ends = _ends(lengths, len(picks), record.where)
    left.padding += len(picks) - ends[-1]
    start = 0
    for end in ends:
        part = picks[start:end]
        real = (part >= 0).any(axis=(1, 2))
        left.padding += int((~real).sum())
        if real.any():
            yield Sequence(part[real], phase=PHASES[mode])
        start = end


def _ends(lengths: Any, tokens: int, where: str) -> list[int]:
    if not isinstance(lengths, list) or not lengths:
        raise FileError(f"{where}.extend_seq_lens is {shown(lengths)}, expected the tokens of every request")
    ends, total = [], 0
    for at, length in enumerate(lengths):
        total += whole(length, f"{where}.extend_seq_lens[{at}]")
        ends.append(total)
    if total > tokens:
        raise FileError(f"{where}.extend_seq_lens sum to {total}, but the pass has {tokens} tokens")
    return ends


def _notes(left: _Left) -> Iterator[Note]:
    if left.decode:
        yield Note(
            "decode_passes",
            f"{left.decode} decode passes hold one token of each of many requests and do not name them: each is taken for one sequence",
        )
    if left.copies:
        yield Note(
            "copies",
            f"{left.copies} passes stand on a second rank with the same tokens, as without data-parallel attention; taken once",
        )
    if left.padding:
        yield Note("padding", f"{left.padding} padded tokens are left out")
    if left.idle:
        yield Note("idle_passes", f"{left.idle} idle passes are left out")
    if left.other:
        yield Note(
            "draft_passes", f"{left.other} passes of a draft model or of another kind of forward are left out"
        )
