"""The file is deleted, moved or replaced while stores have it open. No store acknowledges a write that is lost, and all
stores go on by themselves once a database is at the path again."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Job
from rowlock.core.lifecycle import Answer, Completed
from rowlock.errors import (
    ConnectionRefused,
    LeaseLost,
    NotMigrated,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from rowlock.jobs import Jobs
from rowlock.stores.base import Beat, Guard
from rowlock.stores.queries import Filter
from rowlock.stores.sqlite.store import SqliteStore
from tests.closing import opening
from tests.databases import Databases
from tests.runtime.system.fleet import opened
from tests.stores.harness import claim_by, info, job, settlement
from tests.waiting import until

GONE = r"jobs\.db was deleted or moved away while it was open.*`rowlock migrate`"
ALL = ("", "-wal", "-shm")


@pytest.fixture
def path(tmp_path: Path, databases: Databases) -> Path:
    """Return the path of a database that is alone in its folder."""
    path = tmp_path / "here" / "jobs.db"
    path.parent.mkdir()
    return databases.file(path)


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with a_store(path) as store:
        yield store


@asynccontextmanager
async def a_store(path: Path) -> AsyncIterator[SqliteStore]:
    async with opening(SqliteStore(path)) as store:
        yield store


# ── How a file is lost, and comes back ──


def delete(path: Path, names: tuple[str, ...] = ALL) -> None:
    for name in names:
        Path(f"{path}{name}").unlink()


def delete_alone(path: Path) -> None:
    delete(path, ("",))


def move(path: Path, names: tuple[str, ...] = ALL) -> Callable[[], None]:
    """Move the file away; return a function that moves it back."""
    away = Path(tempfile.mkdtemp(prefix="away-", dir=path.parent.parent))
    for name in names:
        shutil.move(f"{path}{name}", away / f"moved{name}")

    def back() -> None:
        for name in names:
            shutil.move(away / f"moved{name}", f"{path}{name}")

    return back


def move_alone(path: Path) -> Callable[[], None]:
    return move(path, ("",))


def move_directory(path: Path) -> Callable[[], None]:
    away = path.parent.with_name("moved")
    path.parent.rename(away)
    return lambda: void(away.rename(path.parent))


def void(_: object) -> None:
    pass


def is_there(path: Path) -> bool:
    return path.exists()


def find(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern))


def size(path: Path) -> int:
    return path.stat().st_size


LOSSES = [delete, delete_alone, move, move_alone, move_directory]


async def another(path: Path, jobs: int) -> list[str]:
    """Make a database with this many jobs, close it, and return their ids."""
    await SqliteStore(path).migrate()
    async with a_store(path) as store:
        return [one.id for one in await store.insert([job() for _ in range(jobs)])]


async def deleted_and_made_anew(path: Path) -> list[str]:
    delete(path)
    return await another(path, 3)


async def deleted_alone_and_made_anew(path: Path) -> list[str]:
    """Delete only the database file: its log and shared memory are still there, and in use. Make a new database."""
    delete_alone(path)
    return await another(path, 3)


async def replaced(path: Path) -> list[str]:
    """Replace the file as `mv other.db jobs.db` does."""
    ids = await another(path.with_name("other.db"), 3)
    path.with_name("other.db").rename(path)
    return ids


async def replaced_by_a_copy(path: Path) -> list[str]:
    """Replace the file by a backup: it has the same tables and the same identity."""
    ids = await another(path, 3)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(path.with_name("copy.db"))) as target:
        source.backup(target)
    async with a_store(path) as store:  # the backup doesn't have these jobs
        await store.insert([job("later") for _ in range(5)])
    path.with_name("copy.db").rename(path)
    return ids


async def link_to_another(path: Path) -> list[str]:
    ids = await another(path.with_name("other.db"), 3)
    path.with_name("link").symlink_to("other.db")
    path.with_name("link").rename(path)
    return ids


Replace = Callable[[Path], Coroutine[Any, Any, list[str]]]
REPLACEMENTS: list[Replace] = [
    deleted_and_made_anew,
    deleted_alone_and_made_anew,
    replaced,
    replaced_by_a_copy,
    link_to_another,
]


# ── Calls to the store ──


async def run_of(store: SqliteStore) -> Job:
    await store.insert([job()])
    [run] = (await store.claim(claim_by(limit=1))).jobs
    return run


async def notice(store: SqliteStore) -> None:
    """Let a write fail, so that the store notices. The outcome of a commit right after another is unknown; later writes
    are known to do nothing."""
    with pytest.raises(StoreUnavailable):
        await store.insert([job()])


async def a_waiter(store: SqliteStore) -> "asyncio.Task[bool]":
    """Return a task that waits for work, after the store has heard all earlier rings."""
    while await store.wait_for_work(0.1):
        pass
    waiting = asyncio.create_task(store.wait_for_work(600.0))
    await until(lambda: store._doorbell._waiters, what="somebody to wait")
    return waiting


Verb = Callable[[SqliteStore, Job], Awaitable[object]]
WRITES: dict[str, Verb] = {
    "insert": lambda store, _: store.insert([job()]),
    "claim": lambda store, _: store.claim(claim_by()),
    "settle": lambda store, run: store.settle([settlement(run, Completed())]),
    "heartbeat": lambda store, run: store.heartbeat([Beat(run.id, run.version)], 60.0),
    "report": lambda store, _: store.report(info()),
    "pause": lambda store, _: store.steer_topic("mail", "pause", by="ann"),
    "ring": lambda store, _: store.ring(),
}
READS: dict[str, Verb] = {
    "get": lambda store, run: store.read([run.id], Job),
    "look": lambda store, run: store.look([Beat(run.id, run.version)]),
    "list": lambda store, _: store.list(Filter()),
    "stats": lambda store, _: store.stats(),
    "mark": lambda store, _: store.mark(),
    "home": lambda store, _: store.home(),
    "run_bulk": lambda store, _: store.run_bulk(),
    "wait_for_work": lambda store, _: store.wait_for_work(60.0),
}


async def in_transaction(store: SqliteStore, run: Job, meanwhile: Callable[[], None] = lambda: None) -> None:
    async with store.transaction(Guard(run.id, run.version, None, run.locked_by), longest=10.0) as conn:
        conn.execute("INSERT INTO _jobs_meta VALUES ('mine', 'x')")
        meanwhile()


VERBS: dict[str, Verb] = {**WRITES, **READS, "transaction": in_transaction}


def at_path(path: Path, query: str = "SELECT id FROM _jobs ORDER BY id") -> list[Any]:
    """Return what a new process finds at the path: it shares no state with this process."""
    script = "import sqlite3, sys; print(*(row[0] for row in sqlite3.connect(sys.argv[1]).execute(sys.argv[2])))"
    run = subprocess.run([sys.executable, "-c", script, str(path), query], capture_output=True, text=True, check=True)
    return run.stdout.split()


# ── Lost ──


@pytest.mark.parametrize("lose", LOSSES)
async def test_nothing_is_acknowledged(store: SqliteStore, path: Path, lose: Callable[[Path], object]) -> None:
    run = await run_of(store)
    lose(path)
    await notice(store)
    for verb in VERBS.values():
        with pytest.raises(StoreUnavailable, match=GONE) as refused:
            await verb(store, run)
        assert type(refused.value) is StoreUnavailable  # not OutcomeUnknown: the store did nothing
    assert not is_there(path)


async def test_who_waits_for_work_is_told(store: SqliteStore, path: Path) -> None:
    waiting = await a_waiter(store)
    delete(path)
    with pytest.raises(StoreUnavailable, match=GONE):
        await waiting


@pytest.mark.parametrize("lose", [move, move_alone, move_directory])
async def test_a_file_that_comes_back_goes_on(
    store: SqliteStore, path: Path, lose: Callable[[Path], Callable[[], None]]
) -> None:
    run = await run_of(store)
    back = lose(path)
    for verb in VERBS.values():
        with pytest.raises(StoreUnavailable):
            await verb(store, run)
    back()
    [verdict] = (await store.settle([settlement(run, Completed())])).verdicts
    assert verdict.answer is Answer.APPLIED
    [new] = await store.insert([job()])
    assert new.id in at_path(path)
    assert store._use().writer.connection.reopened == 0


async def test_a_commit_into_a_file_that_is_just_lost_has_an_unknown_outcome(store: SqliteStore, path: Path) -> None:
    new = job()
    back: list[Callable[[], None]] = []

    def lose(statement: str) -> None:
        if statement == "COMMIT" and not back:
            back.append(move(path))

    store._use().writer.connection.conn.set_trace_callback(lose)
    with pytest.raises(OutcomeUnknown, match=r"jobs\.db or its -wal file was deleted, moved or replaced"):
        await store.insert([new])
    with pytest.raises(StoreUnavailable, match=GONE):
        await store.insert([new])
    back[0]()
    [answer] = await store.insert([new], repeat=True)
    assert (answer.id, answer.existing) == (new.id, True)


async def test_a_transaction_of_the_applications_own_is_not_committed(store: SqliteStore, path: Path) -> None:
    run = await run_of(store)
    back: list[Callable[[], None]] = []
    with pytest.raises(StoreUnavailable, match=GONE):
        await in_transaction(store, run, lambda: back.append(move(path)))
    back[0]()
    assert at_path(path, "SELECT value FROM _jobs_meta WHERE name = 'mine'") == []


async def test_a_deleted_log(store: SqliteStore, path: Path) -> None:
    """The log holds the newest commits: they would be lost with the processes that have it open."""
    [first] = await store.insert([job()])
    delete(path, ("-wal",))
    store._use().writer.connection._log_seen = 0.0  # check the log now: not every commit does
    with pytest.raises(OutcomeUnknown):
        await store.insert([job()])
    for verb in (store.insert([job()]), store.claim(claim_by())):
        with pytest.raises(StoreUnavailable, match=r"jobs\.db-wal was deleted .* Stop all programs"):
            await verb
    await store.close()
    assert first.id in at_path(path)


async def test_a_database_in_memory_has_no_file() -> None:
    store = SqliteStore(None)
    await store.migrate()
    await store.open()
    await store.insert([job()])
    await store.close()


# ── Replaced ──


@pytest.mark.parametrize("replace", REPLACEMENTS)
async def test_stores_go_on_with_another_file(store: SqliteStore, path: Path, replace: Replace) -> None:
    async with a_store(path) as other:
        both = (store, other)
        lost = await run_of(store)
        waiting = await a_waiter(store)
        there = await replace(path)
        await waiting  # a new file wakes the waiting store
        run = await run_of(other)
        assert run.id in there
        new = [one.id for store in both for one in await store.insert([job()])]
        for store in both:
            assert await store.read([lost.id], Job) == {} or replace is replaced_by_a_copy
            assert {*there, *new} <= (await store.read([*there, *new], Job)).keys()
        [verdict] = (await store.settle([settlement(lost, Completed())])).verdicts
        assert verdict.answer is Answer.LOST or replace is replaced_by_a_copy
        with pytest.raises(LeaseLost):
            await in_transaction(store, structs.replace(lost, version=9))
        waiting = await a_waiter(store)
        await other.insert([job()])
        assert await waiting
        assert {*there, *new} <= set(at_path(path))
        assert at_path(path, "SELECT id FROM _jobs WHERE topic = 'later'") == []
        assert at_path(path, "PRAGMA integrity_check") == ["ok"]


async def test_what_a_moved_file_had_in_its_log_is_in_it(store: SqliteStore, path: Path) -> None:
    """The log stays behind, and is removed when another file takes the place of the database."""
    [first] = await store.insert([job()])
    move_alone(path)
    there = await another(path.with_name("other.db"), 1)
    path.with_name("other.db").rename(path)
    assert list(await store.read(there, Job)) == there
    [moved] = find(path.parent.parent, "away-*/moved")
    assert at_path(moved) == [first.id]


async def test_a_log_that_others_still_read_is_not_removed(store: SqliteStore, path: Path) -> None:
    await store.insert([job()])
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM _jobs").fetchall()
        await store.insert([job()])
        there = await another(path.with_name("other.db"), 1)
        path.with_name("other.db").rename(path)
        with pytest.raises(StoreUnavailable, match=r"jobs\.db-wal .* belong to the file that was there before"):
            await store.stats()
    assert list(await store.read(there, Job)) == there


async def test_a_file_that_is_not_there_yet(store: SqliteStore, path: Path, databases: Databases) -> None:
    """No store makes the file, and no store goes on with half a database."""
    run = await run_of(store)
    whole = await asyncio.to_thread(databases.template_file().read_bytes)
    delete(path)
    await notice(store)
    states: list[tuple[bytes, type[StoreError], str]] = [
        (b"", NotMigrated, "run `rowlock migrate`"),
        (b"remember the milk\n" * 100, StoreUnavailable, "not an SQLite database"),
        (whole[: len(whole) // 2], StoreUnavailable, "damaged"),
    ]
    for content, error, said in states:
        await asyncio.to_thread(path.write_bytes, content)
        for verb in (*VERBS.values(), *VERBS.values()):
            with pytest.raises(error, match=said) as refused:
                await verb(store, run)
            assert type(refused.value) is error  # so the worker keeps finished work, see ClaimSettle
        assert not content or size(path) == len(content)  # SQLite takes an empty file for a database without tables
        delete_alone(path)
    await asyncio.to_thread(path.write_bytes, whole)
    [new] = await store.insert([job()])
    assert at_path(path) == [new.id]


async def test_many_processes_make_the_file_at_once(store: SqliteStore, path: Path) -> None:
    """Meanwhile a store has the deleted file open, and its log and shared memory still exist."""
    await store.insert([job()])
    delete_alone(path)
    script = """
        import asyncio, sys
        from rowlock import Jobs
        async def main():
            async with Jobs(sys.argv[1]) as jobs:
                print((await jobs.enqueue("mail")).id)
        asyncio.run(main())
    """
    words = [sys.executable, "-c", textwrap.dedent(script), f"sqlite:///{path}"]
    clients = [await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE) for _ in range(4)]
    ids = [(await client.communicate())[0].decode().strip() for client in clients]
    [own] = await store.insert([job()])
    assert sorted([*ids, own.id]) == at_path(path)
    assert at_path(path, "PRAGMA integrity_check") == ["ok"]


# ── Connections of the application ──


@pytest.mark.parametrize("replace", [*REPLACEMENTS, None])
def test_a_connection_to_a_deleted_file_is_refused(path: Path, replace: Replace | None) -> None:
    jobs = Jobs(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as before:
        try:
            jobs.sync.enqueue("mail", conn=before)
            before.commit()
            if replace is None:
                back = move(path)
                with pytest.raises(StoreUnavailable, match=GONE):
                    jobs.sync.enqueue("mail", conn=before)
                back()
                jobs.sync.enqueue("mail", conn=before)
                return
            asyncio.run(replace(path))
            for _ in range(2):
                with pytest.raises(ConnectionRefused, match=r"deleted, moved or replaced after|another database"):
                    jobs.sync.enqueue("mail", conn=before)
                before.rollback()
            with closing(sqlite3.connect(path)) as after:
                new = jobs.sync.enqueue("mail", conn=after)
                after.commit()
            assert new.id in at_path(path)
        finally:
            jobs.sync.close()


@pytest.mark.parametrize("marked", [True, False])
def test_a_first_use_inside_a_transaction_need_not_write(path: Path, marked: bool) -> None:
    """The application's transaction holds the write lock."""
    with closing(sqlite3.connect(path)) as conn:
        if marked:
            asyncio.run(another(path, 0))
        conn.execute("UPDATE _jobs_meta SET value = value")
        jobs = Jobs(f"sqlite:///{path}")
        try:
            new = jobs.sync.enqueue("mail", conn=conn)
            conn.commit()
        finally:
            jobs.sync.close()
    assert at_path(path) == [new.id]


