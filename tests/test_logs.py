"""Logs for machines (JSON), and the secrets that no log may contain."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rowlock import Jobs
from rowlock.access import secrets
from rowlock.errors import InvalidInput
from rowlock.logs import JsonFormatter, TextFormatter, without_secrets
from tests.waiting import ended

TOKEN = secrets.issue("token").text
SECRETS = [
    (f"the token {TOKEN} is no good", TOKEN.rpartition("_")[2]),
    ("can't reach postgresql://ada:hunter2@db.example/jobs", "hunter2"),
    ("can't reach 'postgresql://ada:hunt/er@2@db.example/jobs': timeout", "er@2"),
    ("can't reach redis://:hunter2@cache:6379/0, postgres://ada:hunter3@db", "hunter2"),
    (f"can't reach amqp://ada:{'x' * 400}hunter2@{'y' * 400}", "hunter2"),
    ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
    ("{'authorization': 'Basic YWRhOmh1bnRlcjI='}", "YWRhOmh1bnRlcjI"),
    ("it said eyJhbGciOiJIUzI1NiJ9.eyJpZCI6ImFkYSJ9.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
    ("host=db user=ada password=hunter2 dbname=jobs", "hunter2"),
    ('{"api_key": "hunter 2"}', "hunter"),
    ("Set-Cookie: a=b; c=hunter2", "hunter2"),
]


def record(message: str, *args: object, extra: dict[str, Any] | None = None, error: bool = False) -> logging.LogRecord:
    return logging.getLogger("rowlock.test").makeRecord(
        "rowlock.test", logging.WARNING, __file__, 1, message, args, sys.exc_info() if error else None, extra=extra
    )


def as_json(of: logging.LogRecord) -> dict[str, Any]:
    text = JsonFormatter().format(of)
    assert "\n" not in text
    line: dict[str, Any] = json.loads(text)
    return line


def test_a_line_is_one_json_object() -> None:
    one = record("%d jobs\nof %s", 3, "Ünal \ud800")
    one.created = 1_769_847_300.1239
    assert as_json(one) == {
        "time": "2026-01-31T08:15:00.123Z",
        "level": "WARNING",
        "logger": "rowlock.test",
        "message": "3 jobs\nof Ünal \ud800",
    }


def test_a_line_is_plain_ascii() -> None:
    assert JsonFormatter().format(record("Ünal \ud800 \u2028")).isascii()


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("no such customer")
    except ValueError:
        line = as_json(record("failed", error=True))
    assert line["message"] == "failed"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: no such customer")


def test_known_extra_fields_are_told_and_no_others() -> None:
    extra = {"job_id": "0197", "version": 2, "request_id": "abc", "identity": "user ada", "password": "hunter2"}
    line = as_json(record("hello", extra=extra))
    assert {name: line[name] for name in line if name in extra} == {k: extra[k] for k in extra if k != "password"}


@pytest.mark.parametrize(("text", "secret"), SECRETS, ids=range(len(SECRETS)))  # every run makes another token
@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter("%(message)s")], ids=["json", "text"])
def test_no_secret_reaches_a_line(formatter: logging.Formatter, text: str, secret: str) -> None:
    assert secret in text
    try:
        raise ValueError(text)
    except ValueError:
        line = formatter.format(record("%s", text, extra={"identity": text}, error=True))
    assert secret not in line
    assert "…" in line or "\\u2026" in line


@pytest.mark.parametrize(
    "text",
    [
        "<run 2 of send_mail 0197a9b0-0000-7000-8000-000000000000> failed: no bearer of bad news",
        "GET http://127.0.0.1:8090/queue/healthz 200 0.3 ms",
        "GET http://127.0.0.1:8090/queue/@vite 404 0.3 ms",
        "worker box-71-0a1b2c3d: 10 slots for rl_stats, token_report; <Jobs sqlite:///jobs.db>",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize(("format", "verbose"), [("text", False), ("text", True), ("json", False), ("json", True)])
def test_set_up_logs_to_stderr(format: str, verbose: bool) -> None:
    program = (
        f"import logging, rowlock.logs; rowlock.logs.set_up({format!r}, verbose={verbose})\n"
        "logging.getLogger('rowlock').debug('small')\n"
        "logging.getLogger('asyncio').info('not ours')\n"
        "logging.getLogger('rowlock').info('great')\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == ""
    lines = told.stderr.splitlines()
    if format == "json":
        messages = [json.loads(line)["message"] for line in lines]
    else:
        messages = [line.rpartition(" ")[2] for line in lines]
        assert lines[-1][10] == " "  # between the date and the time
        assert "INFO    great" in lines[-1]
    assert messages == (["small", "great"] if verbose else ["great"])


def test_an_unknown_format_is_refused() -> None:
    from rowlock import logs

    with pytest.raises(InvalidInput, match="must be text or json"):
        logs.set_up("xml")  # type: ignore[arg-type]


async def test_lines_about_a_run_carry_its_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "rowlock")
    async with Jobs(f"sqlite:///{tmp_path}/jobs.db") as jobs:

        @jobs.task(max_retries=0)
        async def divide(by: int) -> float:
            return 1 / by

        await jobs.start()
        good, bad = await divide.enqueue(1), await divide.enqueue(0)
        await ended(jobs, good.id)
        worker = (await ended(jobs, bad.id)).locked_by or (await jobs.workers.list())[0].name
    lines = [as_json(one) for one in caplog.records if one.name == "rowlock"]
    about = {line["job_id"]: line for line in lines if "job_id" in line}
    assert about.keys() == {good.id, bad.id}
    for job_id, level in ((good.id, "DEBUG"), (bad.id, "WARNING")):
        line = about[job_id]
        assert (line["level"], line["topic"], line["version"], line["worker"]) == (level, "divide", 1, worker)
    assert about[bad.id]["message"] == f"<run 1 of divide {bad.id}> failed: ZeroDivisionError: division by zero"
