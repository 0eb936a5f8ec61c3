"""`rowlock bulk`: preview, start, stop and resume a bulk action. The same by the verbs with a filter."""

import signal
from typing import Any

import pytest

from rowlock.jobs import Jobs
from rowlock.stores.base import Store
from rowlock.stores.postgres.store import PostgresStore
from rowlock.stores.queries import Filter
from rowlock.stores.sqlite.store import SqliteStore
from tests.cli.conftest import Shell

ON_SQLITE = pytest.mark.parametrize("shell", ["sqlite"], indirect=True)  # does not depend on the kind of database


def test_a_preview_is_looked_at_and_started(shell: Shell) -> None:
    ids = [shell.add() for _ in range(3)]
    shell.add("other")
    seen = shell("bulk", "preview", "cancel", "--topic", "mail", "--reason", "a mistake")
    assert all(f"{name}  " in seen.stdout for name in ("action", "status", "jobs"))
    assert all(job_id in seen.stdout for job_id in ids)
    bulk_id = seen.stderr.split()[-1]
    assert shell.status(ids[0]) == "pending"
    assert shell("bulk", "start", bulk_id, "--by", "ann").stdout == "cancel: 3 jobs done\n"
    assert [shell.status(job_id) for job_id in ids] == ["cancelled"] * 3
    shown = shell.json("bulk", "show", bulk_id)
    assert (shown["status"], shown["done"], shown["started_by"]) == ("done", 3, "ann")
    assert "done" in shell("bulk", "show", bulk_id).stdout
    assert shell.json("bulk", "list")["items"] == [shown]
    assert bulk_id in shell("bulk", "list").stdout
    assert shell("bulk", "start", bulk_id).stdout == "cancel: 3 jobs done\n"  # a second start changes nothing


def test_a_cancel_is_undone(shell: Shell) -> None:
    ids = [shell.add(), shell.add("mail", "{}", "--delay=1h")]
    shell.add("other")
    running = shell.start("other")
    made = shell.json("jobs", "cancel", "--all", "--yes")
    due = shell.json("jobs", "show", ids[1])["run_at"]
    asked = shell("bulk", "undo", made["bulk"], code=2)
    assert "This would requeue 2 jobs, of 3 that it has cancelled. Add --yes" in asked.stderr
    assert [shell.status(job_id) for job_id in ids] == ["cancelled", "cancelled"]
    assert shell("bulk", "undo", made["bulk"], "--yes", "--by=ann").stdout == "requeue: 2 jobs done\n"
    assert [shell.status(job_id) for job_id in (*ids, running)] == ["pending", "pending", "cancel_requested"]
    assert shell.json("jobs", "show", ids[1])["run_at"] == due
    [undo, _, *_] = shell.json("bulk", "list")["items"]
    assert (undo["arguments"], undo["started_by"]) == ({"undo": made["bulk"]}, "ann")
    assert f"undo={made['bulk']}" in shell("bulk", "show", undo["id"]).stdout
    assert "only a cancel can be undone" in shell("bulk", "undo", undo["id"], "--yes", code=1).stderr


@ON_SQLITE
def test_priorities_and_times(shell: Shell) -> None:
    job_id = shell.add()
    for arguments, column in ((["reprioritise", "--priority=7"], "priority"), (["reschedule", "--delay=2d"], "run_at")):
        before = shell.json("jobs", "show", job_id)[column]
        made = shell.json("bulk", "preview", *arguments, "--all")
        assert made["sample"] == [job_id]
        shell("bulk", "start", made["id"])
        assert shell.json("jobs", "show", job_id)[column] != before


@ON_SQLITE
def test_what_is_wrong_is_said(shell: Shell) -> None:
    assert "or --all" in shell("bulk", "preview", "cancel", code=2).stderr
    assert "or --all" in shell("bulk", "preview", "cancel", "--all", "--topic=mail", code=2).stderr
    assert "priority: reprioritise needs priority" in shell("bulk", "preview", "reprioritise", "--all", code=1).stderr
    assert "no bulk action" in shell("bulk", "show", "0193fb1e-0000-7000-8000-000000000000", code=1).stderr
    made = shell.json("bulk", "preview", "cancel", "--all")
    assert "it was not started" in shell("bulk", "stop", made["id"], code=1).stderr


@ON_SQLITE
def test_what_was_skipped_is_told(shell: Shell) -> None:
    ids = [shell.add() for _ in range(3)]
    made = shell.json("bulk", "preview", "cancel", "--topic=mail")
    shell("jobs", "cancel", ids[0])
    shell("jobs", "delete", ids[1])
    told = shell("bulk", "start", made["id"], code=1)
    assert told.stdout == "cancel: 1 of 3 jobs done\n"
    assert f"job {ids[0]}: it is not as it was when it was listed, pending" in told.stderr
    assert f"job {ids[1]}: it has been deleted" in told.stderr
    answer = shell.json("bulk", "start", made["id"], code=1)
    assert (answer["total"], answer["done"], answer["bulk"]) == (3, 1, made["id"])
    assert [item["done"] for item in sorted(answer["items"], key=lambda item: item["id"])] == [False, False, True]


@ON_SQLITE
def test_in_the_background_it_is_left_to_others_and_can_be_stopped(shell: Shell) -> None:
    shell.add()
    made = shell.json("bulk", "preview", "cancel", "--all")
    assert shell("bulk", "start", made["id"], "--background").stdout == "cancel of 1 job is running\n"
    assert shell("bulk", "stop", made["id"], "--reason=no").stdout == "cancel: stopped, 0 done, 1 left\n"


def test_ctrl_c_stops_it_and_says_how_to_go_on(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [shell.add() for _ in range(6)]
    kind: Any = SqliteStore if shell.url.startswith("sqlite") else PostgresStore
    run_bulk = kind.run_bulk

    async def interrupted(self: Store, bulk_id: str | None = None, limit: int = 2) -> Any:
        moved = await run_bulk(self, bulk_id, 2)
        if moved is not None and moved.done == 4:
            signal.raise_signal(signal.SIGINT)
        return moved

    monkeypatch.setattr(kind, "run_bulk", interrupted)
    ended = shell("jobs", "cancel", "--topic=mail", "--yes", code=130)
    assert ended.stdout == "cancel: 4 jobs done\n"
    assert "rowlock: stopped, 2 left; continue with: rowlock bulk start " in ended.stderr
    monkeypatch.undo()
    bulk_id = ended.stderr.split()[-1]
    assert shell("bulk", "start", bulk_id).stdout == "cancel: 6 jobs done\n"
    assert {shell.status(job_id) for job_id in ids} == {"cancelled"}


def test_the_same_for_code_without_an_event_loop(shell: Shell) -> None:
    job_id = shell.add()
    jobs = Jobs(shell.url)
    try:
        made = jobs.sync.bulk.prepare("cancel", Filter(topics=["mail"]), reason="tidy", by="ann")
        assert [job.id for job in jobs.sync.bulk.sample(made.id)] == [job_id]
        assert jobs.sync.bulk.start(made.id).status == "running"
        assert jobs.sync.bulk.run(made.id).status == "done"
        assert [item.outcome for item in jobs.sync.bulk.items(made.id).items] == ["done"]
        assert [bulk.id for bulk in jobs.sync.bulk.list().items] == [made.id]
        assert jobs.sync.bulk.get(made.id) == jobs.sync.bulk.stop(made.id)
    finally:
        jobs.sync.close()
