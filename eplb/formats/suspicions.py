"""What looks wrong in a trace or a map, and what to do about each: known ways in which recorders and writers go astray."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from eplb.formats.facts import Note
from eplb.models import like, with_layers
from placement import violations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from eplb.formats.facts import TraceFile
    from eplb.formats.neutral import NeutralMap

TOTALS_DIFFER = 1e-3
"""Totals of two layers in one slice may differ by so much: some engines sample layers at slightly different moments."""
ALONE_SHARE = 0.5
"""An expert with more of its layer's picks than this has nearly everything, whatever top-k is."""
ALONE_OF_TOKENS = 0.95
"""With top-k known: an expert that this part of all tokens picks."""
FEW_CELLS = 16
"""Fewer different counts than this may share a divisor by chance."""
MANY_ZERO_CELLS = 0.5
SHOWN = 6


def trace_suspicions(file: TraceFile, top_k: int | None = None) -> tuple[Note, ...]:
    """Everything in a trace that a healthy recorder would not write; ``top_k``: picks of a token in one layer, None = unknown.

    The reader has refused what is plainly impossible, such as ids out of range, already.
    """
    tokens = file.trace.tokens
    totals = tokens.sum(axis=2)
    layer_totals = totals.sum(axis=0)
    if not layer_totals.any():
        return (Note("no_load", "every count is 0", "record while the engine serves requests"),)
    return tuple(_suspicions(file, totals, layer_totals, top_k))


def map_suspicions(neutral: NeutralMap) -> tuple[Note, ...]:
    """Every kind of rule that a map breaks, with the first place and how many there are."""
    by_code: dict[str, list[str]] = {}
    for found in violations(neutral.placement, neutral.topology(), neutral.experts):
        by_code.setdefault(found.code, []).append(found.sentence)
    return tuple(
        Note(
            code,
            sentences[0] + (f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""),
            _MAP_FIXES[code],
        )
        for code, sentences in by_code.items()
    )


_MAP_FIXES = {
    "wrong_width": "give the ranks and slots that the map was made for",
    "unknown_expert": "the map is for another model, or damaged: do not load it",
    "missing_expert": "no engine can serve this map: plan again, with it as --current",
    "twin": "the second copy is a wasted slot, and some engines refuse it: plan again, with it as --current",
    "dead_rank": "plan again without that rank",
    "split_group": "plan again with the same --groups and --nodes",
    "gap": "an empty slot is wasted memory: plan again, with it as --current",
}


def _suspicions(
    file: TraceFile, totals: NDArray[np.int64], layer_totals: NDArray[np.int64], top_k: int | None
) -> Iterator[Note]:
    tokens = file.trace.tokens
    loaded = np.flatnonzero(layer_totals)
    yield from _empty_layers(file, layer_totals, loaded)
    yield from _totals(file, totals[:, loaded], loaded)
    yield from _repeats(tokens, totals)
    yield from _alike(file, tokens, loaded)
    yield from _alone(file, tokens.sum(axis=0), loaded, top_k)
    yield from _multiples(tokens)
    yield from _running(tokens, totals)
    yield from _experts(file, tokens.sum(axis=0)[loaded], top_k)
    if file.trace.slices == 1:
        yield Note(
            "one_slice",
            "there is one slice only: which experts peak together cannot be seen, and no forecast can be checked",
            "record steps or intervals apart, or read fewer sequences a slice",
        )


def _empty_layers(file: TraceFile, totals: NDArray[np.int64], loaded: NDArray[np.int64]) -> Iterator[Note]:
    if len(loaded) == len(totals):
        return
    if len(loaded) == 1:
        yield Note(
            "one_layer",
            f"only {_rows(file, loaded)} of {len(totals)} has counts: {int(totals[loaded[0]]):,} picks",
            "the recorder does not know which layer it is in: mend its hook, and record again",
        )
        return
    empty = np.flatnonzero(totals == 0)
    yield Note(
        "empty_layers",
        f"{_rows(file, empty)} have no counts at all",
        "if they are dense layers, leave their rows out and say with --moe-layers which the others are; if not, they were not recorded",
    )


def _totals(file: TraceFile, totals: NDArray[np.int64], loaded: NDArray[np.int64]) -> Iterator[Note]:
    high, low = totals.max(axis=1), totals.min(axis=1)
    apart = high - low > TOTALS_DIFFER * high
    if not apart.any():
        return
    at = int(np.argmax((high - low) / np.maximum(high, 1)))
    most, least = int(totals[at].argmax()), int(totals[at].argmin())
    yield Note(
        "totals_differ",
        f"in {int(apart.sum())} of {len(totals)} slices the layers count different numbers of picks, worst in slice {at}: "
        f"{int(high[at]):,} in {_rows(file, loaded[[most]])}, {int(low[at]):,} in {_rows(file, loaded[[least]])}",
        "every token picks as many experts in each layer: look for dropped tokens, draft layers or a layer recorded twice",
    )


