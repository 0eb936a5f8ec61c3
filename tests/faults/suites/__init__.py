"""Suites. Each gets a folder, a seed, the kind of database and a scale, and returns a result."""

from pathlib import Path

from msgspec import Struct

from tests.faults.results import Result
from tests.faults.scale import Scale

BOTH = ("sqlite", "postgres")
POSTGRES = ("postgres",)
SQLITE = ("sqlite",)
ONCE = ("all",)
"""For suites that see to all databases by themselves, or to none."""


class Cell(Struct, frozen=True):
    """One suite on one database. Its folder is empty, and no other cell uses it."""

    suite: str
    store: str
    seed: int
    folder: Path
    scale: Scale

    def result(self, **figures: float) -> Result:
        return Result(self.suite, self.store, self.seed, figures=figures)


class Suite(Struct, frozen=True):
    module: str
    """In this package; it has `async def run(cell: Cell) -> Result`."""
    stores: tuple[str, ...] = BOTH
    why_not: str = "there is no server"
    """Why it has no place on the other database."""

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the stores of its cells: there it runs, or reports why not."""
        return ONCE if self.stores == ONCE else BOTH
