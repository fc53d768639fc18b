"""Parts of experts: rows there and back, tokens kept, whole experts left as they are."""

import numpy as np

from placement.parts import Parts

HELD = np.array([[True, True], [False, True], [True, False]])
PARTS = Parts.of(HELD, np.array([[0.25, 0.75], [0.0, 1.0], [1.0, 0.0]]))
NODE_OF_SLOT = np.array([0, 0, 0, 1, 1])


def test_a_row_comes_back_as_it_was_without_copies_on_other_nodes():
    """Expert 1 is not to be on node 0: that copy becomes empty; empty slots stay so."""
    row = np.array([0, 1, 3, 0, 1])
    split = PARTS.split(row, NODE_OF_SLOT)
    assert split.tolist() == [0, 4, 4, 1, 2]
    assert PARTS.joined(split).tolist() == [0, 3, 3, 0, 1]


def test_the_parts_of_an_expert_sum_to_its_tokens():
    """In parts of a token, so that a quarter of one token is not lost."""
    tokens = np.array([[1, 7, 0], [10, 0, 3]])
    parts = PARTS.tokens(tokens)
    scale = parts[0, 2] // 7
    assert scale > 1
    assert (np.add.reduceat(parts, [0, 2, 3], axis=1) == scale * tokens).all()
    assert parts[0, 0] * 3 == parts[0, 1]


def test_whole_experts_keep_their_tokens():
    """Without a split nothing is scaled."""
    whole = Parts.of(np.eye(2, dtype=bool), np.eye(2))
    tokens = np.array([[5, 9]])
    assert whole.tokens(tokens) is tokens
    assert whole.joined(whole.split(np.array([0, 2, 1]), np.array([0, 0, 1]))).tolist() == [0, 2, 1]
