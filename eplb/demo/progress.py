"""The run as it goes: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REFRESH_S = 0.25
BAR_CELLS = 24


@dataclass(frozen=True, slots=True)
class Progress:
    """One picture of the run.

    ``ratio_by_layer``: float64 [layers] and ``load_by_rank``: float64 [ranks], load / mean load, both over the last steps; None before
    the first. ``decision`` the daemon's last one with its reason.
    """

    stage: str
    step: int
    map_version: int
    in_flight: str
    model_layers: tuple[int, ...]
    ratio_by_layer: NDArray[np.float64] | None
    load_by_rank: NDArray[np.float64] | None
    readings: dict[str, float]
    decision: str
    tokens: int
    mismatches: int
    step_ms: float | None


class View(Protocol):
    """Shows a run; a context that restores the terminal."""

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(self, *_: object) -> None:
        """End."""
        ...

    def show(self, progress: Progress) -> None:
        """Show a picture, at most every ``REFRESH_S`` seconds."""
        ...


def _bar(value: float) -> Text:
    """A bar from 0 to twice the mean, the part above the mean in red."""
    cells = round(min(value, 2.0) / 2.0 * BAR_CELLS)
    half = BAR_CELLS // 2
    return Text("█" * min(cells, half), style="green") + Text("█" * max(0, cells - half), style="red")


def table(progress: Progress) -> Group:
    """The live picture: ratio by layer, load by rank, readings, the daemon's last decision and why."""
    head = Text(
        f"step {progress.step}   map version {progress.map_version}   {progress.stage}   {progress.in_flight}",
        style="bold",
    )
    layers = Table("layer", "ratio", "", title="imbalance ratio by layer", title_justify="left", box=None)
    if progress.ratio_by_layer is not None:
        for layer, ratio in zip(progress.model_layers, progress.ratio_by_layer, strict=True):
            layers.add_row(str(layer), f"{ratio:.2f}", _bar(ratio))
    ranks = Table("rank", "load", "", title="load by rank (1 = mean)", title_justify="left", box=None)
    if progress.load_by_rank is not None:
        for rank, load in enumerate(progress.load_by_rank):
            ranks.add_row(str(rank), f"{load:.2f}", _bar(load))
    both = Table.grid(padding=(0, 4))
    both.add_row(layers, ranks)
    step_ms = "" if progress.step_ms is None else f"   step {progress.step_ms:.0f} ms"
    foot = Text(
        f"readings: {readings(progress.readings)}\ndaemon: {progress.decision}\n"
        f"tokens {progress.tokens:,}   wrong outputs {progress.mismatches}{step_ms}"
    )
    return Group(head, both, foot)


def readings(values: dict[str, float]) -> str:
    """Finished readings in one line."""
    return "  ".join(f"{name} {ratio:.3f}" for name, ratio in values.items()) or "none yet"


class LiveView:
    """A table that is redrawn in place, on stderr."""

    def __init__(self) -> None:
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._shown_s = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, progress: Progress) -> None:
        """Redraw."""
        now_s = time.monotonic()
        if now_s - self._shown_s >= REFRESH_S:
            self._shown_s = now_s
            self._live.update(table(progress), refresh=True)


class LineView:
    """One line on stderr when the stage, the map version or the daemon's decision changes."""

    def __init__(self) -> None:
        self._last: tuple[str, int, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, progress: Progress) -> None:
        """Say what changed."""
        code = progress.decision.partition(":")[0]
        now = (progress.stage, progress.map_version, code)
        if now != self._last:
            self._last = now
            print(
                f"step {progress.step}: {progress.stage}; map version {progress.map_version}; "
                f"readings {readings(progress.readings)}; daemon: {progress.decision}",
                file=sys.stderr,
                flush=True,
            )


def view_for(*, terminal: bool) -> View:
    """The live table on a terminal, lines elsewhere."""
    return LiveView() if terminal else LineView()
