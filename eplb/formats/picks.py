"""Picks, request by request: checked, counted, and sampled for co-activation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Note
from placement import Routes
from placement.routes import MOST_EXPERTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

CHUNK_PICKS = 2**20
"""Picks that are looked at together: temporary arrays stay within tens of megabytes."""


def check_picks(picks: NDArray[Any], experts: int | None, shape: tuple[int, ...], where: str) -> int:
    """Check the picks of one request, whole numbers [tokens, layers, top_k]; returns experts named: the highest id + 1.

    ``shape``: layers and top_k that they must have.

    Raises:
        FileError: type or shape is wrong, or an id is not -1 and not in range; ``where`` starts the message.
    """
    if picks.ndim != 3 or picks.dtype.kind not in "iu" or 0 in picks.shape[1:]:
        raise FileError(
            f"{where}: picks are {picks.dtype} {list(picks.shape)}, expected whole numbers [tokens, layers, top_k]"
        )
    if picks.shape[1:] != shape:
        raise FileError(
            f"{where}: picks have (layers, top_k) = {picks.shape[1:]}, the first {shape}: they are not of one model"
        )
    if not picks.size:
        return 0
    most = MOST_EXPERTS if experts is None else min(experts, MOST_EXPERTS)
    highest = int(picks.max())
    if highest >= most or int(picks.min()) < -1:
        bad = (picks >= most) | (picks < -1)
        token, layer, place = (int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
        raise FileError(
            f"{where}: picks[token {token}, layer {layer}, {place}] is {picks[token, layer, place]}, expected 0..{most - 1}, "
            "or -1 for none: give --experts if the model has more, or mend the recorder"
        )
    return highest + 1


def add_picks(counts: NDArray[np.int64], picks: NDArray[Any]) -> None:
    """Add picks, whole numbers [tokens, layers, top_k], to counts, int64 [layers, experts], in place; -1 counts nowhere."""
    layers, width = counts.shape
    rows = (np.arange(layers, dtype=np.int64) * (width + 1))[None, :, None]
    for part in _chunks(picks):
        flat = (part.astype(np.int64) + 1 + rows).ravel()
        found = np.bincount(flat, minlength=layers * (width + 1))
        counts += found.reshape(layers, width + 1)[:, 1:]


def _chunks(picks: NDArray[Any]) -> Iterator[NDArray[Any]]:
    step = max(1, CHUNK_PICKS // max(1, picks.shape[1] * picks.shape[2]))
    for start in range(0, len(picks), step):
        yield picks[start : start + step]


class RouteSample:
    """Sets of experts of at most ``most`` tokens, spread evenly over all that were added, always the same ones.

    Every n-th token is kept; when there are too many, n doubles and every second one goes.
    ``twins``: sampled tokens left out because they pick an expert twice.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._every = 1
        self._seen = 0
        self._kept: list[tuple[int, int, NDArray[np.int16]]] = []
        self.twins = 0

    def add(self, picks: NDArray[Any], request: int) -> None:
        """Add the checked picks of one request, whole numbers [tokens, layers, top_k]."""
        if not self._most:
            return
        first = -self._seen % self._every
        for at in range(first, len(picks), self._every):
            token = self._seen + at
            if token % self._every == 0:
                self._keep(token, request, picks[at].astype(np.int16))
        self._seen += len(picks)

    def _keep(self, token: int, request: int, experts: NDArray[np.int16]) -> None:
        ordered = np.sort(experts, axis=1)
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
            self.twins += 1
            return
        self._kept.append((token, request, experts))
        if len(self._kept) > self._most:
            self._every *= 2
            self._kept = [kept for kept in self._kept if kept[0] % self._every == 0]

    def notes(self) -> tuple[Note, ...]:
        """What was left out."""
        if not self.twins:
            return ()
        return (
            Note(
                "twin_picks",
                f"{self.twins} sampled tokens pick one expert twice and are left out of the routes",
                "a token's experts are distinct in every known router: look at how this was recorded",
            ),
        )

    def routes(self) -> Routes | None:
        """The sampled sets with the number of their request, or None when there are none."""
        if not self._kept:
            return None
        experts = np.stack([kept[2] for kept in self._kept])
        return Routes(experts, np.array([kept[1] for kept in self._kept], dtype=np.int64))
