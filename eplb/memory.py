"""What the daemon keeps of a pool beyond the store, so that an emptied store locks nobody out and un-pauses nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from eplb.agent.header import MAX_TERM
from eplb.errors import FileError
from eplb.last_good import LastGood, read_last_good, write_last_good
from eplb.store.control import PAUSED_FIELD, set_paused

if TYPE_CHECKING:
    from pathlib import Path

    from collectors.facts import PoolFacts
    from eplb.ranks import LiveRanks
    from eplb.store.control import Switches


class PoolMemory:
    """The highest term and map_version seen, the operator's switch, and the last good map; on disk where a folder is given.

    A standby keeps the same, so that any of the daemons can restore what the store lost. A daemon that begins after the
    loss, with no file of its own, knows terms and versions from the ranks, but cannot know that a pool was paused.
    """

    def __init__(self, facts: PoolFacts, folder: Path | None = None) -> None:
        self._facts, self._folder = facts, folder
        self._log = structlog.get_logger("eplb").bind(pool=facts.pool)
        self._paused: bool | None = None
        self._known: LastGood | None = None
        self._written: LastGood | None = None
        self.term = 0
        self.map_version = 0
        self.problem = ""
        if folder is not None:
            self._load(folder)

    def _load(self, folder: Path) -> None:
        self._known, refused = read_last_good(folder, self._facts)
        self._written = self._known
        if refused:
            self._log.warning("last_good_refused", reason=refused)
        if self._known is not None:
            self.term, self.map_version = self._known.term, self._known.map_version
            self._paused = self._known.paused
            self._log.info(
                "last_good_read", term=self.term, map_version=self.map_version, paused=self._paused
            )

    @property
    def last_good(self) -> LastGood | None:
        """The last map that all ranks were seen to serve."""
        return self._known

    @property
    def saved(self) -> bool | None:
        """Whether the file holds what is known now; None while no folder is set."""
        return None if self._folder is None else not self.problem

    def paused(self, store: Switches, term: int | None) -> bool:
        """Whether the pool is paused, by the store's switch or, where the store lost it, by what was last seen.

        Whoever resumes a pool writes 0 and deletes nothing, so a paused pool without a switch is a loss: the leader, who has a
        ``term``, puts it back.

        Raises:
            StoreError: the store does not answer, or a newer term exists.
        """
        given = store.read_control().get(PAUSED_FIELD)
        if given is not None:
            self._paused = given == b"1"
        elif self._paused and term is not None:
            set_paused(store, paused=True, term=term)
            self._log.warning("pause_restored", reason="the store lost the switch of a paused pool")
        return bool(self._paused)

    def see(self, ranks: LiveRanks, *, term: int, map_version: int, paused: bool, now_ms: int) -> None:
        """Keep what a cycle found, and write it down if it changed; a disk that refuses is said once and tried again each cycle."""
        # What no rank would take over must not be kept either, or one damaged field would lock the pool for good.
        self.term = max(self.term, *(x for x in (term, ranks.term_seen, 0) if x <= MAX_TERM))
        versions = (map_version, ranks.map_version, 0)
        self.map_version = max(self.map_version, *(x for x in versions if x <= MAX_TERM))
        newest = self._served(ranks, now_ms)
        if newest is None:
            return
        self._known = replace(newest, term=self.term, paused=paused)
        if self._folder is not None and not self._is_written(self._known):
            self._write(self._folder, self._known)

    def _served(self, ranks: LiveRanks, now_ms: int) -> LastGood | None:
        """The map that all members of the group serve, or else the one kept so far."""
        first = ranks.first
        if first is None or first.map_rows is None or not ranks.agree:
            return self._known
        if not set(ranks.members) <= set(ranks.records):
            return self._known
        return LastGood(
            pool=self._facts.pool,
            term=0,
            map_version=ranks.map_version,
            run_id=first.run_id,
            rows=first.map_rows,
            shares=first.shares_rows,
            paused=False,
            saved_ms=now_ms,
            model_digest=first.model_digest,
        )

    def _is_written(self, record: LastGood) -> bool:
        return self._written is not None and replace(self._written, saved_ms=record.saved_ms) == record

    def _write(self, folder: Path, record: LastGood) -> None:
        try:
            write_last_good(folder, record)
        except FileError as error:
            if not self.problem:
                self._log.warning("last_good_not_saved", reason=str(error))
            self.problem = str(error)
            return
        if self.problem:
            self._log.info("last_good_saved_again")
        self.problem = ""
        self._written = record
