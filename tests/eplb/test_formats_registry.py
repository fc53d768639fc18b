"""The registry: formats are found, not listed; a file is in exactly one; what a format cannot do is refused by name."""

from pathlib import Path

import numpy as np
import pytest

from eplb.errors import FileError
from eplb.formats import registry
from eplb.formats.facts import Format, Layers, MapFacts, ReadOptions, Sequence
from eplb.formats.neutral import NeutralMap
from placement import Placement

PICKS = np.array([[[0, 1], [1, 2]], [[2, 0], [0, 1]]])
MAP = NeutralMap(2, 1, 2, 3, (3,), Placement([[0, 1, 1, 2]]), 5)
TRACE_FORMATS = ("npz", "jsonl", "parquet")


def refused(action, *arguments, **options):
    with pytest.raises(FileError) as caught:
        action(*arguments, **options)
    return str(caught.value)


def written(tmp_path, name):
    path = tmp_path / f"trace.{name}"
    registry.write_sequences(
        path, [Sequence(PICKS, "code", "decode")], name, layers=Layers((3, 5), 6), experts=4
    )
    return path


def test_every_format_has_a_name_of_its_own():
    """Names and aliases; each can do something."""
    names = [name for each in registry.formats() for name in (each.name, *each.aliases)]
    assert len(set(names)) == len(names)
    assert {"neutral", *TRACE_FORMATS} <= set(names)
    for each in registry.formats():
        assert registry.named(each.name) is each
        assert each.title
        assert any((each.read_trace, each.read_map, each.write_map))
    assert "neutral" in refused(registry.named, "nothing")


@pytest.mark.parametrize("name", TRACE_FORMATS)
def test_a_written_trace_is_recognised_and_read_back(tmp_path, name):
    """Counts, layers, phases and domains, whatever the format."""
    path = written(tmp_path, name)
    assert registry.recognise(path).name == name
    file = registry.read_trace(path)
    assert file.trace.tokens.tolist() == [[[2, 1, 1, 0], [1, 2, 1, 0]]]
    assert (file.layers, file.phase, file.domain) == (Layers((3, 5), 6), ("decode",), ("code",))
    (sequence,) = registry.read_sequences(path)
    assert sequence.picks.tolist() == PICKS.tolist()
    assert (sequence.domain, sequence.phase) == ("code", "decode")
    again = tmp_path / f"slices.{name}"
    registry.write_trace(again, file, name)
    slices = registry.read_trace(again)
    assert slices.trace.tokens.tolist() == file.trace.tokens.tolist()
    assert (slices.layers, slices.phase, slices.domain) == (file.layers, file.phase, file.domain)


@pytest.mark.parametrize("name", TRACE_FORMATS)
def test_the_same_trace_gives_the_same_bytes(tmp_path, name):
    """Nothing of the time or the machine gets into a file."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert written(tmp_path / "a", name).read_bytes() == written(tmp_path / "b", name).read_bytes()


@pytest.mark.parametrize("name", TRACE_FORMATS)
def test_options_hold_in_every_format(tmp_path, name):
    """Layers given override the file's, routes are kept when asked for, a phase can be chosen, progress is told."""
    told = []
    options = ReadOptions(
        layers=Layers((1, 2), 3),
        most_routes=5,
        phase="decode",
        experts=6,
        progress=lambda done, total: told.append((done, total)),
    )
    file = registry.read_trace(written(tmp_path, name), options)
    assert file.layers == Layers((1, 2), 3)
    assert file.trace.routes.experts.tolist() == PICKS.tolist()
    assert file.trace.experts == 6
    assert told
    assert told[-1][0] == told[-1][1]
    for other in ({"phase": "prefill"}, {"experts": 2}, {"layers": Layers((1,), None)}):
        message = refused(registry.read_trace, written(tmp_path, name), ReadOptions(**other))
        assert message.startswith(f"{tmp_path}/trace.{name}: ")
    assert list(registry.read_sequences(written(tmp_path, name), ReadOptions(phase="prefill"))) == []


@pytest.mark.parametrize("name", TRACE_FORMATS)
def test_sequences_that_cannot_be_are_not_written(tmp_path, name):
    """No half file is left."""
    path = tmp_path / "trace"
    bad = [Sequence(PICKS), Sequence(PICKS + 9)]
    assert "sequence 1" in refused(registry.write_sequences, path, bad, name, experts=4)
    assert list(tmp_path.iterdir()) == []


