"""The page beside a large database, and while thousands of things happen a second.

    python -m benchmarks.page --archived 1000000 --live 100000 --seconds 600

Of every screen: milliseconds until everything is there that it shows, and its slowest request. Then the list of jobs
stays open while jobs come and go: how much memory it takes, after its garbage was collected, and for how long it could
not react at worst. It needs a Chromium (tests/ui/browser.py finds it).
"""

import argparse
import asyncio
import logging
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import CDPSession, Page, async_playwright

from benchmarks.reading import fill_sqlite
from rowlock import Jobs
from tests.ui.browser import chromium

SCREENS = [
    "overview", "jobs", "jobs?status=failed", "jobs?status=completed&topic=mail", "jobs?payload=user.id%3D7",
    "failures", "topics", "workers", "new", "bulk", "audit", "access", "settings",
]  # fmt: skip
SHOWN = "() => document.querySelector('main h1') && !document.querySelector('.skeleton')"
SLOWEST = """() => performance.getEntriesByType('resource')
    .filter(one => one.name.includes('/api/') && !one.name.includes('/api/events'))
    .map(one => [one.duration, one.name.split('/api/')[1]]).sort((a, b) => b[0] - a[0])[0] ?? [0, '']"""
# How late is what should happen every 50 ms?
WATCH = """() => {
    window.late = 0;
    let last = performance.now();
    setInterval(() => {
        const now = performance.now();
        window.late = Math.max(window.late, now - last - 50);
        last = now;
    }, 50);
}"""
BATCH, PAUSE = 200, 0.1  # 2,000 jobs a second: each is enqueued, claimed and completed


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[str]:
    """The link by which one is in."""
    command = [sys.executable, "-m", "rowlock", "serve", "--url", url, "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            if found := re.search(r"http\S+/_/setup#\S+", line.decode()):
                yield f"{found[0]}&email=bench%40example.com&password=correct-horse-battery"
                return
        raise RuntimeError("the server said no link")
    finally:
        process.terminate()
        await process.communicate()


async def time_screens(page: Page, base: str) -> None:
    print(f"{'screen':<36} {'shown, ms':>10} {'slowest request, ms':>20}")
    for screen in SCREENS:
        times, slowest = [], (0.0, "")
        for _ in range(3):
            await page.goto("about:blank")
            await page.goto(f"{base}/_/#/{screen}")
            await page.wait_for_function(SHOWN, polling="raf")
            times.append(await page.evaluate("() => performance.now()"))
            took, name = await page.evaluate(SLOWEST)
            slowest = max(slowest, (took, name))
        print(f"{screen:<36} {sorted(times)[1]:>10.0f} {slowest[0]:>20.0f} {slowest[1]}")


async def churn(url: str, seconds: float) -> None:
    """In a process of its own."""
    logging.getLogger("rowlock").addHandler(logging.NullHandler())  # it rescues what was filled in
    jobs = Jobs(url)

    @jobs.task("churn")
    async def nothing(n: int) -> None:
        pass

    async with jobs:
        await jobs.start(concurrency=50)
        end, made = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            began = time.monotonic()
            await jobs.enqueue_many([{"topic": "churn", "payload": {"n": n}} for n in range(BATCH)])
            made += BATCH
            await asyncio.sleep(max(0.0, PAUSE - (time.monotonic() - began)))
        done = (await jobs.stats("churn")).completed
        print(f"{3 * min(made, done) / seconds:,.0f} changes a second")
        await jobs.stop()


async def memory(session: CDPSession) -> float:
    """Megabytes, after the garbage was collected."""
    await session.send("HeapProfiler.collectGarbage")
    told: dict[str, Any] = await session.send("Performance.getMetrics")
    return float(next(one["value"] for one in told["metrics"] if one["name"] == "JSHeapUsedSize")) / 1e6


async def watch_list(page: Page, base: str, url: str, seconds: float) -> None:
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    await page.goto(f"{base}/_/#/jobs")
    await page.wait_for_function(SHOWN)
    await page.evaluate(WATCH)
    command = [sys.executable, "-m", "benchmarks.page", "--churn", url, "--seconds", str(seconds)]
    busy = await asyncio.create_subprocess_exec(*command)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(min(seconds / 10, 30))
        state = await page.locator(".side [role=status]").inner_text()
        late = await page.evaluate("() => { const worst = window.late; window.late = 0; return worst }")
        print(
            f"{seconds - (end - time.monotonic()):5.0f} s: {await memory(session):.1f} MB, {late:.0f} ms late, {state}"
        )
    await busy.wait()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archived", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=122_000)  # of which 82 % are pending
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--churn", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.churn:
        await churn(given.churn, given.seconds)
        return
    with tempfile.TemporaryDirectory(prefix="rowlock-page-") as folder, chromium() as address:
        path = Path(folder) / "jobs.db"
        url = f"sqlite:///{path}"
        async with Jobs(url, migrate=True):
            pass
        fill_sqlite(str(path), given.archived, given.live, int(time.time() * 1000))
        async with serving(url) as link, async_playwright() as playwright:
            browser = await playwright.chromium.connect_over_cdp(address)
            page = await (await browser.new_context(viewport={"width": 1440, "height": 900})).new_page()
            await page.goto(link)
            await page.get_by_role("heading", name="Overview").wait_for()
            base = link.partition("/_/")[0]
            await time_screens(page, base)
            await watch_list(page, base, url, given.seconds)
            await page.context.close()


if __name__ == "__main__":
    asyncio.run(main())
