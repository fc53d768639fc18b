"""What a synthetic trace is made by: a model's shape, how much of what, and how uneven."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite

from eplb.errors import ConfigError
from eplb.formats.facts import PHASES, Layers
from eplb.formats.layers import MOST_LAYERS
from placement.routes import MOST_EXPERTS

MOST_DOMAINS = 64
MOST_TOKENS = 2**16
MOST_SPREAD = 3.0
NO_NUMBERS = Layers()


@dataclass(frozen=True, slots=True)
class Shape:
    """``layers``: rows of the trace; ``experts`` and ``top_k`` of each; ``numbers``: which layers of the model the rows are."""

    layers: int
    experts: int
    top_k: int
    numbers: Layers = NO_NUMBERS


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a trace depends on. Spreads are standard deviations of the logarithm of an expert's popularity.

    ``domains``: subjects that requests are about; ``phases``: each request has one sequence in each. ``tokens``: median tokens of a
    sequence. ``skew``: popularity over the whole trace, and ``skew_by_layer``: how much that differs between layers, relatively.
    ``domain_spread``, ``phase_spread``, ``request_spread``: what a domain, a phase, a request adds. ``topic_share``: part of the picks
    that follow the token's topic, an uneven block of experts in each layer; ``topic_tokens``: tokens of a topic in a row, on average;
    ``topic_spread``: how much requests differ in their topics, ``domain_topic_spread``: how much domains do.
    The defaults are calibrated to ``targets``; docs/generate.md shows the result.

    Raises:
        ConfigError: a value is out of range; names it and the range.
    """

    shape: Shape
    domains: int = 3
    phases: tuple[str, ...] = ("prefill", "decode")
    tokens: int = 256
    seed: int = 0
    skew: float = 1.12
    skew_by_layer: float = 0.15
    domain_spread: float = 1.05
    phase_spread: float = 0.33
    request_spread: float = 0.4
    topic_share: float = 0.82
    topic_tokens: int = 4
    topic_spread: float = 0.5
    domain_topic_spread: float = 0.3

    def __post_init__(self) -> None:
        shape = self.shape
        _whole("layers", shape.layers, 1, MOST_LAYERS)
        _whole("experts", shape.experts, 1, MOST_EXPERTS)
        _whole("top_k", shape.top_k, 1, shape.experts)
        _whole("domains", self.domains, 1, MOST_DOMAINS)
        _whole("tokens", self.tokens, 1, MOST_TOKENS)
        _whole("topic_tokens", self.topic_tokens, 1, MOST_TOKENS)
        _whole("seed", self.seed, 0, 2**63 - 1)
        for name in SPREADS:
            _between(name, getattr(self, name), MOST_SPREAD)
        for name in ("topic_share", "skew_by_layer"):
            _between(name, getattr(self, name), 1.0)
        if not self.phases or set(self.phases) - set(PHASES) or len(set(self.phases)) != len(self.phases):
            raise ConfigError(f"phases are {self.phases}, expected different ones of {', '.join(PHASES)}")

    def words(self) -> str:
        """The recipe in one line, for the file that is made by it."""
        shape = self.shape
        rest = {name: value for name, value in asdict(self).items() if name not in ("shape", "phases")}
        values = " ".join(f"{name}={value:g}" for name, value in rest.items())
        return (
            f"eplb generate: layers={shape.layers} experts={shape.experts} top_k={shape.top_k} "
            f"phases={'+'.join(self.phases)} {values}"
        )


SPREADS = (
    "skew",
    "domain_spread",
    "phase_spread",
    "request_spread",
    "topic_spread",
    "domain_topic_spread",
)


def _whole(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name} is {value}, must be {least}..{most}")


def _between(name: str, value: float, most: float) -> None:
    if not isfinite(value) or not 0.0 <= value <= most:
        raise ConfigError(f"{name} is {value}, must be 0..{most}")
