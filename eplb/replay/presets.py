"""Models and machines as data: what an expert weighs, what a rank's kernels cost, how fast weights arrive.

Sizes are from the models' configurations, machines from NVIDIA aiconfigurator's system files (the H800 from its data sheet).
Only the kernels of one H200 with DeepSeek-V3 were fitted to measurements; every other pair is scaled from them and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placement.cost import H200_DEEPSEEK_V3_FP8, H200_DEEPSEEK_V3_FP8_DECODE

if TYPE_CHECKING:
    from placement.cost import Roofline

BYTES_PER_PARAMETER = {"bf16": 2.0, "fp8": 1.0, "mxfp4": 0.53125}
"""Scales included, except those of fp8 blocks, which are below 0.1 %."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model's routed experts: three matrices of ``hidden`` x ``inter`` parameters each, stored as ``dtype``."""

    name: str
    hidden: int
    inter: int
    dtype: str

    @property
    def bytes_per_expert(self) -> int:
        """All tensors of one expert of one layer."""
        return round(3 * self.hidden * self.inter * BYTES_PER_PARAMETER[self.dtype])


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of GPU and its links.

    ``memory_tb_s`` peak bandwidth; ``tflops`` dense rate by dtype of the weights (mxfp4 weights are computed as bf16 where the
    GPU has no fp4 units); ``link_gb_s`` one direction a GPU among ``domain_ranks`` GPUs with fast links, ``far_gb_s`` beyond.
    """

    name: str
    memory_tb_s: float
    tflops: dict[str, float]
    link_gb_s: float
    far_gb_s: float
    domain_ranks: int

    def link_bytes_per_s(self, ranks: int) -> float:
        """Rate at which weights reach a rank of an EP group of this size, bytes a second."""
        return 1e9 * (self.link_gb_s if ranks <= self.domain_ranks else self.far_gb_s)


MODELS = {
    model.name: model
    for model in (
        Model("gpt-oss-20b", 2880, 2880, "mxfp4"),
        Model("gpt-oss-120b", 2880, 2880, "mxfp4"),
        Model("deepseek-v2-lite", 2048, 1408, "bf16"),
        Model("deepseek-v3", 7168, 2048, "fp8"),
        Model("glm-4.5", 5120, 1536, "fp8"),
        Model("kimi-k2", 7168, 2048, "fp8"),
        Model("qwen3-30b-a3b", 2048, 768, "fp8"),
        Model("qwen3-235b-a22b", 4096, 1536, "fp8"),
    )
}

MACHINES = {
    machine.name: machine
    for machine in (
        Machine("H800", 3.35, {"bf16": 989.0, "fp8": 1978.0, "mxfp4": 989.0}, 160.0, 50.0, 8),
        Machine("H200", 4.8, {"bf16": 989.0, "fp8": 1978.0, "mxfp4": 989.0}, 450.0, 50.0, 8),
        Machine("GB200", 8.0, {"bf16": 2500.0, "fp8": 5000.0, "mxfp4": 5000.0}, 900.0, 100.0, 72),
    )
}

_FITTED_MODEL, _FITTED_MACHINE = MODELS["deepseek-v3"], MACHINES["H200"]
_KERNELS = {
    "decode": H200_DEEPSEEK_V3_FP8_DECODE,
    "prefill": H200_DEEPSEEK_V3_FP8,
    "mixed": H200_DEEPSEEK_V3_FP8,
}


def kernels(model: Model, machine: Machine, phase: str) -> Roofline:
    """Cost of a rank in a layer and step of a ``phase`` (decode, prefill or mixed).

    The weight read is scaled by bytes and memory bandwidth, a token by parameters and rate; launches stay as they were fitted.
    """
    fitted = _KERNELS[phase]
    if (model, machine) == (_FITTED_MODEL, _FITTED_MACHINE):
        return fitted
    memory = _FITTED_MACHINE.memory_tb_s / machine.memory_tb_s
    rate = _FITTED_MACHINE.tflops[_FITTED_MODEL.dtype] / machine.tflops[model.dtype]
    parameters = (model.hidden * model.inter) / (_FITTED_MODEL.hidden * _FITTED_MODEL.inter)
    return fitted.scaled(
        weight_read=memory * model.bytes_per_expert / _FITTED_MODEL.bytes_per_expert,
        compute=parameters * rate,
        provenance=f"{model.name} on {machine.name}",
    )
