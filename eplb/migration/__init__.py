"""The daemon's side of migration: plans, waves, and where the ranks stand."""

from eplb.migration.actuator import Actuator
from eplb.migration.desired import Desired, of_one_run, read_desired, read_records
from eplb.migration.plan import Plan, last_changes, make_plan, plan_is_live, remaining
from eplb.migration.status import MigrationStatus, State, observe
from eplb.migration.waves import wave_slots, waves

__all__ = [
    "Actuator",
    "Desired",
    "MigrationStatus",
    "Plan",
    "State",
    "last_changes",
    "make_plan",
    "observe",
    "of_one_run",
    "plan_is_live",
    "read_desired",
    "read_records",
    "remaining",
    "wave_slots",
    "waves",
]
