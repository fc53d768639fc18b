"""Run FlashLB, the strongest public balancer, from its own wheel, beside ours.

FlashLB is the policy of vllm-ascend. Its solver needs only numpy, numba, scipy and torch, so the wheel is unpacked, not installed:

    pip download --no-deps --only-binary=:all: --dest flashlb vllm-ascend==0.23.0
    python benchmarks/solver_table.py heldout --flashlb flashlb/vllm_ascend-*.whl

Its module also imports a logger and a process group that its solver does not use: empty modules stand for these two.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import tempfile
import types
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

POLICY = "vllm_ascend/eplb/core/policy/policy_flashlb.py"
BASE = "vllm_ascend/eplb/core/policy/policy_abstract.py"


def load(wheel: Path) -> Callable[[NDArray[np.int64], int, int], NDArray[np.int64]]:
    """The solver of ``wheel``: (tokens int64 [slices, experts], ranks, slots per rank) -> row int64 [slots], default settings.

    Raises:
        SystemExit: the file is not a wheel that holds FlashLB.
    """
    folder = Path(tempfile.mkdtemp(prefix="flashlb-"))
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in (BASE, POLICY):
                archive.extract(member, folder)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        sys.exit(f"{wheel}: not a wheel with FlashLB: {error}")
    policy = _imported(folder)
    settings = policy.FlashLBConfig()

    def solved(tokens: NDArray[np.int64], ranks: int, slots_per_rank: int) -> NDArray[np.int64]:
        tree = policy.FlashTree(
            tokens.astype(np.float32), ranks * slots_per_rank, ranks, settings.z_score, settings.depth, settings.width
        )  # fmt: skip
        deployment, _, _ = tree.optimize_balanceness()
        row: NDArray[np.int64] = np.asarray(deployment, dtype=np.int64).ravel()
        return row

    return solved


def _imported(folder: Path) -> Any:
    for name in (
        "vllm",
        "vllm.logger",
        "vllm_ascend",
        "vllm_ascend.distributed",
        "vllm_ascend.distributed.parallel_state",
    ):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["vllm.logger"].logger = logging.getLogger("flashlb")  # type: ignore[attr-defined]
    sys.modules["vllm_ascend.distributed.parallel_state"].get_dynamic_eplb_group = None  # type: ignore[attr-defined]
    package = types.ModuleType("flashlb_policy")
    package.__path__ = [str((folder / POLICY).parent)]
    sys.modules["flashlb_policy"] = package
    spec = importlib.util.spec_from_file_location("flashlb_policy.policy_flashlb", folder / POLICY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
