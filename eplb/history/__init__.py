"""History beyond the window: a bounded sample of steps over days, its regimes, and what of it a plan is made on."""

from eplb.history.history import History
from eplb.history.material import Material
from eplb.history.planned_on import PlannedOn

__all__ = ["History", "Material", "PlannedOn"]
