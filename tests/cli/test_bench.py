"""`rowlock bench` measures, leaves nothing behind however it ends, and does not touch other jobs."""

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from rowlock.cli import cli
from rowlock.cli.bench_runs import drained
from rowlock.core.job import Job, Lane, Status
from rowlock.core.lifecycle import Completed, Failed
from rowlock.jobs import Jobs
from rowlock.stores.base import Claim, WorkerInfo
from rowlock.stores.queries import Filter
from tests.cli.conftest import Shell, start
from tests.guard import processes, running
from tests.waiting import PATIENCE, wait_until

SMALL = ("bench", "--jobs", "30", "--processes", "1", "--concurrency", "10")
LONG = ("bench", "--jobs", "60", "--processes", "1", "--concurrency", "10", "--sleep", "30s")
# A measurement starts processes, which takes long. Tests that hardly depend on the database use the other kind only in
# the proof.
mostly_sqlite = pytest.mark.parametrize(
    "shell", ["sqlite", pytest.param("postgres", marks=pytest.mark.proof)], indirect=True
)
mostly_postgres = pytest.mark.parametrize(
    "shell", ["postgres", pytest.param("sqlite", marks=pytest.mark.proof)], indirect=True
)


# ── What it leaves behind ──


def everything(shell: Shell, *statuses: str) -> list[Job]:
    return shell.do(lambda jobs: jobs.list(Filter(statuses=statuses), limit=200)).items


def own(shell: Shell, *statuses: str) -> list[Job]:
    """Return the jobs of the measurement."""
    return [job for job in everything(shell, *statuses) if job.topic.startswith("rowlock.bench.")]


def workers(shell: Shell) -> list[WorkerInfo]:
    return list(shell.do(lambda jobs: jobs.workers.list()))


@contextmanager
def started(shell: Shell, *arguments: str, stdin: int = subprocess.DEVNULL) -> Iterator["subprocess.Popen[str]"]:
    with start(*arguments, cwd=shell.folder, stdin=stdin, ROWLOCK_URL=shell.url) as process:
        try:
            yield process
        finally:
            process.kill()


def descendants(pid: int) -> set[int]:
    parents = {child: parent for child, parent, _ in processes()}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


# ── It measures ──


def test_it_measures_and_removes_what_it_made(shell: Shell) -> None:
    report = shell.json("bench", "--jobs", "30", "--concurrency", "10", "--payload", "100")
    assert report["topic"].startswith("rowlock.bench.")
    assert (report["concurrency"], report["payload"], report["removed"]) == (10, 100, True)
    rates = [report["enqueue"], report["enqueue_bulk"], *report["drains"], report["drain_sleep"]]
    assert all(rate["per_second"] > 0 and rate["seconds"] > 0 for rate in rates)
    assert [drain["processes"] for drain in report["drains"]] == [1, 2]
    assert [rate["jobs"] for rate in (report["enqueue_bulk"], report["drains"][0])] == [60, 30]
    assert {drain["sleep"] for drain in report["drains"]} == {0}
    assert (report["drain_sleep"]["sleep"], report["drain_sleep"]["jobs"]) == (0.01, 30)
    assert 0 < report["pickup"]["p50"] <= report["pickup"]["p95"] <= report["pickup"]["p99"]
    assert report["pickup"]["jobs"] == 30
    assert everything(shell) == []
    assert workers(shell) == []


@pytest.mark.proof  # slow
@mostly_sqlite
def test_people_see_a_table_and_a_sentence_and_the_jobs_of_others_stay_as_they_are(shell: Shell) -> None:
    for outcome in (Completed({"ok": 1}), Failed("boom", final=True)):
        shell.add()
        shell.finish(outcome)
    shell.add()
    shell.add("later", "{}", "--delay", "1h")
    before = everything(shell)
    result = shell(*SMALL, "--sleep", "5ms")
    assert everything(shell) == before
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["what", "jobs", "jobs/s", "ms"]
    assert [line.split("  ")[0] for line in lines[1:6]] == [
        "enqueue, one by one",
        "enqueue, many at once",
        "drain, 1 process",
        "drain, 5 ms each, 1 process",
        "pickup by an idle worker",
    ]
    assert lines[-1].startswith("One worker process of this machine drains about ")
    assert "empty jobs/s here; at 5 ms each, 10 slots do " in lines[-1]
    assert result.stderr == ""


