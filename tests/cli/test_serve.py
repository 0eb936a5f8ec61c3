"""`rowlock serve` and `rowlock dev` as processes, and the commands about accounts, tokens and settings."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.conftest import Shell, rowlock, start
from tests.databases import Databases, empty
from tests.servers import PostgresServer

APP = """
from rowlock import Jobs
jobs = Jobs()

@jobs.task
async def greet(name: str) -> str:
    return f"hello {name}"
"""
PASSWORD = "a long sentence of mine"


class Server:
    def __init__(self, process: subprocess.Popen[str], address: str, link: str | None) -> None:
        self.process = process
        self.address = address
        self.link = link

    def ask(self, method: str, path: str, token: str | None = None, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.request(method, f"{self.address}{path}", headers=headers, timeout=30, **more)


@contextmanager
def serving(
    shell: Shell, *arguments: str, command: str = "serve", link: bool = False, **environ: str
) -> Iterator[Server]:
    """Start a server and yield it. `link`: expect that it prints a setup link."""
    environ = {"ROWLOCK_URL": shell.url, "PYTHONUNBUFFERED": "1", **environ}
    process = start(command, *arguments, "--port", "0", cwd=shell.folder, **environ)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        found = re.search(r"(https?://\S+)", first)
        assert found, first + process.stderr.read()
        lines = [process.stdout.readline().strip() for _ in range(3)] if link else [None]
        yield Server(process, found[1], lines[-1])
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_it_waits_for_a_server_that_is_started_later(tmp_path: Path, command: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    with PostgresServer() as postgres:
        assert rowlock("migrate", "--url", postgres.url(), cwd=tmp_path).returncode == 0
        postgres.stop()
        environ = {"ROWLOCK_URL": postgres.url(), "PYTHONUNBUFFERED": "1"}
        process = start(command, "app:jobs", "--port", "0", cwd=tmp_path, **environ)
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert "the database is not there yet" in process.stderr.readline()
            postgres.start()
            assert "rowlock answers at http" in process.stdout.readline()
        finally:
            process.terminate()
            process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGTERM)


def token(shell: Shell, *scopes: str) -> str:
    return shell("token", "create", "test", *(f"--scope={scope}" for scope in scopes)).stdout.strip()


# ── The server ──


def test_it_answers_and_stops_when_it_is_told_to(shell: Shell) -> None:
    with serving(shell) as server:
        assert server.ask("GET", "/healthz").json() == {"status": "ok"}
        assert server.ask("GET", "/readyz").status_code == 200
        assert server.ask("GET", "/api/jobs").status_code == 401
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) in (0, -signal.SIGTERM)


def test_the_first_superuser_is_made_by_the_link_and_then_there_is_none(shell: Shell) -> None:
    with serving(shell, link=True) as server:
        assert server.link is not None
        page, _, secret = server.link.partition("#")
        assert "<script" in httpx.get(page).text
        made = server.ask(
            "POST", "/api/auth/setup", json={"token": secret, "email": "ann@example.com", "password": PASSWORD}
        )
        assert made.status_code == 200, made.text
        assert "<script" in httpx.get(page).text  # the page says that the link is used up, and leads to the login
        login = server.ask("POST", "/api/auth/login", json={"email": "ann@example.com", "password": PASSWORD})
        assert login.json()["name"] == "ann@example.com"
    with serving(shell) as again:
        again.process.terminate()
        said, _ = again.process.communicate(timeout=30)
    assert said == ""
    assert [one["email"] for one in shell.json("superuser", "list")["items"]] == ["ann@example.com"]


def test_a_long_poll_does_not_hold_up_the_stop(shell: Shell) -> None:
    """Neither a request that waits for the end of a job nor a worker that waits for work delays the stop."""
    job_id = shell.add("nobody")
    who = f"host: localhost\r\nauthorization: Bearer {token(shell, 'read', 'worker')}"
    kind, body = "content-type: application/json", '{"worker": "w", "topics": ["mail"], "wait": 30}'
    asked = [
        f"GET /api/jobs/{job_id}/wait?timeout=60 HTTP/1.1\r\n{who}\r\n\r\n",
        f"POST /api/worker/claim HTTP/1.1\r\n{who}\r\n{kind}\r\ncontent-length: {len(body)}\r\n\r\n{body}",
    ]
    with serving(shell) as server, ExitStack() as stack:
        address = httpx.URL(server.address)
        assert address.port is not None
        answers = []
        for text in asked:
            line = stack.enter_context(socket.create_connection((address.host, address.port)))
            answers.append(stack.enter_context(line.makefile("rb")))
            line.sendall(text.encode())
        server.ask("GET", "/healthz")  # the server has read the earlier requests by now
        server.process.send_signal(signal.SIGTERM)
        # If the server had to cut the requests off, after its ten seconds of grace, they would not answer 200.
        [ended, claimed] = [answer.read() for answer in answers]
    assert ended.startswith(b"HTTP/1.1 200 ")
    assert b'"status":"pending"' in ended
    assert claimed.startswith(b"HTTP/1.1 200 ")
    assert claimed.endswith(b'{"items":[]}')


def test_read_only_refuses_changes(shell: Shell) -> None:
    text = token(shell, "admin")
    with serving(shell, "--read-only") as server:
        assert server.ask("GET", "/api/jobs", text).status_code == 200
        refused = server.ask("POST", "/api/jobs/enqueue", text, json={"topic": "mail"})
        assert (refused.status_code, refused.json()["code"]) == (403, "read_only")


def test_dev_also_works(shell: Shell) -> None:
    (shell.folder / "app.py").write_text(APP)
    text = token(shell, "admin")
    with serving(shell, "app:jobs", command="dev") as server:
        made = server.ask("POST", "/api/jobs/enqueue", text, json={"topic": "greet", "payload": {"name": "ann"}})
        ended = server.ask("GET", f"/api/jobs/{made.json()['id']}/wait?timeout=30", text).json()
        assert (ended["status"], ended["result"]) == ("completed", "hello ann")
        wrong = server.ask("POST", "/api/jobs/enqueue", text, json={"topic": "greet", "payload": {"nome": 1}})
        assert wrong.status_code == 400  # `dev` knows the application's own types


def test_its_logs_can_be_objects_with_the_request_id(shell: Shell) -> None:
    with serving(shell, "--log-format", "json", "-v") as server:
        httpx.get(f"{server.address}/healthz", headers={"x-request-id": "mine-12345"})
        server.process.terminate()
        _, said = server.process.communicate(timeout=30)
    lines = [json.loads(line) for line in said.splitlines()]
    assert any(line.get("request_id") == "mine-12345" for line in lines)


def test_users_come_by_json_web_tokens(shell: Shell) -> None:
    import jwt

    secret = "this is the secret of the application"
    own = "scope_id = @request.auth.id"
    shown = shell.json("settings", "set", *(f"{name}_rule={own}" for name in ("view", "cancel", "enqueue")))
    assert [shown[f"{name}_rule"] for name in ("enqueue", "view", "cancel", "manage")] == [own, own, own, ""]
    with serving(shell, ROWLOCK_JWT_SECRET=secret) as server:
        ann, bob = (
            jwt.encode({"sub": name, "exp": 4_000_000_000}, secret, algorithm="HS256") for name in ("ann", "bob")
        )
        made = server.ask("POST", "/api/jobs/enqueue", ann, json={"topic": "mail", "scope_id": "ann"})
        assert made.status_code == 200
        assert (
            server.ask("POST", "/api/jobs/enqueue", bob, json={"topic": "mail", "scope_id": "ann"}).status_code == 403
        )
        path = f"/api/jobs/{made.json()['id']}"
        assert (server.ask("GET", path, ann).status_code, server.ask("GET", path, bob).status_code) == (200, 404)
        assert server.ask("PATCH", path, ann, json={"priority": 5}).status_code == 403
        assert server.ask("POST", f"{path}/cancel", bob).status_code == 404
        assert server.ask("POST", f"{path}/cancel", ann).json()["status"] == "cancelled"


# ── Configurations that it refuses ──


def test_a_port_that_is_taken(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = rowlock("serve", "--port", port, cwd=shell.folder, ROWLOCK_URL=shell.url)
    assert ended.returncode == 1
    assert f"127.0.0.1:{port} can't be used" in ended.stderr


def test_what_would_be_open_to_others(shell: Shell) -> None:
    for arguments, said in (
        (["--host", "0.0.0.0"], "insecure_http"),
        (["--host", "0.0.0.0", "--insecure-http"], "allowed_hosts"),
        (["--origin", "example.com"], "is not an origin"),
    ):
        ended = rowlock("serve", *arguments, cwd=shell.folder, ROWLOCK_URL=shell.url)
        assert ended.returncode == 1
        assert said in ended.stderr


async def test_a_listen_url_that_leads_to_another_database(tmp_path: Path, databases: Databases) -> None:
    async with databases.fresh() as url, databases.fresh(empty) as other:
        ended = await asyncio.to_thread(
            rowlock, "serve", "--port", "0", cwd=tmp_path, ROWLOCK_URL=url, ROWLOCK_LISTEN_URL=other
        )
    assert ended.returncode == 1
    assert "listen_url" in ended.stderr
    assert "not the database that the URL leads to" in ended.stderr


def test_a_weak_secret(shell: Shell) -> None:
    ended = rowlock("serve", cwd=shell.folder, ROWLOCK_URL=shell.url, ROWLOCK_JWT_SECRET="short")
    assert ended.returncode == 1
    assert "at least 32 bytes" in ended.stderr
    assert "short" not in ended.stderr.replace("too_short", "")


# ── Accounts ──


def test_superusers(shell: Shell) -> None:
    shell("superuser", "create", "Ann@Example.com", "--password-stdin", input=f"{PASSWORD}\n")
    shell("superuser", "create", "bob@example.com", "--read-only", "--password-stdin", input=f"{PASSWORD}\n")
    assert [(one["email"], one["read_only"]) for one in shell.json("superuser", "list")["items"]] == [
        ("ann@example.com", False),
        ("bob@example.com", True),
    ]
    again = shell("superuser", "create", "ann@example.com", "--password-stdin", input=f"{PASSWORD}\n", code=1)
    assert "already" in again.stderr
    shell("superuser", "password", "ann@example.com", "--password-stdin", input="another long sentence\n")
    shell("superuser", "delete", "bob@example.com")
    assert len(shell.json("superuser", "list")["items"]) == 1
    assert "no superuser" in shell("superuser", "delete", "bob@example.com", code=1).stderr


def test_bad_accounts(shell: Shell) -> None:
    for email, password, said in (
        ("ann", PASSWORD, "e-mail"),
        ("a@b.c", "short", "12 to 512"),
        ("a@b.c", "passwordpassword", "longer sentence"),
    ):
        refused = shell("superuser", "create", email, "--password-stdin", input=f"{password}\n", code=1)
        assert said in refused.stderr
    assert shell.json("superuser", "list")["items"] == []


def test_a_password_is_asked_for_twice_and_not_shown(shell: Shell) -> None:
    made = shell("superuser", "create", "ann@example.com", input=f"{PASSWORD}\n{PASSWORD}\n")
    assert PASSWORD not in made.output


# ── Tokens ──


def test_tokens(shell: Shell) -> None:
    made = shell.json("token", "create", "ci", "-s", "enqueue", "-t", "mail", "--expires", "30d")
    assert made["token"].startswith("rlk_")
    [listed] = shell.json("token", "list")["items"]
    assert (listed["name"], listed["scopes"], listed["topics"]) == ("ci", ["enqueue"], ["mail"])
    assert "token" not in listed
    shell("token", "revoke", made["id"])
    assert shell.json("token", "list")["items"] == []
    assert "there is no token" in shell("token", "revoke", made["id"], code=1).stderr


def test_the_text_of_a_token_stands_alone_on_stdout(shell: Shell) -> None:
    made = shell("token", "create", "ci", "-s", "read")
    assert re.fullmatch(r"rlk_\w+\n", made.stdout)
    assert made.stdout.strip() not in made.stderr


def test_a_token_needs_a_scope_that_exists(shell: Shell) -> None:
    assert "--scope" in shell("token", "create", "ci", code=2).stderr
    assert "'everything' is not one of" in shell("token", "create", "ci", "-s", "everything", code=2).stderr


def test_tokens_for_browsers(shell: Shell) -> None:
    given = ("--for-scope", "user", "7")
    made = shell.json("token", "create", "page", *given, "--enqueue", "render", "--cancel", "--ttl", "15m")
    assert made["token"].startswith("rlk_")
    assert (made["scope"], made["scope_id"], made["enqueue"]) == ("user", "7", ["render"])
    job_id = shell("enqueue", "render").stdout.strip()
    shell("token", "create", "film", "--for-job", job_id)
    listed = shell("token", "list").stdout
    assert re.search(r"page\s+read, cancel, enqueue \(render\)\s+all\s+user 7", listed)
    assert re.search(rf"film\s+read\s+all\s+job {job_id}", listed)
    assert shell("token", "revoke", *given).stdout == "revoked 1 token\n"
    assert [one["name"] for one in shell.json("token", "list")["items"]] == ["film"]


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        (("--for-scope", "user", "7", "-s", "read"), 2, "for programs"),
        (("--cancel",), 2, "--for-scope SCOPE ID"),
        (("--for-scope", "user"), 2, "--for-scope"),
        (("--for-scope", "user", "7", "--ttl", "2d"), 1, "ttl: must be 1 s to 24 h"),
        (("--for-scope", "user", "7", "--for-job", "x"), 1, "job: give either"),
    ],
)
def test_a_wrong_token_for_a_browser_is_explained(
    shell: Shell, options: tuple[str, ...], code: int, problem: str
) -> None:
    assert problem in shell("token", "create", "page", *options, code=code).stderr
    assert shell.json("token", "list")["items"] == []


# ── Settings ──


def test_settings(shell: Shell) -> None:
    assert shell.json("settings", "show")["given"] == []
    changed = shell.json("settings", "set", "worker_pool_size=20", 'allowed_topics=["mail"]', "http_enabled=false")
    assert (changed["worker_pool_size"], changed["allowed_topics"], changed["http_enabled"]) == (20, ["mail"], False)
    assert changed["given"] == ["allowed_topics", "http_enabled", "worker_pool_size"]
    back = shell.json("settings", "set", "worker_pool_size=null")
    assert (back["worker_pool_size"], back["given"]) == (10, ["allowed_topics", "http_enabled"])


def test_bad_settings_change_nothing(shell: Shell) -> None:
    for change, code, said in (
        *((f"{name}_rule=scopeid = 1", 1, "no field scopeid") for name in ("enqueue", "view", "cancel", "manage")),
        ("worker_pool_size=0", 1, "from 1 to"),
        ("worker_pool_size=many", 2, "is not JSON"),
        ("colour=red", 2, "is not JSON"),
        ("colour=1", 1, "is none of"),
        ("worker_pool_size", 2, "is not NAME=VALUE"),
    ):
        assert said in shell("settings", "set", "poll_interval=5", change, code=code).stderr
        assert shell.json("settings", "show")["given"] == [], change


def test_nothing_is_left_in_the_environment() -> None:
    assert "ROWLOCK_LOG_FORMAT" not in os.environ


def test_help_says_what_there_is(tmp_path: Path) -> None:
    said = rowlock("serve", "--help", cwd=tmp_path).stdout
    for option in ("--host", "--port", "--read-only", "--trusted-proxy", "--log-format"):
        assert option in said
