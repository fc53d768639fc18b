"""Rules of the planner process."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from eplb.planner import PlanFailure, Planner, PlanRequest, PlanResult, make_plan
from placement import LoadTrace, Placement, Topology, evaluate, violations

RANKS, SLOTS_PER_RANK, EXPERTS, LAYERS, SLICES = 4, 3, 8, 2, 16


def request_of(slices=SLICES, **changes):
    rng = np.random.default_rng(1)
    tokens = rng.poisson(50, (slices, LAYERS, EXPERTS)).astype(np.int64)
    tokens[:, :, :3] *= 6
    current = np.tile(np.arange(RANKS * SLOTS_PER_RANK) % EXPERTS, (LAYERS, 1)).astype(np.int32)
    facts = {
        "tokens": tokens,
        "current": current,
        "ranks": RANKS,
        "nodes": 2,
        "slots_per_rank": SLOTS_PER_RANK,
    }
    return PlanRequest(**{**facts, **changes})


def wait_for(planner, seconds=60.0):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        answer = planner.poll()
        if answer is not None:
            return answer
        time.sleep(0.02)
    raise AssertionError("no answer")


def test_plan_is_judged_on_slices_it_did_not_see():
    """A quarter of the window, the newest, is held out; the plan is better there too."""
    plan = make_plan(request_of())
    assert (plan.slices_planned, plan.slices_held_out) == (12, 4)
    assert plan.ratio_after < plan.ratio_before


def test_unseen_slices_do_not_change_the_plan():
    """Whatever the held-out slices hold, the target is the same."""
    tokens = request_of().tokens.copy()
    tokens[-4:] = tokens[-4:, :, ::-1]
    assert np.array_equal(make_plan(request_of(tokens=tokens)).target, make_plan(request_of()).target)


def test_the_number_of_slices_that_judge_may_be_given():
    """They are the newest ones."""
    plan = make_plan(request_of(held_out=2))
    assert (plan.slices_planned, plan.slices_held_out) == (14, 2)


def test_slices_count_by_their_weights():
    """With all weight on one half of the slices, the plan is that of this half alone."""
    tokens = request_of().tokens.copy()
    tokens[:6] = tokens[:6, :, ::-1]
    weighted = make_plan(request_of(tokens=tokens, held_out=4, weights=np.repeat([0.0, 1.0], 6)))
    alone = make_plan(request_of(tokens=tokens[6:], held_out=4))
    assert np.array_equal(weighted.target, alone.target)
    assert weighted.bound == alone.bound


@pytest.mark.parametrize("held_out", [0, SLICES])
def test_a_plan_needs_slices_on_either_side(held_out):
    """Some to plan on and some to judge by."""
    with pytest.raises(ValueError, match="16 slices"):
        make_plan(request_of(held_out=held_out))


def test_too_few_slices_are_refused():
    """With three slices nothing can be held out."""
    with pytest.raises(ValueError, match="3 slices"):
        make_plan(request_of(slices=3))


@pytest.mark.parametrize("dispatch", ["even", "nearest", "optimal"])
def test_a_search_out_of_time_still_gives_a_plan(dispatch):
    """No worse than the live map on the slices that it saw, and it says that it was cut short."""
    request = request_of(dispatch=dispatch, effort="thorough", search_s=0.0)
    plan = make_plan(request)
    topology = Topology.uniform(ranks=RANKS, nodes=2, slots_per_rank=SLOTS_PER_RANK)
    seen = LoadTrace(request.tokens[: plan.slices_planned])
    after, before = (
        evaluate(Placement(rows), seen, topology, dispatch=dispatch).mean_ratio
        for rows in (plan.target, request.current)
    )
    assert after <= before + 1e-9
    assert "truncated" in [code for code, _ in plan.reasons]
    assert not violations(Placement(plan.target), topology, EXPERTS)


@pytest.mark.slow
def test_process_answers_and_is_reused():
    """The process gives the same plan as the function and stays for the next request."""
    planner = Planner(deadline_s=60.0)
    try:
        for _ in range(2):
            planner.start(request_of())
            answer = wait_for(planner)
            assert isinstance(answer, PlanResult)
            assert np.array_equal(answer.target, make_plan(request_of()).target)
        assert not planner.busy
    finally:
        planner.close()


@pytest.mark.slow
def test_refused_input_comes_back_as_a_named_failure():
    """The solver's refusal is told, and the process still serves afterwards."""
    planner = Planner(deadline_s=60.0)
    try:
        planner.start(request_of(slots_per_rank=1))
        answer = wait_for(planner)
        assert isinstance(answer, PlanFailure)
        assert answer.code == "planning_failed"
        planner.start(request_of())
        assert isinstance(wait_for(planner), PlanResult)
    finally:
        planner.close()


@pytest.mark.slow
def test_pln_13_deadline_kills_the_solve_and_the_next_one_works():
    """PLN-13: a solve beyond its deadline is a failure event, its process is gone, and the next request is served."""
    planner = Planner(deadline_s=60.0)
    try:
        planner.start(request_of())
        assert isinstance(wait_for(planner), PlanResult)
        os.kill(
            planner.pid, signal.SIGSTOP
        )  # a solve ends its search by itself: only one that hangs is beyond its deadline
        planner.deadline_s = 0.0
        planner.start(request_of())
        answer = wait_for(planner)
        assert isinstance(answer, PlanFailure)
        assert answer.code == "planning_timeout"
        assert not [p for p in multiprocessing.active_children() if p.name == "eplb-planner"]
        planner.deadline_s = 60.0
        planner.start(request_of())
        assert isinstance(wait_for(planner), PlanResult)
    finally:
        planner.close()


@pytest.mark.slow
def test_a_dead_process_is_told():
    """A solver killed from outside, before or under a request, is a failure and not a wait for ever."""
    planner = Planner(deadline_s=60.0)
    try:
        planner.warm()
        os.kill(planner.pid, signal.SIGSTOP)
        planner.start(request_of())
        os.kill(planner.pid, signal.SIGKILL)
        answer = wait_for(planner)
        assert isinstance(answer, PlanFailure)
        assert "exit code -9" in answer.sentence
        planner.start(request_of())
        assert isinstance(wait_for(planner), PlanResult)
    finally:
        planner.close()


ORPHAN = """
import sys, time
import numpy as np
from eplb.planner import Planner, PlanRequest
if __name__ == "__main__":
    planner = Planner(deadline_s=600.0)
    tokens = np.random.default_rng(0).poisson(50, (64, 40, 64)).astype(np.int64)
    current = np.tile(np.arange(96) % 64, (40, 1)).astype(np.int32)
    planner.start(PlanRequest(tokens=tokens, current=current, ranks=8, nodes=2, slots_per_rank=12, effort="thorough"))
    print(planner.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_solver_does_not_outlive_a_daemon_that_is_killed_in_mid_solve(tmp_path):
    script = tmp_path / "daemon.py"
    script.write_text(ORPHAN)
    daemon = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    try:
        solver = int(daemon.stdout.readline())
    finally:
        daemon.kill()
        daemon.wait()
        daemon.stdout.close()
    limit = time.monotonic() + 30.0
    while Path(f"/proc/{solver}/exe").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    assert not Path(f"/proc/{solver}/exe").exists()