def _repeats(tokens: NDArray[np.int64], totals: NDArray[np.int64]) -> Iterator[Note]:
    idle = int((~totals.any(axis=1)).sum())
    if idle:
        yield Note(
            "idle_slices",
            f"{idle} of {len(tokens)} slices are empty",
            "leave idle passes out: they are no load, and averages over them mislead",
        )
    seen: set[bytes] = set()
    repeated = 0
    for each, total in zip(tokens, totals, strict=True):
        if not total.any():
            continue
        key = each.tobytes()
        repeated += key in seen
        seen.add(key)
    if repeated:
        yield Note(
            "repeated_slices",
            f"{repeated} of {len(tokens)} slices repeat an earlier one in every count",
            "dummy or warm-up passes, or one file read twice: leave them out",
        )


def _alike(file: TraceFile, tokens: NDArray[np.int64], loaded: NDArray[np.int64]) -> Iterator[Note]:
    first: dict[bytes, int] = {}
    pairs = []
    for layer in loaded.tolist():
        key = tokens[:, layer].tobytes()
        if key in first:
            pairs.append((first[key], layer))
        first.setdefault(key, layer)
    if pairs and file.trace.experts > 1:
        yield Note(
            "layers_alike",
            f"{len(pairs)} layers repeat another in every count, first {_rows(file, np.array(pairs[0]))}",
            "one layer was recorded under two numbers: mend the hook, and record again",
        )


def _alone(
    file: TraceFile, whole: NDArray[np.int64], loaded: NDArray[np.int64], top_k: int | None
) -> Iterator[Note]:
    least = ALONE_SHARE if top_k is None else min(ALONE_SHARE, ALONE_OF_TOKENS / top_k)
    if file.trace.experts <= 2 * (top_k or 1):
        return
    share = whole[loaded].max(axis=1) / whole[loaded].sum(axis=1)
    taken = loaded[share > least]
    if not len(taken):
        return
    worst = int(loaded[share.argmax()])
    part = f"{share.max():.0%} of the picks" + (
        f" = {min(1.0, share.max() * top_k):.0%} of the tokens" if top_k else ""
    )
    yield Note(
        "one_expert",
        f"in {_rows(file, taken)} one expert takes nearly everything, worst expert {int(whole[worst].argmax())} of "
        f"{_rows(file, np.array([worst]))} with {part}",
        "padding, or a router that was not loaded, looks like this: check a few real prompts; if it is true, that expert needs "
        "replicas, not moves",
    )


def _multiples(tokens: NDArray[np.int64]) -> Iterator[Note]:
    divisor = int(np.gcd.reduce(tokens, axis=None))
    if divisor > 1 and len(np.unique(tokens.max(axis=2))) >= FEW_CELLS:
        yield Note(
            "copies",
            f"every count is a multiple of {divisor}",
            f"either {divisor} ranks counted the same tokens and were added up: ratios are right, tokens {divisor} times too many; "
            "or counts were rounded up to blocks",
        )


def _running(tokens: NDArray[np.int64], totals: NDArray[np.int64]) -> Iterator[Note]:
    if len(tokens) < 3 or not (totals[1:] > totals[:-1]).any(axis=1).all():
        return
    if all((later >= earlier).all() for earlier, later in pairwise(tokens)):
        yield Note(
            "running_totals",
            "no count ever falls from one slice to the next: these are running totals, not slices",
            "subtract each from the one after it",
        )


def _experts(file: TraceFile, whole: NDArray[np.int64], top_k: int | None) -> Iterator[Note]:
    rows, experts = file.trace.layers, file.trace.experts
    zero = int((whole == 0).sum())
    if zero > MANY_ZERO_CELLS * whole.size:
        yield Note(
            "many_zero_cells",
            f"{zero:,} of {whole.size:,} (layer, expert) pairs were never picked",
            "too little was recorded to place by, or --experts is too high",
        )
    larger = with_layers(rows, top_k, experts)
    if not like(rows, experts) and larger and larger[0].experts - experts <= experts // 4:
        yield Note(
            "experts_unclear",
            f"no known model with {rows} layers has {experts} experts; {larger[0].title} has {larger[0].experts}",
            f"if the last experts were never picked, give --experts {larger[0].experts}",
        )


def _rows(file: TraceFile, rows: Iterable[int]) -> str:
    """Rows by the model's numbers where they are known."""
    known = file.layers.model_layer
    numbers = [int(row) if known is None else known[int(row)] for row in rows]
    shown = ", ".join(str(number) for number in numbers[:SHOWN]) + (", ..." if len(numbers) > SHOWN else "")
    what = "row" if known is None else "model layer"
    return f"{what}{'s' if len(numbers) > 1 else ''} {shown}"
