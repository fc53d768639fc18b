"""What goes wrong with one rank of a crew before or while it holds a prepared wave."""

from dataclasses import replace

import numpy as np
from agent_crew import (
    FACTS,
    CrewMemory,
    offer,
    rotated,
    start_map,
)
from hypothesis import strategies as st

from eplb.agent.memory import own_slots
from eplb.agent.rounds import wave_copies
from eplb.agent.transport import ThreadTransport
from eplb.errors import TransferError

BASE = start_map()
TARGET = np.stack([rotated(row) for row in BASE])
GOOD = offer(FACTS, BASE, TARGET)


class FailingTransport(ThreadTransport):
    """A transport whose link breaks at the first exchange."""

    def exchange(self, sends, receives) -> None:
        raise TransferError("the wire is cut")


class UnreadableMemory(CrewMemory):
    """Weights of which one rank cannot read a slot once ``fails`` is set."""

    fails = False

    def tensors(self, layer, slot):
        if self.fails:
            raise OSError("device lost")
        return super().tensors(layer, slot)


def raise_term(crew, rank):
    crew.agents[rank]._standing.term_seen = 99


def no_memory(crew, rank):
    side = crew.agents[rank]._side
    crew.agents[rank]._side = replace(side, staging_bytes_max=1)


def sent_by(rank):
    """The first copy of the good offer that this rank sends to another."""
    slots = own_slots(FACTS, rank)
    copies = wave_copies(FACTS, BASE, GOOD.changes)
    return next(copy for copy in copies if copy.source in slots and copy.destination not in slots)


def spoil_source(crew, rank):
    copy = sent_by(rank)
    crew.memories[rank].tensors(copy.layer, copy.source)["w2"][7] ^= 1


def other_map(crew, rank):
    crew.agents[rank]._live.digests[2] ^= np.uint64(1)


def other_step(crew, rank):
    crew.step_offset = {rank: 1}


def cut_wire(crew, rank):
    crew.agents[rank]._side.transport.__class__ = FailingTransport


def lose_device(crew, rank):
    crew.memories[rank].fails = True


def run_clock_ahead(crew, rank):
    crew.clocks[rank].ahead_s = 1000.0


def let_go(crew, rank):
    crew.agents[rank]._standing.release()


def hold_another(crew, rank):
    hand = crew.agents[rank]._standing.hand
    hand.asked = replace(hand.asked, digest=hand.digest ^ 1)


BEFORE = {
    "old_term": raise_term, "no_memory": no_memory, "weights_differ": spoil_source, "base_differs": other_map,
    "step_differs": other_step, "transfer_failed": cut_wire, "internal": lose_device,
}  # fmt: skip
WHILE_PREPARED = {
    "old_term": raise_term, "base_differs": other_map, "step_differs": other_step, "expired": run_clock_ahead,
    "not_prepared": let_go, "offer_differs": hold_another,
}  # fmt: skip
ranks = st.integers(min_value=0, max_value=FACTS.ranks - 1)


def assert_nobody_switched(crew):
    assert crew.switched == [[]] * FACTS.ranks
    assert crew.maps() == [BASE.tobytes()] * FACTS.ranks
    crew.until(
        lambda agent: agent.staging_bytes == 0
    )  # a wave let go of is freed when its transfer has ended
    assert [agent.staging_bytes for agent in crew.agents] == [0] * FACTS.ranks
    assert [agent.map_version for agent in crew.agents] == [0] * FACTS.ranks
    assert all(recorder.calls == [] for recorder in crew.recorders)
