"""Replay a trace through policies, the daemon's own among them, on a virtual clock: recorded picks, simulated schedule."""