async def test_a_child_of_a_worker_makes_no_file(path: Path) -> None:
    delete_alone(path)
    jobs = Jobs(f"sqlite:///{path}")
    jobs.context_host(in_child=True)
    try:
        with pytest.raises(StoreUnavailable, match=GONE):
            await jobs.enqueue("mail")
        assert list(path.parent.iterdir()) == []
    finally:
        await jobs.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_file_that_was_away_during_a_fork_stays_closed_to_the_child(path: Path) -> None:
    script = """
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from rowlock.errors import ForkedStore
        from rowlock.stores.sqlite.connect import connect_reader
        path = sys.argv[1]
        conn = connect_reader(path, busy_timeout=1.0)
        os.rename(path, path + ".away")
        pid = os.fork()
        if pid == 0:
            os.rename(path + ".away", path)
            try:
                connect_reader(path, busy_timeout=1.0)
            except ForkedStore:
                os._exit(0)
            os._exit(3)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    words = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


# ── A real worker ──


@pytest.mark.timeout(180)
async def test_a_worker_waits_for_its_file_and_makes_none(path: Path, tmp_path: Path) -> None:
    async with opened(f"sqlite:///{path}", tmp_path) as fleet:
        worker = await fleet.start()
        [pid] = worker.children()
        napping = await fleet.enqueue("nap", {"seconds": 0.5})
        await fleet.begun(napping)
        back = move(path)
        await fleet.until(lambda: fleet.noted("ended"), what="the handler to end")
        await fleet.until(lambda: "was deleted or moved away" in worker.output, what="the worker to notice")
        back()
        [ended] = await fleet.ended(napping)
        assert (ended.status, ended.version) == ("completed", 1)  # the result from meanwhile is stored

        back = move(path)
        os.kill(pid, signal.SIGKILL)
        await fleet.until(lambda: "not there yet" in worker.output, what="another process to wait for the file")
        assert list(path.parent.iterdir()) == []
        back()
        [new] = await fleet.ended(await fleet.enqueue("nap", {"seconds": 0}))
        assert new.status == "completed"

        await replaced(path)
        [after] = await fleet.ended(await fleet.enqueue("nap", {"seconds": 0}))
        assert after.status == "completed"
        assert after.id in at_path(path, "SELECT id FROM _jobs_archive")
