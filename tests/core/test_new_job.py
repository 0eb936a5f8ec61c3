"""Which jobs may be enqueued: the error of every bad value has its own code and names the field."""

from datetime import UTC, datetime, timedelta, timezone
from math import inf, nan
from typing import Any

import pytest

from rowlock.core.job import MAX_DELAY, NewJob, new_job
from rowlock.errors import InvalidInput

ID = "0193fb1e-0000-7000-8000-000000000000"
AT = datetime(2026, 1, 1, tzinfo=UTC)

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"topic": ""}, "topic", "empty"),
    ({"topic": "x" * 129}, "topic", "too_long"),
    ({"topic": "a b"}, "topic", "bad_characters"),
    ({"topic": "ü"}, "topic", "bad_characters"),
    ({"topic": "a\n"}, "topic", "bad_characters"),
    ({"topic": "a\0"}, "topic", "bad_characters"),
    ({"topic": None}, "topic", "not_text"),
    ({"topic": 5}, "topic", "not_text"),
    ({"payload": [1]}, "payload", "not_an_object"),
    ({"payload": {"a": nan}}, "payload.a", "not_finite"),
    ({"priority": 1.5}, "priority", "not_an_integer"),
    ({"priority": True}, "priority", "not_an_integer"),
    ({"priority": 2**31}, "priority", "out_of_range"),
    ({"priority": -(2**31)}, "priority", "out_of_range"),
    ({"priority": "urgent"}, "priority", "unknown_name"),
    ({"run_at": datetime(2026, 1, 1)}, "run_at", "naive_time"),  # noqa: DTZ001
    ({"run_at": "tomorrow"}, "run_at", "not_a_time"),
    ({"run_at": 5.0}, "run_at", "not_a_time"),
    ({"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))}, "run_at", "time_range"),
    ({"expires_at": datetime(2026, 1, 1)}, "expires_at", "naive_time"),  # noqa: DTZ001
    ({"expires_at": 5}, "expires_at", "not_a_time"),
    ({"expires_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))}, "expires_at", "time_range"),
    ({"delay": -1}, "delay", "out_of_range"),
    ({"delay": -timedelta(seconds=1)}, "delay", "out_of_range"),
    ({"delay": nan}, "delay", "out_of_range"),
    ({"delay": inf}, "delay", "out_of_range"),
    ({"delay": MAX_DELAY + 1}, "delay", "out_of_range"),
    ({"delay": "5"}, "delay", "not_a_number"),
    ({"delay": True}, "delay", "not_a_number"),
    ({"delay": None}, "delay", "not_a_number"),
    ({"delay": 1, "run_at": AT}, "delay", "both_given"),
    ({"key": ""}, "key", "bad_length"),
    ({"key": "x" * 513}, "key", "bad_length"),
    ({"key": "a\0"}, "key", "nul"),
    ({"key": "\ud800"}, "key", "lone_surrogate"),
    ({"key": 5}, "key", "not_text"),
    ({"scope": ""}, "scope", "bad_length"),
    ({"scope_id": "a\0"}, "scope_id", "nul"),
    ({"template_version": -1}, "template_version", "out_of_range"),
    ({"template_version": "1"}, "template_version", "not_an_integer"),
    ({"template_version": 2**31}, "template_version", "out_of_range"),
    ({"max_retries": -1}, "max_retries", "out_of_range"),
    ({"max_retries": 1_000_001}, "max_retries", "out_of_range"),
    ({"max_retries": 2.0}, "max_retries", "not_an_integer"),
    ({"max_retries": None}, "max_retries", "not_an_integer"),
    ({"timeout": 0}, "timeout", "out_of_range"),
    ({"timeout": -5}, "timeout", "out_of_range"),
    ({"timeout": nan}, "timeout", "out_of_range"),
    ({"timeout": None}, "timeout", "not_a_number"),
    ({"tags": "red"}, "tags", "not_a_list"),
    ({"tags": {"red"}}, "tags", "not_a_list"),
    ({"tags": ""}, "tags", "not_a_list"),
    ({"tags": False}, "tags", "not_a_list"),
    ({"tags": {}}, "tags", "not_a_list"),
    ({"tags": ["x"] * 33}, "tags", "too_many"),
    ({"tags": ["ok", ""]}, "tags[1]", "bad_length"),
    ({"tags": [5]}, "tags[0]", "not_text"),
    ({"tags": ["x" * 129]}, "tags[0]", "bad_length"),
    ({"trace": "x" * 513}, "trace", "bad_length"),
]


@pytest.mark.parametrize(
    ("fields", "field", "code"), REFUSED, ids=[f"{f}-{c}-{i}" for i, (_, f, c) in enumerate(REFUSED)]
)
def test_refused(fields: dict[str, Any], field: str, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        new_job(ID, fields.pop("topic", "mail"), **fields)
    assert (caught.value.field, caught.value.code) == (field, code)
    assert str(caught.value) == f"{field}: {caught.value.problem}"


def test_the_defaults() -> None:
    assert new_job(ID, "mail") == NewJob(ID, "mail", "{}")
    job = new_job(ID, "mail", None)
    assert (job.priority, job.max_retries, job.timeout, job.delay, job.tags) == (100, 3, 600.0, 0.0, ())


ACCEPTED: list[tuple[dict[str, Any], str, Any]] = [
    ({"topic": "x" * 128}, "topic", "x" * 128),
    ({"topic": "azAZ09_.:/-"}, "topic", "azAZ09_.:/-"),
    ({"payload": {}}, "payload", "{}"),
    ({"payload": {"b": 1, "a": [None]}}, "payload", '{"b":1,"a":[null]}'),
    ({"priority": "explicit"}, "priority", 150),
    ({"priority": "discovered"}, "priority", 100),
    ({"priority": "backfill"}, "priority", 30),
    ({"priority": -(2**31) + 1}, "priority", -(2**31) + 1),
    ({"run_at": datetime(2026, 1, 1, 3, tzinfo=timezone(timedelta(hours=3)))}, "run_at", AT),
    ({"run_at": AT, "delay": 0}, "run_at", AT),
    ({"delay": timedelta(minutes=1)}, "delay", 60.0),
    ({"delay": MAX_DELAY}, "delay", MAX_DELAY),
    ({"expires_at": AT}, "expires_at", AT),
    ({"key": "é" * 512}, "key", "é" * 512),
    ({"template_version": 1}, "template_version", 1),
    ({"max_retries": 0}, "max_retries", 0),
    ({"timeout": timedelta(hours=1)}, "timeout", 3600.0),
    ({"timeout": 1}, "timeout", 1.0),
    ({"tags": ["a", "b"]}, "tags", ("a", "b")),
    ({"tags": []}, "tags", ()),
]


@pytest.mark.parametrize(
    ("fields", "field", "value"), ACCEPTED, ids=[f"{f}-{i}" for i, (_, f, _) in enumerate(ACCEPTED)]
)
def test_accepted(fields: dict[str, Any], field: str, value: Any) -> None:
    job = new_job(ID, fields.pop("topic", "mail"), **fields)
    assert getattr(job, field) == value
    assert type(getattr(job, field)) is type(value)


def test_times_become_utc() -> None:
    job = new_job(ID, "mail", run_at=datetime(2026, 1, 1, 3, tzinfo=timezone(timedelta(hours=3))))
    assert job.run_at is not None
    assert job.run_at.tzinfo is UTC
