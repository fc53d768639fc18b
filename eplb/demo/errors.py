"""Errors of the demo; each ends the run with one sentence that says what to do.

DemoError
├── TraceUnusable      the trace file is missing, damaged or too small
├── SequencesUsedUp    the run needs more sequences than the trace holds; none is replayed
├── RunStalled         a phase of the run waited longer than its limit
├── RankFailure        a rank process stopped or raised
├── BrokenSlot         a slot does not hold the weights that the group switched to
├── LimitsMissed       the run ended well, but its readings are not those that the demo promises
└── FaultFound         an output was wrong, a token was lost, or ranks served different maps
"""

from __future__ import annotations

from eplb.errors import EplbError


class DemoError(EplbError):
    """Base of every error of the demo."""


class TraceUnusable(DemoError):  # noqa: N818 - states read better than "UnusableError"
    """The trace cannot feed the run."""


class SequencesUsedUp(DemoError):  # noqa: N818
    """Every sequence of the current domain was used once."""


class RunStalled(DemoError):  # noqa: N818
    """A phase of the run did not end within its limit."""


class FaultFound(DemoError):  # noqa: N818
    """The checker found a fault; the message begins with its word."""


class BrokenSlot(DemoError):  # noqa: N818
    """A slot failed its read-back after a switch."""


class LimitsMissed(DemoError):  # noqa: N818
    """A reading missed a limit that it had to meet."""


class RankFailure(DemoError):  # noqa: N818
    """A rank process stopped or raised."""
