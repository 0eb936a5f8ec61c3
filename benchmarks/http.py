"""Measures enqueues per second over HTTP, beside endpoints that only parse the same body, and the time of reads.

    python -m benchmarks.http                 SQLite, and PostgreSQL of its own (durable, as `make bench` has it)
    python -m benchmarks.http --filled 1000000     also get, list and stats over so many jobs

All servers are uvicorn, in a process each; the same connections ask them in turns. Every request carries a
token, which is looked up, and every job is there in the end: that is counted.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import reading
from benchmarks.servers import POSTGRES
from rowlock.access import settings, tokens
from rowlock.access.jwt import Verifier
from rowlock.stores import open_store
from tests.servers import PostgresServer

BODY = {"topic": "mail", "payload": {"user": 7, "subject": "hello", "text": "x" * 150}}
SECRET = "a secret of the benchmark's own, long enough"
PARTS = """
import msgspec, uvicorn, sys
from rowlock.http.enqueue import EnqueueBody, EnqueuedBody
from datetime import datetime, UTC
decode = msgspec.json.Decoder(EnqueueBody).decode
def told(body):
    asked = decode(body)
    now = datetime.now(UTC)
    return msgspec.json.encode(EnqueuedBody(id="0" * 36, topic=asked.topic, status="pending", run_at=now, created=now))
"""
# An endpoint that does as little as possible: no routing, no checks, no look at the headers.
BARE = (
    PARTS
    + """
async def app(scope, receive, send):
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    answer = told(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, lifespan="off")
"""
)
# The same endpoint as an application would write it in a framework.
STARLETTE = (
    PARTS
    + """
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
async def enqueue(request):
    return Response(told(await request.body()), media_type="application/json")
