"""Public mixture-of-experts models as data: the one table of their layers, experts and sizes.

Source: the models' published configurations. A shape is no proof of a model: models share shapes, and a trace may hold some layers
only. Models whose MoE layers are not known from a configuration are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_PARAMETER = {"bf16": 2.0, "fp8": 1.0, "mxfp4": 0.53125}
"""Scales included, except those of fp8 blocks, which are below 0.1 %. ``mxfp4``: four bits and a one-byte scale for each 32."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model, or several that are alike.

    ``name``: what a command line calls it; ``title``: what people call it. ``layers``: MoE layers; ``hidden_layers``: all layers,
    draft ones not counted, None = not known. ``experts`` and ``top_k`` of a MoE layer. An expert has three matrices of ``hidden`` x
    ``inter`` parameters, stored as ``dtype``. ``every``: one layer in so many is a MoE layer, after the dense ones.
    """

    name: str
    title: str
    layers: int
    hidden_layers: int | None
    experts: int
    top_k: int
    hidden: int
    inter: int
    dtype: str
    every: int = 1

    @property
    def bytes_per_expert(self) -> int:
        """All tensors of one expert of one layer."""
        return round(3 * self.hidden * self.inter * BYTES_PER_PARAMETER[self.dtype])

    @property
    def model_layer(self) -> tuple[int, ...] | None:
        """The model's numbers of its MoE layers, None = not known: in all of these models the dense layers come first."""
        if self.hidden_layers is None:
            return None
        dense = self.hidden_layers - self.layers * self.every
        return tuple(range(dense + self.every - 1, self.hidden_layers, self.every))


_TABLE = (
    Model("deepseek-v3", "DeepSeek-V3/R1/V3.1/V3.2", 58, 61, 256, 8, 7168, 2048, "fp8"),
    Model("deepseek-v4-pro", "DeepSeek-V4-Pro", 61, 61, 384, 6, 7168, 3072, "mxfp4"),
    Model("deepseek-v4-flash", "DeepSeek-V4-Flash", 43, 43, 256, 6, 4096, 2048, "mxfp4"),
    Model("kimi-k2", "Kimi-K2", 60, 61, 384, 8, 7168, 2048, "fp8"),
    # Its experts work on a latent of half the hidden width.
    Model("kimi-k3", "Kimi-K3", 92, 93, 896, 16, 3584, 3072, "mxfp4"),
    Model("glm-5", "GLM-5", 75, 78, 256, 8, 6144, 2048, "fp8"),
    Model("glm-4.5", "GLM-4.5/4.6", 89, 92, 160, 8, 5120, 1536, "fp8"),
    Model("qwen3-235b-a22b", "Qwen3-235B-A22B", 94, 94, 128, 8, 4096, 1536, "fp8"),
    Model("qwen3-30b-a3b", "Qwen3-30B-A3B", 48, 48, 128, 8, 2048, 768, "fp8"),
    Model("qwen3-coder-480b", "Qwen3-Coder-480B", 62, 62, 160, 8, 6144, 2560, "fp8"),
    Model("qwen3.5-397b-a17b", "Qwen3.5-397B-A17B", 60, 60, 512, 10, 4096, 1024, "fp8"),
    Model("qwen3.5-122b-a10b", "Qwen3.5-122B-A10B", 48, 48, 256, 8, 3072, 1024, "fp8"),
    Model("qwen3.5-35b-a3b", "Qwen3.5-35B-A3B", 40, 40, 256, 8, 2048, 512, "fp8"),
    Model("minimax-m2.5", "MiniMax-M2.5/2.7", 62, 62, 256, 8, 3072, 1536, "fp8"),
    Model("minimax-m3", "MiniMax-M3", 57, 60, 128, 4, 6144, 3072, "fp8"),
    Model("gpt-oss-120b", "gpt-oss-120b", 36, 36, 128, 4, 2880, 2880, "mxfp4"),
    Model("gpt-oss-20b", "gpt-oss-20b", 24, 24, 32, 4, 2880, 2880, "mxfp4"),
    Model("mixtral-8x7b", "Mixtral-8x7B", 32, 32, 8, 2, 4096, 14336, "bf16"),
    Model("mixtral-8x22b", "Mixtral-8x22B", 56, 56, 8, 2, 6144, 16384, "bf16"),
    Model("llama-4-maverick", "Llama-4-Maverick", 24, 48, 128, 1, 5120, 8192, "fp8", every=2),
    Model("mimo-v2-flash", "MiMo-V2-Flash", 47, 48, 256, 8, 4096, 2048, "fp8"),
    Model("step-3.7-flash", "Step-3.7-Flash", 42, None, 288, 8, 4096, 1280, "fp8"),
    Model("deepseek-v2-lite", "DeepSeek-V2-Lite", 26, 27, 64, 6, 2048, 1408, "bf16"),
    Model("olmoe-1b-7b", "OLMoE-1B-7B", 16, 16, 64, 8, 2048, 1024, "bf16"),
)
MODELS = {model.name: model for model in _TABLE}


def like(rows: int, experts: int, top_k: int | None = None) -> tuple[Model, ...]:
    """Models of this shape; ``rows``: their MoE layers, or all their layers; ``top_k`` None = any."""
    return tuple(
        model
        for model in _TABLE
        if rows in (model.layers, model.hidden_layers)
        and model.experts == experts
        and top_k in (None, model.top_k)
    )


def with_layers(rows: int, top_k: int | None, least_experts: int) -> tuple[Model, ...]:
    """Models with so many layers and at least so many experts, those with the fewest experts first."""
    found = (
        model
        for model in _TABLE
        if rows in (model.layers, model.hidden_layers)
        and top_k in (None, model.top_k)
        and model.experts >= least_experts
    )
    return tuple(sorted(found, key=lambda model: model.experts))
