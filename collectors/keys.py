"""Names of the keys that one pool uses; the braces make one hash tag, so that a cluster keeps a pool together."""

from __future__ import annotations

FRAME_FIELD = b"f"
"""Field of a stream entry of ``load`` that holds one encoded frame."""


def load_key(pool: str, node: int) -> str:
    """Stream of frames of one node's ranks."""
    return f"eplb:{{{pool}}}:load:{node}"


def desired_key(pool: str) -> str:
    """Hash: what the daemon asks for (term, map_version, map, offer)."""
    return f"eplb:{{{pool}}}:desired"


def live_key(pool: str) -> str:
    """Hash by rank: what each rank reports that it serves."""
    return f"eplb:{{{pool}}}:live"


def log_key(pool: str) -> str:
    """Stream of decisions and journal entries, capped."""
    return f"eplb:{{{pool}}}:log"


def control_key(pool: str) -> str:
    """Hash of operator switches: paused, mode."""
    return f"eplb:{{{pool}}}:control"


def lease_key(pool: str) -> str:
    """The leader's lease."""
    return f"eplb:{{{pool}}}:lease"
