"""WorkerSettings: checked when they are made, so that a wrong value is an error before anything is claimed."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from rowlock.errors import InvalidInput
from rowlock.runtime.running_board import MOST_SLOTS


class WorkerSettings(Struct, kw_only=True):
    """`lease`: seconds until other workers may rescue the job of a worker that is silent. The worker renews it every
    third of that. `poll`: seconds between two looks for work while the doorbell is silent. `grace`: seconds that
    running jobs get when the worker stops. `cancel_grace`: seconds that a cancelled job gets to end by itself.
    `notice`: seconds that a job gets to end after its timeout. `topics`: None: all that have a handler. `follows`:
    those of `ADOPTED` that were not given here, and so follow the settings in the database."""

    concurrency: int = 10
    topics: tuple[str, ...] | None = None
    lease: float = 30.0
    poll: float = 1.0
    grace: float = 25.0
    cancel_grace: float = 30.0
    notice: float = 5.0
    maintenance: float = 5.0  # seconds between passes
    listen: bool = True  # wait for the doorbell; else only poll
    ahead: float = 0.1  # seconds of work that may be claimed ahead
    recycle_jobs: int = 1000  # a child process is replaced after so many jobs …
    recycle_mib: float = 1024.0  # … or when it has grown beyond this
    follows: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise InvalidInput(name, "out_of_range", f"must be {low:g} to {high:g}, not {value!r:.40}")
        if not isinstance(self.concurrency, int):
            raise InvalidInput("concurrency", "not_an_integer", f"must be a whole number, not {self.concurrency!r:.40}")
        if self.topics is not None and not self.topics:
            raise InvalidInput("topics", "empty", "must name at least one topic, or be left out for all")

    def adopt(self, wanted: Mapping[str, float]) -> list[str]:
        """Take over the values that this worker follows. Return what has changed, as text. A run keeps its lease until
        the next renewal."""
        changed = []
        for name in sorted(self.follows & wanted.keys()):
            if getattr(self, name) != wanted[name]:
                changed.append(f"{name} {getattr(self, name):g} → {wanted[name]:g}")
                setattr(self, name, wanted[name])
        return changed

    @property
    def beat(self) -> float:
        """Return the seconds between two renewals. Two may fail before the lease is in danger."""
        return self.lease / 3

    @property
    def wedged(self) -> float:
        """Return the seconds past its timeout after which a run's lease is not renewed. The executor ends runs long
        before that, unless the event loop is blocked."""
        return max(self.grace, 2 * self.notice + 1.0)

    @property
    def look(self) -> float:
        """Return the seconds between two looks at running jobs. A cancel or a lost lease is noticed within a second."""
        return min(self.poll, 1.0, self.beat) / 2


ADOPTED = frozenset({"concurrency", "lease", "poll"})

_BOUNDS = (
    ("concurrency", 1, MOST_SLOTS),
    ("lease", 0.5, 86_400),
    ("poll", 0.01, 3600),
    ("grace", 0, 86_400),
    ("cancel_grace", 0, 86_400),
    ("notice", 0, 86_400),
    ("maintenance", 0.05, 3600),
    ("ahead", 0, 60),
    ("recycle_jobs", 1, 1_000_000_000),
    ("recycle_mib", 1, 1 << 30),
)
