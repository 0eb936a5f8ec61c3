"""Errors keep their data, also when they come from another process."""

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from rowlock import errors
from rowlock.errors import (
    Cancelled,
    ConnectionRefused,
    Final,
    IdTaken,
    InvalidInput,
    InvalidState,
    JobNotFound,
    KeyTaken,
    LeaseLost,
    OutcomeUnknown,
    RowlockError,
    Snooze,
    StepChanged,
    StepFailed,
    StoreError,
    StoreUnavailable,
    Suspend,
    TimeLimit,
    VersionPassed,
    WorkerStopping,
)

WITH_DATA: list[RowlockError] = [
    InvalidInput("payload.a", "nul", "holds a NUL"),
    JobNotFound("id-1"),
    InvalidState("id-1", "cancel", "completed", ("pending", "processing")),
    InvalidState("id-1", "cancel", "completed"),
    KeyTaken("id-1", "k", "id-2"),
    VersionPassed("id-1", "requeue", 3),
    IdTaken("id-1", "payload"),
    LeaseLost("id-1", 7),
    Final("no such customer"),
    StepFailed("charge", "Traceback\nValueError: no money"),
    StepChanged("charge", "its result does not fit", "Restore it"),
    Snooze(30),
    Cancelled("withdrawn"),
    Cancelled(),
    TimeLimit(60.0),
    WorkerStopping(),
    ConnectionRefused("sqlite3.Connection", "closed", "is closed"),
]
PLAIN = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, StoreError) and kind is not StoreError
]


def throw(error: RowlockError) -> None:
    raise error


@pytest.mark.parametrize("error", [*WITH_DATA, *(kind("said so") for kind in PLAIN)], ids=repr)
def test_errors_survive_pickling(error: RowlockError) -> None:
    back: Any = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_errors_come_out_of_another_process() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(InvalidState) as caught:
            pool.submit(throw, WITH_DATA[2]).result()
        assert (caught.value.status, caught.value.allowed) == ("completed", ("pending", "processing"))


def test_the_tree() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BaseException)]
    assert [kind for kind in kinds if not issubclass(kind, RowlockError)] == [Suspend]
    assert not issubclass(Suspend, Exception)  # so no `except Exception` of a handler catches it
    assert {kind.__name__ for kind in kinds} == {
        word for word in (errors.__doc__ or "").split() if word.isidentifier() and hasattr(errors, word)
    }
    assert issubclass(OutcomeUnknown, StoreUnavailable)
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(JobNotFound, LookupError)
