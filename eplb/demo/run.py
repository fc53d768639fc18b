"""One run of the demo: store, daemon and ranks as real processes; this process directs, checks and shows."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eplb.demo.checker import Checker, Finding
from eplb.demo.daemon_process import DaemonProcess, daemon_config
from eplb.demo.director import Command, Direction, Limits, Stage, StepFact, advance
from eplb.demo.errors import DemoError, RankFailure, RunStalled
from eplb.demo.facts import RankReady, RankStep, RankSwitch
from eplb.demo.interrupt import Interrupt
from eplb.demo.moves import MoveLedger
from eplb.demo.progress import Progress
from eplb.demo.rank_group import Assembly, RankGroup
from eplb.demo.reference import Reference
from eplb.demo.report import Report
from eplb.demo.routing import RECORDED_DOMAINS, routing_of
from eplb.demo.setup import REQUESTS, RankPlan, RunFacts, run_facts
from eplb.errors import StoreError
from eplb.store.client import Store
from eplb.store.embedded import EmbeddedStore

if TYPE_CHECKING:
    from eplb.demo.facts import GroupStep, RankMessage
    from eplb.demo.progress import View
    from eplb.demo.routing import Routing

CHECK_STEPS = 8
RECENT_STEPS = 20
WAIT_S = 0.2
SILENCE_S = 60.0
DECISION_S, DECISIONS_READ = 0.5, 8
PLANNING, CONTENT, PAUSED = (
    "planning:",
    ("balanced:", "gain_too_small:", "indivisible_hot_expert:", "thrash:"),
    "paused:",
)
DEFAULT_RANKS, DEFAULT_DISPATCH = 8, "weighted"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for; ``trace`` None = the recorded one if present; ``fault`` a word to inject or ""."""

    seed: int = 0
    seconds: float = 240.0
    ranks: int = DEFAULT_RANKS
    trace: str | None = None
    dispatch: str = DEFAULT_DISPATCH
    fault: str = ""


@dataclass(slots=True)
class _Times:
    """Milliseconds of every step after the warm-up, the slowest rank's; parts are means over ranks."""

    step: list[float] = field(default_factory=list)
    dispatch: list[float] = field(default_factory=list)
    expert: list[float] = field(default_factory=list)
    combine: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)
    gate: list[float] = field(default_factory=list)

    def add(self, step: GroupStep) -> None:
        parts = [rank.times for rank in step.ranks]
        self.step.append(step.step_us / 1e3)
        self.gate.append(step.gate_us / 1e3)
        self.dispatch.append(statistics.fmean(part.dispatch_us for part in parts) / 1e3)
        self.expert.append(statistics.fmean(part.expert_us for part in parts) / 1e3)
        self.combine.append(statistics.fmean(part.combine_us for part in parts) / 1e3)
        self.wait.append(statistics.fmean(part.wait_us for part in parts) / 1e3)


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def _worst(values: list[float]) -> float | None:
    return round(max(values), 3) if values else None


