"""Files with one row for every layer of the model, dense ones included: which rows are MoE layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Layers, Note
from eplb.formats.layers import layers_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

LAYERS_OF_A_BROKEN_HOOK = 3
"""From so many rows on, counts in a single one are a broken hook rather than a small model."""


@dataclass(frozen=True, slots=True)
class ModelRows:
    """The rows to keep, in order, with what they are. ``rows``: row numbers, which are model layers."""

    rows: tuple[int, ...]
    layers: Layers
    notes: tuple[Note, ...]


def moe_rows(used: NDArray[np.bool_], given: Layers) -> ModelRows:
    """Choose the MoE layers among rows that number the layers of the model from 0.

    ``used``: bool [rows], whether a row holds anything. ``given``: what a person says; without ``model_layer`` a row that
    holds nothing is a dense layer.

    Raises:
        FileError: no row holds anything, or what is given does not fit the rows; the caller knows the path.
    """
    hidden = len(used)
    if given.hidden_layers not in {None, hidden}:
        raise FileError(
            f"has {hidden} layer rows, --hidden-layers says {given.hidden_layers}; expected one row for every layer of the model, "
            "dense ones included"
        )
    if not used.any():
        raise FileError(
            f"none of its {hidden} layer rows holds a count: record while the engine serves requests"
        )
    if given.model_layer is None:
        rows = tuple(int(row) for row in np.flatnonzero(used))
        return ModelRows(rows, _known(rows, hidden, given), _guessed(rows, hidden))
    rows = given.model_layer
    if not rows or len(set(rows)) != len(rows) or not all(0 <= row < hidden for row in rows):
        raise FileError(
            f"--moe-layers names {listed(rows)}, expected different layers of 0..{hidden - 1}: the file has {hidden} layer rows"
        )
    check_left_out(set(np.flatnonzero(used).tolist()) - set(rows))
    return ModelRows(rows, _known(rows, hidden, given), ())


def _known(rows: tuple[int, ...], hidden: int, given: Layers) -> Layers:
    """What is known of the layers; those of a draft model, which have no row here, pass through to the map."""
    return layers_of(Layers(rows, hidden), Layers(draft_layers=given.draft_layers), len(rows))


def check_left_out(layers: Iterable[int]) -> None:
    """Refuse ``--moe-layers`` that leave out ``layers``, which hold counts: whatever it is, the rows are not what they seem.

    Raises:
        FileError: there are any.
    """
    lost = sorted(layers)
    if lost:
        raise FileError(
            f"layers {listed(lost)} hold counts but are not among --moe-layers: check it against the model's configuration"
        )


def _guessed(rows: tuple[int, ...], hidden: int) -> tuple[Note, ...]:
    if len(rows) == hidden:
        return ()
    if len(rows) == 1 and hidden >= LAYERS_OF_A_BROKEN_HOOK:
        return (
            Note(
                "one_layer",
                f"all counts stand in layer {rows[0]} of {hidden}: the model's code most likely does not tell the recorder its layer",
                "do not plan on this; update the engine, or record routed experts with the replies instead",
            ),
        )
    dense = sorted(set(range(hidden)) - set(rows))
    return (
        Note(
            "dense_layers",
            f"layers {listed(dense)} of {hidden} hold no counts and are taken for dense layers",
            f"if some of them are MoE layers, name all of those with --moe-layers and --hidden-layers {hidden}",
        ),
    )


def listed(numbers: Iterable[int]) -> str:
    """Numbers as short text: runs as ``3-60``, in rising order."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number <= runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs) or "none"
