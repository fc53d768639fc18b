"""Rules of a leader that is killed at any moment: the next one finds out from desired and live, and the plan comes to an end.

The leader is a real process. It is stopped first, so that the state can be read from the store before it is killed.
"""

import os
import signal
from contextlib import ExitStack
from dataclasses import replace

import pytest
from daemon_world import Running, eventually, pool_config
from pool_world import FACTS, Ranks

from eplb.agent import StoreLink
from eplb.migration import observe, of_one_run, read_desired, read_records
from eplb.migration.status import State
from eplb.store.client import Store


class HeldLink(StoreLink):
    """A real link that a test can hold up.

    ``blind``: what is wanted does not come. ``undecided``: it grows old as soon as the group has staged it, so that no vote is
    called. ``mute``: the last rank's live record does not leave.
    """

    held = frozenset()
    agents = ()

    def wanted(self):
        known = super().wanted()
        if known is None or "blind" in HeldLink.held:
            return None
        staged = "undecided" in HeldLink.held and HeldLink.agents[0].state in ("staging", "prepared")
        return replace(known, read_s=known.read_s - 60.0) if staged else known

    def publish(self, record, *, changed):
        mute = "mute" in HeldLink.held and self._rank == FACTS.ranks - 1
        if not mute:
            super().publish(record, changed=changed)


class World:
    def __init__(self, store, ranks, start):
        self.store, self.ranks, self._start = store, ranks, start
        self.daemon = start()

    def desired(self):
        return read_desired(self.store.read_desired())

    def records(self):
        return of_one_run(FACTS, read_records(self.store.read_live())[0])

    def state(self):
        return observe(FACTS, self.desired(), self.records(), self.store.time_ms()).state

    def agents(self):
        return {agent.state for agent in self.ranks.agents}

    def stop_when(self, holds):
        """Stop the leader at the first moment at which ``holds``."""
        eventually(holds, self.explain)
        os.kill(self.daemon.process.pid, signal.SIGSTOP)

    def kill_and_go_on(self):
        """The next leader: the plan that was under way ends one way or the other, and then there is a further map."""
        self.daemon.kill()
        HeldLink.held = frozenset()
        self.daemon = self._start()
        self.daemon.wait_for("leading")
        eventually(lambda: self.desired().offer is None and self.state() is State.IDLE, self.explain)
        assert len({agent.live.tobytes() for agent in self.ranks.agents}) == 1

    def next_plan(self, waves=1):
        """The load changes until a plan of so many waves is on offer."""
        known = self._plan_id()
        self.ranks.turn()

        def offered():
            nonlocal known
            offer = self.desired().offer
            if offer is None and self._plan_id() != known:
                known = self._plan_id()
                self.ranks.turn()
            return offer is not None and offer.plan_id != known and offer.waves >= waves

        return offered

    def _plan_id(self):
        plan = self.desired().plan
        return "" if plan is None else plan.plan_id

    def explain(self):
        return self.state(), self.agents(), self.desired().offer, self.daemon.codes()[-8:]


@pytest.fixture
def world(embedded_store_url, tmp_path):
    with ExitStack() as stack:
        store = stack.enter_context(Store(embedded_store_url, FACTS.pool))
        store.redis.flushall()
        quick = {"timeout_s": 0.5, "lease_ttl_s": 4.0}
        path = pool_config(tmp_path / "c.yaml", embedded_store_url, store=quick)
        ranks = stack.enter_context(Ranks(embedded_store_url, link=HeldLink))
        HeldLink.agents = ranks.agents
        folders = iter(range(100))

        def start():
            return stack.enter_context(Running(tmp_path / str(next(folders)), "--config", path))

        yield World(store, ranks, start)
        HeldLink.held = frozenset()


@pytest.mark.slow
def test_a_plan_ends_whatever_it_was_doing_when_its_leader_was_killed(world):
    """One leader after the other is killed: while it plans, with its offer unseen, prepared, switched on some ranks, a wave live
    on all, the plan live on all but not closed, and while the gain is measured.
    """
    world.stop_when(lambda: "planning" in world.daemon.codes())
    assert world.desired().offer is None
    world.kill_and_go_on()

    HeldLink.held = {"blind"}
    world.stop_when(world.next_plan())
    assert world.state() is State.MOVING
    world.kill_and_go_on()

    HeldLink.held = {"undecided"}
    world.stop_when(world.next_plan())
    eventually(lambda: world.agents() == {"prepared"}, world.explain)
    assert world.state() is State.MOVING
    world.kill_and_go_on()

    HeldLink.held = {"mute"}
    world.stop_when(world.next_plan())
    eventually(lambda: world.state() is State.IN_DOUBT, world.explain)
    world.kill_and_go_on()

    world.stop_when(world.next_plan(waves=2))
    eventually(lambda: world.state() is State.WAVE_LIVE, world.explain)
    world.kill_and_go_on()

    offered = world.next_plan()
    eventually(offered, world.explain)

    def last_wave():
        offer = world.desired().offer
        return offer is not None and offer.wave == offer.waves - 1

    world.stop_when(last_wave)
    eventually(lambda: world.state() is State.ALL_LIVE, world.explain)
    assert world.desired().offer is not None
    world.kill_and_go_on()

    world.next_plan()
    world.stop_when(lambda: world.daemon.codes()[-1] in ("applied", "settling"))
    assert world.state() is State.IDLE
    world.kill_and_go_on()
    assert world.daemon.end() == 0
