"""explain(): every status, and everything that can keep a pending job from running."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from rowlock.client.why import Why, explain, is_live, spell_seconds
from rowlock.core.job import Job, Status, new_job
from rowlock.stores.base import Pause, WorkerInfo
from tests.stores.harness import info
from tests.stores.reference import Reference

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def ahead(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def job(**fields: Any) -> Job:
    """Return a job that was enqueued a minute ago, with these fields changed."""
    reference = Reference(ago(60))
    [made] = reference.insert([new_job("0193fb1e-0000-7000-8000-000000000007", "mail")])
    return structs.replace(reference.rows[made.id].job, **fields)


def worker(name: str = "w1", **fields: Any) -> WorkerInfo:
    return info(name, **{"topics": ("mail",), "started": ago(3600), "seen": ago(5)} | fields)


def why(pause: Pause | None = None, workers: tuple[WorkerInfo, ...] = (worker(),), **fields: Any) -> Why:
    return explain(job(**fields), NOW, pause, workers)


PAUSE = Pause("mail", ago(120), None, "provider is down", "ann")


def test_a_job_that_is_due_waits_in_line() -> None:
    answer = why(workers=(worker(running=9), worker("w2")))
    assert answer == Why("in_line", "It waits in line: 2 live workers know mail, with 11 of 20 slots free.", [])


def test_all_slots_are_busy() -> None:
    answer = why(workers=(worker(running=10),))
    assert answer.answer == "It waits in line: 1 live worker knows mail, and all 10 slots are busy."
    assert "its one slot is busy" in why(workers=(worker(running=1, concurrency=1),)).answer
    assert why(workers=(worker(running=10), worker("w2", running=12))).code == "busy"


def test_a_worker_that_is_over_its_slots_has_no_less_than_none_free() -> None:
    assert why(workers=(worker(running=12), worker("w2", running=9))).code == "in_line"


def test_a_job_of_the_future() -> None:
    answer = why(run_at=ahead(7200))
    assert (answer.code, answer.answer) == ("due_later", "It is not due before 2026-05-01T14:00:00Z (in 2 h).")


def test_a_job_that_failed_waits_for_its_next_try() -> None:
    error = "Traceback (most recent call last):\n  …\nValueError: no such address\n"
    answer = why(run_at=ahead(60), retries=1, last_error=error)
    assert answer.code == "backoff"
    assert "retry 1 of 3 is due at 2026-05-01T12:01:00Z (in 1 min)" in answer.answer
    assert answer.details == ["It has used 1 of 3 retries.", "Its last error: ValueError: no such address"]


def test_a_job_that_nobody_started_in_time() -> None:
    assert why(expires_at=ago(1)).code == "expiring"
    assert why(expires_at=ahead(1)).code == "in_line"


def test_a_paused_topic_says_who_and_why() -> None:
    answer = why(PAUSE)
    assert answer.code == "paused"
    assert "paused by ann at 2026-05-01T11:58:00Z (2 min ago): provider is down" in answer.answer


def test_a_pause_ends_by_itself() -> None:
    assert "until 2026-05-01T13:00:00Z (in 1 h)" in why(Pause("mail", ago(9), ahead(3600), None, "ann")).answer
    assert why(Pause("mail", ago(9), NOW, None, "ann")).code == "in_line"


def test_what_else_stands_in_the_way_is_told_too() -> None:
    answer = why(PAUSE, (), run_at=ahead(60))
    assert answer.code == "due_later"
    assert [detail.split()[1] for detail in answer.details] == ["Topic", "No"]
    assert why(PAUSE, run_at=ahead(60)).details[1:] == []  # workers that could take the job are not named


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        ((), "No worker is running"),
        ((worker(topics=("bills", "reports")),), "those that live run bills, reports."),
        ((worker(seen=ago(31)),), "w1 was last seen at 2026-05-01T11:59:29Z (31 s ago)"),
        ((worker(seen=None),), "w1 was never seen"),
        ((worker(stopping=True),), "w1 is stopping"),
        ((worker(topics=("bills",), seen=ago(31)),), "No worker is running"),
        ((worker(topics=tuple(f"t{n}" for n in range(11))),), "t8, …"),
    ],
)
def test_no_worker_that_could_take_it(workers: tuple[WorkerInfo, ...], says: str) -> None:
    answer = why(workers=workers)
    assert answer.code == "no_worker"
    assert says in answer.answer


def test_a_worker_is_live_within_its_own_lease() -> None:
    assert is_live(worker(seen=ago(30)), NOW)
    assert not is_live(worker(seen=ago(30.001)), NOW)
    assert is_live(worker(seen=ago(200), lease=300.0), NOW)


def test_a_suspect_says_so() -> None:
    assert why(crashes=2).details == ["2 workers died or vanished while holding it, so it is run alone."]


HELD: dict[str, Any] = {
    "status": Status.PROCESSING,
    "version": 1,
    "locked_by": "w1",
    "locked_until": ahead(20),
    "claimed_at": ago(10),
    "started_at": ago(10),
}


def test_a_running_job_names_its_worker_and_lease() -> None:
    answer = why(**HELD, progress=42.0, stage="embedding")
    assert (answer.code, answer.answer) == ("running", "It is running on w1 since 2026-05-01T11:59:50Z (10 s ago).")
    assert answer.details == [
        "The lease of w1 holds until 2026-05-01T12:00:20Z (in 20 s), and is renewed.",
        "Its progress: 42 %, embedding.",
    ]


def test_a_run_past_its_timeout() -> None:
    assert "It is past its timeout of 5 s." in why(**HELD, timeout=5.0).details


def test_a_job_that_was_claimed_ahead() -> None:
    assert why(**{**HELD, "started_at": None}).code == "claimed"


def test_a_holder_that_is_not_heard_of() -> None:
    assert why(workers=(), **HELD).details[-1] == "Worker w1 is not in the register of workers."
    assert "w1 was last seen" in why(workers=(worker(seen=ago(40)),), **HELD).details[-1]


def test_a_lease_that_ran_out() -> None:
    late = {**HELD, "locked_until": NOW}
    assert why(workers=(worker("w2"),), **late).code == "lease_expired"
    assert why(workers=(), **late).answer.endswith("no live worker is there to take it back: start one.")


def test_a_cancel_that_is_not_acknowledged_yet() -> None:
    fields = HELD | {
        "status": Status.CANCEL_REQUESTED,
        "cancel_requested_at": ago(3),
        "cancel_reason": "a mistake",
    }
    answer = why(**fields)
    assert answer.code == "cancel_requested"
    assert "at 2026-05-01T11:59:57Z (3 s ago) (a mistake); worker w1 has to acknowledge it" in answer.answer


@pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED, Status.CANCELLED])
def test_an_ended_job_says_how_to_run_it_again(status: Status) -> None:
    answer = why(status=status, finished_at=ago(60), last_error="RuntimeError: no")
    assert answer.code == status.value
    assert f"{status.value} at 2026-05-01T11:59:00Z (1 min ago)" in answer.answer
    assert answer.details[-1].startswith("To run it again: rowlock jobs requeue 0193fb1e")


def test_a_completed_job_needs_nothing() -> None:
    assert why(status=Status.COMPLETED, finished_at=ago(60)).details == []


@pytest.mark.parametrize("status", Status)
def test_every_status_has_an_answer_also_with_nothing_known(status: Status) -> None:
    answer = explain(job(status=status, locked_by="w1"), NOW, None, ())
    assert answer.answer.endswith(".")
    assert "None" not in answer.answer


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0 ms"), (0.25, "250 ms"), (1, "1 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3600, "1 h"),
        (7230, "2 h"), (90_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_lengths_of_time_are_spelled(seconds: float, words: str) -> None:
    assert spell_seconds(seconds) == words
