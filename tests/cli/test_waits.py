"""`rowlock jobs signal` and `wake`; and what `show`, `steps`, `why`, `check` and `templates` say of waits and of topics
that other programs run."""

import sys
from typing import Any

import pytest

from rowlock.core.job import Job
from rowlock.jobs import Jobs
from tests.cli.conftest import Shell
from tests.waits import DECISION, waiting

APP = """
from rowlock import Jobs
jobs = Jobs()

@jobs.task("gpu.render", external=True)
async def render(scene: str) -> None: ...
"""


def made(shell: Shell, **options: Any) -> str:
    """Enqueue a job and let it wait. Return its id."""
    job_id = shell.add()

    async def wait(jobs: Jobs) -> Job:
        return await waiting(await jobs._store(), job_id, **options)

    shell.do(wait)
    return job_id


def test_a_signal(shell: Shell) -> None:
    job_id = made(shell, schema=DECISION)
    assert "data.ok" in shell("jobs", "signal", job_id, "decision", '{"ok": 1}', code=1).stderr
    assert "data" in shell("jobs", "signal", job_id, "decision", code=1).stderr
    told = shell.json("jobs", "signal", job_id, "decision", '{"ok": true}', "--id", "a-1", "--reason", "by phone")
    assert (told["id"], told["status"]) == (job_id, "pending")
    assert "come before" in shell("jobs", "signal", job_id, "decision", '{"ok": true}', "--id", "a-1", code=1).stderr
    [line] = shell.json("audit", "--job", job_id)["items"]
    assert (line["action"], line["reason"], line["data"]["id"]) == ("signal", "by phone", "a-1")


def test_a_signal_that_the_job_does_not_wait_for_is_kept_with_a_word(shell: Shell) -> None:
    job_id = made(shell)
    assert "waits for the signal 'decision'. 'decison' is kept" in shell("jobs", "signal", job_id, "decison").stderr
    assert shell("jobs", "signal", job_id, "decision").stderr == ""
    assert shell("jobs", "signal", job_id, "later").stderr == ""  # the job waits for none


def test_a_signal_for_nobody(shell: Shell) -> None:
    shell("migrate")
    nobody = "01a1e162-3749-7000-84cb-b064e212c1d0"
    assert "no job" in shell("jobs", "signal", nobody, "decision", code=1).stderr
    assert "letters, digits" in shell("jobs", "signal", nobody, "two words", code=1).stderr


def test_wake(shell: Shell) -> None:
    job_id = made(shell, signal=None, seconds=3600.0)
    assert shell.json("jobs", "wake", job_id, "--reason", "now")["status"] == "pending"
    assert "can't wake" in shell("jobs", "wake", job_id, code=1).stderr


@pytest.mark.parametrize(
    ("options", "shown", "why"),
    [
        ({}, "signal decision without end", "It waits for the signal decision without end"),
        ({"seconds": 3600.0}, "signal decision until 2", "It waits for the signal decision until 2"),
        ({"signal": None, "seconds": 3600.0}, "sleep until 2", "It sleeps until 2"),
    ],
)
def test_what_a_job_waits_for_is_shown(shell: Shell, options: dict[str, Any], shown: str, why: str) -> None:
    job_id = made(shell, **options)
    lines = [line.removeprefix("waits for").strip() for line in shell("jobs", "show", job_id).stdout.splitlines()]
    assert any(line.startswith(shown) for line in lines)
    assert why in shell("why", job_id).stdout


def test_the_steps_name_waits(shell: Shell) -> None:
    job_id = made(shell, steps=["ask"], callback=True, seconds=60.0)
    lines = [line.split() for line in shell("jobs", "steps", job_id).stdout.splitlines()]
    assert [line[0] for line in lines[1:]] == ["ask", "@callback:decision", "@signal:decision"]
    assert "waiting" in lines[3]
    assert lines[3][-2] == "until"
    assert [one["kind"] for one in shell.json("jobs", "steps", job_id)["items"]] == ["step", "callback", "signal"]


def test_a_topic_that_is_run_elsewhere(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWLOCK_URL", shell.url)
    (shell.folder / "external_app.py").write_text(APP)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(shell.folder))
    shell("migrate")
    shell("templates", "publish", "external_app:jobs")
    assert "code, external" in shell("templates", "list").stdout
    assert shell.json("templates", "show", "gpu.render")["external"] is True
    job_id = shell.add("gpu.render", '{"scene": "a"}')
    assert "external topic" in shell("why", job_id).stdout
    assert "the new code fits" in shell("check", "external_app:jobs").stderr
    sys.modules.pop("external_app", None)
