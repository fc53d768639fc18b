"""Rules of what a daemon keeps beyond the store: terms and versions only grow, and a lost pause is put back."""

from dataclasses import replace

import numpy as np
import pytest
from test_last_good import FACTS

from collectors.digests import layer_map_digests
from eplb.agent.wire import LiveRecord, encode_live
from eplb.last_good import last_good_path, read_last_good
from eplb.memory import PoolMemory
from eplb.ranks import LiveRanks

ROWS = ((0, 1, 2, 0), (1, 2, -1, 0))
NO_RANKS = LiveRanks.read({}, FACTS)
OTHER = ((1, 0, 2, 0), (1, 2, -1, 0))


class Switches:
    def __init__(self, **fields):
        self.fields = {name: value.encode() for name, value in fields.items()}
        self.terms = []

    def read_control(self):
        return dict(self.fields)

    def write_control(self, fields, term=None):
        self.terms.append(term)
        self.fields.update(fields)


def ranks(*rows, term=4, version=2, run_id=9, members=()):
    records = {}
    for rank, own in enumerate(rows):
        digests = tuple(int(x) for x in layer_map_digests(FACTS.model_layers, np.array(own, dtype=np.int32)))
        first = {"map_rows": own, "facts": FACTS} if rank == 0 else {}
        records[rank] = LiveRecord(
            pool="p", rank=rank, incarnation=1, run_id=run_id, term_seen=term, map_version=version, group_step=1,
            state="serving", offer="", digests=digests, members=members, model_digest=17, **first,
        )  # fmt: skip
    return LiveRanks.read({rank: encode_live(record) for rank, record in records.items()}, FACTS)


def see(memory, found, **given):
    values = {"term": 0, "map_version": 0, "paused": False, "now_ms": 1000, **given}
    memory.see(found, **values)


def test_terms_and_versions_only_grow():
    """The highest of store and ranks, whatever the store shows later."""
    memory = PoolMemory(FACTS)
    see(memory, ranks(ROWS, ROWS, term=4, version=2), term=6, map_version=1)
    see(memory, NO_RANKS, term=0, map_version=0)
    assert (memory.term, memory.map_version) == (6, 2)


def test_a_term_that_no_rank_may_take_over_is_not_kept():
    """Else one damaged field of the store would lock the pool for good, restarts included."""
    memory = PoolMemory(FACTS)
    see(memory, NO_RANKS, term=2**53 + 1, map_version=2**60)
    assert (memory.term, memory.map_version) == (0, 0)


def test_the_map_that_all_ranks_serve_is_written_once_per_change(tmp_path):
    """Not while ranks are missing or differ; not again while nothing changes."""
    memory = PoolMemory(FACTS, tmp_path)
    path = last_good_path(tmp_path, "p")
    see(memory, ranks(ROWS))
    see(memory, ranks(ROWS, OTHER))
    assert not path.exists()
    see(memory, ranks(ROWS, ROWS))
    first = path.stat()
    see(memory, ranks(ROWS, ROWS), now_ms=2000)
    assert path.stat().st_ino == first.st_ino
    see(memory, ranks(OTHER, OTHER, version=3), now_ms=3000)
    record, _ = read_last_good(tmp_path, FACTS)
    assert (record.rows, record.map_version, record.term, record.run_id, record.saved_ms) == (
        OTHER,
        3,
        4,
        9,
        3000,
    )
    assert memory.saved is True


def test_the_members_of_a_smaller_group_are_all_its_ranks(tmp_path):
    """A rank that was lost is not waited for; the model is noted."""
    see(PoolMemory(FACTS, tmp_path), ranks(ROWS, members=(0,)))
    record, _ = read_last_good(tmp_path, FACTS)
    assert (record.rows, record.model_digest) == (ROWS, 17)


@pytest.mark.parametrize("change", [{"term": 8}, {"paused": True}])
def test_a_new_term_or_a_pause_is_written_although_the_map_is_the_same(tmp_path, change):
    """A leader that restarts must know both."""
    memory = PoolMemory(FACTS, tmp_path)
    see(memory, ranks(ROWS, ROWS))
    see(memory, NO_RANKS, **change)
    record, _ = read_last_good(tmp_path, FACTS)
    assert (record.term, record.paused, record.rows) == (
        change.get("term", 4),
        change.get("paused", False),
        ROWS,
    )


def test_a_restarted_daemon_begins_where_the_file_ends(tmp_path):
    """Term, version and pause, before it has read a rank."""
    see(PoolMemory(FACTS, tmp_path), ranks(ROWS, ROWS), term=6, paused=True)
    again = PoolMemory(FACTS, tmp_path)
    assert (again.term, again.map_version, again.last_good.rows) == (6, 2, ROWS)
    assert again.paused(Switches(), None)


def test_a_disk_that_refuses_is_said_and_mended(tmp_path):
    """Never an error of the cycle; saved says so, until a write works again."""
    folder = tmp_path / "state"
    folder.write_text("in the way")
    memory = PoolMemory(FACTS, folder)
    see(memory, ranks(ROWS, ROWS))
    assert memory.saved is False
    assert "state_folder" in memory.problem
    folder.unlink()
    see(memory, ranks(ROWS, ROWS))
    assert memory.saved is True
    assert read_last_good(folder, FACTS)[0].rows == ROWS


def test_without_a_folder_nothing_is_asked_of_the_disk():
    """And nothing is claimed."""
    memory = PoolMemory(FACTS)
    see(memory, ranks(ROWS, ROWS))
    assert memory.saved is None
    assert memory.last_good == replace(memory.last_good, rows=ROWS, term=4)


def test_an_emptied_store_does_not_unpause():
    """A standby holds the pause as well; the leader puts it back under its term."""
    memory, store = PoolMemory(FACTS), Switches(paused="1")
    assert memory.paused(store, 3)
    store.fields.clear()
    assert memory.paused(store, None)
    assert store.terms == []
    assert memory.paused(store, 5)
    assert (store.fields, store.terms) == ({"paused": b"1"}, [5])


def test_a_resume_is_not_undone():
    """Resuming writes 0, before or after the loss, and then an empty store means not paused."""
    memory, store = PoolMemory(FACTS), Switches(paused="1")
    memory.paused(store, 3)
    store.fields["paused"] = b"0"
    assert not memory.paused(store, 3)
    store.fields.clear()
    assert not memory.paused(store, 3)
    assert store.terms == []


def test_a_daemon_that_began_after_the_loss_knows_of_no_pause():
    """What holds, and no more: nothing left in the world says that the pool was paused."""
    assert not PoolMemory(FACTS).paused(Switches(), 3)
