"""Faults that only SQLite can have: files, locks, forks, threads, other processes."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rowlock import errors
from rowlock.core.job import Job
from rowlock.core.lifecycle import Answer, Completed, Failed
from rowlock.stores import migrations
from rowlock.stores.base import Beat
from rowlock.stores.sqlite import connect, filesystem, threads
from rowlock.stores.sqlite.claim import claim
from rowlock.stores.sqlite.connection import SqliteConnection, microseconds
from rowlock.stores.sqlite.insert import insert
from rowlock.stores.sqlite.migrate import known, statements
from rowlock.stores.sqlite.queries import read
from rowlock.stores.sqlite.rows import sql
from rowlock.stores.sqlite.settle import settle
from rowlock.stores.sqlite.store import SqliteStore
from tests.closing import opening
from tests.stores.harness import claim_by, job, settlement
from tests.waiting import PATIENCE


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "jobs.db")
    await store.migrate()
    async with opening(store):
        yield store


@contextmanager
def direct(path: Path) -> Iterator[SqliteConnection]:
    """Yield a migrated database without the threads of a store."""
    with closing(connect.connect_writer(str(path), synchronous="normal", busy_timeout=5.0)) as conn:
        database = SqliteConnection(conn, str(path))
        database.migrate()
        yield database


@contextmanager
def other_connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30.0)) as conn:
        yield conn


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Run as an ordinary user: root may do everything, so the system would refuse nothing."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def files_in(directory: Path) -> list[str]:
    return [file.name for file in directory.iterdir()]


def mounted(kind: str, directory: Path) -> filesystem.Mount:
    return filesystem.Mount(str(directory.resolve()), kind, "rw")


def make_directory(mode: int) -> Path:
    """Return a new directory with this mode. Other users can't enter the directories that pytest makes."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(mode)
    return directory


async def try_open(path: Path) -> None:
    store = SqliteStore(path)
    try:
        await store.open()
    finally:
        await store.close()


# ── Opening ──


