"""Measures the page beside a large database, and under thousands of changes a second.

    python -m benchmarks.page                                    both databases, each on a server of its own
    python -m benchmarks.page --only postgres --seconds 0        no load
    python -m benchmarks.page --url postgresql://…/db            a database that stays; it is filled if it is empty

Of every screen: milliseconds until everything is there that it shows, and its slowest request; then the slowest of all
requests that the page can make. Then the list of jobs stays open while jobs come and go: how much memory it takes,
after its garbage was collected, for how long it could not react at worst, and how long it took to show a change. It
says what is over its limit, and then exits with 1. It needs a Chromium (tests/ui/browser.py finds it).
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from playwright.async_api import async_playwright

from benchmarks.page_data import fill
from benchmarks.page_load import churn, watch_list
from benchmarks.page_screens import time_requests, time_screens
from benchmarks.servers import POSTGRES, disk_folder
from rowlock import Jobs
from rowlock.access import superusers
from tests.http.harness import BOSS, PASSWORD
from tests.servers import PostgresServer
from tests.ui.browser import Visitor, chromium

KINDS = ("sqlite", "postgres")


@contextmanager
def database(kind: str) -> Iterator[str]:
    """Yield the URL of a database on a disk, as durable as in production."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="rowlock-page-", dir=disk_folder()) as folder:
            yield f"sqlite:///{Path(folder) / 'jobs.db'}"
    else:
        with PostgresServer(durable=True, settings=POSTGRES) as server:
            yield server.url()


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[str]:
    """Start the page's server, and yield its address."""
    command = [sys.executable, "-m", "rowlock", "serve", "--url", url, "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            if found := re.search(r"http://[\d.]+:\d+", line.decode()):
                yield found[0]
                return
        raise RuntimeError("the server didn't say where it is")
    finally:
        process.terminate()
        await process.communicate()


async def let_in(url: str) -> None:
    async with Jobs(url) as jobs:
        store = await jobs._store()
        if any(one.email == BOSS for one in await superusers.every(store)):
            await superusers.set_password(store, BOSS, PASSWORD, by="benchmark")
        else:
            await superusers.create(store, BOSS, PASSWORD, by="benchmark")


def busy() -> str:
    """Return a note on the machine's load: figures beside other work mean little."""
    cores = os.cpu_count() or 1
    waiting = os.getloadavg()[0]
    warning = ": too busy, the times below are not the page's own" if waiting > cores else ""
    return f"load average {waiting:.1f} on {cores} cores{warning}"


async def measure(url: str, options: argparse.Namespace) -> list[str]:
    """Measure one database. Return the figures that are over their limits."""
    print(f"\n## {url.split(':')[0]}: {options.archived:,} completed, {options.live:,} others\n", flush=True)
    began = time.monotonic()
    await fill(url, options.archived, options.live)
    await let_in(url)
    print(f"filled in {time.monotonic() - began:.0f} s; {busy()}", flush=True)
    over: list[str] = []
    with chromium() as address:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.connect_over_cdp(address)
            context = await browser.new_context(viewport={"width": 1440, "height": 900})
            page = await context.new_page()
            async with serving(url) as base:
                await Visitor(page, base).log_in()
                over += await time_screens(page, base, options.rounds)
                over += await time_requests(page, options.rounds)
                if options.seconds:
                    over += await watch_list(page, base, url, options.seconds)
                await context.close()  # before the server stops, which would wait for the page's stream
    return over


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--url", help="a database of yours, instead of those that are made and removed")
    parser.add_argument("--archived", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=122_000, help="of which 82 %% are pending")
    parser.add_argument("--rounds", type=int, default=3, help="how often each screen and request is timed")
    parser.add_argument("--seconds", type=float, default=600, help="of load; 0: none")
    parser.add_argument("--churn", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.churn:
        await churn(options.churn, options.seconds)
        return 0
    over: list[str] = []
    if options.url:
        over += await measure(options.url, options)
    else:
        for kind in KINDS if options.only is None else (options.only,):
            with database(kind) as url:
                over += [f"{kind}: {one}" for one in await measure(url, options)]
    print("\nEverything is within its limits." if not over else "\nOver the limit:\n" + "\n".join(over))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
