"""How recorded requests, or recorded counts, become the slices of a trace, in memory that does not grow with the file.

Requests: those of one domain and phase, in the order of the file, in groups of ``sequences_per_slice``; a last smaller group is
left out unless it is the only one of its kind. Requests are never cut. Kinds stand in the order of their domains, then phases.
Counts: every slice is the file's own, in its order.
In both, when the slices would take more than ``MOST_COUNT_BYTES``, neighbours of one kind are added up two by two, and a note
says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import PHASES, Layers, Note, TraceFile
from eplb.formats.layers import layers_of
from eplb.formats.picks import RouteSample, add_picks, check_picks
from placement import LoadTrace, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from eplb.formats.facts import ReadOptions, Sequence

MOST_COUNT_BYTES = 2**27
"""Memory for the counts of a trace; what is made of them takes several times as much."""

Kind = tuple[str, str]
"""Domain and phase, '' = unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class CountSlice:
    """One slice as a file counts it: whole numbers [layers, experts]; ``steps`` that it sums, None = unknown."""

    counts: NDArray[Any]
    domain: str = ""
    phase: str | None = None
    steps: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """A trace and what its slices are; the fields are those of ``TraceFile``. '' in ``phase`` or ``domain`` = unknown."""

    trace: LoadTrace
    phase: tuple[str, ...] | None
    domain: tuple[str, ...] | None
    slices_from: str
    notes: tuple[Note, ...]

    def as_file(self, name: str, found: Layers, options: ReadOptions) -> TraceFile:
        """The trace file of the format ``name`` that these slices were read from; ``found``: what it says of its layers.

        Raises:
            FileError: the layers do not fit.
        """
        return TraceFile(
            trace=self.trace,
            layers=layers_of(found, options.layers, self.trace.layers),
            slices_from=self.slices_from,
            format=name,
            phase=self.phase,
            domain=self.domain,
            notes=self.notes,
        )


@dataclass(slots=True, eq=False)
class _Slice:
    first: int
    counts: NDArray[np.int64]
    members: int
    steps: int | None

    def add(self, other: _Slice) -> None:
        self.counts = _wider(self.counts, other.counts.shape[1])
        self.counts[:, : other.counts.shape[1]] += other.counts
        self.members += other.members
        self.steps = None if self.steps is None or other.steps is None else self.steps + other.steps


