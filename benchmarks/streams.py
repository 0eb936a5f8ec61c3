"""Measures how soon many streams are told of a change, and what that costs the server.

    python -m benchmarks.streams                    SQLite, and PostgreSQL of its own (durable, as `make bench` has it)
    python -m benchmarks.streams --clients 500 --changes 2000 --seconds 10 --watch own

Jobs are enqueued, claimed and completed at a given pace by a process of its own; each is three changes. Clients watch
one topic (`topic`), the jobs of a user each (`own`), those of one topic (`own-topic`), or a few jobs by id each
(`ids`). In the middle all of them hang up and come back. Told: how long after its commit a job's end was told, of all
jobs that a client has to know of, and how many ends were never told (of a topic only the newest jobs and those once
told are followed). `--history`: so many jobs of another topic that each user has already.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.http import SECRET, request, server
from benchmarks.servers import POSTGRES
from rowlock.access import settings, tokens
from rowlock.core.ids import IdMaker
from rowlock.core.job import Lane, new_job
from rowlock.core.lifecycle import Completed, Settlement, decide
from rowlock.stores import open_store
from rowlock.stores.base import Claim
from tests.servers import PostgresServer

TOPIC = "busy"
KINDS = ["topic", "own", "own-topic", "ids"]
new_id = IdMaker(time.time_ns, os.urandom).one
EACH = 100  # streams that use one token
BATCH = 0.05  # seconds of changes that are made together
STATE = re.compile(rb'"id":"([0-9a-f-]{36})","topic":"[^"]*","status":"completed"')


# ── The changes ──


async def make_changes(url: str, options: argparse.Namespace, ids: list[list[str]]) -> None:
    """Make changes at the given pace. Print their rate, and when each job's completion was committed."""
    store = open_store(url)
    await store.open()
    users = [f"u{n}" for n in range(options.clients)]
    each = max(1, round(options.changes / 3 * BATCH))
    waiting = [(job_id, user) for some in zip(*ids, strict=True) for job_id, user in zip(some, users, strict=True)]
    ends: dict[str, tuple[float, str]] = {}
    began, made = time.monotonic(), 0
    owner: dict[str, str] = {}
    while time.monotonic() - began < options.seconds:
        jobs = []
        for _ in range(each):
            job_id, user = waiting.pop(0) if waiting else (new_id(), users[made % len(users)])
            owner[job_id] = user
            jobs.append(new_job(job_id, TOPIC, {"n": made}, scope_id=user))
            made += 1
        await store.insert(jobs)
        claimed = await store.claim(Claim("bench", (Lane(TOPIC, None),), each, 30.0, True))
        done = [
            Settlement(job.id, job.version, decide(job, Completed({}), job.created), "bench") for job in claimed.jobs
        ]
        await store.settle(done)
        now = time.monotonic()
        ends |= {job.id: (now, owner[job.id]) for job in claimed.jobs}
        await asyncio.sleep(max(0.0, began + made * 3 / options.changes - time.monotonic()))
    rate = 3 * made / (time.monotonic() - began)
    await store.close()
    print(json.dumps({"rate": rate, "ends": ends}))


# ── The clients that watch ──


class Client(asyncio.Protocol):
    """Read a stream, and note when the end of each job was first told."""

    def __init__(self, asked: bytes, told: dict[str, float], reads: bool) -> None:
        self._asked = asked
        self._told = told
        self._reads = reads
        self._data = b""
        self.bytes = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._asked)

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)
        if not self._reads:
            return
        now = time.monotonic()
        whole, sign, rest = (self._data + data).rpartition(b"\n\n")
        self._data = rest if sign else self._data + data
        for found in STATE.findall(whole):
            self._told.setdefault(found.decode(), now)


