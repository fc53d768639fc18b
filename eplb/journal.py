"""What a pool has decided, told: one log line when a decision changes, and every leader's decision for the store's log."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from eplb.decisions import Code
from eplb.errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from eplb.decisions import Decision
    from eplb.watchdog import Progress

UNSENT_KEPT = 100
"""Decisions that wait for a store that is away; older ones are let go."""

_UNTOLD = ("pool", "departed")
"""Bound to the logger already, and a thousand places that only the next leader reads."""

_LOUD = frozenset({Code.GAIN_MISSED, Code.ROLLING_BACK, Code.APPLY_UNVERIFIED})


class Journal:
    """Tells a pool's decisions through ``log`` (a structlog logger) and through ``append`` (one record for the store's log)."""

    def __init__(self, log: Any, append: Callable[[bytes], None]) -> None:
        self._log, self._append = log, append
        self._unsent: deque[bytes] = deque(maxlen=UNSENT_KEPT)
        self._told: tuple[str, str] = ("", "")
        self._refused = False
        self._fault = ""

    def fault(self, error: Exception) -> str:
        """An error that nobody foresaw, as a sentence; its traceback is logged once, however many cycles it lasts."""
        sentence = f"{type(error).__name__}: {error}"
        if sentence != self._fault:
            self._log.exception("cycle_failed")
        self._fault = sentence
        return sentence

    def well(self) -> None:
        """A cycle came to its end, so that the next fault is news."""
        self._fault = ""

    def keep(self, decision: Decision, *, leader: bool) -> None:
        """Tell the decision and keep a leader's for the store's log, which may be away just now."""
        self.tell(decision)
        if leader:
            self._unsent.append(decision.as_json())

    def send(self) -> None:
        """Append what waits to the store's log; one that is full or takes no writes is said once, because nothing is decided by that log.

        Raises:
            StoreUnavailable: the store is away; what was not appended waits on.
        """
        try:
            while self._unsent:
                self._append(self._unsent[0])
                self._unsent.popleft()
        except StoreUnavailable:
            raise
        except StoreError as error:
            if not self._refused:
                self._log.warning("decisions_not_logged", reason=str(error))
            self._refused = True
            return
        if self._refused:
            self._log.info("decisions_logged_again")
        self._refused = False

    def watch(self, before: Progress, after: Progress) -> None:
        """One line when nothing moves any more, and one when it does again."""
        if after.stalled and not before.stalled:
            self._log.warning("rebalance_stalled", ranks=list(after.ranks), reason=after.sentence)
        elif before.stalled and not after.stalled:
            self._log.info("rebalance_resumed", ranks=list(before.ranks), was=before.sentence)

    def tell(self, decision: Decision) -> None:
        """One log line when state or code change, not one a cycle."""
        told = (decision.state, str(decision.code))
        if told != self._told:
            self._told = told
            shown = {name: value for name, value in decision.as_dict().items() if name not in _UNTOLD}
            write = self._log.warning if decision.code in _LOUD else self._log.info
            write("decision", **shown)
