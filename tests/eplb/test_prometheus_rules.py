"""The shipped alert rules: they parse, fire and stay silent as told, and speak of what exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from eplb.alert import HOLD_S
from eplb.config import AlertConfig, GateConfig
from eplb.decisions import Code
from eplb.metrics import metric_names

FOLDER = Path(__file__).parents[2] / "configs" / "prometheus"
RULES = [
    rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]
]
CASES = yaml.safe_load((FOLDER / "rules_test.yml").read_text())["tests"]
ALERTS = {
    "EplbImbalanceHigh",
    "EplbCollectorStale",
    "EplbNoLeader",
    "EplbRankLost",
    "EplbStateNotSaved",
    "EplbStoreUnsafe",
    "EplbRebalanceStalled",
    "EplbGainMissed",
}


def promtool(*arguments):
    """Run promtool in the rules' folder; the test is skipped where it is not installed."""
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("promtool is not on PATH (Debian: apt-get install prometheus)")
    return subprocess.run(
        [binary, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_rules_are_valid():
    """promtool check rules."""
    result = promtool("check", "rules", "rules.yml")

    assert result.returncode == 0, result.stdout + result.stderr


def test_every_case_fires_or_is_silent_as_told():
    """promtool test rules."""
    result = promtool("test", "rules", "rules_test.yml")

    assert result.returncode == 0, result.stdout + result.stderr


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    """A case that only fires, or only stays silent, proves little."""
    expected = {alert: set() for alert in ALERTS}
    for case in CASES:
        for check in case["alert_rule_test"]:
            expected[check["alertname"]].add(bool(check["exp_alerts"]))

    assert expected == {alert: {True, False} for alert in ALERTS}
    assert {rule["alert"] for rule in RULES} == ALERTS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_every_metric_of_a_rule_exists(rule):
    """A rule on a name that is never exported would never fire."""
    named = set(re.findall(r"eplb_[a-z0-9_]+", rule["expr"] + rule["annotations"]["description"]))

    assert named
    assert named <= metric_names()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_every_rule_waits_is_kept_and_explains_itself(rule):
    """A summary without values groups well; the values stand in the description."""
    assert rule["for"]
    assert rule["keep_firing_for"]
    assert "$value" not in rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    assert all("_over_time(eplb_" in line for line in rule["expr"].splitlines() if "eplb_" in line)


def test_the_daemon_and_the_rule_judge_by_the_same_numbers():
    """Defaults of the settings are the rule's thresholds and waits."""
    rule = next(
        rule
        for rule in RULES
        if rule["labels"]["severity"] == "warning" and rule["alert"] == "EplbImbalanceHigh"
    )
    stale = next(rule for rule in RULES if rule["alert"] == "EplbCollectorStale")
    alert, gate = AlertConfig(), GateConfig()

    assert f"[{HOLD_S / 60:g}m])) > {alert.recoverable_excess:g}\n" in rule["expr"]
    assert f"< {gate.coverage:g}\n" in rule["expr"]
    assert rule["for"] == f"{alert.for_s / 60:g}m"
    assert rule["keep_firing_for"] == f"{alert.keep_s / 60:g}m"
    assert f"> {alert.stale_after_s:g}\n" in stale["expr"]


def test_whoever_is_woken_finds_each_word_in_the_pages_for_the_person_on_call():
    """Every alert, every code of a decision and every event that the daemon logs."""
    root = Path(__file__).parents[2]
    pages = "".join(
        (root / "docs" / f"{name}.md").read_text()
        for name in ("operations", "gate", "lives", "security", "history")
    )
    told = re.compile(r'\.(?:info|warning|error|critical|exception|_tell)\(\s*"([a-z_]+)"')
    events = {name for file in (root / "eplb").glob("*.py") for name in told.findall(file.read_text())}
    events |= {
        name for file in (root / "eplb" / "history").glob("*.py") for name in told.findall(file.read_text())
    }
    assert {"leading", "offer_not_read", "history_refused"} <= events
    words = {*events, *map(str, Code), *ALERTS}
    assert sorted(word for word in words if not re.search(rf"\b{word}\b", pages)) == []