def test_a_map_is_recognised_and_read_as_it_is(tmp_path):
    """Twins and gaps included; facts that contradict it are refused; layers that are given count."""
    broken = NeutralMap(2, 1, 2, 3, None, Placement([[0, 0, -1, 2]]))
    path = tmp_path / "map.json"
    registry.write_map(path, broken, "neutral")
    found = registry.read_map(path, MapFacts(ranks=2, layers=Layers((7,), 9)))
    assert found.placement.physical_to_logical.tolist() == [[0, 0, -1, 2]]
    assert (found.model_layer, found.hidden_layers) == ((7,), 9)
    assert "for 2 ranks, asked for 4" in refused(registry.read_map, path, MapFacts(ranks=4))
    assert "--moe-layers" in refused(registry.read_map, path, MapFacts(layers=Layers((7, 8), None)))


def test_what_a_format_cannot_do_is_refused(tmp_path):
    """The message says what the file is, or what else can do it."""
    trace, path = written(tmp_path, "npz"), tmp_path / "map.json"
    registry.write_map(path, MAP, "neutral")
    assert "expected a trace" in refused(registry.read_trace, path)
    assert "no picks" in refused(registry.read_sequences, path)
    assert "expected a map" in refused(registry.read_map, trace)
    assert "neutral" in refused(registry.write_map, path, MAP, "npz")
    assert "npz" in refused(registry.write_trace, path, registry.read_trace(trace), "neutral")
    assert "npz" in refused(registry.write_sequences, path, [], "neutral")


def test_what_is_in_no_format_is_refused_with_what_is_known(tmp_path):
    """A missing file is missing, not unknown."""
    (tmp_path / "a.txt").write_text("hello")
    message = refused(registry.recognise, tmp_path / "a.txt")
    assert "in no format" in message
    assert "\n  npz " in message
    assert "no such file" in refused(registry.recognise, tmp_path / "none")


@pytest.mark.parametrize("name", ["a.npz", "a.json"])
def test_an_empty_file_is_called_empty(tmp_path, name):
    """Whatever its name promises."""
    (tmp_path / name).write_bytes(b"")
    assert "is empty (0 bytes)" in refused(registry.recognise, tmp_path / name)


def test_an_archive_in_no_format_is_told_by_what_it_holds(tmp_path):
    """A few names of many; without its end it is called torn."""
    np.savez(tmp_path / "a.npz", **{f"array_{at}": np.ones(3) for at in range(9)})
    assert "a zip archive (.npz, .pt) of 'array_0.npy', " in refused(registry.recognise, tmp_path / "a.npz")
    assert "'array_5.npy' and 3 more in no format" in refused(registry.recognise, tmp_path / "a.npz")
    (tmp_path / "torn.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-40])
    assert "is a torn zip archive" in refused(registry.recognise, tmp_path / "torn.npz")


def test_a_folder_in_no_format_is_told_by_what_it_holds(tmp_path):
    """Or that it is empty."""
    assert "an empty folder" in refused(registry.recognise, tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    assert "a folder of 'notes.txt' in no format" in refused(registry.recognise, tmp_path)


def test_a_file_that_may_be_two_things_is_not_guessed(tmp_path, monkeypatch):
    """Both names are given."""
    both = tuple(Format(name, name, lambda path: True) for name in ("one", "two"))
    monkeypatch.setattr(registry, "formats", lambda: both)
    assert "one, two: say which with --from" in refused(registry.recognise, tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0", b"{", b"[]", b"PK\x03\x04", b"PAR1", b"\xff" * 5000])
def test_recognising_never_raises(tmp_path, content):
    """Whatever a file holds, and for a folder or a missing file too."""
    path = tmp_path / "a"
    path.write_bytes(content)
    for each in registry.formats():
        for place in (path, tmp_path, tmp_path / "none", Path("/dev/null")):
            assert each.recognises(place) in (True, False)


def test_what_cannot_be_written_can_be_asked_before(tmp_path):
    """With the words of the writer, and nothing written; formats that take any map say nothing."""
    unknown = NeutralMap(2, 1, 2, 3, None, Placement([[0, 1, 1, 2]]))
    for name in registry.abilities("write_map"):
        path = tmp_path / f"m{registry.named(name).suffix}"
        registry.check_map(path, MAP, name)
        if name not in {"sglang", "trtllm"}:
            registry.check_map(path, unknown, name)
            continue
        asked = refused(registry.check_map, path, unknown, name)
        assert asked == refused(registry.write_map, path, unknown, name)
        assert "--moe-layers" in asked
    assert not list(tmp_path.iterdir())
