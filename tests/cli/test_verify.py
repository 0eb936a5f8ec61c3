"""`rowlock verify`: a healthy database passes, and damage that the tests write with plain SQL is found."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from rowlock.core.lifecycle import Completed, Failed, Outcome, Released, Snoozed
from tests.cli.conftest import Shell
from tests.closing import connected

LIVES: list[Outcome] = [Completed({"ok": 1}), Failed("boom"), Failed("never", final=True), Snoozed(0.0), Released()]


def sql(shell: Shell, *statements: str) -> None:
    """Run statements directly on the database, without its constraints."""
    if shell.url.startswith("sqlite"):
        with closing(sqlite3.connect(shell.url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = 1")
            for statement in statements:
                connection.execute(statement)
        return

    async def run() -> None:
        async with connected(shell.url) as connection:
            for name in ("_jobs_lease", "_jobs_ready", "_jobs_status"):
                await connection.execute(f"ALTER TABLE _jobs DROP CONSTRAINT IF EXISTS {name}")
            for statement in statements:
                await connection.execute(statement)

    asyncio.run(run())


def long_ago(shell: Shell) -> str:
    return "1" if shell.url.startswith("sqlite") else "'2020-01-01'"


def failed(shell: Shell) -> str:
    job_id = shell.add()
    shell.finish(Failed("never", final=True))
    return job_id


def checks(shell: Shell) -> dict[str, str | None]:
    """Return the job id for each check that found something."""
    report = shell.json("verify", code=1)
    return {found["check"]: found["job_id"] for found in report["findings"]}


def test_a_healthy_database_passes(shell: Shell) -> None:
    for outcome in LIVES:
        shell.add()
        shell.finish(outcome)
    shell.add("report")
    shell.start("report")
    cancelled = shell.add("later", "{}", "--delay", "1h", "--key", "k")
    shell("jobs", "cancel", cancelled)
    shell("jobs", "requeue", cancelled)
    shell("jobs", "update", cancelled, "--priority", "7")
    result = shell("verify")
    assert result.stdout == ""
    assert "7 jobs checked: nothing is wrong" in result.stderr


def test_an_empty_database_passes(shell: Shell) -> None:
    assert shell.json("verify") == {"findings": [], "checked": 0, "partial": False, "silent": []}


def test_it_says_when_there_is_more_than_it_looked_at(shell: Shell) -> None:
    for _ in range(3):
        shell.add()
    assert shell.json("verify", "--limit", "2")["partial"] is True
    assert shell.json("verify", "--limit", "3")["partial"] is False
    assert shell.json("verify", "--time", "0")["checked"] == 0


def test_a_finding_is_shown_and_is_exit_code_1(shell: Shell) -> None:
    job_id = failed(shell)
    sql(shell, "UPDATE _jobs SET retries = 9")
    result = shell("verify", code=1)
    assert job_id in result.stdout
    assert "has used 9 retries of 3" in result.stdout
    assert "1 job checked: 1 finding" in result.stderr


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("lease", "locked_by = 'w1'"),
        ("retries", "retries = -1"),
        ("version", "version = 7"),
        ("version", "version = 0"),
        ("history", "history = NULL, version = 0"),
        ("history", "history_dropped = 3"),
        ("history", "status = 'expired'"),
    ],
)
def test_a_row_that_contradicts_itself_is_found(shell: Shell, check: str, change: str) -> None:
    job_id = failed(shell)
    sql(shell, f"UPDATE _jobs SET {change}")
    assert checks(shell)[check] == job_id


@pytest.mark.parametrize(
    ("check", "change"),
    [("ready", "ready = true"), ("finished", "finished_at = {long_ago}"), ("lease", "locked_until = NULL")],
)
def test_a_running_job_that_contradicts_itself_is_found(shell: Shell, check: str, change: str) -> None:
    job_id = shell.add()
    shell.start()
    sql(shell, f"UPDATE _jobs SET {change.format(long_ago=long_ago(shell))}")
    assert checks(shell)[check] == job_id


def test_a_lease_that_nobody_took_back_is_found(shell: Shell) -> None:
    job_id = shell.add()
    shell.start()
    sql(shell, f"UPDATE _jobs SET locked_until = {long_ago(shell)}")
    assert checks(shell) == {"overdue": job_id}


def test_a_history_that_can_t_have_happened_is_found(shell: Shell) -> None:
    job_id = failed(shell)
    sql(shell, "UPDATE _jobs SET history = replace(CAST(history AS text), 'failed', 'snoozed')" + _cast(shell))
    assert checks(shell) == {"history": job_id}


def _cast(shell: Shell) -> str:
    """Let PostgreSQL cast text to JSON in assignments. Return an empty text to append to the statement."""
    if not shell.url.startswith("sqlite"):
        sql(shell, "CREATE CAST (text AS jsonb) WITH INOUT AS ASSIGNMENT")
    return ""


def test_a_job_that_is_kept_twice_is_found(shell: Shell) -> None:
    shell.add()
    done = shell.finish(Completed(None))
    other = failed(shell)
    sql(shell, f"UPDATE _jobs_archive SET id = '{other}' WHERE id = '{done}'")
    found = checks(shell)
    assert found["twice"] == other


STEP = (
    "INSERT INTO _jobs_steps (job_id, name, n, position, function, state, retries, cancelable, version, started_at)"
    " SELECT id, 'a', 1, 1, 'a', 'succeeded', 0, true, 1, created FROM _jobs"
)


def test_steps_that_contradict_their_job_are_found(shell: Shell) -> None:
    job_id = failed(shell)
    sql(shell, STEP, "UPDATE _jobs SET step = 'a'")
    assert shell.json("verify")["findings"] == []
    sql(shell, "UPDATE _jobs SET step = NULL")
    assert checks(shell) == {"steps": job_id}
    sql(shell, "UPDATE _jobs SET step = 'a'", "DELETE FROM _jobs_steps")
    assert checks(shell) == {"steps": job_id}


def test_steps_of_a_job_that_is_gone_are_found(shell: Shell) -> None:
    job_id = failed(shell)
    shell.add()
    sql(shell, STEP, "UPDATE _jobs SET step = 'a'", f"DELETE FROM _jobs WHERE id = '{job_id}'")
    assert checks(shell) == {"steps": job_id}


def test_two_live_jobs_with_one_key_are_found(shell: Shell) -> None:
    shell.add("mail", "{}", "--key", "a")
    older_or_newer = {shell.add("mail", "{}", "--key", "b")}
    shell.add("mail", "{}", "--key", "a", "--scope-id", "t")  # another scope, so another key
    sql(shell, "DROP INDEX _jobs_live_key", "UPDATE _jobs SET key = 'a'")
    report = shell.json("verify", code=1)
    [found] = report["findings"]
    assert found["check"] == "key"
    assert found["job_id"] not in older_or_newer  # the newest job is read first, and has the key


def test_counters_that_know_of_fewer_jobs_are_found(shell: Shell) -> None:
    failed(shell)
    sql(shell, "UPDATE _jobs_totals SET failed = 0", *_forget_counts(shell))
    assert checks(shell) == {"counts": None}


def _forget_counts(shell: Shell) -> list[str]:
    return [] if shell.url.startswith("sqlite") else ["DELETE FROM _jobs_counts"]


def test_limits_that_no_claim_obeys_are_found(shell: Shell) -> None:
    shell("limits", "put", "mail", "--max", "3", "--per", "1h")
    shell.add()
    shell.start()
    assert shell.json("verify")["findings"] == []
    sql(
        shell,
        "UPDATE _jobs_topics SET limited = NOT limited",
        "INSERT INTO _jobs_topics (topic, limited) VALUES ('other', true)",
        "UPDATE _jobs_starts SET n = 0",
    )
    report = shell.json("verify", code=1)
    assert [found["text"].split()[0] for found in report["findings"] if found["check"] == "limits"] == [
        "mail", "other", "the",
    ]  # fmt: skip


def test_workers_that_went_without_a_word_are_named_and_no_finding(shell: Shell) -> None:
    columns = "name, host, pid, topics, concurrency, running, lease, stopping, rowlock, started, seen"
    topics = "'[]'" if shell.url.startswith("sqlite") else "'{}'"
    at = long_ago(shell)
    sql(
        shell,
        f"INSERT INTO _jobs_workers ({columns}) VALUES"
        f" ('gone', 'h', 1, {topics}, 1, 0, 30.0, false, '1.0', {at}, {at})",
    )
    assert shell.json("verify")["silent"] == ["gone"]
