"""Our policy: the daemon's own loop, window, gate, solver and waves, over a simulated group."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from collectors.facts import Phase
from eplb.decisions import Code
from eplb.errors import ReplayError
from eplb.pool import Pool
from eplb.ports import Ports
from eplb.replay.world import ORIGIN_MS, Clock, Group, InlineSolver, MemoryStore, SoleLead

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eplb.config import PoolConfig
    from eplb.replay.schedule import Steps
    from placement import Roofline


class Ours:
    """One cycle of the daemon after every ``at_a_time`` steps; a wave that it offers is switched before the next step.

    ``kernels``: what the ranks' steps take, which they report and the daemon prices its plans by.
    ``decisions``: how often each code was the cycle's decision.
    """

    free = False

    def __init__(
        self, name: str, config: PoolConfig, start: NDArray[np.int32], at_a_time: int, kernels: Roofline
    ) -> None:
        self.name = name
        self.at_a_time = at_a_time
        self.decisions: Counter[str] = Counter()
        self._clock = Clock()
        store = MemoryStore(self._clock)
        self._group = Group(config.facts(), Phase[config.phases[0].upper()], start, store, kernels)
        ports = Ports(store, SoleLead(), InlineSolver(), self._clock.seconds)
        # In mode auto nothing is written to the folder of advice.
        self._pool = Pool(config, ports, Path())

    def map_for(self, steps: Steps) -> NDArray[np.int32]:
        """The live map, after the ranks have taken what is on offer."""
        del steps
        self._group.take_offer()
        return self._group.live.rows.copy()

    def seen(self, steps: Steps) -> None:
        """Publish the steps and let the daemon run one cycle.

        Raises:
            ReplayError: the cycle failed.
        """
        self._clock.now_ms = ORIGIN_MS + int(steps.end_ms[-1])
        self._group.publish(steps, self._clock.now_ms)
        decision = self._pool.cycle().decision
        code, sentence = ("", "") if decision is None else (decision["code"], decision["sentence"])
        if code == Code.CYCLE_FAILED:
            raise ReplayError(f"{self.name}: step {steps.first_step}: the daemon's cycle failed: {sentence}")
        self.decisions[code] += 1

    def close(self) -> None:
        """Let go of the pool."""
        self._pool.close()
