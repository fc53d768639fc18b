"""A group of fewer ranks: its steps are whole without the lost one, and what it shows is not mixed with what all ranks showed."""

import numpy as np
import pytest
from window_world import facts_of

from collectors.digests import layer_map_digests, live_map_digest
from collectors.facts import Kind, Phase
from collectors.frame import encode_frame
from collectors.recorder import Recorder
from eplb.assess import assess
from eplb.window import Window

FACTS = facts_of(ranks=4, experts=6, slots_per_rank=3)
ALL, LIVING = (0, 1, 2, 3), (0, 1, 3)
WHOLE = np.array([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]] * 2, dtype=np.int32)
REDUCED = np.where((np.arange(12) >= 6) & (np.arange(12) < 9), -1, WHOLE).astype(np.int32)
PER_RANK = {0: 30, 1: 10, 2: 10, 3: 10}


class Lives:
    """Steps of lives of a group, each rank receiving a fixed number of pairs in a step, told frame by frame."""

    def __init__(self):
        self.window = Window(FACTS, Kind.RECEIVED_SLOTS, stale_after_s=5.0)
        self.now_ms, self.step = 1_000_000, 0

    def serve(self, run_id, members, rows, steps=5):
        digests = layer_map_digests(FACTS.model_layers, rows)
        self.window.add_map(digests, rows)
        recorders = {}
        for rank in members:
            recorders[rank] = Recorder(
                FACTS, rank, Kind.RECEIVED_SLOTS, incarnation=100 * run_id + rank, stride=1
            )
            assert recorders[rank].register(run_id, self.step - 1, digests)
        pairs = sum(PER_RANK[rank] for rank in members)
        for _ in range(steps):
            for rank, recorder in recorders.items():
                counts = np.zeros((FACTS.layers, FACTS.slots_per_rank), dtype=np.int64)
                counts[:, 0] = PER_RANK[rank]
                tokens = pairs // FACTS.top_k if rank == members[0] else 0
                recorder.record_step(self.step, Phase.DECODE, counts, tokens)
            self.step += 1
        for recorder in recorders.values():
            self.now_ms += 10
            self.window.ingest(self.now_ms, 0, encode_frame(recorder.snapshot(0)))
        return live_map_digest(digests)

    def view(self):
        return self.window.view(self.now_ms)


def test_steps_of_a_life_wait_for_its_members_only():
    lives = Lives()
    lives.window.set_members(78, LIVING)
    lives.serve(78, LIVING, REDUCED)
    view = lives.view()
    assert (view.slices, view.complete_steps) == (5, 5)
    assert view.ratio == pytest.approx(30 / (50 / 3)), "the mean is over three ranks"


def test_steps_that_came_before_their_life_was_known_are_closed_once_it_is():
    lives = Lives()
    lives.serve(78, LIVING, REDUCED)
    assert lives.view().slices == 0
    lives.window.set_members(78, LIVING)
    assert lives.view().slices == 5


def test_coverage_counts_members_and_a_lost_rank_is_not_missing():
    lives = Lives()
    lives.serve(77, ALL, WHOLE)
    lives.now_ms += 20_000
    lives.window.set_members(78, LIVING)
    lives.serve(78, LIVING, REDUCED)
    view = lives.view()
    assert (view.ranks_expected, view.ranks_seen, view.coverage, view.stale_ranks) == (3, 3, 1.0, ())
    assert view.members == LIVING


def test_slices_of_another_membership_are_kept_for_planning_and_shown_in_no_ratio():
    lives = Lives()
    lives.window.set_members(77, ALL)
    lives.serve(77, ALL, WHOLE)
    lives.window.set_members(78, LIVING)
    digest = lives.serve(78, LIVING, REDUCED, steps=4)
    view = lives.view()
    assert view.slices == 9
    assert view.same_members.tolist() == [False] * 5 + [True] * 4
    seen = assess(view, FACTS, live_digest=digest, trigger_slices=2)
    assert seen.slices == 4
    assert seen.excess == pytest.approx(30 / (50 / 3) - 1)


def test_a_rank_that_is_back_and_empty_counts_in_the_mean():
    """The map is the same, with the empty rank's slots empty, but the load is now a fourth rank's to share."""
    lives = Lives()
    lives.window.set_members(78, LIVING)
    lives.serve(78, LIVING, REDUCED)
    lives.window.set_members(79, ALL)
    old = dict(PER_RANK)
    PER_RANK[2] = 0
    try:
        digest = lives.serve(79, ALL, REDUCED)
    finally:
        PER_RANK.update(old)
    seen = assess(lives.view(), FACTS, live_digest=digest, trigger_slices=2)
    assert seen.slices == 5
    assert seen.excess == pytest.approx(30 / (50 / 4) - 1)


def test_a_cleared_window_still_knows_the_members():
    lives = Lives()
    lives.window.set_members(78, LIVING)
    lives.window.clear()
    lives.serve(78, LIVING, REDUCED)
    assert lives.view().slices == 5
