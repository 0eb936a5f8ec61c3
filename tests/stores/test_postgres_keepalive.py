"""A host vanishes without closing its connections: the kernel must notice it where no statement has a timeout.

On loopback the kernel acknowledges all data, also for a frozen process, so keep-alive finds nothing there. These tests
use a peer that reads no data instead: TCP_USER_TIMEOUT ends that connection, too. For a line that loses all packets,
they switch off the loopback device in a separate network namespace.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from rowlock.stores.postgres.keepalive import for_libpq, seconds_of
from rowlock.stores.postgres.store import PostgresStore
from tests.proxy import Proxy
from tests.stores.conftest import real_postgres_store
from tests.stores.harness import PostgresHarness
from tests.stores.test_transactions import claimed, fenced, guard

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no TCP_USER_TIMEOUT")


harness = real_postgres_store


def options(connection: Any) -> tuple[int, ...]:
    """Return the keep-alive settings of the socket: on or off, seconds until the first probe, seconds between probes,
    number of probes, and the milliseconds that sent data may stay unacknowledged."""
    transport = getattr(connection, "_transport", None)
    with socket.socket(
        fileno=os.dup((transport.get_extra_info("socket") if transport else connection).fileno())
    ) as sock:
        tcp = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        found = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in tcp]
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *found


@pytest.mark.parametrize(
    ("query", "expected"),
    [("", (1, 5, 2, 3, 10_000)), ("?tcp_timeout=2.5", (1, 1, 1, 2, 2_500)), ("?tcp_timeout=0", None)],
)
async def test_every_connection_has_it(harness: PostgresHarness, query: str, expected: tuple[int, ...] | None) -> None:
    run = await claimed(harness)
    store = PostgresStore(harness.url + query)
    await store.open()
    seen = {}
    async with store._connections.acquire() as connection:
        seen["verbs"] = options(connection)
    async with store._connections.alone() as connection:
        seen["migrate"] = options(connection)
    listener = await store._connections.connect()
    seen["listen"] = options(listener)
    await listener.close()
    for colour in ("async", "sync"):
        async with fenced(store, guard(run), colour) as connection:
            seen[colour] = options(connection)
    await store.close()
    if expected is None:
        with socket.socket() as untouched:
            assert {found[-1] for found in seen.values()} == {options(untouched)[-1]}
    else:
        assert set(seen.values()) == {expected}, seen


@pytest.mark.parametrize("silence", [0.5, 1, 2, 5, 10, 60, 3600])
def test_the_last_probe_comes_when_the_time_is_over(silence: float) -> None:
    idle, interval, count = seconds_of(silence)
    assert silence <= idle + interval * count <= max(2, 1.3 * silence)
    assert for_libpq(silence)["keepalives_count"] == count


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_statement_to_a_server_that_takes_nothing_in_ends(harness: PostgresHarness, colour: str) -> None:
    run = await claimed(harness)
    address = urlsplit(harness.url)
    assert address.hostname
    assert address.port
    async with Proxy(address.hostname, address.port) as proxy:
        store = PostgresStore(harness.url.replace(f":{address.port}/", f":{proxy.port}/") + "?tcp_timeout=1")
        await store.open()
        statement = f"SELECT '{'x' * 50_000_000}'"  # more than all buffers on the way hold

        async def asynchronously() -> None:
            async with fenced(store, guard(run)) as conn:
                proxy.choke_newest()
                await conn.execute(statement)

        def synchronously() -> None:
            with store.sync_transaction(guard(run), longest=60.0) as conn:
                proxy.choke_newest()
                conn.execute(statement)

        work = asynchronously() if colour == "async" else asyncio.to_thread(synchronously)
        # The application sent this statement itself, so it gets the driver's error.
        with pytest.raises((asyncpg.PostgresConnectionError, psycopg.OperationalError)):
            async with asyncio.timeout(60):
                await work
        await store.close()


# The peer lives, but no packet gets through, as if its host had lost power.
CUT_OFF = """
import socket, subprocess, sys
from rowlock.stores.postgres.keepalive import keep_alive

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
keep_alive(client, 1.0)
client.settimeout(60)
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
if sys.argv[1] == "under way":
    client.send(b"a statement")
try:
    client.recv(1)
except OSError as error:
    print(type(error).__name__, error.errno)
"""


@pytest.mark.parametrize("when", ["waiting for the reply", "under way"])
def test_a_line_that_loses_everything_is_noticed(when: str) -> None:
    alone = ["unshare", "--map-root-user", "--net"]
    if (
        not shutil.which("ip")
        or not shutil.which("unshare")
        or subprocess.run([*alone, "true"], check=False).returncode
    ):
        pytest.skip("no network of our own can be had here")
    done = subprocess.run(
        [*alone, sys.executable, "-c", CUT_OFF, when], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split()[0] == "TimeoutError", done
    assert done.stdout.split()[1] != "None", "the socket's own timeout"
