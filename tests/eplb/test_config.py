"""Settings: YAML < environment < command line, every key checked, every message of use."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from collectors.facts import Kind, Phase, PoolFacts
from eplb.cli.config_cmd import config as config_command
from eplb.cli.main import main
from eplb.config import (
    DaemonConfig,
    PoolConfig,
    changed,
    format_layers,
    load_config,
    masked_url,
    parse_layers,
    to_yaml,
)
from eplb.config.sources import parse_path
from eplb.errors import ConfigError
from placement.models import DISPATCH, EFFORTS

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith("EPLB_"):
            monkeypatch.delenv(name)


def pool(**changes):
    tree = {
        "name": "mixed",
        "topology": {"ranks": 8, "nodes": 2, "slots_per_rank": 5},
        "model": {"experts": 32, "top_k": 4, "moe_layers": "3-8"},
        "kind": "received_slots",
    }
    return {**tree, **changes}


def tree(**changes):
    return {"store": {"embedded": True}, "pools": [pool()], **changes}


@pytest.fixture
def write(tmp_path):
    def write_(settings, name="eplb.yaml"):
        path = tmp_path / name
        path.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))
        return path

    return write_


def refusal(path, overrides=None):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


# --- sources ------------------------------------------------------------------------------------------------------


def test_a_minimal_file_gives_facts_kind_and_phases(write):
    """Three sections of a pool are enough; the rest has defaults."""
    loaded = load_config(write(tree())).pools[0]

    assert loaded.facts() == PoolFacts("mixed", 8, 2, 5, 32, 4, (3, 4, 5, 6, 7, 8))
    assert loaded.count_kind() is Kind.RECEIVED_SLOTS
    assert loaded.served_phases() == (Phase.MIXED,)
    assert loaded.gate.mode == "observe"


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(write, monkeypatch):
    """Each source replaces single keys, not whole sections."""
    path = write(tree(cycle_s=3, log={"level": "debug"}))
    monkeypatch.setenv("EPLB_CYCLE_S", "4")
    monkeypatch.setenv("EPLB_LOG__FORMAT", "console")

    assert load_config(path).cycle_s == 4
    loaded = load_config(path, {"cycle_s": "2.5"})
    assert (loaded.cycle_s, loaded.log.level, loaded.log.format) == (2.5, "debug", "console")


def test_environment_and_command_line_reach_one_key_of_one_pool(write, monkeypatch):
    """A pool is addressed by its position; its other keys stay."""
    path = write(tree(pools=[pool(), pool(name="other")]))
    monkeypatch.setenv("EPLB_POOLS__1__GATE__MODE", "advise")

    loaded = load_config(path, {"pools[1].gate.cooldown_s": 7, "pools.0.gate.mode": "auto"})

    assert [p.gate.mode for p in loaded.pools] == ["auto", "advise"]
    assert [p.gate.cooldown_s for p in loaded.pools] == [300.0, 7.0]


def test_everything_can_come_from_the_environment(monkeypatch):
    """No file is needed: whole lists as JSON, or item by item."""
    monkeypatch.setenv("EPLB_STORE__URL", "unix:///run/redis.sock")
    monkeypatch.setenv("EPLB_POOLS", json.dumps([pool()]))

    assert load_config().pools[0].name == "mixed"


def test_variables_of_an_orchestrator_are_left_alone(write, monkeypatch):
    """A service called eplb gives its containers EPLB_PORT and the like, which are no settings of ours."""
    monkeypatch.setenv("EPLB_PORT", "tcp://10.0.0.1:8790")
    monkeypatch.setenv("EPLB_SERVICE_HOST", "10.0.0.1")

    assert load_config(write(tree())).http.port == 8790


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("EPLB_STRE__URL", "store"), ("EPLB_STORE__ULR", "url"), ("EPLB_POOLS__0__GATE__MODES", "mode")],
)
def test_a_misspelt_variable_is_refused_by_its_name(write, monkeypatch, name, suggested):
    """The message names the variable as it was written, and the nearest setting."""
    monkeypatch.setenv(name, "x")

    assert refusal(write(tree())) == f"environment: {name}: unknown setting; did you mean {suggested}?"


def test_an_item_beyond_the_end_of_a_list_is_refused(write):
    """A gap in the positions would leave a pool without settings."""
    assert "item [5] is set, but there are 1 items" in refusal(write(tree()), {"pools[5].name": "x"})


@pytest.mark.parametrize("text", ["", "pools[x].name", "a..b", "a b"])
def test_a_path_that_cannot_be_read_is_refused(text):
    """The command line says how a path is written."""
    with pytest.raises(ConfigError, match=r"write pools\[0\]\.gate\.mode"):
        parse_path(text)


# --- what is refused ----------------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_with_file_place_and_suggestion(write):
    """A misspelt limit would otherwise silently be the default."""
    path = write(tree(pools=[pool(gate={"coldown_s": 3})]))

    assert refusal(path) == f"{path}: pools[0].gate.coldown_s: unknown setting; did you mean cooldown_s?"


def test_a_key_in_the_wrong_section_is_told_where_it_belongs(write):
    """Right word, wrong place."""
    path = write(tree(pools=[pool(cooldown_s=3)]))

    assert refusal(path).endswith(
        "pools[0].cooldown_s: unknown setting here; it belongs at pools[0].gate.cooldown_s"
    )


def test_a_key_like_no_other_lists_what_is_known(write):
    """Without a near word the known ones are shown."""
    assert "xyzzy: unknown setting; known here: store, pools, cycle_s" in refusal(write(tree(xyzzy=1)))


def test_every_problem_is_reported_at_once(write):
    """One line a problem, so that a file is mended in one go."""
    path = write(tree(pools=[pool(kind="guess", gate={"mode": "on", "x1y2": 3})], cycle_s=-1))

    lines = refusal(path).splitlines()

    assert len(lines) == 4
    assert all(line.startswith(f"{path}: ") for line in lines)


def test_a_missing_key_is_named_with_its_meaning(write):
    """The kind of count has no default."""
    without = pool()
    del without["kind"]

    assert "pools[0].kind: is missing; what the engine's counters hold" in refusal(
        write(tree(pools=[without]))
    )


def test_io_07_numbers_given_as_text_are_numbers(write):
    """Settings that come from a store or a variable are text; they must not be compared as text."""
    path = write(tree(pools=[pool(gate={"cooldown_s": "300", "min_slices": "12", "min_gain": "0.05"})]))

    gate = load_config(path).pools[0].gate

    assert (gate.cooldown_s, gate.min_slices, gate.min_gain) == (300.0, 12, 0.05)
    assert (
        changed(load_config(path), {"pools[0].gate.min_slices": "9"}).pools[0].gate.min_slices
        < gate.min_slices
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("min_slices", "twelve"),
        ("min_slices", "1.5"),
        ("min_gain", "nan"),
        ("cooldown_s", "-1"),
        ("cooldown_s", "1e308"),
    ],
)
def test_io_07_a_bad_value_is_refused_with_key_and_value(write, key, value):
    """At the start as well as in a change of running settings."""
    path = write(tree(pools=[pool(gate={key: value})]))

    message = refusal(path)

    assert f"pools[0].gate.{key}: '{value}' is not allowed" in message
    with pytest.raises(
        ConfigError, match=re.escape(f"command line: pools[0].gate.{key}: '{value}' is not allowed")
    ):
        changed(load_config(write(tree())), {f"pools[0].gate.{key}": value})


def test_io_08_slots_are_counted_over_the_ep_group():
    """Ranks are members of the EP group: 64 experts over 8 ranks are 8 a rank, and the sum over ranks is exact."""
    facts = PoolConfig.model_validate(
        pool(
            topology={"ranks": 8, "nodes": 2, "slots_per_rank": 8},
            model={"experts": 64, "top_k": 8, "moe_layers": "0-3"},
        )
    ).facts()

    assert (facts.slots_per_rank, facts.slots) == (8, 64)


def test_slots_that_cannot_hold_every_expert_are_refused_with_the_least_number(write):
    """The tensor-parallel size put in place of the EP size shows here."""
    path = write(tree(pools=[pool(topology={"ranks": 4, "nodes": 1, "slots_per_rank": 5})]))

    assert "cannot hold 32 experts; use at least 8 slots per rank" in refusal(path)


def test_more_slots_on_a_rank_than_experts_are_refused(write):
    """No expert may lie twice on a rank, so the rest could only be empty."""
    path = write(tree(pools=[pool(topology={"ranks": 1, "nodes": 1, "slots_per_rank": 33})]))

    assert "lower slots_per_rank" in refusal(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gate": {"trigger_excess": 0.05, "target_excess": 0.05}}, "must be above target_excess"),
        ({"migration": {"gate_steps": 19}}, "migration.gate_steps: 19 is not allowed"),
        ({"topology": {"ranks": 8, "nodes": 3, "slots_per_rank": 5}}, "do not divide over 3 nodes"),
        ({"phases": ["decode", "decode"]}, "phases names one twice"),
        ({"phases": []}, "pools[0].phases"),
        ({"name": "a{b}"}, "pools[0].name: 'a{b}' is not allowed"),
        ({"model": {"experts": 32, "top_k": 33, "moe_layers": "1"}}, "top_k 33 is more than the 32 experts"),
        ({"model": {"experts": 32, "top_k": 4, "moe_layers": []}}, "moe_layers is empty"),
        ({"model": {"experts": 32, "top_k": 4, "moe_layers": "1,1"}}, "names a layer twice"),
        ({"model": {"experts": 32, "top_k": 4, "moe_layers": "8-3"}}, "is empty or ends above"),
        ({"model": {"experts": 32, "top_k": 4, "moe_layers": "three"}}, "write 3-60"),
        ({"window": {"window_s": 4}}, "is shorter than cycle_s"),
        ({"migration": {"offer_expires_s": 300}}, "progress_s 120 is below the 310 s that an offer may take"),
    ],
)
def test_settings_of_a_pool_that_contradict_each_other_are_refused(write, change, message):
    """Each with both numbers, or with what to do."""
    assert message in refusal(write(tree(pools=[pool(**change)])))


def test_a_lease_that_slow_answers_would_lose_is_refused(write):
    """A cycle and two store time-outs for each pool must fit into the part of the lease in which it can be renewed."""
    path = write(tree(cycle_s=10, store={"embedded": True, "timeout_s": 10}))

    assert "raise store.lease_ttl_s to at least 40" in refusal(path)
    assert load_config(path, {"store.lease_ttl_s": 40}).store.lease_ttl_s == 40


def test_two_pools_of_one_name_are_refused(write):
    """They would share their keys in the store."""
    assert "two pools are named 'mixed'" in refusal(write(tree(pools=[pool(), pool()])))


@pytest.mark.parametrize(
    "url",
    [
        "http://redis:6379",
        "redis:6379",
        "localhost",
        "redis://",
        "unix://",
        "redis://h:99999",
        "redis://h:x",
        "",
    ],
)
def test_a_store_url_of_no_use_is_refused_with_the_forms_that_are(write, url):
    """Found at the start, not at the first write."""
    message = refusal(write(tree(store={"url": url})))

    assert ": store.url: " in message
    assert "redis://host:6379/0" in message
    assert "unix:///" in message


@pytest.mark.parametrize(
    "url", ["redis://h", "rediss://u:p@h:6380/2", "unix:///run/r.sock", "redis://[::1]:6379/0"]
)
def test_a_store_url_of_the_three_kinds_is_kept_as_given(write, url):
    """TCP, TLS, unix socket."""
    assert load_config(write(tree(store={"url": url}))).store.url == url


@pytest.mark.parametrize("store", [{}, {"url": "redis://h", "embedded": True}])
def test_exactly_one_store_must_be_given(write, store):
    """Neither none nor two."""
    assert ": store: " in refusal(write(tree(store=store)))


def test_a_password_is_never_shown(write):
    """Not in a message, not in the printed settings, not in a repr."""
    loaded = load_config(write(tree(store={"url": "redis://u:hunter2@h:6379/0"})))
    message = refusal(write(tree(store={"url": "http://u:hunter2@h"})))

    assert "hunter2" not in to_yaml(loaded) + repr(loaded) + message + masked_url("redis://:hunter2@h")
    assert "redis://u:***@h:6379/0" in to_yaml(loaded)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pools: [", "not valid YAML"),
        ("- a\n- b", "holds a list"),
        ("cycle_s: 1\ncycle_s: 2", "the key 'cycle_s' is given twice"),
        ("", "store: is missing"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(write, text, message):
    """Broken YAML, another kind of file, a key given twice, an empty file."""
    path = write(text)

    assert message in refusal(path)
    assert str(path) in refusal(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    """With the system's reason."""
    assert "No such file" in refusal(tmp_path / "none.yaml")


