"""What a rank's tokens cost: a count, or the time of its expert kernels.

Decode reads weights: its time grows with the experts that a step activates on a rank, and a second copy of an expert is
read a second time. Prefill computes: its time grows with tokens. The roofline adds both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placement.checks import real
from placement.errors import PlacementError, TraceError
from placement.models import check_cost
from placement.result import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.trace import LoadTrace


@dataclass(frozen=True, slots=True)
class Roofline:
    """Time of one rank in one layer and step, in microseconds.

    ``base_us + idle_us x (held - a) + activated_us x a + token_us x max(0, n - free_tokens x a)``, a = copies on the rank that
    get at least one token in the step, held = copies on the rank, n = its tokens (token-expert pairs).
    With ``idle_us = free_tokens = 0`` this is t0 + b x activated experts + p x tokens. ``provenance``: where the numbers are from.

    Raises:
        PlacementError: a number is negative or not finite, or a rank with tokens could cost nothing.
    """

    base_us: float
    activated_us: float
    token_us: float
    idle_us: float = 0.0
    free_tokens: float = 0.0
    provenance: str = ""

    def __post_init__(self) -> None:
        for name in ("base_us", "activated_us", "token_us", "idle_us", "free_tokens"):
            value = real(f"roofline.{name}", getattr(self, name))
            if value < 0:
                raise PlacementError(f"roofline.{name} is {value}, must be at least 0")
        free = not self.token_us or self.free_tokens > 0
        if free and not self.base_us and not self.activated_us:
            raise PlacementError("roofline lets tokens cost nothing: give base_us, activated_us or token_us")

    def scaled(self, *, weight_read: float, compute: float, provenance: str) -> Roofline:
        """For other experts or hardware: ``weight_read`` x the time to read an expert, ``compute`` x the time of a token.

        Raises:
            PlacementError: a factor is not finite or not above 0.
        """
        for name, value in (("weight_read", weight_read), ("compute", compute)):
            if real(name, value) <= 0:
                raise PlacementError(f"{name} is {value}, must be above 0")
        return replace(
            self,
            activated_us=self.activated_us * weight_read,
            token_us=self.token_us * compute,
            free_tokens=self.free_tokens * weight_read / compute,
            provenance=f"{provenance}; scaled from: {self.provenance}",
        )

    def us(
        self, held: NDArray[np.float64], activated: NDArray[np.float64], tokens: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Time of ranks of normal speed, float64, in the common shape of the arguments."""
        busy = self.token_us * np.maximum(0.0, tokens - self.free_tokens * activated)
        time: NDArray[np.float64] = (
            self.base_us + self.idle_us * (held - activated) + self.activated_us * activated + busy
        )
        return time


H200_DEEPSEEK_V3_FP8_DECODE = Roofline(
    base_us=20.1,
    activated_us=11.48,
    token_us=0.0585,
    idle_us=0.72,
    free_tokens=103.0,
    provenance=(
        "fit to NVIDIA aiconfigurator kernel tables (Apache-2.0), wide-EP MoE, H200 SXM, SGLang 0.5.10, DeepSeek-V3 fp8 block "
        "7168 x 2048, top-8 of 256, 1 to 64 slots and up to 1024 tokens an expert: largest error 6.4 %, rms 2.7 %"
    ),
)
"""Decode kernels of one H200. Below about 64 tokens an expert their time does not depend on tokens at all."""

H200_DEEPSEEK_V3_FP8 = Roofline(
    base_us=22.0,
    activated_us=11.23,
    token_us=0.080,
    free_tokens=11.23 / 0.080,
    provenance=(
        "two straight lines through the same tables: an expert costs its weight read, 44.04 MB at 3.92 TB/s, or its tokens, "
        "whichever is more; largest error 3.6 % for 2 to 64 experts, 11 % for 1, where tokens do not bind"
    ),
)
"""Three numbers of one H200: t0, weight read and time of a token."""


def as_cost(cost: str | Roofline) -> Roofline | None:
    """Take a cost model by its name: None for ``tokens``, the decode preset for ``roofline``.

    Raises:
        UnsupportedError: the name is unknown.
    """
    if isinstance(cost, Roofline):
        return cost
    check_cost(cost)
    return H200_DEEPSEEK_V3_FP8_DECODE if cost == "roofline" else None


