"""Every course that a few workers, a few jobs and a few faults can take: see model.py and model_system.py.

A healthy protocol is explored to the end, a sabotaged one until the sabotage shows.
"""

import os
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from msgspec import Struct, structs

from rowlock.core.job import Status, new_job
from rowlock.core.lifecycle import MOVES
from rowlock.core.moves import Rescue
from tests.proof.model import Database, Row, Sabotage, sources
from tests.proof.model_explorer import Explorer, Report
from tests.proof.model_state import Budget, Size
from tests.proof.model_system import System
from tests.stores.harness import claim_by
from tests.stores.reference import Reference

SIZES = {
    "crashes, stalls and lost messages": Size(budget=Budget(crash=1, lose=1, stall=1), hold=2),
    "no retries": Size(budget=Budget(crash=1, lose=2, stall=1, late=1), retries=0),
    "late messages": Size(budget=Budget(crash=1, stall=1, late=1)),
    "cancels": Size(budget=Budget(crash=1, lose=1, stall=1, cancel=1), hold=2),
    "requeues": Size(budget=Budget(crash=1, stall=1, cancel=1, requeue=1)),
    "operators": Size(budget=Budget(stall=1, cancel=1, requeue=1, delete=1, expire=1)),
    "handlers that end otherwise": Size(budget=Budget(stall=1, cancel=1, detour=2), hold=2),
    "progress": Size(budget=Budget(crash=1, stall=1, cancel=1), reports=True),
    "supervisors": Size(budget=Budget(crash=2, lose=1), supervised=True, hold=2),
    "three workers": Size(budget=Budget(crash=1, stall=2), workers=3),
    "two jobs": Size(budget=Budget(crash=1, lose=1), jobs=2),
    "two requests at once": Size(budget=Budget(lose=1), rounds=2, hold=2, in_parts=True),
}
APART = [Budget(crash=1, lose=1), Budget(stall=1), Budget(cancel=1), Budget(late=1)]
if os.environ.get("ROWLOCK_PROOF") == "full":
    APART += [Budget(stall=1, cancel=1), Budget(crash=1, stall=1), Budget(stall=1, late=1)]
    SIZES |= {
        "three workers, two jobs": Size(budget=Budget(crash=1, lose=1, stall=1), jobs=2, workers=3),
        "three workers, all faults": Size(budget=Budget(crash=1, lose=1, late=1, stall=1, cancel=1), workers=3),
        "two of each": Size(budget=Budget(crash=2, lose=2, stall=1, cancel=1, requeue=1)),
        "two jobs, operators": Size(budget=Budget(crash=1, cancel=1, requeue=1), jobs=2),
        "two requests at once, crashes": Size(budget=Budget(crash=1, lose=1), rounds=2, hold=2, in_parts=True),
    }


def explore(name: str, size: Size) -> None:
    report = Explorer(System(size)).explore()
    print(report.line(f"small model, {name}"))
    if report.finding is not None:  # explore again, so that workers and runs keep their numbers in the course
        pytest.fail(str(Explorer(System(size), reduce=False).explore().finding))
    assert report.states > 100  # there was something to see


@pytest.mark.sampled(3)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SIZES)
def test_no_course_breaks_an_invariant(name: str) -> None:
    explore(name, SIZES[name])


# ── Sabotages are found ──


class Case(Struct, frozen=True):
    """`ignoring`: the invariant that forbids the sabotage itself is not checked. Then its consequences must be
    found."""

    sabotage: Sabotage
    breaks: str
    budget: Budget
    ignoring: str = ""
    retries: int = 1
    jobs: int = 1
    rounds: int = 1
    reports: bool = False

    def explore(self, *, reduce: bool = False) -> Report:
        size = Size(
            budget=self.budget,
            retries=self.retries,
            jobs=self.jobs,
            hold=self.rounds,
            rounds=self.rounds,
            in_parts=self.rounds > 1,
            reports=self.reports,
        )
        return Explorer(System(size, self.sabotage, self.ignoring), reduce=reduce).explore()


CASES = [
    Case(Sabotage.SETTLE_ANY_VERSION, "S6", Budget(stall=1)),
    Case(Sabotage.SETTLE_ANY_VERSION, "X1", Budget(stall=1), ignoring="S6"),
    Case(Sabotage.SETTLE_ANY_STATUS, "S3", Budget(cancel=1)),
    Case(Sabotage.BEAT_ANY_VERSION, "S6", Budget(stall=1)),
    Case(Sabotage.BEAT_ANY_VERSION, "S9", Budget(stall=2), ignoring="S6"),
    Case(Sabotage.REPORT_ANY_VERSION, "S6", Budget(stall=1), reports=True),
    Case(Sabotage.RESCUE_IN_TWO_STEPS, "S10", Budget(stall=1)),
    Case(Sabotage.RESCUE_THE_LIVING, "S10", Budget()),
    Case(Sabotage.RESCUE_FORGETS_CANCEL, "S3", Budget(crash=1, cancel=1)),
    Case(Sabotage.RESCUE_CHARGES_ALL, "S9", Budget(crash=1)),
    Case(Sabotage.RESCUE_FORGIVES, "S9", Budget(crash=2)),
    Case(Sabotage.NO_RESCUE, "L1", Budget(crash=1)),
    Case(Sabotage.CLAIM_KEEPS_VERSION, "S4", Budget(crash=1)),
    Case(Sabotage.CLAIM_KEEPS_VERSION, "X2", Budget(stall=1), ignoring="S4"),
    Case(Sabotage.REQUEUE_RESETS_VERSION, "S4", Budget(cancel=1, requeue=1)),
    Case(Sabotage.REQUEUE_RESETS_VERSION, "X2", Budget(cancel=1, requeue=1), ignoring="S4"),
    Case(Sabotage.NO_START_MARK, "S9", Budget(crash=2)),
    Case(Sabotage.JUDGE_BY_STATUS, "X1", Budget(stall=1)),
    Case(Sabotage.LOOK_BACK_AT_ANY_TIME, "X1", Budget(lose=1), jobs=2, rounds=2),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.sabotage}{' - ' * bool(case.ignoring)}{case.ignoring}")
