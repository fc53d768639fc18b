"""What to do about a store that answers, and refuses: the words of Redis and Valkey, each with the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis.exceptions import RedisError

_ADVICE = (
    (
        ("OutOfMemory", "OOM "),
        "it is full: raise maxmemory, shorten the ranks' retention_s or find who else writes to it",
    ),
    (("ReadOnly", "READONLY"), "it is a replica that takes no writes: give the URL of the primary"),
    (("MasterDown", "MASTERDOWN"), "it is a replica that lost its primary: give the URL of the primary"),
    (("Moved", "Ask", "ClusterDown", "CLUSTERDOWN"), "it is one node of a cluster: give a single server, or a proxy before it"),
    (("MISCONF", "NoReplicas", "NOREPLICAS"), "it takes no writes until its own disk or replicas are well: see the server's log"),
    (("WRONGTYPE",), "something else wrote under this pool's keys, eplb:{POOL}:*: delete that key, and give each its own user"),
    (("BUSY ",), "a script of somebody else runs on it: give the pool a store of its own"),
)  # fmt: skip


def refusal_advice(error: RedisError) -> str:
    """The next step for an error that the store answered with."""
    said = f"{type(error).__name__} {error}"
    known = (advice for marks, advice in _ADVICE if any(mark in said for mark in marks))
    return next(known, "Redis 6.2 or later, or Valkey, is needed")
