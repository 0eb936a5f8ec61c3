"""`rowlock jobs …`: show jobs, and change them one by one or by the hundred."""

import json
import re
import signal
from datetime import datetime
from typing import Any

import pytest

from rowlock.cli import change_jobs
from rowlock.core.job import Status
from rowlock.core.lifecycle import Completed, Failed, Settlement, Transition
from rowlock.errors import StoreUnavailable
from rowlock.jobs import Jobs
from rowlock.stores import listing
from rowlock.stores.base import MAX_LOG_LINES, NewLine, Progress
from tests.cli.conftest import Shell, start

NOBODY = "0193fb1e-0000-7000-8000-000000000000"


# ── list ──


def test_a_list_for_programs_goes_on_where_it_ended(shell: Shell) -> None:
    ids = [shell.add() for _ in range(3)]
    first = shell.json("jobs", "list", "--limit", "2")
    assert [job["id"] for job in first["items"]] == ids[:0:-1]
    assert (first["total"], first["total_capped"], first["partial"]) == (3, False, False)
    rest = shell.json("jobs", "list", "--limit", "2", "--cursor", first["next"])
    assert ([job["id"] for job in rest["items"]], rest["next"]) == ([ids[0]], None)


def test_a_list_in_a_pipe_is_aligned_and_whole(shell: Shell) -> None:
    job_id = shell.add("a-topic-with-a-rather-long-name", "{}", "--key", "k" * 100)
    shell.add("mail")
    listed = shell("jobs", "list")
    heading, _, second = listed.stdout.splitlines()
    assert second.startswith(f"{job_id}  a-topic-with-a-rather-long-name  pending")
    assert "k" * 100 in second
    assert heading.index("status") == second.index("pending")
    assert "\x1b" not in listed.stdout
    assert "--cursor" in shell("jobs", "list", "--limit", "1").stderr


def test_filters(shell: Shell) -> None:
    shell.add("mail", '{"user": {"id": 7}}', "--key=k", "--scope=user", "--scope-id=7", "--tag=a", "--tag=b")
    for options, matches in (
        (["--topic", "mail"], True),
        (["--topic", "bills"], False),
        (["--topic", "bills", "--topic", "mail"], True),
        (["--status", "pending"], True),
        (["--status", "failed"], False),
        (["--key", "k"], True),
        (["--key", "other"], False),
        (["--scope", "user", "--scope-id", "7"], True),
        (["--scope-id", "8"], False),
        (["--tag", "a", "--tag", "b"], True),
        (["--tag", "c"], False),
        (["--payload", "user.id=7"], True),
        (["--payload", 'user.id="7"'], False),
        (["--since", "1h"], True),
        (["--until", "1h"], False),
        (["--since", "2030-01-01T00:00:00Z"], False),
        (["--error", "address"], False),
    ):
        assert len(shell.json("jobs", "list", *options)["items"]) == matches, options


def test_filters_that_make_no_sense(shell: Shell) -> None:
    for options, code, says in (
        (["--status", "done"], 2, "pending"),
        (["--payload", "user"], 2, "is not path=JSON"),
        (["--payload", "user=ada"], 2, "text needs quotes"),
        (["--limit", "0"], 2, "--limit"),
        (["--cursor", "x"], 1, "cursor"),
        (["--since", "yesterday"], 2, "is not a time"),
        (["--topic", "no good"], 1, "topic"),
    ):
        assert says in shell("jobs", "list", *options, code=code).stderr


