"""SGLang per_pass recordings: slots counted pass by pass and rank by rank, gathered over ranks and turned into experts.

A rank shows either the tokens that started on it, over all slots (source view), or what its own slots received (destination
view); the sum over ranks is the same load. Slot ids are turned into experts with the map at the time of the dump.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Note, TraceFile
from eplb.formats.files import tell
from eplb.formats.model_rows import ModelRows, listed, moe_rows
from eplb.formats.neutral import NeutralMap
from eplb.formats.plain_values import shown, whole
from eplb.formats.sglang_files import Document, array
from eplb.formats.slicing import CountSlice, slices_of_counts
from placement import LoadTrace, Placement
from placement.routes import MOST_EXPERTS
from placement.topology import MOST_SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from eplb.formats.facts import ReadOptions

MOST_COUNT = 2**40
"""Tokens of one slot in one pass, far beyond any: sums over slots, ranks and passes still fit int64."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One pass of one rank. ``where``: its place, for messages. ``experts``: int64 [layers, slots], the map of its file."""

    where: str
    content: dict[Any, Any]
    forward_pass: int
    rank: int
    experts: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """The records of all files, pass by pass, ranks in order. ``experts``: of the model. ``maps``: by file."""

    passes: dict[int, list[Record]]
    ranks: tuple[int, ...]
    experts: int
    maps: tuple[NDArray[np.int64], ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and slots."""
        return self.maps[0].shape[0], self.maps[0].shape[1]


def gathered(found: list[Document], options: ReadOptions) -> Recording:
    """Bring the records of all files together.

    Raises:
        FileError: a record lacks a field, a pass of a rank stands twice, or the maps do not fit each other.
    """
    maps = tuple(_map(each, options) for each in found)
    for each, one in zip(found, maps, strict=True):
        if one.shape != maps[0].shape:
            raise FileError(
                f"{each.path}: its map is {list(one.shape)}, in {found[0].path.name} {list(maps[0].shape)}"
            )
    experts = options.experts or 1 + max(int(one.max()) for one in maps)
    passes: dict[int, list[Record]] = {}
    seen: dict[tuple[int, int, str], str] = {}
    for each, one in zip(found, maps, strict=True):
        for record, key in _records(each, one):
            place = (record.forward_pass, record.rank, key)
            if place in seen:
                raise FileError(
                    f"{record.where}: pass {record.forward_pass} of rank {record.rank} stands in {seen[place]} too: "
                    "keep one run of the server a folder"
                )
            seen[place] = record.where
            passes.setdefault(record.forward_pass, []).append(record)
    ordered = {number: sorted(passes[number], key=lambda each: each.rank) for number in sorted(passes)}
    ranks = tuple(sorted({record.rank for records in ordered.values() for record in records}))
    return Recording(ordered, ranks, experts, maps)


def _map(found: Document, options: ReadOptions) -> NDArray[np.int64]:
    where = f"{found.path}: last_physical_to_logical_map"
    table = array(found.content["last_physical_to_logical_map"], ("layers", "slots"), where)
    most = MOST_EXPERTS if options.experts is None else options.experts
    bad = (table < 0) | (table >= most)
    if bad.any():
        layer, slot = (int(at) for at in np.unravel_index(int(bad.argmax()), bad.shape))
        raise FileError(
            f"{where}[{layer}][{slot}] is {table[layer, slot]}, expected an expert, 0..{most - 1}"
        )
    return table.astype(np.int64)


def _records(found: Document, experts: NDArray[np.int64]) -> Iterator[tuple[Record, str]]:
    records = found.content.get("records")
    if not isinstance(records, list):
        raise FileError(f"{found.path}: records is {type(records).__name__}, expected a list")
    for at, content in enumerate(records):
        where = f"{found.path}: records[{at}]"
        if not isinstance(content, dict):
            raise FileError(f"{where} is {type(content).__name__}, expected a dictionary")
        forward_pass = whole(content.get("forward_pass_id"), f"{where}.forward_pass_id")
        rank = whole(content.get("rank"), f"{where}.rank", most=MOST_SLOTS - 1)
        key = content.get("gatherer_key")
        if not isinstance(key, str):
            raise FileError(f"{where}.gatherer_key is {shown(key)}, expected a name such as 'primary'")
        yield Record(where, content, forward_pass, rank, experts), key


def read_passes(found: list[Document], options: ReadOptions, name: str) -> TraceFile:
    """A per_pass recording as a trace: one slice a pass that all ranks hold and in which one of them had tokens.

    Raises:
        FileError: see ``gathered``; or a rank's file is missing where ranks count only their own slots.
    """
    recording = gathered(found, options)
    whole_passes = {
        number: records
        for number, records in recording.passes.items()
        if {record.rank for record in records} == set(recording.ranks)
    }
    if not whole_passes:
        raise FileError(
            f"no pass is held by all ranks {listed(recording.ranks)}: put dumps of the same time in one folder"
        )
    survey = _survey(recording, whole_passes)
    missing = sorted(set(range(recording.ranks[-1] + 1)) - set(recording.ranks))
    if survey.destination and missing:
        raise FileError(
            f"ranks {listed(missing)} have no file, and every rank counts only its own slots: their experts would seem idle; "
            "add the files of all ranks"
        )
    chosen = moe_rows(survey.used, options.layers)
    totals = _Totals(
        chosen.rows, np.zeros((len(recording.ranks), len(chosen.rows), recording.experts), dtype=np.int64)
    )
    slices = slices_of_counts(_slices(recording, whole_passes, survey, totals, options), options)
    trace = slices.trace
    if not (missing or survey.destination or survey.copies or len(recording.ranks) == 1):
        trace = LoadTrace(trace.tokens, steps_per_slice=trace.steps_per_slice, source_tokens=totals.sources)
    return TraceFile(
        trace,
        chosen.layers,
        slices.slices_from.replace("the file's own", "one forward pass each"),
        name,
        notes=(
            *chosen.notes,
            *_notes(recording, survey, missing, len(recording.passes) - len(whole_passes), totals.idle),
            *slices.notes,
        ),
        live_map=live_map(recording, chosen, missing),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Survey:
    """What a first look over all passes shows. ``used``: bool [layers]."""

    used: NDArray[np.bool_]
    destination: bool
    copies: bool


@dataclass(slots=True, eq=False)
class _Totals:
    """What adds up while the passes are gone through. ``sources``: int64 [ranks, layers, experts], by rank that counted.

    ``rows``: the MoE layers.
    """

    rows: tuple[int, ...]
    sources: NDArray[np.int64]
    idle: int = 0


def _counts(record: Record, shape: tuple[int, int]) -> NDArray[np.int64]:
    where = f"{record.where}.global_physical_count"
    counts = array(record.content.get("global_physical_count"), ("layers", "slots"), where)
    if counts.shape != shape:
        raise FileError(f"{where} is {list(counts.shape)}, the map {list(shape)}")
    bad = (counts < 0) | (counts > MOST_COUNT)
    if bad.any():
        layer, slot = (int(at) for at in np.unravel_index(int(bad.argmax()), shape))
        raise FileError(f"{where}[{layer}][{slot}] is {counts[layer, slot]}, expected 0..{MOST_COUNT} tokens")
    return counts.astype(np.int64)


def _survey(recording: Recording, passes: dict[int, list[Record]]) -> _Survey:
    layers, slots = recording.shape
    used = np.zeros(layers, dtype=bool)
    touched = {rank: np.zeros(slots, dtype=bool) for rank in recording.ranks}
    copies = len(recording.ranks) > 1
    for records in passes.values():
        tables = [_counts(record, recording.shape) for record in records]
        for record, table in zip(records, tables, strict=True):
            used |= table.any(axis=1)
            touched[record.rank] |= table.any(axis=0)
        copies = copies and len(records) == len(recording.ranks) and _equal(tables)
    return _Survey(used, not copies and _own_slots_only(touched, slots), copies)


def _equal(tables: list[NDArray[Any]]) -> bool:
    return all(np.array_equal(tables[0], table) for table in tables[1:])


def _own_slots_only(touched: dict[int, NDArray[np.bool_]], slots: int) -> bool:
    """Whether some even cut of the slots over ranks explains every count; one rank alone proves nothing."""
    if len(touched) == 1:
        return False
    bounds = {rank: np.flatnonzero(found)[[0, -1]] for rank, found in touched.items() if found.any()}
    for ranks in range(max(touched) + 1, slots + 1):
        width = slots // ranks
        if slots % ranks == 0 and all(
            low >= rank * width and high < (rank + 1) * width for rank, (low, high) in bounds.items()
        ):
            return True
    return False


def _slices(
    recording: Recording,
    passes: dict[int, list[Record]],
    survey: _Survey,
    totals: _Totals,
    options: ReadOptions,
) -> Iterator[CountSlice]:
    rows = list(totals.rows)
    for done, records in enumerate(passes.values()):
        tell(options, done, len(passes))
        total = np.zeros(totals.sources.shape[1:], dtype=np.int64)
        for record in records[:1] if survey.copies else records:
            counts = _counts(record, recording.shape)[rows]
            part = np.zeros_like(total)
            np.add.at(part, (np.arange(len(rows))[:, None], record.experts[rows]), counts)
            totals.sources[recording.ranks.index(record.rank)] += part
            total += part
        if total.any():
            yield CountSlice(total, steps=1)
        else:
            totals.idle += 1


def _notes(
    recording: Recording, survey: _Survey, missing: list[int], uneven: int, idle: int
) -> Iterator[Note]:
    yield from map_notes(recording)
    if survey.copies:
        yield Note(
            "copies",
            f"all {len(recording.ranks)} ranks hold the same counts, as without an all-to-all backend; they are taken once",
        )
    else:
        seen = "the slots of their own" if survey.destination else "the tokens that started on them"
        yield Note(
            "view", f"ranks {listed(recording.ranks)} count {seen}; their sum is the load of the experts"
        )
    if missing:
        yield Note(
            "missing_ranks",
            f"ranks {listed(missing)} have no file: all loads are too low",
            "add their files, or take the counts for a sample",
        )
    if uneven:
        yield Note("uneven_passes", f"{uneven} passes are not held by every rank and are left out")
    if idle:
        yield Note("idle_passes", f"{idle} passes had no tokens on any rank and are left out")


def map_notes(recording: Recording) -> Iterator[Note]:
    """What to know about slot ids that were turned into experts."""
    if all(np.array_equal(recording.maps[0], one) for one in recording.maps[1:]):
        yield Note(
            "last_map",
            "slots were turned into experts with the map at the time of the dump",
            "if experts were moved while it recorded, earlier passes are wrong: record again without moves",
        )
    else:
        yield Note(
            "map_changed",
            "the files hold different maps: experts were moved while they were recorded, so passes before a move are wrong",
            "record again without moves",
        )


def live_map(recording: Recording, chosen: ModelRows, missing: list[int]) -> NeutralMap | None:
    """The map of the recording, where the files show how many ranks there are; nodes are not known and taken for one."""
    ranks, slots = len(recording.ranks), recording.shape[1]
    same = all(np.array_equal(recording.maps[0], one) for one in recording.maps[1:])
    if missing or ranks == 1 or slots % ranks or not same:
        return None
    return NeutralMap(
        ranks=ranks,
        nodes=1,
        slots_per_rank=slots // ranks,
        experts=recording.experts,
        model_layer=chosen.rows,
        hidden_layers=chosen.layers.hidden_layers,
        draft_layers=chosen.layers.draft_layers,
        placement=Placement(recording.maps[0][list(chosen.rows)]),
    )
