"""`rowlock schedules`: make, show and change schedules, with and without code that declares them."""

import re
import sqlite3
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from rowlock.core.lifecycle import Completed
from rowlock.core.schedules import Schedule, ScheduleName
from rowlock.jobs import Jobs
from rowlock.stores.schedules import ScheduleChange, Which
from tests.cli.conftest import Shell, rowlock
from tests.cli.test_manners import at_terminal

APP = """
from rowlock import Cron, Every, Jobs, Recurring
jobs = Jobs()

@jobs.task(schedule=Cron("0 9 * * *", "Asia/Taipei"))
async def report() -> None: ...

@jobs.task(schedule=[Recurring(when=Every(900), name="seven", payload={"tenant": 7}, if_live="queue")])
async def poll(tenant: int) -> None: ...
"""


@pytest.fixture
def write(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> object:
    """Return a function that makes `app.py` anew, as a deploy does."""
    monkeypatch.setenv("ROWLOCK_URL", shell.url)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> None:
        (shell.folder / "app.py").write_text(text)
        sys.modules.pop("app", None)
        monkeypatch.syspath_prepend(str(shell.folder))

    write(APP)
    shell("migrate")
    return write


def test_put_list_show_steer_delete(shell: Shell) -> None:
    shell("migrate")
    berlin = ("--cron", "0 2 * * *", "--zone", "Europe/Berlin")
    made = shell.json(
        "schedules", "put", "nightly", "--topic", "report", *berlin, "--payload", '{"day": "{{fire_date}}"}',
        "--missed", "all", "--within", "2d", "--if-live", "queue", "--tag", "a", "--priority", "5", "--reason", "new",
    )  # fmt: skip
    assert (made["words"], made["state"], made["revision"]) == ("At 02:00 every day (Europe/Berlin)", "active", 1)
    assert (made["within"], made["options"]) == (172_800.0, {"priority": 5, "tags": ["a"]})
    assert made["when"] == {"cron": "0 2 * * *", "zone": "Europe/Berlin", "gap": "next", "overlap": "first"}
    shell("schedules", "put", "poll", "--topic", "poll", "--every", "15m", "--scope", "tenant", "--scope-id", "7")
    listed = shell("schedules", "list").stdout
    assert "At 02:00 every day (Europe/Berlin)" in listed
    assert "Every 15 minutes" in listed
    assert f"{made['next_run_at'][:19]}Z (in " in listed
    page = shell.json("schedules", "list", "--limit", "1")
    assert [one["name"] for one in page["items"]] == ["nightly"]
    assert [one["name"] for one in shell.json("schedules", "list", "--cursor", page["next"])["items"]] == ["poll"]
    assert shell.json("schedules", "list", "--text", "NIGHT", "--state", "active")["total"] == 1

    # A name alone means a schedule without a scope. For a mistyped name, the error suggests the right one.
    assert "Add --scope tenant --scope-id 7." in shell("schedules", "show", "poll", code=1).stderr
    assert "Did you mean 'nightly'?" in shell("schedules", "pause", "nigtly", code=1).stderr
    assert "revision 1, not 7" in shell(
        "schedules", "put", "nightly", "--topic", "report", *berlin, "--revision", "7", code=1
    ).stderr  # fmt: skip
    assert "Did you mean Europe/Berlin" in shell(
        "schedules", "put", "x", "--topic", "x", "--cron", "0 2 * * *", "--zone", "Europe/Berln", code=1
    ).stderr  # fmt: skip

    job_id = shell("schedules", "run", "nightly").stdout.strip()
    assert ["schedule", "nightly"] in [line.split() for line in shell("jobs", "show", job_id).stdout.splitlines()]
    assert shell.json("schedules", "run", "nightly")["status"] == "blocked"
    assert "waits for its turn" in shell("schedules", "run", "nightly").stderr
    history = shell.json("schedules", "history", "nightly")["items"]
    assert [(one["kind"], one["reason"], one["status"]) for one in history] == [
        ("run_now", "live", None), ("run_now", None, "blocked"), ("run_now", None, "pending"),
    ]  # fmt: skip
    shown = shell("schedules", "show", "nightly").stdout
    assert all(word in shown for word in ("CE", "next times", "last times", job_id, "{{fire_date}}", "of the last 2 d"))

    shell("schedules", "pause", "nightly", "--reason", "too much")
    assert "too much" in shell("schedules", "list", "--state", "paused").stdout
    assert "nightly is active; the next run is at" in shell("schedules", "resume", "nightly").stdout
    assert "poll is deleted" in shell("schedules", "delete", "poll", "--scope", "tenant", "--scope-id", "7").stdout
    shell("schedules", "delete", made["id"])
    assert "(deleted)" in shell("jobs", "show", job_id).stdout
    assert shell.json("schedules", "list")["items"] == []
    actions = [one["action"] for one in shell.json("audit")["items"]]
    assert {"schedule.put", "schedule.pause", "schedule.delete"} <= {*actions}


def test_backfill_shows_first(shell: Shell) -> None:
    shell("migrate")
    shell("schedules", "put", "hourly", "--topic", "t", "--cron", "0 * * * *")
    times = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T02:00:00Z")
    looked = shell("schedules", "backfill", "hourly", *times)
    assert "3 jobs would be made. Add --yes" in looked.stderr
    assert shell.json("jobs", "list")["items"] == []
    made = shell.json("schedules", "backfill", "hourly", *times, "--yes")
    assert [one["new"] for one in made["items"]] == [True] * 3
    assert "3 times, 3 with a job already: 0 jobs made" in shell("schedules", "backfill", "hourly", *times, "-y").stderr
    future = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert "later than now" in shell("schedules", "backfill", "hourly", "--from", "1d", "--to", future, code=1).stderr
    assert shell("schedules", "backfill", "hourly", "--from", "2h").exit_code == 0


def test_a_preview_needs_no_database(tmp_path: Path) -> None:
    cron = ("schedules", "preview", "--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--gap", "skip")
    shown = rowlock(*cron, "-n", "2", "--after", "2026-03-28T12:00:00Z", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == "At 02:30 every day (Europe/Berlin)"
    assert "Sun 2026-03-29 03:00:00 CEST  2026-03-29T01:00:00Z  skipped" in lines[4]
    assert "02:30 does not exist" in lines[4]
    assert "Mon 2026-03-30 02:30:00 CEST  2026-03-30T00:30:00Z" in lines[5]


def test_a_preview_by_the_hour_tells_of_the_hour_that_does_not_exist(tmp_path: Path) -> None:
    cron = ("schedules", "preview", "--cron", "0 */2 * * *", "--zone", "Europe/Berlin")
    shown = rowlock(*cron, "-n", "1", "--after", "2027-03-28T00:30:00Z", cwd=tmp_path)
    [time] = [line for line in shown.stdout.splitlines() if "2027-03-28T02:00:00Z" in line]
    assert "02:00 does not exist on 2027-03-28 in Europe/Berlin (clocks go forward): left out" in time


LONG = "invoices-of-all-tenants-in-europe-by-mail"


@pytest.mark.parametrize("columns", [80, 120])
def test_the_list_at_a_terminal_cuts_nothing(shell: Shell, columns: int) -> None:
    shell("migrate")
    for name, *when in (
        ("a-short-name", "--every", "15m"),
        (LONG, "--cron", "0 9-17 L * *", "--zone", "America/New_York"),
        ("poll the payment provider", "--every", "90", "--scope", "tenant", "--scope-id", "7"),
        ("paused", "--cron", "30 2 * * *", "--zone", "Europe/Berlin"),
    ):
        shell("schedules", "put", name, "--topic", "some-topic", *when)
    shell("schedules", "run", "a-short-name")
    ended = shell.finish(Completed(), "some-topic")
    shell("schedules", "pause", "paused", "--reason", "the provider is down")
    [listed] = [one for one in shell.json("schedules", "list")["items"] if one["name"] == "a-short-name"]
    assert (listed["last_job"]["id"], listed["last_job"]["status"]) == (ended, "completed")
    assert listed["last_job"]["finished_at"]

    seen = at_terminal(["schedules", "list"], shell.folder, ROWLOCK_URL=shell.url, COLUMNS=str(columns))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen).splitlines()
    titles = ["name", *(["topic"] if columns >= 100 else []), "when", "next run", "state", "last job"]
    assert re.split(r" {2,}", lines[0].strip()) == titles
    assert max(map(len, lines)) <= columns
    starts = [lines[0].index(title) for title in titles] + [columns]
    cells = {
        title: [line[start:end].strip() for line in lines[1:]]
        for title, start, end in zip(titles, starts, starts[1:], strict=False)
    }
    assert LONG in "".join(cells["name"])
    assert "poll the payment provider tenant 7" in " ".join(cells["name"]).replace("  ", " ")
    words = " ".join(" ".join(cells["when"]).split())
    for said in (
        "Every 15 minutes",
        "At minute 0 past every hour from 9 through 17 on the last day of every month (America/New_York)",
        "At 02:30 every day (Europe/Berlin) paused by",
        "the provider is down",
    ):
        assert said in words
    assert [state for state in cells["state"] if state] == ["active", "active", "paused", "active"]
    assert re.fullmatch(r"completed \d+ m?s ago", " ".join(" ".join(cells["last job"]).split()))
    first = lines[1]
    assert re.search(r"a-short-name .* in \d+ (min|s) +active", first), first


def test_a_time_that_no_process_has_looked_at_is_late(shell: Shell) -> None:
    shell("migrate")
    shell("schedules", "put", "s", "--topic", "t", "--every", "1")
    past = datetime.now(UTC) - timedelta(minutes=7)

    async def set_back(jobs: Jobs) -> None:
        def decide(old: Schedule | None, now: datetime) -> ScheduleChange:
            assert old is not None
            return ScheduleChange(replace(old, next_run_at=past))

        await (await jobs._store()).change_schedules(Which(name=ScheduleName("s")), decide)

    shell.do(set_back)
    assert "7 min late" in at_terminal(["schedules", "list"], shell.folder, ROWLOCK_URL=shell.url, COLUMNS="80")


def test_a_schedule_that_cant_be_read_can_be_deleted(shell: Shell) -> None:
    shell("migrate")
    shell("schedules", "put", "newer", "--topic", "t", "--every", "1h")
    with (
        sqlite3.connect(shell.url.removeprefix("sqlite:///"))
        if shell.url.startswith("sqlite")
        else psycopg.connect(shell.url) as connection
    ):
        connection.execute("UPDATE _jobs_schedules SET definition = '{}'")
    connection.close()
    assert "newer is deleted; this release could not read it" in shell("schedules", "delete", "newer").stdout
    assert "there is no schedule 'newer'" in shell("schedules", "delete", "newer", code=1).stderr
    assert shell.json("audit")["items"][0]["action"] == "schedule.delete"


def test_wrong_usage(shell: Shell) -> None:
    shell("migrate")
    for words, said in (
        (("preview",), "give the name of a schedule"),
        (("preview", "x", "--every", "5"), "give the name of a schedule"),
        (("preview", "--cron", "* * * * *", "--every", "5"), "not both"),
        (("preview", "--every", "5", "--zone", "UTC"), "--zone goes with --cron"),
        (("preview", "x", "--start", "1h"), "--start goes with --cron or --every"),
        (("preview", "--every", "5", "--scope", "tenant"), "--scope goes with a NAME"),
        (("put", "x", "--topic", "t"), "give --cron or --every"),
        (("put", "x", "--topic", "t", "--every", "soon"), "not a length of time"),
        (("put", "x", "--topic", "t", "--cron", "* * * * *", "--anchor", "2026-01-01T00:00:00Z"), "goes with --every"),
        (("puut", "x"), "Did you mean 'put'?"),
    ):
        assert said in shell("schedules", *words, code=2).stderr
    for expression, said in (("61 * * * *", "the minute 61"), ("0 0 30 2 *", "never fires"), ("* * * *", "4 fields")):
        assert said in shell("schedules", "preview", "--cron", expression, code=1).stderr
    every = ("schedules", "put", "x", "--topic", "t", "--every")
    for command, said in (
        (("schedules", "preview", "--cron", "61 * * * *"), "--cron: '61 * * * *': the minute 61"),
        (
            ("schedules", "put", "x", "--topic", "t", "--cron", "0 9 * * *", "--zone", "Europe/Berln"),
            "--zone: there is",
        ),
        ((*every, "0.5"), "--every: must be 1 to"),
        ((*every, "1h", "--end", "2020-01-01T00:00:00Z"), "--end: 2020-01-01"),
        (("schedules", "backfill", "x", "--from", "3d", "--to", "5d"), "--to: is before"),
        (("schedules", "list", "--cursor", "zzz"), "is not what an earlier page gave you as next"),
    ):
        assert said in shell(*command, code=1).stderr


def test_what_code_declares_is_published_and_missed_when_it_is_gone(shell: Shell, write: object) -> None:
    assert callable(write)
    published = shell("templates", "publish", "app:jobs")
    assert "2 templates published, 2 schedules published" in published.stderr
    assert "nothing has changed" in shell("schedules", "publish", "app:jobs").stderr
    found = {one["name"]: one for one in shell.json("schedules", "list")["items"]}
    assert {name: (one["owner"], one["payload"]) for name, one in found.items()} == {
        "report": ("app", {}),
        "seven": ("app", {"tenant": 7}),
    }
    assert "the code of app declares" in shell("schedules", "delete", "seven", code=1).stderr
    write(APP.replace('schedule=Cron("0 9 * * *", "Asia/Taipei")', ""))
    assert "1 schedule paused, because" in shell("schedules", "publish", "app:jobs").stderr
    assert "absent: app does not declare it any more" in shell("schedules", "list", "--absent").stdout
    shell("schedules", "delete", "report")


def test_check_finds_schedules_that_new_code_would_refuse(shell: Shell, write: object) -> None:
    assert callable(write)
    write(APP.replace("schedule=[", "version=1, schedule=["))
    shell("templates", "publish", "app:jobs")
    every = ("--topic", "poll", "--every", "1h")
    shell("schedules", "put", "eight", *every, "--payload", '{"tenant": 8}')
    shell("schedules", "put", "old", *every, "--payload", '{"tenant": 9}', "--template-version", "1")
    shell("schedules", "put", "else", "--topic", "other", "--every", "1h", "--payload", '{"tenant": "x"}')
    assert shell.json("check", "app:jobs")["findings"] == []

    # The new code brings the schedules that it declares. Schedules that were put stay unchanged.
    new = APP.replace("schedule=[", "version=1, schedule=[").replace('{"tenant": 7}', '{"tenant": "seven"}')
    write(new.replace("tenant: int", "tenant: str"))
    found = [one for one in shell.json("check", "app:jobs", code=1)["findings"] if one["check"] != "frozen"]
    assert [(one["check"], one["schedule"]) for one in found] == [("schedule", "eight"), ("schedule", "old")]
    assert "the schedule 'eight': payload.tenant: must be a text" in found[0]["text"]
    assert "eight" in shell("check", "app:jobs", code=1).stdout

    write(APP.replace("schedule=[", "version=2, schedule=["))
    found = shell.json("check", "app:jobs", code=1)["findings"]
    assert [(one["schedule"], one["version"]) for one in found] == [("old", 1)]
    assert "runs=[1]" in found[0]["text"]
