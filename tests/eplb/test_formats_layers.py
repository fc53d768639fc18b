"""What a file says and what a person says: filled up where one is silent, refused where they contradict."""

import pytest

from eplb.errors import FileError
from eplb.formats.facts import Layers, MapFacts
from eplb.formats.layers import layers_of, told, told_layers


def test_what_the_file_says_fills_what_is_not_given():
    """Equal words are no contradiction."""
    assert told(MapFacts(nodes=2), ranks=4, nodes=2, experts=None) == MapFacts(ranks=4, nodes=2)
    assert told(MapFacts(ranks=4)) == MapFacts(ranks=4)


@pytest.mark.parametrize("name", ["ranks", "nodes", "experts"])
def test_a_contradiction_names_both_and_the_flag(name):
    """The file is right about itself."""
    with pytest.raises(
        FileError, match=f"the map is for 4 {name}, asked for 3: correct --{name}, or leave it away"
    ):
        told(MapFacts(**{name: 3}), **{name: 4})


def test_layers_are_filled_up_field_by_field():
    """Draft layers that are given win: a map file need not know them."""
    found, asked = Layers((3, 4), None, (7,)), Layers(None, 5, (5,))
    assert told_layers(found, asked) == Layers((3, 4), 5, (5,))
    assert told_layers(found, Layers()) == found
    assert told_layers(Layers(), asked) == asked


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (
            Layers((3, 5)),
            r"model_layer is 2 \(3, 4\) in the map, asked for 2 \(3, 5\): .* leave --moe-layers away",
        ),
        (Layers(None, 6), "hidden_layers is 5 in the map, asked for 6: .* leave --hidden-layers away"),
    ],
)
def test_other_layers_than_the_files_are_refused(asked, part):
    """A shifted map loads in silence, so nobody may shift one by a slip of the pen."""
    with pytest.raises(FileError, match=part):
        told_layers(Layers((3, 4), 5), asked)


def test_no_layer_is_no_answer():
    """Neither of a file nor of a person."""
    with pytest.raises(FileError, match="names 0 layers"):
        layers_of(Layers(()), Layers(), 0)


@pytest.mark.parametrize("found", [Layers((3, 10**9)), Layers((3, 4), 10**9), Layers((3, 4), 5, (10**9,))])
def test_a_layer_that_no_model_has_is_refused(found):
    """What is counted up to it would fill the memory."""
    with pytest.raises(FileError, match="expected layers below 4096"):
        layers_of(found, Layers(), 2)
