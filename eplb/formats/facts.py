"""What every reader hands on and every writer takes, whatever the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.formats.neutral import NeutralMap
    from placement import LoadTrace

SEQUENCES_PER_SLICE = 4
"""Sequences of one domain that make one slice, unless said otherwise."""

PHASES = ("prefill", "decode", "mixed")


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a reader assumed, left out or finds odd: a code, a sentence, and what to do about it ('' = nothing)."""

    code: str
    sentence: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Layers:
    """Which layers of the model the rows are, where it is known.

    ``model_layer``: the model's layer number of every row, None = the source does not say. ``hidden_layers``: layers of the
    model, dense ones included, draft ones not; None = the source does not say. ``draft_layers``: numbers of the layers of a draft
    model (multi-token prediction) that have no row, but that an engine's map file must name.
    """

    model_layer: tuple[int, ...] | None = None
    hidden_layers: int | None = None
    draft_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the person who reads a trace says of it.

    ``experts``: experts of the model, None = what the file names. ``layers``: overrides what the file says, field by field.
    ``phase``: keep only slices of this phase, None = all. ``sequences_per_slice``: see ``slicing``.
    ``top_k``: experts that a token picks in a layer, for files that hold picks without their shape; None = worked out.
    ``most_routes``: most tokens whose sets of experts are kept for co-activation, chosen evenly over the whole file; 0 = none.
    ``progress``: told (bytes or records done, all of them or None) now and then on long work.
    """

    experts: int | None = None
    layers: Layers = Layers()
    phase: str | None = None
    sequences_per_slice: int = SEQUENCES_PER_SLICE
    most_routes: int = 0
    top_k: int | None = None
    progress: Callable[[int, int | None], None] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """The picks of one request: whole numbers [tokens, layers, top_k], logical experts, -1 = none.

    ``domain``: what it is about, '' = unknown. ``phase``: one of ``PHASES`` or None = unknown. ``synthetic``: what made it up, as
    the file says, '' = it was recorded.
    """

    picks: NDArray[Any]
    domain: str = ""
    phase: str | None = None
    synthetic: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class TraceFile:
    """A trace as read, with what is known of where it comes from.

    ``trace``: tokens int64 [slices, layers, experts], with routes where the file holds picks and ``most_routes`` asks for them.
    ``slices_from``: how the slices were made, as words. ``format``: name of the format. ``phase``, ``domain``: of every slice,
    '' = unknown for that slice, None = for all. ``live_map``: the map under which the counts were taken, where the file holds it.
    ``synthetic``: what made the trace up, as the file says, '' = it was recorded.
    """

    trace: LoadTrace
    layers: Layers
    slices_from: str
    format: str
    phase: tuple[str, ...] | None = None
    domain: tuple[str, ...] | None = None
    notes: tuple[Note, ...] = ()
    live_map: NeutralMap | None = None
    synthetic: str = ""


@dataclass(frozen=True, slots=True)
class MapFacts:
    """What a map file's own format may leave out and its reader must be told; None = not given."""

    ranks: int | None = None
    nodes: int | None = None
    experts: int | None = None
    layers: Layers = Layers()


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer wrote and how to start the engine with it.

    ``files``: paths written, the map first. ``start_with``: flags, environment or configuration lines, exact, one a line.
    ``notes``: what the engine would otherwise get wrong silently.
    """

    files: tuple[Path, ...]
    start_with: tuple[str, ...]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """One file format: what it is called, and what can be done with it (None = cannot).

    ``recognises``: cheap look at a path (a file's head, a folder's names); never raises. ``suffix``: of a map file it writes.
    ``read_sequences``: picks request by request, in file order, for what needs more than counts.
    ``write_sequences``: writes such requests, given what is known of their layers and the experts of the
    model. ``write_trace``: writes the slices. ``check_map``: raises what ``write_map`` would raise of the map itself and its name,
    without writing; None = any map can be written.
    All readers and writers raise ``eplb.errors.FileError`` and nothing else; see ``files`` for the rules of reading.
    """

    name: str
    title: str
    recognises: Callable[[Path], bool]
    read_trace: Callable[[Path, ReadOptions], TraceFile] | None = None
    read_sequences: Callable[[Path, ReadOptions], Iterator[Sequence]] | None = None
    read_map: Callable[[Path, MapFacts], NeutralMap] | None = None
    write_map: Callable[[Path, NeutralMap], Written] | None = None
    check_map: Callable[[Path, NeutralMap], object] | None = None
    write_trace: Callable[[Path, TraceFile], Written] | None = None
    write_sequences: Callable[[Path, Iterable[Sequence], Layers, int | None], Written] | None = None
    suffix: str = ".json"
    aliases: tuple[str, ...] = field(default=())
