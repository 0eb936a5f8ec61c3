"""Mistyped words: commands, options and topics that resemble a known word, and the answers if they resemble none."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from rowlock.cli import cli
from rowlock.errors import InvalidInput
from rowlock.jobs import Jobs
from tests.cli.conftest import Shell, rowlock
from tests.stores.harness import info

ON_SQLITE = pytest.mark.parametrize("shell", ["sqlite"], indirect=True)  # does not depend on the kind of database


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["jbos"], "Did you mean 'jobs'?"),
        (["job", "list"], "Did you mean 'jobs'?"),
        (["jobs", "requeu"], "Did you mean 'requeue'?"),
        (["topics", "puase", "mail"], "Did you mean 'pause'?"),
        (["bulk", "strat"], "Did you mean 'start'?"),
        (["settings", "shwo"], "Did you mean 'show'?"),
        (["token", "creat"], "Did you mean 'create'?"),
        (["superuser", "lst"], "Did you mean 'list'?"),
        (["jobs", "list", "--statsu", "failed"], "--status"),
        (["xyzzy"], None),
    ],
)
def test_a_mistyped_word(arguments: list[str], meant: str | None) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "No such" in result.stderr
    assert meant in result.stderr if meant else "Did you mean" not in result.stderr


def test_a_topic_that_resembles_another(shell: Shell) -> None:
    first = shell("enqueue", "send_mail")
    assert first.stderr == ""  # the first topic resembles no other
    mistyped = shell("enqueue", "send_mial")
    assert "no worker has the topic 'send_mial'. Did you mean 'send_mail'?" in mistyped.stderr
    assert shell.status(mistyped.stdout.strip()) == "pending"  # the job is enqueued, because the hint is only a guess
    assert shell("enqueue", "send_mial").stderr == ""  # a job with this topic exists by now
    assert shell("enqueue", "bills").stderr == ""


def test_a_topic_that_a_worker_knows_is_not_mistyped(shell: Shell) -> None:
    async def report(jobs: Jobs) -> None:
        await (await jobs._store()).report(info(topics=("send_mail", "send_mails")))

    shell.do(report)
    assert shell("enqueue", "send_mails").stderr == ""
    assert shell("topics", "pause", "send_mail").stderr == ""
    assert "Did you mean 'send_mail'?" in shell("topics", "pause", "send_mali").stderr


def test_a_topic_that_nothing_has_is_paused_with_a_warning(shell: Shell) -> None:
    shell.add("mail")
    assert shell("topics", "pause", "mail").stderr == ""
    unknown = shell("topics", "pause", "reports")
    assert unknown.stdout == "reports is paused\n"
    assert "no job and no worker has the topic 'reports'. It is paused all the same.\n" in unknown.stderr
    assert {one["topic"] for one in shell.json("topics", "list")["items"] if one["paused"]} == {"mail", "reports"}
    assert shell("topics", "resume", "report").stdout == "report was not paused. Did you mean 'reports'?\n"


@ON_SQLITE
def test_a_setting_that_was_changed_is_told_in_a_line(shell: Shell) -> None:
    changed = shell("settings", "set", "worker_pool_size=20", 'allowed_topics=["mail"]')
    assert changed.stdout == 'worker_pool_size = 20, allowed_topics = ["mail"]\n'
    assert shell("settings", "set", "worker_pool_size=null").stdout == "worker_pool_size = 10\n"  # null: the default
    assert shell.json("settings", "set", "http_enabled=true")["given"] == ["allowed_topics", "http_enabled"]


def test_a_schema_without_tables_is_named(tmp_path: Path, postgres_url: str) -> None:
    for words in (["stats"], ["enqueue", "mail"], ["jobs", "list"]):
        ended = rowlock(*words, "--url", f"{postgres_url}?schema=work", cwd=tmp_path)
        assert ended.returncode == 1
        assert ", schema work, lacks rowlock's migrations" in ended.stderr


# ── A worker without tasks ──


async def test_a_worker_in_a_program_without_tasks() -> None:
    async with Jobs("sqlite://") as jobs:
        with pytest.raises(InvalidInput, match=r"nothing to run\. Import the modules that have the tasks"):
            await jobs.start()


def test_a_worker_whose_tasks_are_in_a_module_that_nothing_imports(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text('from rowlock import Jobs\njobs = Jobs("sqlite:///jobs.db")\n')
    (tmp_path / "mail.py").write_text("from shop import jobs\n@jobs.task\ndef send_mail() -> None: ...\n")
    ended = rowlock("worker", "shop:jobs", cwd=tmp_path)
    assert ended.returncode == 1
    assert "importing shop registers no task. Import the modules that have the tasks" in ended.stderr
    assert "Traceback" not in ended.stderr
    ended = rowlock("worker", "shop:jobs", "--topics", "send_mail", cwd=tmp_path)
    assert "importing shop registers no task" in ended.stderr
