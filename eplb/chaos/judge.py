"""The judge: a process of its own that is told every step's inputs and outputs, reads the store by itself, and counts what must not be.

Runs as ``python -m eplb.chaos.judge FD``; FD is its end of a pipe to the driver, over which a :class:`JudgePlan`, steps and notes come and findings
go. It loads neither the agent nor the daemon, and says at the end which parts of this project it did load.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from multiprocessing.connection import Connection

import numpy as np

from eplb.chaos.judge_shares import Arrivals, unsound_shares
from eplb.chaos.judge_steps import (
    COUNTS,
    DIVERGENCES,
    STUCK,
    TOKENS_LOST,
    Found,
    Outputs,
    divergences,
    lost_experts,
    lost_tokens,
    untrue_digests,
)
from eplb.chaos.judge_store import PlanSeen, StoreView, StoreWatch
from eplb.chaos.messages import FaultNote, Finding, GroupStep, JudgePlan, Served, Tally

STEP_GAP_S = 10.0
PLAN_S = 30.0
CACHE_S = 7.0
"""A group may switch by what its first rank read 5 s ago at most; a gate and its vote come on top. A term that is older must be known to it."""
BATCH_STEPS = 16
TICK_S = 0.5
EMPTIED = "store_restart"


class Judge:
    """Counts; ``say`` takes findings and tallies."""

    def __init__(self, plan: JudgePlan, pipe: Connection) -> None:
        self._plan, self._pipe = plan, pipe
        self._outputs = Outputs(plan)
        self._watch = StoreWatch(plan.socket, plan.pool)
        self._counts = dict.fromkeys(COUNTS, 0)
        self._steps = self._tokens = 0
        self._next_step: int | None = None
        self._done_s = 0.0
        self._gap_told = False
        self._longest_gap_s = self._longest_plan_s = 0.0
        self._switched: dict[str, set[int]] = {}
        self._shares_only: dict[str, bool] = {}
        self._arrivals = Arrivals()
        self._before: GroupStep | None = None
        self._faults: dict[int, FaultNote] = {}
        self._healed: list[tuple[FaultNote, FaultNote]] = []
        self._plans_told: set[str] = set()
        self._term_seen = 0

    # --- what comes in ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read the store."""
        self._watch.start()

    def note(self, note: FaultNote) -> None:
        """A fault begins or ends."""
        if note.healed:
            begun = self._faults.pop(note.number, note)
            self._healed.append((begun, note))
            return
        self._faults[note.number] = note
        if note.kind == EMPTIED:
            with self._watch.lock:
                self._watch.view.emptied()
                # What ranks have seen is all that can be known of the terms before.
                self._watch.view.see_term(self._term_seen, note.at_s)

    def steps(self, steps: list[GroupStep]) -> None:
        """Some steps, in order."""
        wrong = self._outputs.check(steps)
        for step, found in zip(steps, wrong, strict=True):
            self._one(step, found)

    def _one(self, step: GroupStep, wrong: list[Found]) -> None:
        found = [
            *lost_tokens(step, self._plan.top_k),
            *divergences(step),
            *untrue_digests(step, self._plan.model_layers),
            *lost_experts(step, self._plan.experts, self._plan.slots_per_rank),
            *unsound_shares(step, self._plan.experts, self._plan.slots_per_rank),
            *self._arrivals.check(step),
            *wrong,
            *self._order(step),
            *self._switches(step),
        ]
        self._before = step
        self._steps += 1
        self._tokens += sum(len(part.tokens.sequences) for part in step.parts.values())
        self._term_seen = max([self._term_seen, *(part.term_seen for part in step.parts.values())])
        for word, weight, sentence in found:
            self._find(word, weight, sentence, step.step, step.done_s)

    def _order(self, step: GroupStep) -> list[Found]:
        """Every step is served once, in order, and soon after the one before."""
        found: list[Found] = []
        if self._next_step is not None and step.step != self._next_step:
            found.append((TOKENS_LOST, 1, f"step {step.step} came, {self._next_step} was due"))
        self._next_step = step.step + 1
        if self._done_s:
            gap_s = step.done_s - self._done_s
            self._longest_gap_s = max(self._longest_gap_s, gap_s)
            if gap_s > STEP_GAP_S and not self._gap_told:
                found.append((STUCK, 1, f"{gap_s:.1f} s passed since the step before"))
        self._done_s, self._gap_told = step.done_s, False
        return found

    def _switches(self, step: GroupStep) -> list[Found]:
        found: list[Found] = []
        for part in step.parts.values():
            if not part.switched:
                continue
            ranks = self._switched.setdefault(part.switched, set())
            ranks.add(part.rank)
            if len(ranks) > 1:
                continue  # one finding a switch
            if self._moved_nothing(step, part):
                self._shares_only[part.switched] = bool(self._faults)
            sentence = self._of_old_term(part.switched, part.switched_s)
            if sentence:
                found.append((DIVERGENCES, 1, sentence))
        return found

    def _moved_nothing(self, step: GroupStep, part: Served) -> bool:
        """Whether a rank's rows are those of the step before, so that it switched to other shares alone."""
        before = self._before
        if before is None or before.run_id != step.run_id:
            return False
        return np.array_equal(before.parts[part.rank].rows, part.rows)

    def _of_old_term(self, key: str, at_s: float) -> str:
        """Why a switch was not the present leader's, or ""."""
        term = int(key.rpartition("@")[2])
        with self._watch.lock:
            offer = self._watch.view.offers.get(key)
            newest = self._watch.view.newest_term(at_s - CACHE_S)
        if offer is not None and offer.stale:
            return f"the group switched to {key}, written when term {offer.newest_term} had been granted"
        if term < newest:
            return f"the group switched to {key} more than {CACHE_S:g} s after term {newest} had been granted"
        return ""

    # --- what passes by itself ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look for what does not happen."""
        self._watch.check()
        now_s = time.monotonic()
        if self._done_s and now_s - self._done_s > STEP_GAP_S and not self._gap_told:
            self._gap_told = True
            self._find(STUCK, 1, f"no step for {now_s - self._done_s:.1f} s", self._next_step or 0, now_s)
        with self._watch.lock:
            plans = list(self._watch.view.plans.values())
        for plan in plans:
            self._longest_plan_s = max(self._longest_plan_s, (plan.ended_s or now_s) - plan.begun_s)
            limit_s = self._limit_s(plan)
            if plan.plan_id not in self._plans_told and limit_s < (plan.ended_s or now_s):
                self._plans_told.add(plan.plan_id)
                sentence = f"plan {plan.plan_id} has not ended {PLAN_S:g} s after its fault was healed"
                self._find(STUCK, 1, sentence, self._next_step or 0, now_s)

    def _limit_s(self, plan: PlanSeen) -> float:
        """When a plan must have ended: after the first healing of a fault that it met, or, if it met none, after its beginning."""
        ended_s = plan.ended_s or float("inf")
        met = [end.at_s for begun, end in self._healed if begun.at_s < ended_s and end.at_s > plan.begun_s]
        under_way = any(fault.at_s < ended_s for fault in self._faults.values())
        if under_way and not met:
            return float("inf")
        return PLAN_S + max([plan.begun_s, min(met, default=0.0)])

    def _find(self, word: str, weight: int, sentence: str, step: int, at_s: float) -> None:
        self._counts[word] += weight
        names = tuple(f"{note.kind} ({note.detail})" for note in self._faults.values())
        self._pipe.send(Finding(word, weight, sentence, at_s, step, names))

    def tally(self) -> Tally:
        """The counts so far."""
        with self._watch.lock:
            view = self._watch.view
            waves = self._waves(view)
            offers, terms = len(view.offers), len(view.terms)
        return Tally(
            steps=self._steps,
            tokens=self._tokens,
            outputs=self._outputs.outputs,
            worst_error=self._outputs.worst_error,
            waves=waves.count("committed"),
            shares_only=len(self._shares_only),
            shares_faulted=sum(self._shares_only.values()),
            refused=waves.count("refused"),
            aborted=waves.count("aborted"),
            offers=offers,
            terms=terms,
            counts=dict(self._counts),
            longest_gap_s=self._longest_gap_s,
            longest_plan_s=self._longest_plan_s,
            loaded=tuple(
                sorted(n for n in sys.modules if n.split(".")[0] in ("eplb", "collectors", "placement"))
            ),
        )

    def _waves(self, view: StoreView) -> list[str]:
        """How each offer of a wave ended that is over: committed, refused by a rank, or aborted: withdrawn, expired, offered again or lost."""
        ends: list[str] = []
        for offer in view.offers.values():
            if offer.key in self._switched:
                ends.append("committed")
            elif offer.key in view.refused:
                ends.append("refused")
            elif offer.key != view.present:
                ends.append("aborted")
        unseen = self._switched.keys() - view.offers.keys()
        return [*ends, *("committed" for _ in unseen)]


