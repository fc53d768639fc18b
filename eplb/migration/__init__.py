"""The daemon's side of migration: plans, waves, and where the ranks stand."""

from eplb.migration.actuator import Actuator
from eplb.migration.desired import Desired, of_one_run, read_desired, read_records
from eplb.migration.plan import Plan, make_plan
from eplb.migration.status import MigrationStatus, State, observe
from eplb.migration.waves import waves

__all__ = [
    "Actuator",
    "Desired",
    "MigrationStatus",
    "Plan",
    "State",
    "make_plan",
    "observe",
    "of_one_run",
    "read_desired",
    "read_records",
    "waves",
]
