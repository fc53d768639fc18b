"""Whole replays of a small trace."""

from pathlib import Path

import pytest
from replay_world import DOMAINS, options, recording

from eplb.errors import ReplayError
from eplb.replay.arrivals import Arrival
from eplb.replay.ledger import Account, Bill
from eplb.replay.mix import Mix
from eplb.replay.run import replay
from eplb.replay.schedule import schedule
from eplb.replay.table import as_dict, as_text, duels
from placement import InfeasibleError

GOLDEN = Path(__file__).parent / "fixtures" / "replay_table.txt"
HELD = recording(each=120)
OPTIONS = options(mix=Mix("switch"), first=DOMAINS[:1], second=DOMAINS[1:])
WORDS = (
    "never",
    "every:1",
    "every:4",
    "greedy:4",
    "ours:min_slices=8,min_tokens=1000,cooldown_s=40,min_interval_s=40,price_us_per_token=0.1",
    "oracle",
)


@pytest.fixture(scope="module")
def accounts():
    return replay(HELD, OPTIONS, WORDS, range(2))


def test_the_same_input_and_seeds_print_the_same_table(accounts):
    """A golden file: what a policy costs must not change unnoticed, nor from machine to machine."""
    assert as_text(HELD, OPTIONS, accounts) == GOLDEN.read_text().rstrip("\n")
    assert replay(HELD, OPTIONS, WORDS, [1]) == accounts[len(WORDS) :]


def test_all_policies_serve_one_and_the_same_stream(accounts):
    """Equal steps and tokens in one seed: only maps differ."""
    for seed in (0, 1):
        served = {(account.steps, account.tokens) for account in accounts if account.seed == seed}
        assert served == {(64, 64 * 8 * 100)}


def test_no_policy_has_a_lower_ratio_than_the_oracle(accounts):
    """It alone knows the load, so it bounds what planning can give; never pays for no move."""
    by_name = {account.policy: account for account in accounts if account.seed == 0}
    assert by_name["oracle"].ratio == min(account.ratio for account in by_name.values())
    assert by_name["never"].moves == by_name["oracle"].moves == 0
    assert by_name["every:1"].moves > by_name["every:4"].moves > 0


def test_a_duel_is_won_by_less_time_with_few_moves():
    """Against the best from scratch on that machine, never, and a tenth of the moves of every window."""

    def account(policy, total_s, moves):
        return Account(policy, 0, 1, 1, 1.0, (1.0,), 1, moves, moves, 0, (Bill("H800", total_s, 0.0),))

    rivals = [account("never", 5.0, 0), account("every:1", 4.0, 900), account("every:3", 3.0, 100)]
    for ours, won in [((2.9, 90), True), ((3.1, 10), False), ((2.9, 91), False)]:
        found = duels([*rivals, account("ours", *ours)])
        assert [(duel.best, duel.best_moves, duel.won) for duel in found] == [("every:3", 100, won)]
    assert duels([account("never", 5.0, 0), account("ours", 2.0, 1)]) == ()


def test_the_json_holds_every_account_and_its_label(accounts):
    """Recorded picks, simulated schedule: whoever reads a figure must read that too."""
    body = as_dict(HELD, OPTIONS, accounts)
    assert body["label"] == "recorded picks, simulated schedule"
    assert [(row["policy"], row["seed"]) for row in body["accounts"]] == [
        (w, s) for s in (0, 1) for w in WORDS
    ]
    assert len(body["duels"]) == 4


def test_what_cannot_be_replayed_is_said_before_anything_is_served():
    """An unknown policy, a trace that is too short, arrivals that end at once, a pool that is too small."""
    for word in ("every:0", "sometimes", "ours:", "greedy:x"):
        with pytest.raises(ReplayError, match="is unknown: use never, every:N"):
            replay(HELD, OPTIONS, [word], [0])
    with pytest.raises(ReplayError, match="were served by step") as refused:
        replay(HELD, options(steps=4000), ["never"], [0])
    passes = int(str(refused.value).rpartition("--passes ")[2])
    assert sum(1 for _ in schedule(HELD, options(steps=4000, passes=passes).schedule, 4, 0)) == 1000
    with pytest.raises(ReplayError, match="the arrivals end before one window"):
        replay(HELD, options(arrivals=(Arrival(0.0, 1),)), ["never"], [0])
    with pytest.raises(ReplayError, match="use smaller windows"):
        replay(HELD, options(steps=10**9, window_steps=10**9), ["never"], [0])
    with pytest.raises(InfeasibleError):
        replay(recording(), type(OPTIONS)(ranks=2, slots_per_rank=3), ["never"], [0])
