"""Keeps the list of jobs open under thousands of changes a second, and measures heap, longest task and delay."""

import asyncio
import logging
import sys
import time
from typing import Any

from msgspec import Struct
from playwright.async_api import CDPSession, Page
from playwright.async_api import TimeoutError as NotShown

from rowlock import Jobs

BATCH, PAUSE = 200, 0.1  # 2,000 jobs a second: each is enqueued, claimed and completed
CHANGES = 5000  # a second, at least: with fewer, the other figures mean nothing
PROBES = 40  # jobs on the screen that are changed one by one, to see when the page shows it
FROZEN = 500  # milliseconds that one task of the page may take
LATE = 3.0  # seconds that the page may take to show a change
GROWTH = 2.0  # megabytes by which the heap may grow, from the first look to the last

WATCH = """() => {
    window.longest = 0;
    new PerformanceObserver(told => {
        for (const one of told.getEntries()) window.longest = Math.max(window.longest, one.duration);
    }).observe({ type: 'longtask' });
}"""
LONGEST = "() => { const longest = window.longest; window.longest = 0; return longest }"
IS_CANCELLED = "id => document.querySelector(`main tr a[href*='${id}']`)?.closest('tr').innerText.match(/cancelled/i)"


class Look(Struct, frozen=True):
    second: float
    heap: float  # megabytes
    longest: float  # milliseconds
    delay: float | None  # seconds


async def churn(url: str, seconds: float) -> None:
    """Make changes, in a process of its own, and print how many per second."""
    logging.getLogger("rowlock").addHandler(logging.NullHandler())  # hides its lines about filled-in jobs
    jobs = Jobs(url)

    @jobs.task("churn")
    async def nothing(n: int) -> None:
        pass

    async with jobs:
        before = (await jobs.stats("churn")).completed
        await jobs.start(concurrency=50)
        began = time.monotonic()
        made, due = 0, began
        while (now := time.monotonic()) < began + seconds:
            if now < due:
                await asyncio.sleep(due - now)
            await jobs.enqueue_many([{"topic": "churn", "payload": {"n": n}} for n in range(BATCH)])
            made += BATCH
            due = max(due + PAUSE, time.monotonic() - 1)  # after a delay the loop catches up, by one second at most
        took = time.monotonic() - began
        done = (await jobs.stats("churn")).completed - before
        print(f"{(2 * done + made) / took:.0f}", flush=True)  # a completed job was claimed as well
        await jobs.stop()


async def memory(session: CDPSession) -> float:
    """Return the heap in megabytes, after a garbage collection."""
    await session.send("HeapProfiler.collectGarbage")
    told: dict[str, Any] = await session.send("Performance.getMetrics")
    return float(next(one["value"] for one in told["metrics"] if one["name"] == "JSHeapUsedSize")) / 1e6


async def time_change(jobs: Jobs, page: Page, job_id: str) -> float | None:
    """Return the seconds until the page shows a cancel; None if it does not."""
    await jobs.cancel(job_id, by="benchmark")
    began = time.monotonic()
    try:
        await page.wait_for_function(IS_CANCELLED, arg=job_id, polling="raf", timeout=10_000)
    except NotShown:
        return None
    return time.monotonic() - began


async def watch_list(page: Page, base: str, url: str, seconds: float) -> list[str]:
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    async with Jobs(url) as jobs:
        probes = [(await jobs.enqueue("probe", {"n": n}, delay=86_400)).id for n in range(PROBES)]
        await page.goto("about:blank")
        await page.goto(f"{base}/_/#/jobs")
        await page.locator(f"main a[href*='{probes[-1]}']").first.wait_for()
        await page.evaluate(WATCH)
        command = [sys.executable, "-m", "benchmarks.page", "--churn", url, "--seconds", str(seconds)]
        busy = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            looks = await _look_on(jobs, page, session, probes, seconds)
            said, _ = await busy.communicate()
        finally:
            if busy.returncode is None:
                busy.terminate()
                await busy.wait()
    rate = float(said.decode().split()[-1]) if said.strip() else 0.0
    print(f"{rate:,.0f} changes a second", flush=True)
    return judge(looks, rate)


async def _look_on(jobs: Jobs, page: Page, session: CDPSession, probes: list[str], seconds: float) -> list[Look]:
    print(f"\n{'second':>6} {'heap, MB':>9} {'longest task, ms':>17} {'change shown after, s':>22}", flush=True)
    looks, began = [], time.monotonic()
    every = max(min(seconds / 10, 60.0), seconds / (PROBES - 1))
    for n, probe in enumerate(probes):
        due = began + (n + 1) * every
        if due > began + seconds + 0.5:
            break
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        delay = await time_change(jobs, page, probe)
        longest = await page.evaluate(LONGEST)
        look = Look(time.monotonic() - began, await memory(session), longest, delay)
        looks.append(look)
        shown = "not at all" if delay is None else f"{delay:.2f}"
        state = await page.locator(".side [role=status]").inner_text()
        print(f"{look.second:>6.0f} {look.heap:>9.1f} {look.longest:>17.0f} {shown:>22} {state}", flush=True)
    return looks


def judge(looks: list[Look], rate: float) -> list[str]:
    over = []
    if rate < CHANGES:
        over.append(f"only {rate:,.0f} changes a second were made, not {CHANGES:,}")
    if (longest := max(look.longest for look in looks)) > FROZEN:
        over.append(f"the page was busy for {longest:.0f} ms at a stretch")
    if any(look.delay is None or look.delay > LATE for look in looks):
        over.append(f"a change was shown after more than {LATE:g} s")
    if (growth := looks[-1].heap - looks[0].heap) > GROWTH:
        over.append(f"the page has grown by {growth:.1f} MB")
    return over
