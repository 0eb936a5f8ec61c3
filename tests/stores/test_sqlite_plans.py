"""The hot verbs look at their own jobs only, whatever else is in the file and however old the statistics are.

The tests count steps of SQLite's virtual machine: they measure a statement's work, on any computer.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rowlock.core.job import History, Job, Log
from rowlock.core.lifecycle import Completed, Failed, Settlement
from rowlock.core.moves import Cancel, CancelTimeout, Delete, Order, Requeue, Rescue, Signal, SignalSent, Wake
from rowlock.core.steps import StoredSteps
from rowlock.stores.base import Beat, Claim, NewLine, Progress, Retention
from rowlock.stores.queries import TopicRetention
from rowlock.stores.sqlite import moves, queries, settle
from rowlock.stores.sqlite.claim import claim
from rowlock.stores.sqlite.connect import connect_writer
from rowlock.stores.sqlite.connection import SqliteConnection, microseconds
from rowlock.stores.sqlite.insert import insert
from rowlock.stores.sqlite.maintenance import promote, prune
from rowlock.stores.sqlite.rows import read_sql
from rowlock.stores.sqlite.steps import checkpoint
from rowlock.stores.sqlite.waits import take_signal
from tests.stores.harness import job, lanes, mark, settlement, wait

JOBS = 20
LANES = lanes("mail", "bills", "nobody_enqueues_this")
CLAIM = Claim("w1", LANES, JOBS, 30.0)
HOUR = 3_600_000_000

SERIES = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT {count})"
JOB_COLUMNS = "id, topic, status, ready, priority, run_at, created, updated, max_retries, timeout, payload, finished_at"
NOISE = [
    (
        f"{SERIES.format(count=200_000)} INSERT INTO _jobs ({JOB_COLUMNS}) "
        "SELECT 'foreign ' || n, 'foreign_' || n % 5, 'pending', 1, 500, 0, 0, 0, 3, 600, '{}', NULL FROM n"
    ),
    (
        f"{SERIES.format(count=100_000)} INSERT INTO _jobs ({JOB_COLUMNS}) "
        "SELECT 'future ' || n, 'mail', 'pending', 0, 500, 9e15, 0, 0, 3, 600, '{}', NULL FROM n"
    ),
    (
        f"{SERIES.format(count=100_000)} INSERT INTO _jobs ({JOB_COLUMNS}, waits_for) "
        "SELECT 'waiting ' || n, 'mail', 'waiting', 0, 500, 9e15, 0, 0, 3, 600, '{}', NULL, 'signal:go' FROM n"
    ),
    (
        f"{SERIES.format(count=200_000)} INSERT INTO _jobs_signals (job_id, seq, name, data, at) "
        "SELECT 'waiting ' || (n / 10), n % 10, 'go', '1', 0 FROM n"
    ),
    (
        f"{SERIES.format(count=20_000)} INSERT INTO _jobs ({JOB_COLUMNS}) "
        "SELECT 'dead ' || n, 'mail', 'failed', 0, 500, 0, 0, 0, 3, 600, '{}', 0 FROM n"
    ),
    (
        f"{SERIES.format(count=1_000_000)} INSERT INTO _jobs_archive (id, topic, template_version, priority, version, "
        "retries, max_retries, crashes, timeout, created, updated, run_at, finished_at, history_dropped, payload) "
        "SELECT 'done ' || n, 'mail', 0, 100, 1, 0, 3, 0, 600, 0, 0, 0, 0, 0, '{}' FROM n"
    ),
    (
        f"{SERIES.format(count=1_000_000)} INSERT INTO _jobs_steps (job_id, name, n, position, function, state, "
        "retries, cancelable, version, started_at) "
        "SELECT 'done ' || (n / 10), 'a', n % 10, 1, 'a', 'running', 0, 0, 1, 0 FROM n"
    ),
]

# All of these rows take seconds. A fifth tempts planners just as well, and a bounded statement reads far fewer.
shares = pytest.mark.parametrize("share", [5, pytest.param(1, marks=pytest.mark.proof)])


def lessened(noise: Sequence[str], share: int) -> list[str]:
    """Return the statements, changed to make only one in `share` of their rows."""
    return [re.sub(r"\d{4,}(?= INSERT|\) INSERT|\) n$)", lambda n: str(int(n[0]) // share), one) for one in noise]


@pytest.fixture
def migrated_database(tmp_path: Path) -> Iterator[SqliteConnection]:
    path = str(tmp_path / "jobs.db")
    with closing(connect_writer(path, synchronous="normal", busy_timeout=5.0)) as conn:
        database = SqliteConnection(conn, path)
        database.migrate()
        yield database


database = migrated_database


def steps(conn: sqlite3.Connection, verb: Callable[[int], object]) -> int:
    """Return how many steps a verb takes; undo it."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    conn.execute("BEGIN IMMEDIATE")
    conn.set_progress_handler(count, 1)
    verb(microseconds())
    conn.set_progress_handler(None, 1)
    conn.execute("ROLLBACK")
    return counted


