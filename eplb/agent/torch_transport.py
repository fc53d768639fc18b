"""A ``Transport`` through host memory on a gloo process group of its own; imported by engines only."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist

from eplb.agent.torch_group import TorchGroup
from eplb.errors import ConfigError, TransferError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eplb.agent.transport import Parcel


class TorchTransport:
    """Point-to-point over gloo; one round waits at most ``timeout_s`` seconds for each message.

    ``process_group`` must serve nothing else, because a background thread uses it while the engine serves. Its own time
    limit should be some times ``timeout_s``, so that a rank whose round failed can still tell the others. ``members`` pool
    ranks by place in the group, None = the places themselves.

    Raises:
        ConfigError: the group is not gloo; a collective of the device in a background thread can lock up with the engine's own.
    """

    def __init__(
        self, process_group: dist.ProcessGroup, timeout_s: float = 20.0, members: Sequence[int] | None = None
    ) -> None:
        backend = dist.get_backend(process_group)
        if backend != "gloo":
            raise ConfigError(
                f"the transfer group uses {backend}, must be gloo: its calls run in a background thread beside the engine's own "
                "collectives, and on the device the two can lock each other up; use TorchTransport.create"
            )
        self._timeout_s = timeout_s
        self._abandoned: list[object] = []
        self._broken = False
        self._use(process_group)
        named = list(range(self._group.size) if members is None else members)
        self._rank = named[self._group.rank]
        self._global = {rank: dist.get_global_rank(process_group, place) for place, rank in enumerate(named)}

    def _use(self, process_group: dist.ProcessGroup) -> None:
        self._process_group: dist.ProcessGroup | None = process_group
        self._group = TorchGroup(process_group)

    @classmethod
    def create(
        cls,
        ranks: list[int] | None = None,
        timeout_s: float = 20.0,
        members: Sequence[int] | None = None,
    ) -> Self:
        """A new gloo group of these global ranks (None = all); every process of the job calls it."""
        group = dist.new_group(ranks, timeout=timedelta(seconds=3 * timeout_s), backend="gloo")
        return cls(group, timeout_s, members)

    @property
    def rank(self) -> int:
        """The number of this rank in the pool."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._group.size

    @property
    def broken(self) -> bool:
        """True once a message or a gather failed: gloo closes the connections of such a group."""
        return self._broken

    def renew(self) -> None:
        """Begin anew on a new gloo group of the same ranks; every rank of the job calls it, while no transfer runs anywhere.

        Raises:
            TransferError: the group was closed, or is a part of the job only, whose other processes would have to take part.
        """
        old = self._process_group
        if old is None or self.size != dist.get_world_size():
            raise TransferError(
                "a transfer group is made anew within a life only where it spans the job; re-form the group instead"
            )
        limit = timedelta(seconds=3 * self._timeout_s)
        self._use(dist.new_group(dist.get_process_group_ranks(old), timeout=limit, backend="gloo"))
        dist.destroy_process_group(old)
        self._abandoned, self._broken = [], False

    def close(self) -> None:
        """Let the process group go; what a transfer still waits for fails within its own time limit."""
        self._process_group = None
        self._group.close()

    def exchange(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """Do one round.

        Raises:
            TransferError: a message did not pass in time, or the group is broken by an earlier failure.
        """
        group = self._process_group
        if group is None or self._broken:
            raise TransferError(
                "the transfer group is closed or broken by an earlier failure; the next gate with an offer makes it anew"
            )
        work: list[tuple[int, dist.Work | None]] = []
        peer = self.rank
        try:
            for peer, tag, out in receives:
                if out.size:
                    buffer = torch.from_numpy(out)
                    work.append((peer, dist.irecv(buffer, self._global[peer], group, tag)))
            for peer, tag, data in sends:
                if data.size:
                    buffer = torch.from_numpy(data)
                    work.append((peer, dist.isend(buffer, self._global[peer], group, tag)))
            for peer, handle in work:  # noqa: B007 - the error names the last one
                if handle is None:
                    raise TransferError(f"rank {self.rank}: not a member of the transfer group")
                handle.wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            # Bytes may still come into these buffers, so they must outlive the failure; gloo has closed the group.
            self._abandoned, self._broken = [work, sends, receives], True
            raise TransferError(
                f"rank {self.rank}: exchange with rank {peer} failed: {error!s:.120}"
            ) from error

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """All ranks' arrays, [size, ...]."""
        try:
            return self._group.gather(array)
        except RuntimeError as error:
            self._broken = True
            raise TransferError(f"rank {self.rank}: the gather of results failed: {error!s:.120}") from error
