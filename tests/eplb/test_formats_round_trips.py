"""Maps through every pair of formats: what comes back is equal, or a note says that it does not, and how to give it."""

import re
import shlex
import tempfile
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb.cli.layer_options import layer_options, layers_from
from eplb.errors import FileError
from eplb.formats import registry
from eplb.formats.facts import Layers, MapFacts
from eplb.formats.neutral import NeutralMap
from placement import Placement

MAP_FORMATS = registry.abilities("write_map")
FACTS = ("ranks", "nodes", "experts", "slots_per_rank")


@st.composite
def maps(draw):
    """Valid maps: dense layers before, between and behind MoE layers, draft layers, nodes, shares or none."""
    ranks, width = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    nodes = draw(st.sampled_from([each for each in range(1, ranks + 1) if ranks % each == 0]))
    experts = draw(st.integers(width, ranks * width))
    hidden = draw(st.integers(1, 6))
    layers = sorted(draw(st.sets(st.integers(0, hidden - 1), min_size=1)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = np.array([row(random, ranks, width, experts) for _ in layers])
    shares = shares_of(random, rows) if draw(st.booleans()) else None
    drafts = tuple(range(hidden, hidden + draw(st.integers(0, 2))))
    return NeutralMap(ranks, nodes, width, experts, tuple(layers), Placement(rows, shares), hidden, drafts)


def row(random, ranks, width, experts):
    """Experts dealt over ranks in turn, so that none stands twice on one; then ranks and slots change places."""
    names = random.permutation(experts)
    dealt = [names[slot % experts] for slot in range(ranks * width)]
    table = np.array(dealt).reshape(ranks, width)
    return np.array([random.permutation(held) for held in random.permutation(table)]).ravel()


def shares_of(random, rows):
    raw = random.random(rows.shape) + 0.1
    sums = [np.bincount(held, weights)[held] for held, weights in zip(rows, raw, strict=True)]
    return raw / np.array(sums)


@click.command()
@click.option("--ranks", type=int)
@click.option("--nodes", type=int)
@layer_options
def given_flags(ranks, nodes, **options):
    """The flags that a note names, as a command reads them."""
    return MapFacts(ranks, nodes, None, layers_from(options))


def facts_of(notes):
    """What a person gives who does what the note says, and nothing else."""
    said = [note.fix.removeprefix("read it back with ") for note in notes if note.code == "not_in_file"]
    return given_flags.main(shlex.split(" ".join(said)), standalone_mode=False)


def through(folder, form, neutral):
    """The map written in a format and read back with what its notes say."""
    path = folder / f"map{registry.named(form).suffix}"
    written = registry.write_map(path, neutral, form)
    return registry.read_map(path, facts_of(written.notes), form), {note.code for note in written.notes}


def uneven(neutral):
    shares, copies = neutral.placement.shares, neutral.placement.replicas(neutral.experts)
    each = 1 / np.take_along_axis(copies, neutral.placement.physical_to_logical.astype(np.int64), axis=1)
    return shares is not None and not np.allclose(shares, each, atol=1e-6)


@pytest.mark.parametrize("second", MAP_FORMATS)
@pytest.mark.parametrize("first", MAP_FORMATS)
@settings(max_examples=15, deadline=None)
@given(neutral=maps())
def test_a_map_comes_through_two_formats(first, second, neutral):
    """Rows, pool and layers are equal; shares too, or they are said to be left out."""
    with tempfile.TemporaryDirectory() as name:
        found, lost = neutral, set()
        for form in (first, second):
            found, codes = through(Path(name), form, found)
            lost |= codes
    assert found.layers == neutral.layers
    assert [getattr(found, each) for each in FACTS] == [getattr(neutral, each) for each in FACTS]
    assert np.array_equal(found.placement.physical_to_logical, neutral.placement.physical_to_logical)
    assert ("shares_dropped" in lost) == (uneven(neutral) and {first, second} != {"neutral"})
    if not {first, second} - {"neutral"}:
        assert (found.placement.shares is None) == (neutral.placement.shares is None)


@pytest.mark.parametrize("form", MAP_FORMATS)
@settings(max_examples=15, deadline=None)
@given(neutral=maps(), data=st.data())
def test_rows_in_any_order_are_written_in_that_of_the_model(form, neutral, data):
    """Engines count rows by position: the order of a trace is not theirs."""
    order = data.draw(st.permutations(range(neutral.placement.layers)))
    shuffled = replace(
        neutral,
        model_layer=tuple(neutral.model_layer[at] for at in order),
        placement=Placement(neutral.placement.physical_to_logical[list(order)]),
    )
    with tempfile.TemporaryDirectory() as name:
        found, _ = through(Path(name), form, shuffled)
    held = dict(zip(found.model_layer, found.placement.physical_to_logical.tolist(), strict=True))
    assert held == dict(zip(neutral.model_layer, neutral.placement.physical_to_logical.tolist(), strict=True))


@pytest.mark.parametrize("form", ["vllm-ascend", "deepseek"])
def test_rows_that_may_be_dense_are_not_counted_as_moe_layers(tmp_path, form):
    """SGLang's file has a row for every layer: by position, a dense one would shift all behind it in silence."""
    source = tmp_path / "map.json"
    source.write_text('{"physical_to_logical_map": [[0, 1, 2, 3], [3, 1, 2, 0]]}')
    unknown = registry.read_map(source, MapFacts(ranks=2))
    target = tmp_path / f"target{registry.named(form).suffix}"
    with pytest.raises(FileError, match=re.escape("give --moe-layers (0-1 if all are)")):
        registry.write_map(target, unknown, form)
    assert not target.exists()
    known = registry.read_map(source, MapFacts(ranks=2, layers=Layers((1,), None)))
    registry.write_map(target, known, form)
    assert registry.read_map(target, MapFacts(ranks=2), form).placement.layers == 1
