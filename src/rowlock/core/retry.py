"""Retry policies: when a failed job runs again. Pure: the random number for jitter is an argument."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Final as Constant

from msgspec import Struct

from rowlock.core.job import MAX_DELAY, Job
from rowlock.errors import InvalidInput, plain_number


class FinalType:
    """The type of FINAL, which a retry callable returns to say: don't retry."""

    def __repr__(self) -> str:
        return "FINAL"


FINAL: Constant = FinalType()


class Quadratic(Struct, frozen=True):
    """retries² × unit: 1, 4, 9 minutes. The default."""

    unit: float = 60.0

    def delay(self, retries: int) -> float:
        return self.unit * retries * retries


class Delays(Struct, frozen=True):
    """A list of seconds; the last entry repeats."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.seconds:
            raise InvalidInput("backoff", "empty", "must hold at least one number of seconds")
        for i, delay in enumerate(self.seconds):
            if not _within(delay, 0, MAX_DELAY):
                raise InvalidInput(
                    f"backoff[{i}]", "out_of_range", f"must be 0 to {MAX_DELAY:.0f} seconds, not {delay!r:.40}"
                )

    def delay(self, retries: int) -> float:
        return self.seconds[min(retries, len(self.seconds)) - 1]


class Exponential(Struct, frozen=True):
    """base × factor^(retries−1), at most `cap`; `jitter` is the share of it that chance may take away (0 to 1)."""

    base: float = 1.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("base", 0.0, MAX_DELAY),
            ("factor", 1.0, 1e6),
            ("cap", 0.0, MAX_DELAY),
            ("jitter", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if not _within(value, low, high):
                raise InvalidInput(
                    f"backoff.{name}",
                    "out_of_range",
                    f"must be {plain_number(low)} to {plain_number(high)}, not {value!r:.40}",
                )

    def delay(self, retries: int) -> float:
        try:
            return min(self.cap, self.base * self.factor ** (retries - 1))
        except OverflowError:
            return self.cap


def _within(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


# (job, error) -> seconds, or FINAL. The error is the exception if there was one, else its text.
RetryCallable = Callable[[Job, BaseException | str], float | FinalType]
RetryPolicy = Quadratic | Delays | Exponential | RetryCallable

DEFAULT_RETRY = Quadratic()


def retry_delay(policy: RetryPolicy, job: Job, error: BaseException | str, chance: float) -> float | FinalType:
    """Return the seconds until the next try of a job that has just failed for the (job.retries + 1)-th time, or FINAL.

    A callable that raises or answers nonsense must not cost the job its retry: the default stands in.
    """
    retries = job.retries + 1
    if isinstance(policy, Quadratic | Delays):
        return min(policy.delay(retries), MAX_DELAY)
    if isinstance(policy, Exponential):
        return policy.delay(retries) * (1.0 - policy.jitter * chance)
    try:
        answer = policy(job, error)
        if isinstance(answer, FinalType):
            return FINAL
        seconds = float(answer)
    except BaseException:  # sys.exit() and CancelledError too
        seconds = -1.0
    if not isfinite(seconds) or seconds < 0:
        return DEFAULT_RETRY.delay(retries)
    return min(seconds, MAX_DELAY)


def backoff_table(policy: Quadratic | Delays | Exponential, rows: int = 32) -> list[float]:
    """Return the policy as a list, for statements that charge many jobs at once (rescue): the last entry repeats."""
    return [float(min(policy.delay(retries), MAX_DELAY)) for retries in range(1, rows + 1)]


def kept_table(policy: RetryPolicy) -> list[float] | None:
    """Return the policy's backoff table. The store keeps it with the topic, for rescues by other processes. None: they
    use the default's table, because the policy is the default, or a callable that only its application can call."""
    if policy == DEFAULT_RETRY or not isinstance(policy, Quadratic | Delays | Exponential):
        return None
    table = backoff_table(policy)
    if not all(seconds >= 0 for seconds in table):  # negative, or not a number
        return None
    while len(table) > 1 and table[-1] == table[-2]:
        table.pop()
    return table
