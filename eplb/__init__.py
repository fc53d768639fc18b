"""The expert-parallel load balancer: rank-side agent, daemon, offline tools and a reference runtime.

Importing this package loads nothing else, because it enters a serving engine's own process.
"""

from __future__ import annotations

__version__ = "0.1.0"
