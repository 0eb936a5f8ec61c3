"""MOVES, decide and judge: each entry of the tables."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rowlock.core.job import HELD, LIVE, MAX_DELAY, Job, Status, new_job
from rowlock.core.lifecycle import (
    LOST,
    MAX_HISTORY_ERROR,
    MOVES,
    Answer,
    Completed,
    Failed,
    GaveUp,
    Outcome,
    Released,
    Snoozed,
    Standing,
    StepRetry,
    TimedOut,
    Transition,
    Verdict,
    Waits,
    decide,
    ended_by,
    judge,
)
from rowlock.core.retry import (
    DEFAULT_RETRY,
    FINAL,
    Delays,
    Exponential,
    Quadratic,
    RetryPolicy,
    backoff_table,
    kept_table,
    retry_delay,
)
from rowlock.errors import InvalidInput
from tests.stores.harness import claim_by
from tests.stores.reference import Reference

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_job(status: Status = Status.PROCESSING, **columns: Any) -> Job:
    reference = Reference(NOW)
    reference.insert([new_job("0193fb1e-0000-7000-8000-000000000000", "mail")])
    [job] = reference.claim(claim_by()).jobs
    return structs.replace(job, status=status, **columns)


# ── MOVES ──


def test_every_status_can_be_reached_and_left() -> None:
    reached = {status for move in MOVES.values() for status in move.targets}
    left = {status for move in MOVES.values() for status in move.sources}
    assert reached == left == set(Status)


def test_workers_are_fenced_except_when_they_claim() -> None:
    """Senders of signals and callbacks know no version. The row lock and the status guard these moves."""
    assert {name for name, move in MOVES.items() if move.fenced} == {
        name for name, move in MOVES.items() if move.by == "worker" and name != "claim"
    }


def test_only_held_jobs_can_be_written_by_workers() -> None:
    for name, move in MOVES.items():
        if move.fenced and move.by == "worker":
            assert move.sources <= HELD, name


def test_nothing_but_requeue_brings_a_finished_job_back() -> None:
    """The requeue of a job of a flow also brings back the jobs that it has stopped, by the move `block`."""
    finished = set(Status) - LIVE
    back = {name for name, move in MOVES.items() if move.sources & finished and move.targets & LIVE}
    assert back == {"requeue", "block"}
    assert MOVES["block"].sources == {Status.CANCELLED}
    assert Status.COMPLETED not in MOVES["requeue"].sources


def test_a_cancel_request_only_ends() -> None:
    """The status ends or stays. It stays for the last run of a waiting job: `cancel_wait` makes the job claimable,
    `claim` takes it."""
    ends = {Status.CANCELLED, Status.COMPLETED}
    stays = ("heartbeat", "progress", "checkpoint", "rescue", "claim", "cancel_wait")
    for name, move in MOVES.items():
        if Status.CANCEL_REQUESTED in move.sources and name not in stays:
            assert move.targets <= ends, name
    assert MOVES["cancel_wait"].targets == {Status.CANCEL_REQUESTED}


def test_only_a_signal_or_time_or_an_operator_ends_a_wait() -> None:
    ends = {name for name, move in MOVES.items() if Status.WAITING in move.sources and move.targets - {Status.WAITING}}
    assert ends == {"resume", "wake", "signal", "cancel", "replace"}


# ── decide ──

# outcome, then (event, status) of a job: with retries left, without retries left, with a cancel requested
RETRY, DEAD, CANCELLED = ("retried", "pending"), ("failed", "failed"), ("cancelled", "cancelled")
DONE, LATER, BACK = ("completed", "completed"), ("snoozed", "pending"), ("released", "pending")
STEP = ("step_retried", "pending")
WAIT, LAST = ("waited", "waiting"), ("wait_cancelled", "cancel_requested")
DECISIONS: list[tuple[Outcome, tuple[str, str], tuple[str, str], tuple[str, str]]] = [
    (Completed(), DONE, DONE, DONE),
    (Completed({"a": 1}), DONE, DONE, DONE),
    (Completed({1, 2}), DEAD, DEAD, CANCELLED),
    (Completed({"a": nan}), DEAD, DEAD, CANCELLED),
    (Failed("boom"), RETRY, DEAD, CANCELLED),
    (Failed("boom", exception=ValueError("boom")), RETRY, DEAD, CANCELLED),
    (Failed("boom", final=True), DEAD, DEAD, CANCELLED),
    (TimedOut(5.0), RETRY, DEAD, CANCELLED),
    (StepRetry(5.0, "boom", "fetch"), STEP, STEP, CANCELLED),
    (Snoozed(5.0), LATER, LATER, CANCELLED),
    (Snoozed(NOW), LATER, LATER, CANCELLED),
    (Released(), BACK, BACK, CANCELLED),
    (GaveUp(), CANCELLED, CANCELLED, CANCELLED),
    (GaveUp("why"), CANCELLED, CANCELLED, CANCELLED),
    (Waits("sleep", 5.0, 0), WAIT, WAIT, CANCELLED),
    (Waits("signal:go", None, 3), WAIT, WAIT, CANCELLED),
    (Waits("signal:go", None, 3, undoes=True), WAIT, WAIT, LAST),
]


@pytest.mark.parametrize(("outcome", "left", "none_left", "asked"), DECISIONS, ids=[repr(d[0]) for d in DECISIONS])
@pytest.mark.parametrize("ran", [None, 0.0, 2.5])
def test_decide(
    outcome: Outcome, left: tuple[str, str], none_left: tuple[str, str], asked: tuple[str, str], ran: float | None
) -> None:
    asking = a_job(Status.CANCEL_REQUESTED)
    for job, (event, status) in (
        (a_job(), left),
        (a_job(retries=2), left),
        (a_job(retries=3), none_left),
        (a_job(retries=4), none_left),
        (a_job(max_retries=0), none_left),
        (asking, asked),
        (structs.replace(asking, retries=3), asked),
    ):
        to = decide(job, outcome, NOW, ran=ran)
        assert (to.event, to.status) == (event, status)
        assert to.ran == ran
        assert to.retries == (job.retries + 1 if event == "retried" else None)
        assert to.from_cancel_requested == (status in ("completed", "cancelled", "cancel_requested"))
        legal = [m for m in MOVES.values() if m.by == "worker" and event in m.events and job.status in m.sources]
        assert len(legal) == 1
        assert to.status in legal[0].targets


def test_the_default_retry_is_quadratic() -> None:
    assert [decide(a_job(retries=n), Failed("x"), NOW).delay for n in range(3)] == [60.0, 240.0, 540.0]


def test_what_each_decision_carries() -> None:
    assert decide(a_job(), Completed({"b": 1}), NOW) == Transition(
        event="completed", status=Status.COMPLETED, result='{"b":1}'
    )
    assert decide(a_job(), Completed(), NOW).result is None
    assert decide(a_job(), Failed("bo\0om"), NOW).error == "bo\N{REPLACEMENT CHARACTER}om"
    assert decide(a_job(retries=3), Failed("boom"), NOW).error == "Max retries exceeded: boom"
    again = decide(a_job(retries=3), StepRetry(5.0, "bo\0om", "fetch\0"), NOW)
    assert (again.delay, again.error, again.reason) == (
        5.0,
        "bo\N{REPLACEMENT CHARACTER}om",
        "fetch\N{REPLACEMENT CHARACTER}",
    )
    assert decide(a_job(), StepRetry(nan, "boom", "fetch"), NOW).delay == 0.0
    assert decide(a_job(retries=3), Failed("boom", final=True), NOW).error == "boom"
    timed_out = decide(a_job(retries=3), TimedOut(5.0), NOW).error
    assert timed_out == "Max retries exceeded: Timed out: the handler ran for more than 5 s"
    assert decide(a_job(), Released("deploy"), NOW) == Transition(
        event="released", status=Status.PENDING, delay=None, reason="deploy"
    )
    assert decide(a_job(), GaveUp("a\0"), NOW).reason == "a\N{REPLACEMENT CHARACTER}"
    unfit = decide(a_job(), Completed({"a": [nan]}), NOW)
    assert unfit.error is not None
    assert "result.a[0]" in unfit.error
    assert unfit.result is None
    assert decide(a_job(Status.CANCEL_REQUESTED), Failed("boom"), NOW).error == "boom"


@pytest.mark.parametrize(
    ("until", "delay"),
    [
        (5.0, 5.0),
        (0, 0.0),
        (-5.0, 0.0),
        (nan, 0.0),
        (inf, MAX_DELAY),
        (NOW + timedelta(seconds=7), 7.0),
        (NOW - timedelta(seconds=7), 0.0),
        (datetime.max.replace(tzinfo=UTC), MAX_DELAY),
    ],
)
def test_snoozes(until: float | datetime, delay: float) -> None:
    assert decide(a_job(), Snoozed(until), NOW).delay == delay


@pytest.mark.parametrize(
    ("seconds", "delay"), [(5.0, 5.0), (0.0, 0.0), (-5.0, 0.0), (nan, 0.0), (inf, MAX_DELAY), (None, None)]
)
def test_waits(seconds: float | None, delay: float | None) -> None:
    to = decide(a_job(retries=3), Waits("signal:go", seconds, 7), NOW, ran=1.0)
    assert to == Transition(event="waited", status=Status.WAITING, delay=delay, ran=1.0, waits_for="signal:go", seen=7)
    assert to.entry(2)["waits_for"] == "signal:go"


def test_a_huge_error_is_kept_within_bounds() -> None:
    to = decide(a_job(retries=3), Failed("x" * 3_000_000), NOW)
    assert to.error is not None
    assert len(to.error.encode()) <= 1 << 20
    assert to.error.startswith("Max retries exceeded: ")
    assert len(to.entry(1)["error"].encode()) <= MAX_HISTORY_ERROR


def test_the_entry_leaves_nothing_in_it_that_is_not_known() -> None:
    assert Transition(event="snoozed", status=Status.PENDING).entry(3) == {
        "event": "snoozed",
        "status": "pending",
        "version": 3,
    }
    full = Transition(event="retried", status=Status.PENDING, delay=2.0, error="e", reason="r")
    assert full.entry(3) == {
        "event": "retried",
        "status": "pending",
        "version": 3,
        "delay": 2.0,
        "error": "e",
        "reason": "r",
    }


# ── judge ──

JUDGEMENTS: list[tuple[Standing | None, Verdict]] = [  # of run 2, which tried to settle "retried"
    (None, LOST),
    (Standing(Status.PENDING, 2, "retried"), Verdict(Answer.ALREADY, Status.PENDING)),
    (Standing(Status.PROCESSING, 3, "retried"), Verdict(Answer.ALREADY, Status.PROCESSING)),
    (Standing(Status.COMPLETED, 5, "retried"), Verdict(Answer.ALREADY, Status.COMPLETED)),
    (Standing(Status.PENDING, 2, "rescued"), LOST),
    (Standing(Status.PENDING, 2, None), LOST),
    (Standing(Status.PROCESSING, 3, "rescued"), LOST),
    (Standing(Status.PROCESSING, 3, None), LOST),
    (Standing(Status.PROCESSING, 1, None), LOST),
    (Standing(Status.COMPLETED, 2, "completed"), LOST),
    (Standing(Status.CANCELLED, 2, "cancel_timed_out"), LOST),
    (Standing(Status.CANCEL_REQUESTED, 2, None, "A"), Verdict(Answer.CHANGED, Status.CANCEL_REQUESTED)),
    (Standing(Status.PROCESSING, 2, None, "A"), Verdict(Answer.CHANGED, Status.PROCESSING)),
    (Standing(Status.CANCEL_REQUESTED, 3, None, "A"), LOST),
]


def test_judge_without_a_lease() -> None:
    """A cancelled waiting job has no lease, but still the version of its last run, which is over."""
    assert judge(2, "retried", Standing(Status.CANCEL_REQUESTED, 2, None)) == LOST
    assert judge(2, "retried", Standing(Status.CANCEL_REQUESTED, 2, "waited")) == LOST
    already = Verdict(Answer.ALREADY, Status.CANCEL_REQUESTED)
    assert judge(2, "waited", Standing(Status.CANCEL_REQUESTED, 2, "waited")) == already


@pytest.mark.parametrize(("standing", "verdict"), JUDGEMENTS, ids=[repr(j[0]) for j in JUDGEMENTS])
def test_judge(standing: Standing | None, verdict: Verdict) -> None:
    assert judge(2, "retried", standing) == verdict
    if standing is not None:
        ours = structs.replace(standing, worker="A")
        assert judge(2, "retried", ours, "A") == verdict
        if verdict.answer is Answer.CHANGED:  # the run is open, but belongs to another worker
            assert judge(2, "retried", ours, "B") == LOST


def test_ended_by() -> None:
    history: list[dict[str, Any]] = [
        {"event": "rescued", "version": 1, "claimed_at": 1},
        {"event": "updated", "version": 1},
        {"event": "cancel_requested", "version": 2},
        {"event": "cancelled", "version": 2, "claimed_at": 2},
        {"event": "requeued", "version": 2},
    ]
    assert ended_by(1, Status.PENDING, 2, history) == "rescued"
    assert ended_by(2, Status.PENDING, 2, history) == "cancelled"
    assert ended_by(3, Status.PROCESSING, 3, history) is None
    assert ended_by(3, Status.COMPLETED, 3, history) == "completed"
    assert ended_by(2, Status.COMPLETED, 3, history) == "cancelled"
    assert ended_by(1, Status.PENDING, 0, []) is None


def test_ended_by_looks_at_the_worker_too() -> None:
    history: list[dict[str, Any]] = [
        {"event": "released", "version": 1, "claimed_at": 1, "by": "A"},
        {"event": "rescued", "version": 2, "claimed_at": 2, "by": "A", "worker": "B"},
    ]
    assert ended_by(1, Status.PENDING, 2, history, "A") == "released"
    assert ended_by(1, Status.PENDING, 2, history, "B") is None
    assert ended_by(2, Status.PENDING, 2, history, "B") == "rescued"
    assert ended_by(2, Status.PENDING, 2, history, "A") is None  # A took the job away, but was not its worker
    assert ended_by(3, Status.COMPLETED, 3, history, "C", "C") == "completed"
    assert ended_by(3, Status.COMPLETED, 3, history, "A", "C") is None


# ── Retry policies ──


def test_lists_repeat_their_last_entry() -> None:
    policy = Delays((1.0, 5.0))
    assert [retry_delay(policy, a_job(retries=n), "x", 0.5) for n in range(4)] == [1.0, 5.0, 5.0, 5.0]


def test_exponential() -> None:
    policy = Exponential(base=2.0, factor=3.0, cap=50.0, jitter=0.5)
    assert [retry_delay(policy, a_job(retries=n), "x", 0.0) for n in range(4)] == [2.0, 6.0, 18.0, 50.0]
    assert [retry_delay(policy, a_job(retries=n), "x", 1.0) for n in range(4)] == [1.0, 3.0, 9.0, 25.0]
    assert retry_delay(policy, a_job(retries=999_999), "x", 0.0) == 50.0


def test_no_policy_waits_longer_than_allowed() -> None:
    for policy in (Quadratic(unit=MAX_DELAY), Exponential(cap=MAX_DELAY, factor=1e6), lambda job, error: 1e300):
        assert retry_delay(policy, a_job(retries=1000), "x", 0.0) == MAX_DELAY


def test_backoff_table() -> None:
    assert backoff_table(Quadratic(), rows=3) == [60.0, 240.0, 540.0]
    assert backoff_table(Delays((1.0, 2.0)), rows=4) == [1.0, 2.0, 2.0, 2.0]
    assert backoff_table(Quadratic(unit=MAX_DELAY), rows=2) == [MAX_DELAY, MAX_DELAY]


_numbers = st.floats(0.0, 2 * MAX_DELAY)
_policies = (
    st.builds(Quadratic, _numbers)
    | st.builds(Delays, st.lists(st.integers(0, 9) | st.floats(0.0, MAX_DELAY), min_size=1, max_size=40).map(tuple))
    | st.builds(Exponential, st.floats(0.0, 9.0), st.floats(1.0, 9.0), st.floats(0.0, 9999.0), st.floats(0.0, 1.0))
)


@given(_policies, st.integers(1, 32))
def test_the_table_that_is_kept_with_a_topic_says_what_the_policy_says(policy: RetryPolicy, retries: int) -> None:
    table = kept_table(policy)
    if table is None:
        assert policy == DEFAULT_RETRY
    else:
        assert table[min(retries, len(table)) - 1] == backoff_table(policy)[retries - 1]  # type: ignore[arg-type]
        assert len(table) == 1 or table[-1] != table[-2]


def test_what_can_not_be_kept_is_the_default() -> None:
    assert kept_table(lambda job, error: 1.0) is None
    assert kept_table(Quadratic()) is None
    assert kept_table(Quadratic(nan)) is None
    assert kept_table(Quadratic(-1.0)) is None
    assert kept_table(Delays((1, 1, 1))) == [1.0]


@pytest.mark.parametrize(
    ("make", "field", "code"),
    [
        (lambda: Delays(()), "backoff", "empty"),
        (lambda: Delays((1.0, -1.0)), "backoff[1]", "out_of_range"),
        (lambda: Delays((nan,)), "backoff[0]", "out_of_range"),
        (lambda: Delays((inf,)), "backoff[0]", "out_of_range"),
        (lambda: Exponential(base=-1), "backoff.base", "out_of_range"),
        (lambda: Exponential(factor=0.5), "backoff.factor", "out_of_range"),
        (lambda: Exponential(cap=inf), "backoff.cap", "out_of_range"),
        (lambda: Exponential(jitter=1.5), "backoff.jitter", "out_of_range"),
        (lambda: Exponential(jitter=nan), "backoff.jitter", "out_of_range"),
    ],
)
def test_bad_policies(make: Callable[[], object], field: str, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert (caught.value.field, caught.value.code) == (field, code)


def test_a_callable_sees_the_job_and_the_exception() -> None:
    seen: list[tuple[Job, BaseException | str]] = []

    def policy(job: Job, error: BaseException | str) -> float:
        seen.append((job, error))
        return 7

    job, boom = a_job(), ValueError("boom")
    assert decide(job, Failed("trace", exception=boom), NOW, retry=policy).delay == 7.0
    assert decide(job, Failed("trace"), NOW, retry=policy).delay == 7.0
    assert decide(job, TimedOut(5.0), NOW, retry=policy).delay == 7.0
    assert seen == [(job, boom), (job, "trace"), (job, "Timed out: the handler ran for more than 5 s")]


def test_a_callable_may_say_final() -> None:
    to = decide(a_job(), Failed("boom"), NOW, retry=lambda job, error: FINAL)
    assert (to.event, to.status, to.retries, to.error) == ("failed", Status.FAILED, None, "boom")


def raises(job: Job, error: BaseException | str) -> float:
    raise RuntimeError("a bug in the policy")


@pytest.mark.parametrize("answer", [nan, inf, -1, None, "soon", [], 10**400])
def test_a_callable_that_answers_nonsense_costs_no_retry(answer: Any) -> None:
    to = decide(a_job(retries=1), Failed("boom"), NOW, retry=lambda job, error: answer)
    assert (to.event, to.retries, to.delay) == ("retried", 2, 240.0)


def test_a_callable_that_raises_costs_no_retry() -> None:
    to = decide(a_job(retries=1), Failed("boom"), NOW, retry=raises)
    assert (to.event, to.retries, to.delay, to.error) == ("retried", 2, 240.0, "boom")


def test_a_callable_is_not_asked_when_no_retry_is_left() -> None:
    assert decide(a_job(retries=3), Failed("boom"), NOW, retry=raises).event == "failed"


@pytest.mark.parametrize(
    ("until", "delay"),
    [
        (timedelta(minutes=1), 60.0),
        ((NOW + timedelta(minutes=1)).replace(tzinfo=None), 60.0),  # a naive time is read as UTC
        (float("nan"), 0.0),
        (float("inf"), MAX_DELAY),
    ],
)
def test_a_snooze_in_any_form(until: Any, delay: float) -> None:
    assert decide(a_job(), Snoozed(until), NOW).delay == delay


@pytest.mark.parametrize("until", ["5 minutes", None, object()])
def test_a_snooze_that_makes_no_sense_fails_the_job(until: Any) -> None:
    transition = decide(a_job(), Snoozed(until), NOW)
    assert transition.status is Status.FAILED
    assert "can't snooze" in str(transition.error)