class _Slices:
    """Slices by kind as they grow; the last of a kind is full when it has ``group`` members."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.kinds: dict[Kind, list[_Slice]] = {}
        self._bytes = 0

    def open(self, kind: Kind, at: int, shape: tuple[int, int]) -> _Slice:
        """The slice of this kind that takes the next member."""
        found = self.kinds.setdefault(kind, [])
        if not found or found[-1].members >= self.group:
            found.append(_Slice(at, np.zeros(shape, dtype=np.int64), 0, 0))
            self._bytes += found[-1].counts.nbytes
            if self._bytes > MOST_COUNT_BYTES:
                self._halve()
        last = found[-1]
        if last.counts.shape[1] < shape[1]:
            self._bytes -= last.counts.nbytes
            last.counts = _wider(last.counts, shape[1])
            self._bytes += last.counts.nbytes
        return last

    def _halve(self) -> None:
        for found in self.kinds.values():
            for one, two in zip(found[::2], found[1::2], strict=False):
                one.add(two)
            del found[1::2]
        self.group *= 2
        self._bytes = sum(each.counts.nbytes for found in self.kinds.values() for each in found)
        if self._bytes > MOST_COUNT_BYTES:
            raise FileError(
                f"one slice for each of {len(self.kinds)} domains and phases takes {self._bytes:,} bytes, more than "
                f"{MOST_COUNT_BYTES:,}: name fewer domains"
            )

    def without_leftovers(self) -> int:
        """Drop the last smaller group of every kind that has a full one; returns the members dropped."""
        dropped = 0
        for found in self.kinds.values():
            if len(found) > 1 and found[-1].members < self.group:
                dropped += found.pop().members
        return dropped


def slices_of(sequences: Iterable[Sequence], options: ReadOptions) -> Slices:
    """The slices of recorded requests, by the rule above; ids may be -1 = none.

    Raises:
        FileError: an id is out of range (names sequence, token, layer), shapes differ, or nothing is left.
    """
    if options.sequences_per_slice < 1:
        raise FileError(f"sequences per slice is {options.sequences_per_slice}, must be at least 1")
    table = _Slices(options.sequences_per_slice)
    routes = RouteSample(options.most_routes)
    phases: set[str] = set()
    shape: tuple[int, ...] = ()
    width = 0
    for at, sequence in enumerate(sequences):
        phases.add(_phase(sequence.phase))
        if not _wanted(sequence.phase, options) or not len(sequence.picks):
            continue
        shape = shape or sequence.picks.shape[1:]
        width = max(width, check_picks(sequence.picks, options.experts, shape, f"sequence {at}"))
        last = table.open((sequence.domain, sequence.phase or ""), at, (shape[0], width))
        add_picks(last.counts, sequence.picks)
        last.members += 1
        last.steps = None
        routes.add(sequence.picks, at)
    _check_phase(phases, bool(table.kinds), options)
    if not table.kinds:
        raise FileError("holds no sequence with a token")
    left_out = table.without_leftovers()
    return _finished(table, options, width, _by_kind, left_out=left_out, routes=routes)


def slices_of_counts(slices: Iterable[CountSlice], options: ReadOptions) -> Slices:
    """The slices that a file counts itself, in its order.

    Raises:
        FileError: a count is negative or not whole (names slice, layer, expert), shapes differ, or nothing is left.
    """
    table = _Slices(1)
    phases: set[str] = set()
    shape: tuple[int, ...] = ()
    for at, each in enumerate(slices):
        phases.add(_phase(each.phase))
        counts = whole_counts(each.counts, f"slice {at}")
        shape = shape or counts.shape
        _check_shape(counts.shape, shape, options.experts, at)
        if not _wanted(each.phase, options):
            continue
        last = table.open((each.domain, each.phase or ""), at, (shape[0], shape[1]))
        last.add(_Slice(at, counts, 1, each.steps))
    _check_phase(phases, bool(table.kinds), options)
    if not table.kinds:
        raise FileError("holds no slice")
    return _finished(table, options, shape[1], _by_place)


def whole_counts(raw: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Counts as int64 [layers, experts]; ``where`` starts the message.

    Raises:
        FileError: the shape is not that, or a count is negative, not whole or too large.
    """
    if raw.ndim != 2:
        raise FileError(f"{where}: counts have shape {list(raw.shape)}, expected [layers, experts]")
    try:
        counts: NDArray[np.int64] = LoadTrace(raw[None]).tokens[0]
    except TraceError as error:
        raise FileError(f"{where}: {str(error).replace('tokens[slice 0, ', 'counts[')}") from error
    return counts


