"""Smaller parts of the demo: set-up, moves, report, table, leash."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from eplb.config import load_config
from eplb.demo.daemon_process import daemon_config
from eplb.demo.errors import LimitsMissed
from eplb.demo.facts import GroupStep, RankStep, RankSwitch, StepTimes
from eplb.demo.generator import synthetic
from eplb.demo.moves import MoveLedger, arrivals
from eplb.demo.progress import LineView, Progress, table
from eplb.demo.report import Report, judge, limits, summary
from eplb.demo.setup import run_facts
from eplb.errors import ConfigError


@pytest.fixture(scope="module")
def run():
    """Facts of a run with 8 ranks."""
    return run_facts(synthetic(0), ranks=8, seed=0, dispatch="weighted", run_id=1)


def test_eight_ranks_get_two_nodes_and_eight_redundant_slots(run):
    """8 x 5 slots for 32 experts, and a start map of arange(slots) % experts."""
    assert (run.facts.nodes, run.facts.slots_per_rank, run.facts.slots - run.facts.experts) == (2, 5, 8)
    assert run.start_map()[0].tolist() == [*range(32), *range(8)]


@pytest.mark.parametrize("ranks", [1, 65])
def test_a_number_of_ranks_that_cannot_work_is_refused(ranks):
    """One rank has nobody to exchange with; more ranks than requests would idle."""
    with pytest.raises(ConfigError, match="2 to 64 ranks"):
        run_facts(synthetic(0), ranks=ranks, seed=0, dispatch="weighted", run_id=1)


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_the_start_map_never_puts_an_expert_twice_on_a_rank(ranks):
    """Whatever the number of ranks, the map that serving begins with is sound."""
    made = run_facts(synthetic(0), ranks=ranks, seed=0, dispatch="weighted", run_id=1)
    by_rank = made.start_map()[0].reshape(ranks, -1)
    assert all(len(set(slots.tolist())) == len(slots) for slots in by_rank)


@pytest.mark.parametrize("dispatch", ["weighted", "hash_row", "nearest"])
def test_the_daemons_generated_settings_are_valid_and_agree_with_the_ranks(run, tmp_path, dispatch):
    """The file that the demo writes is read by the real configuration, and its pool's facts are the ranks' facts."""
    import yaml

    path = tmp_path / "daemon.yaml"
    path.write_text(yaml.safe_dump(daemon_config(run.facts, "unix:///run/s", dispatch)))
    pool = load_config(path).pools[0]
    assert pool.facts() == run.facts
    assert pool.gate.target_excess == 0.0, "shares that come near a target would end a planning without moves"


def test_only_experts_new_to_their_rank_count_as_moves():
    """A replica that changes its slot within the rank is no move."""
    before = np.array([0, 1, 2, 3, 0, 1], dtype=np.int32)
    after = np.array([1, 0, 2, 4, 0, 5], dtype=np.int32)
    assert arrivals(before, after, 3) == 2


def test_the_ledger_follows_rank_0_only(run):
    """All ranks report the same switch; it is counted once, with its bytes."""
    ledger = MoveLedger(run.facts, run.start_map())
    row = np.roll(run.start_map()[:1], 5, axis=1)
    for rank in (1, 0, 2):
        ledger.add(RankSwitch(rank, 20, 1, (3,), row))
    assert (ledger.waves, ledger.moves) == (1, arrivals(run.start_map()[3], row[0], 5))
    assert ledger.moved_bytes == ledger.moves * 3 * 64 * 96 * 4


def rank_step(rank: int, digest: int, times: StepTimes) -> RankStep:
    """A rank's report of a step without tokens."""
    none, states = np.zeros(0, dtype=np.int32), np.zeros((1, 0, 4), dtype=np.float32)
    return RankStep(rank, 0, none, none, states, np.zeros((1, 5), dtype=np.int64), 0, 0, digest, 0, -1, times)


def test_the_time_of_a_step_holds_the_gate_before_it():
    """A group that waits for its switch serves nothing; the slowest rank's whole time counts."""
    forward = StepTimes(50.0, 20.0, 10.0, 10.0, 5.0)
    step = GroupStep(0, (rank_step(0, 7, forward), rank_step(1, 7, forward.after_gate(400.0))))
    assert (step.step_us, step.gate_us) == (450.0, 400.0)


def test_a_step_has_a_digest_only_when_all_ranks_serve_one_map():
    """Digests are never 0."""
    times = StepTimes(1, 1, 1, 1, 0)
    assert GroupStep(0, (rank_step(0, 7, times), rank_step(1, 7, times))).live_digest == 7
    assert GroupStep(0, (rank_step(0, 7, times), rank_step(1, 8, times))).live_digest == 0


