"""The HTTP API over a database of each kind, and all kinds of callers, each with a credential of its own.

`World.call` calls the application as a server would. `Server` is a real server, on a port of this machine.
"""

import asyncio
import contextlib
import json as jsons
import shutil
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import jwt
import uvicorn
from msgspec import Struct

from rowlock import Jobs
from rowlock.access import passwords, sessions, superusers, tokens
from rowlock.access.identity import SCOPES
from rowlock.core.job import Job
from rowlock.core.lifecycle import Completed, Failed
from rowlock.http.app import Api
from rowlock.stores.base import Store
from rowlock.stores.records import Write
from tests.stores.harness import claim_by, settlement

SECRET = "a secret of the application, at least 32 bytes long"
PASSWORD = "correct horse battery staple"
BOSS, GUEST = "boss@example.com", "guest@example.com"
A, B = "user-a", "user-b"
TEMPLATE_LIFE = 600.0  # seconds
TABLES = (
    "_jobs", "_jobs_archive", "_jobs_records", "_jobs_audit", "_jobs_topics", "_jobs_schedules", "_jobs_fires",
    "_jobs_flows", "_jobs_edges",
)  # fmt: skip

JSON = dict[str, Any]


class Who(Struct, frozen=True):
    """A caller: the headers that it sends, and the rights that it was given. `good`: its credential is valid."""

    name: str
    headers: Mapping[str, str] = {}
    kind: str = "token"
    scopes: frozenset[str] = frozenset()
    id: str = ""
    topics: tuple[str, ...] | None = None
    job: str | None = None
    jobs_of: tuple[str, str] | None = None
    enqueues: tuple[str, ...] | None = None
    read_only: bool = False
    good: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers as ASGI has them, with the content type of a JSON body."""
        named = {"content-type": "application/json", **self.headers}
        return [(name.encode(), value.encode()) for name, value in named.items()]


ANYONE = Who("anonymous", kind="anonymous")


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def user_token(user: str, secret: str = SECRET, **claims: Any) -> str:
    """Return the JWT that the application's own login gives this user."""
    now = datetime.now(UTC)
    return jwt.encode({"sub": user, "exp": now + timedelta(hours=1), **claims}, secret, algorithm="HS256")


# ── Databases ──


