"""One chaos run: processes up, steps in lockstep under faults, the judge beside it, and everything down again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from typing import TYPE_CHECKING

from eplb.chaos.errors import ChaosError
from eplb.chaos.faults import KINDS
from eplb.chaos.injector import Injector
from eplb.chaos.load import tokens_of
from eplb.chaos.messages import Finding, JudgePlan, Tally
from eplb.chaos.processes import DaemonProcess, StoreProcess, start_fork_server
from eplb.chaos.rank_group import RankGroup
from eplb.chaos.schedule import FULL, Scale
from eplb.chaos.setup import RANKS, STEP_S, TOKENS_PER_STEP, WEIGHTED, daemon_config, run_facts
from eplb.chaos.watch import Watch
from eplb.chaos.world import World

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from eplb.chaos.messages import GroupStep

DAEMONS = 2
CALM_S = 4.0
TALLY_S = 1.0
TELL_S = 5.0
FINDINGS_SAID = 20
"""The first ones tell the cause; the report has all."""
VOTE, DIGESTS, TERMS, SHARES = "vote", "digests", "terms", "shares"
GUARDS = {
    VOTE: frozenset({"unanimous_vote"}),
    DIGESTS: frozenset({"weights_right", "probe_right", "read_back"}),
    TERMS: frozenset({"term_not_old"}),
}
"""Guards of the rank that a negative control removes; without ``terms`` the store's fence is removed too, without ``shares`` one rank's engine keeps its old ones."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for; ``without`` "" or a protection that is taken away; ``dispatch`` one of ``DISPATCHES``."""

    seed: int = 0
    seconds: float = 530.0
    scale: Scale = FULL
    kinds: frozenset[str] = frozenset(KINDS)
    without: str = ""
    dispatch: str = WEIGHTED


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    injector: Injector
    tally: Tally = field(default_factory=Tally)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    lives: int = 0
    replayed: int = 0
    form_s: list[float] = field(default_factory=list)


class JudgeProcess:
    """The judge beside the run, as a process that this one only writes to and hears from."""

    def __init__(self, plan: JudgePlan, log_path: Path) -> None:
        ours, theirs = Pipe()
        self.pipe: Connection = ours
        self._log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "eplb.chaos.judge", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        theirs.close()
        self.pipe.send(plan)
        self.findings: list[Finding] = []
        self.tally = Tally()

    def hear(self, wait_s: float = 0.0) -> None:
        """Take what it has said."""
        while self.pipe.poll(wait_s):
            message = self.pipe.recv()
            if isinstance(message, Finding):
                self.findings.append(message)
            elif isinstance(message, Tally):
                self.tally = message
                wait_s = 0.0

    def end(self) -> None:
        """Let it judge what is left, and end it.

        Raises:
            ChaosError: it did not come to its end, so that its counts say nothing.
        """
        self.pipe.send("end")
        try:
            while True:
                self.hear(None)  # type: ignore[arg-type]
        except (EOFError, OSError):
            status = self._process.wait()
        if status:
            raise ChaosError(
                f"the judge ended with status {status}, so nothing is judged; see {self._log_path}"
            )

    def kill(self) -> None:
        """End it, whatever it does."""
        self.pipe.close()
        self._process.kill()
        self._process.wait()


