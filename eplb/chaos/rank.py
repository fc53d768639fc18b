"""One rank under chaos: it serves steps in lockstep with the driver, through as many lives of the group as there are."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from collectors import Recorder
from collectors.facts import Kind, Phase
from collectors.shares import even_shares
from eplb.agent.agent import Agent
from eplb.agent.reform import Past, Reformed, leave, reform
from eplb.agent.torch_life import TorchLife
from eplb.chaos.messages import Broken, Form, Formed, Ready, Serve, Served, Stop
from eplb.chaos.rank_faults import FaultyPublisher, FaultyTransport, LateLink, Switchboard
from eplb.chaos.setup import GATE_STEPS
from eplb.demo.batch import BatchTokens
from eplb.demo.dispatch import Dispatcher, Source
from eplb.demo.memory import SlotMemory
from eplb.demo.model import expert_weights
from eplb.demo.runtime import Forward, Group
from eplb.protocol import ALL_GUARDS
from eplb.start_map import start_map

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from eplb.agent.switch import Switched
    from eplb.chaos.setup import RunFacts
    from eplb.demo.model import ModelSpec

GROUP_TIMEOUT_S, TRANSFER_TIMEOUT_S, LOAD_TIMEOUT_S = 6.0, 3.0, 10.0
_PARENT_GONE = 3


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What a rank process is started with; negative controls: ``guards_off`` names of guards that are removed, ``keeps_shares`` its engine does
    not take over new shares of a row that stays.
    """

    rank: int
    run: RunFacts
    store_url: str
    fresh: bool
    guards_off: frozenset[str] = frozenset()
    keeps_shares: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where weights come from that no rank holds any more: they follow from the seed."""

    spec: ModelSpec

    def load(self, layer: int, expert: int) -> dict[str, NDArray[np.uint8]]:
        """All tensors of one expert, uint8 [bytes] each."""
        tensors = expert_weights(self.spec, layer, expert)
        return {name: tensor.reshape(-1).view(np.uint8) for name, tensor in tensors.items()}


@dataclass(slots=True)
class Life:
    """One life of the group, as this rank sees it."""

    run_id: int
    groups: TorchLife
    agent: Agent
    forward: Forward


class Rank:
    """The engine of one rank with its collector and agent; its weights outlive the group's lives."""

    def __init__(self, plan: RankPlan) -> None:
        self.plan = plan
        facts = plan.run.facts
        first = plan.rank * facts.slots_per_rank
        self.faults = Switchboard()
        self.memory = SlotMemory(plan.run.spec, first, facts.slots_per_rank)
        self.rows = np.full((facts.layers, facts.slots), -1, dtype=np.int32)
        self.shares = np.zeros((facts.layers, facts.slots))
        self.past: Past | None = None
        self.life: Life | None = None
        self.recorder = Recorder(facts, plan.rank, Kind.RECEIVED_SLOTS, stride=1)
        self.link = LateLink(plan.store_url, facts.pool, plan.rank, heartbeat_s=plan.run.heartbeat_s)
        self.link.faults = self.faults
        self.publisher = FaultyPublisher(
            self.recorder,
            url=plan.store_url,
            node=plan.rank * facts.nodes // facts.ranks,
            interval_s=plan.run.publish_s,
            term=lambda: self.life.agent.term_seen if self.life else 0,
            faults=self.faults,
        )
        if plan.fresh:
            self._load_start_map()

    def _load_start_map(self) -> None:
        facts = self.plan.run.facts
        self.rows = start_map(facts.layers, facts.experts, facts.slots)
        first = self.plan.rank * facts.slots_per_rank
        for layer, row in enumerate(self.rows):
            for slot in range(first, first + facts.slots_per_rank):
                self.memory.load(layer, slot, int(row[slot]))

    # --- lives of the group -------------------------------------------------------------------------------------------

    def form(self, form: Form) -> Formed:
        """Enter a new group; collective."""
        begun_s = time.monotonic()
        self.leave()
        groups = TorchLife.begin(
            f"file://{form.rendezvous}",
            form.members,
            self.plan.rank,
            timeout_s=GROUP_TIMEOUT_S,
            transfer_timeout_s=TRANSFER_TIMEOUT_S,
        )
        try:
            made = self._joint(form, groups)
            agent = self._agent(form, groups, made)
            forward = self._forward(form, None if made is None else made.shares)
        except Exception:
            groups.end()
            raise
        self.recorder.register(agent.run_id, form.after_step, agent.layer_digests)
        self.link.start()
        self.publisher.start()
        self.life = Life(form.run_id, groups, agent, forward)
        reloaded = () if made is None else tuple((layer, expert) for layer, _, expert in made.reloaded)
        return Formed(self.plan.rank, form.run_id, reloaded=reloaded, seconds=time.monotonic() - begun_s)

    def _joint(self, form: Form, groups: TorchLife) -> Reformed | None:
        """What the new group serves, None = the start map of a first group."""
        if form.first:
            return None
        facts = self.plan.run.facts
        made = reform(
            facts,
            groups.gate,
            self.memory,
            form.members,
            self.past,
            loader=Checkpoint(self.plan.run.spec),
            link=self.link,
            incarnation=self.recorder.incarnation,
            load_timeout_s=LOAD_TIMEOUT_S,
        )
        self.rows = np.array(made.rows, dtype=np.int32)
        return made

    def _agent(self, form: Form, groups: TorchLife, made: Reformed | None) -> Agent:
        return Agent(
            self.plan.run.facts,
            groups.gate,
            FaultyTransport(groups.transport, self.faults),
            self.memory,
            self.rows,
            run_id=form.run_id if made is None else made.run_id,
            incarnation=self.recorder.incarnation,
            gate_steps=GATE_STEPS,
            link=self.link,
            recorder=self.recorder,
            shares=None if made is None else made.shares,
            map_version=0 if made is None else made.map_version,
            members=form.members,
            table=None if made is None else made.table,
            term_seen=0 if made is None else made.term_seen,
            reloaded=() if made is None else made.reloaded,
            guards=ALL_GUARDS - self.plan.guards_off,
        )

    def leave(self) -> None:
        """Let go of the present group, broken or not."""
        life, self.life = self.life, None
        if life is None:
            return
        self.past = leave(life.agent)
        groups = life.groups
        del life  # its forward holds the group, whose sockets the others wait on
        groups.end()

    def _forward(self, form: Form, shares: NDArray[np.float64] | None) -> Forward:
        facts, rank = self.plan.run.facts, self.plan.rank
        source = Source(rank, facts.ranks, facts.nodes, facts.slots_per_rank)
        dispatcher = Dispatcher("weighted", source, facts.experts, facts.layers)
        for layer, row in enumerate(self.rows):
            self._dispatch_by(dispatcher, layer, row, None if shares is None else shares[layer])
        world = dist.group.WORLD
        if world is None:
            raise RuntimeError("the process group is not initialised")
        group = Group(rank, facts.ranks, facts.slots_per_rank, world, form.members)
        return Forward(self.plan.run.spec, self.plan.run.routing, group, self.memory, dispatcher)

    # --- steps --------------------------------------------------------------------------------------------------------

    def serve(self, order: Serve) -> Served | Broken:
        """One step; a group that failed under it is told to the driver, who keeps the tokens."""
        for name, value in order.orders:
            self.faults.order(name, value)
        if self.life is None:
            return Broken(self.plan.rank, order.step, "this rank is in no group")
        try:
            return self._step(self.life, order)
        except RuntimeError as error:
            sentence = f"{type(error).__name__}: {error!s:.200}"
        # Not in the handler: its traceback would keep the group, whose sockets the others wait on.
        self.leave()
        return Broken(self.plan.rank, order.step, sentence)

    def _step(self, life: Life, order: Serve) -> Served:
        switched = life.agent.before_forward(order.step)
        switched_s = time.monotonic()
        if life.agent.in_doubt:
            raise RuntimeError(
                "the result of a vote on a switch did not come, so the others may serve another map"
            )
        if switched is not None:
            self._take_over(life, switched)
        tokens = order.tokens
        result = life.forward.step(BatchTokens(tokens.sequences, tokens.positions))
        times = result.times
        self.recorder.record_step(
            order.step,
            Phase.DECODE,
            result.received,
            len(tokens.sequences),
            step_us=times.step_us,
            moe_wait_us=times.wait_us,
            a2a_us=times.dispatch_us + times.combine_us - times.wait_us,
            expert_us=times.expert_us,
        )
        return Served(
            rank=self.plan.rank,
            run_id=life.run_id,
            step=order.step,
            tokens=tokens,
            outputs=result.states[-1],
            received=result.received,
            sent=result.sent,
            combined=result.combined,
            rows=self.rows.copy(),
            shares=self.shares.copy(),
            digests=tuple(int(digest) for digest in life.agent.layer_digests),
            term_seen=life.agent.term_seen,
            map_version=life.agent.map_version,
            agent_state=str(
                life.agent.state
            ),  # a plain word: the judge loads nothing of the agent to read it
            switched="" if switched is None else switched.offer,
            switched_s=switched_s if switched is not None else 0.0,
            happened=self.faults.happened(),
            note=life.agent.last_error if life.agent.state == "stuck" else "",
        )

    def _take_over(self, life: Life, switched: Switched) -> None:
        """Dispatch by the new rows and shares from this step on."""
        for place, layer in enumerate(switched.layers):
            row = switched.rows[place]
            if self.plan.keeps_shares and np.array_equal(row, self.rows[layer]):
                continue
            shares = None if switched.shares is None else switched.shares[place]
            self._dispatch_by(life.forward.dispatcher, layer, row, shares)
        for layer, slot in switched.broken:  # nothing is served from weights that failed their read-back
            self.memory.load(layer, slot, int(self.rows[layer, slot]))

    def _dispatch_by(
        self,
        dispatcher: Dispatcher,
        layer: int,
        row: NDArray[np.int32],
        shares: NDArray[np.float64] | None,
    ) -> None:
        """Build one layer's tables, and keep what they were built from for the judge."""
        given = even_shares(row) if shares is None else shares
        self.rows[layer], self.shares[layer] = row, given
        dispatcher.rebuild(layer, row, given.tolist())


def run_rank(plan: RankPlan, pipe: Connection) -> None:
    """Entry of a rank process: one order, one answer, until the driver says stop or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver answers Ctrl+C for all
    torch.set_num_threads(1)
    try:
        rank = Rank(plan)
        pipe.send(Ready(plan.rank))
        while True:
            order = pipe.recv()
            if isinstance(order, Stop):
                return
            pipe.send(_answer(rank, order))
    except (EOFError, OSError):
        os._exit(_PARENT_GONE)


def _answer(rank: Rank, order: Form | Serve) -> Formed | Served | Broken:
    if isinstance(order, Serve):
        return rank.serve(order)
    try:
        return rank.form(order)
    except Exception as error:  # noqa: BLE001 - whatever it is, the driver must hear of it
        return Formed(rank.plan.rank, order.run_id, f"{type(error).__name__}: {error!s:.300}")
