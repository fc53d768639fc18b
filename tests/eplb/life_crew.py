"""A group of threads that loses ranks, forms again and takes them back: real agents, real reforming, weights that say which expert they are."""

import threading
import time
from dataclasses import replace

import numpy as np
from agent_crew import FACTS, GATE_STEPS, NAMES, RUN_ID, Clock, CrewLink, CrewMemory, expert_bytes, start_map

from eplb.agent import Agent, ThreadGroup, ThreadTransport
from eplb.agent.memory import own_slots
from eplb.agent.reform import leave, reform
from eplb.agent.wire import encode_offer


class Checkpoint:
    """Experts as they were saved; ``missing`` (layer, expert) are not in it; ``loads`` counts what was read."""

    def __init__(self, missing=(), saved=expert_bytes):
        self.missing, self.loads, self._bytes = set(missing), [], saved

    def load(self, layer, expert):
        self.loads.append((layer, expert))
        if (layer, expert) in self.missing:
            raise FileNotFoundError(f"shard of layer {layer} expert {expert}")
        return {name: self._bytes(layer, expert, name) for name in NAMES}


class LifeCrew:
    """Ranks on threads; each life has groups of its own, as processes would have after a new rendezvous."""

    def __init__(self, facts=FACTS, rows=None, loader=None, timeout_s=5.0):
        self.facts, self.loader, self.timeout_s = facts, loader, timeout_s
        rows = start_map(facts) if rows is None else rows
        self.link, self.step = CrewLink(Clock()), 0
        self.memories = {rank: CrewMemory(facts, rank, rows) for rank in range(facts.ranks)}
        self.pasts = dict.fromkeys(range(facts.ranks))
        self.agents = {}
        self.reformed = None
        members = tuple(range(facts.ranks))
        self._connect(members)
        self._run(members, lambda rank: self._start(rank, rows, {"run_id": RUN_ID}))

    def kill(self, *ranks):
        """These ranks are gone with all they held; the others leave their agents."""
        for rank in ranks:
            self.agents.pop(rank)
            self.pasts[rank] = None
            empty = np.full((self.facts.layers, self.facts.slots), -1)
            self.memories[rank] = CrewMemory(self.facts, rank, empty)
        self.pasts.update({rank: leave(agent) for rank, agent in self.agents.items()})
        self.agents = {}

    def form(self, members):
        """Form a new life of these ranks; each rank's error, empty = it serves."""
        self.pasts.update({rank: leave(agent) for rank, agent in self.agents.items()})
        self.agents = {}
        self._connect(members)
        return self._run(members, self._reform, catch=True)

    def offer(self, asked, term=None):
        """Ask the life that serves now."""
        run_id = next(iter(self.agents.values())).run_id
        raw = None if asked is None else encode_offer(replace(asked, run_id=run_id))
        self.link.offer(raw, (asked.term if asked else 0) if term is None else term)

    def settle(self, gates=400):
        """Run all members until each has answered the offer at the same gate."""
        return self.until(lambda agent: agent.state in {"switched", "refused", "stuck"}, gates)

    def until(self, holds, gates=400):
        first = self.step
        self.step += gates * GATE_STEPS

        def drive(rank):
            for step in range(first, self.step):
                self.agents[rank].before_forward(step)
                if step % GATE_STEPS == GATE_STEPS - 1:
                    if self._pace[rank].min(int(bool(holds(self.agents[rank])))):
                        return
                    time.sleep(0.001)

        self._run(tuple(self.agents), drive)

    def rows(self):
        (rows,) = {agent.live.tobytes() for agent in self.agents.values()}
        return np.frombuffer(rows, dtype=np.int32).reshape(self.facts.layers, self.facts.slots)

    def weights_are_right(self):
        return all(
            np.array_equal(self.memories[rank].tensors(layer, slot)[name], expert_bytes(layer, expert, name))
            for rank, agent in self.agents.items()
            for layer in range(self.facts.layers)
            for slot in own_slots(self.facts, rank)
            for name in NAMES
            if (expert := int(agent.live[layer, slot])) >= 0
        )

    def _connect(self, members):
        size = len(members)
        self._members = members
        self._groups = dict(zip(members, ThreadGroup.create(size, 30.0), strict=True))
        self._pace = dict(zip(members, ThreadGroup.create(size, 60.0), strict=True))
        made = ThreadTransport.create(size, self.timeout_s, members)
        self.transports = {transport.rank: transport for transport in made}

    def _reform(self, rank):
        life = reform(
            self.facts, self._groups[rank], self.memories[rank], self._members, self.pasts[rank],
            loader=self.loader, link=self.link, incarnation=rank,
        )  # fmt: skip
        self.reformed = life
        carried = {
            "run_id": life.run_id,
            "table": life.table,
            "map_version": life.map_version,
            "shares": life.shares,
        }
        self._start(rank, life.rows, {**carried, "term_seen": life.term_seen, "reloaded": life.reloaded})

    def _start(self, rank, rows, given):
        self.agents[rank] = Agent(
            self.facts, self._groups[rank], self.transports[rank], self.memories[rank], rows, incarnation=rank,
            gate_steps=GATE_STEPS, link=self.link, members=self._members, **given,
        )  # fmt: skip

    def _run(self, ranks, action, *, catch=False):
        errors = {}

        def run(rank):
            try:
                action(rank)
            except BaseException as error:  # noqa: BLE001
                errors[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors and not catch:
            raise next(iter(errors.values()))
        return errors
