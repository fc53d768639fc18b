"""A pool that loses a rank and gets it back: the daemon evacuates at once, goes on with three, and fills the fourth."""

import threading
import time

import numpy as np
import pytest
from agent_crew import NAMES, CrewMemory, expert_bytes, start_map
from life_crew import Checkpoint
from pool_world import FACTS, TOKENS_PER_STEP, config, make_pool, received, serve

from collectors import Kind, Phase, Publisher, Recorder
from eplb.agent import Agent, StoreLink, ThreadGroup, ThreadTransport
from eplb.agent.memory import own_slots
from eplb.agent.reform import leave, reform
from eplb.decisions import Code

ALL, LIVING = (0, 1, 2, 3), (1, 2, 3)


class Rank:
    """What outlives a life of the group: the process with its weights, its collector and its link."""

    def __init__(self, url, rank, rows):
        self.rank, self.past, self.agent = rank, None, None
        self.memory = CrewMemory(FACTS, rank, rows)
        self.recorder = Recorder(FACTS, rank, Kind.RECEIVED_SLOTS)
        self.link = StoreLink(url, FACTS.pool, rank, poll_s=0.05, heartbeat_s=0.5)
        self.link.start()
        self.publisher = Publisher(
            self.recorder, url=url, node=rank * FACTS.nodes // FACTS.ranks, interval_s=0.1,
            term=lambda: self.agent.term_seen if self.agent else 0,
        )  # fmt: skip

    def end(self):
        self.publisher.stop()
        self.link.stop()


class Lives:
    """Threads that serve a skewed stream in lives of chosen members."""

    def __init__(self, url):
        self._url, self._rows, self.step = url, start_map(FACTS), 0
        self.ranks, self._threads = {}, []

    def begin(self, members):
        fresh = not self.ranks
        for rank in members:
            if rank not in self.ranks:
                rows = self._rows if fresh else np.full_like(self._rows, -1)
                self.ranks[rank] = Rank(self._url, rank, rows)
        size = len(members)
        self._stop, self.errors = threading.Event(), []
        parts = zip(
            members, ThreadGroup.create(size, 20.0), ThreadTransport.create(size, 20.0, members),
            ThreadGroup.create(size, 20.0), strict=True,
        )  # fmt: skip
        self._threads = [
            threading.Thread(target=self._run, args=(self.ranks[rank], members, *groups))
            for rank, *groups in parts
        ]
        for thread in self._threads:
            thread.start()

    def end(self, kill=()):
        """End the life; the ranks of ``kill`` are gone with all they held, and their records stay in the store."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for rank in kill:
            self.ranks.pop(rank).end()
        assert self.errors == []

    def close(self):
        self.end()
        for rank in self.ranks.values():
            rank.end()

    def rows(self):
        (rows,) = {rank.past.rows.tobytes() for rank in self.ranks.values()}
        return np.frombuffer(rows, dtype=np.int32).reshape(self._rows.shape)

    def weights_are_right(self):
        return all(
            np.array_equal(rank.memory.tensors(layer, slot)[name], expert_bytes(layer, expert, name))
            for rank in self.ranks.values()
            for layer in range(FACTS.layers)
            for slot in own_slots(FACTS, rank.rank)
            for name in NAMES
            if (expert := int(rank.past.rows[layer, slot])) >= 0
        )

    def _run(self, rank, members, *groups):
        try:
            self._serve(rank, members, *groups)
        except Exception as error:  # noqa: BLE001 - the test asks for it at the end of the life
            self.errors.append(error)

    def _serve(self, rank, members, group, transport, pace):
        rows, given = self._rows, {"run_id": 5}
        if any(each.past is not None for each in self.ranks.values()):
            made = reform(FACTS, group, rank.memory, members, rank.past, loader=Checkpoint())
            rows = made.rows
            given = {
                "run_id": made.run_id, "table": made.table, "map_version": made.map_version,
                "term_seen": made.term_seen, "reloaded": made.reloaded,
            }  # fmt: skip
        rank.agent = Agent(
            FACTS, group, transport, rank.memory, rows, incarnation=rank.recorder.incarnation, link=rank.link,
            recorder=rank.recorder, members=members, **given,
        )  # fmt: skip
        step = int(group.broadcast(np.array([self.step]))[0])
        assert rank.recorder.register(rank.agent.run_id, step, rank.agent.layer_digests)
        rank.publisher.start()
        while pace.min(0 if self._stop.is_set() else 1):
            step += 1
            rank.agent.before_forward(step)
            counts = received(rank.agent.live, rank.rank, step)
            tokens = TOKENS_PER_STEP if rank.rank == members[0] else 0
            rank.recorder.record_step(step, Phase.DECODE, counts, tokens)
            time.sleep(0.005)
        self.step = step
        rank.past = leave(rank.agent)


def codes(snapshots):
    return [snapshot.decision["code"] for snapshot in snapshots if snapshot.decision]


def is_code(code):
    return lambda snapshot: snapshot.decision is not None and snapshot.decision["code"] == code


@pytest.mark.slow
def test_a_lost_rank_is_evacuated_at_once_and_filled_when_it_is_back(embedded_store_url, tmp_path):
    settings = config(cooldown_s=600.0)  # no plan of balance comes meanwhile
    pool, lives = make_pool(embedded_store_url, tmp_path, settings), Lives(embedded_store_url)
    pool.store.redis.flushall()
    lives.begin(ALL)
    try:
        serve(pool, lambda snapshot: snapshot.leader and is_code(Code.SETTLING)(snapshot))
        lives.end(kill=(0,))
        lives.begin(LIVING)
        seen = serve(pool, is_code(Code.RANK_LOST))
        seen += serve(pool, lambda snapshot: snapshot.decision["state"] in {"observing", "settling"})
        assert Code.LOW_COVERAGE not in codes(seen)
        assert seen[-1].ranks_lost == 1
        serve(pool, lambda snapshot: snapshot.coverage == 1.0 and snapshot.ranks_expected == 3)
        lives.end()
        assert (lives.rows()[:, : FACTS.slots_per_rank] == -1).all()
        assert lives.weights_are_right()
        lives.begin(ALL)
        serve(pool, lambda snapshot: snapshot.ranks_lost == 0 and snapshot.ranks_expected == 4)
        pool.close()
        pool = make_pool(embedded_store_url, tmp_path)  # the next leader need not rest so long
        serve(pool, lambda _: (lives.ranks[0].agent.live[:, : FACTS.slots_per_rank] >= 0).all())
        lives.end()
        assert lives.weights_are_right()
    finally:
        lives.close()
        pool.close()
