"""jobs.sync from threads, after fork, in an event loop, after close: it works, or says what to do. It never hangs."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from rowlock import errors
from rowlock.core.job import Status
from rowlock.jobs import Jobs
from rowlock.stores import open_store
from rowlock.sync import SyncJobs
from tests.databases import KINDS, Databases


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> Iterator[str]:
    with asyncio.Runner() as runner:
        fresh = databases.at(request.param, tmp_path)
        yield runner.run(fresh.__aenter__())
        runner.run(fresh.__aexit__(None, None, None))


@pytest.fixture
def jobs(url: str) -> Iterator[Jobs]:
    jobs = Jobs(url)
    yield jobs
    jobs.sync.close()


def test_the_same_verbs(jobs: Jobs) -> None:
    enqueued = jobs.sync.enqueue("mail", {"n": 1}, key="k")
    assert jobs.sync.enqueue("mail", key="k").existing
    assert jobs.sync.get(enqueued.id).payload == {"n": 1}
    assert len(jobs.sync.enqueue_many([("mail", {}), ("mail", {})])) == 2
    assert jobs.sync.list().total == 3
    assert jobs.sync.cancel(enqueued.id).status is Status.CANCELLED
    assert jobs.sync.wait(enqueued.id).status is Status.CANCELLED
    with pytest.raises(errors.JobCancelled):
        jobs.sync.result(enqueued)
    assert jobs.sync.requeue(enqueued.id).status is Status.PENDING
    jobs.sync.delete(enqueued.id)
    with pytest.raises(errors.JobNotFound):
        jobs.sync.get(enqueued.id)
    jobs.sync.topics.pause("mail", by="ann")
    assert [pause.by for pause in jobs.sync.topics.paused()] == ["ann"]
    assert jobs.sync.topics.resume("mail")
    assert [entry.action for entry in jobs.sync.audit.list(limit=2)] == ["resume", "pause"]
    assert (list(jobs.sync.workers.list()), jobs.sync.failures.list().items) == ([], [])


def verbs(of: type) -> set[str]:
    """Return the names of the public async methods."""
    return {name for name, value in vars(of).items() if asyncio.iscoroutinefunction(value) and name[0] != "_"}


def test_every_verb_has_its_twin(jobs: Jobs) -> None:
    assert verbs(Jobs) - set(vars(SyncJobs)) == set()
    inner = {"definitions"}
    groups = {name: group for name, group in vars(jobs).items() if verbs(type(group)) and name[0] != "_"}
    groups = {name: group for name, group in groups.items() if name not in inner}
    assert groups.keys() == {
        "audit",
        "bulk",
        "failures",
        "flows",
        "limits",
        "schedules",
        "templates",
        "tokens",
        "topics",
        "workers",
    }
    for name, group in groups.items():
        assert verbs(type(group)) - set(vars(type(getattr(jobs.sync, name)))) == set()
    checked = subprocess.run([sys.executable, "tools/sync_twin.py", "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_ten_threads_at_once(jobs: Jobs) -> None:
    ids: list[str] = []

    def enqueue() -> None:
        ids.extend(jobs.sync.enqueue("mail", {"n": n}).id for n in range(20))

    threads = [threading.Thread(target=enqueue) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 200
    assert jobs.sync.stats("mail").pending == 200


async def test_in_an_event_loop_it_says_what_to_call(tmp_path: Path) -> None:
    jobs = Jobs(f"sqlite:///{tmp_path}/jobs.db")
    with pytest.raises(errors.WrongContext, match="await jobs"):
        jobs.sync.enqueue("mail")
    enqueued = await asyncio.to_thread(jobs.sync.enqueue, "mail")
    assert (await jobs.get(enqueued.id)).topic == "mail"
    await jobs.close()


def test_after_close_it_says_so_and_a_second_close_is_fine(jobs: Jobs) -> None:
    jobs.sync.enqueue("mail")
    jobs.sync.close()
    jobs.sync.close()
    with pytest.raises(errors.StoreClosed):
        jobs.sync.enqueue("mail")


def test_opened_again_after_close(jobs: Jobs) -> None:
    jobs.sync.enqueue("mail")
    jobs.sync.close()
    jobs.sync.open()
    assert jobs.sync.stats("mail").pending == 1


def test_closing_from_many_threads_at_once(jobs: Jobs) -> None:
    jobs.sync.enqueue("mail")
    errors_seen: list[BaseException] = []

    def close() -> None:
        try:
            jobs.sync.close()
        except BaseException as error:
            errors_seen.append(error)

    threads = [threading.Thread(target=close) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors_seen == []


def test_closing_wakes_whoever_waits(jobs: Jobs) -> None:
    enqueued = jobs.sync.enqueue("mail")
    begun = threading.Event()
    outcome: list[BaseException] = []

    def wait() -> None:
        begun.set()
        try:
            jobs.sync.wait(enqueued.id)
        except errors.RowlockError as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    jobs.sync.close()
    thread.join(30)
    assert not thread.is_alive()
    [error] = outcome
    assert isinstance(error, errors.StoreClosed | errors.OutcomeUnknown)  # OutcomeUnknown: the close came during a look


def in_a_child(jobs: Jobs) -> str:
    """Enqueue a job in a child after fork(). Return its id, or the error."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = jobs.sync.enqueue("child").id
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(reading, 4096).decode()
    os.close(reading)
    os.close(writing)
    return answer


