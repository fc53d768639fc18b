"""Errors that the solver names.

PlacementError
├── InfeasibleError   the slots cannot hold what is asked; the message says the smallest change that fits
├── TraceError        counts are negative, not finite, overflowing or of the wrong shape
├── TopologyError     ranks, nodes, slots or speeds contradict each other
├── MapError          a map has another shape than the topology or the trace
└── UnsupportedError  an option is unknown or not built
"""

from __future__ import annotations


class PlacementError(Exception):
    """Base of every error of the solver."""


class InfeasibleError(PlacementError):
    """No valid placement exists; the message says the smallest change that makes one possible."""


class TraceError(PlacementError):
    """A count is refused; the message names the place and the value."""


class TopologyError(PlacementError):
    """Ranks, nodes, slots or speeds contradict each other."""


class MapError(PlacementError):
    """A map does not fit the topology or the trace in shape or type."""


class UnsupportedError(PlacementError):
    """An option is unknown, or known and not built yet; the message lists what can be used."""
