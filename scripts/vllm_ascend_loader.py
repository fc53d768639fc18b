"""Run vllm-ascend's own reading of a map file, out of its wheel, and print as JSON what every rank and layer made of it.

The real ``vllm_ascend/ascend_config.py`` checks the configuration and the real ``vllm_ascend/eplb/core/eplb_utils.py`` reads the file,
both unchanged. Importing all of the engine needs vLLM and an NPU, so what touches no map is stood in for: vLLM's log, two helpers
of vLLM that static maps do not call, and the copy of a tensor to the device. Needs torch, and only torch.

Run: python scripts/vllm_ascend_loader.py vllm_ascend-0.23.0-....whl '{"eplb_config": {...}}' --layers 26 --experts 64 --ep-size 16
An error of the loader ends the script with its name and exit code 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def _stand_in(name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def _loader(wheel: str) -> tuple[ModuleType, ModuleType]:
    """The modules of the configuration and of the map; their parent packages are entered without running their own code."""
    import torch

    for package in ("vllm_ascend", "vllm_ascend.eplb", "vllm_ascend.eplb.core"):
        _stand_in(package, __path__=[f"{wheel}/{package.replace('.', '/')}"])
    for package in ("vllm", "vllm.utils", "vllm.model_executor", "vllm.model_executor.layers"):
        _stand_in(package)
    _stand_in("vllm.logger", logger=logging.getLogger("vllm"))
    _stand_in("vllm.utils.math_utils", cdiv=None)
    _stand_in("vllm.model_executor.layers.fused_moe")
    _stand_in("vllm.model_executor.layers.fused_moe.expert_map_manager", determine_expert_map=None)
    setattr(torch.Tensor, "npu", lambda tensor: tensor)  # noqa: B010 - a method that torch has with an NPU alone
    import vllm_ascend.ascend_config as config
    import vllm_ascend.eplb.core.eplb_utils as loader

    return config, loader


def main(arguments: Sequence[str]) -> int:
    """Print what the loader made of the map."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel")
    parser.add_argument("additional_config")
    for name in ("layers", "experts", "ep-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    facts = parser.parse_args(arguments)
    config, loader = _loader(facts.wheel)
    found = []
    try:
        chosen = config.EplbConfig(json.loads(facts.additional_config)["eplb_config"])
        for rank in range(facts.ep_size):
            moe = SimpleNamespace(num_experts=facts.experts, ep_size=facts.ep_size, ep_rank=rank)
            for layer in range(facts.layers):
                _, local, slots, redundant = loader.init_eplb_config(chosen, layer, moe, tp_size=1)
                found.append(
                    {
                        "rank": rank,
                        "layer": layer,
                        "local": local.tolist(),
                        "slots": slots.tolist(),
                        "redundant": redundant,
                    }
                )
    except Exception as error:  # noqa: BLE001 - whatever it stops on is the answer
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