@pytest.mark.proof  # slow
def test_kept_jobs_are_all_completed_and_can_be_removed_by_the_usual_command(shell: Shell) -> None:
    result = shell(*SMALL, "--keep", "--payload", "100")
    kept = own(shell)
    assert {job.status for job in kept} == {Status.COMPLETED}
    assert {len(job.payload["fill"]) for job in kept} == {100 - len('{"fill":""}')}
    topic = kept[0].topic
    assert f"rowlock jobs list --topic {topic}" in result.stderr
    assert len(kept) == shell.json("stats", topic)["completed"]
    shell("jobs", "delete", "--topic", topic, "--yes")
    assert everything(shell) == []


@pytest.mark.proof  # slow
def test_without_a_number_it_finds_out_how_many_fit(shell: Shell) -> None:
    report = shell.json("bench", "--for", "1", "--processes", "1", "--concurrency", "10")
    assert report["drains"][0]["jobs"] >= 1000
    assert everything(shell) == []


async def test_a_drain_is_timed_from_the_last_process_s_first_job(tmp_path: Path) -> None:
    async with Jobs(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        made = await jobs.enqueue("mail")
        job = await jobs.get(made.id)

    def at(worker: str, start: float, end: float) -> Job:
        zero = job.created
        times = {"started_at": zero + timedelta(seconds=start), "finished_at": zero + timedelta(seconds=end)}
        return replace(job, status=Status.COMPLETED, locked_by=worker, **times)

    early = [at("a", n, n + 1) for n in range(4)]
    both = [at(worker, n, n + 1) for n in range(4, 10) for worker in "ab"]
    drain = drained([*early, *both], 2, 0.0)
    assert (drain.jobs, drain.seconds, drain.per_second, drain.workers) == (12, 6.0, 2.0, 2)
    late = drained([*early, at("b", 3.5, 5.0)], 2, 0.0)
    assert (late.jobs, late.seconds, late.per_second, late.workers) == (5, 5.0, 1.0, 1)


# ── It disturbs no other jobs ──


async def _crowd(jobs: Jobs) -> None:
    await jobs.enqueue_many([("mail", {})] * 1001)


async def _a_worker(jobs: Jobs) -> None:
    one = WorkerInfo(name="w1", host="h", pid=1, topics=("mail",), concurrency=1, running=0, lease=600.0, rowlock="1")
    await (await jobs._store()).report(one)


@pytest.mark.proof  # slow
@mostly_postgres
def test_a_database_in_use_is_loaded_only_by_who_insists(shell: Shell) -> None:
    shell.do(_a_worker)
    refused = shell(*SMALL, code=2)
    assert "1 live worker and 0 live jobs" in refused.stderr
    assert "Add --yes" in refused.stderr
    shell.do(_crowd)
    assert "1 live worker and 1,001 live jobs" in shell(*SMALL, code=2).stderr
    assert own(shell) == []
    assert shell.json(*SMALL, "--yes")["removed"] is True
    assert own(shell) == []
    assert shell.json("stats", "mail")["pending"] == 1001


def test_a_person_at_the_terminal_is_asked(shell: Shell) -> None:
    shell.do(_crowd)
    ours, theirs = pty.openpty()
    with started(shell, *SMALL, stdin=theirs) as process:
        os.close(theirs)
        os.write(ours, b"n\n")
        said = process.communicate(timeout=PATIENCE)
    os.close(ours)
    assert (process.returncode, said[0]) == (1, "")
    assert "0 live workers and 1,001 live jobs for a while. Go on? [y/N]" in said[1]
    assert said[1].endswith("rowlock: nothing was measured\n")
    assert own(shell) == []


# ── It ends early ──


def busy(shell: Shell) -> bool:
    """Return True if jobs that sleep fill all slots of the measurement's worker."""
    return sum("sleep" in job.payload for job in own(shell, "processing")) >= 10


@pytest.mark.proof  # slow
@mostly_postgres
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.proof), signal.SIGTERM])
def test_what_is_interrupted_removes_its_jobs(shell: Shell, number: signal.Signals) -> None:
    mine = shell.add()
    with started(shell, *LONG) as process:
        wait_until(lambda: busy(shell), "the sleeping jobs")
        children = descendants(process.pid)
        process.send_signal(number)
        said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, *said) == (130, "", "\n")
    assert [job.id for job in everything(shell)] == [mine]
    assert workers(shell) == []
    assert running(children) == set()


