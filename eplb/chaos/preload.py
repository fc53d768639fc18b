"""What the fork server holds ready, so that a killed process is back in milliseconds: clocks first, then daemon and rank."""

from __future__ import annotations

from eplb.chaos import clocks

clocks.install()

import eplb.chaos.daemon_entry  # noqa: E402 - after the clocks
import eplb.chaos.rank  # noqa: E402
import eplb.daemon  # noqa: E402, F401
