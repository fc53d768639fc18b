"""TensorRT-LLM's expert statistics: a folder that a run with ``EXPERT_STATISTIC_ITER_RANGE`` leaves behind.

``meta_info.json``: num_experts, num_experts_per_token; ep_size where the run wrote dispatch data.
``rank{r}.safetensors``: key "{iteration}_{layer}" -> whole numbers [experts], the tokens of this rank by logical expert.
``rank{r}_raw.safetensors`` or ``token_selected_experts_rank{r}.safetensors``: the same keys -> [tokens, top_k], the picks themselves.
``rank{r}_numtokens.json``: the same keys -> tokens. ``cooccurrence_rank{r}.safetensors`` follows from the picks and is not read.
Layers are those of the model. One iteration is one slice; the counts of all ranks are added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Format, Layers, Note, Sequence, TraceFile
from eplb.formats.files import in_file, tell
from eplb.formats.layers import layers_of
from eplb.formats.model_rows import check_left_out, listed
from eplb.formats.picks import RouteSample, add_picks
from eplb.formats.slicing import CountSlice, slices_of_counts
from eplb.formats.trtllm_folder import META, Folder, counted, opened_folder, picked
from placement import LoadTrace, Routes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.formats.facts import ReadOptions

NAME = "trtllm-statistics"


def recognises(path: Path) -> bool:
    """Whether a folder holds the meta file and a rank's file. Never raises."""
    try:
        return (path / META).is_file() and any(path.glob("*rank*.safetensors"))
    except OSError:
        return False


def read_trace(path: Path, options: ReadOptions) -> TraceFile:
    """Read a folder of statistics: one slice an iteration, with the load by source rank, and routes where picks were kept.

    Raises:
        FileError: names the file, the key, the value and what was expected; a missing rank, iteration or layer too.
    """
    folder = opened_folder(path, options)
    rows = _rows(folder, options.layers)
    totals = _Totals(np.zeros((len(folder.ranks), len(rows.numbers), folder.experts), dtype=np.int64))
    with in_file(path):
        slices = slices_of_counts(_slices(folder, rows.numbers, totals, options), options)
        routes, lost = _routes(folder, rows.numbers, options)
    trace = slices.trace
    batch = (
        totals.batch_tokens
        if len(totals.batch_tokens) == trace.slices and min(totals.batch_tokens) > 0
        else None
    )
    return TraceFile(
        LoadTrace(
            trace.tokens,
            steps_per_slice=trace.steps_per_slice,
            routes=routes,
            source_tokens=totals.sources,
            batch_tokens=batch,
        ),
        rows.layers,
        slices.slices_from.replace("the file's own", "one iteration each"),
        NAME,
        notes=(*folder.notes, *rows.notes, *_notes(folder, totals), *lost, *slices.notes),
    )


def read_sequences(path: Path, options: ReadOptions) -> Iterator[Sequence]:
    """The picks, one sequence for the tokens of one rank in one iteration: the requests are not named.

    Raises:
        FileError: the folder holds counts only, or see ``read_trace``.
    """
    folder = opened_folder(path, options)
    rows = _rows(folder, options.layers)
    if not folder.picks:
        raise FileError(
            f"{path}: holds counts, not picks: no rank*_raw.safetensors and no token_selected_experts_rank*.safetensors"
        )
    for at, iteration in enumerate(folder.iterations):
        tell(options, at, len(folder.iterations))
        for rank in folder.ranks:
            picks = _batch(folder, rank, iteration, rows.numbers)
            if picks is None:
                raise FileError(
                    f"{path}: rank {rank}, iteration {iteration}: layers hold different numbers of tokens, so tokens cannot be followed"
                )
            if len(picks):
                yield Sequence(picks)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The layers that are kept. ``numbers``: model layers in rising order."""

    numbers: tuple[int, ...]
    layers: Layers
    notes: tuple[Note, ...]


def _rows(folder: Folder, given: Layers) -> _Rows:
    """The model's own layers: draft layers (given, or beyond ``hidden_layers``) are left out."""
    drafts = tuple(
        number
        for number in folder.layers
        if number in given.draft_layers or (given.hidden_layers is not None and number >= given.hidden_layers)
    )
    own = tuple(number for number in folder.layers if number not in drafts)
    if given.model_layer is not None:
        missing = sorted(set(given.model_layer) - set(own))
        if missing:
            raise FileError(
                f"{folder.path}: has no counts of layers {listed(missing)}; it counts {listed(folder.layers)}: mend --moe-layers"
            )
        own = tuple(sorted(given.model_layer))
    if not own:
        raise FileError(
            f"{folder.path}: counts layers {listed(folder.layers)}, none of them of the model itself: mend --hidden-layers"
        )
    notes = (
        Note(
            "draft_layers",
            f"layers {listed(drafts)} are counted but belong to a draft model, and are left out",
        ),
    )
    with in_file(folder.path):
        check_left_out(set(folder.layers) - set(own) - set(drafts))
        layers = layers_of(
            Layers(own, None, drafts), Layers(None, given.hidden_layers, given.draft_layers), len(own)
        )
    return _Rows(own, layers, notes if drafts else ())


