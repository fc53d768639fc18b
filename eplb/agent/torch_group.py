"""A ``Group`` on a CPU process group of ``torch.distributed``; imported by engines only, never by the daemon."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
import torch.distributed as dist

from eplb.errors import MigrationError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TorchGroup:
    """Collectives over gloo; ``process_group`` should serve nothing but gates, or collectives could interleave.

    Each call raises when a rank does not come within the group's own time limit, and after ``close``.
    """

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self._open: dist.ProcessGroup | None = process_group
        self._rank = dist.get_rank(process_group)
        self._size = dist.get_world_size(process_group)
        self._global = dist.get_process_group_ranks(process_group)

    @classmethod
    def create(cls, ranks: list[int] | None = None, timeout_s: float = 30.0) -> Self:
        """A new gloo group of these global ranks (None = all); every process of the job calls it."""
        return cls(dist.new_group(ranks, timeout=timedelta(seconds=timeout_s), backend="gloo"))

    @property
    def _group(self) -> dist.ProcessGroup:
        # torch takes None for the group of all processes, which may be another life's by now.
        if self._open is None:
            raise MigrationError("this process group was closed; go on with the groups of the new life")
        return self._open

    def close(self) -> None:
        """Let the process group go: its sockets close with its last reference, and peers that wait for this rank hear it."""
        self._open = None

    @property
    def rank(self) -> int:
        """The number of this rank within the group."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._size

    def broadcast(self, array: NDArray[Any], source: int = 0) -> NDArray[Any]:
        """The array of rank ``source``."""
        tensor = torch.from_numpy(np.array(array, copy=True))
        dist.broadcast(tensor, src=self._global[source], group=self._group)
        return np.asarray(tensor.numpy())

    def min(self, value: int) -> int:
        """The smallest of all ranks' values."""
        tensor = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=self._group)
        return int(tensor.item())

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """All ranks' arrays, [size, ...]."""
        tensor = torch.from_numpy(np.array(array, copy=True))
        gathered = [torch.empty_like(tensor) for _ in range(self._size)]
        dist.all_gather(gathered, tensor, group=self._group)
        return np.stack([part.numpy() for part in gathered])
