"""The rank processes as the parent sees them: started together, read together, ended together."""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver
from typing import TYPE_CHECKING, Any, Self

from eplb.demo.errors import RankFailure
from eplb.demo.facts import GroupStep, RankEnd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from eplb.demo.director import Command
    from eplb.demo.facts import RankMessage, RankStep
    from eplb.demo.setup import RankPlan

END_S = 5.0
PEERS_S = 1.0
_RANK_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo" if os.uname().sysname == "Linux" else "lo0",
}


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """These values, and no setting of a deployment: its keys and passwords are not for the ranks of this run."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith("EPLB_")]:
        del os.environ[name]
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _enter_rank(plan: RankPlan, pipe: Connection) -> None:
    from eplb.demo.rank import run_rank

    run_rank(plan, pipe)


class RankGroup:
    """One process a rank, forked from a server that imported torch once; all of them end with the context."""

    def __init__(self, plans: Sequence[RankPlan]) -> None:
        self._plans = plans
        self._processes: list[Any] = []
        self._pipes: dict[Connection, int] = {}
        self._ended: dict[int, RankEnd] = {}

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["eplb.demo.rank"])
        with _environment(_RANK_ENVIRONMENT):
            forkserver.ensure_running()
        for plan in self._plans:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_enter_rank, args=(plan, theirs), name=f"eplb-rank-{plan.rank}", daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes[ours] = plan.rank
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()  # a rank that loses its parent's end leaves at once
        for process in self._processes:
            process.join(END_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes.clear()
        self._processes.clear()

    @property
    def running(self) -> bool:
        """Whether a rank has not said its last word yet."""
        return len(self._ended) < len(self._plans)

    @property
    def ended(self) -> list[RankEnd]:
        """Last words, in rank order."""
        return [self._ended[rank] for rank in sorted(self._ended)]

    def order(self, command: Command) -> None:
        """Tell rank 0, which tells the group at its next control step; ranks that have ended are past all orders."""
        with suppress(OSError):  # what ended rank 0 is told by its last word
            next(pipe for pipe, rank in self._pipes.items() if rank == 0).send(command)

    def messages(self, timeout_s: float) -> list[RankMessage]:
        """What ranks said, waiting at most ``timeout_s`` for a first word.

        Raises:
            RankFailure: a rank died, or left its loop with an error; the first one of them is named.
        """
        found = self._take(timeout_s)
        if any(isinstance(message, RankEnd) and message.error for message in found):
            # when one rank falls, its peers fall over the broken connection: hear them all, name the first
            limit_s = time.monotonic() + PEERS_S
            while self.running and time.monotonic() < limit_s:
                self._take(PEERS_S / 5)
            first = min((end for end in self._ended.values() if end.error), key=lambda end: end.at_s)
            raise RankFailure(f"rank {first.rank} stopped: {first.error}")
        return found

    def _take(self, timeout_s: float) -> list[RankMessage]:
        open_pipes = [pipe for pipe, rank in self._pipes.items() if rank not in self._ended]
        found: list[RankMessage] = []
        for ready in connection.wait(open_pipes, timeout_s):
            pipe: Any = ready
            found.extend(self._drain(pipe))
        return found

    def _drain(self, pipe: Connection) -> Iterator[RankMessage]:
        rank = self._pipes[pipe]
        while rank not in self._ended and pipe.poll(0):
            try:
                message: RankMessage = pipe.recv()
            except (EOFError, OSError):
                message = RankEnd(
                    rank,
                    "its process died without a word (a signal, or too little memory)",
                    time.monotonic(),
                    {},
                )
            if isinstance(message, RankEnd):
                self._ended[rank] = message
            yield message


class Assembly:
    """Puts the ranks' reports of one step together."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._parts: dict[int, dict[int, RankStep]] = {}

    def add(self, part: RankStep) -> GroupStep | None:
        """Take one rank's report; the whole step once all are there. Steps complete in order."""
        parts = self._parts.setdefault(part.step, {})
        parts[part.rank] = part
        if len(parts) < self._ranks:
            return None
        del self._parts[part.step]
        return GroupStep(part.step, tuple(parts[rank] for rank in range(self._ranks)))
