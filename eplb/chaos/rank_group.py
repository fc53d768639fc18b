"""The ranks as the driver sees them: steps in lockstep, and a new group whenever the present one broke or a rank is back."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from multiprocessing import connection
from typing import TYPE_CHECKING, TypeVar

from eplb.chaos.errors import ChaosError
from eplb.chaos.load import shared_out
from eplb.chaos.messages import Broken, Form, Formed, GroupStep, Ready, Serve, Served
from eplb.chaos.processes import Child, after, start_rank
from eplb.chaos.rank import RankPlan

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

    from eplb.chaos.load import Tokens
    from eplb.chaos.setup import RunFacts

T = TypeVar("T")
FORM_S, STEP_S = 30.0, 30.0
ATTEMPTS = 4
START_POLL_S = 0.02


class RankGroup:
    """Serves steps and keeps a step's tokens until all outputs are back; a broken group forms anew and serves the step again.

    ``guards_off``, ``keep_shares`` (ranks): see ``RankPlan``.
    """

    def __init__(
        self,
        run: RunFacts,
        store_url: str,
        folder: Path,
        *,
        guards_off: frozenset[str] = frozenset(),
        keep_shares: frozenset[int] = frozenset(),
    ) -> None:
        self._run, self._store_url, self._folder = run, store_url, folder
        self._guards_off, self._keep_shares = guards_off, keep_shares
        self._children: dict[int, Child] = {}
        self._orders: dict[int, list[tuple[str, float]]] = {}
        self._ready: set[int] = set()
        self.members: tuple[int, ...] = ()
        self._run_id = time.time_ns() // 1_000_000
        self._step = 0
        self.formed: list[tuple[float, tuple[int, ...], float]] = []
        self.replayed = 0

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all ranks with the start map and form their first group."""
        for rank in range(self._run.facts.ranks):
            self._children[rank] = start_rank(self._plan(rank, fresh=True))
        limit_s = time.monotonic() + FORM_S
        while len(self._candidates()) < self._run.facts.ranks and time.monotonic() < limit_s:
            time.sleep(START_POLL_S)
        self._form(first=True)

    def _candidates(self) -> tuple[int, ...]:
        """Ranks that live and have started: the others serve on while one starts."""
        for rank, child in self._children.items():
            if rank not in self._ready and child.alive and child.pipe.poll(0):
                with suppress(EOFError, OSError):
                    if isinstance(child.pipe.recv(), Ready):
                        self._ready.add(rank)
        return tuple(sorted(rank for rank in self._ready if self.alive(rank)))

    def _plan(self, rank: int, *, fresh: bool) -> RankPlan:
        return RankPlan(
            rank, self._run, self._store_url, fresh, self._guards_off, keeps_shares=rank in self._keep_shares
        )

    def alive(self, rank: int) -> bool:
        """Whether the rank's process runs."""
        return rank in self._children and self._children[rank].alive

    @property
    def whole(self) -> bool:
        """Whether all ranks of the pool serve together."""
        return len(self.members) == self._run.facts.ranks and all(map(self.alive, self.members))

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by rank."""
        return {rank: child.pid for rank, child in self._children.items()}

    def kill(self, rank: int, delay_s: float) -> None:
        """SIGKILL in a moment."""
        child = self._children[rank]
        after(delay_s, lambda: child.signal(signal.SIGKILL))

    def revive(self, rank: int) -> None:
        """Start a dead rank again, without weights; once it is ready the group forms anew with it, before the next step."""
        self._ready.discard(rank)
        self._children[rank].end()
        self._children[rank] = start_rank(self._plan(rank, fresh=False))

    def order(self, rank: int, name: str, value: float) -> None:
        """Give a rank an order with its next step."""
        self._orders.setdefault(rank, []).append((name, value))

    def end(self) -> None:
        """End all ranks."""
        for child in self._children.values():
            child.signal(signal.SIGKILL)
        for child in self._children.values():
            child.end()

    # --- steps --------------------------------------------------------------------------------------------------------

    def serve(self, tokens: Tokens) -> GroupStep:
        """Serve the next step, on as many lives of the group as it takes.

        Raises:
            ChaosError: no group could serve it.
        """
        for _ in range(ATTEMPTS):
            if self.members != self._candidates():
                self._form()
            inputs = shared_out(tokens, self.members)
            for rank in self.members:
                orders = tuple(self._orders.pop(rank, ()))
                self._children[rank].tell(Serve(self._step, inputs[rank], orders))
            answers = self._answers(STEP_S, self._served)
            parts = {rank: answer for rank, answer in answers.items() if isinstance(answer, Served)}
            if len(parts) == len(self.members):
                self._step += 1
                return GroupStep(self._step - 1, self._run_id, self.members, inputs, parts, time.monotonic())
            self.replayed += 1
            self._form()
        raise ChaosError(f"step {self._step} could not be served in {ATTEMPTS} groups")

    def _served(self, answer: object) -> Served | Broken | None:
        if isinstance(answer, Served) and answer.run_id != self._run_id:
            return None  # of a life that is over
        return answer if isinstance(answer, Served | Broken) else None

    def _formed(self, answer: object) -> Formed | None:
        return answer if isinstance(answer, Formed) and answer.run_id == self._run_id else None

    def _answers(self, limit_s: float, wanted: Callable[[object], T | None]) -> dict[int, T]:
        """One answer of each member that lives, as ``wanted`` lets it through; a member that dies gives none."""
        pipes: dict[Connection, int] = {self._children[rank].pipe: rank for rank in self.members}
        answers: dict[int, T] = {}
        end_s = time.monotonic() + limit_s
        while pipes and (left_s := end_s - time.monotonic()) > 0:
            for ready in connection.wait(list(pipes), left_s):
                pipe: Connection = ready  # type: ignore[assignment]
                rank = pipes[pipe]
                try:
                    answer = wanted(pipe.recv())
                except (EOFError, OSError):
                    del pipes[pipe]
                    continue
                if answer is not None:
                    answers[rank] = answer
                    del pipes[pipe]
        return answers

    def _form(self, *, first: bool = False) -> None:
        """Bring the living ranks into a group of their own.

        Raises:
            ChaosError: they do not come together, with the ranks' reasons.
        """
        reasons: list[str] = []
        for _ in range(ATTEMPTS):
            self.members = self._candidates()
            self._run_id += 1
            rendezvous = self._folder / f"rendezvous-{self._run_id}"
            begun_s = time.monotonic()
            for rank in self.members:
                self._children[rank].tell(
                    Form(self._run_id, self.members, str(rendezvous), self._step - 1, first)
                )
            formed = list(self._answers(FORM_S, self._formed).values())
            reasons = [f"rank {answer.rank}: {answer.error}" for answer in formed if answer.error]
            if len(formed) == len(self.members) and not reasons:
                self.formed.append((begun_s, self.members, time.monotonic() - begun_s))
                return
            print(f"  group of {self.members} did not form: {'; '.join(reasons)}", file=sys.stderr)
        raise ChaosError(f"ranks {self.members} do not form a group: {'; '.join(reasons) or 'no answer'}")
