"""Run SGLang's own map loader, out of its wheel, on a map file, and print as JSON what every rank made of it.

The real ``sglang/srt/eplb/expert_location.py`` is imported from the wheel, unchanged, and its
``compute_initial_expert_location_metadata`` reads the file. Importing all of SGLang needs a GPU's libraries, so three of its modules
are stood in for, none of which touches a map: the holder of the settings (``runtime_context``), the look-up of the model class
(``model_loader``) and whether an elastic group has grown (``elastic_ep``). Needs torch, and only torch.

Run: python scripts/sglang_loader.py sglang-0.5.23-....whl map.json --layers 27 --experts 64 --redundant 16 --ep-size 16
An error of the loader ends the script with its name and exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def _stand_in(name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def _loader(wheel: str, facts: argparse.Namespace) -> ModuleType:
    """The module out of the wheel; its parent packages are entered without running their own code."""
    for package in ("sglang", "sglang.srt", "sglang.srt.eplb"):
        _stand_in(package, __path__=[f"{wheel}/{package.replace('.', '/')}"])
    moe = SimpleNamespace(
        init_expert_location=facts.map,
        ep_num_redundant_experts=facts.redundant,
        ep_dispatch_algorithm=facts.dispatch,
        moe_a2a_backend=facts.a2a,
        ep_join_mode=None,
    )
    parallel = SimpleNamespace(ep_size=facts.ep_size, nnodes=facts.nodes, elastic_ep_initial_size=None)
    _stand_in(
        "sglang.srt.runtime_context",
        get_device=lambda: SimpleNamespace(device="cpu"),
        get_exec=lambda: SimpleNamespace(moe=moe),
        get_parallel=lambda: parallel,
        get_resources=SimpleNamespace,
    )
    described = SimpleNamespace(num_layers=facts.layers, num_logical_experts=facts.experts, num_groups=None)
    model = SimpleNamespace(get_model_config_for_expert_location=lambda _config: described)
    _stand_in("sglang.srt.model_loader", get_model_architecture=lambda _config: (model, ""))
    _stand_in("sglang.srt.elastic_ep")
    _stand_in("sglang.srt.elastic_ep.elastic_ep", elastic_expanded_world_enabled=lambda: False)
    import sglang.srt.eplb.expert_location as module

    return module


def main(arguments: Sequence[str]) -> int:
    """Print what the loader made of the map."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel")
    parser.add_argument("map")
    for name in ("layers", "experts", "redundant", "ep-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--dispatch", choices=["static", "dynamic"], default="dynamic")
    parser.add_argument("--a2a", default="none")
    facts = parser.parse_args(arguments)
    module = _loader(facts.wheel, facts)
    ranks = []
    for rank in range(facts.ep_size):
        try:
            found = module.compute_initial_expert_location_metadata(
                SimpleNamespace(hf_config=None), moe_ep_rank=rank
            )
        except Exception as error:  # noqa: BLE001 - whatever it stops on is the answer
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
        dispatched = found.logical_to_rank_dispatch_physical_map
        ranks.append(
            {
                "physical_to_logical": found.physical_to_logical_map_cpu.tolist(),
                "logical_to_physical": found.logical_to_all_physical_map_cpu.tolist(),
                "copies": found.logical_to_all_physical_map_num_valid.tolist(),
                "dispatch": None if dispatched is None else dispatched.tolist(),
            }
        )
    print(json.dumps(ranks))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
