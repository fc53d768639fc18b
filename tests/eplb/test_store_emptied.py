"""Rules of a store that loses everything: ranks and daemons bring it back, a further wave is committed, a pause stays.

The ranks are real agents, collectors and links with the heartbeat and the publishing interval that they have in production.
"""

from contextlib import ExitStack

import pytest
from daemon_world import Running, eventually, pool_config
from pool_world import FACTS, Ranks

from collectors.keys import desired_key, lease_key, live_key
from eplb.migration import read_desired
from eplb.store.client import Store
from eplb.store.control import is_paused, set_paused


class World:
    """Ranks, a store, and daemons that can be added."""

    def __init__(self, stack, url, tmp_path):
        self._stack, self._folder = stack, tmp_path
        self._config = pool_config(tmp_path / "c.yaml", url)
        self.store = stack.enter_context(Store(url, FACTS.pool))
        self.ranks = stack.enter_context(Ranks(url, heartbeat_s=5.0, interval_s=1.0))
        self.daemons = []

    def daemon(self):
        folder = self._folder / str(len(self.daemons))
        self.daemons.append(self._stack.enter_context(Running(folder, "--config", self._config)))
        return self.daemons[-1]

    def committed_above(self, version):
        """Wait until all ranks serve a later map and the store says nothing is on offer; what the store wants."""

        def done():
            desired = read_desired(self.store.read_desired())
            return self.ranks.version() > version and desired.offer is None and desired

        desired = eventually(done, self._explain)
        assert len({agent.live.tobytes() for agent in self.ranks.agents}) == 1
        return desired

    def _explain(self):
        return self.ranks.version(), [
            (daemon.codes()[-8:], daemon.named("leading")) for daemon in self.daemons
        ]

    def lose_everything(self):
        self.store.redis.flushall()
        self.store.redis.script_flush()


@pytest.fixture
def world(redis_server_url, tmp_path):
    with ExitStack() as stack:
        yield World(stack, redis_server_url, tmp_path)


@pytest.mark.slow
@pytest.mark.redis
def test_a_further_wave_follows_every_loss_and_a_pause_outlives_it(world):
    """By the same leader; by a standby, whose leader died in the same moment; by one that begins after the loss."""
    first = world.daemon()
    before = world.committed_above(0)

    world.ranks.turn()
    world.lose_everything()
    by_same = world.committed_above(before.map_version)
    assert by_same.term > before.term
    assert first.named("leading")[-1]["term"] == by_same.term
    assert world.store.redis.hlen(live_key(FACTS.pool)) == FACTS.ranks

    second = world.daemon()
    eventually(lambda: "standby" in second.codes())
    first.kill()
    world.ranks.turn()
    world.lose_everything()
    by_standby = world.committed_above(by_same.map_version)
    assert by_standby.term > by_same.term
    assert second.named("leading")

    set_paused(world.store, paused=True)
    eventually(lambda: second.codes()[-1] == "paused")
    world.lose_everything()
    eventually(lambda: is_paused(world.store))
    assert second.named("pause_restored")
    set_paused(world.store, paused=False)

    second.kill()
    world.ranks.turn()
    world.lose_everything()
    third = world.daemon()
    by_new = world.committed_above(by_standby.map_version)
    assert by_new.term > by_standby.term
    assert third.named("leading")[-1]["term"] == by_new.term
    assert third.end() == 0
    assert world.store.redis.get(lease_key(FACTS.pool)) is None
    assert int(world.store.redis.hget(desired_key(FACTS.pool), "term")) >= by_new.term
