"""From the top-k picks of a router to counts: padding, fused shared experts and bad ids kept apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collectors.checks import Refusal
from collectors.facts import Kind, PoolFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray

PADDING_ID = -1
"""Engines overwrite the picks of padding rows with this id."""


@dataclass(frozen=True, slots=True)
class RoutedCounts:
    """What the picks of one layer amount to.

    ``counts``: int64 [experts], tokens. ``tokens`` rows that were counted. ``shared`` picks of fused shared experts.
    ``bad_ids`` picks outside every range, ``bad_rows`` rows refused for them. ``padding_rows`` rows that are no tokens.
    """

    counts: NDArray[np.int64]
    tokens: int
    shared: int = 0
    bad_ids: int = 0
    bad_rows: int = 0
    padding_rows: int = 0


def count_routed(
    topk_ids: Any, experts: int, *, real_rows: int | None = None, shared_experts: int = 0
) -> RoutedCounts | Refusal:
    """Count picks, integers [rows, k], into tokens by expert; only the first real_rows rows are tokens.

    Ids from ``experts`` up to ``experts + shared_experts`` are fused shared experts, counted apart. A row of -1 only is
    padding; a row with any other id out of range is refused as a whole, without an exception and without wrap-around.
    Refusals: ``wrong_type``, ``wrong_shape``, ``bad_rows``.
    """
    picks = np.asarray(topk_ids)
    if picks.ndim == 2 and not picks.size:
        picks = picks.astype(np.int64)
    if picks.dtype.kind not in "iu":
        return Refusal("wrong_type", f"picks are {picks.dtype}, expected integer ids")
    if picks.ndim != 2:
        return Refusal("wrong_shape", f"picks have shape {picks.shape}, expected [rows, k]")
    rows = len(picks) if real_rows is None else real_rows
    if not 0 <= rows <= len(picks):
        return Refusal("bad_rows", f"real_rows is {rows}, the batch has {len(picks)} rows")
    real = picks[:rows]
    padding = (real == PADDING_ID).all(axis=1) if real.size else np.zeros(len(real), dtype=np.bool_)
    wrong = ((real < 0) | (real >= experts + shared_experts)) & ~padding[:, None]
    bad = wrong.any(axis=1)
    good = real[~(bad | padding)].astype(np.int64).ravel()
    counts = np.bincount(good, minlength=experts + shared_experts)
    return RoutedCounts(
        counts=counts[:experts].astype(np.int64),
        tokens=int(rows - bad.sum() - padding.sum()),
        shared=int(counts[experts:].sum()),
        bad_ids=int(wrong.sum()),
        bad_rows=int(bad.sum()),
        padding_rows=int(len(picks) - rows + padding.sum()),
    )


class StepPicks:
    """Gathers the picks of all layers during one forward, for ``Recorder.record_step``.

    ``counts``: int64 [layers, width], tokens in the ids of the kind. ``shared``: int64 [layers], picks of fused shared
    experts. ``unattributed`` tokens came without a layer and are in no row. ``refused`` counts by reason: ``dense_layer``
    (a layer without experts), ``bad_id``, ``bad_row``, the refusals of ``count_routed``, and ``internal`` for input that is no array of picks at all. ``filler_rows`` rows of
    chunks that only keep collectives aligned. Nothing here raises.
    """

    def __init__(self, facts: PoolFacts, kind: Kind = Kind.ROUTED, *, shared_experts: int = 0) -> None:
        self._width = facts.width(kind)
        self._shared_experts = shared_experts
        self._row_of_layer = {layer: row for row, layer in enumerate(facts.model_layers)}
        self.counts = np.zeros((facts.layers, self._width), dtype=np.int64)
        self.shared = np.zeros(facts.layers, dtype=np.int64)
        self.unattributed = 0
        self.filler_rows = 0
        self.refused: Counter[str] = Counter()

    def add(
        self, model_layer: int | None, topk_ids: Any, *, real_rows: int | None = None, filler: bool = False
    ) -> None:
        """Add the picks of one layer, integers [rows, k]; model_layer None = the hook does not know its layer."""
        try:
            self._add(model_layer, topk_ids, real_rows, filler=filler)
        except Exception:  # noqa: BLE001 - called from an engine's hook, where nothing may raise
            self.refused["internal"] += 1

    def _add(self, model_layer: int | None, topk_ids: Any, real_rows: int | None, *, filler: bool) -> None:
        counted = count_routed(
            topk_ids, self._width, real_rows=real_rows, shared_experts=self._shared_experts
        )
        if isinstance(counted, Refusal):
            self.refused[counted.reason] += 1
        elif filler:
            self.filler_rows += counted.tokens
        elif model_layer is None:
            self.unattributed += counted.tokens
        elif model_layer not in self._row_of_layer:
            self.refused["dense_layer"] += 1
        else:
            row = self._row_of_layer[model_layer]
            self.counts[row] += counted.counts
            self.shared[row] += counted.shared
            self.refused.update({"bad_id": counted.bad_ids, "bad_row": counted.bad_rows})

    def clear(self) -> None:
        """Begin the next forward: counts and shared to 0; what was refused stays counted."""
        self.counts[:] = 0
        self.shared[:] = 0