app = Starlette(routes=[Route("/api/jobs/enqueue", enqueue, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, lifespan="off")
"""
)


class Asker(asyncio.Protocol):
    """One connection that sends its next request as soon as it has an answer."""

    def __init__(self, request: bytes, left: list[int], done: asyncio.Event, slow: list[float]) -> None:
        self._request = request
        self._left = left
        self._done = done
        self._slow = slow
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        if self._left[0] == 0:
            self._transport.close()
            return
        self._left[0] -= 1
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, sign, rest = self._data.partition(b"\r\n\r\n")
        if not sign:
            return
        found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if found is None or len(rest) < int(found[1]):
            return
        assert head.startswith(b"HTTP/1.1 200"), head + rest
        self._data = b""
        self._slow.append(time.perf_counter() - self._began)
        self._left[1] -= 1
        if self._left[1] == 0:
            self._done.set()
        self._ask()


async def ask(port: int, request: bytes, count: int, connections: int) -> tuple[float, list[float]]:
    """Return the answers per second, and the seconds that each took."""
    loop = asyncio.get_running_loop()
    left, done, slow = [count, count], asyncio.Event(), list[float]()
    began = time.perf_counter()
    await asyncio.gather(
        *(
            loop.create_connection(lambda: Asker(request, left, done, slow), "127.0.0.1", port)
            for _ in range(connections)
        )
    )
    await done.wait()
    return count / (time.perf_counter() - began), slow


def request(method: str, path: str, token: str, body: Any = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    kind = f"content-type: application/json\r\ncontent-length: {len(data)}\r\n" if data else ""
    return f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n{kind}\r\n".encode() + data


@contextmanager
def server(*command: str, **environ: str) -> Iterator[int]:
    """Start the server, and yield its port."""
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, env={**os.environ, **environ}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield int(re.search(r":(\d+)$", line.strip())[1])  # type: ignore[index]
    finally:
        process.terminate()
        process.wait(20)


async def enqueueing(name: str, url: str, options: argparse.Namespace) -> dict[str, Any]:
    store = open_store(url)
    await store.migrate()
    await store.open()
    _, token = await tokens.create(store, "bench", ["enqueue"], by="bench")
    asked = request("POST", "/api/jobs/enqueue", token, BODY)
    rates: dict[str, list[float]] = {"bare": [], "starlette": [], "rowlock": []}
    slow: list[float] = []
    with ExitStack() as stack:
        ports = {one: stack.enter_context(endpoint(text)) for one, text in (("bare", BARE), ("starlette", STARLETTE))}
        for port in ports.values():
            await reachable(port)
        ports["rowlock"] = stack.enter_context(server("-m", "rowlock", "serve", "--port", "0", ROWLOCK_URL=url))
        for n in range(options.rounds + 1):
            for one, port in ports.items():
                rate, took = await ask(port, asked, options.requests, options.connections)
                if n:  # the first round warms up
                    rates[one].append(rate)
                    slow += took if one == "rowlock" else []
    there = (await store.stats()).pending
    assert there == min((options.rounds + 1) * options.requests, 100_000), there
    await store.close()
    slow.sort()
    return {
        "store": name,
        **{one: round(statistics.median(found)) for one, found in rates.items()},
        **{f"of {one}": ratio(rates[one], rates["rowlock"]) for one in ("bare", "starlette")},
        "p50_ms": round(slow[len(slow) // 2] * 1000, 1),
        "p99_ms": round(slow[len(slow) * 99 // 100] * 1000, 1),
    }


def ratio(others: list[float], own: list[float]) -> float:
    """Return the median of the ratios within each round."""
    return round(statistics.median(b / a for a, b in zip(others, own, strict=True)), 2)


@contextmanager
def endpoint(text: str) -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", text, str(port)])
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


async def reading_over_http(name: str, url: str, options: argparse.Namespace) -> dict[str, Any]:
    import jwt

    store = open_store(url)
    await store.migrate()
    await store.open()
    now_ms = int(time.time() * 1000)
    if name == "sqlite":
        reading.fill_sqlite(url.removeprefix("sqlite:///"), options.filled, options.filled // 10, now_ms)
    else:
        await reading.fill_postgres(url, options.filled, options.filled // 10, now_ms)
    _, token = await tokens.create(store, "bench", ["read"], by="bench")
    await settings.change(store, {"view_rule": "scope_id = @request.auth.id"}, by="bench")
    user = jwt.encode({"sub": "u10", "exp": int(time.time()) + 3600}, SECRET, algorithm="HS256")
    assert await Verifier(secret=SECRET).identify(user)
    job = (await store.list(reading.Filter(), limit=1)).items[0].id
    await store.close()
    told: dict[str, Any] = {"store": name, "jobs": options.filled}
    with server("-m", "rowlock", "serve", "--port", "0", ROWLOCK_URL=url, ROWLOCK_JWT_SECRET=SECRET) as port:
        for what, path, who in (
            ("get", f"/api/jobs/{job}", token),
            ("list", "/api/jobs", token),
            ("list of a topic and status", "/api/jobs?topic=mail&status=completed", token),
            ("stats", "/api/jobs/stats", token),
            ("list, one's own", "/api/jobs", user),
            ("stats, one's own", "/api/jobs/stats", user),
        ):
            await ask(port, request("GET", path, who), 3, 1)
            _, took = await ask(port, request("GET", path, who), 20, 1)
            told[what] = f"{statistics.median(took) * 1000:.1f} ms ({max(took) * 1000:.1f})"
    return told


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def reachable(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(0.05)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--filled", type=int, default=0)
    parser.add_argument("--store", choices=["sqlite", "postgres"])
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        if options.store != "postgres":
            rows.append(await enqueueing("sqlite", f"sqlite:///{Path(folder) / 'a.db'}", options))
            if options.filled:
                rows.append(await reading_over_http("sqlite", f"sqlite:///{Path(folder) / 'b.db'}", options))
        if options.store != "sqlite":
            with PostgresServer(durable=True, settings=POSTGRES) as postgres:
                rows.append(await enqueueing("postgres", postgres.url(), options))
                if options.filled:
                    await postgres.execute("CREATE DATABASE filled")
                    rows.append(await reading_over_http("postgres", postgres.url("filled"), options))
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(main())
    except ImportError:
        asyncio.run(main())
