"""Model check: every interleaving of ranks, daemons, store and faults within bounds, on the functions that run."""
