"""Engines by name: which copy of an expert a token takes there, and what their dispatcher sends."""

from __future__ import annotations

from dataclasses import dataclass

from placement.models import DISPATCH
from placement.traffic import NODE_DEDUPE, RANK_DEDUPE


@dataclass(frozen=True, slots=True)
class Engine:
    """``dispatch``: a rule of ``placement.Dispatch``. ``dispatcher``: what crosses the links, see ``placement.traffic``."""

    dispatch: str
    dispatcher: str


ENGINES = {
    "vllm": Engine("hash_row", NODE_DEDUPE),
    "sglang": Engine("nearest", NODE_DEDUPE),
    "trtllm": Engine("block_round_robin", RANK_DEDUPE),
    "vllm-ascend": Engine("per_source", NODE_DEDUPE),
}
"""The rule of each engine's present version (``placement.Dispatch`` names it). SGLang: its static rule, which it takes by default
with an all-to-all backend. The dispatcher is that of a back end that plans for traffic can help at all: DeepEP's normal mode
(once per node), NVLink one-sided all-to-all (once per rank). Others need ``--dispatcher``."""

NAMES = (*ENGINES, *DISPATCH)
"""Words that ``--dispatch`` takes: an engine, or a rule."""


def engine_of(name: str) -> Engine:
    """What an engine does, or a rule with the usual dispatcher; ``name``: one of ``NAMES``."""
    return ENGINES.get(name) or Engine(name, NODE_DEDUPE)


def usual_dispatch(map_format: str) -> str:
    """The word for ``--dispatch`` where none is given: the engine that a map is written for, else ``even``."""
    return map_format if map_format in ENGINES else "even"
