"""The history of one pool: fed by the window cycle by cycle, kept over restarts, asked when a plan is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.history.file import Held
from eplb.history.keeper import Keeper
from eplb.history.material import Material, Past, Recent, mix, window_only
from eplb.history.moments import MOMENT_MS
from eplb.history.reservoir import Reservoir

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.config import HistoryConfig
    from eplb.history.moments import StepKey
    from eplb.window import WindowView


class History:
    """A bounded sample of the steps of hours and days; counts are by logical expert, so no change of map matters to it.

    ``horizon_s``: time that a plan serves at least. ``most_slices``: slices that the solver is given to plan on.
    """

    def __init__(
        self, facts: PoolFacts, config: HistoryConfig, *, horizon_s: float, most_slices: int
    ) -> None:
        self._facts, self._config = facts, config
        self._horizon_s, self._most_slices = horizon_s, most_slices
        self._keeper = Keeper(facts, config)
        self._ids: dict[int, int] = {}
        self._begin()
        held = self._keeper.load()
        if held is not None:
            self._reservoir.restore(held.moments)
            numbers = (moment.number for moment in held.moments)
            self._ids = {n: name for n, name in zip(numbers, held.regimes, strict=True) if name >= 0}
            self._next_id, self._model_digest = held.next_id, held.model_digest

    def _begin(self) -> None:
        config = self._config
        self._reservoir = Reservoir(
            (self._facts.layers, self._facts.experts),
            most_moments=config.most_moments,
            most_bytes=config.most_bytes,
            keep_ms=int(config.keep_s * 1000),
        )
        self._seen: frozenset[StepKey] = frozenset()
        self._ids = {}
        self._next_id = self._model_digest = 0
        self._thinned = -1

    @property
    def moments(self) -> int:
        """Moments that are held."""
        return len(self._reservoir.moments)

    @property
    def bytes(self) -> int:
        """Packed counts that are held."""
        return self._reservoir.bytes

    def note(self, view: WindowView, model_digest: int = 0) -> None:
        """Take the view's steps that were in no view before; ``model_digest`` 0 = unknown, another one drops the history.

        Intervals are not taken: they are sums whose limits move with the window.
        """
        if self._config.use == "off":
            return
        self._check_model(model_digest)
        keys = _keys(view)
        new = [at for at, key in enumerate(keys) if key[0] and key not in self._seen]
        self._seen = frozenset(keys)
        if new:
            self._reservoir.add(view.time_ms, view.run_ids[new], view.group_steps[new], view.tokens[new])
        if view.time_ms // MOMENT_MS != self._thinned:
            self._thinned = view.time_ms // MOMENT_MS
            self._reservoir.thin(view.time_ms)
        if self._keeper.due(view.time_ms):
            self.save(view.time_ms)

    def _check_model(self, model_digest: int) -> None:
        if model_digest and self._model_digest and model_digest != self._model_digest:
            self._keeper.dropped("the ranks serve another model: its experts are chosen otherwise")
            self._begin()
        self._model_digest = model_digest or self._model_digest

    def material(self, view: WindowView, served: NDArray[np.bool_], held_out: int) -> Material:
        """Slices to plan on and the window's to judge by: the ``held_out`` newest of those that the live map ``served``, bool [slices].

        No step that judges is planned on, nor is a minute that shares a step with the window.
        """
        judges = np.flatnonzero(served)[len(np.flatnonzero(served)) - held_out :]
        if self._config.use == "off" or not held_out:
            return window_only(view.tokens[served], held_out, self._config.use)
        own = view.tokens[: judges[0]]
        in_view = set(_keys(view))
        moments = [
            moment
            for moment in self._reservoir.moments
            if not any(step.key in in_view for step in moment.steps)
        ]
        if not moments:
            return window_only(np.concatenate([own, view.tokens[judges]]), held_out, self._config.use)
        before = np.array([self._ids.get(moment.number, -1) for moment in moments], dtype=np.int64)
        recent = Recent(own, view.tokens[judges], view.time_ms)
        past = Past(tuple(moments), before, self._next_id)
        material = mix(recent, past, self._config, self._horizon_s, self._most_slices)
        numbers = [moment.number for moment in moments]
        self._ids = dict(zip(numbers, material.ids.tolist(), strict=True)) if len(material.ids) else self._ids
        self._next_id = material.next_id
        return material

    def save(self, now_ms: int | None = None) -> None:
        """Write the file, if there is one to be written; what fails is logged."""
        moments = self._reservoir.moments
        self._keeper.save(
            now_ms or 0,
            Held(
                pool=self._facts.pool,
                shape=self._reservoir.shape,
                model_layers=self._facts.model_layers,
                top_k=self._facts.top_k,
                model_digest=self._model_digest,
                moments=moments,
                regimes=tuple(self._ids.get(moment.number, -1) for moment in moments),
                next_id=self._next_id,
            ),
        )


def _keys(view: WindowView) -> list[StepKey]:
    return list(zip(view.run_ids.tolist(), view.group_steps.tolist(), strict=True))