@dataclass(frozen=True, slots=True, eq=False)
class Activation:
    """How many of its slots a rank activates in one step of each slice of a trace.

    ``steps``: float64 [slices], steps of a slice. ``batch``: float64 [slices] or None = every slice is one step, whose
    counts say what was activated.
    """

    steps: NDArray[np.float64]
    batch: NDArray[np.float64] | None

    @classmethod
    def of(cls, trace: LoadTrace) -> Activation:
        """Count where every slice is one step, or else expect from the recorded batch.

        Raises:
            TraceError: steps or batch are not recorded; in a slice of many steps nearly every expert was activated in some.
        """
        if trace.steps_per_slice is None:
            raise TraceError("cost 'roofline' is per step, but the trace has no steps_per_slice: record it")
        steps = trace.steps_per_slice.astype(np.float64)
        if (steps == 1).all():
            return cls(steps, None)
        if trace.batch_tokens is None:
            raise TraceError(
                f"cost 'roofline' needs slices of one step or batch_tokens: slices have up to {int(steps.max())} steps"
            )
        return cls(steps, trace.batch_tokens)

    @property
    def reason(self) -> Reason:
        """Which of the two it is."""
        if self.batch is None:
            return Reason(
                "activation_counted", "every slice is one step: its counts say which experts were read"
            )
        text = "activated experts are expected from 1 - (1 - p)^B with the recorded batch B, not counted"
        return Reason("activation_expected", text)

    def chance(
        self, tokens: NDArray[np.int64], parts: NDArray[np.float64], *, whole: bool
    ) -> NDArray[np.float64]:
        """Chance that a slot gets a token in a step, float64 [slices, slots].

        ``tokens``: int64 [slices, slots], tokens of each slot's expert; ``parts``: float64 [slices or 1, slots].
        One-step slices: 1 - (1 - part)^tokens, each token going to the slot with chance ``part``; with ``whole``, min(1, part x
        tokens), the tokens being counted. Else 1 - (1 - part x p)^B, p = tokens / (steps x B) (field notes 2.10),
        and part x p x B with less than one token a step.
        """
        if self.batch is None:
            if whole:
                return np.minimum(1.0, parts * tokens)
            return 1.0 - _power(1.0 - np.minimum(parts, 1.0), tokens)
        batch = self.batch[:, None]
        chosen = np.minimum(1.0, parts * tokens / (self.steps[:, None] * batch))
        # Below one token a step, most steps have none and the others one: a power would count splitting as a saving.
        few = batch * chosen
        expected: NDArray[np.float64] = np.where(
            batch < 1, few, 1.0 - _power(1.0 - chosen, np.maximum(batch, 1.0))
        )
        return expected

    def only(self, slices: NDArray[np.int64]) -> Activation:
        """The same for some of the slices, int64 [kept]."""
        return Activation(self.steps[slices], None if self.batch is None else self.batch[slices])


@dataclass(frozen=True, slots=True, eq=False)
class Clock:
    """A roofline and what is known of the steps of a trace."""

    model: Roofline
    activation: Activation

    def least_us(self, tokens: NDArray[np.int64], speed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Time of every rank if work could be cut at will, float64 [slices]: one copy an expert, spread by speed.

        ``tokens``: int64 [slices, experts]; ``speed``: float64 [live ranks].
        """
        ranks, experts = len(speed), tokens.shape[1]
        read = self.read(tokens)
        each = tokens.sum(axis=1) / self.activation.steps / ranks
        time = self.model.us(np.full(1, experts / ranks), read / ranks, each)
        least: NDArray[np.float64] = time * ranks / speed.sum()
        return least

    def read(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Experts that a step of every slice activates where none has two copies, float64 [slices]."""
        read: NDArray[np.float64] = self.activation.chance(tokens, np.ones((1, 1)), whole=False).sum(axis=1)
        return read

    def copy_us(self, tokens: NDArray[np.int64], copies: NDArray[np.int64]) -> NDArray[np.float64]:
        """Time that one of ``copies`` copies adds to its rank when they share evenly, float64 [slices, experts].

        ``tokens``: int64 [slices, experts]; ``copies``: int64, in their shape or one for all. Tokens that are free on one copy are
        not credited to another, so that a rank's time is at most the sum.
        """
        parts = 1.0 / copies
        read = self.activation.chance(tokens, parts, whole=False)
        each = tokens * parts / self.activation.steps[:, None]
        return self.model.us(np.ones(1), read, each) - self.model.base_us


def _power(
    base: NDArray[np.float64], exponent: NDArray[np.int64] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """``base`` to the power of ``exponent`` >= 0 by products and square roots, which every machine rounds alike."""
    shape = np.broadcast_shapes(base.shape, exponent.shape)
    whole = np.floor(exponent).astype(np.int64)
    rest = np.asarray(exponent - whole, dtype=np.float64)
    result, square = np.ones(shape), base
    while whole.any():
        result = np.where(whole & 1, result * square, result)
        square, whole = square * square, whole >> 1
    root = base
    while rest.any():
        root, rest = np.sqrt(root), rest * 2
        result = np.where(rest >= 1, result * root, result)
        rest %= 1.0
    return result