def test_after_fork_the_child_goes_on_or_is_told_what_to_do(jobs: Jobs, url: str) -> None:
    jobs.sync.enqueue("mail")
    answer = in_a_child(jobs)
    if url.startswith("sqlite"):  # SQLite's locks don't survive a fork
        assert answer.startswith("ForkedStore")
        assert "Fork first and open later" in answer
    else:
        assert jobs.sync.get(answer).topic == "child"
    assert not jobs.sync.enqueue("parent").existing


def test_forked_before_it_was_used(jobs: Jobs) -> None:
    if "sqlite" in jobs.settings.url:
        asyncio.run(_migrate(jobs))  # the store is closed again, so nothing crosses the fork
    assert jobs.sync.get(in_a_child(jobs)).topic == "child"


async def _migrate(jobs: Jobs) -> None:
    await open_store(jobs.settings.url).migrate()


def test_a_store_in_memory_can_not_be_taken_through_a_fork() -> None:
    jobs = Jobs("sqlite://")
    jobs.sync.enqueue("mail")
    assert in_a_child(jobs).startswith("ForkedStore")
    jobs.sync.close()


def test_a_program_that_closes_nothing_ends(tmp_path: Path) -> None:
    program = f"from rowlock import Jobs; print(Jobs('sqlite:///{tmp_path}/jobs.db').sync.enqueue('mail').status)"
    ended = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "pending\n", "")


def test_a_first_use_inside_a_transaction_is_told_to_open_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowlock.client.connections._PATIENCE_IN_TRANSACTION", 0.1)
    jobs = Jobs(f"sqlite:///{tmp_path}/jobs.db")
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("CREATE TABLE orders (n)")
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.StoreBusy, match=r"jobs\.sync\.open\(\) once, when the program starts"):
            jobs.sync.enqueue("mail", conn=connection)
        connection.rollback()
    jobs.sync.open()
    jobs.sync.close()


def test_opened_and_closed_by_several_threads_at_once(tmp_path: Path) -> None:
    """The threads don't deadlock, and the Jobs can be used afterwards."""
    jobs = Jobs(f"sqlite:///{tmp_path}/jobs.db")

    def work() -> None:
        for _ in range(20):
            with suppress(errors.StoreError):
                jobs.sync.open()
                jobs.sync.enqueue("mail")
                jobs.sync.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    jobs.sync.open()
    jobs.sync.enqueue("mail")
    jobs.sync.close()