def _read(pipe: Connection, inbox: queue.SimpleQueue[object]) -> None:
    """Take everything at once, so that the driver never waits for the judge's arithmetic."""
    try:
        while True:
            inbox.put(pipe.recv())
    except (EOFError, OSError):
        inbox.put(None)


def serve(pipe: Connection) -> None:
    """Judge until the driver says ``"end"`` or is gone; answers ``"tally"`` and ``"end"`` with a :class:`Tally`."""
    plan = pipe.recv()
    judge = Judge(plan, pipe)
    judge.start()
    inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(pipe, inbox), name="judge-inbox", daemon=True).start()
    steps: list[GroupStep] = []
    ticked_s = time.monotonic()
    while True:
        try:
            message = inbox.get(timeout=TICK_S)
        except queue.Empty:
            message = "nothing"
        if isinstance(message, GroupStep):
            steps.append(message)
        if steps and (len(steps) >= BATCH_STEPS or not isinstance(message, GroupStep)):
            judge.steps(steps)
            steps = []
        if time.monotonic() - ticked_s >= TICK_S:
            ticked_s = time.monotonic()
            judge.tick()
        if isinstance(message, FaultNote):
            judge.note(message)
        elif message == "tally" or message == "end":  # noqa: PLR1714
            judge.tick()
            pipe.send(judge.tally())
        if message is None or message == "end":
            return


if __name__ == "__main__":
    with Connection(int(sys.argv[1])) as connection:
        serve(connection)