class DemoRun:
    """Directs one run. ``outcome`` gives the report so far at any time, also after an error."""

    def __init__(self, options: Options, view: View) -> None:
        self._options, self._view = options, view
        self._started_s = time.monotonic()
        self._first_step_s = 0.0
        routing = routing_of(options.trace, options.seed)
        self._facts: RunFacts = run_facts(
            routing,
            ranks=options.ranks,
            seed=options.seed,
            dispatch=options.dispatch,
            run_id=time.time_ns() // 1_000_000,
        )
        self._checker = Checker(routing, Reference(self._facts.spec), self._facts.batch())
        self._ledger = MoveLedger(self._facts.facts, self._facts.start_map())
        self._assembly = Assembly(options.ranks)
        self._direction, self._limits = Direction(), _limits(routing, short=bool(options.fault))
        self._unchecked: list[GroupStep] = []
        self._recent: deque[GroupStep] = deque(maxlen=RECENT_STEPS)
        self._times = _Times()
        self._step = 0
        self._map_version = 0
        self._second_domain = 0
        self._finding: Finding | None = None
        self._decision, self._last_acting = "no decision yet", ""
        self._decision_read_s = 0.0
        self._heard_s = time.monotonic()
        self._notes: dict[str, int] = {}

    @property
    def finding(self) -> Finding | None:
        """The first fault that was found."""
        return self._finding

    @property
    def served(self) -> bool:
        """Whether a step was served, so that there is something to report."""
        return self._checker.totals.steps > 0

    def run(self) -> None:
        """Run to the end of the four readings, to the first fault, or to an error.

        Raises:
            DemoError: the run could not finish; the message says why.
        """
        with ExitStack() as stack:
            interrupt = stack.enter_context(Interrupt())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eplb-demo-")))
            server = stack.enter_context(EmbeddedStore())
            facts = self._facts.facts
            store = stack.enter_context(Store(server.url, facts.pool))
            store.write_control({"paused": b"1"})
            plans = [
                RankPlan(rank, self._facts, server.url, str(folder / "rendezvous"), self._options.fault)
                for rank in range(facts.ranks)
            ]
            ranks = stack.enter_context(RankGroup(plans))
            daemon = stack.enter_context(
                DaemonProcess(daemon_config(facts, server.url, self._options.dispatch), folder)
            )
            stack.enter_context(self._view)
            try:
                self._loop(ranks, daemon, store, interrupt)
            except RankFailure as error:
                raise RankFailure(f"{error} ({self._place()})") from error

    def _loop(self, ranks: RankGroup, daemon: DaemonProcess, store: Store, interrupt: Interrupt) -> None:
        self._heard_s = time.monotonic()
        while ranks.running:
            interrupt.check()
            messages = ranks.messages(WAIT_S)
            for message in messages:
                self._take(message, ranks, store)
            if len(self._unchecked) >= CHECK_STEPS or (self._unchecked and not messages):
                self._check(ranks)
            self._watch(daemon, store, heard=bool(messages))
            self._view.show(self._progress())
        self._check(ranks)
        for end in ranks.ended:
            for name, count in end.notes.items():
                self._notes[name] = self._notes.get(name, 0) + count

    def _watch(self, daemon: DaemonProcess, store: Store, *, heard: bool) -> None:
        """Look after time, the daemon and what it decided."""
        now_s = time.monotonic()
        self._heard_s = now_s if heard else self._heard_s
        if now_s - self._heard_s > SILENCE_S:
            raise RunStalled(
                f"no rank finished a step for {SILENCE_S:.0f} s; the last complete step was {self._step}"
            )
        if (
            self._finding is None
            and self._direction.stage is not Stage.DONE
            and self._elapsed_s() > self._options.seconds
        ):
            raise RunStalled(
                f"--seconds {self._options.seconds:g} ended; give the run more time ({self._place()})"
            )
        daemon.check()
        if now_s - self._decision_read_s >= DECISION_S:
            self._decision_read_s = now_s
            self._hear_decisions(store)

    def _hear_decisions(self, store: Store) -> None:
        decisions = _last_decisions(store)
        self._decision = decisions[-1] if decisions else self._decision
        acting = [decision for decision in decisions if not decision.startswith(PAUSED)]
        self._last_acting = acting[-1] if acting else self._last_acting

    def _place(self) -> str:
        """Where the run stands, for an error."""
        return f"at step {self._step}, {self._direction.stage.value}; the daemon's last decision: {self._decision}"

    def _take(self, message: RankMessage, ranks: RankGroup, store: Store) -> None:
        if isinstance(message, RankReady):
            self._notes["startup_ms_slowest_rank"] = max(
                self._notes.get("startup_ms_slowest_rank", 0), round(message.startup_s * 1e3)
            )
        elif isinstance(message, RankSwitch):
            self._ledger.add(message)
        elif isinstance(message, RankStep):
            whole = self._assembly.add(message)
            if whole is not None:
                self._take_step(whole, ranks, store)

    def _take_step(self, step: GroupStep, ranks: RankGroup, store: Store) -> None:
        if step.step == 0:
            self._first_step_s = self._elapsed_s()
        self._step, self._map_version = step.step, step.map_version
        self._unchecked.append(step)
        self._recent.append(step)
        if step.step >= self._limits.warm_up_steps:
            self._times.add(step)
        self._second_domain = sum(
            int((self._facts.routing.domain_of[rank.sequences] == 1).sum()) for rank in step.ranks
        )
        fact = StepFact(
            step=step.step,
            ratio=float(step.ratio_by_layer().mean()),
            map_version=step.map_version,
            live_digest=step.live_digest,
            second_domain=self._second_domain,
            requests=REQUESTS,
            shift_step=step.ranks[0].shift_step,
            planning=self._decision.startswith(PLANNING),
            content=self._decision.startswith(CONTENT),
        )
        self._direction, commands = advance(self._direction, fact, self._limits, self._decision)
        for command in commands:
            self._obey(command, ranks, store)

    def _obey(self, command: Command, ranks: RankGroup, store: Store) -> None:
        if command in (Command.PAUSE, Command.RESUME):
            store.write_control({"paused": b"1" if command is Command.PAUSE else b"0"})
        else:
            ranks.order(command)

    def _check(self, ranks: RankGroup) -> None:
        if not self._unchecked:
            return
        steps, self._unchecked = self._unchecked, []
        findings = self._checker.check(steps)
        if findings and self._finding is None:
            self._finding = findings[0]
            if ranks.running:
                ranks.order(Command.STOP)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _progress(self) -> Progress:
        recent = list(self._recent)
        load = np.sum([step.received() for step in recent], axis=0) if recent else None
        return Progress(
            stage=self._direction.stage.value,
            step=self._step,
            map_version=self._map_version,
            in_flight=f"{REQUESTS - self._second_domain} + {self._second_domain} requests in flight",
            model_layers=self._facts.facts.model_layers,
            ratio_by_layer=np.mean([step.ratio_by_layer() for step in recent], axis=0) if recent else None,
            load_by_rank=None if load is None else load.sum(axis=0) / load.sum(axis=0).mean(),
            readings=self._direction.readings,
            decision=self._decision,
            tokens=self._checker.totals.tokens,
            mismatches=self._checker.totals.mismatches,
            step_ms=self._times.step[-1] if self._times.step else None,
        )

    def _limits_binding(self) -> bool:
        """Whether the limits on the readings are a promise: they are of this setting, others show what they show."""
        return (
            self._facts.routing.domains == RECORDED_DOMAINS
            and self._options.ranks == DEFAULT_RANKS
            and self._options.dispatch == DEFAULT_DISPATCH
        )

    def report(self) -> Report:
        """What the run came to so far."""
        facts, totals, readings = self._facts.facts, self._checker.totals, self._direction.readings
        routing = self._facts.routing
        rounded = {name: round(ratio, 4) for name, ratio in readings.items()}
        return Report(
            trace=routing.name,
            domains=routing.domains,
            layers=facts.model_layers,
            batch=REQUESTS,
            ranks=facts.ranks,
            nodes=facts.nodes,
            slots_per_rank=facts.slots_per_rank,
            experts=facts.experts,
            top_k=facts.top_k,
            dispatch=self._facts.dispatch,
            store="embedded",
            seed=self._facts.seed,
            finished=self._direction.stage is Stage.DONE,
            limits_binding=self._limits_binding(),
            fault=self._finding.word if self._finding else "",
            ratio_start=rounded.get("start"),
            ratio_placed=rounded.get("placed"),
            ratio_shifted=rounded.get("shifted"),
            ratio_replaced=rounded.get("replaced"),
            steps_read=self._direction.steps_read,
            kept=self._direction.kept,
            map_version=self._map_version,
            waves=self._ledger.waves,
            moves=self._ledger.moves,
            moved_bytes=self._ledger.moved_bytes,
            steps=totals.steps,
            tokens=totals.tokens,
            tokens_sent=totals.sent,
            tokens_combined=totals.combined,
            outputs_checked=totals.outputs,
            output_mismatches=totals.mismatches,
            worst_output_error=totals.worst_error,
            step_ms_median=_median(self._times.step),
            step_ms_worst=_worst(self._times.step),
            gate_ms_worst=_worst(self._times.gate),
            dispatch_ms_median=_median(self._times.dispatch),
            expert_ms_median=_median(self._times.expert),
            combine_ms_median=_median(self._times.combine),
            wait_ms_median=_median(self._times.wait),
            startup_s=round(self._first_step_s, 2),
            seconds=round(self._elapsed_s(), 1),
            last_decision_before_pause=self._last_acting,
            rank_notes=self._notes,
        )


def _limits(routing: Routing, *, short: bool) -> Limits:
    """Steps of each part; to show a fault, a ``short`` run up to the first switch is enough."""
    limits = Limits(drain_steps=routing.longest(0) + 1)
    return replace(limits, warm_up_steps=10) if short else limits


def _last_decisions(store: Store) -> list[str]:
    """The daemon's last decisions as ``code: sentence``, oldest first; none while the store is busy."""
    try:
        records = [json.loads(record) for record in store.read_log(DECISIONS_READ)]
        return [f"{record['code']}: {record['sentence']}" for record in records]
    except StoreError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise DemoError(
            f"the daemon's decision log holds a record without code and sentence ({error!s:.80})"
        ) from error
