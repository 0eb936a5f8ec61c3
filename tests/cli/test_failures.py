"""`rowlock failures`: groups of dead letters, and the actions on a group."""

from rowlock.cli.failures import bars
from rowlock.core.fingerprint import fingerprint
from rowlock.core.lifecycle import Failed
from rowlock.core.moves import Expire
from rowlock.jobs import Jobs
from tests.cli.conftest import Shell

BOOM = 'Traceback (most recent call last):\n  File "/srv/shop/tasks.py", line 3, in send\n    go()\nValueError: no {}'


def test_groups_are_shown_listed_and_requeued(shell: Shell) -> None:
    for n in range(2):
        shell.add()
        shell.finish(Failed(BOOM.format(n), final=True))
    shell.add("bills")
    shell.finish(Failed("KeyError: 1", final=True), "bills")
    wanted = fingerprint("mail", BOOM)
    heading, first, second = shell("failures").stdout.splitlines()
    assert heading.split() == ["fingerprint", "topic", "count", "first", "last", "trend", "frame", "note"]
    assert first.startswith(f"{wanted}  mail")
    assert "tasks.py:send" in first
    assert "ValueError: no 1" in first
    assert "bills" in second
    found = shell.json("failures", "--topic", "mail", "--trend", "day", "--since", "1h")
    assert [(group["fingerprint"], group["count"]) for group in found["items"]] == [(wanted, 2)]
    assert len(found["items"][0]["trend"]) == 30
    assert shell.json("jobs", "list", "--fingerprint", wanted)["total"] == 2
    shell("jobs", "requeue", "--fingerprint", wanted, "--yes")
    assert shell.json("failures", "--topic", "mail")["items"] == []
    assert shell("failures", "--limit", "1", "--topic", "none").stdout.split() == heading.split()


def test_what_is_missing_is_said(shell: Shell) -> None:
    for topic in ("mail", "bills"):
        shell.add(topic)
        shell.finish(Failed("KeyError: 1", final=True), topic)
    assert "more groups" in shell("failures", "--limit", "1").stderr
    shell("enqueue", "mail", "--expires-at", "2020-01-01T00:00:00Z")

    async def expire(jobs: Jobs) -> None:
        await (await jobs._store()).move_due(Expire(by="m1"))

    shell.do(expire)
    assert "1 dead letter not grouped yet" in shell("failures").stderr


def test_a_wrong_fingerprint_is_told_in_a_line(shell: Shell) -> None:
    assert "fingerprint" in shell("jobs", "list", "--fingerprint", "nonsense", code=1).stderr


def test_little_charts() -> None:
    assert bars([0, 0, 1, 8, 4]) == "▂█▅"
    assert bars([0, 0]) == bars([]) == ""
    assert bars([1000, 1]) == "█▂"