def measure(database: SqliteConnection) -> dict[str, int]:
    """Return the steps of each verb, each on twenty jobs of its own, which are gone afterwards."""
    conn = database.conn
    new = [job(topic, priority=n) for n in range(JOBS) for topic in ("mail", "bills")]
    database.write(lambda conn, now: insert(conn, now, new))
    taken = {"claim": steps(conn, lambda now: claim(conn, now, CLAIM))}
    claimed = database.write(lambda conn, now: claim(conn, now, CLAIM)).jobs
    assert len(claimed) == JOBS
    settlements = [_settlement(n, one) for n, one in enumerate(claimed)]
    beats = [Beat(one.id, one.version, True, one.locked_by) for one in claimed]
    lines = (NewLine(0.0, "info", "hi"),)
    reports = [Progress(one.id, one.version, 5.0, "stage", "message", lines, one.locked_by) for one in claimed]
    taken["settle"] = steps(conn, lambda now: settle.settle(conn, now, settlements))
    taken["settle and claim"] = steps(conn, lambda now: settle.settle(conn, now, settlements, CLAIM))
    taken["heartbeat"] = steps(conn, lambda now: settle.heartbeat(conn, now, beats, 30.0))
    taken["progress"] = steps(conn, lambda now: settle.progress(conn, now, reports))
    marks = [mark(one, name, "succeeded") for one in claimed for name in ("a", "b")]
    taken["checkpoint"] = steps(conn, lambda now: checkpoint(conn, now, marks))
    taken["look"] = steps(conn, lambda _: settle.look(conn, beats))
    taken["take_signal"] = steps(conn, lambda now: take_signal(conn, now, wait(claimed[0], seconds=60.0)))
    taken["held_by"] = steps(conn, lambda _: queries.held_by(conn, [CLAIM.worker], None))
    rescue = Rescue(by="m1", backoff=[60.0])
    dead = Rescue(by="m1", backoff=[60.0], workers=[CLAIM.worker])
    taken["rescue"] = steps(conn, lambda now: moves.move_due(conn, now + HOUR, rescue, 500))
    taken["rescue of the dead"] = steps(conn, lambda now: moves.move_due(conn, now, dead, 500))
    database.write(lambda conn, now: checkpoint(conn, now, marks))
    ids = [one.id for one in claimed]
    taken["checkpoint again"] = steps(conn, lambda now: checkpoint(conn, now, marks))
    taken["steps"] = steps(conn, lambda _: queries.read(conn, ids[:1], StoredSteps))
    taken["events"] = steps(conn, lambda _: queries.read(conn, ids[:1], History))
    taken.update(_measure_waits(conn, ids))
    conn.execute("UPDATE _jobs SET status = 'cancel_requested', cancel_requested_at = 0 WHERE version > 0")
    timeout = CancelTimeout(by="m1", grace=0.0)
    taken["cancel timeout"] = steps(conn, lambda now: moves.move_due(conn, now, timeout, 500))
    conn.execute(
        "UPDATE _jobs SET status = 'failed', topic = 'old', finished_at = 0, locked_by = NULL, locked_until = NULL "
        "WHERE version > 0"
    )
    requeue, delete = Requeue(by="ann", from_step="b"), Delete(by="ann")
    taken["requeue"] = steps(conn, lambda now: moves.move(conn, now, requeue, ids))
    taken["delete"] = steps(conn, lambda now: moves.move(conn, now, delete, ids))
    old = Retention(completed=None, cancelled=None, topics={"old": TopicRetention(failed=0.0)})
    taken["prune"] = steps(conn, lambda now: prune(conn, now, old, 500))
    conn.execute("DELETE FROM _jobs_steps WHERE name IN ('a', 'b') AND version = 1 AND state = 'succeeded'")
    conn.execute("DELETE FROM _jobs WHERE version > 0 OR topic = 'bills' OR (topic = 'mail' AND ready)")
    return taken