async def test_a_missing_directory(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "jobs.db"
    for attempt in (SqliteStore(path).open, SqliteStore(path).migrate, SqliteStore(path).pending_migrations):
        with pytest.raises(errors.StoreUnavailable, match=r"nowhere doesn't exist; create it"):
            await attempt()


async def test_a_missing_file_is_made_by_migrate_only(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    assert (await store.pending_migrations()).migrations == list(known())
    with pytest.raises(errors.NotMigrated, match=r"jobs\.db lacks .*: run `rowlock migrate`"):
        await store.open()
    assert files_in(tmp_path) == []
    assert await store.migrate() == list(known())
    assert (await store.pending_migrations()).migrations == []
    assert await store.migrate() == []
    await store.open()
    await store.close()
    assert files_in(tmp_path) == ["jobs.db"]  # the last connection that closes removes the WAL


async def test_an_empty_file_is_a_database(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").touch()
    with pytest.raises(errors.NotMigrated):
        await try_open(tmp_path / "jobs.db")
    await SqliteStore(tmp_path / "jobs.db").migrate()
    await try_open(tmp_path / "jobs.db")


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("remember the milk\n" * 100)
    for attempt in (SqliteStore(tmp_path / "notes.txt").open, SqliteStore(tmp_path / "notes.txt").migrate):
        with pytest.raises(errors.StoreError, match=r"notes\.txt is not an SQLite database"):
            await attempt()
    assert (tmp_path / "notes.txt").read_text().startswith("remember")


@pytest.mark.parametrize("path", ["", ".", "/dev/null", "jobs\0.db"])
async def test_paths_that_are_no_files(path: str) -> None:
    with pytest.raises(errors.StoreError, match=r"directory|regular file|not a path"):
        await SqliteStore(path).open()


async def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.StoreUnavailable, match="is not a directory"):
        await SqliteStore(tmp_path / "file" / "jobs.db").open()


@pytest.mark.parametrize(
    ("file_mode", "directory_mode", "error"),
    [
        (0o444, 0o777, errors.StoreReadOnly),
        (0o000, 0o777, errors.AccessDenied),
        (0o666, 0o555, errors.AccessDenied),
        (0o666, 0o000, errors.AccessDenied),
        (None, 0o555, errors.AccessDenied),
    ],
)
async def test_permissions(file_mode: int | None, directory_mode: int, error: type[errors.StoreError]) -> None:
    directory = make_directory(directory_mode)
    path = directory / "jobs.db"
    if file_mode is not None:
        await SqliteStore(path).migrate()
        path.chmod(file_mode)
    try:
        with ordinary_user(), pytest.raises(error, match=r"jobs\.db") as refused:
            await try_open(path)
    finally:
        shutil.rmtree(directory)
    assert type(refused.value) is error


async def test_an_odd_path(tmp_path: Path) -> None:
    path = tmp_path / "a b?mode=ro&c#d%20ü.db"
    await SqliteStore(path).migrate()
    await try_open(path)
    assert path.exists()


def test_an_old_sqlite_is_refused() -> None:
    with pytest.raises(errors.StoreError, match=r"SQLite 3\.34\.1, rowlock needs 3\.35\.0"):
        connect.check_version((3, 34, 1))
    connect.check_version((3, 35, 0))


async def test_a_newer_schema(store: SqliteStore, tmp_path: Path) -> None:
    with other_connection(tmp_path / "jobs.db") as conn:
        conn.execute("INSERT INTO _jobs_migrations VALUES (9999, 'future', 'x', 0)")
    with pytest.raises(errors.SchemaTooNew, match=r"jobs\.db is at schema version 9999"):
        await try_open(tmp_path / "jobs.db")


async def test_a_changed_migration(store: SqliteStore, tmp_path: Path) -> None:
    with other_connection(tmp_path / "jobs.db") as conn:
        conn.execute("UPDATE _jobs_migrations SET checksum = 'x' WHERE number = 1")
    for attempt in (SqliteStore(tmp_path / "jobs.db").open, store.migrate, store.pending_migrations):
        with pytest.raises(errors.MigrationChanged, match="0001"):
            await attempt()


async def test_migrating_from_many_at_once(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / "jobs.db") for _ in range(8)]
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    # Each migration is applied once. A store that waited for one may apply the next.
    assert sorted(one.number for answer in applied for one in answer) == [one.number for one in known()]


async def test_a_migration_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = migrations.Migration(len(known()) + 1, "broken", "CREATE TABLE half (a);\nCREATE TABLE half (b);\n")
    monkeypatch.setattr("rowlock.stores.sqlite.migrate.known", lambda: (*known(), broken))
    with pytest.raises(errors.StoreError, match="half"):
        await SqliteStore(tmp_path / "jobs.db").migrate()
    with other_connection(tmp_path / "jobs.db") as conn:
        assert conn.execute("SELECT name FROM sqlite_master WHERE name = 'half'").fetchall() == []
        assert conn.execute("SELECT count(*) FROM _jobs_migrations").fetchone() == (len(known()),)


async def test_migrations_as_a_script(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    with other_connection(tmp_path / "jobs.db") as conn:
        conn.executescript((await store.pending_migrations()).script)
        times = [at for (at,) in conn.execute("SELECT applied_at FROM _jobs_migrations")]
    assert len(times) == len(known())
    assert all(abs(at - microseconds()) < 60_000_000 for at in times)
    assert (await store.pending_migrations()).migrations == []
    await try_open(tmp_path / "jobs.db")


def test_statements() -> None:
    script = "-- one;\nCREATE TABLE a (b TEXT DEFAULT ';'); -- two\n\nCREATE VIEW v AS\n  SELECT 1;\n-- the end\n"
    assert [part.strip() for part in statements(script)] == [
        "-- one;\nCREATE TABLE a (b TEXT DEFAULT ';'); -- two",
        "CREATE VIEW v AS\n  SELECT 1;",
    ]
    with pytest.raises(errors.StoreError, match="middle of a statement"):
        list(statements("SELECT 1"))


async def test_the_pragmas(store: SqliteStore, tmp_path: Path) -> None:
    with closing(connect.connect_writer(str(tmp_path / "jobs.db"), synchronous="full", busy_timeout=1.0)) as conn:
        pragmas = {name: conn.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")}
        assert pragmas == {"journal_mode": "wal", "synchronous": 2}
    with closing(connect.connect_writer(str(tmp_path / "jobs.db"), synchronous="normal", busy_timeout=1.0)) as conn:
        assert conn.execute("PRAGMA synchronous").fetchone() == (1,)


# ── Network file systems ──

LINUX = r"""
/dev/vda / ext4 rw,relatime 0 0
proc /proc proc rw,nosuid 0 0
server:/export /mnt/my\040share nfs4 rw,vers=4.2 0 0
//server/public /mnt/smb cifs rw 0 0
me@host:/ /home/me/remote fuse.sshfs rw,user_id=1000 0 0
/dev/vdb /mnt/smb/local ext4 rw 0 0
C:\134 /mnt/c 9p rw,aname=drvfs,trans=fd,rfd=5,wfd=5 0 0
plan9 /mnt/plan9 9p rw,trans=tcp,port=564 0 0
/dev/vdc /mnt/nfs-local xfs rw 0 0
old:/x /mnt/over nfs rw 0 0
/dev/vdd /mnt/over ext4 rw 0 0
bad line
"""
MACOS = """
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
//ann@server/share (1) on /Volumes/share (1) (smbfs, nodev, nosuid, mounted by ann)
server:/export on /Volumes/nfs (nfs, nodev)
https://dav.example.com/ on /Volumes/dav (webdav, nodev)
"""


ON_LINUX = {
    "/home/me/jobs.db": None,
    "/mnt/my share/jobs.db": "nfs4",
    "/mnt/my share2/jobs.db": None,
    "/mnt/smb/jobs.db": "cifs",
    "/mnt/smb/local/jobs.db": None,
    "/home/me/remote/a/b/jobs.db": "fuse.sshfs",
    "/mnt/c/jobs.db": None,
    "/mnt/plan9/jobs.db": "9p",
    "/mnt/nfs-local/jobs.db": None,
    "/mnt/over/jobs.db": None,
}
ON_MACOS = {
    "/Users/ann/jobs.db": None,
    "/Volumes/share (1)/jobs.db": "smbfs",
    "/Volumes/nfs/jobs.db": "nfs",
    "/Volumes/dav/jobs.db": "webdav",
}


def test_network_file_systems() -> None:
    linux, macos = filesystem.linux_mounts(LINUX), filesystem.macos_mounts(MACOS)
    assert {path: filesystem.network_filesystem(path, linux) for path in ON_LINUX} == ON_LINUX
    assert {path: filesystem.network_filesystem(path, macos) for path in ON_MACOS} == ON_MACOS


async def test_a_network_file_system_is_refused_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [mounted("nfs4", tmp_path)]
    monkeypatch.setattr(connect, "current_mounts", lambda: mounts)
    for attempt in (SqliteStore(tmp_path / "jobs.db").open, SqliteStore(tmp_path / "jobs.db").migrate):
        with pytest.raises(errors.UnsafeFilesystem, match=r"nfs4.*force_network_fs"):
            await attempt()
    assert await SqliteStore(tmp_path / "jobs.db", force_network_fs=True).migrate()


# ── Closing ──


async def test_before_open_and_after_close(store: SqliteStore, tmp_path: Path) -> None:
    await store.close()
    await store.close()
    for unusable in (store, SqliteStore(tmp_path / "jobs.db"), SqliteStore(None)):
        for verb in (unusable.now(), unusable.read([], Job), unusable.insert([]), unusable.heartbeat([], 1.0)):
            with pytest.raises(errors.StoreClosed, match=r"open\(\)"):
                await verb
        with pytest.raises(errors.StoreClosed):
            await unusable.wait_for_work(1.0)
    await store.open()
    await store.insert([job()])


async def test_close_lets_what_was_asked_before_be_done(store: SqliteStore) -> None:
    jobs = [job() for _ in range(20)]
    asked = [asyncio.create_task(store.insert([one])) for one in jobs]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*asked)
    await store.open()
    assert len(await store.read([one.id for one in jobs], Job)) == 20


async def test_close_wakes_whoever_waits(store: SqliteStore) -> None:
    waiting = asyncio.create_task(store.wait_for_work(3600.0))
    await asyncio.sleep(0.05)
    await store.close()
    with pytest.raises(errors.StoreClosed):
        await asyncio.wait_for(waiting, PATIENCE)


async def test_close_does_not_wait_for_a_lock(store: SqliteStore, tmp_path: Path) -> None:
    with other_connection(tmp_path / "jobs.db") as conn:
        conn.execute("BEGIN IMMEDIATE")
        asked = asyncio.create_task(store.insert([job()]))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(25.0):  # less than the 30 s of busy_timeout
            await store.close()
        with pytest.raises(errors.StoreBusy):
            await asked


async def test_a_cancelled_verb_that_has_not_begun_is_not_done(store: SqliteStore, tmp_path: Path) -> None:
    new = job()
    with other_connection(tmp_path / "jobs.db") as conn:
        conn.execute("BEGIN IMMEDIATE")
        first = asyncio.create_task(store.promote())  # keeps the writer busy
        await asyncio.sleep(0.05)
        second = asyncio.create_task(store.insert([new]))
        third = asyncio.create_task(store.steer_topic("mail", "pause", by="ann"))
        await asyncio.sleep(0.05)
        second.cancel()
        third.cancel()
        await asyncio.gather(second, third, return_exceptions=True)
        conn.execute("ROLLBACK")
    await first
    assert await store.read([new.id], Job) == {}
    assert await store.paused() == []


# ── Locks and disk errors ──


async def test_what_is_quick_does_not_wait_behind_a_long_reading(store: SqliteStore) -> None:
    [inserted] = await store.insert([job()])
    opened, begun, done = store._use(), threading.Event(), threading.Event()

    def wait(_: SqliteConnection) -> bool:
        begun.set()
        return done.wait(30)

    long = asyncio.create_task(opened.readers[0].call(wait))
    await asyncio.to_thread(begun.wait, 30)
    mark = await store.mark()
    assert list(await store.read([inserted.id], Job)) == [inserted.id]
    assert await store.mark() == mark
    done.set()
    assert await long
    assert await store.mark() == mark
    await store.insert([job()])
    assert await store.mark() != mark


async def test_busy_for_too_long(store: SqliteStore, tmp_path: Path) -> None:
    async with opening(SqliteStore(tmp_path / "jobs.db", busy_timeout=0.2)) as patient:
        with other_connection(tmp_path / "jobs.db") as conn:
            conn.execute("BEGIN IMMEDIATE")
            with pytest.raises(errors.StoreBusy, match=r"jobs\.db was locked by others for more than 0\.2 s"):
                await patient.insert([job()])
            assert await patient.read(["x"], Job) == {}  # reads go on
        await patient.insert([job()])


async def test_opening_while_someone_writes(store: SqliteStore, tmp_path: Path) -> None:
    with other_connection(tmp_path / "jobs.db") as conn:
        conn.execute("BEGIN IMMEDIATE")
        async with asyncio.timeout(25.0):  # less than the 30 s of busy_timeout
            await try_open(tmp_path / "jobs.db")


def test_the_clock_is_read_after_the_lock_was_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with closing(connect.connect_writer(path, synchronous="normal", busy_timeout=5.0)) as conn:
        clock_saw: list[bool] = []

        def clock() -> int:
            clock_saw.append(conn.in_transaction)
            return microseconds()

        database = SqliteConnection(conn, path, clock=clock)
        database.migrate()
        database.write(lambda conn, now: insert(conn, now, [job()]))
        database.write(lambda conn, now: claim(conn, now, claim_by()))
        assert clock_saw
        assert all(clock_saw)


def test_a_full_disk(tmp_path: Path) -> None:
    with direct(tmp_path / "jobs.db") as database:
        conn = database.conn
        (pages,) = conn.execute("PRAGMA page_count").fetchone()
        conn.execute(f"PRAGMA max_page_count = {pages + 2}").fetchall()
        new = [job("mail", {"text": "x" * 1000}) for _ in range(100)]
        with pytest.raises(errors.StoreFull, match=r"no space left for .*jobs\.db"):
            database.write(lambda conn, now: insert(conn, now, new))
        assert not conn.in_transaction
        conn.execute("PRAGMA max_page_count = 100000").fetchall()
        assert not any(answer.existing for answer in database.write(lambda conn, now: insert(conn, now, new)))


async def test_the_wal_shrinks_when_a_long_reader_is_gone(store: SqliteStore, tmp_path: Path) -> None:
    wal = tmp_path / "jobs.db-wal"
    with other_connection(tmp_path / "jobs.db") as conn:
        conn.execute("BEGIN")
        conn.execute("SELECT count(*) FROM _jobs").fetchall()
        for _ in range(10):
            await store.insert([job("mail", {"text": "x" * 10_000}) for _ in range(100)])
        assert wal.stat().st_size > 8 << 20
    await store.close()
    assert not wal.exists()


@pytest.mark.parametrize("at", ["settle_archive", "settle_delete", "settle", "history", "claim"])
def test_a_verb_that_breaks_off_anywhere_has_done_nothing(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One statement of the verb fails. The verb has no effect, and the connection is still usable."""
    conn = connect.connect_memory()
    database = SqliteConnection(conn)
    database.migrate()
    database.write(lambda conn, now: insert(conn, now, [job() for _ in range(9)]))
    held = database.write(lambda conn, now: claim(conn, now, claim_by(limit=6))).jobs
    outcomes = [settlement(one, Completed()) for one in held[:3]]
    wishes = [*outcomes, *(settlement(one, Failed("boom")) for one in held[3:])]
    before = "\n".join(conn.iterdump())

    for module in ("claim", "settle", "rows"):
        broken = lambda name: "SELECT no_such_column" if name == at else sql(name)  # noqa: E731
        monkeypatch.setattr(f"rowlock.stores.sqlite.{module}.sql", broken)
    with pytest.raises((errors.StoreError, sqlite3.Error)):
        database.write(lambda conn, now: settle(conn, now, wishes, claim_by("w2", limit=3)))
    monkeypatch.undo()
    assert "\n".join(conn.iterdump()) == before
    settled = database.write(lambda conn, now: settle(conn, now, wishes))
    assert {verdict.answer for verdict in settled.verdicts} == {Answer.APPLIED}
    connect.disconnect(conn)


# ── Inserts ──


def test_insert_in_the_transaction_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with direct(path) as ours, closing(sqlite3.connect(path)) as theirs:
        theirs.row_factory = sqlite3.Row
        theirs.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        theirs.execute("INSERT INTO orders VALUES (1)")
        kept, lost = job(key="order-1"), job()
        [answer] = insert(theirs, microseconds(), [kept])
        [again] = insert(theirs, microseconds(), [job(key="order-1")])
        assert (answer.existing, again.existing, again.id) == (False, True, kept.id)
        theirs.commit()
        insert(theirs, microseconds(), [lost])
        theirs.rollback()
        assert list(read(ours.conn, [kept.id, lost.id], Job)) == [kept.id]


# ── In memory ──


async def test_in_memory() -> None:
    store, other = SqliteStore(None), SqliteStore(":memory:")
    with pytest.raises(errors.NotMigrated):
        await store.open()
    await store.migrate()
    await store.open()
    new = job()
    await store.insert([new])
    assert await store.wait_for_work(1.0)
    assert not await store.wait_for_work(0.01)
    assert new.id in await store.read([new.id], Job)
    assert (await other.pending_migrations()).migrations == list(known())
    await other.close()
    await store.close()
    assert (await store.pending_migrations()).migrations == list(known())  # the database in memory is gone
    await store.close()


# ── Waking up ──


async def test_another_connections_commit_wakes(store: SqliteStore, tmp_path: Path) -> None:
    await store.wait_for_work(0.2)
    waiting = asyncio.create_task(store.wait_for_work(3600.0))
    await asyncio.sleep(0.1)
    with other_connection(tmp_path / "jobs.db") as conn:
        conn.execute("CREATE TABLE unrelated (a)")
    assert await asyncio.wait_for(waiting, PATIENCE)


async def test_a_ring_between_two_waits_is_heard(store: SqliteStore) -> None:
    await store.wait_for_work(0.1)
    await store.ring()
    assert await store.wait_for_work(0.0)


async def test_many_may_wait(store: SqliteStore) -> None:
    await store.wait_for_work(0.1)
    waiting = [asyncio.create_task(store.wait_for_work(10.0)) for _ in range(5)]
    await asyncio.sleep(0.02)
    waiting[0].cancel()
    await store.insert([job()])
    assert await asyncio.gather(*waiting[1:]) == [True] * 4


async def test_waiting_costs_next_to_nothing(store: SqliteStore) -> None:
    await store.wait_for_work(0.5)
    before = time.process_time()
    assert not await store.wait_for_work(1.0)
    assert time.process_time() - before < 0.2  # 0.5 % of a core is usual; a busy machine doubles that and more


# ── fork ──


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    script = """
        import asyncio, gc, os, sys, warnings
        warnings.simplefilter("ignore")  # fork() with threads: that is what is tried here
        from rowlock.core.ids import IdMaker
        from rowlock.core.job import new_job
        from rowlock.errors import ForkedStore
        from rowlock.stores.after_fork import keep_for_ever
        from rowlock.stores.sqlite.connect import connect_reader
        from rowlock.stores.sqlite.store import SqliteStore

        ids = IdMaker(lambda: 0, os.urandom)
        path = sys.argv[1]
        store = SqliteStore(path)

        async def before():
            await store.migrate()
            await store.open()
            await store.insert([new_job(one, "mail") for one in ids.many(10)])

        async def after():
            await store.insert([new_job(one, "mail") for one in ids.many(10)])
            await store.close()

        def child():
            try:
                for verb in (store.now, store.paused, store.open, store.migrate):
                    try:
                        verb().send(None)
                        os._exit(3)
                    except ForkedStore as refused:
                        assert "Fork first and open later" in str(refused)
                os.chdir(os.path.dirname(path))
                try:  # nor may it be opened anew, whatever it is called
                    connect_reader(os.path.join(".", os.path.basename(path)), busy_timeout=1.0)
                    os._exit(5)
                except ForkedStore:
                    pass
                try:
                    store.close().send(None)
                except StopIteration:
                    pass
            except BaseException as error:
                print(repr(error))
                os._exit(4)
            globals().pop("store")
            keep_for_ever(runner)  # asyncio's loop doesn't survive a fork either: that is not what is tried here
            gc.collect()
            sys.exit(0)  # with all that the end of an interpreter does

        runner = asyncio.Runner()
        runner.run(before())
        pid = os.fork()
        if pid == 0:
            child()
        _, status = os.waitpid(pid, 0)
        assert status == 0, status
        assert os.path.exists(path + "-wal"), "the child closed its parent's connection"
        runner.run(after())
        runner.close()
    """
    path = tmp_path / "jobs.db"
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr
    with other_connection(path) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert conn.execute("SELECT count(*) FROM _jobs").fetchone() == (20,)


async def test_heartbeats_of_many_jobs(store: SqliteStore) -> None:
    await store.insert([job() for _ in range(3000)])
    held = (await store.claim(claim_by(limit=3000))).jobs
    assert len(held) == 3000
    assert set(await store.heartbeat([Beat(one.id, one.version) for one in held], 30.0)) == {"kept"}


async def test_an_answer_that_finds_no_memory_comes_later(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler has used up the memory for a moment. The thread must not die, and no caller may wait for ever."""
    deliver, failures = threads.deliver, iter([MemoryError(), MemoryError()])

    def hungry(answers: list[threads.Answer]) -> None:
        for failure in failures:
            raise failure
        deliver(answers)

    monkeypatch.setattr(threads, "deliver", hungry)
    async with asyncio.timeout(PATIENCE):
        assert await store.promote() == 0
        assert await store.promote() == 0


def test_a_rollback_that_finds_no_memory_is_tried_again(tmp_path: Path) -> None:
    failures = iter([MemoryError(), MemoryError()])

    class Hungry(sqlite3.Connection):
        def execute(self, statement: str, *arguments: object) -> sqlite3.Cursor:
            if statement == "ROLLBACK":
                for failure in failures:
                    raise failure
            return super().execute(statement, *arguments)  # type: ignore[arg-type]

    path = tmp_path / "some.db"
    with closing(sqlite3.connect(path, isolation_level=None, factory=Hungry)) as conn:
        with pytest.raises(MemoryError), SqliteConnection(conn, str(path)).transaction():
            raise MemoryError
        assert not conn.in_transaction
