"""The judge of the suite `schedules`: a correct history passes, and each fault that is planted in it is found."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.schedules_judge import SECOND, Judge, Made, Record, Seen, Version, shown
from tests.proof.history import History, RowChange
from tests.proof.witness import JOBS

BEGIN = 1_800_000_000 * SECOND
HALF = SECOND // 2
EVERY = {"when": {"every": 1.0}, "if_live": "reject"}


class World:
    """A schedule with four decisions: two about one time each, one about five, and one about three paused times."""

    def __init__(self) -> None:
        first = Version("insert", "s", "one", EVERY, BEGIN + HALF, BEGIN + SECOND, BEGIN + HALF, None, None)
        self.versions = [first]
        self.records: list[Record] = []
        self.jobs: list[Made] = []
        self.changes: list[RowChange] = []
        self.decide(1, job=1)
        self.decide(2, job=2)
        self.decide(7, job=7)
        self.change(paused_at=BEGIN + 7 * SECOND + HALF + 1)
        self.decide(10, reason="paused")

    def decide(self, upto: int, *, job: int | None = None, reason: str = "missed") -> None:
        """Decide all times up to this second. The time `job` gets a job, the others get the reason."""
        last = self.versions[-1].upto
        at = BEGIN + upto * SECOND + HALF
        self.change(upto=at, next_run_at=BEGIN + (upto + 1) * SECOND)
        for n in range((last - BEGIN) // SECOND + 1, upto + 1):
            fire_at, job_id = BEGIN + n * SECOND, f"job-{n}" if n == job else None
            self.records.append(
                Record("insert", "s", fire_at, at, "schedule", job_id, None if job_id else reason, None)
            )
            if job_id is not None:
                self.jobs.append(Made(job_id, "s", fire_at, {"at": shown(fire_at)}))
                row = {"id": job_id, "status": "pending", "run_at": fire_at}
                self.changes.append(RowChange(len(self.changes), at, JOBS, "insert", 1, None, row))
                self.changes.append(RowChange(len(self.changes), at, JOBS, "delete", 1, row, None))

    def change(self, **columns: Any) -> None:
        self.versions.append(self.versions[-1]._replace(op="update", **columns))

    def found(self) -> list[str]:
        history = History("sqlite", {})
        history.changes = self.changes
        return [one.text for one in Judge(Seen({"s": self.versions}, self.records, self.jobs), history).violations()]


def lose_a_record(world: World) -> None:
    del world.records[3]


def lose_the_decision(world: World) -> None:
    """Remove the fires and the job of a decision, as if only `upto` had been written."""
    world.records = [one for one in world.records if one.at != BEGIN + 7 * SECOND + HALF]
    world.jobs = [one for one in world.jobs if one.id != "job-7"]
    world.changes = [one for one in world.changes if (one.after or one.before or {})["id"] != "job-7"]


def record_another_time(world: World) -> None:
    world.records.append(world.records[2]._replace(fire_at=BEGIN + 3 * SECOND + 1))


def decide_twice(world: World) -> None:
    world.records.append(world.records[0]._replace(op="update"))


def make_two_jobs(world: World) -> None:
    world.jobs.append(world.jobs[0]._replace(id="job-1b"))


def lose_a_job(world: World) -> None:
    del world.jobs[1]


def make_a_job_of_an_older_time(world: World) -> None:
    """Make a job of an older time, although missed="last" wants only the newest."""
    world.records[2] = world.records[2]._replace(job_id="job-3", reason=None)
    world.jobs.append(Made("job-3", "s", world.records[2].fire_at, {"at": shown(world.records[2].fire_at)}))


def miss_the_newest(world: World) -> None:
    world.records[6] = world.records[6]._replace(job_id=None, reason="missed")
    world.jobs = [one for one in world.jobs if one.id != "job-7"]
    world.changes = [one for one in world.changes if (one.after or one.before or {})["id"] != "job-7"]


def call_a_pause_missed(world: World) -> None:
    world.records[-1] = world.records[-1]._replace(reason="missed")


def go_back(world: World) -> None:
    world.change(upto=world.versions[-2].upto, next_run_at=world.versions[-2].next_run_at)


def look_at_another_time(world: World) -> None:
    world.change(next_run_at=BEGIN + 12 * SECOND)


def let_two_live(world: World) -> None:
    """Remove the end of the first job, so that two jobs are live."""
    del world.changes[1]


def fill_in_another_time(world: World) -> None:
    world.jobs[0].payload["at"] = shown(BEGIN)


def insert_a_stranger(world: World) -> None:
    row = {"id": "stranger", "status": "pending", "run_at": BEGIN}
    world.changes.append(RowChange(99, BEGIN, JOBS, "insert", 1, None, row))


def test_a_right_history_is_right() -> None:
    assert World().found() == []


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lose_a_record, "1 times have no record"),
        (lose_the_decision, "5 times have no record"),
        (record_another_time, "1 records are of no nominal time"),
        (decide_twice, "was decided again"),
        (make_two_jobs, "has 2 jobs"),
        (lose_a_job, "has a record and is not there"),
        (make_a_job_of_an_older_time, "should be missed"),
        (miss_the_newest, "should have a job"),
        (call_a_pause_missed, "should be paused"),
        (go_back, "upto goes back"),
        (look_at_another_time, "the next time is"),
        (let_two_live, "lives beside others"),
        (fill_in_another_time, "for its payload"),
        (insert_a_stranger, "no schedule has a record of it"),
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[World], None], said: str) -> None:
    world = World()
    plant(world)
    assert any(said in text for text in world.found()), world.found()
