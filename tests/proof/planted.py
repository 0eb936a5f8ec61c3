"""Plants for the checker to find: each spoils a valid history in one way. Its name says what happened."""

from tests.proof import (
    planted_clients,
    planted_debounce,
    planted_flows,
    planted_limits,
    planted_lines,
    planted_moves,
    planted_runs,
    planted_schedules,
    planted_steps,
    planted_waits,
)
from tests.proof.planting import PLANTS as PLANTS

__all__ = [
    "PLANTS",
    "planted_clients",
    "planted_debounce",
    "planted_flows",
    "planted_limits",
    "planted_lines",
    "planted_moves",
    "planted_runs",
    "planted_schedules",
    "planted_steps",
    "planted_waits",
]