def _measure_waits(conn: sqlite3.Connection, ids: list[str]) -> dict[str, int]:
    """Return the steps of orders for waiting jobs: these jobs wait, and their wait has timed out."""
    conn.execute(
        "UPDATE _jobs SET status = 'waiting', waits_for = 'signal:go', run_at = 0, locked_by = NULL, "
        "locked_until = NULL WHERE version > 0"
    )
    taken = {}
    orders: list[Order] = [Signal(by="ann", sent=SignalSent("go", "1", "x")), Wake(by="ann"), Cancel(by="ann")]
    for order in orders:
        taken[order.verb] = steps(conn, partial(moves.move, conn, order=order, ids=ids))
    taken["promote"] = steps(conn, lambda now: promote(conn, now, 500))
    conn.execute(
        "UPDATE _jobs SET status = 'processing', waits_for = NULL, locked_by = 'w1', locked_until = created "
        "WHERE version > 0"
    )
    return taken


def _settlement(n: int, one: Job) -> Settlement:
    return settlement(one, Completed() if n % 2 else Failed("no"), ran=0.1)


@pytest.mark.timeout(300)
@shares
def test_what_a_verb_does_does_not_grow_with_the_tables(database: SqliteConnection, share: int) -> None:
    database.conn.execute("ANALYZE")  # the tables are empty: the planner will think so from now on
    alone = measure(database)
    with database.transaction():
        for statement in lessened(NOISE, share):
            database.conn.execute(statement)
    crowded = measure(database)
    assert {name: count for name, count in crowded.items() if count > 2 * alone[name]} == {}, (alone, crowded)


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("claim_lane", "_jobs_claim"),
        ("claim_next_due", "_jobs_due"),
        ("standing", "sqlite_autoindex__jobs_1"),
        ("rescue_expired", "_jobs_lease"),
        ("rescue_workers", "_jobs_lease"),
        ("held_by", "_jobs_lease"),
        ("read", "sqlite_autoindex__jobs_1"),
        ("expire_due", "_jobs_expiry"),
        ("cancel_timeout_due", "_jobs_cancelling"),
        ("steps", "sqlite_autoindex__jobs_steps_1 (job_id=?)"),
        ("ended_steps", "sqlite_autoindex__jobs_steps_1 (job_id=?)"),
        ("step_places", "sqlite_autoindex__jobs_steps_1 (job_id=?)"),
        ("shielded", "sqlite_autoindex__jobs_steps_1 (job_id=?)"),
        ("cancel_timeout_due", "sqlite_autoindex__jobs_steps_1 (job_id=?)"),
        ("drop_all_steps", "sqlite_autoindex__jobs_steps_1 (job_id=?)"),
        ("step_owners", "sqlite_autoindex__jobs_steps_1 (job_id<?)"),
        ("promote", "_jobs_due (status=? AND run_at<?)"),
        ("resume_due", "_jobs_due (status=? AND run_at<?)"),
        ("signal_unread", "_jobs_signals_unread (job_id=? AND name=?)"),
        ("wait_facts", "_jobs_signals_unread (job_id=?)"),
        ("wait_facts", "_jobs_signals_id (job_id=? AND signal_id=?)"),
        ("wait_facts", "sqlite_autoindex__jobs_steps_1 (job_id=? AND name=?)"),
        ("wait_found", "sqlite_autoindex__jobs_steps_1 (job_id=? AND name=? AND n=?)"),
        ("drop_all_signals", "sqlite_autoindex__jobs_signals_1 (job_id=?)"),
        ("drop_read_signals", "sqlite_autoindex__jobs_signals_1 (job_id=?)"),
        ("insert_same_key", "_jobs_live_key (key=? AND topic=? AND <expr>=? AND <expr>=?)"),
        ("failures_newest", "_jobs_failures"),
        ("failures_of_one", "_jobs_fingerprint"),
        ("schedules_due", "_jobs_schedules_due (next_run_at>? AND next_run_at<?)"),
        ("schedule_named", "_jobs_schedules_name (name=? AND <expr>=? AND <expr>=?)"),
        ("schedule_fired", "PRIMARY KEY (schedule_id=? AND fire_at=?)"),
        ("fires", "PRIMARY KEY (schedule_id=? AND fire_at<?)"),
        ("prune_fires", "_jobs_fires_without_job (at<?)"),
        ("line_waits", "_jobs_head (line=?)"),
        ("line_waits", "_jobs_line (line=?)"),
    ],
)
def test_each_search_has_its_index(database: SqliteConnection, statement: str, index: str) -> None:
    class Anything(dict[str, int]):
        def __missing__(self, name: str) -> int:
            return 1

    text = read_sql(Log) if statement == "read" else moves.statement(statement)
    values: Any = (
        Anything() if re.search(r":\w", text) else ["[1]"] * (1 if statement == "line_waits" else text.count("?"))
    )
    plan = [row[3] for row in database.conn.execute(f"EXPLAIN QUERY PLAN {text}", values)]
    assert any(index in line for line in plan), plan
    assert not [line for line in plan if line.startswith("SCAN _jobs ") and "INDEX" not in line], plan
