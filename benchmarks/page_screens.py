"""Measures how long each screen takes until it is usable, and how long each request takes that the page can make."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from playwright.async_api import Page

PAINT, REQUEST = 1000, 300  # milliseconds

SCREENS = [
    "overview", "overview?range=15m", "overview?range=24h", "overview?range=30d",
    "jobs", "jobs?status=pending", "jobs?status=failed", "jobs?status=completed&topic=mail",
    "jobs?payload=user.id%3D7", "failures", "topics", "workers", "new", "bulk", "audit", "access", "settings",
]  # fmt: skip
# The time at which the screen has its heading, and no skeleton (a placeholder of content that still loads).
SHOWN = "() => document.querySelector('main h1') && !document.querySelector('.skeleton') && performance.now()"
# Without the streams, which have no end.
REQUESTS = """() => performance.getEntriesByType('resource')
    .filter(one => one.name.includes('/api/') && !one.name.includes('/api/events'))
    .map(one => [one.duration, one.name.split('/api/')[1]])"""
SOME_JOB = "async status => (await (await fetch(`../api/jobs?limit=1&status=${status}`)).json()).items[0]?.id"
ASK = """async ([address, body]) => {
    const began = performance.now();
    const headers = { 'content-type': 'application/json' };
    const sent = body ? { method: 'POST', headers, body: JSON.stringify(body) } : {};
    const answer = await fetch(`../api/${address}`, sent);
    const text = await answer.text();
    return [performance.now() - began, answer.status, text.slice(0, 300)];
}"""

STATUSES = ("pending", "processing", "completed", "failed", "expired", "cancelled", "waiting", "blocked")
RANGES = ("15m", "1h", "6h", "24h", "7d", "30d", "90d")
TOPICS = ("mail", "rare_9", "nobody_has_this")  # the topic of most jobs, of one in a thousand, of none
_PAGE = "limit=50"


def addresses(now: datetime) -> list[str]:
    """Return all requests of the page, with the worst filters: those that few jobs match, or none."""

    def ago(**span: float) -> str:
        return quote(f"{now - timedelta(**span):%Y-%m-%dT%H:%M:%SZ}")

    filters = [
        "payload=user.id%3D7", "payload=user.id%3D-1", "error=3%20is%20not", "error=nowhere", "tag=red", "tag=none",
        "key=key%2010", "key=none", "scope=user", "scope=none", "scope_id=u10", "scope_id=none",
        f"created_from={ago(hours=1)}", f"created_from={ago(days=7)}", f"created_until={ago(days=3)}",
        f"created_from={ago(days=3)}&created_until={ago(days=2, hours=23)}",
        f"finished_from={ago(hours=1)}", f"finished_from={ago(days=7)}", f"finished_until={ago(days=3)}",
        f"finished_from={ago(days=3)}&finished_until={ago(days=2, hours=23)}",
    ]  # fmt: skip
    kinds = ["", *(f"&status={status}" for status in STATUSES), "&status=failed&status=expired"]
    topics = [f"&topic={topic}" for topic in TOPICS]
    return [
        "jobs/stats", "jobs/stats?topic=mail", "topics", "workers", "audit?limit=50", "audit?limit=200&before=3000",
        "failures", "failures?trend=day", "failures?topic=mail", "bulk", "tokens", "sessions", "settings",
        *(f"stats/series?range={one}" for one in RANGES), "stats/series?range=30d&topic=mail",
        *(f"jobs?{_PAGE}{kind}{topic}" for kind in kinds for topic in ("", *topics)),
        *(f"jobs?{_PAGE}{kind}&{one}" for kind in kinds[:5] for one in filters),
        *(f"jobs?{_PAGE}{topic}&{one}" for topic in topics[:2] for one in filters),
        *(f"jobs?{_PAGE}{kind}&offset=9950" for kind in ("", "&status=pending", "&topic=mail")),
    ]  # fmt: skip


DEEP = ("", "&status=pending", "&topic=mail", "&status=completed", "&scope=user", "&payload=user.id%3D7")
PREVIEWS: list[dict[str, Any]] = [  # bulk actions: a preview stores all jobs that match; no limit is promised
    {"action": "requeue", "filter": {"status": ["failed"]}},
    {"action": "cancel", "filter": {"topic": ["mail"], "status": ["pending"]}},
    {"action": "cancel", "filter": {"status": ["pending"]}},
]


async def time_screens(page: Page, base: str, rounds: int) -> list[str]:
    some = [await page.evaluate(SOME_JOB, status) for status in ("pending", "processing", "failed", "completed")]
    print(f"\n{'screen':<41} {'first, ms':>9} {'worst, ms':>9} {'slowest request, ms':>20}", flush=True)
    over = []
    for screen in [*SCREENS, *(f"job/{job_id}" for job_id in some if job_id)]:
        times, slowest = [], (0.0, "")
        for _ in range(rounds):
            await page.goto("about:blank")
            await page.goto(f"{base}/_/#/{screen}")
            times.append(await (await page.wait_for_function(SHOWN, polling="raf")).json_value())
            for took, name in await page.evaluate(REQUESTS):
                slowest = max(slowest, (took, name))
        marks = []
        if max(times) > PAINT:
            marks.append(f"{screen} took {max(times):.0f} ms until it was of use")
        if slowest[0] > REQUEST:
            marks.append(f"{screen} waited {slowest[0]:.0f} ms for {slowest[1]}")
        over += marks
        figures = f"{times[0]:>9.0f} {max(times):>9.0f} {slowest[0]:>20.0f}"
        print(f"{screen:<41} {figures} {slowest[1]}{'  <-- over the limit' if marks else ''}", flush=True)
    return over


async def time_requests(page: Page, rounds: int) -> list[str]:
    """Send the requests one by one in the page's session, from a screen that sends none itself."""
    await page.evaluate("() => { location.hash = '#/settings' }")
    asked = addresses(datetime.now(UTC))
    asked += [found for query in DEEP if (found := await _deep(page, query))]
    worst: list[tuple[float, str]] = []
    for address in asked:
        times = []
        for _ in range(rounds):
            took, status, text = await page.evaluate(ASK, [address, None])
            if status != 200:
                raise RuntimeError(f"{address}: {status} {text}")
            times.append(took)
        worst.append((max(times), address))
    worst.sort(reverse=True)
    print(f"\nThe slowest of {len(asked)} requests, ms, at worst of {rounds} times each:")
    for took, address in worst[:10]:
        print(f"{took:>8.0f} {address}")
    print("\nPreviews of bulk actions, ms:")
    for body in PREVIEWS:
        took, status, text = await page.evaluate(ASK, ["bulk", body])
        print(f"{took:>8.0f} {body} {status} {text if status >= 300 else ''}", flush=True)
    return [f"{took:.0f} ms for {address}" for took, address in worst if took > REQUEST]


async def _deep(page: Page, query: str) -> str | None:
    """Return the address of a page far back, reached by cursors; None if the list ends before."""
    script = """async query => {
        let cursor = '';
        for (let n = 0; n < 30 && cursor !== null; n++)
            cursor = (await (await fetch(`../api/jobs?limit=200${query}${cursor && `&cursor=${cursor}`}`)).json()).next;
        return cursor;
    }"""
    cursor = await page.evaluate(script, query)
    return cursor and f"jobs?{_PAGE}{query}&cursor={cursor}"
