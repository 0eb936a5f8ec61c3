"""Check from the witnessed history that limits waste no capacity. While a limit lets a due job start and a worker has a
free slot, this place must not stay idle for longer than `WITHIN` seconds.

Three numbers bound how many jobs of a topic and value may start at once: the jobs that are due and ready, the places in
all their limits, and the free slots of live workers. The smallest of the three is the number of units that wait. A
start takes the unit that has waited longest. Jobs of dead and frozen workers are held until they are rescued, so they
count for their limits until then. Nothing is judged while the suite disturbs the workers, and shortly after.
"""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Any

from tests.proof.history import History, Violation
from tests.proof.lives import DEATHS, Row, is_target
from tests.proof.witness import JOBS, NEVER, RECORDS, WORKERS

WITHIN = 1.0  # seconds that a place may stay idle …
SLACK = 1.0  # … and by which a busy machine may be late
_ENDS = {"stop": "cont", "server kill": "server back"}  # by fault that lasts: the event that ends it

_Key = tuple[str, str | None]  # topic and share
_Counted = tuple[str, str, str | None, str]  # kind, name, field and value


class _Books:
    def __init__(self, history: History) -> None:
        self.limited: dict[str, list[dict[str, Any]]] = {}
        self.due: Counter[_Key] = Counter()
        self.held: Counter[_Counted] = Counter()
        self.busy: Counter[str] = Counter()  # jobs that a worker holds, by its name
        self.starts: defaultdict[_Counted, list[int]] = defaultdict(list)
        self.workers: dict[str, Row] = {}
        self._deaths: dict[str, int] = {}
        offset = int(history.settings.get("monotonic_offset", 0))
        self.faults = [(one.at + offset, one.kind, one.target) for one in history.faults]
        recovery = sum(history.settings.get(name, 0.0) for name in ("lease", "maintenance", "poll"))
        self.disturbed = sorted(
            (at, self._end(at, kind, target) + round(recovery * 1e6))
            for at, kind, target in self.faults
            if kind in DEATHS or kind in _ENDS
        )

    def _end(self, at: int, kind: str, target: str) -> int:
        ends = (
            when
            for when, other, whom in self.faults
            if other == _ENDS.get(kind) and whom in (target, "") and when >= at
        )
        return min(ends, default=at)

    def write(self, table: str, before: Row | None, after: Row | None, at: int) -> Iterator[int]:
        """Return times at which a rate may let another job start."""
        row = after or before or {}
        if table == RECORDS and row["kind"] == "limited":
            self.limited[row["id"]] = [] if after is None else row["data"]["limits"]
        elif table == WORKERS and after is None:
            self.workers.pop(row["name"], None)
        elif table == WORKERS:
            self.workers[row["name"]] = row
        elif table == JOBS:
            for one, number in ((before, -1), (after, 1)):
                if one is not None:
                    self._count(one, number)
            if before is not None and after is not None and after["version"] > before["version"]:
                for limit, counted in self._limits(after):
                    if limit["kind"] == "rate":
                        self.starts[counted].append(at)
                        yield from (at + width for width, _ in _windows(limit))

    def _count(self, row: Row, number: int) -> None:
        if row["locked_until"] is not None:
            self.busy[row["locked_by"]] += number
            for _, counted in self._limits(row):
                self.held[counted] += number
        elif row["ready"] and row["status"] == "pending":
            self.due[row["topic"], row["share"]] += number

    def _limits(self, row: Row) -> Iterator[tuple[dict[str, Any], _Counted]]:
        for limit in self.limited.get(row["topic"], ()):
            by = limit.get("by")
            value = "" if by is None else json.loads(row["share"] or "{}").get(by, "")
            yield limit, (limit["kind"], limit.get("name") or row["topic"], by, value)

    def units(self, at: int) -> dict[_Key, int]:
        """Return how many jobs of each topic and value may start."""
        if any(begun <= at < over for begun, over in self.disturbed):
            return {}
        slots = sum(
            max(0, row["concurrency"] - self.busy[name])
            for name, row in self.workers.items()
            if not row["stopping"] and at < self._death(name)
        )
        return {key: min(slots, due, self._room(key, at)) for key, due in self.due.items() if due > 0}

    def _death(self, worker: str) -> int:
        """Return when the worker was killed, or told to stop."""
        if worker not in self._deaths:
            fatal = (at for at, kind, pid in self.faults if kind in (*DEATHS, "term") and is_target(pid, worker))
            self._deaths[worker] = min(fatal, default=NEVER)
        return self._deaths[worker]

    def _room(self, key: _Key, at: int) -> int:
        room = 1 << 30
        for limit, counted in self._limits({"topic": key[0], "share": key[1]}):
            if limit["kind"] == "concurrency":
                room = min(room, limit["max"] - self.held[counted])
            elif limit["kind"] == "rate":
                starts = self.starts[counted][-limit["max"] :]
                room = min(room, *(most - sum(at - width < one for one in starts) for width, most in _windows(limit)))
        return max(0, room)


def _windows(limit: dict[str, Any]) -> list[tuple[int, int]]:
    length, most, burst = round(limit["per"] * 1e6), limit["max"], limit.get("burst") or limit["max"]
    return [(length, most), (round(length * burst / most), burst)]


def idle(history: History, within: float = WITHIN + SLACK) -> list[Violation]:
    """Return the places that stayed idle for longer than `within` seconds."""
    books = _Books(history)
    found: list[Violation] = []
    waiting: dict[_Key, list[int]] = {}
    later = list(chain.from_iterable(books.disturbed))  # times at which something changes without a write
    heapq.heapify(later)

    def look(at: int) -> None:
        for key, since in waiting.items():
            if since and at - since[0] > within * 1e6:
                seconds = (at - since[0]) / 1e6
                found.append(Violation("S12", None, f"{key}: a place was idle for {seconds:.2f} s, until {at}"))
                since[:] = [at] * len(since)

    def renew(at: int) -> None:
        units = books.units(at)
        for key in waiting.keys() | units.keys():
            since, count = waiting.setdefault(key, []), units.get(key, 0)
            del since[: max(0, len(since) - count)]
            since += [at] * (count - len(since))

    for change in history.changes:
        while later and later[0] <= change.at:
            at = heapq.heappop(later)
            look(at)
            renew(at)
        look(change.at)
        for at in books.write(change.table, change.before, change.after, change.at):
            heapq.heappush(later, at)
        if change.table in (JOBS, WORKERS):
            renew(change.at)
    return found
