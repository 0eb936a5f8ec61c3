"""The arguments of every measure: the databases, the systems, the sizes, and the results."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.rounds import Results
from benchmarks.servers import Servers
from benchmarks.systems.base import System


@dataclass(frozen=True)
class Scale:
    name: str
    rounds: int
    drain_seconds: float  # of one drain, roughly
    enqueue_seconds: float
    fetch_seconds: float
    sizes: bool  # True if a first round, which does not count, sets the number of jobs of the others
    pickups: int
    pickup_rounds: int
    idle_seconds: float
    pinned_seconds: float
    offered_seconds: float
    archived: tuple[int, ...]
    producing_seconds: float

    @property
    def is_quick(self) -> bool:
        return self.name == "quick"


QUICK = Scale(
    name="quick", rounds=2, drain_seconds=1.0, enqueue_seconds=0.5, fetch_seconds=1.0, sizes=False, pickups=100,
    pickup_rounds=1, idle_seconds=5, pinned_seconds=10, offered_seconds=20, archived=(0, 100_000), producing_seconds=4,
)  # fmt: skip
FULL = Scale(
    name="full", rounds=5, drain_seconds=3.5, enqueue_seconds=2.0, fetch_seconds=3.0, sizes=True, pickups=200,
    pickup_rounds=5, idle_seconds=20, pinned_seconds=60, offered_seconds=80,
    archived=(0, 1_000_000, 5_000_000), producing_seconds=10,
)  # fmt: skip


@dataclass(frozen=True)
class Bench:
    servers: Servers
    systems: list[System]
    scale: Scale
    results: Results
    left_out: dict[str, str] = field(default_factory=dict)  # systems and measures that can't be measured here, and why

    def named(self, *names: str) -> list[System]:
        return [system for system in self.systems if system.name in names]

    def able(self, *verbs: str, sqlite: bool = False) -> list[System]:
        """Return the systems that have these verbs."""
        return [
            system
            for system in self.systems
            if (system.store == "sqlite") == sqlite and not system.lacks.intersection(verbs)
        ]
