"""Shapes of public mixture-of-experts models, to guess which one a trace or a map is from.

Source: the models' published configurations. A shape is no proof: models share shapes, and a trace may hold some layers only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """``layers``: MoE layers; ``hidden_layers``: all layers, draft ones not counted; ``experts`` and ``top_k`` of a MoE layer."""

    name: str
    layers: int
    hidden_layers: int
    experts: int
    top_k: int


SHAPES = (
    ModelShape("DeepSeek-V3/R1/V3.1/V3.2", 58, 61, 256, 8),
    ModelShape("DeepSeek-V4-Pro", 61, 61, 384, 6),
    ModelShape("DeepSeek-V4-Flash", 43, 43, 256, 6),
    ModelShape("Kimi-K2", 60, 61, 384, 8),
    ModelShape("Kimi-K3", 92, 93, 896, 16),
    ModelShape("GLM-5", 75, 78, 256, 8),
    ModelShape("GLM-4.5/4.6", 89, 92, 160, 8),
    ModelShape("Qwen3-235B-A22B", 94, 94, 128, 8),
    ModelShape("Qwen3-30B-A3B", 48, 48, 128, 8),
    ModelShape("Qwen3-Coder-480B", 62, 62, 160, 8),
    ModelShape("Qwen3.5-397B-A17B", 60, 60, 512, 10),
    ModelShape("Qwen3.5-122B-A10B", 48, 48, 256, 8),
    ModelShape("Qwen3.5-35B-A3B", 40, 40, 256, 8),
    ModelShape("MiniMax-M2.5/2.7", 62, 62, 256, 8),
    ModelShape("MiniMax-M3", 57, 60, 128, 4),
    ModelShape("gpt-oss-120b", 36, 36, 128, 4),
    ModelShape("gpt-oss-20b", 24, 24, 32, 4),
    ModelShape("Mixtral-8x7B", 32, 32, 8, 2),
    ModelShape("Mixtral-8x22B", 56, 56, 8, 2),
    ModelShape("Llama-4-Maverick", 24, 48, 128, 1),
    ModelShape("MiMo-V2-Flash", 47, 48, 256, 8),
    ModelShape("DeepSeek-V2-Lite", 26, 27, 64, 6),
    ModelShape("OLMoE-1B-7B", 16, 16, 64, 8),
)


def like(rows: int, experts: int, top_k: int | None = None) -> tuple[ModelShape, ...]:
    """Models of this shape; ``rows``: their MoE layers, or all their layers; ``top_k`` None = any."""
    return tuple(
        shape
        for shape in SHAPES
        if rows in (shape.layers, shape.hidden_layers)
        and shape.experts == experts
        and top_k in (None, shape.top_k)
    )


def with_layers(rows: int, top_k: int | None, least_experts: int) -> tuple[ModelShape, ...]:
    """Models with so many layers and at least so many experts, those with the fewest experts first."""
    found = (
        shape
        for shape in SHAPES
        if rows in (shape.layers, shape.hidden_layers)
        and top_k in (None, shape.top_k)
        and shape.experts >= least_experts
    )
    return tuple(sorted(found, key=lambda shape: shape.experts))
