"""Errors that the daemon and the agent name.

    EplbError
    ├── ConfigError           a setting is unknown, out of range or contradicts another
    ├── FileError             a trace or a map file cannot be used
    ├── StoreError
    │   ├── StoreUnavailable  the store does not answer
    │   │   └── StoreUntrusted    its TLS certificate is not accepted
    │   └── StoreFenced       a newer term exists: this process must not write
    ├── WindowError           counts cannot be brought together
    ├── HistoryError          a history is damaged or another pool's
    ├── ReplayError           a trace cannot be replayed as asked
    ├── PlanError
    │   ├── PlanStale         the live map is no longer the plan's base
    │   └── NeedsStaging      a change fits into no wave of the size that is allowed
    └── MigrationError
        ├── ProtocolError     the transition table has no row for what happened
        ├── OfferError        an offer is damaged or does not fit this pool
        ├── TransferError     weights did not arrive as they were sent
        ├── GroupTooSmall     the members have fewer slots than experts
        └── ExpertLost        no member holds an expert, and it cannot be loaded again

Each message says what, where, and what to do. The solver's own errors stand in ``placement.errors``, the collectors' in
``collectors.errors``.
"""

from __future__ import annotations


class EplbError(Exception):
    """Base of every error of the daemon and the agent."""


class ConfigError(EplbError):
    """A setting is unknown, out of range or contradicts another."""


class FileError(EplbError):
    """A trace or a map file cannot be used."""


class StoreError(EplbError):
    """The store refused or failed."""


class StoreUnavailable(StoreError):  # noqa: N818 - states read better than "UnavailableError"
    """The store does not answer."""


class StoreUntrusted(StoreUnavailable):
    """The store's TLS certificate is not accepted, or the two sides do not agree on TLS."""


class StoreFenced(StoreError):  # noqa: N818
    """A newer leadership term exists, so this process must not write."""


class WindowError(EplbError):
    """Counts cannot be brought together."""


class HistoryError(EplbError):
    """A history is damaged or another pool's."""


class ReplayError(EplbError):
    """A trace cannot be replayed as asked."""


class PlanError(EplbError):
    """A plan cannot be made or used."""


class PlanStale(PlanError):  # noqa: N818
    """The live map is no longer the plan's base."""


class NeedsStaging(PlanError):  # noqa: N818
    """No order of a layer's parts fits into waves of ``limit`` arrivals on a rank; ``slots`` are the fewest that do."""

    def __init__(self, layer: int, slots: int, limit: int) -> None:
        super().__init__(
            f"layer {layer}: needs_staging({slots}): waves may bring {limit} experts to a rank, this layer needs {slots}; "
            "raise migration.staging_slots or migration.bytes_per_rank"
        )
        self.slots = slots


class MigrationError(EplbError):
    """Weights could not be moved."""


class ProtocolError(MigrationError):
    """The transition table has no row for what happened."""


class OfferError(MigrationError):
    """An offer is damaged or does not fit this pool."""


class TransferError(MigrationError):
    """Weights did not arrive as they were sent."""


class GroupTooSmall(MigrationError):  # noqa: N818
    """The members have fewer slots than experts."""


class ExpertLost(MigrationError):  # noqa: N818
    """No member holds an expert, and it cannot be loaded again."""
