"""Chaos: the demo's runtime, two daemons and a store under faults of 14 kinds, watched by a judge of its own."""
