"""Slices: whole requests of one kind, nothing counted twice, memory bounded, routes spread evenly."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb.errors import FileError
from eplb.formats import slicing
from eplb.formats.facts import Layers, ReadOptions, Sequence
from eplb.formats.layers import layers_of
from eplb.formats.picks import RouteSample
from eplb.formats.slicing import CountSlice, slices_of, slices_of_counts


def request(*experts, domain="", phase=None):
    """One layer, top-1: a token for each expert named."""
    return Sequence(np.array(experts).reshape(-1, 1, 1), domain, phase)


def sliced(*requests, **options):
    return slices_of(requests, ReadOptions(**{"sequences_per_slice": 1, **options}))


def refused(action, *arguments, **options):
    with pytest.raises(FileError) as caught:
        action(*arguments, **options)
    return str(caught.value)


def test_a_slice_has_one_domain_and_one_phase():
    """Kinds stand by domain, then phase; the order inside a kind is the file's."""
    found = sliced(
        request(0, domain="b", phase="decode"),
        request(1, domain="a", phase="prefill"),
        request(2, domain="a", phase="decode"),
        request(3, domain="b", phase="decode"),
    )
    assert found.domain == ("a", "a", "b", "b")
    assert found.phase == ("decode", "prefill", "decode", "decode")
    assert found.trace.tokens.argmax(axis=2).ravel().tolist() == [2, 1, 0, 3]
    assert found.slices_from == "groups of 1 sequences, each of one of 2 domains, each of one of 2 phases"


def test_domains_that_are_numbers_stand_as_numbers():
    """2 before 10."""
    assert sliced(request(0, domain="10"), request(0, domain="2")).domain == ("2", "10")


def test_what_is_left_out_is_told():
    """Three requests in groups of two: one is left out, unless it is the only one of its kind."""
    found = sliced(*[request(0)] * 3, request(1, domain="x"), sequences_per_slice=2, experts=2)
    assert found.trace.tokens.sum(axis=(1, 2)).tolist() == [2, 1]
    assert [note.code for note in found.notes] == ["left_out"]
    assert "1 last sequences" in found.notes[0].sentence


@pytest.mark.parametrize("given", [None, 3, 4])
def test_experts_that_nobody_names_are_told(given):
    """The last ones may never have been picked: a map for too few has the wrong redundancy."""
    found = sliced(request(0, 2), experts=given)
    assert found.trace.experts == (given or 3)
    assert [note.code for note in found.notes] == ["experts_from_ids"] * (given is None)


def test_no_pick_counts_nowhere():
    """-1 is a place without an expert."""
    assert sliced(request(-1, 2, 2)).trace.tokens.tolist() == [[[0, 0, 2]]]


def test_a_phase_can_be_chosen():
    """Its slices only; what cannot be chosen is refused with what there is."""
    both = (request(0, phase="prefill"), request(1, phase="decode"))
    found = sliced(*both, phase="decode")
    assert found.trace.tokens.tolist() == [[[0, 1]]]
    assert found.phase == ("decode",)
    assert "it holds decode, prefill" in refused(sliced, *both, phase="mixed")
    assert "leave --phase out" in refused(sliced, request(0), phase="decode")
    assert "phase is 'warm'" in refused(sliced, request(0, phase="warm"))


@pytest.mark.parametrize(
    ("requests", "part"),
    [
        ([], "no sequence with a token"),
        ([request()], "no sequence with a token"),
        ([request(0), request(1, -2)], "sequence 1: picks[token 1, layer 0, 0] is -2"),
        ([request(40_000)], "expected 0..32767"),
        ([request(0), Sequence(np.zeros((1, 2, 1), int))], "they are not of one model"),
        ([Sequence(np.zeros((1, 1, 1)))], "sequence 0: picks are float64"),
    ],
)
def test_requests_that_cannot_be_are_refused(requests, part):
    """The message names the request and the place."""
    assert part in refused(sliced, *requests)


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from("ab"), st.sampled_from([None, "decode"])),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 5),
    st.integers(0, 2**32),
    st.sampled_from([2**10, 2**27]),
)
@settings(max_examples=60)
def test_every_request_of_a_slice_is_counted_once(lengths, group, seed, most_bytes):
    """The sum over slices is that of the requests that were not left out, also when slices had to be added up."""
    rng = np.random.default_rng(seed)
    requests = [
        Sequence(rng.integers(0, 9, (length, 2, 3)), domain, phase) for length, domain, phase in lengths
    ]
    if not sum(length for length, _, _ in lengths):
        return
    with mock.patch.object(slicing, "MOST_COUNT_BYTES", most_bytes):
        found = sliced(*requests, sequences_per_slice=group, experts=9)
    left_out = sum(int(note.sentence.split()[0]) for note in found.notes if note.code == "left_out")
    kinds = {}
    for each in requests:
        if len(each.picks):
            kinds.setdefault((each.domain, each.phase or ""), []).append(each.picks)
    size = int(found.slices_from.split()[2])
    assert size % group == 0
    expected = []
    for kind in sorted(kinds):
        members = kinds[kind]
        parts = [members[at : at + size] for at in range(0, len(members), size)]
        if len(parts) > 1 and len(parts[-1]) < size:
            left_out -= len(parts.pop())
        expected.extend(np.bincount(np.concatenate(part)[:, 1].ravel(), minlength=9) for part in parts)
    assert found.trace.tokens[:, 1].tolist() == np.array(expected).tolist()
    assert left_out == 0
    assert (most_bytes > 2**10) <= (size == group)


