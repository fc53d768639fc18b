"""What the window shows at one moment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class WindowView:
    """Load and balance of one pool over the window, of one phase or of all.

    A slice is one complete sampled step, oldest first; where no step was sampled at all, it is an interval of time.
    ``tokens`` int64 [slices, layers, experts]: (token, expert) pairs by logical expert.
    ``group_steps``, ``batch_tokens`` int64 [slices]: the step's number, and the tokens that the group routed in it.
    ``live_digests`` uint64 [slices]: the live map that each step was served with, 0 for an interval.
    ``run_ids`` uint64 [slices]; ``phases`` int8 [slices], a ``Phase``, or -1 for an interval of several phases.
    ``step_us_by_slice`` float64 [slices], mean over ranks, NaN = not measured.
    ``ratio`` float64 [slices, layers]: max / mean over ranks, NaN = no load in that layer, or no map to predict with.
    ``rank_load`` float64 [layers, ranks]: pairs that each rank received in the whole window, sampled or not;
    predicted for kind ROUTED, NaN while no map is known.
    ``quality``: ``exact`` every step of the slices' span is a slice; ``sampled 1/n`` one of n; ``predicted`` from the map and
    the dispatch rule, or from intervals, which are sums and not steps.
    ``coverage`` = ranks seen in the window / ranks expected; ``stale_ranks`` without a frame for the limit, never seen included.
    ``newest_age_s`` store time since the newest slice's last frame came; None = no slice.
    ``complete_steps``, ``incomplete_steps``, ``misaligned_steps``: how the window's sampled steps ended, all phases.
    ``steps``, ``total_tokens``: forwards and tokens counted in the window, sampled or not, over ``span_s`` seconds.
    ``counters``: totals since the window was made. Times are means over slices, microseconds; None = not measured.
    ``live_digest``: of the newest complete step, else of the newest frame, 0 = none. ``term_seen``: highest in any frame.
    ``members``: ranks of the group that serves now; expected, seen and stale ranks are of them. ``same_members`` bool [slices]:
    whether a slice was served by the same ranks.
    ``shares_followed``: 1 = an expert's tokens go where the live map's shares say, 0 = they are dealt evenly, seen in all steps of the run; NaN = not known.
    """

    time_ms: int
    tokens: NDArray[np.int64]
    group_steps: NDArray[np.int64]
    run_ids: NDArray[np.uint64]
    live_digests: NDArray[np.uint64]
    phases: NDArray[np.int8]
    batch_tokens: NDArray[np.int64]
    step_us_by_slice: NDArray[np.float64]
    ratio: NDArray[np.float64]
    rank_load: NDArray[np.float64]
    quality: str
    ranks_expected: int
    ranks_seen: int
    coverage: float
    stale_ranks: tuple[int, ...]
    newest_age_s: float | None
    complete_steps: int
    incomplete_steps: int
    misaligned_steps: int
    steps: int
    total_tokens: int
    counters: dict[str, int]
    step_us: float | None
    moe_wait_us: float | None
    a2a_us: float | None
    expert_us: float | None
    live_digest: int
    term_seen: int
    scope_copies: int
    members: tuple[int, ...]
    same_members: NDArray[np.bool_]
    span_s: float = 0.0
    shares_followed: float = math.nan

    @property
    def slices(self) -> int:
        """Number of slices."""
        return len(self.group_steps)

    @property
    def misaligned_share(self) -> float:
        """Misaligned steps / steps that all ranks reported, 0 when there are none."""
        ended = self.complete_steps + self.misaligned_steps
        return self.misaligned_steps / ended if ended else 0.0
