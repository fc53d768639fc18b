"""One rank process: joins the group, serves steps until it is told to stop, and reports every step to the parent."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from collectors import Publisher, Recorder
from collectors.digests import layer_map_digest, layer_map_digests, live_map_digest
from collectors.facts import Kind, Phase
from eplb.agent.agent import Agent
from eplb.agent.link import StoreLink
from eplb.agent.torch_group import TorchGroup
from eplb.agent.torch_transport import TorchTransport
from eplb.demo.checker import LOST_TOKEN, SPLIT_SWITCH, WRONG_EXPERT
from eplb.demo.director import Command
from eplb.demo.dispatch import Dispatcher, Source
from eplb.demo.errors import BrokenSlot, RankFailure
from eplb.demo.facts import RankEnd, RankReady, RankStep, RankSwitch
from eplb.demo.faults import FAULTY_RANK, DropOne, overwrite_slot
from eplb.demo.memory import SlotMemory
from eplb.demo.runtime import Forward, Group
from eplb.demo.setup import EASED_PAUSE_S, GATE_STEPS, PUBLISH_INTERVAL_S

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from eplb.agent.switch import Switched
    from eplb.demo.runtime import ForwardResult
    from eplb.demo.setup import RankPlan

CONTROL_STEPS = 4
GROUP_TIMEOUT_S = 60.0
RANK_NICENESS = 5
_PARENT_GONE = 3


@dataclass(slots=True)
class Orders:
    """What the parent asked of rank 0; every rank watches the pipe, so that none outlives the parent."""

    pipe: Connection
    stop: bool = False
    shift: bool = False
    eased: bool = False

    def watch(self) -> None:
        """Take orders until the parent is gone, then end this process at once."""
        try:
            while True:
                order = self.pipe.recv()
                self.stop = self.stop or order is Command.STOP
                self.shift = self.shift or order is Command.SHIFT
                if order in (Command.EASE, Command.FULL):
                    self.eased = order is Command.EASE
        except (EOFError, OSError):
            os._exit(_PARENT_GONE)


@dataclass(slots=True)
class Rank:
    """The engine of one rank with its collector and agent."""

    plan: RankPlan
    orders: Orders
    forward: Forward
    recorder: Recorder
    agent: Agent
    rows: NDArray[np.int32]
    digests: NDArray[np.uint64]
    shift_step: int = -1
    eased: bool = False
    fault_done: bool = False
    received: NDArray[np.int64] = field(init=False)
    live_digest: int = field(init=False)

    def __post_init__(self) -> None:
        self.live_digest = live_map_digest(self.digests)
        facts = self.plan.run.facts
        self.received = np.zeros((facts.layers, facts.slots_per_rank), dtype=np.int64)

    def serve(self) -> None:
        """Serve steps until rank 0 is told to stop."""
        facts, batch = self.plan.run.facts, self.plan.run.batch()
        step = 0
        while True:
            stop = self._control(step)
            if stop:
                return
            if step > 0:
                batch.advance()
            if self.shift_step == step:
                batch.shift()
            begun_s = time.perf_counter()
            self._gate(step)
            gate_us = (time.perf_counter() - begun_s) * 1e6
            tokens = batch.tokens().of_rank(self.plan.rank, facts.ranks)
            forward = self.forward.step(tokens)
            result = replace(forward, times=forward.times.after_gate(gate_us))
            self._record(step, result, len(tokens.sequences))
            self.orders.pipe.send(self._fact(step, tokens.sequences, tokens.positions, result))
            step += 1

    def _control(self, step: int) -> bool:
        """Rank 0 tells the group every ``CONTROL_STEPS`` steps whether to stop, to change the domain, to pace its steps."""
        stop = False
        if step % CONTROL_STEPS == 0:
            word = torch.tensor([self.orders.stop, self.orders.shift, self.orders.eased], dtype=torch.int64)
            dist.broadcast(word, src=0)
            stop, shift, self.eased = (bool(x) for x in word.tolist())
            if shift and self.shift_step < 0:
                self.shift_step = step
        if self.eased and not stop:
            time.sleep(EASED_PAUSE_S)
        return stop

    def _gate(self, step: int) -> None:
        switched = self.agent.before_forward(step)
        if self.agent.in_doubt:
            raise RankFailure(
                f"rank {self.plan.rank}: the result of a vote on a switch did not come, so the others may serve another map"
            )
        if switched is None:
            return
        check_slots(switched, self.plan.run.facts.model_layers)
        if self._injects(SPLIT_SWITCH):
            self.fault_done = True
            return
        self._take_over(switched)
        facts = self.plan.run.facts
        self.orders.pipe.send(
            RankSwitch(
                self.plan.rank,
                step,
                switched.map_version,
                switched.layers,
                np.array(switched.rows, dtype=np.int32),
            )
        )
        if self._injects(WRONG_EXPERT):
            overwrite_slot(
                self.forward.memory, self.rows, self.received, self.plan.rank * facts.slots_per_rank
            )
            self.fault_done = True
        if self._injects(LOST_TOKEN):
            self.forward.combine = DropOne()
            self.fault_done = True

    def _injects(self, fault: str) -> bool:
        return self.plan.fault == fault and self.plan.rank == FAULTY_RANK and not self.fault_done

    def _take_over(self, switched: Switched) -> None:
        """Dispatch by the new rows and shares from this step on; the digest is that of what dispatch really has."""
        facts = self.plan.run.facts
        for place, layer in enumerate(switched.layers):
            row = self.rows[layer] = switched.rows[place]
            shares = None if switched.shares is None else switched.shares[place]
            self.forward.dispatcher.rebuild(layer, row, None if shares is None else shares.tolist())
            self.digests[layer] = layer_map_digest(facts.model_layers[layer], row, shares)
        self.live_digest = live_map_digest(self.digests)

    def _record(self, step: int, result: ForwardResult, tokens: int) -> None:
        self.received = result.received
        times = result.times
        self.recorder.record_step(
            step,
            Phase.DECODE,
            result.received,
            tokens,
            step_us=times.step_us,
            moe_wait_us=times.wait_us,
            a2a_us=times.dispatch_us + times.combine_us - times.wait_us,
            expert_us=times.expert_us,
        )

    def _fact(
        self, step: int, sequences: NDArray[np.int32], positions: NDArray[np.int32], result: ForwardResult
    ) -> RankStep:
        return RankStep(
            rank=self.plan.rank,
            step=step,
            sequences=sequences,
            positions=positions,
            states=result.states,
            received=result.received,
            sent=result.sent,
            combined=result.combined,
            live_digest=self.live_digest,
            map_version=self.agent.map_version,
            shift_step=self.shift_step,
            times=result.times,
        )


def check_slots(switched: Switched, model_layers: tuple[int, ...]) -> None:
    """Do not serve from slots of this rank whose weights are not those of the map that the group switched to.

    The other ranks send tokens to these slots from this step on and cannot know better, so this rank stops, and the group with it. An engine
    may load the experts again from its checkpoint before the forward instead.

    Raises:
        BrokenSlot: there are such slots.
    """
    if not switched.broken:
        return
    names = ", ".join(f"slot {slot} of model layer {model_layers[layer]}" for layer, slot in switched.broken)
    raise BrokenSlot(
        f"after the switch to {switched.offer!r} the weights in {names} failed the read-back; no token may be served from there, "
        "restart the rank"
    )


def run_rank(plan: RankPlan, pipe: Connection) -> None:
    """Entry of a rank process; every way out is reported to the parent."""
    started_s = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers Ctrl+C for all
    os.nice(RANK_NICENESS)  # a GPU's ranks would not compete with the daemon for its core
    orders = Orders(pipe)
    threading.Thread(target=orders.watch, name="demo-orders", daemon=True).start()
    error = ""
    notes: dict[str, int] = {}
    try:
        notes = _run(plan, orders, started_s)
    except Exception as caught:  # noqa: BLE001 - whatever it is, the parent must hear of it
        error = f"{type(caught).__name__}: {caught}"
    try:
        pipe.send(RankEnd(plan.rank, error, time.monotonic(), notes))
    except OSError:
        os._exit(_PARENT_GONE)


def _run(plan: RankPlan, orders: Orders, started_s: float) -> dict[str, int]:
    torch.set_num_threads(1)
    facts = plan.run.facts
    limit = timedelta(seconds=GROUP_TIMEOUT_S)
    dist.init_process_group(
        "gloo", init_method=f"file://{plan.rendezvous}", rank=plan.rank, world_size=facts.ranks, timeout=limit
    )
    forward = _forward(plan)
    rows = plan.run.start_map()
    digests = layer_map_digests(facts.model_layers, rows)
    recorder = Recorder(facts, plan.rank, Kind.RECEIVED_SLOTS, stride=1, layer_digests=digests)
    recorder.register(plan.run.run_id, -1, digests)
    agent, link = _agent(plan, forward, recorder, rows, limit)
    publisher = Publisher(
        recorder,
        url=plan.store_url,
        node=plan.rank * facts.nodes // facts.ranks,
        interval_s=PUBLISH_INTERVAL_S,
        term=lambda: agent.term_seen,
    )
    publisher.start()
    rank = Rank(plan, orders, forward, recorder, agent, rows, digests.copy())
    orders.pipe.send(RankReady(plan.rank, time.monotonic() - started_s))
    try:
        rank.serve()
    finally:
        agent.close()
        publisher.stop()
        link.stop()
    dist.destroy_process_group()
    return _notes(recorder, publisher)


def _forward(plan: RankPlan) -> Forward:
    """The layers of this rank, its slots filled by the start map."""
    run, facts, rank = plan.run, plan.run.facts, plan.rank
    first = rank * facts.slots_per_rank
    memory = SlotMemory(run.spec, first, facts.slots_per_rank)
    source = Source(rank, facts.ranks, facts.nodes, facts.slots_per_rank)
    dispatcher = Dispatcher(run.dispatch, source, facts.experts, facts.layers)
    for layer, row in enumerate(run.start_map()):
        dispatcher.rebuild(layer, row)
        for slot in range(first, first + facts.slots_per_rank):
            memory.load(layer, slot, int(row[slot]))
    group = Group(rank, facts.ranks, facts.slots_per_rank, _default_group())
    return Forward(run.spec, run.routing, group, memory, dispatcher)


def _default_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    if group is None:
        raise RuntimeError("the process group is not initialised")
    return group


def _agent(
    plan: RankPlan, forward: Forward, recorder: Recorder, rows: NDArray[np.int32], limit: timedelta
) -> tuple[Agent, StoreLink]:
    """The agent on groups of its own: one for the gate, one for transfers; both are made by all ranks in this order."""
    gate: Any = dist.new_group(backend="gloo", timeout=limit)
    transfer: Any = dist.new_group(backend="gloo", timeout=limit)
    facts = plan.run.facts
    link = StoreLink(plan.store_url, facts.pool, plan.rank)
    link.start()
    agent = Agent(
        facts,
        TorchGroup(gate),
        TorchTransport(transfer),
        forward.memory,
        rows,
        run_id=plan.run.run_id,
        incarnation=recorder.incarnation,
        gate_steps=GATE_STEPS,
        link=link,
        recorder=recorder,
    )
    return agent, link


def _notes(recorder: Recorder, publisher: Publisher) -> dict[str, int]:
    notes = {f"refused_{reason}": count for reason, count in recorder.refused.items()}
    stats = publisher.stats
    return {**notes, "frames": stats.published, "frames_dropped": stats.dropped, "frame_bytes": stats.bytes}