def test_more_kinds_than_memory_holds_are_refused(monkeypatch):
    """One slice for each is the least; adding up helps no more."""
    monkeypatch.setattr(slicing, "MOST_COUNT_BYTES", 64)
    assert "name fewer domains" in refused(sliced, *[request(1, domain=str(at)) for at in range(9)])


def test_counts_keep_their_order_and_their_steps():
    """Slices as the file has them."""
    rows = [
        CountSlice(np.array([[at, 0]]), phase=phase, steps=2)
        for at, phase in enumerate(["decode", "prefill", "decode"], 1)
    ]
    found = slices_of_counts(rows, ReadOptions())
    assert found.trace.tokens[:, 0, 0].tolist() == [1, 2, 3]
    assert found.phase == ("decode", "prefill", "decode")
    assert found.trace.steps_per_slice.tolist() == [2, 2, 2]
    assert found.slices_from == "the file's own"
    assert slices_of_counts(rows, ReadOptions(phase="decode")).trace.tokens[:, 0, 0].tolist() == [1, 3]


def test_too_many_counts_are_added_up_in_pairs(monkeypatch):
    """Nothing is lost, the last odd one stays, and it is told."""
    monkeypatch.setattr(slicing, "MOST_COUNT_BYTES", 4 * 16)
    rows = [CountSlice(np.array([[at, 1]]), steps=1) for at in range(11)]
    found = slices_of_counts(rows, ReadOptions())
    assert found.trace.tokens[:, 0].tolist() == [[6, 4], [22, 4], [27, 3]]
    assert found.trace.steps_per_slice.tolist() == [4, 4, 3]
    assert found.slices_from == "the file's own, added up 4 by 4"
    assert [note.code for note in found.notes] == ["slices_added_up"]


@pytest.mark.parametrize(
    ("counts", "part"),
    [
        ([], "holds no slice"),
        ([[[1, -1]]], "slice 0: counts[layer 0, expert 1] is -1"),
        ([[[1, 2]], [[1, 2, 3]]], "slice 1 counts 1 layers x 3 experts, the first 1 x 2"),
        ([[1, 2]], "slice 0: counts have shape [2]"),
        ([[[0.5, 1]]], "0.5, not a whole number"),
        ([[]], "slice 0: counts have shape [0]"),
    ],
)
def test_counts_that_cannot_be_are_refused(counts, part):
    """The message names the slice and the place."""
    rows = [CountSlice(np.array(each)) for each in counts]
    assert part in refused(slices_of_counts, rows, ReadOptions())


@given(st.lists(st.integers(0, 40), min_size=1, max_size=20), st.integers(1, 30))
@settings(max_examples=60)
def test_sampled_routes_are_spread_evenly(lengths, most):
    """Every n-th token of all requests in their order, n the smallest power of two that keeps at most so many."""
    sample = RouteSample(most)
    tokens = []
    for at, length in enumerate(lengths):
        picks = (np.arange(length) + len(tokens)).reshape(-1, 1, 1) % 1000
        sample.add(picks, at)
        tokens.extend((int(pick), at) for pick in picks.ravel())
    every = next(2**n for n in range(12) if len(tokens[:: 2**n]) <= most)
    routes = sample.routes()
    found = (
        []
        if routes is None
        else list(zip(routes.experts.ravel().tolist(), routes.requests.tolist(), strict=True))
    )
    assert found == tokens[::every]


def test_routes_without_distinct_experts_are_left_out_and_told():
    """A set that names an expert twice is no route; -1 may stand twice."""
    picks = np.array([[[1, 1]], [[-1, -1]], [[0, 1]]])
    found = slices_of([Sequence(picks)], ReadOptions(most_routes=10, experts=2))
    assert found.trace.routes.experts.tolist() == [[[-1, -1]], [[0, 1]]]
    assert [note.code for note in found.notes] == ["twin_picks"]
    assert slices_of([Sequence(picks)], ReadOptions()).trace.routes is None


def test_what_a_person_says_of_layers_overrides_the_file():
    """Field by field; what does not fit is refused with the option to give."""
    assert layers_of(Layers((0, 1), 2), Layers((1, 2), 3), 2) == Layers((1, 2), 3)
    assert layers_of(Layers((0, 1), None), Layers(None, 4), 2) == Layers((0, 1), 4)
    for layers in (Layers((1,), None), Layers((1, 1), None), Layers((-1, 1), None)):
        assert "--moe-layers" in refused(layers_of, layers, Layers(), 2)
    for layers in (Layers((1, 2), 2), Layers(None, 1)):
        assert "--hidden-layers" in refused(layers_of, layers, Layers(), 2)
