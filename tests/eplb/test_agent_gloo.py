"""Four real processes move real bytes over gloo: a refusal or a cut wire keeps all on the old map; so does a change of mind;
after either the next plan goes through."""

import threading
import time

import numpy as np
import pytest
from agent_crew import FACTS, NAMES, RUN_ID, Clock, CrewMemory, expert_bytes, offer, rotated, start_map
from gloo_crew import run_everywhere

from collectors.digests import layer_map_digests
from eplb.agent import Agent, LocalLink
from eplb.agent.memory import own_slots
from eplb.agent.wire import encode_offer

BASE = start_map()
TARGET = np.stack([rotated(row) for row in BASE])


def serve(agent, pace, first, holds):
    """Forwards of one rank until ``holds`` on all; returns how many switches this rank made."""
    switches = 0
    for step in range(first, first + 100_000):
        switches += agent.before_forward(step) is not None
        if step % 20 == 19:
            if pace.min(int(holds())):
                break
            time.sleep(0.005)
    return switches


def weights_are_right(memory, rank, rows):
    return all(
        np.array_equal(memory.tensors(layer, slot)[name], expert_bytes(layer, int(rows[layer, slot]), name))
        for layer in range(FACTS.layers)
        for slot in own_slots(FACTS, rank)
        for name in NAMES
    )


def cut(transport, sends, receives):
    raise OSError("the wire is cut")


def run_rank(rank, rendezvous, results):
    import torch.distributed as dist

    from eplb.agent.torch_group import TorchGroup
    from eplb.agent.torch_transport import TorchTransport

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=FACTS.ranks)
    gate, pace = TorchGroup.create(timeout_s=20.0), TorchGroup.create(timeout_s=30.0)
    transport = TorchTransport.create(timeout_s=4.0)
    memory, link = CrewMemory(FACTS, rank, BASE), LocalLink()
    agent = Agent(FACTS, gate, transport, memory, BASE, run_id=RUN_ID + rank, incarnation=rank, link=link)
    link.offer(encode_offer(offer(FACTS, BASE, TARGET)), 1)
    switches = serve(agent, pace, 0, lambda: agent.state in {"switched", "refused", "stuck"})
    moved = (agent.state, switches, agent.layer_digests.tolist(), weights_are_right(memory, rank, TARGET))
    if rank == 2:
        agent._standing.term_seen = 9
    link.offer(encode_offer(offer(FACTS, TARGET, BASE, plan_id="p2", map_version=2)), 1)
    switches = serve(agent, pace, 100_000, lambda: agent.state == "refused")
    kept = (agent.state, switches, agent.layer_digests.tolist(), weights_are_right(memory, rank, TARGET))
    refusals, agent._standing.term_seen = agent.refusals, 9
    if rank == 1:
        transport.__class__ = type("CutTransport", (TorchTransport,), {"exchange": cut})
    link.offer(encode_offer(offer(FACTS, TARGET, BASE, plan_id="p3", term=9, map_version=2)), 9)
    switches = serve(
        agent, pace, 200_000, lambda: agent.state == "refused" and agent._standing.offer_key.startswith("p3")
    )
    cut_off = (agent.state, switches, agent.refusals[0][1], weights_are_right(memory, rank, TARGET))
    serve(agent, pace, 300_000, lambda: agent.staging_bytes == 0)
    transport.__class__ = TorchTransport
    link.offer(encode_offer(offer(FACTS, TARGET, BASE, plan_id="p4", term=9, map_version=2)), 9)
    switches = serve(agent, pace, 400_000, lambda: agent.state == "switched")
    mended = (agent.state, switches, weights_are_right(memory, rank, BASE))
    results.put((rank, moved, kept, cut_off, agent.run_id, refusals, mended))
    agent.close()
    dist.barrier()
    dist.destroy_process_group()


def withdraw(link, clock, following):
    link.offer(None, 1)


def follow(link, clock, following):
    link.offer(encode_offer(following), following.term)


def pass_time(link, clock, following):
    clock.ahead_s += 31.0


def change_minds(rank, rendezvous, results):
    """Let go of a wave while rank 1's first message is still to come, once for each reason; then the next plan."""
    import torch.distributed as dist

    from eplb.agent.torch_group import TorchGroup
    from eplb.agent.torch_transport import TorchTransport

    class SlowTransport(TorchTransport):
        go = threading.Event()

        def exchange(self, sends, receives):
            self.go.wait(20.0)
            super().exchange(sends, receives)

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=FACTS.ranks)
    gate, pace = TorchGroup.create(timeout_s=20.0), TorchGroup.create(timeout_s=30.0)
    transport = (SlowTransport if rank == 1 else TorchTransport).create(timeout_s=20.0)
    clock = Clock()
    memory, link = CrewMemory(FACTS, rank, BASE), LocalLink(clock)
    agent = Agent(
        FACTS, gate, transport, memory, BASE, run_id=RUN_ID, incarnation=rank, link=link, clock=clock
    )
    base, target, answers = BASE, TARGET, []
    for turn, reason in enumerate((withdraw, pass_time, follow)):
        SlowTransport.go.clear()
        link.offer(encode_offer(offer(FACTS, base, target, plan_id=f"left{turn}")), 1)
        serve(agent, pace, 0, lambda: agent.state == "staging")
        wave_bytes = agent.staging_bytes
        following = offer(FACTS, base, target, plan_id=f"next{turn}", term=1 + (reason is follow))
        reason(link, clock, following)
        serve(agent, pace, 0, lambda: agent.state == "refused")
        kept = agent.staging_bytes == wave_bytes > 0
        SlowTransport.go.set()
        follow(link, clock, following)
        answered = {(following.key, state) for state in ("switched", "refused", "stuck")}
        serve(agent, pace, 0, lambda answered=answered: (agent._standing.offer_key, agent.state) in answered)
        answers.append(
            (kept, agent.state, agent.refusals, agent.staging_bytes, weights_are_right(memory, rank, target))
        )
        base, target = target, base
    results.put((rank, answers))
    agent.close()
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_real_processes_switch_together_and_one_that_refuses_or_fails_holds_all(tmp_path):
    answers = run_everywhere(tmp_path, run_rank)
    assert answers[0][3][2] == "transfer_failed"
    wanted = layer_map_digests(FACTS.model_layers, TARGET).tolist()
    for _, moved, kept, cut_off, run_id, refusals, mended in answers:
        assert moved == ("switched", 1, wanted, True)
        assert kept == ("refused", 0, wanted, True)
        # A rank that still waits for its peer when rank 0 has given up hears that the offer is gone.
        assert cut_off in {("refused", 0, "transfer_failed", True), ("refused", 0, "withdrawn", True)}
        assert mended == ("switched", 1, True), "the wire is made anew without a restart"
        assert run_id == RUN_ID  # that of rank 0 counts
        assert [(rank, code) for rank, code, _ in refusals] == [(2, "old_term")]


@pytest.mark.slow
def test_a_wave_that_is_let_go_in_mid_transfer_leaves_the_wire_whole_for_the_next_plan(tmp_path):
    """Withdrawn, expired, or followed by a new leader's offer: staging stays until the messages have come, then goes."""
    for _, answers in run_everywhere(tmp_path, change_minds):
        assert answers == [(True, "switched", (), 0, True)] * 3