class Place:
    """A migrated database for one test. The test may read it directly, past rowlock."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def fetch(self, query: str) -> list[tuple[Any, ...]]:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30.0)) as connection, connection:
                return connection.execute(query).fetchall()
        if self._connection is None:
            self._connection = await asyncpg.connect(self.url)
        return [tuple(record) for record in await self._connection.fetch(query)]

    async def counts(self) -> dict[str, int]:
        """Return the number of rows in each table."""
        asked = " UNION ALL ".join(f"SELECT '{name}', count(*) FROM {name}" for name in TABLES)
        return {str(name): int(count) for name, count in await self.fetch(asked)}

    async def dump(self) -> str:
        """Return the content of all tables as one text."""
        return "\n".join([repr(row) for name in TABLES for row in await self.fetch(f"SELECT * FROM {name}")])


# ── The world ──


class World:
    """An application over a database, and all kinds of callers by name."""

    def __init__(self, place: Place, jobs: Jobs, **settings: Any) -> None:
        self.place = place
        self.jobs = jobs
        self.api = self.another_api(**settings)
        self.who: dict[str, Who] = {}

    def another_api(self, **settings: Any) -> Api:
        """Return another application over the same database."""
        return self.jobs.asgi(**{"jwt_secret": SECRET, **settings})

    async def store(self) -> Store:
        return await self.jobs._store()

    # ── Calls ──

    async def call(
        self,
        who: Who | str,
        method: str,
        path: str,
        json: Any = None,
        *,
        api: Any = None,
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        base: str = "http://localhost",
        client: str = "127.0.0.1",
        **more: Any,
    ) -> httpx.Response:
        """Call the application as a server would. `headers` are added to the credential. `client`: its address."""
        somebody = self.who[who] if isinstance(who, str) else who
        given = [*somebody.headers.items(), *(headers.items() if isinstance(headers, Mapping) else headers)]
        if json is not None:
            more["content"] = jsons.dumps(json)
            given.append(("content-type", "application/json"))
        request = httpx.Request(method, httpx.URL(base).join(path), headers=given, **more)
        transport = httpx.ASGITransport(self.api if api is None else api, client=(client, 123))
        answer = await transport.handle_async_request(request)
        await answer.aread()
        answer.request = request
        return answer

    async def get(self, who: Who | str, path: str, **more: Any) -> httpx.Response:
        return await self.call(who, "GET", path, **more)

    async def post(self, who: Who | str, path: str, json: Any = None, **more: Any) -> httpx.Response:
        return await self.call(who, "POST", path, json, **more)

    # ── Callers ──

    async def populate(self) -> None:
        store = await self.store()
        self.who = {"anonymous": ANYONE}
        for name, user in (("user A", A), ("user B", B)):
            self._add(Who(name, bearer(user_token(user, role="member")), "user", id=user))
        for scope in SCOPES:
            await self._add_token(f"{scope} token", [scope])
        await self._add_token("mail token", ["manage", "enqueue"], topics=["mail"])
        await self._add_token("mail worker token", ["worker"], topics=["mail"])
        shown = await self.enqueue(A, topic="shown")
        await self._add_token("job token", ["manage"], job=shown)
        browser: JSON = {"scope": "user", "scope_id": A, "enqueue": ["mail"]}
        await self._add_token("browser token", ["read", "cancel", "enqueue"], **browser)
        soon = await store.now() + timedelta(hours=1)
        expired = await self._add_token("expired token", ["admin"], good=False, expires_at=soon)
        [record] = await store.records(tokens.KIND, [expired.id])
        over = soon - timedelta(hours=2)
        await store.write_records([Write(tokens.KIND, expired.id, record.data, expires_at=over)])
        revoked = await self._add_token("revoked token", ["admin"], good=False)
        assert await tokens.revoke(store, revoked.id, by="test")
        past = datetime.now(UTC) - timedelta(hours=1)
        self._add(Who("expired user", bearer(user_token(A, exp=past)), "user", id=A, good=False))
        self._add(await self.session(BOSS))
        self._add(await self.session(GUEST, read_only=True))

    def _add(self, who: Who) -> None:
        self.who[who.name] = who

    async def _add_token(self, name: str, scopes: list[str], *, good: bool = True, **bounds: Any) -> tokens.Token:
        token, text = await tokens.create(await self.store(), name, scopes, by="test", **bounds)
        of = None if token.scope is None or token.scope_id is None else (token.scope, token.scope_id)
        who = Who(
            name, bearer(text), scopes=frozenset(scopes), id=token.id, topics=token.topics, job=token.job, jobs_of=of,
            enqueues=token.enqueue, good=good,
        )  # fmt: skip
        self._add(who)
        return token

    async def token(self, name: str, scopes: list[str], **bounds: Any) -> Who:
        """Create one more token, for one test."""
        await self._add_token(name, scopes, **bounds)
        return self.who.pop(name)

    async def superuser(self, email: str, *, read_only: bool = False) -> superusers.Superuser:
        store = await self.store()
        if not any(one.email == email for one in await superusers.every(store)):
            await superusers.create(store, email, PASSWORD, by="test", read_only=read_only)
        [found] = [one for one in await superusers.every(store) if one.email == email]
        return found

    async def session(self, email: str, *, read_only: bool = False) -> Who:
        """Log in and return the browser's session. The browser says that the request comes from our own page."""
        found = await self.superuser(email, read_only=read_only)
        issued = await sessions.begin(await self.store(), found, client="test", old=None)
        name = "read-only superuser" if read_only else "superuser"
        headers = {"cookie": f"rowlock_session={issued.text}", "x-rowlock-csrf": "1"}
        scopes = frozenset({"read"}) if read_only else frozenset(SCOPES)
        return Who(name, headers, "superuser", scopes, email, read_only=read_only)

    # ── Jobs ──

    async def enqueue(self, user: str | None, *, topic: str = "mail", **options: Any) -> str:
        payload = options.pop("payload", {"of": user})
        if user is not None:
            options["scope_id"] = user
        return (await self.jobs.enqueue(topic, payload, **options)).id

    async def ended(self, user: str | None, topic: str, *, error: str | None = None, **options: Any) -> str:
        """Run a job that completes, or fails with this error. Return its id. No other job of its topic may be due."""
        job_id = await self.enqueue(user, topic=topic, **options)
        store = await self.store()
        [claimed] = (await store.claim(claim_by("w1", topic, limit=1))).jobs
        assert claimed.id == job_id
        outcome = Completed({"ok": True}) if error is None else Failed(error, final=True)
        await store.settle([settlement(claimed, outcome, ran=0.5)])
        return job_id

    async def find(self, job_id: str) -> Job | None:
        return (await (await self.store()).read([job_id], Job)).get(job_id)

    async def job(self, job_id: str) -> Job:
        """Return the job, which must be there."""
        return (await (await self.store()).read([job_id], Job))[job_id]

    async def change_settings(self, **changes: Any) -> None:
        answer = await self.call("admin token", "PATCH", "/api/settings", changes)
        assert answer.status_code == 200, answer.text