@pytest.mark.proof  # slow
def test_ctrl_c_while_it_enqueues(shell: Shell) -> None:
    with started(shell, "bench", "--for", "1h") as process:  # it first enqueues jobs one by one for a tenth of the hour
        wait_until(lambda: own(shell), "the first jobs")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, *said) == (130, "", "\n")
    assert everything(shell) == []


@pytest.mark.proof  # slow
def test_what_could_not_be_removed_is_told(shell: Shell) -> None:
    async def hold(jobs: Jobs) -> str:
        claim = Claim("someone", (Lane(topic),), 1, 600.0)
        [job] = (await (await jobs._store()).claim(claim)).jobs
        return job.id

    with started(shell, *LONG) as process:
        wait_until(lambda: busy(shell), "the sleeping jobs")
        topic = own(shell, "processing")[0].topic
        held = shell.do(hold)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "a worker holds 1 job of the measurement" in errors
    assert f"rowlock jobs delete --topic {topic} --yes" in errors
    assert [job.id for job in everything(shell)] == [held]


def test_workers_that_can_t_start_are_an_error_and_leave_nothing(shell: Shell) -> None:
    result = CliRunner(env={"ROWLOCK_URL": shell.url, "ROWLOCK_LEASE": "0.1"}).invoke(cli, list(SMALL))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "lease: must be 0.5 to 86400" in result.stderr  # the error of the workers
    assert result.stderr.splitlines()[-1] == "rowlock: the workers have ended"
    assert everything(shell) == []


@pytest.mark.proof  # slow
def test_its_workers_end_with_it_even_if_it_is_killed(shell: Shell) -> None:
    with started(shell, *LONG) as process:
        wait_until(lambda: busy(shell), "the sleeping jobs")
        children = descendants(process.pid)
        process.kill()
        wait_until(lambda: not running(children), "the workers' end")
    assert own(shell, "processing") == []  # the workers have given the jobs back
    assert workers(shell) == []


# ── It refuses nonsense ──


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--jobs", "0"], "--jobs"),
        (["--jobs", "-5"], "--jobs"),
        (["--jobs", "many"], "--jobs"),
        (["--jobs", "5", "--for", "5"], "not both"),
        (["--for", "0"], "must be 1 s to 1 h"),
        (["--for", "soon"], "is not a length of time"),
        (["--processes", "0"], "--processes"),
        (["--concurrency", "0"], "--concurrency"),
        (["--concurrency", "1000000"], "--concurrency"),
        (["--sleep", "0"], "must be 1 ms to 1 min"),
        (["--sleep", "2h"], "must be 1 ms to 1 min"),
        (["--payload", "-1"], "--payload"),
        (["--payload", str(1 << 30)], "--payload"),
    ],
)
def test_nonsense_is_wrong_usage(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["bench", "--url", "sqlite:///none.db", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_a_database_without_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["bench", "--url", "sqlite:///mistyped.db"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "run `rowlock migrate`" in result.stderr
    assert list(tmp_path.iterdir()) == []
