"""Which history a plan was made on, in numbers and in a sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannedOn:
    """The slices that the solver was given.

    ``use``: ``off``, ``pooled`` or ``regimes``. ``window_slices``, ``history_slices``: slices from either. ``span_h``: hours from the
    oldest of them until the plan was asked for. ``effective_slices``: effective number of all of them by weight (Kish).
    ``regimes``: (id, share of the weight), the heaviest first; none where regimes are not told apart.
    """

    use: str
    window_slices: int
    history_slices: int
    span_h: float
    effective_slices: float
    regimes: tuple[tuple[int, float], ...] = ()

    @property
    def sentence(self) -> str:
        """For the plan's reasons."""
        if not self.history_slices:
            return f"planned on {self.window_slices} slices of the window alone ({self._why_alone()})"
        parts = (
            f"planned on {self.window_slices} slices of the window and {self.history_slices} of the {self.span_h:.1f} h "
            f"before, {self.effective_slices:.0f} effective"
        )
        if not self.regimes:
            return parts
        shown = ", ".join(f"regime {name}: {share:.0%}" for name, share in self.regimes)
        return f"{parts}; {shown}"

    def _why_alone(self) -> str:
        return "history.use is off" if self.use == "off" else "no history is older than the window"