# --- layers -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40))
def test_layers_survive_being_written_and_read(layers):
    """The text of ranges means the same numbers in the same order."""
    assert parse_layers(format_layers(layers)) == tuple(layers)


def test_layers_are_written_short():
    """58 layers are one range."""
    assert format_layers(range(3, 61)) == "3-60"
    assert parse_layers("3-5, 61") == (3, 4, 5, 61)


# --- files and commands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixed.yaml", "prefill_decode.yaml"])
def test_the_shipped_files_are_accepted_by_the_command(name, capsys):
    """Their windows fit as well."""
    assert main(["config", "check", str(CONFIGS / name), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pools"]


@pytest.mark.parametrize("name", ["mixed.yaml", "prefill_decode.yaml"])
def test_the_shipped_files_are_valid_and_printing_loses_nothing(name, write):
    """What `config check` prints is the same configuration."""
    loaded = load_config(CONFIGS / name)

    assert load_config(write(to_yaml(loaded))) == loaded


def test_every_setting_is_explained():
    """The schema carries a reason for each default."""
    schema = DaemonConfig.model_json_schema()
    sections = [schema, *schema["$defs"].values()]
    bare = [
        f"{section['title']}.{name}"
        for section in sections
        for name, field in section["properties"].items()
        if "description" not in field and "$ref" not in field
    ]

    assert bare == []


def test_the_command_prints_every_setting(write, capsys):
    """Data on stdout, exit code 0."""
    assert main(["config", "check", str(write(tree())), "--set", "pools[0].gate.mode=auto"]) == 0

    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["pools"][0]["gate"]["mode"] == "auto"
    assert printed["pools"][0]["model"]["moe_layers"] == "3-8"


def test_the_command_refuses_a_bad_file_with_exit_code_1(write, capsys):
    """The error on stderr, nothing on stdout."""
    assert main(["config", "check", str(write(tree(cycle=1)))]) == 1

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert "did you mean cycle_s?" in output.err


def test_the_command_refuses_a_window_that_does_not_fit_its_memory(write, capsys):
    """What `eplb run` would refuse at its start, `config check` refuses before."""
    large = {"experts": 256, "top_k": 8, "moe_layers": "3-60"}
    small = pool(
        model=large,
        topology={"ranks": 32, "nodes": 4, "slots_per_rank": 9},
        window={"window_bytes": 1_000_000},
    )

    assert main(["config", "check", str(write(tree(pools=[small])))]) == 1
    assert "raise window_bytes" in capsys.readouterr().err.replace("\n", " ")


def test_the_choices_are_those_that_the_solver_has_built():
    """A setting that would be refused later is refused at the start."""
    schema = DaemonConfig.model_json_schema()["$defs"]

    assert tuple(schema["PoolConfig"]["properties"]["dispatch"]["enum"]) == DISPATCH
    assert tuple(schema["SolverConfig"]["properties"]["effort"]["enum"]) == EFFORTS


def test_the_command_prints_the_schema():
    """For editors that complete and check YAML."""
    result = CliRunner().invoke(config_command, ["schema"])

    assert result.exit_code == 0
    assert json.loads(result.output)["title"] == "DaemonConfig"
