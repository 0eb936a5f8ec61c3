"""`rowlock migrate` as a person types it: output, exit codes, no traceback."""

import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType

import psycopg
import pytest

from rowlock.stores.postgres import migrate as on_postgres
from rowlock.stores.postgres.functions import REVISION
from rowlock.stores.sqlite import migrate as on_sqlite
from tests.cli.conftest import rowlock


def told(what: str, store: ModuleType) -> str:
    """Return a line for each migration."""
    return "".join(f"{what}: {migration.title}\n" for migration in store.known())


def test_plan_then_migrate_then_nothing_to_do(tmp_path: Path) -> None:
    plan = rowlock("migrate", "--url", "sqlite:///jobs.db", "--plan", cwd=tmp_path)
    assert (plan.returncode, plan.stdout) == (0, told("to apply", on_sqlite))
    assert list(tmp_path.iterdir()) == []  # a plan leaves nothing behind
    for said in (told("applied", on_sqlite), "up to date: nothing to apply\n"):
        assert rowlock("migrate", cwd=tmp_path, ROWLOCK_URL="sqlite:///jobs.db").stdout == said


def test_the_printed_sql_makes_the_same_database(tmp_path: Path) -> None:
    (tmp_path / "rowlock.toml").write_text('url = "sqlite:///printed.db"\n')
    script = rowlock("migrate", "--sql", cwd=tmp_path)
    with closing(sqlite3.connect(tmp_path / "printed.db")) as connection:
        connection.executescript(script.stdout)
    assert rowlock("migrate", "--plan", cwd=tmp_path).stdout == "up to date: nothing to apply\n"
    assert rowlock("migrate", "--sql", cwd=tmp_path).stdout == "-- up to date: nothing to apply\n"


def test_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    url = f"{postgres_url}?schema=work"
    script = rowlock("migrate", "--url", url, "--sql", cwd=tmp_path)
    assert script.stdout.startswith('BEGIN;\nCREATE SCHEMA IF NOT EXISTS "work";')
    applied = rowlock("migrate", "--url", url, cwd=tmp_path)
    assert applied.stdout == told("applied", on_postgres)
    assert "applied: 0001 jobs\n" in applied.stdout
    assert applied.stdout.endswith(f"applied: functions, revision {REVISION}\n")
    assert rowlock("migrate", "--url", url, "--plan", cwd=tmp_path).stdout == "up to date: nothing to apply\n"


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_table_that_was_dropped(tmp_path: Path, store: str, request: pytest.FixtureRequest) -> None:
    url = "sqlite:///jobs.db" if store == "sqlite" else request.getfixturevalue("postgres_url")
    assert rowlock("migrate", "--url", url, cwd=tmp_path).returncode == 0
    if store == "sqlite":
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
            connection.execute("DROP TABLE _jobs_topics")
    else:
        with psycopg.connect(url) as server:
            server.execute("DROP TABLE _jobs_topics")
    for words in (["migrate"], ["migrate", "--plan"], ["migrate", "--sql"], ["topics", "pause", "mail"]):
        ended = rowlock(*words, "--url", url, cwd=tmp_path)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert "_jobs_topics" in ended.stderr
        assert "damaged" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
    assert rowlock("enqueue", "mail", "--url", url, cwd=tmp_path).returncode == 0  # enqueue doesn't need this table


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["migrate"], 1, "ROWLOCK_URL"),
        (["migrate", "--url", "foo://x"], 1, "foo:// is not supported"),
        (["migrate", "--url", "sqlite:///missing/jobs.db"], 1, "create it first"),
        (["migrate", "--url", "postgresql://ann:s3cret@127.0.0.1:1/shop"], 1, "127.0.0.1:1/shop can't be reached"),
        (["migrate", "--url", "sqlite://", "--plan", "--sql"], 2, "not both"),
        (["migrat"], 2, "No such command"),
    ],
)
def test_mistakes_are_told_in_a_line_or_two(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    ended = rowlock(*arguments, cwd=tmp_path)
    assert ended.returncode == code
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "s3cret" not in ended.stderr
