"""Exit codes of every command."""

from __future__ import annotations

OK = 0
"""The command did what it was asked."""
ERROR = 1
"""Something is wrong; stderr says what, where and what to do."""
USAGE = 2
"""The command line itself is wrong."""
NOTHING_TO_DO = 3
"""All is well and nothing had to change."""
REFUSED = 4
"""A guard refused; stderr says which and why."""
