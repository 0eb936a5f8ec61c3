"""`rowlock jobs steps`, a requeue from a step, and `rowlock check` on half done jobs."""

import sys

import pytest

from rowlock.core.job import Lane
from rowlock.core.lifecycle import Failed, Released, Settlement, decide
from rowlock.jobs import Jobs
from rowlock.stores.base import Claim
from tests.cli.conftest import Shell
from tests.stores.harness import mark

APP = """
from rowlock import Context, Jobs, step
jobs = Jobs()

@step(title="Fetch it")
async def fetch(url: str) -> int: ...

@step(title="Embed it")
async def embed(pages: int) -> list[float]: ...

@jobs.task("pipe", steps=[fetch, embed])
async def pipe(ctx: Context, url: str) -> None: ...
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
    shell("templates", "publish", "app:jobs")
    return write


def half_done(shell: Shell, *, ends: bool = True, running: bool = False, version: int = 0) -> str:
    """Make a job whose first run has called `fetch` once and `embed` twice, and then failed or given the job back.
    Return its id. `running`: the run goes on."""
    job_id = shell.add("pipe", '{"url": "x"}')

    async def work(jobs: Jobs) -> None:
        store = await jobs._store()
        [run] = (await store.claim(Claim("w1", (Lane("pipe", version),), 1, 30.0))).jobs
        await store.checkpoint([
            mark(run, "fetch", "succeeded", position=1, result='{"pages":2}', age=1.0),
            mark(run, "embed", "succeeded", position=2, result="[1.5]"),
            mark(run, "embed", "failed", n=2, position=3, error="Traceback\nBusy: 503", retries=3),
        ])  # fmt: skip
        if not running:
            outcome = Failed("no", final=True) if ends else Released("later")
            to = decide(run, outcome, await store.now())
            await store.settle([Settlement(run.id, run.version, to, run.locked_by)])

    shell.do(work)
    return job_id


def test_steps_are_shown(shell: Shell, write: object) -> None:
    job_id = half_done(shell)
    shown = shell("jobs", "steps", job_id)
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0] == ["step", "title", "state", "took", "retries", "note"]
    assert lines[1] == ["fetch", "Fetch", "it", "succeeded", "1", "s", "-", '{"pages":2}']
    assert lines[3][:4] == ["embed#2", "Embed", "it", "failed"]
    assert lines[3][-3:] == ["3", "Busy:", "503"]
    assert "2 of 3 steps done" in shown.stderr
    found = shell.json("jobs", "steps", job_id)
    assert [(one["name"], one["n"], one["state"], one["result"]) for one in found["items"]] == [
        ("fetch", 1, "succeeded", {"pages": 2}), ("embed", 1, "succeeded", [1.5]), ("embed", 2, "failed", None),
    ]  # fmt: skip
    assert "embed#2" in shell("jobs", "show", job_id).stdout
    assert len(shell.json("jobs", "show", job_id)["steps"]) == 3
    plain = shell.add("mail", "{}")
    assert "no steps" in shell("jobs", "steps", plain).stderr
    assert "no job" in shell("jobs", "steps", "01a1e162-3749-7000-84cb-b064e212c1d0", code=1).stderr


def test_a_long_result_is_cut_in_the_table(shell: Shell, write: object) -> None:
    job_id = shell.add("pipe", '{"url": "x"}')

    async def work(jobs: Jobs) -> None:
        store = await jobs._store()
        [run] = (await store.claim(Claim("w1", (Lane("pipe"),), 1, 30.0))).jobs
        await store.checkpoint([mark(run, "fetch", "succeeded", position=1, result=f'"{"x" * 100_000}"')])

    shell.do(work)
    shown = shell("jobs", "steps", job_id).stdout
    assert "x" * 900 in shown
    assert len(shown) < 5_000
    assert shell.json("jobs", "steps", job_id)["items"][0]["result"] == "x" * 100_000


def test_a_requeue_from_a_step_and_one_from_the_start(shell: Shell, write: object) -> None:
    job_id = half_done(shell)
    refused = shell("jobs", "requeue", job_id, "--from-step", "embde", code=1)
    assert "fetch, embed" in refused.stdout + refused.stderr
    for wrong in (["--from-step", "embed"], ["--drop-steps"]):
        assert "need the ids of the jobs" in shell("jobs", "requeue", "--all", *wrong, code=2).stderr
    both = shell("jobs", "requeue", job_id, "--from-step", "embed", "--drop-steps", code=2)
    assert "or --drop-steps" in both.stderr
    assert (
        shell("jobs", "requeue", job_id, "--from-step", "embed", "--reason", "new model").stdout
        == "requeue: 1 job done\n"
    )
    shown = shell.json("jobs", "steps", job_id)["items"]
    assert [(one["name"], one["state"]) for one in shown] == [("fetch", "succeeded"), ("embed", "pending")]
    entry = shell.json("audit", "--action", "requeue")["items"][0]
    assert (entry["reason"], entry["data"]["dropped_steps"]) == ("new model", ["embed", "embed#2"])

    shell("jobs", "cancel", job_id)
    shell("jobs", "requeue", job_id)  # a requeue keeps the steps that have succeeded
    assert shell.json("jobs", "steps", job_id)["items"][0]["state"] == "succeeded"
    shell("jobs", "cancel", job_id)
    shell("jobs", "requeue", job_id, "--drop-steps")
    assert [one["state"] for one in shell.json("jobs", "steps", job_id)["items"]] == ["pending", "pending"]


# ── Before a deploy ──


def findings(shell: Shell, *, code: int = 1) -> list[tuple[str, int, int]]:
    """Return the findings of `rowlock check`, each with its number of jobs and of samples."""
    found = shell.json("check", "app:jobs", code=code)["findings"]
    return [(f"{one['check']} {one['text'].partition(':')[0]}", one["count"], len(one["jobs"])) for one in found]


def test_check_finds_steps_that_half_done_jobs_have_and_the_new_code_lacks(shell: Shell, write: object) -> None:
    assert callable(write)
    runs = half_done(shell, running=True)
    half_done(shell)  # this job has ended: no worker runs it
    waits = half_done(shell, ends=False)
    shell.add("pipe", '{"url": "x"}')  # this job has not begun
    assert findings(shell, code=0) == []

    renamed = APP.replace("embed", "vectors")
    write(renamed)
    assert findings(shell) == [("step embed", 2, 2)]
    told = shell("check", "app:jobs", code=1)
    assert 'was="embed"' in told.stdout
    assert waits in told.stdout
    assert runs in told.stdout
    write(renamed.replace('title="Embed it"', 'title="Embed it", was="embed"'))
    assert findings(shell, code=0) == []

    write(APP.replace("steps=[fetch, embed]", "steps=[embed]"))  # the code has lost a step
    assert findings(shell) == [("step fetch", 2, 2)]
    write(
        APP.replace("steps=[fetch, embed]", "steps=[fetch.using(name='embed'), embed.using(name='fetch')]")
    )  # the code has swapped the names of two steps
    assert findings(shell) == [("step fetch", 2, 2), ("step embed", 2, 2)]
    assert "'fetch' has stored it, and the code calls 'embed'" in shell("check", "app:jobs", code=1).stdout


def test_check_says_how_to_rename_a_step_of_a_frozen_version(shell: Shell, write: object) -> None:
    assert callable(write)
    first = APP.replace('"pipe", ', '"pipe", version=1, ')
    write(first)
    shell("templates", "publish", "app:jobs")
    half_done(shell, ends=False, version=1)
    write(first.replace("embed", "vectors"))
    told = shell("check", "app:jobs", code=1).stdout
    assert 'if it was renamed, give the task version=2 and runs=[1], and add was="embed" to the new one' in told
    second = first.replace("version=1", "version=2, runs=[1]").replace("embed", "vectors")
    write(second)
    told = shell("check", "app:jobs", code=1).stdout
    assert 'if it was renamed, add was="embed" to the new one' in told
    write(second.replace('title="Embed it"', 'title="Embed it", was="embed"'))
    assert findings(shell, code=0) == []


def test_steps_that_the_handler_names_itself_are_not_compared(shell: Shell, write: object) -> None:
    assert callable(write)
    job_id = shell.add("pipe", '{"url": "x"}')

    async def work(jobs: Jobs) -> None:
        store = await jobs._store()
        [run] = (await store.claim(Claim("w1", (Lane("pipe"),), 1, 30.0))).jobs
        await store.checkpoint([
            mark(run, "fetch page 7", "succeeded", position=1, function="fetch"),  # fetch.using(name=…)
            mark(run, "len", "succeeded", position=2),  # a plain function that was never declared
        ])  # fmt: skip

    shell.do(work)
    assert shell.json("jobs", "show", job_id)["step"] == "len"
    assert findings(shell, code=0) == []
