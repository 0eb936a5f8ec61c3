"""All commands share these manners: help, JSON, exit codes, one line per error, and no traceback."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rowlock.cli import cli
from rowlock.core.lifecycle import Failed
from rowlock.jobs import Jobs
from rowlock.stores.migrations import load
from rowlock.stores.sqlite.store import SqliteStore
from tests.cli.conftest import Shell, environment, rowlock, start

NOBODY = "0193fb1e-0000-7000-8000-000000000000"

# Every command that talks to the database, with arguments that work on an empty database.
DATABASE = [
    ["enqueue", "mail"],
    ["jobs", "list"],
    ["jobs", "cancel", "--all", "--yes"],
    ["jobs", "requeue", "--all", "--yes"],
    ["jobs", "delete", "--all", "--yes"],
    ["flows", "list"],
    ["limits", "list"],
    ["limits", "put", "mail", "--max", "5"],
    ["limits", "clear", "mail"],
    ["topics", "list"],
    ["topics", "pause", "mail"],
    ["topics", "resume", "mail"],
    ["stats"],
    ["audit"],
    ["top", "--once"],
    ["workers"],
    ["migrate", "--plan"],
]
# … and the commands that need a job.
ONE_JOB = [
    ["jobs", "show"],
    ["jobs", "logs"],
    ["jobs", "wait"],
    ["jobs", "cancel"],
    ["jobs", "requeue"],
    ["jobs", "delete"],
    ["jobs", "update", "--priority=1"],
    ["why"],
]


def name_of(arguments: list[str]) -> str:
    return "-".join(word for word in arguments if not word.startswith("-"))


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


# ── Help ──


def test_every_command_has_help() -> None:
    paths = []
    for path, command in commands(cli):
        result = CliRunner().invoke(cli, [*path, "--help"])
        assert result.exit_code == 0
        assert command.help, path
        paths.append(" ".join(path))
    assert {"jobs list", "topics pause", "top", "completion", "migrate", "worker", "demo"} <= set(paths)


def test_every_command_on_the_database_takes_url_and_output() -> None:
    for arguments in [*DATABASE, *ONE_JOB]:
        words = arguments[: 2 if arguments[0] in ("flows", "jobs", "limits", "topics") else 1]
        text = CliRunner().invoke(cli, [*words, "--help"]).stdout
        assert "--url" in text
        assert "--output" in text
        assert "--traceback" in text


def test_the_list_of_commands_loads_none_of_them(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom rowlock.cli import cli\n"
        "result = CliRunner().invoke(cli, ['--help'])\nassert 'Watch the queue' in result.stdout\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('rich', 'asyncpg', 'sqlite3')])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "[]\n", ended.stderr


def test_wait_documents_its_exit_codes() -> None:
    text = CliRunner().invoke(cli, ["jobs", "wait", "--help"]).stdout
    assert [line.split()[0] for line in text.splitlines() if line.strip()[:1].isdigit()] == ["0", "3", "4"]


# ── JSON ──


def test_json_is_one_document_and_nothing_else(shell: Shell) -> None:
    for arguments in DATABASE:
        document = shell.json(*arguments)
        if arguments[-1] == "list" or "--all" in arguments or arguments == ["workers"]:
            assert {"items", "total", "next"} <= document.keys(), arguments
    for arguments in ONE_JOB:
        job_id = shell.add("one")
        if arguments[-1] in ("wait", "requeue"):
            shell.finish(Failed("no", final=True), "one")
        found = shell.json(*arguments, job_id, code=3 if arguments[-1] == "wait" else 0)
        assert isinstance(found, dict), arguments
        shell("jobs", "delete", "--topic", "one", "--yes")


# ── Errors ──


def refused(result: "subprocess.CompletedProcess[str]", says: str, code: int = 1) -> None:
    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr.startswith("rowlock: ")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr
    assert "s3cret" not in result.stderr


def in_process(*arguments: str, url: str) -> "subprocess.CompletedProcess[str]":
    """Run `rowlock` in this process, because a Python process per command would take long. Return the result."""
    result = CliRunner(env={"ROWLOCK_URL": url, "ROWLOCK_TRACEBACK": None}).invoke(cli, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


EVERY = [*DATABASE, *([*arguments, NOBODY] for arguments in ONE_JOB)]


@pytest.mark.parametrize("arguments", EVERY, ids=name_of)
def test_a_wrong_url_and_a_server_that_is_not_there(arguments: list[str]) -> None:
    refused(in_process(*arguments, url="foo://ann:s3cret@host/shop"), "foo:// is not supported")
    refused(in_process(*arguments, url="postgresql://ann:s3cret@127.0.0.1:1/shop"), "127.0.0.1:1/shop can't be reached")


@pytest.mark.parametrize("arguments", [one for one in EVERY if one[0] not in ("migrate", "enqueue")], ids=name_of)
def test_a_database_without_tables(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(in_process(*arguments, url="sqlite:///mistyped.db"), "run `rowlock migrate`")
    assert list(tmp_path.iterdir()) == []  # the command has made no empty database


async def test_a_postgresql_without_tables(postgres_url: str, tmp_path: Path) -> None:
    refused(rowlock("stats", cwd=tmp_path, ROWLOCK_URL=postgres_url), "run `rowlock migrate`")
    refused(rowlock("enqueue", "mail", cwd=tmp_path, ROWLOCK_URL=postgres_url), "run `rowlock migrate`")


def test_a_job_that_is_not_there(shell: Shell) -> None:
    for arguments in ONE_JOB:
        assert f"rowlock: no job {NOBODY}" in shell(*arguments, NOBODY, code=1).stderr, arguments
        assert "rowlock: id: must be a UUID, not 'x'" in shell(*arguments, "x", code=1).stderr, arguments


def test_no_database_named(tmp_path: Path) -> None:
    refused(rowlock("stats", cwd=tmp_path), "ROWLOCK_URL")


@pytest.mark.parametrize("way", ["option", "option of the command", "environment"])
def test_a_traceback_for_those_who_ask(tmp_path: Path, way: str) -> None:
    before = ["--traceback"] if way == "option" else []
    after = ["--traceback"] if way == "option of the command" else []
    environ = {"ROWLOCK_TRACEBACK": "1"} if way == "environment" else {}
    ended = rowlock(*before, "stats", *after, "--url", "foo://x", cwd=tmp_path, **environ)
    assert ended.returncode == 1
    assert "Traceback (most recent call last)" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("rowlock: url: foo://")


# ── Signals, pipes, terminals ──


@pytest.fixture
async def migrated(tmp_path: Path) -> Path:
    await SqliteStore(tmp_path / "jobs.db").migrate()
    return tmp_path


URL = {"ROWLOCK_URL": "sqlite:///jobs.db"}


def test_ctrl_c_ends_it_without_a_traceback(migrated: Path) -> None:
    with start("enqueue", "mail", "--wait", cwd=migrated, **URL) as process:
        assert process.stderr is not None
        assert len(process.stderr.readline()) == 37  # the id is printed: the command waits from now on
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)
        assert (process.returncode, *rest) == (130, "", "\n")


@pytest.mark.parametrize("arguments", [["jobs", "list"], ["stats", "-o", "json"], ["--help"]])
def test_a_reader_that_has_seen_enough_hears_no_complaint(migrated: Path, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        command = [sys.executable, "-m", "rowlock", *arguments]
        environ = environment(**URL)
        ended = subprocess.run(command, cwd=migrated, env=environ, stdout=pipe, stderr=subprocess.PIPE, timeout=60)
    assert ended.stderr == b""


def at_terminal(arguments: list[str], folder: Path, *, until: bytes = b"", keys: bytes = b"", **environ: str) -> str:
    """Run the command at a terminal of 200 columns. Type `keys` when `until` was seen. Return its output."""
    ours, theirs = pty.openpty()
    env = environment(**{"NO_COLOR": "", **URL, "TERM": "xterm-256color", "COLUMNS": "200", "LINES": "50", **environ})
    command = [sys.executable, "-m", "rowlock", *arguments]
    with subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        typed = False
        while True:
            try:
                data = os.read(ours, 65_536)
            except OSError:  # on Linux, this means that the other side is closed
                break
            if not data:
                break
            seen += data
            if keys and not typed and until in seen:
                os.write(ours, keys)
                typed = True
        assert process.wait(60) == 0
    os.close(ours)
    return seen.decode()


def test_a_table_at_a_terminal_has_colours_unless_unwanted(migrated: Path) -> None:
    job_id = rowlock("enqueue", "mail", cwd=migrated, **URL).stdout.strip()
    colourful = at_terminal(["jobs", "list"], migrated)
    assert "\x1b[" in colourful
    assert job_id in colourful
    assert "\x1b[" not in at_terminal(["jobs", "list"], migrated, NO_COLOR="1")


def test_a_narrow_terminal_shows_ids_whole_and_leaves_out_what_says_nothing(migrated: Path) -> None:
    job_id = rowlock("enqueue", "a-topic-with-a-rather-long-name", cwd=migrated, **URL).stdout.strip()
    listed = at_terminal(["jobs", "list"], migrated, COLUMNS="80")
    assert job_id in listed
    assert "status" in listed
    assert "note" not in listed
    numbers = at_terminal(["stats"], migrated, COLUMNS="80")
    assert "pending" in numbers
    assert "expired" not in numbers
    assert "expired" in at_terminal(["stats"], migrated)


def test_top_ends_with_q(migrated: Path) -> None:
    rowlock("enqueue", "mail", cwd=migrated, **URL)
    picture = at_terminal(["top"], migrated, until=b"1 pending", keys=b"q")
    assert "mail" in picture
    assert picture.count("\x1b[?1049h") == picture.count("\x1b[?1049l") == 1  # the old screen is restored


def test_a_person_at_the_terminal_is_asked(migrated: Path) -> None:
    rowlock("enqueue", "mail", cwd=migrated, **URL)
    said = at_terminal(["jobs", "delete", "--all"], migrated, until=b"Go on?", keys=b"y\n")
    assert "delete: 1 job done" in said


def test_long_work_has_a_progress_bar(migrated: Path) -> None:
    async def add() -> None:
        async with Jobs(f"sqlite:///{migrated}/jobs.db") as jobs:
            await jobs.enqueue_many([("mail", {}) for _ in range(60)])

    asyncio.run(add())
    said = at_terminal(["jobs", "cancel", "--all", "--yes"], migrated)
    assert "/60" in said
    assert "cancel: 60 jobs done" in said


# ── Completion ──


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_the_completion_script(kind: str) -> None:
    script = CliRunner().invoke(cli, ["completion", kind]).stdout
    assert f"_ROWLOCK_COMPLETE={kind}_complete" in script


def completed(words: str, *, cwd: Path, **environ: str) -> set[str]:
    """Return the completions that bash would offer for the last word."""
    program = "from rowlock.cli import cli\ncli(prog_name='rowlock')"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env=environment(
            **environ, _ROWLOCK_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1)
        ),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stderr == ""
    return {line.partition(",")[2] for line in ended.stdout.splitlines() if line}


def test_commands_statuses_and_topics_are_completed(migrated: Path) -> None:
    for topic in ("mail", "maps", "bills"):
        rowlock("enqueue", topic, cwd=migrated, **URL)
    assert completed("rowlock to", cwd=migrated) == {"token", "topics", "top"}
    assert completed("rowlock jobs re", cwd=migrated) == {"requeue"}
    assert completed("rowlock jobs list --status c", cwd=migrated) == {"cancel_requested", "completed", "cancelled"}
    assert completed("rowlock topics pause ma", cwd=migrated, **URL) == {"mail", "maps"}
    assert completed("rowlock stats --url sqlite:///jobs.db b", cwd=migrated) == {"bills"}


def test_a_database_that_can_not_be_asked_completes_nothing(tmp_path: Path) -> None:
    assert completed("rowlock stats ma", cwd=tmp_path) == set()
    assert completed("rowlock stats ma", cwd=tmp_path, ROWLOCK_URL="sqlite:///none.db") == set()
    assert completed("rowlock stats ma", cwd=tmp_path, ROWLOCK_URL="postgresql://127.0.0.1:1/x") == set()
    assert list(tmp_path.iterdir()) == []


# ── migrate ──


def test_migrate_for_programs(tmp_path: Path) -> None:
    def migrate(*options: str) -> dict[str, object]:
        document: dict[str, object] = json.loads(rowlock("migrate", *options, "-o", "json", cwd=tmp_path, **URL).stdout)
        return document

    todo = [{"number": one.number, "name": one.name} for one in load("rowlock.stores.sqlite")]
    assert migrate("--plan") == {"items": todo, "total": len(todo), "next": None, "applied": False}
    assert "CREATE TABLE" in str(migrate("--sql")["sql"])
    assert migrate() == {"items": todo, "total": len(todo), "next": None, "applied": True}
    assert migrate() == {"items": [], "total": 0, "next": None, "applied": True}
