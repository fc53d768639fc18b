"""The parent's side of a run: decisions, late faults, broken slots, the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from agent_crew import FACTS, Crew, CrewMemory, offer, rotated, start_map

from eplb.cli.main import main
from eplb.demo.director import Command
from eplb.demo.errors import BrokenSlot, RankFailure
from eplb.demo.facts import GroupStep, RankStep, StepTimes
from eplb.demo.generator import synthetic
from eplb.demo.progress import LineView
from eplb.demo.rank_group import RankGroup
from eplb.demo.run import DemoRun, Options
from eplb.demo.setup import RankPlan, run_facts
from eplb.store.client import Store

pytest.importorskip("torch")


def hear_out(group: RankGroup) -> None:
    """Read messages until all ranks have said their last word."""
    while group.running:
        group.messages(1.0)


@pytest.fixture
def ended_group():
    """Rank 0 of a group, a real process that was given no meeting point and has ended."""
    run = run_facts(synthetic(0), ranks=2, seed=0, dispatch="weighted", run_id=1)
    with RankGroup([RankPlan(0, run, "unix:///none", "", "")]) as group:
        with pytest.raises(RankFailure, match="rank 0 stopped"):
            hear_out(group)
        for process in group._processes:
            process.join()
        yield group


def wrong_step(run: DemoRun) -> GroupStep:
    """Step 0 as two ranks would report it that served the right tokens under two maps."""
    facts = run._facts.facts
    tokens = run._facts.batch().tokens()
    parts = []
    for rank in range(facts.ranks):
        own = tokens.of_rank(rank, facts.ranks)
        states = np.zeros((facts.layers, len(own.sequences), run._facts.spec.hidden), dtype=np.float32)
        received = np.zeros((facts.layers, facts.slots_per_rank), dtype=np.int64)
        parts.append(
            RankStep(rank, 0, own.sequences, own.positions, states, received, 1, 1, 10 + rank, 0, -1, StepTimes(1, 1, 1, 1, 0))
        )  # fmt: skip
    return GroupStep(0, tuple(parts))


@pytest.mark.slow
def test_a_fault_in_the_last_steps_is_found_although_no_rank_is_left_to_stop(ended_group):
    """The last check comes after the ranks: its finding is kept by its word, and no broken pipe hides it."""
    run = DemoRun(Options(ranks=2, trace="synthetic"), LineView())
    run._unchecked.append(wrong_step(run))
    run._check(ended_group)
    assert run.finding is not None
    assert run.finding.word == "split-switch"
    ended_group.order(Command.STOP)  # and an order that crosses the end of rank 0 is no error either
    assert run.report().fault == "split-switch"


def test_the_decision_that_is_reported_is_the_last_one_before_the_demos_own_pause(embedded_store_url):
    """The demo pauses the daemon while it reads; that this is the last record says nothing."""
    run = DemoRun(Options(ranks=2, trace="synthetic"), LineView())
    with Store(embedded_store_url, "decisions-of-a-demo") as store:
        for code in ("balanced", "settled", "paused", "paused"):
            store.append_log(json.dumps({"code": code, "sentence": "x"}).encode())
        run._hear_decisions(store)
    assert run._decision == "paused: x"
    assert run.report().last_decision_before_pause == "settled: x"


@pytest.mark.parametrize(
    ("changes", "binding"), [({}, True), ({"ranks": 4}, False), ({"dispatch": "hash_row"}, False)]
)
def test_limits_bind_the_promised_setting_only(shared_data, changes, binding):
    """The recorded domains on 8 ranks with weighted dispatch."""
    options = replace(Options(trace=str(shared_data / "gptoss20b_decode.npz")), **changes)
    run = DemoRun(options, LineView())
    assert run.report().limits_binding is binding
    assert run._limits.drain_steps == run._facts.routing.longest(0) + 1


def test_generated_routing_is_shown_and_not_judged():
    """The promise is about recorded routing."""
    assert not DemoRun(Options(trace="synthetic"), LineView()).report().limits_binding


def test_no_rank_serves_from_a_slot_that_failed_its_read_back():
    """A real switch into storage that takes no writes: the rank stops with the places, its peers go on."""
    from eplb.demo.rank import check_slots

    class DeafMemory(CrewMemory):
        deaf = False

        def tensors(self, layer, slot):
            views = super().tensors(layer, slot)
            return {name: data.copy() for name, data in views.items()} if self.deaf else views

    base = start_map()
    crew = Crew(memory_type=DeafMemory)
    crew.stage(offer(FACTS, base, np.stack([rotated(row) for row in base])))
    crew.memories[2].deaf = True
    crew.link.away = False
    crew.settle()
    switched = [done[0][1] for done in crew.switched]
    with pytest.raises(BrokenSlot, match=r"slot 7 of model layer 4.*read-back"):
        check_slots(switched[2], FACTS.model_layers)
    for rank in (0, 1, 3):
        check_slots(switched[rank], FACTS.model_layers)
    crew.close()


@pytest.mark.parametrize("seconds", ["nan", "inf", "0"])
def test_a_time_that_is_no_number_is_a_usage_error(capsys, seconds):
    """nan compares false with every limit and would never end the run."""
    assert main(["demo", "--seconds", seconds]) == 2
    assert "--seconds" in capsys.readouterr().err


def test_a_text_file_as_trace_is_an_error_with_what_to_give(tmp_path, capsys):
    """Named by its path."""
    path = tmp_path / "trace.txt"
    path.write_text("not picks")
    assert main(["demo", "--trace", str(path)]) == 1
    assert f"error: trace {path}: cannot be read (not an .npz file)" in capsys.readouterr().err


def test_help_says_which_limits_decide_the_exit_status():
    """A user who reads only --help knows what exit 1 may mean."""
    command = [sys.executable, "-m", "eplb.cli.main", "demo", "--help"]
    shown = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "120"},
    ).stdout
    for part in ("a limit was missed", "\n    placed <= 0.35 x start", "last_decision_before_pause"):
        assert part in shown
