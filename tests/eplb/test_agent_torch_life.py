"""Four real processes over gloo: one is killed in the middle of a transfer, three form again, move experts, and take it back."""

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest
from agent_crew import FACTS, NAMES, CrewMemory, expert_bytes, offer, start_map
from life_crew import Checkpoint

from eplb.agent import Agent, LocalLink
from eplb.agent.memory import own_slots
from eplb.agent.reform import leave, reform
from eplb.agent.wire import encode_offer

BASE = start_map()
VICTIM = 0
SURVIVORS = (1, 2, 3)
ALL = tuple(range(FACTS.ranks))
LIMIT_S = 20.0
"""Time limit of every collective: what is much faster than this did not wait for it."""


def turned(rows, members, by=1):
    """Every member's experts handed to the next member."""
    parts = rows.reshape(FACTS.layers, FACTS.ranks, FACTS.slots_per_rank).copy()
    parts[:, list(members)] = np.roll(parts[:, list(members)], by, axis=1)
    return parts.reshape(rows.shape)


def weights_are_right(memory, rank, rows):
    return all(
        np.array_equal(memory.tensors(layer, slot)[name], expert_bytes(layer, int(rows[layer, slot]), name))
        for layer in range(FACTS.layers)
        for slot in own_slots(FACTS, rank)
        for name in NAMES
        if rows[layer, slot] >= 0
    )


def serve(agent, pace, step, holds):
    """Forwards from one on until ``holds`` on all members, the agent is stuck, or an engine's own collective fails."""
    while agent.state != "stuck":
        agent.before_forward(step)
        step += 1
        if step % 20 == 0:
            try:
                if pace.min(int(holds())):
                    return
            except RuntimeError:
                return
            time.sleep(0.002)


def live_on(rank, silent, folder, orders, told):
    """One rank's process: a life for each order (number, members, what to do) until the order is None."""
    from eplb.agent.torch_life import TorchLife
    from eplb.agent.torch_transport import TorchTransport

    if silent:
        # Its peers wait for its weights when the signal comes.
        TorchTransport.exchange = lambda *_: (told.put((rank, "sending", None)), threading.Event().wait())
    memory, link, past = None, LocalLink(), None
    while (order := orders.get()) is not None:
        number, members = order
        memory = memory or CrewMemory(FACTS, rank, np.full_like(BASE, -1) if number else BASE)
        life = TorchLife.begin(
            f"file://{folder}/life-{number}", members, rank, timeout_s=LIMIT_S, transfer_timeout_s=5.0
        )
        pace, given, rows = life.group(LIMIT_S), {"run_id": 7}, BASE
        if number:
            made = reform(FACTS, life.gate, memory, members, past, loader=Checkpoint())
            rows, given = made.rows, {"run_id": made.run_id, "table": made.table}
        agent = Agent(
            FACTS,
            life.gate,
            life.transport,
            memory,
            rows,
            incarnation=rank,
            link=link,
            members=members,
            **given,
        )
        target = turned(rows, members)
        link.offer(encode_offer(offer(FACTS, rows, target, plan_id=f"life{number}", run_id=agent.run_id)), 1)
        # A rank that has just started counts its steps as the group does.
        serve(agent, pace, 100_000 * number, lambda agent=agent: agent.state == "switched")
        past = leave(agent)
        del agent
        begun_s = time.monotonic()
        life.end()
        ended_s = time.monotonic() - begun_s
        right = weights_are_right(memory, rank, past.rows)
        told.put((rank, number, (members, right, past.rows.tobytes(), past.run_id, ended_s)))


def answers(told, number, ranks):
    """What the ranks say of one life, by rank."""
    found = {}
    while len(found) < len(ranks):
        rank, key, facts = told.get(timeout=60)
        if key == number:
            found[rank] = facts
    return found


def end_together(folder):
    """The three lives; returns what the members say of the second and third, and how long the first's end took to be known."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed"])

    def start(rank, *, silent):
        orders[rank] = context.Queue()
        process = context.Process(target=live_on, args=(rank, silent, folder, orders[rank], told))
        process.start()
        return process

    orders, told = {}, context.Queue()
    processes = {rank: start(rank, silent=rank == VICTIM) for rank in ALL}
    for rank in ALL:
        orders[rank].put((0, ALL))
    while told.get(timeout=60)[1] != "sending":
        pass
    time.sleep(0.2)
    killed_s = time.monotonic()
    os.kill(processes[VICTIM].pid, signal.SIGKILL)
    first = answers(told, 0, SURVIVORS)
    known_s = time.monotonic() - killed_s
    for rank in SURVIVORS:
        orders[rank].put((1, SURVIVORS))
    second = answers(told, 1, SURVIVORS)
    processes[VICTIM].join(10)
    processes[VICTIM] = start(VICTIM, silent=False)
    for rank in ALL:
        orders[rank].put((2, ALL))
    third = answers(told, 2, ALL)
    for rank in ALL:
        orders[rank].put(None)
    for process in processes.values():
        process.join(30)
    assert [process.exitcode for process in processes.values()] == [0] * FACTS.ranks
    return first, known_s, second, third


@pytest.mark.slow
def test_a_killed_rank_is_done_without_and_taken_back(tmp_path):
    first, known_s, second, third = end_together(str(tmp_path))
    assert known_s < LIMIT_S / 2, "the failure must run through the group, not wait for the time limit"
    assert all(right and rows == BASE.tobytes() for _, right, rows, _, _ in first.values())
    for life, run_id in ((second, 8), (third, 9)):
        assert {(right, run) for _, right, _, run, _ in life.values()} == {(True, run_id)}
        (raw,) = {rows for _, _, rows, _, _ in life.values()}
        rows = np.frombuffer(raw, dtype=np.int32).reshape(BASE.shape)
        assert all(set(row.tolist()) >= set(range(FACTS.experts)) for row in rows)
    assert (rows[:, : FACTS.slots_per_rank] >= 0).any(), (
        "the plan gives the rank that came back experts again"
    )