@asynccontextmanager
async def world_at(place: Place, **settings: Any) -> AsyncIterator[World]:
    async with Jobs(place.url) as jobs:
        world = World(place, jobs, **settings)
        await world.populate()
        yield world


class Template:
    """A populated SQLite database, of which each test has a copy. It is made anew now and then, because sessions end
    after half an hour, and the tests take longer on a busy machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder
        self._who: dict[str, Who] = {}
        self._good_until = 0.0

    @asynccontextmanager
    async def copied(self, path: Path) -> AsyncIterator[World]:
        if time.monotonic() > self._good_until:
            self._good_until = time.monotonic() + TEMPLATE_LIFE
            self._path = self._folder / f"{self._good_until}.db"
            async with world_at(Place("sqlite", f"sqlite:///{self._path}")) as first:
                self._who = first.who
        shutil.copyfile(self._path, path)
        place = Place("sqlite", f"sqlite:///{path}")
        async with Jobs(place.url) as jobs:
            world = World(place, jobs)
            world.who = dict(self._who)
            yield world


# ── What every refusal looks like ──


def is_problem(answer: httpx.Response, status: int | None = None, code: str | None = None) -> JSON:
    """Check that the answer has all that a refusal has, and no internals of the server. Return its body."""
    assert 400 <= answer.status_code < 500, answer.text
    assert status is None or answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: JSON = answer.json()
    assert {"type", "title", "status", "code", "detail", "request_id"} <= body.keys()
    assert body["status"] == answer.status_code
    assert body["request_id"] == answer.headers["x-request-id"]
    assert code is None or body["code"] == code, body
    for word in ("Traceback", 'File "', ".py", "sqlite3", "asyncpg", "msgspec"):
        assert word not in answer.text, answer.text
    return body


# ── ASGI by hand, for requests that no client library would send ──


class Sent(Struct):
    status: int = 0
    headers: list[tuple[bytes, bytes]] = []
    body: bytes = b""
    read: int = 0  # bytes of the request's body that the application asked for

    def json(self) -> JSON:
        found: JSON = jsons.loads(self.body)
        return found


async def by_hand(
    app: Any,
    method: str = "GET",
    path: str = "/api/jobs",
    *,
    headers: Sequence[tuple[bytes, bytes]] = (),
    query: bytes = b"",
    parts: Iterator[bytes] | None = None,
    scheme: str = "http",
    receive: Callable[[], Awaitable[Any]] | None = None,
) -> Sent:
    """Call the application by ASGI and return what it sent. `receive` replaces the parts of a body."""
    sent = Sent()
    body = iter(()) if parts is None else parts

    async def receive_part() -> dict[str, Any]:
        await asyncio.sleep(0)
        part = next(body, None)
        sent.read += len(part or b"")
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            sent.status, sent.headers = message["status"], list(message["headers"])
        else:
            sent.body += message["body"]

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": query, "root_path": "", "scheme": scheme,
        "headers": [(b"host", b"localhost"), *headers], "client": ("127.0.0.1", 1234), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app(scope, receive or receive_part, send)
    return sent


# ── A real server ──


class Server:
    """uvicorn with the application, in a thread with its own event loop."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.jobs = Jobs(url)
        self.app = self.jobs.asgi(**{"jwt_secret": SECRET, **settings})
        config = uvicorn.Config(self.app, host="127.0.0.1", port=0, log_level="error", server_header=False)
        self._uvicorn = uvicorn.Server(config)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.port = 0

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            serving = asyncio.ensure_future(self._uvicorn.serve())
            while not self._uvicorn.started and not serving.done():  # noqa: ASYNC110 - it has no event for it
                await asyncio.sleep(0.005)
            if self._uvicorn.started:
                self.port = self._uvicorn.servers[0].sockets[0].getsockname()[1]
            self._started.set()
            await serving
        finally:
            self._started.set()
            await self.jobs.close()

    def call(self, function: Callable[[], None]) -> None:
        """Call the function in the server's event loop."""
        self._loop.call_soon_threadsafe(function)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(30)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        self._thread.start()
        assert self._started.wait(30)
        assert self.port
        try:
            yield
        finally:
            self.stop()

    @classmethod
    @contextlib.contextmanager
    def running(cls, url: str, **settings: Any) -> Iterator["Server"]:
        server = cls(url, **settings)
        with server.serving():
            yield server


REAL_HASHER = passwords._hasher


def cheap_hasher() -> object:
    """Return a cheap hasher: the real one takes a core for tens of milliseconds, on purpose."""
    from argon2 import PasswordHasher

    return PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
