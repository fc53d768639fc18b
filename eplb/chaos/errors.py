"""Errors of the chaos run itself."""

from __future__ import annotations

from eplb.errors import EplbError


class ChaosError(EplbError):
    """The run could not go on: a process did not start, or a group did not form."""
