"""Machines as data: what a rank's kernels cost with each model, how fast weights arrive.

Models stand in ``eplb.models``, machines are from NVIDIA aiconfigurator's system files (the H800 from its data sheet).
Only the kernels of one H200 with DeepSeek-V3 were fitted to measurements; every other pair is scaled from them and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.models import MODELS
from placement.cost import H200_DEEPSEEK_V3_FP8, H200_DEEPSEEK_V3_FP8_DECODE

if TYPE_CHECKING:
    from eplb.models import Model
    from placement.cost import Roofline


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
