"""The demo's schedules: one in code that fires every minute; others are nightly, catch up, or are paused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from rowlock.context import Context
from rowlock.core.cron import Cron, Every
from rowlock.jobs import Jobs
from rowlock.tasks import Recurring

TOPIC = "report.sales"
EVERY_MINUTE = Recurring(
    name="Sales, every minute",
    when=Cron("* * * * *"),
    payload={"period": "minute", "until": "{{fire_at}}"},
    if_live="reject",
    missed="skip",
    description="Declared in code: @jobs.task(schedule=…)",
)
_NIGHTLY, _HOURLY, _WEEKLY = "Sales, every night", "Sales, every hour", "A mail on Mondays"
_ANN = "ann@example.org"
_NIGHTS = 3  # past nights for which Ann backfills the report


async def report_sales(ctx: Context, period: str, until: str) -> str:
    for percent in range(0, 100, 20):
        ctx.progress(percent, stage="adding up", message=f"the {period} until {until}")
        await asyncio.sleep(0.3)
    return f"the {period} until {until}"


async def put_schedules(jobs: Jobs) -> None:
    """Put the schedules that the page shows beside the schedule in code. A second call changes nothing."""
    await jobs.schedules.put(
        _NIGHTLY,
        (TOPIC, {"period": "day", "until": "{{fire_at_local}}"}),
        Cron("30 2 * * *", "Europe/Berlin"),
        if_live="queue",
        description="02:30 does not exist when clocks go forward: see the preview around the last Sunday in March",
        by=_ANN,
    )
    await jobs.schedules.put(
        _HOURLY,
        (TOPIC, {"period": "hour", "until": "{{fire_at}}"}),
        Every(3600),
        missed="all",
        most=24,
        within=timedelta(days=1),
        jitter=30,
        description="After an outage, it makes a job for each hour that was missed",
        by=_ANN,
    )
    await jobs.schedules.put(
        _WEEKLY,
        ("mail.send", {"to": "everybody@example.org"}),
        Cron("0 9 * * MON", "America/New_York"),
        description="Paused: its times are recorded, and never caught up",
        by=_ANN,
    )
    await jobs.schedules.pause(_WEEKLY, reason="the text has a typo", by=_ANN)
    now = await (await jobs._store()).now()
    await jobs.schedules.backfill(
        _NIGHTLY, now - timedelta(days=_NIGHTS), now, reason="the numbers were corrected", by=_ANN
    )


class FireWatch:
    """Finds the jobs that schedules have made since the last look."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._seen: set[str] = set()

    async def new_jobs(self) -> Sequence[str]:
        """Return their ids, oldest first."""
        schedules = (await self._jobs.schedules.list(limit=100)).items
        fires = await self._jobs.schedules.histories([one.id for one in schedules], limit=30)
        made = sorted((one.at, one.job_id) for each in fires.values() for one in each if one.job_id is not None)
        new = [job_id for _, job_id in made if job_id not in self._seen]
        self._seen.update(new)
        return new
