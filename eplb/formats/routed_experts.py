"""What every array of vLLM's ``routed_experts`` must be, and which of its layers are MoE layers.

An array is [tokens - 1, hidden_layers, top_k] of logical experts. Dense layers hold zeros, and so do tokens that were not
captured (prefix cache, external KV, kernels without capture; vLLM #39568, #54730). A router never picks one expert twice for a
token: a set that names one twice is stale or damaged, and is refused. A stale row that a router could have picked cannot be told
from a fresh one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Layers, Note
from eplb.formats.model_rows import listed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.formats.facts import ReadOptions

CHUNK_PICKS = 2**22


class RoutedExperts:
    """Picks of one recording, array by array: the first decides which layers are MoE layers, and the others must agree.

    ``tokens``: rows seen. ``uncaptured``: rows of nothing but zeros, left out; with top_k = 1 they cannot be told from
    expert 0 and stay.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._given = options.layers
        self._moe: tuple[int, ...] | None = options.layers.model_layer
        self._shape: tuple[int, ...] = ()
        self._first = ""
        self.tokens = 0
        self.uncaptured = 0

    @property
    def layers(self) -> Layers:
        """MoE layers among all hidden layers, as far as they are known."""
        return Layers(self._moe, self._shape[0] if self._shape else self._given.hidden_layers)

    def picks(self, array: NDArray[Any], where: str) -> NDArray[Any]:
        """The picks of MoE layers of all captured tokens, whole numbers [tokens, MoE layers, top_k].

        Raises:
            FileError: the array is none, contradicts an earlier one, or holds what no router picks; starts with ``where``.
        """
        self._check_shape(array, where)
        captured, used = self._look(array)
        self.tokens += len(array)
        self.uncaptured += len(array) - int(captured.sum())
        if not captured.any():
            return array[:0]
        if not captured.all():
            array = array[captured]
        moe = self._agree(used, where)
        kept = array if len(moe) == array.shape[1] else array[:, moe]
        self._check_sets(kept, moe, captured, where)
        return kept

    def notes(self) -> tuple[Note, ...]:
        """What was left out, and what may be wrong with the recording."""
        notes = []
        hidden, moe = (self._shape or (0,))[0], self._moe or ()
        if self.uncaptured:
            notes.append(
                Note(
                    "uncaptured_tokens",
                    f"{self.uncaptured} of {self.tokens} tokens hold zeros in every layer and are left out",
                    "tokens from the prefix cache or from another server are not captured: record without those",
                )
            )
        dense = sorted(set(range(hidden)) - set(moe))
        if dense and self._given.model_layer is None:
            notes.append(
                Note(
                    "zero_layers",
                    f"layers {listed(dense)} of {hidden} hold only zeros and are left out as dense",
                    "give --moe-layers if they are not",
                )
            )
        between = [layer for layer in dense if moe and moe[0] < layer]
        if between:
            notes.append(
                Note(
                    "zero_layers_between",
                    f"layers {listed(between)} are among them and stand behind MoE layers",
                    "in most models only the first layers are dense: check that those layers were captured",
                )
            )
        if self._shape and self._shape[1] == 1:
            notes.append(
                Note(
                    "zeros_count",
                    "with one expert a token, zeros of tokens that were not captured count as picks of expert 0",
                    "compare expert 0 with the others",
                )
            )
        return tuple(notes)

    def _check_shape(self, array: NDArray[Any], where: str) -> None:
        if array.ndim != 3 or array.dtype.kind not in "iu" or 0 in array.shape[1:]:
            raise FileError(
                f"{where} is {array.dtype} {list(array.shape)}, expected whole numbers [tokens, hidden_layers, top_k]"
            )
        hidden = self._given.hidden_layers
        if hidden is not None and array.shape[1] != hidden:
            raise FileError(f"{where} has {array.shape[1]} layers, --hidden-layers says {hidden}")
        if self._moe is not None and max(self._moe) >= array.shape[1]:
            raise FileError(
                f"{where} has layers 0..{array.shape[1] - 1}, --moe-layers names {max(self._moe)}"
            )
        if self._shape and array.shape[1:] != self._shape:
            raise FileError(
                f"{where} has (hidden_layers, top_k) = {array.shape[1:]}, {self._first} {self._shape}: not of one model"
            )
        if not self._shape:
            self._shape, self._first = array.shape[1:], where

    def _look(self, array: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which tokens were captured, bool [tokens], and which layers hold anything but zeros, bool [hidden_layers]."""
        captured = np.empty(len(array), dtype=bool)
        used = np.zeros(array.shape[1], dtype=bool)
        for start, stop in _chunks(array):
            filled = np.any(array[start:stop], axis=2)
            captured[start:stop] = filled.any(axis=1)
            used |= filled.any(axis=0)
        if array.shape[2] == 1 and (self._moe is not None or used.any()):
            captured[:] = True
        return captured, used

    def _agree(self, used: NDArray[np.bool_], where: str) -> tuple[int, ...]:
        if self._moe is None and used.any():
            self._moe, self._first = tuple(np.flatnonzero(used).tolist()), where
        moe = self._moe or ()
        other = sorted(set(np.flatnonzero(used).tolist()) - set(moe))
        if other:
            known = (
                "--moe-layers leaves it out"
                if self._given.model_layer
                else f"{self._first} holds only zeros there"
            )
            raise FileError(
                f"{where}: layer {other[0]} holds picks, but {known}: name all MoE layers with --moe-layers"
            )
        return moe

    def _check_sets(
        self, picks: NDArray[Any], moe: tuple[int, ...], captured: NDArray[np.bool_], where: str
    ) -> None:
        """``picks``: of the captured tokens; ``captured``: which tokens of the array those are."""
        for start, stop in _chunks(picks):
            ordered = np.sort(picks[start:stop], axis=2)
            bad = (ordered[..., 1:] == ordered[..., :-1]).any(axis=2) | (ordered[..., 0] < 0)
            if not bad.any():
                continue
            token, layer = (int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
            found = picks[start + token, layer].tolist()
            row = int(np.flatnonzero(captured)[start + token])
            raise FileError(
                f"{where}[token {row}, layer {moe[layer]}] is {found}, expected different experts, 0 or more: the row is "
                "stale, damaged or was not captured; record without prefix cache and external KV"
            )


def _chunks(array: NDArray[Any]) -> list[tuple[int, int]]:
    step = max(1, CHUNK_PICKS // max(1, array.shape[1] * array.shape[2]))
    return [(start, min(start + step, len(array))) for start in range(0, len(array), step)]