@pytest.fixture
def report() -> Report:
    """A report of a run that met all limits."""
    return Report(
        trace="t.npz", domains=("law", "science"), layers=(0, 4), batch=64, ranks=8, nodes=2, slots_per_rank=5, experts=32, top_k=4,
        dispatch="weighted", store="embedded", seed=0, finished=True, limits_binding=True, fault="", ratio_start=1.9, ratio_placed=1.2, ratio_shifted=1.4,
        ratio_replaced=1.2, steps_read={"start": 60, "placed": 60, "shifted": 60, "replaced": 60}, kept=(), map_version=2, waves=4, moves=50,
        moved_bytes=3_000_000, steps=900, tokens=57_600, tokens_sent=100, tokens_combined=100, outputs_checked=345_600,
        output_mismatches=0, worst_output_error=1e-6, step_ms_median=50.0, step_ms_worst=90.0, gate_ms_worst=30.0, dispatch_ms_median=20.0,
        expert_ms_median=2.0, combine_ms_median=20.0, wait_ms_median=10.0, startup_s=4.0, seconds=80.0, last_decision_before_pause="balanced: x",
        rank_notes={},
    )  # fmt: skip


def test_limits_are_on_the_excess_not_on_the_ratio(report):
    """Excess placed .2 of .9; shifted .4 = 2 x .2; replaced .2 <= .6 x .4."""
    assert all((limits(report) or {}).values())
    assert (limits(replace(report, ratio_placed=1.4)) or {}) == {
        "placed_at_most_0.35_start": False,
        "shifted_at_least_1.8_placed": False,
        "replaced_at_most_0.6_shifted": True,
    }
    assert limits(replace(report, ratio_replaced=None)) is None


def test_a_missed_limit_is_an_error_where_the_limits_are_a_promise(report):
    """Exit 0 means that the promised readings were met; other settings only show theirs."""
    judge(report)
    judge(replace(report, ratio_replaced=None))
    with pytest.raises(LimitsMissed, match=r"replaced at most 0\.6 shifted: .*replaced 30\.0%"):
        judge(replace(report, ratio_replaced=1.3))
    judge(replace(report, ratio_replaced=1.3, limits_binding=False))


def test_the_summary_claims_only_what_was_measured(report):
    """When the daemon may act, what a step's time holds, and which pauses it leaves out."""
    text = summary(report)
    for part in (
        "only after the first reading and again after the third",
        "its next token",
        "worst 30.0 ms",
        "paused 0.15 s",
    ):
        assert part in text
    assert "its next token" not in summary(replace(report, fault="lost-token"))


def test_the_summary_says_what_was_read_moved_and_checked(report):
    """A reader finds the readings, the moves, the tokens and the mismatches, each with its meaning."""
    text = summary(report)
    for part in (
        "1.900",
        "1.200",
        "50 expert copies",
        "100 = combined 100",
        "wrong: 0",
        "all limits met",
        "science",
    ):
        assert part in text


def test_the_summary_of_a_broken_run_begins_with_the_fault(report):
    """Nobody must read to the end to learn that something was wrong."""
    broken = replace(report, fault="lost-token", tokens_combined=99, finished=False, ratio_placed=None)
    text = summary(broken)
    assert text.startswith("A FAULT WAS FOUND (lost-token)")
    assert "100 IS NOT combined 99" in text
    assert "not reached" in text


def progress(**changes) -> Progress:
    """A picture in the middle of a run."""
    made = Progress("reading 2 of 4: placed", 120, 1, "64 + 0 requests in flight", (0, 4), np.array([1.25, 1.5]), np.array([0.5, 1.5]),
                    {"start": 1.9}, "balanced: below the target", 7680, 0, 55.0)  # fmt: skip
    return replace(made, **changes)


def test_the_table_shows_ratios_loads_version_and_the_last_decision_with_its_reason():
    """Everything that the issue asks to be seen is on the picture."""
    out = io.StringIO()
    Console(file=out, width=120).print(table(progress()))
    for part in (
        "map version 1",
        "1.25",
        "1.50",
        "0.50",
        "balanced: below the target",
        "start 1.900",
        "step 55 ms",
    ):
        assert part in out.getvalue()


def test_the_table_can_be_drawn_before_the_first_step():
    """There is a picture while ranks start."""
    out = io.StringIO()
    Console(file=out, width=120).print(
        table(progress(ratio_by_layer=None, load_by_rank=None, step_ms=None, readings={}))
    )
    assert "none yet" in out.getvalue()


def test_lines_are_written_only_when_something_changed(capsys):
    """A log file gets one line a change, not one a step."""
    view = LineView()
    for step, decision in ((1, "paused: a"), (2, "paused: b"), (3, "offered: c")):
        view.show(progress(step=step, decision=decision))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 1", "step 3"]


@pytest.mark.slow
def test_a_command_on_the_leash_ends_when_its_starter_lets_go(tmp_path):
    """Closing the pipe, as the death of the starter does, ends the command."""
    mark = tmp_path / "ended"
    code = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(mark)!r}).write_text('term'), sys.exit(0)))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    command = [sys.executable, "-m", "eplb.demo.leash", str(folder), sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as leash:
        assert leash.stdout is not None
        assert leash.stdout.readline() == b"up\n"
        assert leash.stdin is not None
        leash.stdin.close()
        leash.wait(30)
    assert mark.read_text() == "term"
    assert not folder.exists()


@pytest.mark.slow
def test_the_leash_ends_with_its_command_and_gives_its_status(tmp_path):
    """A command that fails by itself is not hidden."""
    command = [
        sys.executable,
        "-m",
        "eplb.demo.leash",
        str(tmp_path),
        sys.executable,
        "-c",
        "raise SystemExit(7)",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as leash:
        assert leash.wait(30) == 7
    assert tmp_path.exists()
