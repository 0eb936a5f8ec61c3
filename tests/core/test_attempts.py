"""Job.attempts: the runs that a job was charged for, and its current run."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rowlock.core.job import Status
from tests.core.test_lifecycle import a_job

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "columns", "attempts"),
    [
        (Status.PENDING, {"version": 0}, 0),
        (Status.PENDING, {"version": 7}, 0),  # snoozed, given back or resumed: not charged
        (Status.PENDING, {"version": 2, "retries": 2}, 2),
        (Status.BLOCKED, {"retries": 1}, 1),
        (Status.PROCESSING, {"version": 9}, 1),
        (Status.PROCESSING, {"version": 9, "retries": 2}, 3),
        (Status.WAITING, {"version": 9, "retries": 2}, 3),
        (Status.CANCEL_REQUESTED, {"retries": 1}, 2),
        (Status.COMPLETED, {"version": 9}, 1),
        (Status.FAILED, {"retries": 3, "max_retries": 3}, 4),
        (Status.EXPIRED, {"started_at": None}, 0),
        (Status.EXPIRED, {"started_at": NOW, "retries": 3}, 4),  # its last run has crashed
        (Status.CANCELLED, {"retries": 1, "cancel_requested_at": NOW, "finished_at": NOW}, 1),  # before another run
        (Status.CANCELLED, {"cancel_requested_at": NOW, "finished_at": NOW + timedelta(microseconds=1)}, 1),
        (Status.CANCELLED, {"cancel_requested_at": None, "finished_at": NOW}, 1),  # cancelled by its handler
    ],
)
def test_attempts_are_charged_executions_and_the_current_one(
    status: Status, columns: dict[str, Any], attempts: int
) -> None:
    assert a_job(status, **columns).attempts == attempts
