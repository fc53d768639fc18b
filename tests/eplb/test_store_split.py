"""Rules of leadership among real processes: cut off, stopped, killed or ended, at any time one leads and no former one writes."""

import os
import signal
from contextlib import ExitStack

import pytest
from daemon_world import Running, eventually, pool_config
from pool_world import FACTS, Ranks
from split_world import Proxy, watched

from collectors.keys import lease_key
from eplb.migration import read_desired
from eplb.store.client import Store

QUICK = {"timeout_s": 0.5, "lease_ttl_s": 4.0}


class Daemons:
    """Daemons by name, and which of them leads as the store sees it."""

    def __init__(self, store, ranks):
        self.store, self.ranks, self.running = store, ranks, {}

    def leader(self, but=()):
        """The name of the leader, once it is none of ``but``."""

        def holder():
            held = (self.store.redis.get(lease_key(FACTS.pool)) or b"").decode()
            return next(
                (n for n, d in self.running.items() if f":{d.process.pid}:" in held and n not in but), None
            )

        return eventually(holder, self.explain)

    def moves(self):
        """The load changes, and a further map goes live on all ranks under the present leader."""
        before = self.ranks.version()
        self.ranks.turn()
        eventually(lambda: self.ranks.version() > before, self.explain)

    def explain(self):
        return {name: daemon.codes()[-6:] for name, daemon in self.running.items()}

    def stands_by(self, name):
        eventually(lambda: self.running[name].codes()[-1] == "standby", self.explain)


@pytest.mark.slow
@pytest.mark.redis
def test_one_leads_whatever_happens_and_no_former_leader_writes(redis_server_url, tmp_path):
    """Partition and healing, SIGSTOP past the lease and SIGCONT, SIGKILL, SIGTERM: each time another daemon moves a map, and
    nothing that the former leader wrote afterwards landed.
    """
    store_url = redis_server_url
    with ExitStack() as stack:
        store = stack.enter_context(Store(store_url, FACTS.pool))
        store.redis.flushall()
        ranks = stack.enter_context(Ranks(store_url))
        proxy = stack.enter_context(Proxy(tmp_path / "p", store_url))
        stack.enter_context(watched(store_url, FACTS.pool))
        daemons = Daemons(store, ranks)

        def start(name, url):
            path = pool_config(tmp_path / f"{name}.yaml", url, store=QUICK)
            daemons.running[name] = stack.enter_context(Running(tmp_path / name, "--config", path))

        start("cut", proxy.url)
        assert daemons.leader() == "cut"
        start("second", store_url)
        start("third", store_url)
        daemons.running["third"].wait_for("serving")
        eventually(lambda: ranks.version() >= 1, daemons.explain)

        proxy.held.set()
        after_cut = daemons.leader(but=["cut"])
        daemons.moves()
        proxy.held.clear()
        daemons.stands_by("cut")

        stopped = daemons.running[after_cut].process.pid
        os.kill(stopped, signal.SIGSTOP)
        after_stop = daemons.leader(but=[after_cut])
        daemons.moves()
        os.kill(stopped, signal.SIGCONT)
        daemons.stands_by(after_cut)

        daemons.running[after_stop].kill()
        after_kill = daemons.leader(but=[after_stop])
        daemons.moves()

        assert daemons.running[after_kill].end() == 0
        last = daemons.leader(but=[after_stop, after_kill])
        daemons.moves()
        terms = [event["term"] for daemon in daemons.running.values() for event in daemon.named("leading")]
        assert len(set(terms)) == len(terms)
        assert read_desired(store.read_desired()).term == max(terms)
        assert daemons.running[last].named("leading")[-1]["term"] == max(terms)
        assert max(agent.term_seen for agent in ranks.agents) == max(terms)


def test_a_lease_is_given_back_at_the_end(embedded_store_url, tmp_path):
    """SIGTERM: nobody waits for the lease to run out."""
    with Store(embedded_store_url, FACTS.pool) as store:
        store.redis.flushall()
        path = pool_config(tmp_path / "c.yaml", embedded_store_url, store={"lease_ttl_s": 300.0})
        with Running(tmp_path / "d", "--config", path) as daemon:
            daemon.wait_for("leading")
            assert store.redis.pttl(lease_key(FACTS.pool)) > 0
            assert daemon.end() == 0
        assert store.redis.get(lease_key(FACTS.pool)) is None
