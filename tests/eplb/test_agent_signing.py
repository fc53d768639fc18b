"""Rules of signed records: with a key nothing unsigned gets in, two keys overlap while one is replaced, a bad key file is refused."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from agent_crew import FACTS, Crew, offer, rotated, start_map
from hypothesis import given
from hypothesis import strategies as st

from eplb.agent.signing import MAP_KEY_VARIABLE, RING, KeyRing, MapKeys, read_keys
from eplb.agent.wire import decode_live, decode_offer, encode_live, encode_offer, seal, unseal
from eplb.errors import ConfigError, OfferError
from eplb.migration.plan import make_plan
from eplb.migration.plan_wire import decode_plan, encode_plan

OLD, NEW, FOREIGN = (MapKeys((bytes([n]) * 32,)) for n in (1, 2, 3))
BASE = start_map()
TARGET = rotated(BASE)


def key_file(path, *keys, mode=0o600):
    path.write_text("".join(f"{key}\n" for key in keys))
    path.chmod(mode)
    return path


def both(first, second):
    return MapKeys(first.keys + second.keys)


def records():
    """Each kind of record with its reader, encoded under the keys in use."""
    plan = make_plan(FACTS, BASE, TARGET, created_ms=1)
    return [
        (encode_offer(offer(FACTS, BASE, TARGET)), decode_offer),
        (encode_plan(plan), decode_plan),
    ]


def test_without_a_key_everything_sound_is_read():
    """Signed or not: a process without a key cannot tell."""
    with RING.using(OLD):
        signed = records()
    for raw, read in signed + records():
        read(raw)


def test_with_a_key_unsigned_and_wrongly_signed_records_are_refused_by_name():
    """Plans and offers alike; the message says what to do."""
    unsigned = records()
    with RING.using(FOREIGN):
        foreign = records()
    with RING.using(OLD):
        for raw, read in unsigned:
            with pytest.raises(OfferError, match=r"is not signed.*EPLB_MAP_KEY_FILE"):
                read(raw)
        for raw, read in foreign:
            with pytest.raises(OfferError, match=r"a key that is not in the key file"):
                read(raw)
        for raw, read in records():
            read(raw)


def test_live_records_are_signed_too():
    """It costs one HMAC a record, and a forged live map would steer every plan."""
    crew = Crew()
    crew.gates(1)
    record = crew.link.records[0]
    crew.close()
    unsigned = encode_live(record)
    with RING.using(OLD):
        with pytest.raises(OfferError, match="is not signed"):
            decode_live(unsigned)
        assert decode_live(encode_live(record)) == record


def test_two_keys_overlap_while_one_is_replaced():
    """Second everywhere, then first everywhere, then alone: at each pair of neighbouring steps all read all."""
    steps = [OLD, both(OLD, NEW), both(NEW, OLD), NEW]
    for one, next_ in pairwise(steps):
        for writer, reader in ((one, next_), (next_, one), (one, one)):
            with RING.using(writer):
                written = records()
            with RING.using(reader):
                for raw, read in written:
                    read(raw)


@pytest.mark.parametrize("field", ["pool", "term", "plan_id", "wave", "map_version"])
def test_every_field_is_under_the_signature(field):
    """A record cannot be shown to another pool or under another term: the checksum can be made anew, the signature cannot."""
    with RING.using(OLD):
        asked = offer(FACTS, BASE, TARGET)
        raw = encode_offer(asked)
        value = "other" if isinstance(getattr(asked, field), str) else getattr(asked, field) + 1
    forged = json.loads(encode_offer(replace(asked, **{field: value})))
    forged["sign"] = json.loads(raw)["sign"]
    with RING.using(OLD), pytest.raises(OfferError, match="not in the key file"):
        decode_offer(json.dumps(forged).encode())


def test_a_record_of_one_kind_cannot_be_shown_as_another():
    """The schema is under the signature."""
    with RING.using(OLD):
        outer = json.loads(seal("a/1", {"x": 1}))
        outer["schema"] = "b/1"
        with pytest.raises(OfferError, match="not in the key file"):
            unseal("b/1", json.dumps(outer).encode())


@given(st.one_of(st.none(), st.text(max_size=80), st.integers(), st.lists(st.integers()), st.booleans()))
def test_no_other_signature_is_accepted(signature):
    """Whatever stands there, of whatever type."""
    with RING.using(OLD):
        outer = json.loads(seal("a/1", {"x": 1}))
        outer["sign"] = signature
        with pytest.raises(OfferError):
            unseal("a/1", json.dumps(outer).encode())


def test_a_group_with_a_key_does_not_stage_an_unsigned_offer():
    """The real agents: refused as damaged with the reason, the map stays; signed, the same offer is switched."""
    with RING.using(OLD):
        crew = Crew()
        asked = offer(FACTS, BASE, TARGET)
        with RING.using(MapKeys()):
            unsigned = encode_offer(asked)
        crew.link.offer(unsigned, asked.term)
        crew.gates(3)
        assert {agent.map_version for agent in crew.agents} == {0}
        assert any("is not signed" in sentence for _, _, sentence in crew.agents[0].refusals)
        crew.offer(replace(asked, plan_id="signed"))
        crew.settle()
        assert {agent.map_version for agent in crew.agents} == {1}
        crew.close()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o610])
def test_a_key_file_that_others_may_use_is_refused(tmp_path, mode):
    """And how to mend it is said."""
    with pytest.raises(ConfigError, match=r"chmod 600"):
        read_keys(key_file(tmp_path / "k", "ab" * 32, mode=mode))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "holds 0 keys"),
        (["ab" * 32] * 3, "holds 3 keys"),
        (["ab" * 31], "has 31 bytes, at least 32"),
        (["zz" * 32], "line 1 is not hex"),
        (["ab" * 32, "short"], "line 2 is not hex"),
        (["ab" * 4000], "one or two"),
    ],
)
def test_a_key_file_of_another_shape_is_refused_without_showing_a_key(tmp_path, lines, words):
    """The message names the line, never its content."""
    with pytest.raises(ConfigError, match=words) as error:
        read_keys(key_file(tmp_path / "k", *lines))
    assert "openssl rand -hex 32" in str(error.value)
    assert all(line[:16] not in str(error.value) for line in lines if len(line) > 16)
    assert error.value.__cause__ is None


def test_a_missing_key_file_is_refused(tmp_path):
    """A key that cannot be read must not mean that no key is asked for."""
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none")


def test_the_environment_names_the_file_of_a_rank(tmp_path, monkeypatch):
    """Read at the first record or link; a file that cannot be used is said then."""
    monkeypatch.setenv(MAP_KEY_VARIABLE, str(key_file(tmp_path / "k", "ab" * 32)))
    assert KeyRing().load() == MapKeys((bytes.fromhex("ab" * 32),))
    monkeypatch.setenv(MAP_KEY_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ConfigError):
        KeyRing().load()
    monkeypatch.delenv(MAP_KEY_VARIABLE)
    assert KeyRing().load() == MapKeys()


def test_a_changed_file_is_taken_over_and_a_bad_one_is_not(tmp_path):
    """Keys are replaced while everything runs; an editor's half file changes nothing."""
    ring, path = KeyRing(), key_file(tmp_path / "k", "ab" * 32)
    ring.use(path)
    key_file(tmp_path / "new", "cd" * 32, "ab" * 32).replace(path)
    ring.refresh()
    assert [key.hex() for key in ring.load().keys] == ["cd" * 32, "ab" * 32]
    path.write_text("half")
    with pytest.raises(ConfigError):
        ring.refresh()
    assert [key.hex() for key in ring.load().keys] == ["cd" * 32, "ab" * 32]
    path.unlink()
    with pytest.raises(ConfigError):
        ring.refresh()


def test_keys_are_not_shown():
    """Not in a repr that a traceback or a log may hold."""
    assert "\\x01" not in repr(OLD)
    assert "01" * 8 not in repr(OLD)
