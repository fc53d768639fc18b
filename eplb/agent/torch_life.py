"""One life of an EP group over gloo: how its process groups are set up, and torn down so that survivors can begin another.

A rank that dies closes its sockets, so its neighbours' collectives fail at once. The others wait on *living* ranks, and hear of it
only when these close theirs: a process group's sockets close when its last reference goes. So ``end`` drops every reference before
it calls ``destroy_process_group``; the failure then runs through the group in milliseconds instead of a time limit. A rank that hangs keeps its
sockets open: then the group's time limit counts, or whoever starts the ranks kills it.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Self

import torch.distributed as dist

from eplb.agent.torch_group import TorchGroup
from eplb.agent.torch_transport import TorchTransport
from eplb.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class TorchLife:
    """The process groups of one life; torch has one set of them a process, so a life ends before the next begins.

    ``members`` pool ranks by place; ``gate`` for the agent; ``transport`` for weights; ``more`` groups of the engine's own.
    """

    members: tuple[int, ...]
    gate: TorchGroup
    transport: TorchTransport
    more: list[TorchGroup] = field(default_factory=list)

    @classmethod
    def begin(
        cls,
        rendezvous: str,
        members: Sequence[int],
        rank: int,
        *,
        timeout_s: float = 30.0,
        transfer_timeout_s: float = 20.0,
    ) -> Self:
        """Meet the other members; every one of them calls it.

        ``rendezvous`` an init method that no earlier life used, such as file:///shared/path/life-7; ``members`` pool ranks in rising
        order; ``rank`` this one's. The default group of ``torch.distributed`` is then the life's. ``timeout_s`` bounds the meeting and
        every collective, ``transfer_timeout_s`` one message of weights.

        Raises:
            MigrationError: not all members came in time, or a life of this process has not ended; begin again elsewhere.
        """
        if dist.is_initialized():
            raise MigrationError("this process is still in a group; end that life before the next begins")
        limit = timedelta(seconds=timeout_s)
        try:
            dist.init_process_group(
                "gloo",
                init_method=rendezvous,
                rank=list(members).index(rank),
                world_size=len(members),
                timeout=limit,
            )
            gate = TorchGroup.create(timeout_s=timeout_s)
            transport = TorchTransport.create(timeout_s=transfer_timeout_s, members=members)
        except (RuntimeError, ValueError) as error:
            _destroy()
            raise MigrationError(
                f"rank {rank}: members {list(members)} did not all meet at {rendezvous!r}: {error!s:.200}"
            ) from error
        return cls(tuple(members), gate, transport)

    def group(self, timeout_s: float = 30.0) -> TorchGroup:
        """One more group of all members, for the engine's own collectives; every member calls it. It ends with the life."""
        self.more.append(TorchGroup.create(timeout_s=timeout_s))
        return self.more[-1]

    def end(self) -> None:
        """Leave; never waits for peers. Tensors that a transfer still works with stay with its thread until its time limit."""
        self.transport.close()
        for group in (self.gate, *self.more):
            group.close()
        self.more.clear()
        _destroy()


def _destroy() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    # A traceback of the failed collective may hold the last reference to a group in a cycle.
    gc.collect()
