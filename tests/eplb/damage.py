"""Files that went wrong on the way, for tests of readers."""

import os

from hypothesis import strategies as st

from eplb.errors import FileError


def damages(size):
    """Strategies for damage to a file of so many bytes: cut short, bytes replaced, a piece doubled, or all of it noise."""
    places = st.integers(0, max(size - 1, 0))
    return st.one_of(
        st.tuples(st.just("cut"), places),
        st.tuples(st.just("flip"), st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=8)),
        st.tuples(st.just("double"), st.tuples(places, places)),
        st.tuples(st.just("noise"), st.binary(max_size=200)),
    )


def damaged(data, damage):
    """The bytes after the damage."""
    kind, how = damage
    if kind == "cut":
        return data[:how]
    if kind == "noise":
        return how
    if kind == "double":
        first, last = sorted(how)
        return data[:last] + data[first:]
    changed = bytearray(data)
    for place, value in how:
        # The damage may be meant for a longer file.
        changed[place % len(changed)] = value
    return bytes(changed)


def settle(path, data):
    """Write a file that nobody is writing any more: readers need not wait for it."""
    path.write_bytes(data)
    os.utime(path, (1, 1))
    return path


def answers(action, path):
    """Whether a reader gives a value or the one error that it may raise, which starts with the path; all else gets through."""
    message = f"{path}: "
    try:
        action(path)
    except FileError as error:
        message = str(error)
    return message.startswith(f"{path}: ")
