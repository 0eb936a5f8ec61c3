"""A report every morning at nine, on each user's own clocks; one for the whole shop is declared in code.

python examples/scheduled_report.py                        # save two users with their schedules; prints the next times
cd examples && rowlock worker scheduled_report:jobs        # fires the schedules, and runs their jobs
python examples/scheduled_report.py now user_123           # one more job, beside the schedule; prints its id
python examples/scheduled_report.py again user_123 7       # make the jobs of the last seven days that have none
python examples/scheduled_report.py history user_123       # what became of each time

Any number of workers may run: each nominal time makes one job.
"""

import asyncio
import sqlite3
import sys
from datetime import UTC, date, datetime, timedelta

from rowlock import Context, Cron, Jobs, Recurring, step

jobs = Jobs("sqlite:///jobs.db")
USERS = {"user_123": "Asia/Taipei", "user_456": "Europe/Berlin"}


@step(title="Collect the numbers", timeout=60)
async def collect(user: str, day: date) -> dict[str, int]:
    return {"orders": len(user) + day.day}


@step(title="Write the report")
async def write(user: str, day: date, numbers: dict[str, int]) -> str:
    return f"{user}, {day}: {numbers['orders']} orders"


@step(title="Send it", retry=[30, 120], max_retries=2)
async def send(report: str) -> None:
    print(report, flush=True)


@jobs.task(
    "scheduled_report",
    version=1,
    title="A report of the day",
    steps=[collect, write, send],
    timeout=600,
    max_retries=1,
    retry=[30, 120],
    schedule=Recurring(
        name="the whole shop",
        when=Cron("0 9 * * *", "Asia/Taipei"),
        payload={"user": "everybody"},
        missed="skip",  # after an outage, the owner does not want the report of yesterday
        description="Every morning, for the owner",
    ),
)
async def scheduled_report(ctx: Context, user: str, day: date | None = None) -> str:
    fired = ctx.job.fire_at or ctx.job.run_at  # the nominal time; a job without a schedule has none
    the_day = day or fired.date()
    numbers = await ctx.step(collect, user, the_day)
    report = await ctx.step(write, user, the_day, numbers)
    await ctx.step(send, report)
    return report


def sign_up(connection: sqlite3.Connection, user: str, zone: str) -> None:
    """Save the user and the schedule in one transaction. A second call changes the zone."""
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS users (id TEXT PRIMARY KEY, zone TEXT)")
        connection.execute("INSERT OR REPLACE INTO users VALUES (?, ?)", (user, zone))
        jobs.sync.schedules.put(
            "daily report",
            {
                "topic": "scheduled_report",
                "payload": {"user": user, "day": "{{fire_date}}"},  # filled when it fires, with the date in the zone
                "scope": "user",
                "scope_id": user,
            },
            Cron("0 9 * * *", zone),
            missed="all",  # a report for each day, also after an outage …
            within=timedelta(days=7),  # … of up to a week
            if_live="queue",  # one report at a time for each user
            conn=connection,
        )


async def operate(verb: str, user: str, days: str = "7") -> None:
    async with jobs:
        schedule = await jobs.schedules.get("daily report", scope="user", scope_id=user)
        match verb:  # every verb takes a name with its scope, or the id
            case "now":
                print((await jobs.schedules.run_now(schedule.id, reason="asked for it")).job_id)
            case "again":
                now = datetime.now(UTC)
                for time in await jobs.schedules.backfill(schedule.id, now - timedelta(days=int(days)), now):
                    print(time.fire_at.isoformat(), time.job_id)
            case "history":
                for fired in await jobs.schedules.history(schedule.id):
                    print(fired.fire_at.isoformat(), fired.kind, fired.job_id or fired.reason)
            case _:
                sys.exit(__doc__)


def main() -> None:
    jobs.sync.open()
    jobs.sync.publish()  # a worker publishes, too
    connection = sqlite3.connect("jobs.db")
    for user, zone in USERS.items():
        sign_up(connection, user, zone)
        coming = jobs.sync.schedules.preview("daily report", scope="user", scope_id=user, limit=1)
        print(f"{user}: {coming.words}, next at {coming.times[0].at:%Y-%m-%d %H:%M} UTC")
    connection.close()
    jobs.sync.close()


if __name__ == "__main__":
    asyncio.run(operate(*sys.argv[1:])) if sys.argv[1:] else main()