async def watch(name: str, url: str, options: argparse.Namespace, kind: str) -> dict[str, Any]:
    import jwt

    store = open_store(url)
    await store.migrate()
    await store.open()
    await settings.change(store, {"view_rule": "scope_id = @request.auth.id"}, by="bench")
    # Several tokens, because the server limits the streams of one token.
    made = [await tokens.create(store, "bench", ["read"], by="bench") for _ in range(0, options.clients, EACH)]
    users = [f"u{n}" for n in range(options.clients)]
    for _ in range(options.history):
        await store.insert([new_job(new_id(), "before", {}, scope_id=user) for user in users])
    await store.close()
    soon = int(time.time()) + 3600
    ids = [[new_id() for _ in range(10)] for _ in users] if kind == "ids" else []
    asked = []
    for n, user in enumerate(users):
        token = made[n // EACH][1]
        who = jwt.encode({"sub": user, "exp": soon}, SECRET, algorithm="HS256") if kind != "topic" else token
        path = {
            "topic": f"/api/events?topic={TOPIC}&limit=200",
            "own": "/api/events?limit=20&stats=false",
            "own-topic": f"/api/events?topic={TOPIC}&limit=20&stats=false",
            "ids": "/api/events?stats=false&" + "&".join(f"id={one}" for one in ids[n]) if ids else "",
        }[kind]
        asked.append(request("GET", path, who))
    told: list[dict[str, float]] = [{} for _ in users]
    loop = asyncio.get_running_loop()

    async def connect() -> list[Client]:
        clients = [Client(asked[n], told[n], kind != "topic" or n < 5) for n in range(len(users))]
        for client in clients:
            await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
        return clients

    with (
        tempfile.NamedTemporaryFile("w+") as chosen,
        server("-m", "rowlock", "serve", "--port", "0", ROWLOCK_URL=url, ROWLOCK_JWT_SECRET=SECRET) as port,
    ):
        json.dump(ids, chosen)
        chosen.flush()
        clients = await connect()
        while not all(client.bytes for client in clients):  # noqa: ASYNC110 - a benchmark
            await asyncio.sleep(0.05)
        load = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.streams", "--load", url, "--ids", chosen.name,
            "--clients", str(options.clients), "--changes", str(options.changes), "--seconds", str(options.seconds),
            stdout=subprocess.PIPE, limit=1 << 28,
        )  # fmt: skip
        cpu, began = cpu_of(port), time.monotonic()
        await asyncio.sleep(options.seconds / 2)
        for client in clients:
            client.transport.close()
        received = sum(client.bytes for client in clients)
        clients = await connect()
        assert load.stdout is not None
        report = json.loads(await load.stdout.readline())
        await load.wait()
        await asyncio.sleep(3.0)
        cpu = (cpu_of(port) - cpu) / (time.monotonic() - began)
        received += sum(client.bytes for client in clients)
        memory = memory_of(port)
    late, never = [], 0
    for n, user in enumerate(users[: 5 if kind == "topic" else None]):
        must = {one for one, (_, owner) in report["ends"].items() if kind == "topic" or owner == user}
        if kind == "ids":
            must &= {*ids[n]}
        never += len(must - told[n].keys())
        late += [told[n][one] - report["ends"][one][0] for one in must & told[n].keys()]
    late.sort()
    return {
        "store": name, "watch": kind, "clients": options.clients, "changes_s": round(report["rate"]),
        "told": len(late), "never": never, "p50_s": round(late[len(late) // 2], 2),
        "p99_s": round(late[len(late) * 99 // 100], 2), "max_s": round(late[-1], 2),
        "server_rss_mb": round(memory), "server_cpu": round(cpu, 2), "received_mb": round(received / 1e6),
    }  # fmt: skip


def _pid(port: int) -> int:
    own = ["pgrep", "-P", str(os.getpid()), "-f", "rowlock serve"]
    found = subprocess.run(own, capture_output=True, text=True, check=True)
    return int(found.stdout.split()[-1])


def memory_of(port: int) -> float:
    text = Path(f"/proc/{_pid(port)}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


def cpu_of(port: int) -> float:
    fields = Path(f"/proc/{_pid(port)}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--changes", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--history", type=int, default=0)
    parser.add_argument("--watch", choices=KINDS)
    parser.add_argument("--store", choices=["sqlite", "postgres"])
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--ids", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        with Path(options.ids).open() as chosen:  # noqa: ASYNC230 - a benchmark
            await make_changes(options.load, options, json.load(chosen))
        return
    for kind in [options.watch] if options.watch else KINDS:
        with tempfile.TemporaryDirectory() as folder:
            if options.store != "postgres":
                print(
                    json.dumps(await watch("sqlite", f"sqlite:///{Path(folder) / 'a.db'}", options, kind)), flush=True
                )
            if options.store != "sqlite":
                with PostgresServer(durable=True, settings=POSTGRES) as postgres:
                    print(json.dumps(await watch("postgres", postgres.url(), options, kind)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
