"""The checker: right runs pass, and a fault is named by its symptoms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from eplb.demo.batch import Batch
from eplb.demo.checker import TOLERANCE, Checker
from eplb.demo.facts import GroupStep, RankStep, StepTimes
from eplb.demo.faults import DropOne
from eplb.demo.model import ModelSpec, expert_weights, swiglu
from eplb.demo.reference import Reference
from eplb.demo.routing import Routing

RANKS, REQUESTS, EXPERTS, TOP_K, LAYERS = 3, 6, 8, 2, 3
SPEC = ModelSpec(LAYERS, EXPERTS, TOP_K, seed=1, hidden=16, inter=24)
REFERENCE = Reference(SPEC)


@pytest.fixture(scope="module")
def routing() -> Routing:
    """Ten sequences of ten tokens, random distinct picks."""
    random = np.random.default_rng(0)
    picks = np.argsort(random.random((100, LAYERS, EXPERTS)), axis=2)[..., :TOP_K].astype(np.uint8)
    return Routing(
        "test", picks, np.arange(0, 101, 10), np.zeros(10, dtype=np.int8), ("a", "b"), (0, 4, 8), EXPERTS
    )


def right_step(routing: Routing, batch: Batch, step: int) -> GroupStep:
    """A step as three ranks would report it, expert e on rank e % 3."""
    parts = []
    tokens = batch.tokens()
    everything = routing.picks_of(tokens.sequences, tokens.positions)
    for rank in range(RANKS):
        own = tokens.of_rank(rank, RANKS)
        picks = routing.picks_of(own.sequences, own.positions)
        received = np.stack(
            [
                np.bincount(everything[:, layer].ravel(), minlength=EXPERTS)[rank::RANKS]
                for layer in range(LAYERS)
            ]
        )
        parts.append(
            RankStep(
                rank, step, own.sequences, own.positions, REFERENCE.states(own.sequences, own.positions, picks),
                received, picks.size, picks.size, 77, 0, -1, StepTimes(1, 1, 1, 1, 0),
            )
        )  # fmt: skip
    return GroupStep(step, tuple(parts))


def changed(step: GroupStep, rank: int, **changes: object) -> GroupStep:
    """The step with one rank's report changed."""
    return GroupStep(
        step.step, tuple(replace(part, **changes) if part.rank == rank else part for part in step.ranks)
    )


@pytest.fixture
def steps(routing) -> list[GroupStep]:
    """Four right steps."""
    batch = Batch(routing, REQUESTS, 0)
    made = []
    for step in range(4):
        if step:
            batch.advance()
        made.append(right_step(routing, batch, step))
    return made


@pytest.fixture
def checker(routing) -> Checker:
    """A checker at step 0."""
    return Checker(routing, REFERENCE, Batch(routing, REQUESTS, 0))


def test_a_right_run_has_no_finding_and_every_output_is_counted(checker, steps):
    """Every hidden state of every token after every layer is compared."""
    assert checker.check(steps[:2]) == []
    assert checker.check(steps[2:]) == []
    assert checker.totals.outputs == 4 * REQUESTS * LAYERS
    assert checker.totals.mismatches == 0
    assert checker.totals.sent == checker.totals.combined == 4 * REQUESTS * TOP_K * LAYERS


def test_ranks_under_different_maps_are_a_split_switch_whatever_else_is_wrong(checker, steps):
    """A split group also gives wrong outputs; the cause is named, not the consequence."""
    bad = changed(steps[1], 1, live_digest=78, states=steps[1].ranks[1].states + 1)
    found = checker.check([steps[0], bad])
    assert found[0].word == "split-switch"
    assert "rank 1" in found[0].sentence
    assert "step 1" in found[0].sentence


def test_a_contribution_that_was_not_combined_is_a_lost_token(checker, steps):
    """Dropping one row in the combine shows as sent != combined, before the wrong output does."""
    part = steps[0].ranks[0]
    rows = np.ones((part.sent, 16), dtype=np.float32)
    added = DropOne()(np.zeros((1, 16), dtype=np.float32), np.zeros(part.sent, dtype=np.int64), rows)
    bad = changed(steps[0], 0, combined=added, states=part.states + np.float32(0.1))
    assert checker.check([bad])[0].word == "lost-token"


def test_rows_that_did_not_reach_a_slot_are_lost_tokens(checker, steps):
    """The destination's own counters must add up to what was sent."""
    short = steps[0].ranks[1].received.copy()
    short[2, 0] -= 1
    found = checker.check([changed(steps[0], 1, received=short)])
    assert found[0].word == "lost-token"
    assert "row 2" in found[0].sentence


def test_a_token_that_the_batch_does_not_hold_is_a_lost_token(checker, steps):
    """A rank that serves something else has lost what it should have served."""
    part = steps[0].ranks[0]
    assert checker.check([changed(steps[0], 0, positions=part.positions + 1)])[0].word == "lost-token"


def test_conserved_but_wrong_outputs_are_a_wrong_expert_and_the_common_expert_is_named(
    checker, steps, routing
):
    """Tokens of one expert computed with another's weights: layer, token and expert are named."""
    part = steps[0].ranks[0]
    picks = routing.picks_of(part.sequences, part.positions)
    victim = int(picks[0, 1, 0])
    states = part.states.copy()
    wrong = swiglu(np.ones((1, 16), dtype=np.float32), **expert_weights(SPEC, 1, (victim + 1) % EXPERTS))
    right = swiglu(np.ones((1, 16), dtype=np.float32), **expert_weights(SPEC, 1, victim))
    hit = (picks[:, 1] == victim).any(axis=1)
    states[1, hit] += 0.5 * (wrong - right)
    found = checker.check([changed(steps[0], 0, states=states)])
    assert found[0].word == "wrong-expert"
    assert "model layer 4" in found[0].sentence
    assert f"expert {victim}" in found[0].sentence or f", {victim}" in found[0].sentence
    assert checker.totals.mismatches == int(hit.sum())


def test_another_experts_output_is_far_above_the_tolerance():
    """The tolerance separates rounding from a wrong expert by orders of magnitude."""
    x = np.random.default_rng(0).standard_normal((50, 16), dtype=np.float32)
    one, other = (swiglu(x, **expert_weights(SPEC, 0, expert)) for expert in (0, 1))
    assert np.abs(one - other).max(axis=1).min() > 100 * TOLERANCE


def test_an_output_that_is_not_a_number_is_a_mismatch(checker, steps):
    """NaN compares false with everything, and must not pass for that."""
    states = steps[0].ranks[0].states.copy()
    states[0, 0, 0] = np.nan
    assert checker.check([changed(steps[0], 0, states=states)])[0].word == "wrong-expert"
    assert checker.totals.mismatches == 1


def test_a_step_left_out_is_refused(checker, steps):
    """The checker follows the batch step by step; a gap would compare with other tokens."""
    with pytest.raises(ValueError, match="step 2 came, step 1 was expected"):
        checker.check([steps[0], steps[2]])