class ChaosRun:
    """One run in ``folder``, where all logs lie."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._run = run_facts(options.seed)
        self._began_s = time.monotonic()
        self._steps: deque[float] = deque(maxlen=50)
        self._notes: dict[int, str] = {}
        self._told_s = self._tallied_s = 0.0

    def run(self) -> Outcome:
        """Serve, break and heal until everything scheduled is done, or the time is over.

        Raises:
            ChaosError: a process did not start or the ranks could not form a group.
        """
        options, folder, facts = self._options, self._folder, self._run.facts
        start_fork_server()
        with ExitStack() as stack:
            store = StoreProcess(folder)
            stack.callback(store.kill)
            store.start()
            judge = JudgeProcess(self._judge_plan(store), folder / "judge.log")
            stack.callback(judge.kill)
            ranks = RankGroup(
                self._run,
                store.url,
                folder,
                guards_off=GUARDS.get(options.without, frozenset()),
                keep_shares=frozenset({RANKS - 1} if options.without == SHARES else ()),
            )
            stack.callback(ranks.end)
            settings = partial(daemon_config, facts, store.url, options.dispatch)
            daemons = [
                DaemonProcess(place, folder, settings, fenced=options.without != TERMS)
                for place in range(DAEMONS)
            ]
            for daemon in daemons:
                stack.callback(daemon.end)
                daemon.start()
            watch = Watch(facts, str(store.socket))
            stack.callback(watch.stop)
            ranks.start()
            watch.start()
            world = World(store, daemons, ranks, watch)
            injector = Injector(options.scale, options.kinds, options.seed, judge.pipe.send)
            self._loop(world, injector, judge)
            judge.end()
            return Outcome(
                injector,
                judge.tally,
                judge.findings,
                time.monotonic() - self._began_s,
                len(ranks.formed),
                ranks.replayed,
                [seconds for _, _, seconds in ranks.formed],
            )

    def _judge_plan(self, store: StoreProcess) -> JudgePlan:
        facts, spec = self._run.facts, self._run.spec
        return JudgePlan(
            seed=self._run.seed,
            socket=str(store.socket),
            pool=facts.pool,
            ranks=facts.ranks,
            slots_per_rank=facts.slots_per_rank,
            experts=facts.experts,
            top_k=facts.top_k,
            model_layers=facts.model_layers,
            hidden=spec.hidden,
            inter=spec.inter,
        )

    def _loop(self, world: World, injector: Injector, judge: JudgeProcess) -> None:
        step, calm_s = 0, 0.0
        while True:
            begun_s = time.monotonic()
            served = world.ranks.serve(tokens_of(self._run.seed, step, TOKENS_PER_STEP))
            judge.pipe.send(served)
            self._note(world, served)
            step += 1
            injector.tick(world)
            self._hear(judge)
            injector.committed(judge.tally.waves, time.monotonic())
            self._tell(world, injector, judge)
            now_s = time.monotonic()
            if now_s - self._began_s > self._options.seconds:
                injector.stop()
            if judge.findings and self._options.without:
                return
            if judge.tally.refused + judge.tally.aborted < self._options.scale.refused:
                injector.refuse_more(world)
            calm_s = self._calm_since(calm_s, injector, judge, now_s)
            if calm_s and now_s - calm_s > CALM_S:
                return
            time.sleep(max(0.0, STEP_S - (time.monotonic() - begun_s)))

    def _calm_since(self, calm_s: float, injector: Injector, judge: JudgeProcess, now_s: float) -> float:
        """Since when nothing is left to do; 0 = something is."""
        scale, over = self._options.scale, now_s - self._began_s > self._options.seconds
        tally = judge.tally
        refused = tally.refused + tally.aborted >= scale.refused or not injector.can_refuse
        waves = tally.waves >= scale.waves and tally.shares_only >= scale.shares_only
        reached = waves and refused
        if not injector.done or not (reached or over):
            return 0.0
        return calm_s or now_s

    def _note(self, world: World, served: GroupStep) -> None:
        self._steps.append(served.done_s)
        for rank, part in served.parts.items():
            for name in part.happened:
                world.happened[rank, name] += 1
            if part.note and part.note != self._notes.get(rank):
                print(f"rank {rank} is stuck at step {served.step}: {part.note}", file=sys.stderr)
            self._notes[rank] = part.note

    def _hear(self, judge: JudgeProcess) -> None:
        before = len(judge.findings)
        judge.hear()
        for finding in judge.findings[before:FINDINGS_SAID]:
            where = f"step {finding.step}, {finding.at_s - self._began_s:.1f} s"
            faults = "; ".join(finding.faults) or "no fault"
            print(f"FOUND {finding.word}: {finding.sentence} ({where}; in flight: {faults})", file=sys.stderr)
        if time.monotonic() - self._tallied_s > TALLY_S:
            self._tallied_s = time.monotonic()
            judge.pipe.send("tally")

    def _tell(self, world: World, injector: Injector, judge: JudgeProcess) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < TELL_S:
            return
        self._told_s = now_s
        rate = (
            (len(self._steps) - 1) / max(1e-9, self._steps[-1] - self._steps[0])
            if len(self._steps) > 1
            else 0.0
        )
        seen, tally = world.seen, judge.tally
        print(
            f"{now_s - self._began_s:5.0f} s  {rate:4.0f} steps/s  faults {injector.counted:3d}  waves {tally.waves:3d}"
            f" ({tally.shares_only} of shares) +{tally.refused} refused +{tally.aborted} aborted  term {seen.term}  {seen.phase or '-'} {seen.code}"
            f"  ranks {len(world.ranks.members)}  [{injector.waiting()}]",
            file=sys.stderr,
            flush=True,
        )
