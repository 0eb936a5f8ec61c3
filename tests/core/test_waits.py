"""core.waits: names, and how a wait ends by itself."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec import UNSET

from rowlock.core.job import MAX_DELAY, Status
from rowlock.core.steps import StepState, StoredStep, with_step_events
from rowlock.core.times import NEVER, NEVER_AT, micros, moment
from rowlock.core.waits import (
    SLEEP,
    Wait,
    WaitTerms,
    callback_name,
    check_signal_name,
    is_step_name,
    read_terms,
    signal_of,
    signal_wait,
    step_name,
)
from rowlock.errors import InvalidInput

NOW = 1_767_268_800_000_000


def wait(waits_for: str = "signal:go", **fields: Any) -> Wait:
    return Wait(id="1", version=1, waits_for=waits_for, n=1, position=1, **fields)


def test_names() -> None:
    assert (wait().name, wait(SLEEP).name, callback_name("go")) == ("@signal:go", "@sleep", "@callback:go")
    assert (wait().signal, wait(SLEEP).signal) == ("go", None)
    for name in ("sleep", "signal:x", "a:b/c"):  # a signal may have any of these names
        assert signal_of(signal_wait(name)) == name
        assert not is_step_name(step_name(signal_wait(name)))
    assert signal_of(None) is signal_of(SLEEP) is None
    assert is_step_name("fetch")


@pytest.mark.parametrize("name", ["", " a", "a b", "a\n", "@a", "a" * 129, None, 7])
def test_bad_names(name: object) -> None:
    with pytest.raises(InvalidInput):
        check_signal_name(name)


@pytest.mark.parametrize(
    ("ends", "deadline"),
    [
        ({}, None),
        ({"seconds": 1.5}, NOW + 1_500_000),
        ({"seconds": -1.0}, NOW),
        ({"seconds": float("inf")}, NOW + int(MAX_DELAY) * 1_000_000),
        ({"until": moment(NOW - 5)}, NOW - 5),
    ],
)
def test_the_deadline(ends: dict[str, Any], deadline: int | None) -> None:
    assert wait(**ends).deadline(NOW) == deadline


def test_what_the_handler_gets_when_the_time_is_over() -> None:
    assert (wait().fallback, wait(SLEEP).fallback) == (None, "null")
    assert (wait(default="1").fallback, wait(default=None).fallback, wait(default=UNSET).fallback) == (
        "1",
        "null",
        None,
    )


def test_terms_are_read_whatever_they_are() -> None:
    terms = WaitTerms(5.0, {"type": "string"})
    assert read_terms({"timeout": 5.0, "schema": {"type": "string"}}) == terms
    odd_ones: list[Any] = [None, 7, [], {"timeout": "soon"}, {"schema": 1}]
    for odd in odd_ones:
        assert read_terms(odd) == WaitTerms()


def test_never_is_later_than_every_time() -> None:
    assert micros(NEVER_AT) == NEVER
    assert moment(NEVER) == NEVER_AT


def test_waits_and_callbacks_have_no_events_of_their_own() -> None:
    steps = [
        StoredStep(
            job_id="1",
            name=name,
            n=1,
            position=n,
            function="f",
            state=StepState.SUCCEEDED,
            version=1,
            started_at=moment(NOW),
            finished_at=moment(NOW) + timedelta(seconds=n),
        )
        for n, name in enumerate(["@callback:go", "a", "@sleep", "@signal:go"])
    ]
    assert [(event.data["step"], event.status) for event in with_step_events([], steps)] == [("a", Status.PROCESSING)]
