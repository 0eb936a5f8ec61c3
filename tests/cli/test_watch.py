"""Topics, numbers, workers, `why` and `top`."""

from datetime import UTC, datetime

from rowlock import __version__
from rowlock.cli.top import Look, Rates, headline, rates
from rowlock.core.lifecycle import Completed, Failed
from rowlock.jobs import Jobs
from rowlock.stores.base import WorkerInfo
from rowlock.stores.queries import Stats
from tests.cli.conftest import Shell

NOW = datetime.now(UTC)


def report(shell: Shell, *topics: str, running: int = 1, lease: float = 30.0) -> None:
    """Write a report of a live worker."""

    async def say(jobs: Jobs) -> None:
        worker = WorkerInfo(
            name="w1",
            host="box",
            pid=7,
            topics=topics,
            concurrency=4,
            running=running,
            lease=lease,
            rowlock=__version__,
        )
        await (await jobs._store()).report(worker)

    shell.do(say)


# ── Topics ──


def test_a_topic_is_paused_and_goes_on(shell: Shell) -> None:
    shell.add()
    assert shell("topics", "pause", "mail", "--reason", "provider is down", "--by", "ann").stdout == "mail is paused\n"
    [topic] = shell.json("topics", "list")["items"]
    assert (topic["topic"], topic["stats"]["pending"]) == ("mail", 1)
    assert (topic["paused"]["by"], topic["paused"]["reason"]) == ("ann", "provider is down")
    assert "by ann: provider is down" in shell("topics", "list").stdout
    assert shell("topics", "resume", "mail").stdout == "mail is resumed\n"
    assert shell("topics", "resume", "mail").stdout == "mail was not paused\n"
    assert shell.json("topics", "list")["items"][0]["paused"] is None


def test_a_topic_without_jobs_may_be_paused_too(shell: Shell) -> None:
    until = shell.json("topics", "pause", "later", "--until", "2h")["paused"]["until"]
    assert datetime.fromisoformat(until) > datetime.now(UTC)
    assert [topic["topic"] for topic in shell.json("topics", "list")["items"]] == ["later"]
    assert shell.json("topics", "resume", "later") == {"topic": "later", "resumed": True}


# ── Numbers ──


def test_stats_count_what_stands_and_what_ended(shell: Shell) -> None:
    for topic in ("mail", "mail", "bills", "bills"):
        shell.add(topic)
    shell.finish(Completed())
    shell.finish(Failed("no", final=True))
    shell.start("bills")
    numbers = shell.json("stats")
    assert (numbers["pending"], numbers["processing"], numbers["success_rate"]) == (1, 1, 0.5)
    assert numbers["topics"]["mail"]["avg_execution_time"] > 0
    assert shell.json("stats", "bills")["pending"] == 1
    lines = [line.split() for line in shell("stats").stdout.splitlines()]
    assert [line[0] for line in lines] == ["topic", "bills", "mail", "all"]
    assert lines[-1][1:9] == ["1", "1", "0", "1", "1", "0", "0", "50.0%"]
    assert shell("stats", "mail").stdout.splitlines()[1].startswith("mail")


# ── Workers and why ──


def test_workers_are_listed(shell: Shell) -> None:
    report(shell, "bills", "mail")
    [worker] = shell.json("workers")["items"]
    assert (worker["name"], worker["topics"], worker["running"]) == ("w1", ["bills", "mail"], 1)
    assert worker["seen"].endswith("Z")
    assert "bills, mail" in shell("workers").stdout


def test_why_gives_the_computed_answer(shell: Shell) -> None:
    job_id = shell.add()
    assert shell.json("why", job_id)["code"] == "no_worker"
    report(shell, "mail")
    assert shell("why", job_id).stdout == "It waits in line: 1 live worker knows mail, with 3 of 4 slots free.\n"
    report(shell, "mail", running=4)
    assert shell.json("why", job_id)["code"] == "busy"
    shell("topics", "pause", "mail", "--by", "ann")
    assert "paused by ann" in shell("why", job_id).stdout
    shell("topics", "resume", "mail")
    shell.start()
    assert shell.json("why", job_id)["code"] == "running"
    shell("jobs", "cancel", job_id)
    assert shell.json("why", job_id)["code"] == "cancel_requested"


# ── Top ──


def test_one_picture_of_top(shell: Shell) -> None:
    shell.add()
    shell.add("bills")
    report(shell, "mail")
    job_id = shell.start()
    picture = shell("top", "--once").stdout
    assert picture.startswith("1 pending   1 running   0 dead letters\n")
    for part in ("bills", "w1", "1/4", job_id):
        assert part in picture
    document = shell.json("top")
    assert [job["id"] for job in document["running"]] == [job_id]
    assert (document["stats"]["pending"], document["workers"][0]["name"]) == (1, "w1")


def test_a_worker_that_is_silent_for_longer_than_its_lease_is_gone(shell: Shell) -> None:
    shell.add()
    report(shell, "mail")
    assert "gone" not in shell("workers").stdout + shell("top", "--once").stdout
    report(shell, "mail", lease=0.0)
    assert "gone" in shell("workers").stdout
    assert "gone" in shell("top", "--once").stdout


def test_rates_come_from_two_looks() -> None:
    before = Look(10.0, Stats(pending=5, completed=100, failed=1), [], NOW, [])
    after = Look(12.0, Stats(pending=9, processing=2, completed=120, failed=2, expired=1), [], NOW, [])
    assert rates(before, after) == Rates(enqueued=14.0, completed=10.0, failed=1.0)
    assert rates(after, after) is None
    assert rates(after, Look(13.0, Stats(), [], NOW, [])) == Rates(enqueued=0.0, completed=0.0, failed=0.0)
    assert "14.0/s in, 10.0/s done, 1.0/s failed" in headline(after, rates(before, after))