def _wider(counts: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    missing = width - counts.shape[1]
    return counts if missing <= 0 else np.pad(counts, ((0, 0), (0, missing)))


def _phase(phase: str | None) -> str:
    if phase is not None and phase not in PHASES:
        raise FileError(f"phase is {phase!r}, expected one of {', '.join(PHASES)}")
    return phase or ""


def _wanted(phase: str | None, options: ReadOptions) -> bool:
    return options.phase is None or options.phase == phase


def _check_phase(phases: set[str], some: bool, options: ReadOptions) -> None:
    if options.phase is None or some or not phases:
        return
    named = ", ".join(sorted(phases - {""}))
    raise FileError(
        f"has nothing of phase {options.phase!r}: "
        + (f"it holds {named}" if named else "it does not say phases, so leave --phase out")
    )


def _check_shape(shape: tuple[int, ...], first: tuple[int, ...], experts: int | None, at: int) -> None:
    if shape != first:
        raise FileError(
            f"slice {at} counts {shape[0]} layers x {shape[1]} experts, the first {first[0]} x {first[1]}"
        )
    if experts is not None and shape[1] != experts:
        raise FileError(f"counts have {shape[1]} experts, asked for {experts}")


def _by_kind(table: _Slices) -> Iterator[tuple[Kind, _Slice]]:
    whole = all(domain.isascii() and domain.isdecimal() for domain, _ in table.kinds)

    def order(kind: Kind) -> tuple[int, str, str]:
        return (int(kind[0]) if whole else 0, kind[0], kind[1])

    for kind in sorted(table.kinds, key=order):
        for each in table.kinds[kind]:
            yield kind, each


def _by_place(table: _Slices) -> Iterator[tuple[Kind, _Slice]]:
    pairs = [(kind, each) for kind, found in table.kinds.items() for each in found]
    yield from sorted(pairs, key=lambda pair: pair[1].first)


def _finished(
    table: _Slices,
    options: ReadOptions,
    width: int,
    order: Callable[[_Slices], Iterator[tuple[Kind, _Slice]]],
    *,
    left_out: int = 0,
    routes: RouteSample | None = None,
) -> Slices:
    experts = width if options.experts is None else options.experts
    pairs = list(order(table))
    members = 1 if routes is None else options.sequences_per_slice
    table.kinds.clear()
    tokens = np.stack([_wider(each.counts, experts) for _, each in pairs])
    steps = [each.steps for _, each in pairs]
    kinds = [kind for kind, _ in pairs]
    del pairs
    known = [step for step in steps if step is not None]
    notes = _notes(table.group, members, left_out, routes)
    if routes is not None and options.experts is None:
        notes = (_guessed(experts), *notes)
    try:
        trace = LoadTrace(
            tokens,
            steps_per_slice=known if len(known) == len(steps) else None,
            routes=None if routes is None else routes.routes(),
        )
    except TraceError as error:
        raise FileError(str(error)) from error
    return Slices(
        trace,
        phase=_known([phase for _, phase in kinds]),
        domain=_known([domain for domain, _ in kinds]),
        slices_from=_words(table.group, members, kinds, sequences=routes is not None),
        notes=notes,
    )


def _known(names: list[str]) -> tuple[str, ...] | None:
    return tuple(names) if any(names) else None


def _words(group: int, members: int, kinds: list[Kind], *, sequences: bool) -> str:
    if not sequences:
        return "the file's own" if group == members else f"the file's own, added up {group} by {group}"
    domains = len({domain for domain, _ in kinds})
    phases = len({phase for _, phase in kinds})
    return (
        f"groups of {group} sequences"
        + (f", each of one of {domains} domains" if domains > 1 else "")
        + (f", each of one of {phases} phases" if phases > 1 else "")
    )


def _guessed(experts: int) -> Note:
    return Note(
        "experts_from_ids",
        f"nothing says how many experts the model has: {experts} are taken, up to the highest that was picked",
        "if the last ones were never picked, give --experts: a map for too few has the wrong redundancy",
    )


def _notes(group: int, members: int, left_out: int, routes: RouteSample | None) -> tuple[Note, ...]:
    notes = []
    if group != members:
        notes.append(
            Note(
                "slices_added_up",
                f"the slices take more than {MOST_COUNT_BYTES:,} bytes, so {group // members} at a time were added up to one",
                "fewer and larger slices hide peaks: read a part of the file for a finer view",
            )
        )
    if left_out:
        notes.append(
            Note(
                "left_out",
                f"{left_out} last sequences of their domain and phase fill no slice of {group} and are left out",
                "a smaller --sequences-per-slice keeps more of them",
            )
        )
    return (*notes, *(() if routes is None else routes.notes()))
