"""Whether the store may throw keys away, and how full it is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import NoPermissionError

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

LOOK_S = 60.0
"""Time between two looks: settings of a server change rarely, and a user that may not ask fills the server's ACL log."""

NEARLY_FULL = 0.9
"""Part of maxmemory above which somebody should look: a full store refuses frames, maps and the lease."""


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """What INFO says of the store's memory; ``policy`` "" = this user may not ask.

    ``used_bytes`` and ``maxmemory_bytes`` of the server, 0 = no limit.
    """

    policy: str = ""
    used_bytes: int = 0
    maxmemory_bytes: int = 0

    @property
    def may_evict(self) -> bool | None:
        """Whether the store may drop keys to make room; None = unknown."""
        return None if not self.policy else self.maxmemory_bytes > 0 and self.policy != "noeviction"

    @property
    def used_ratio(self) -> float | None:
        """Memory used over maxmemory; None = no limit, or unknown."""
        return None if not self.maxmemory_bytes else self.used_bytes / self.maxmemory_bytes

    @property
    def sentence(self) -> str:
        """What is wrong and what to do, "" = nothing."""
        if self.may_evict:
            return (
                f"the store may evict keys (maxmemory-policy {self.policy}), among them maps, the lease and an operator's pause; "
                "set maxmemory-policy noeviction on the server"
            )
        ratio = self.used_ratio
        if ratio is not None and ratio > NEARLY_FULL:
            return (
                f"the store uses {ratio:.0%} of its maxmemory and will refuse frames and maps when it is full; raise maxmemory, "
                "shorten the ranks' retention_s or find who else writes to it"
            )
        return ""


class HealthWatch:
    """Looks at the store's memory at most every :data:`LOOK_S` seconds by ``clock`` (monotonic seconds)."""

    def __init__(self, client: redis.Redis, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._looked_s = float("-inf")
        self._health = StoreHealth()

    def read(self) -> StoreHealth:
        """The newest answer; a user that may not ask gets an unknown one."""
        now_s = self._clock()
        if now_s - self._looked_s >= LOOK_S:
            try:
                found = self._client.info("memory")
                self._health = StoreHealth(
                    str(found.get("maxmemory_policy", "")),
                    int(found.get("used_memory", 0)),
                    int(found.get("maxmemory", 0)),
                )
            except NoPermissionError:
                self._health = StoreHealth()
            self._looked_s = now_s
        return self._health
