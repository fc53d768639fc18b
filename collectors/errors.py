"""Errors of the rank side.

CollectorError
├── FrameError        a frame is damaged, truncated or of another schema
├── CountError        counts are negative, not finite, overflowing or of the wrong shape
├── AccessError       the store cannot be reached as its settings say
└── FactsError        the facts of a pool contradict each other
"""

from __future__ import annotations


class CollectorError(Exception):
    """Base of every error that the rank side names."""


class FrameError(CollectorError):
    """A frame cannot be read: the message names the field, the value and the limit."""


class CountError(CollectorError):
    """A count vector is refused: the message names the place, the value and what to do."""


class FactsError(CollectorError):
    """The facts of a pool contradict each other."""


class AccessError(CollectorError):
    """The settings of the way to the store contradict each other, or a file of them cannot be read."""