def test_a_sabotage_is_found(case: Case) -> None:
    report = case.explore()
    print(report.line(f"small model, {case.sabotage}"))
    print(report.finding)
    assert report.finding is not None
    assert report.finding.invariant == case.breaks
    assert len(report.finding.course) <= 12  # short enough to be read


WRONG_MOVES = [  # move, change, the invariant that breaks, the events that this takes
    ("claim", {"sources": {Status.PENDING, Status.PROCESSING}}, "X3", Budget()),
    ("claim", {"sources": set()}, "L1", Budget()),
    ("complete", {"fenced": False}, "S6", Budget(stall=1)),
    ("complete", {"sources": {Status.PENDING, Status.PROCESSING, Status.CANCEL_REQUESTED}}, "S6", Budget(stall=1)),
    ("fail", {"sources": {Status.PROCESSING, Status.CANCEL_REQUESTED}}, "S3", Budget(cancel=1)),
    ("cancel", {"sources": {Status.COMPLETED}}, "S7", Budget(cancel=1)),
    ("requeue", {"sources": {Status.PROCESSING}}, "S3", Budget(requeue=1)),
    ("requeue", {"sources": {Status.COMPLETED}}, "S7", Budget(requeue=1)),
    ("rescue", {"sources": {Status.PENDING, Status.CANCEL_REQUESTED}}, "L1", Budget(crash=1)),
]


@pytest.mark.parametrize(("name", "change", "breaks", "budget"), WRONG_MOVES)
def test_a_mistake_in_the_table_of_moves_is_found(
    name: str, change: dict[str, Any], breaks: str, budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MOVES, name, structs.replace(MOVES[name], **change))
    sources.cache_clear()
    try:
        finding = Explorer(System(Size(budget=budget)), reduce=False).explore().finding
    finally:
        sources.cache_clear()
    print(finding)
    assert finding is not None
    assert finding.invariant == breaks


def test_every_sabotage_is_tried() -> None:
    assert {case.sabotage for case in CASES} == set(Sabotage)


# ── It is the right model, and its short version leaves nothing out ──


@pytest.mark.proof
@pytest.mark.parametrize("budget", APART)
def test_what_is_taken_for_the_same_hides_nothing(budget: Budget) -> None:
    """The short version reaches the same rows as the long one, which keeps all steps and names apart."""

    def rows(*, reduce: bool, in_parts: bool) -> set[object]:
        explorer = Explorer(System(Size(budget=budget, in_parts=in_parts)), reduce=reduce)
        assert explorer.explore().finding is None
        return {_gist(row) for state in explorer.states for row in state.jobs}

    assert rows(reduce=True, in_parts=False) == rows(reduce=False, in_parts=True)


def _gist(row: Row) -> object:
    """Return all of the row but its names: the worker and the versions."""
    ended = row.ends[row.version - 1] if row.version else ""
    bits = tuple(bits >> row.version & 1 for bits in (row.began, row.running))
    return row.status, row.retries, row.suspect, row.started > 0, row.expired, ended, bits, row.spared


@pytest.mark.proof
@pytest.mark.parametrize("case", [case for case in CASES if "version" not in case.sabotage or not case.ignoring])
def test_what_is_taken_for_the_same_hides_no_sabotage(case: Case) -> None:
    finding = case.explore(reduce=True).finding
    assert finding is not None
    assert finding.invariant == case.breaks


def test_the_rescue_is_that_of_the_stores() -> None:
    """The model rescues as the reference does, and every store must match the reference."""
    columns = product((Status.PROCESSING, Status.CANCEL_REQUESTED), (True, False), (0, 1, 2), (0, 1), (True, False))
    for status, started, retries, crashes, named in columns:
        reference = Reference(datetime(2026, 1, 1, tzinfo=UTC))
        reference.insert([new_job("0193fb1e-0000-7000-8000-000000000000", "mail", max_retries=2)])
        [job] = reference.claim(structs.replace(claim_by(), start=started)).jobs
        job = structs.replace(job, status=status, retries=retries, crashes=crashes)
        reference.rows[job.id] = structs.replace(reference.rows[job.id], job=job)
        reference.now += timedelta(days=1)
        [rescued] = reference.move_due(Rescue(by="m", backoff=[1.0], workers=[job.locked_by or ""] if named else None))
        expected = reference.rows[job.id].job

        row = Row(status.value, 1, retries, crashes > 0, int(started), True, 0, ("",), charged=retries)
        after = Database(2).rescue(row, named=named)
        assert (after.status, after.retries, after.suspect) == (expected.status, expected.retries, expected.crashes > 0)
        assert after.charged - row.charged == rescued.charged
