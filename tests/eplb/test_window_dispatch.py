"""Rules of what steps tell of an engine's dispatch: whether tokens follow the live map's shares, once there is enough to tell."""

from __future__ import annotations

import math

import numpy as np
import pytest

from collectors import Kind, Recorder
from collectors.digests import layer_map_digests
from collectors.facts import Phase, PoolFacts
from collectors.frame import encode_frame
from collectors.shares import all_shares
from eplb.assess import assess
from eplb.window import Window
from eplb.window.dispatch import LEAST_EVIDENCE, SeenDispatch

FACTS = PoolFacts("p", ranks=4, nodes=2, slots_per_rank=3, experts=8, top_k=2, model_layers=(3, 4))
ROWS = np.tile(np.arange(12, dtype=np.int32) % 8, (2, 1))
TOKENS, STEPS = 64, 40
TILTED = all_shares(ROWS, np.tile([0.8, 0.9, 0.3, 0.5, 1, 1, 1, 1, 0.2, 0.1, 0.7, 0.5], (2, 1)))


def dealt(step, shares):
    """Tokens by slot of one step, each dealt at random by these shares: int64 [layers, slots]."""
    rng = np.random.default_rng(step)
    counts = np.zeros(ROWS.shape, dtype=np.int64)
    for layer, row in enumerate(ROWS):
        picks = rng.exponential(size=(TOKENS, 8)).argsort(axis=1)[:, :2]
        for expert, tokens in enumerate(np.bincount(picks.ravel(), minlength=8).tolist()):
            slots = np.flatnonzero(row == expert)
            counts[layer, slots] += rng.multinomial(tokens, shares[layer, slots])
    return counts


def window_of(shares, *, told=None, kind=Kind.RECEIVED_SLOTS, window=None, run_id=5, steps=STEPS):
    """A window that took steps of ranks that deal by ``shares`` and say that they do by ``told``."""
    told = shares if told is None else told
    digests = layer_map_digests(FACTS.model_layers, ROWS, told)
    window = Window(FACTS) if window is None else window
    window.add_map(digests, ROWS, told)
    recorders = [Recorder(FACTS, rank, kind, stride=1) for rank in range(FACTS.ranks)]
    for recorder in recorders:
        recorder.register(run_id, -1, digests)
    for step in range(steps):
        counts = dealt(step, shares)
        parts = {
            Kind.RECEIVED_SLOTS: np.split(counts, FACTS.ranks, axis=1),
            # One rank routes everything here, the others are idle.
            Kind.ROUTED_SLOTS: [counts, *[np.zeros_like(counts)] * 3],
        }[kind]
        for rank, recorder in enumerate(recorders):
            recorder.record_step(step, Phase.DECODE, parts[rank], TOKENS if rank == 0 else 0)
    for recorder in recorders:
        window.ingest(1_000_000 + run_id, 0, encode_frame(recorder.snapshot(0)))
    assert window.counters["complete"] == steps or window.counters["complete"] > STEPS
    return window


def followed(window):
    return window.view(1_000_500).shares_followed


EVEN = all_shares(ROWS, None)


@pytest.mark.parametrize("kind", [Kind.RECEIVED_SLOTS, Kind.ROUTED_SLOTS])
def test_tokens_that_follow_the_shares_are_told_from_tokens_that_are_dealt_evenly(kind):
    assert followed(window_of(TILTED, kind=kind)) == pytest.approx(1.0, abs=0.1)
    assert followed(window_of(EVEN, told=TILTED, kind=kind)) == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_step_or_none_tells_nothing(steps):
    assert math.isnan(followed(window_of(EVEN, told=TILTED, steps=steps)))


def test_even_shares_tell_nothing():
    assert math.isnan(followed(window_of(EVEN)))


def test_what_was_seen_is_kept_when_shares_are_even_again():
    """A plan that promised in vain is taken back: the next one would promise in vain too."""
    window = window_of(EVEN, told=TILTED)
    assert followed(window_of(EVEN, window=window)) == pytest.approx(0.0, abs=0.1)


def test_a_new_life_of_the_group_is_seen_anew_and_late_steps_of_an_old_one_do_not_count():
    window = window_of(EVEN, told=TILTED)
    assert followed(window_of(TILTED, window=window, run_id=6)) == pytest.approx(1.0, abs=0.1)


def test_steps_of_an_earlier_run_are_passed_over():
    seen = SeenDispatch()
    tilt, arrived = np.array([[0.5, -0.5]]), np.array([[1000, 0]])
    seen.note(1, tilt, arrived, np.array([[1000, 1000]]))
    assert seen.shares_followed == pytest.approx(1.0)
    seen.note(0, tilt, np.array([[500, 500]]), np.array([[1000, 1000]]))
    assert seen.shares_followed == pytest.approx(1.0)
    seen.note(2, tilt, np.array([[500, 500]]), np.array([[1000, 1000]]))
    assert seen.shares_followed == pytest.approx(0.0)
    assert LEAST_EVIDENCE <= 500


def test_only_a_pool_that_is_said_to_dispatch_by_shares_is_measured_by_them():
    view = window_of(EVEN, told=TILTED).view(1_000_500)
    for dispatch, known in (("weighted", True), ("even", False)):
        found = assess(view, FACTS, live_digest=view.live_digest, trigger_slices=2, dispatch=dispatch)
        assert math.isfinite(found.shares_followed) == known
