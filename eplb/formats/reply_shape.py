"""The shape of routed-experts replies, which hold their numbers without it: [tokens, layers of the model, top_k]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.errors import FileError
from eplb.formats.layers import MOST_LAYERS

if TYPE_CHECKING:
    from eplb.formats.facts import ReadOptions

MOST_TOP_K = 256


@dataclass(frozen=True, slots=True)
class Extent:
    """How much one reply holds. ``numbers``: picks of all tokens and layers. ``prompt``, ``completion``: tokens or None."""

    where: str
    numbers: int
    prompt: int | None
    completion: int | None

    @property
    def tokens(self) -> int | None:
        """Tokens that were routed when the reply starts with the first: all but the last one; None = not said."""
        if self.prompt is None or self.completion is None:
            return None
        return self.prompt + self.completion - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers of the model (dense ones included) and picks of a token in one layer."""

    layers: int
    top_k: int


def shape_of(extents: list[Extent], options: ReadOptions) -> Shape:
    """Work out the shape from what is given and from the tokens that the replies report.

    Both ``hidden_layers`` and ``top_k`` given: that. One of them: the other follows from the numbers a token has. None: only where
    no other shape is possible.

    Raises:
        FileError: the shape cannot be told (names the flags to give), or does not fit a reply.
    """
    layers, top_k = options.layers.hidden_layers, options.top_k
    if layers is None or top_k is None:
        each = _numbers_of_a_token(extents)
        layers, top_k = _completed(each, layers, top_k)
    if not (1 <= layers <= MOST_LAYERS and 1 <= top_k <= MOST_TOP_K):
        raise FileError(
            f"{layers} layers with top-k {top_k} are not 1..{MOST_LAYERS} and 1..{MOST_TOP_K}: check --hidden-layers and --top-k"
        )
    for extent in extents:
        rows, rest = divmod(extent.numbers, layers * top_k)
        most = extent.tokens
        if rest or (most is not None and rows > most):
            raise FileError(
                f"{extent.where}: {extent.numbers} numbers do not fit {layers} layers x top-k {top_k}"
                + ("" if most is None else f" and at most {most} tokens")
                + ": check --hidden-layers and --top-k"
            )
    return Shape(layers, top_k)


def _numbers_of_a_token(extents: list[Extent]) -> int:
    """Layers times top-k; the same in every reply that starts with its first token."""
    found = {
        extent.numbers // extent.tokens if extent.tokens and extent.numbers % extent.tokens == 0 else None
        for extent in extents
        if extent.tokens is None or extent.tokens > 0 or extent.numbers
    }
    (first, *others) = found
    if others or not first:
        raise FileError(
            "the replies do not say how many tokens they hold (no prompt_tokens and completion_tokens, several choices, or "
            "routed_experts_start_len): give --hidden-layers and --top-k"
        )
    return first


def _completed(each: int, layers: int | None, top_k: int | None) -> tuple[int, int]:
    if layers is not None or top_k is not None:
        known, flag = (layers, "--hidden-layers") if layers is not None else (top_k, "--top-k")
        other, rest = divmod(each, known or 1)
        if rest or not other or not known or known < 0:
            raise FileError(f"a token has {each} numbers, which {flag} {known} does not divide")
        return (known, other) if layers is not None else (other, known)
    if each > 1:
        raise FileError(
            f"a token has {each} numbers, layers times top-k, which can be {_choices(each)}: give --hidden-layers, the layers of the "
            "model with its dense ones"
        )
    return 1, 1


def _choices(each: int) -> str:
    pairs = [(each // top_k, top_k) for top_k in range(1, min(each, MOST_TOP_K) + 1) if each % top_k == 0]
    shown = [f"{layers} x {top_k}" for layers, top_k in pairs]
    return ", ".join(shown[:6]) + (", ..." if len(shown) > 6 else "")
