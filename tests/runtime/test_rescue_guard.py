"""When a worker may rescue the jobs of other workers."""

from datetime import UTC, datetime, timedelta

from rowlock.runtime.rescue_guard import RescueGuard

START = datetime(2026, 1, 1, tzinfo=UTC)


def clock(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def steady(guard: RescueGuard, start: float, end: float, step: float = 5.0) -> RescueGuard:
    at = start
    while at <= end:
        guard.contact(at, at, clock(at))
        at += step
    return guard


def test_nobody_rescues_before_an_interval_of_heartbeats() -> None:
    guard = RescueGuard(10.0)
    assert guard.wait(0.0, 0.0) > 0
    steady(guard, 0.0, 5.0)
    assert guard.wait(9.0, 0.0) > 0
    steady(guard, 10.0, 10.0)
    assert guard.wait(10.0, 0.0) <= 0


def test_others_may_beat_more_slowly() -> None:
    guard = steady(RescueGuard(10.0), 0.0, 15.0)
    assert guard.wait(15.0, 20.0) > 0
    steady(guard, 20.0, 20.0)
    assert guard.wait(20.0, 20.0) <= 0


def test_a_failed_heartbeat_starts_anew() -> None:
    guard = steady(RescueGuard(10.0), 0.0, 20.0)
    assert guard.wait(20.0, 0.0) <= 0
    guard.broken()
    assert guard.wait(21.0, 0.0) > 0
    steady(guard, 22.0, 27.0)
    assert guard.wait(27.0, 0.0) > 0
    steady(guard, 32.0, 32.0)
    assert guard.wait(32.0, 0.0) <= 0


def test_a_process_that_slept_starts_anew() -> None:
    guard = steady(RescueGuard(10.0), 0.0, 20.0)
    assert guard.wait(60.0, 0.0) > 0  # no contact for too long
    guard.contact(60.0, 60.0, clock(60.0))
    assert guard.wait(60.0, 0.0) > 0
    steady(guard, 65.0, 70.0)
    assert guard.wait(70.0, 0.0) <= 0


def test_a_clock_that_jumps_ahead_starts_anew() -> None:
    guard = steady(RescueGuard(10.0), 0.0, 20.0)
    guard.contact(25.0, 25.0, clock(25.0 + 3600))
    assert guard.wait(25.0, 0.0) > 0
    guard.contact(30.0, 30.0, clock(30.0 + 3600))
    guard.contact(35.0, 35.0, clock(35.0 + 3600))
    assert guard.wait(35.0, 0.0) <= 0


def test_a_clock_that_falls_back_harms_nobody() -> None:
    guard = steady(RescueGuard(10.0), 0.0, 20.0)
    guard.contact(25.0, 25.0, clock(25.0 - 3600))
    assert guard.wait(25.0, 0.0) <= 0


def test_a_slow_answer_is_no_jump() -> None:
    guard = steady(RescueGuard(10.0), 0.0, 15.0)
    guard.contact(20.0, 24.0, clock(23.9))
    assert guard.wait(20.0, 0.0) <= 0


def test_a_very_slow_answer_is_a_gap() -> None:
    """The other workers could not renew their leases in that time either."""
    guard = steady(RescueGuard(10.0), 0.0, 15.0)
    guard.contact(20.0, 60.0, clock(60.0))
    assert guard.wait(60.0, 0.0) > 0
    steady(guard, 65.0, 70.0)
    assert guard.wait(70.0, 0.0) <= 0


def test_it_tells_how_long_to_wait() -> None:
    guard = RescueGuard(10.0)
    assert guard.wait(0.0, 20.0) == 20.0
    steady(guard, 0.0, 5.0)
    assert (guard.wait(6.0, 0.0), guard.wait(6.0, 20.0)) == (4.0, 14.0)
