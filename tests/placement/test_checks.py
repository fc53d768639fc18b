"""Arguments as strangers hand them over: each call answers, or refuses by a named error with a sentence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement import (
    Dispatch,
    Limits,
    LoadTrace,
    MapError,
    Placement,
    PlacementError,
    Roofline,
    Routes,
    Topology,
    TopologyError,
    TraceError,
    UnsupportedError,
    evaluate,
    exact_shares,
    fan_out,
    improve_shares,
    least_redundancy,
    random_fan_out,
    solve,
    violations,
)
from placement.cost import H200_DEEPSEEK_V3_FP8

TOKENS = np.random.default_rng(0).integers(0, 50, (3, 2, 6))
TRACE = LoadTrace(TOKENS)
TOPOLOGY = Topology.uniform(ranks=4, nodes=2, slots_per_rank=2)
ROWS = np.tile(np.arange(8) % 6, (2, 1))
MAP = Placement(ROWS)
PICKS = np.array([[[0, 1], [2, 3]]] * 4)
ROUTES = Routes(PICKS, [0, 0, 1, 1])

CALLS = {
    "LoadTrace": (
        LoadTrace,
        {"tokens": TOKENS, "weights": None, "steps_per_slice": None, "routes": ROUTES, "source_tokens": None, "batch_tokens": None},
    ),
    "Routes": (Routes, {"experts": PICKS, "requests": np.arange(4), "sources": np.zeros(4, dtype=int)}),
    "Placement": (Placement, {"physical_to_logical": ROWS, "shares": None}),
    "Topology": (
        Topology,
        {"slots_of_rank": (2, 1), "node_of_rank": (0, 1), "speeds": (), "dead": frozenset(), "expert_groups": 0, "policy": "auto"},
    ),
    "Topology.uniform": (
        Topology.uniform, {"ranks": 2, "slots_per_rank": 2, "nodes": 1, "speeds": (), "dead": frozenset(), "expert_groups": 0},
    ),
    "Limits": (Limits, {"slack": 0.0, "moves": 1, "evaluations": 1, "bytes_per_expert": 1}),
    "Roofline": (Roofline, {"base_us": 1.0, "activated_us": 1.0, "token_us": 1.0, "idle_us": 0.0, "free_tokens": 0.0}),
    "Roofline.scaled": (H200_DEEPSEEK_V3_FP8.scaled, {"weight_read": 1.0, "compute": 1.0, "provenance": ""}),
    "Dispatch": (Dispatch, {"name": "per_source", "tensor_parallel": 2}),
    "solve": (
        solve,
        {
            "trace": TRACE, "topology": TOPOLOGY, "current": ROWS, "limits": None, "dispatch": "even", "cost": "tokens",
            "traffic_weight": 0.0, "dispatcher": "node_dedupe", "effort": "fast", "seed": 0, "threads": 1, "should_stop": None,
        },
    ),
    "evaluate": (evaluate, {"placement": MAP, "trace": TRACE, "topology": TOPOLOGY, "dispatch": "even", "cost": "tokens"}),
    "violations": (violations, {"placement": MAP, "topology": TOPOLOGY, "experts": 6}),
    "improve_shares": (improve_shares, {"placement": MAP, "trace": TRACE, "topology": TOPOLOGY}),
    "exact_shares": (exact_shares, {"placement": MAP, "trace": TRACE, "topology": TOPOLOGY}),
    "fan_out": (
        fan_out, {"placement": MAP, "routes": ROUTES, "topology": TOPOLOGY, "dispatcher": "node_dedupe", "choice": "even"},
    ),
    "random_fan_out": (random_fan_out, {"experts": 6, "top_k": 2, "bins": 2}),
    "least_redundancy": (least_redundancy, {"experts": 6, "ranks": 4, "redundant": 2}),
    "replicas": (MAP.replicas, {"experts": 6}),
    "at": (solve(TRACE, TOPOLOGY, ROWS, effort="fast").at, {"moves": 1}),
}  # fmt: skip

ODD = [
    None, True, "3", b"3", 2.5, float("nan"), float("inf"), -1, 0, 1e308, 5e-324, 1j, 2**70, -(2**70), 10**400, 10**12, np.int8(-3),
    np.int64(2), np.uint64(2**63), np.float16(0.5), [], [1], (0, 1), [[1], [2, 3]], ["a", "b"], [None, 1], [float("nan"), 1.0],
    [1e308, 1e308], [5e-324, 1.0], {1}, {"a": 1}, iter([]), np.zeros(0), np.zeros((2, 8)), np.full((2, 8), 2**31 - 1), np.array(3),
    np.asfortranarray(TOKENS), TOKENS.astype(">i8"), TOKENS.astype(np.float32), TOKENS.astype(np.float16), TOKENS.tolist(),
    np.full((3, 2, 6), 2**62), np.ma.masked_array(TOKENS, TOKENS > 9), np.array(["2026-01-01"], dtype="M8[D]"),
    np.array([2**63, 1], dtype=np.uint64), object(), TRACE, TOPOLOGY, MAP, ROUTES, Limits,
]  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_every_argument_may_be_anything(name):
    """One argument at a time is replaced: no error without a name, no warning, no endless work."""
    call, usual = CALLS[name]
    for argument in usual:
        for odd in ODD:
            try:
                call(**{**usual, argument: odd})
            except PlacementError as error:
                assert len(str(error).split()) > 3  # noqa: PT017 - any answer will do, but a refusal must be a sentence


@given(st.data())
@settings(max_examples=150)
def test_all_arguments_of_a_pool_may_be_odd_at_once(data):
    """Two or more wrong values together find no gap between the checks."""
    name = data.draw(
        st.sampled_from(
            ["Topology", "Topology.uniform", "LoadTrace", "Limits", "Roofline", "least_redundancy"]
        )
    )
    call, usual = CALLS[name]
    chosen = {
        argument: data.draw(st.one_of(st.just(value), st.sampled_from(ODD)))
        for argument, value in usual.items()
    }
    try:
        call(**chosen)
    except PlacementError as error:
        assert str(error)  # noqa: PT017 - as above


# --- one kind each ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "options", "error", "part"),
    [
        ("Limits", {"moves": float("nan")}, PlacementError, "limits.moves is nan, must be a whole number"),
        ("Limits", {"slack": "3"}, PlacementError, "limits.slack is '3', must be a finite number"),
        ("solve", {"seed": 1.5}, PlacementError, "seed is 1.5, must be a whole number"),
        ("solve", {"threads": 0}, PlacementError, "threads is 0, must be at least 1"),
        ("solve", {"threads": -1}, PlacementError, "threads is -1, must be at least 1"),
        ("solve", {"trace": TOKENS}, PlacementError, "trace is a ndarray, expected a LoadTrace"),
        ("solve", {"should_stop": 5}, PlacementError, "should_stop is 5, must be a function"),
        ("solve", {"traffic_weight": 1e308}, UnsupportedError, r"traffic_weight is 1e\+308, .* at most 1e\+06"),
        ("evaluate", {"placement": ROWS}, MapError, "placement is a ndarray, expected a Placement"),
        ("Topology", {"slots_of_rank": (2.5, 1)}, TopologyError, r"slots_of_rank\[0\] is 2.5, must be a whole number"),
        ("Topology", {"slots_of_rank": (10**12, 1)}, TopologyError, "above the limit of 1048576"),
        ("Topology", {"speeds": (5e-324, 1.0)}, TopologyError, "speed of rank 0 is 5e-324"),
        ("Topology", {"speeds": (1.0, 5000.0)}, TopologyError, "name a slower one dead"),
        ("LoadTrace", {"weights": [1e308] * 3}, TraceError, r"weights\[slice 0\] is 1e\+308, must be 0 or from"),
        ("LoadTrace", {"weights": [5e-324] * 3}, TraceError, r"weights\[slice 0\] is 5e-324, must be 0 or from"),
        ("LoadTrace", {"steps_per_slice": np.full(3, 2**63, dtype=np.uint64)}, TraceError, "must be from 1 to"),
        ("LoadTrace", {"tokens": np.ma.masked_array(TOKENS, TOKENS > 9)}, TraceError, "masked in places"),
        ("LoadTrace", {"source_tokens": np.full((4, 2, 6), 2**58)}, TraceError, "source_tokens of layer 0 sum to"),
        ("Placement", {"shares": [["a"]]}, MapError, "shares have type <U1, expected numbers"),
        ("violations", {"placement": Placement([[2**31 - 1] * 8]), "experts": None}, MapError, "above the limit of 1048576"),
        ("random_fan_out", {"top_k": 7}, PlacementError, "top_k is 7, but there are only 6 experts"),
        ("Roofline", {"base_us": 0.0, "activated_us": 0.0, "free_tokens": 9.0}, PlacementError, "lets tokens cost nothing"),
        ("Dispatch", {"tensor_parallel": 1.5}, UnsupportedError, "tensor_parallel is 1.5, must be a whole number"),
        ("at", {"moves": None}, PlacementError, "moves is None, must be a whole number"),
    ],
)  # fmt: skip
def test_what_was_once_a_bare_error_or_a_silent_one_is_named(call, options, error, part):
    """The value, its place and what it must be."""
    function, usual = CALLS[call]
    with pytest.raises(error, match=part):
        function(**{**usual, **options})


def test_numpys_numbers_and_lists_are_as_good_as_pythons():
    """The same topology, limits and result, whichever type the numbers have."""
    plain = Topology((2, 2), (0, 1), (1.0, 2.0), frozenset({0}))
    taken = Topology(np.array([2, 2]), [0, 1], np.array([1, 2], dtype=np.float32), [np.int64(0)])  # type: ignore[arg-type]
    assert plain == taken
    assert hash(plain) == hash(taken)
    assert Limits(moves=np.int32(3)) == Limits(moves=3)
    results = [
        solve(LoadTrace(tokens), TOPOLOGY, rows, effort="fast", seed=seed).placement.physical_to_logical
        for tokens, rows, seed in (
            (TOKENS, ROWS, 7),
            (TOKENS.tolist(), ROWS.tolist(), np.int64(7)),
            (np.asfortranarray(TOKENS.astype(">i8")), ROWS.astype(np.uint8), np.uint64(7)),
            (TOKENS.astype(np.float32), np.asfortranarray(ROWS), 7),
        )
    ]
    assert all((rows == results[0]).all() for rows in results)


def test_counts_at_the_limit_keep_their_ratio():
    """2^62 tokens of one expert on two ranks of eight: sums neither overflow nor round away."""
    tokens = np.zeros((1, 1, 8), dtype=np.int64)
    tokens[..., 0] = 2**62
    topology = Topology.uniform(ranks=8, slots_per_rank=2)
    rows = [[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7]]
    for dispatch in ("even", "weighted", "per_source", "optimal"):
        assert evaluate(Placement(rows), LoadTrace(tokens), topology, dispatch).mean_ratio == pytest.approx(
            4.0
        )
    assert improve_shares(Placement(rows), LoadTrace(tokens), topology).objective == pytest.approx(4.0)


def test_a_dead_rank_receives_no_copy():
    """Fan-out counts live copies only, and all-gather sends to live ranks only."""
    dead = Topology.uniform(ranks=2, nodes=2, slots_per_rank=2, dead=frozenset({1}))
    routes = Routes([[[0, 1]]], [0])
    assert fan_out(Placement([[0, 1, 0, 1]]), routes, dead).tolist() == [1.0]
    assert fan_out(Placement([[0, 1, 0, 1]]), routes, dead, dispatcher="all_gather").tolist() == [1.0]
    with pytest.raises(MapError, match="routes select expert 0, which no slot holds"):
        fan_out(Placement([[1, -1, 0, 1]]), routes, dead)
