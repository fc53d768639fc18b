"""A small recording for tests: two domains that prefer other experts."""

import numpy as np

from eplb.formats.facts import Sequence
from eplb.replay.options import ReplayOptions
from eplb.replay.recording import Recording
from eplb.replay.schedule import ScheduleOptions

EXPERTS, LAYERS, TOP_K = 8, 2, 2
DOMAINS = ("law", "math")


def sequence(rng, domain, tokens):
    """Picks of one sequence: distinct experts, ``law`` mostly the first ones, ``math`` mostly the last ones."""
    order = np.arange(EXPERTS) if domain == DOMAINS[0] else np.arange(EXPERTS)[::-1]
    keys = rng.exponential(size=(tokens, LAYERS, EXPERTS)) / 1.6 ** -order.astype(float)
    return Sequence(keys.argsort(axis=2)[:, :, :TOP_K].astype(np.uint8), domain)


def recording(each=60, tokens=(4, 30), seed=1):
    """``each`` sequences of either domain, lengths drawn from ``tokens``."""
    rng = np.random.default_rng(seed)
    held = [sequence(rng, domain, int(rng.integers(*tokens))) for domain in DOMAINS for _ in range(each)]
    return Recording.of(held, EXPERTS)


def options(**schedule):
    """4 ranks x 3 slots over 64 steps of 8 sequences, windows of 4 steps."""
    given = {"steps": 64, "window_steps": 4, "running": 8, "requests_per_sequence": 100, **schedule}
    return ReplayOptions(ranks=4, slots_per_rank=3, memory_windows=6, schedule=ScheduleOptions(**given))