class _Totals:
    """What adds up beside the slices. ``sources``: int64 [ranks, layers, experts]. ``batch_tokens``: by slice."""

    def __init__(self, sources: NDArray[np.int64]) -> None:
        self.sources = sources
        self.batch_tokens: list[float] = []
        self.idle = 0


def _slices(
    folder: Folder, numbers: tuple[int, ...], totals: _Totals, options: ReadOptions
) -> Iterator[CountSlice]:
    for at, iteration in enumerate(folder.iterations):
        tell(options, at, len(folder.iterations))
        total = np.zeros(totals.sources.shape[1:], dtype=np.int64)
        for place, rank in enumerate(folder.ranks):
            part = np.stack([counted(folder, rank, iteration, number) for number in numbers])
            totals.sources[place] += part
            total += part
        if not total.any():
            totals.idle += 1
            continue
        totals.batch_tokens.append(int(total.sum()) / len(numbers) / folder.top_k)
        yield CountSlice(total, steps=1)


def _batch(folder: Folder, rank: int, iteration: int, numbers: tuple[int, ...]) -> NDArray[np.int64] | None:
    """Picks [tokens, layers, top_k] of one rank in one iteration; None where layers hold different numbers of tokens."""
    parts = [picked(folder, rank, iteration, number) for number in numbers]
    if any(len(part) != len(parts[0]) for part in parts):
        return None
    return np.stack(parts, axis=1)


def _adds_up(
    folder: Folder, rank: int, iteration: int, numbers: tuple[int, ...], batch: NDArray[np.int64]
) -> bool:
    """Whether picks [tokens, layers, top_k] of one rank make the counts that the run wrote beside them."""
    if not folder.counts:
        return True
    made = np.zeros((len(numbers), folder.experts), dtype=np.int64)
    add_picks(made, batch)
    return all(
        np.array_equal(made[at], counted(folder, rank, iteration, number))
        for at, number in enumerate(numbers)
    )


def _routes(
    folder: Folder, numbers: tuple[int, ...], options: ReadOptions
) -> tuple[Routes | None, tuple[Note, ...]]:
    """Sampled sets with the rank they started on; an iteration counts as one request, because requests are not named."""
    if not folder.picks or not options.most_routes:
        return None, ()
    sample, odd, other, ranks = RouteSample(options.most_routes), 0, 0, len(folder.ranks)
    for at, iteration in enumerate(folder.iterations):
        for place, rank in enumerate(folder.ranks):
            batch = _batch(folder, rank, iteration, numbers)
            if batch is None:
                odd += 1
            else:
                other += not _adds_up(folder, rank, iteration, numbers, batch)
                sample.add(batch, at * ranks + place)
    found = sample.routes()
    uneven = Note(
        "uneven_layers", f"{odd} batches hold different numbers of tokens by layer and give no routes"
    )
    foreign = Note(
        "picks_differ",
        f"the picks of {other} batches do not add up to their counts: loads are those of the counts, routes those of the picks",
        "if the files are of two runs, keep one run a folder",
    )
    notes = (*((uneven,) if odd else ()), *((foreign,) if other else ()), *sample.notes())
    if found is None:
        return None, notes
    return Routes(found.experts, found.requests // ranks, found.requests % ranks), notes


def _notes(folder: Folder, totals: _Totals) -> Iterator[Note]:
    if totals.idle:
        yield Note("idle_passes", f"{totals.idle} iterations had no tokens on any rank and are left out")
    if folder.picks:
        yield Note("requests_unknown", "the picks do not name requests: routes are held out by iteration")


FORMATS = (
    Format(
        NAME,
        "TensorRT-LLM expert statistics (folder with meta_info.json)",
        recognises,
        read_trace=read_trace,
        read_sequences=read_sequences,
    ),
)
