"""Experts from a checkpoint: what a load that nobody waits for any more still brings is thrown away."""

import threading

import numpy as np
import pytest
from agent_crew import FACTS, NAMES, CrewMemory, expert_bytes, start_map

from eplb.agent.loader import load_everywhere
from eplb.errors import MigrationError

LAYER, SLOT, EXPERT = 0, 0, 5


class SlowCheckpoint:
    """A loader that gives its expert once it is let go."""

    def __init__(self):
        self.asked, self.go = threading.Event(), threading.Event()
        self.thread = None

    def load(self, layer, expert):
        self.thread = threading.current_thread()
        self.asked.set()
        assert self.go.wait(30.0)
        return {name: expert_bytes(layer, expert, name) for name in NAMES}


class DyingGroup:
    """A group of which a rank dies while this one loads."""

    rank, size = 0, 2

    def __init__(self, checkpoint):
        self._checkpoint = checkpoint

    def gather(self, array):
        assert self._checkpoint.asked.wait(30.0)
        raise MigrationError("rank 1 is gone")


def test_a_rank_that_dies_during_a_load_leaves_no_write_for_the_next_life():
    """The next life proves what the slots hold, so a load of the life before must not come into one of them afterwards."""
    checkpoint, memory = SlowCheckpoint(), CrewMemory(FACTS, 0, start_map())
    before = {name: tensor.copy() for name, tensor in memory.tensors(LAYER, SLOT).items()}
    with pytest.raises(MigrationError, match="rank 1 is gone"):
        load_everywhere(
            DyingGroup(checkpoint), (0, 1), [(LAYER, SLOT, EXPERT)], memory, checkpoint, table=None
        )
    checkpoint.go.set()
    checkpoint.thread.join(30.0)
    assert not checkpoint.thread.is_alive()
    for name, tensor in memory.tensors(LAYER, SLOT).items():
        assert np.array_equal(tensor, before[name])
