"""``python -m eplb.chaos``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from eplb.chaos.command import chaos

    sys.exit(chaos())