def test_a_search_says_how_far_it_looked(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    old = shell.add("mail", '{"n": -1}')

    async def add(jobs: Jobs) -> None:
        await jobs.enqueue_many([("mail", {"n": n}) for n in range(2500)])

    shell.do(add)
    monkeypatch.setattr(listing, "WINDOW", 1000)
    looked = shell("jobs", "list", "--payload", "n=-1")
    said = re.search(
        r"0 jobs found\. Jobs created before (\S+Z) were not searched: .*--cursor (\S+), .*--all", looked.stderr
    )
    assert said is not None, looked.stderr
    created = shell.json("jobs", "show", old)["created"]
    assert datetime.fromisoformat(created) <= datetime.fromisoformat(said[1])
    assert "found" in shell("jobs", "list", "--payload", "n=-1", "--cursor", said[2]).stderr
    every = shell.json("jobs", "list", "--payload", "n=-1", "--all")
    assert [job["id"] for job in every["items"]] == [old]
    assert (every["total"], every["partial"], every["next"]) == (1, False, None)
    found = shell("jobs", "list", "--payload", "n=-1", "--all")
    assert (old in found.stdout, found.stderr) == (True, "")
    assert len(shell.json("jobs", "list", "--all")["items"]) == 2501


# ── logs ──


async def say(jobs: Jobs, job_id: str, *texts: str) -> None:
    lines = tuple(NewLine(0.0, "info", text) for text in texts)
    await (await jobs._store()).progress([Progress(job_id, 1, None, None, None, lines)])


def test_the_log_alone(shell: Shell) -> None:
    job_id = shell.add()
    assert shell("jobs", "logs", job_id).stdout == ""
    shell.start()
    shell.do(lambda jobs: say(jobs, job_id, "one", "two\x1b[2J"))
    text = shell("jobs", "logs", job_id).stdout.splitlines()
    assert [line.rpartition("  ")[2] for line in text] == ["one", "two\\x1b[2J"]
    assert [line["text"] for line in shell.json("jobs", "logs", job_id)["lines"]] == ["one", "two\x1b[2J"]
    shell.do(lambda jobs: say(jobs, job_id, *(str(n) for n in range(MAX_LOG_LINES))))
    assert "2 older lines were dropped" in shell("jobs", "logs", job_id).stderr
    assert "no job" in shell("jobs", "logs", NOBODY, "--follow", code=1).stderr


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_log_is_followed_until_the_job_ends(shell: Shell, output: str) -> None:
    job_id = shell.add()
    shell.start()
    shell.do(lambda jobs: say(jobs, job_id, "one"))
    words = ("jobs", "logs", job_id, "--follow", "-o", output)
    following = start(*words, cwd=shell.folder, ROWLOCK_URL=shell.url)
    assert following.stdout is not None
    said = [following.stdout.readline()]

    async def end(jobs: Jobs) -> None:
        await say(jobs, job_id, "two", "three")
        await (await jobs._store()).settle(
            [Settlement(job_id, 1, Transition(event="completed", status=Status.COMPLETED))]
        )

    shell.do(end)
    rest, _ = following.communicate(timeout=60)
    said += rest.splitlines()
    texts = [json.loads(line)["text"] if output == "json" else line.split()[-1] for line in said]
    assert (texts, following.returncode) == (["one", "two", "three"], 0)


# ── show ──


def test_show_has_everything(shell: Shell) -> None:
    job_id = shell.add("mail", '{"to": "ada"}', "--key=k", "--max-retries=0")

    async def log(jobs: Jobs) -> None:
        line = NewLine(0.0, "info", "sent the first half")
        await (await jobs._store()).progress([Progress(job_id, 1, 50.0, "sending", None, (line,))])

    shell.start()
    shell.do(log)
    document = shell.json("jobs", "show", job_id)
    assert (document["progress"], document["stage"], document["attempts"]) == (50.0, "sending", 1)
    assert [event["event"] for event in document["events"]] == ["enqueued", "claimed"]
    assert [line["text"] for line in document["log"]["lines"]] == ["sent the first half"]
    assert document["created"].endswith("Z")
    text = shell("jobs", "show", job_id).stdout
    for part in ("mail", '"to": "ada"', "50 %, sending", "w1", "claimed", "sent the first half"):
        assert part in text


def test_show_prints_result_and_error_as_they_are(shell: Shell) -> None:
    shell.add()
    error = 'Traceback (most recent call last):\n  File "app.py", line 3\nValueError: [bold]no[/bold]'
    assert error in shell("jobs", "show", shell.finish(Failed(error, final=True))).stdout
    shell.add()
    assert '"sent": 3' in shell("jobs", "show", shell.finish(Completed({"sent": 3}))).stdout


def test_what_a_job_says_does_not_steer_the_terminal(shell: Shell) -> None:
    shell.add()
    job_id = shell.finish(Failed("\x1b]0;owned\x07 \x9b2J \u202egnp.exe", final=True))
    for command in (("jobs", "show", job_id), ("jobs", "list"), ("why", job_id), ("jobs", "wait", job_id)):
        shown = shell(*command, code=3 if "wait" in command else 0).output
        assert "\\x1b]0;owned\\x07" in shown
        assert not set(shown) & {"\x1b", "\x07", "\x9b", "\u202e"}


# ── update ──


def test_update_changes_what_is_given_and_nothing_else(shell: Shell) -> None:
    job_id = shell.add("mail", '{"n": 1}', "--tag=a")
    changed = shell.json("jobs", "update", job_id, "--priority=7", "--run-at=2031-01-01T00:00:00Z", "--by=ann")
    assert (changed["priority"], changed["run_at"], changed["payload"]) == (7, "2031-01-01T00:00:00Z", {"n": 1})
    assert shell.json("jobs", "update", job_id, '--payload={"n": 2}', "--tags=x, y")["tags"] == ["x", "y"]
    assert shell.json("jobs", "update", job_id, "--tags=", "--delay=0")["tags"] == []
    assert shell.json("jobs", "show", job_id)["events"][1]["by"] == "ann"
    assert job_id in shell("jobs", "update", job_id, "--priority=8").stdout


def test_update_of_nothing_or_too_late(shell: Shell) -> None:
    job_id = shell.add()
    assert "--priority" in shell("jobs", "update", job_id, code=2).stderr
    shell.start()
    assert "it is processing" in shell("jobs", "update", job_id, "--priority=8", code=1).stderr


# ── cancel, requeue, delete ──


def test_the_verbs_by_id(shell: Shell) -> None:
    ids = [shell.add() for _ in range(2)]
    assert shell("jobs", "cancel", *ids, "--reason", "a mistake").stdout == "cancel: 2 jobs done\n"
    assert shell.json("jobs", "show", ids[0])["cancel_reason"] == "a mistake"
    assert shell("jobs", "requeue", ids[0], ids[0]).stdout == "requeue: 1 job done\n"
    assert shell.status(ids[0]) == "pending"
    assert shell("jobs", "delete", *ids).stdout == "delete: 2 jobs done\n"
    assert shell.json("jobs", "list")["total"] == 0


def test_requeue_with_changes(shell: Shell) -> None:
    ids = [shell.add("mail", '{"n": 1}') for _ in range(2)]
    (shell.folder / "payload.json").write_text('{"n": 3}')
    shell("jobs", "cancel", *ids)
    edits = ["--priority=7", "--run-at=2031-01-01T00:00:00Z", "--tags=x, y", "--payload", '{"n": 2}']
    assert shell("jobs", "requeue", *ids, *edits, "--reason=fixed").stdout == "requeue: 2 jobs done\n"
    for job_id in ids:
        job = shell.json("jobs", "show", job_id)
        changed = (job["priority"], job["run_at"], job["tags"], job["payload"])
        assert changed == (7, "2031-01-01T00:00:00Z", ["x", "y"], {"n": 2})
    shell("jobs", "cancel", *ids)
    shell("jobs", "requeue", ids[0], "--delay=1h", "--payload=@payload.json", "--tags=")
    job = shell.json("jobs", "show", ids[0])
    assert (job["payload"], job["tags"], job["run_at"] > job["updated"]) == ({"n": 3}, [], True)
    for wrong in (["--all", "--priority=7"], ["--topic=mail", "--payload", "{}"]):
        assert "need the ids of the jobs" in shell("jobs", "requeue", *wrong, code=2).stderr
    assert "give one new --payload" in shell("jobs", "requeue", ids[1], "--payload={}", "--payload={}", code=2).stderr
    assert "not both" in shell("jobs", "requeue", ids[1], "--delay=1", "--run-at=1h", code=1).stderr
    assert shell("jobs", "requeue", "--payload", "n=2", "--yes").stdout == "requeue: 1 job done\n"  # --payload filters


def test_the_audit_has_who_what_and_why(shell: Shell) -> None:
    kept, gone = shell.add(), shell.add("bills")
    shell("jobs", "cancel", kept, "--by=ann", "--reason=a mistake")
    shell("jobs", "delete", gone, "--by=bob", "--reason=not needed")
    shell("topics", "pause", "mail", "--by=ann")
    told = shell.json("audit")
    assert [(one["by"], one["action"], one["topic"], one["reason"]) for one in told["items"]] == [
        ("ann", "pause", "mail", None), ("bob", "delete", "bills", "not needed"), ("ann", "cancel", "mail", "a mistake")
    ]  # fmt: skip
    assert told["next"] is None
    for options, count in (
        (["--by=ann"], 2), (["--action=delete"], 1), (["--job", kept], 1), (["--by=bob", "--action=cancel"], 0),
        (["--since=1h"], 3), (["--since=2031-01-01T00:00:00Z"], 0),
    ):  # fmt: skip
        assert len(shell.json("audit", *options)["items"]) == count, options
    first = shell("audit", "--limit=2")
    assert "not needed" in first.stdout
    assert "a mistake" in shell("audit", "--before", first.stderr.split()[-1]).stdout


def test_who_did_it_is_known(shell: Shell) -> None:
    first, second = shell.add(), shell.add()
    shell("jobs", "cancel", first, "--by", "ann")
    shell("jobs", "cancel", second)
    by = [shell.json("jobs", "show", job_id)["events"][-1]["by"] for job_id in (first, second)]
    assert by[0] == "ann"
    assert by[1].startswith("cli")


def test_refusals_are_told_one_by_one(shell: Shell) -> None:
    pending, running = shell.add(), shell.add("other")
    shell.start("other")
    ended = shell("jobs", "delete", pending, running, NOBODY, "x", code=1)
    assert ended.stdout == "delete: 1 of 4 jobs done\n"
    assert f"can't delete job {running}: it is processing" in ended.stderr
    assert f"no job {NOBODY}" in ended.stderr
    assert "must be a UUID, not 'x'" in ended.stderr


def test_refusals_for_programs(shell: Shell) -> None:
    job_id = shell.add()
    answer = shell.json("jobs", "requeue", job_id, NOBODY, code=1)
    assert (answer["total"], answer["done"]) == (2, 0)
    assert [item["done"] for item in answer["items"]] == [False, False]
    assert "it is pending" in answer["items"][0]["error"]


def test_a_filter_counts_first_and_wants_a_yes(shell: Shell) -> None:
    ids = [shell.add() for _ in range(3)]
    assert "This would cancel 3 jobs. Add --yes" in shell("jobs", "cancel", "--topic", "mail", code=2).stderr
    assert shell.status(ids[0]) == "pending"
    assert shell("jobs", "cancel", "--topic", "mail", "--yes").stdout == "cancel: 3 jobs done\n"
    assert shell("jobs", "cancel", "--topic", "mail", "--yes").stdout == "cancel: no job matches\n"
    assert shell.json("jobs", "cancel", "--topic", "mail", "--yes")["total"] == 0


def test_a_person_is_asked(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = shell.add()
    monkeypatch.setattr("rowlock.cli.connect._is_asked_in_person", lambda: True)
    assert "nothing was changed" in shell("jobs", "delete", "--all", code=1, input="n\n").stderr
    assert shell.status(job_id) == "pending"
    assert "This would delete 1 job. Go on?" in shell("jobs", "delete", "--all", input="y\n").stderr
    assert shell.json("jobs", "list")["total"] == 0


def test_a_filter_takes_only_jobs_that_the_verb_can_take(shell: Shell) -> None:
    shell.add()
    failed = shell.finish(Failed("ValueError: no such address", final=True))
    shell.add()
    other = shell.finish(Failed("OSError: disk full", final=True))
    pending = shell.add()
    assert shell("jobs", "requeue", "--error", "ADDRESS", "--yes").stdout == "requeue: 1 job done\n"
    assert [shell.status(job_id) for job_id in (failed, other, pending)] == ["pending", "failed", "pending"]
    assert "requeue needs jobs that are" in shell("jobs", "requeue", "--status=pending", "-y", code=2).stderr


def test_ids_or_filters(shell: Shell) -> None:
    for arguments in ([], [NOBODY, "--all"], [NOBODY, "--topic=mail"]):
        assert "give ids, or options that choose jobs" in shell("jobs", "cancel", *arguments, code=2).stderr


def test_more_than_a_page(shell: Shell) -> None:
    async def add(jobs: Jobs) -> None:
        await jobs.enqueue_many([("mail", {"n": n}) for n in range(430)])

    shell.do(add)
    assert shell("jobs", "cancel", "--all", "--yes").stdout == "cancel: 430 jobs done\n"
    assert shell("jobs", "requeue", "--all", "--yes").stdout == "requeue: 430 jobs done\n"
    assert shell.json("stats")["pending"] == 430


def test_a_database_that_goes_away_leaves_a_true_account(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [shell.add() for _ in range(change_jobs._AT_ONCE + 2)]
    cancel, calls = Jobs.cancel, []

    async def breaks_down(self: Jobs, job_id: str, **options: Any) -> Any:
        calls.append(job_id)
        if len(calls) > change_jobs._AT_ONCE:
            raise StoreUnavailable("the server hung up")
        return await cancel(self, job_id, **options)

    monkeypatch.setattr(Jobs, "cancel", breaks_down)
    ended = shell("jobs", "cancel", *ids, code=1)
    assert ended.stdout == f"cancel: {change_jobs._AT_ONCE} jobs done\n"
    assert "rowlock: the server hung up" in ended.stderr


def test_ctrl_c_leaves_a_true_account_too(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [shell.add() for _ in range(2 * change_jobs._AT_ONCE + 2)]
    cancel, calls = Jobs.cancel, []

    async def interrupts(self: Jobs, job_id: str, **options: Any) -> Any:
        calls.append(job_id)
        if len(calls) == change_jobs._AT_ONCE + 2:
            signal.raise_signal(signal.SIGINT)
        return await cancel(self, job_id, **options)

    monkeypatch.setattr(Jobs, "cancel", interrupts)
    ended = shell("jobs", "cancel", *ids, code=130)
    assert ended.stdout == f"cancel: {2 * change_jobs._AT_ONCE} jobs done\n"
    assert shell.json("stats")["pending"] == 2
