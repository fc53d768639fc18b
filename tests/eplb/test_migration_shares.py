"""New shares alone travel the road of moves: offer, vote, switch, live digests, without a byte between ranks."""

from dataclasses import replace

import numpy as np
import pytest
from agent_crew import FACTS, Crew, CrewMemory, start_map
from gloo_crew import run_everywhere
from test_agent_gloo import serve, weights_are_right
from test_migration_status import NOW_MS, Shelf, everywhere, observe

from collectors.shares import all_shares
from eplb.agent import Agent, LocalLink
from eplb.agent.wire import encode_offer
from eplb.migration import Actuator, State, make_plan, plan_is_live

BASE = start_map()
SHARES = all_shares(BASE, None)
SHARES[:, [0, 8]] = (0.75, 0.25)
PLAN = make_plan(FACTS, BASE, BASE, created_ms=1, shares=SHARES)


def test_a_plan_of_shares_alone_goes_live_on_all_ranks_and_moves_nothing():
    """Real agents on threads; their transport would fail the wave at the first parcel."""

    class NoParcels:
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def exchange(self, sends, receives):
            raise AssertionError("shares alone need no parcel")

    crew, shelf = Crew(transports=dict.fromkeys(range(FACTS.ranks), NoParcels)), Shelf()
    actuator = Actuator(FACTS, shelf.write)
    actuator.begin(PLAN, shelf.desired(), dict(crew.link.records), term=1, now_ms=NOW_MS)
    assert shelf.desired().offer.waves == 1
    crew.offer(shelf.desired().offer)
    crew.settle()
    live = dict(crew.link.records)
    assert observe(FACTS, shelf.desired(), live, NOW_MS).state is State.ALL_LIVE
    assert all(plan_is_live(PLAN, record.digests) for record in live.values())
    for agent, recorder in zip(crew.agents, crew.recorders, strict=True):
        assert np.array_equal(agent.shares, SHARES)
        assert np.array_equal(agent.live, BASE)
        assert [name for name, _ in recorder.calls] == ["begin", "switch", "end"]
    assert crew.weights_are_right()


def test_a_plan_back_to_even_shares_goes_live_too():
    crew, shelf = Crew(), Shelf()
    actuator = Actuator(FACTS, shelf.write)
    actuator.begin(PLAN, shelf.desired(), dict(crew.link.records), term=1, now_ms=NOW_MS)
    crew.offer(shelf.desired().offer)
    crew.settle()
    actuator.close(shelf.desired(), dict(crew.link.records), term=1, now_ms=NOW_MS)
    back = make_plan(FACTS, BASE, BASE, created_ms=2, base_shares=SHARES, shares=all_shares(BASE, None))
    actuator.begin(back, shelf.desired(), dict(crew.link.records), term=1, now_ms=NOW_MS)
    crew.offer(shelf.desired().offer)
    key = shelf.desired().offer.key
    crew.until(lambda agent: (agent._standing.offer_key, agent.state) == (key, "switched"))
    assert all(np.array_equal(agent.shares, all_shares(BASE, None)) for agent in crew.agents)
    assert dict(crew.link.records)[2].digests == PLAN.base_digests


def run_rank(rank, rendezvous, results):
    import torch.distributed as dist

    from eplb.agent.torch_group import TorchGroup
    from eplb.agent.torch_transport import TorchTransport

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=FACTS.ranks)
    gate, pace = TorchGroup.create(timeout_s=20.0), TorchGroup.create(timeout_s=30.0)
    memory, link, shelf = CrewMemory(FACTS, rank, BASE), LocalLink(), Shelf()
    agent = Agent(
        FACTS, gate, TorchTransport.create(timeout_s=4.0), memory, BASE, run_id=1, incarnation=rank, link=link
    )  # fmt: skip
    first = link.records[rank]
    live = {
        peer: replace(each, run_id=first.run_id, model_digest=first.model_digest)
        for peer, each in everywhere().items()
    }
    Actuator(FACTS, shelf.write).begin(PLAN, shelf.desired(), live, term=1, now_ms=NOW_MS)
    link.offer(encode_offer(shelf.desired().offer), 1)
    switches = serve(agent, pace, 0, lambda: agent.state in {"switched", "refused", "stuck"})
    done = plan_is_live(PLAN, agent.layer_digests.tolist())
    results.put(
        (rank, agent.state, switches, done, agent.shares.tolist(), weights_are_right(memory, rank, BASE))
    )
    agent.close()
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_a_plan_of_shares_alone_goes_live_in_four_processes(tmp_path):
    answers = run_everywhere(tmp_path, run_rank)
    assert answers == [(rank, "switched", 1, True, SHARES.tolist(), True) for rank in range(FACTS.ranks)]
