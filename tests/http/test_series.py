"""Charts over HTTP: what they show, to which callers, what is refused; and the server folds the data behind them."""

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Any

import pytest

from rowlock.errors import StoreUnavailable
from rowlock.http import upkeep
from rowlock.http.app import Api
from rowlock.http.remote_workers import RemoteWorkers
from rowlock.http.upkeep import Upkeep
from rowlock.runtime import maintenance
from rowlock.runtime.settings import WorkerSettings
from rowlock.stores.base import CHORES, Chore
from tests.http.harness import World, is_problem
from tests.waiting import until

SERIES = "/api/stats/series"


async def told(world: World, query: str = "", who: str = "read token") -> dict[str, Any]:
    answer = await world.get(who, f"{SERIES}{query}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def sums(body: dict[str, Any]) -> dict[str, int]:
    names = ("enqueued", "completed", "failed", "expired", "cancelled", "retried", "lost")
    return {name: count for name in names if (count := sum(point[name] for point in body["points"]))}


async def test_what_happened_is_told_by_minute_with_percentiles(world: World) -> None:
    await world.ended("a", "chart")
    await world.ended("a", "chart", error="boom")
    body = await told(world, "?topic=chart&range=15m")
    assert (body["topic"], body["step"], len(body["points"])) == ("chart", 60, 15)
    assert sums(body) == {"enqueued": 2, "completed": 1, "failed": 1}
    first, last = body["points"][0], body["points"][-1]
    assert body["from"] == first["at"]
    assert first["wait"] == first["run"] == {"p50": None, "p95": None, "p99": None}
    latest = next(point for point in reversed(body["points"]) if point["completed"])
    assert latest["run"]["p50"] >= 0
    assert latest["wait"]["p99"] >= latest["wait"]["p50"] >= 0
    begin, end = datetime.fromisoformat(last["at"]), datetime.fromisoformat(body["until"])
    assert end - begin == timedelta(seconds=60)


@pytest.mark.parametrize("range", ["15m", "1h", "6h", "24h", "7d", "30d", "90d"])
async def test_every_range_adds_up_to_the_same(sqlite_world: World, range: str) -> None:
    await sqlite_world.ended("a", "chart")
    assert sums(await told(sqlite_world, f"?topic=chart&range={range}")) == {"enqueued": 1, "completed": 1}
    await (await sqlite_world.store()).tidy("fold_counts", 10_000)
    assert sums(await told(sqlite_world, f"?topic=chart&range={range}")) == {"enqueued": 1, "completed": 1}


async def test_a_time_and_a_step_of_ones_own(sqlite_world: World) -> None:
    body = await told(sqlite_world, "?step=300")
    assert (body["step"], len(body["points"]), body["topic"]) == (300, 12, None)
    since = (await (await sqlite_world.store()).now()) - timedelta(hours=3)
    body = await told(sqlite_world, f"?from={since:%Y-%m-%dT%H:%M:%SZ}&step=3600")
    assert len(body["points"]) == 4


async def test_a_topic_that_never_was_is_a_flat_line(sqlite_world: World) -> None:
    assert sums(await told(sqlite_world, "?topic=nobody.knows/it")) == {}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("range=2h", "range"),
        ("range=1h&from=2026-01-01T00:00:00Z", "range"),
        ("from=2000-01-01T00:00:00Z", "from"),
        ("from=2999-01-01T00:00:00Z", "from"),
        ("from=2026-01-01T00:00:00", "from"),
        ("from=17", "from"),
        ("until=never", "until"),
        ("step=61", "step"),
        ("step=-60", "step"),
        ("step=1e9", "step"),
        ("step=999999999999999999999999", "step"),
        ("range=24h&step=60", "step"),
        ("topic=no%20topic", "topic"),
        ("topic=", "topic"),
        ("topics=a", "topics"),
        ("range=1h&range=1h", "range"),
    ],
)
async def test_what_can_t_be_asked_is_refused_with_its_name(sqlite_world: World, query: str, field: str) -> None:
    problem = is_problem(await sqlite_world.get("read token", f"{SERIES}?{query}"), 400)
    assert problem["field"] == field


async def test_a_token_of_some_topics_sees_the_charts_of_these_alone(world: World) -> None:
    await world.ended("a", "bills")
    for query in ("", "?topic=bills", "?range=90d"):
        problem = is_problem(await world.get("mail token", f"{SERIES}{query}"), 403)
        assert problem["field"] == "topic"
    assert "bills" not in (await world.get("mail token", f"{SERIES}?topic=mail")).text


async def test_no_job_is_looked_at(world: World) -> None:
    await world.ended("a", "chart")
    await world.place.fetch("ALTER TABLE _jobs_archive RENAME TO hidden")
    assert sums(await told(world, "?topic=chart")) == {"enqueued": 1, "completed": 1}
    await world.place.fetch("ALTER TABLE hidden RENAME TO _jobs_archive")


# ── Upkeep ──


async def no_notes(world: World) -> bool:
    return await world.place.fetch("SELECT topic FROM _jobs_counts") == []


def quick_upkeep(world: World, monkeypatch: pytest.MonkeyPatch) -> Upkeep:
    monkeypatch.setattr(upkeep, "SETTINGS", WorkerSettings(maintenance=0.05))
    monkeypatch.setattr(maintenance, "_HOUSEKEEPING", 0.0)
    return Upkeep(world.jobs._store, RemoteWorkers(world.jobs._store), world.jobs.schedules.firing)


async def test_a_server_folds_and_sweeps_without_any_worker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.enqueue("a")
    assert not await no_notes(world)
    store, chores = await world.store(), set()
    tidy = type(store).tidy

    async def watched(self: Any, chore: Chore, limit: int) -> int:
        chores.add(chore)
        return await tidy(self, chore, limit)

    monkeypatch.setattr(type(store), "tidy", watched)
    made = quick_upkeep(world, monkeypatch)
    made.start()
    await until(lambda: no_notes(world))
    await until(lambda: chores == set(CHORES))
    await made.stop()


async def lifespan(app: Any, inside: Any) -> None:
    """Run the application's lifespan as a server does: startup, then `inside`, then shutdown."""
    incoming: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    said: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    serving = asyncio.create_task(app({"type": "lifespan"}, incoming.get, said.put))
    await incoming.put({"type": "lifespan.startup"})
    assert (await said.get())["type"] == "lifespan.startup.complete"
    inside()
    await incoming.put({"type": "lifespan.shutdown"})
    assert (await said.get())["type"] == "lifespan.shutdown.complete"
    await serving


async def test_it_begins_with_the_server_and_ends_with_it(sqlite_world: World) -> None:
    api = sqlite_world.another_api()
    running: list[asyncio.Task[None] | None] = []
    await lifespan(api, lambda: running.append(api.upkeep.maintenance_loop.task))
    [task] = running
    assert task is not None
    assert task.cancelled()


async def test_mounted_it_begins_with_the_first_request(sqlite_world: World) -> None:
    api = sqlite_world.another_api()
    assert not is_running(api)
    await sqlite_world.get("anonymous", "/healthz", api=api)
    assert is_running(api)
    await api.upkeep.stop()
    assert not is_running(api)


def is_running(api: Api) -> bool:
    return api.upkeep.maintenance_loop.task is not None or api.upkeep.bulk_loop.task is not None


async def test_a_read_only_server_folds_nothing(sqlite_world: World) -> None:
    api = sqlite_world.another_api(read_only=True)
    await sqlite_world.get("anonymous", "/healthz", api=api)
    assert not is_running(api)


async def test_trouble_is_said_once_and_the_other_duties_go_on(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    async def tidy(self: Any, chore: Chore, limit: int) -> int:
        if chore == "fold_counts":
            done.append("failed")
            raise StoreUnavailable("the line is down")
        done.append("worked")
        return limit

    monkeypatch.setattr(type(await sqlite_world.store()), "tidy", tidy)
    made = quick_upkeep(sqlite_world, monkeypatch)
    with caplog.at_level(logging.WARNING, "rowlock"):
        made.start()
        made.start()
        await until(lambda: done.count("failed") >= 3 and done.count("worked") >= 30)
        await made.stop()
    [record] = caplog.records
    assert record.getMessage().endswith(": the line is down; trying again until it works")


async def test_it_ends_when_its_jobs_are_closed(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "LOOK", 0.001)
    made = quick_upkeep(sqlite_world, monkeypatch)
    with caplog.at_level(logging.WARNING, "rowlock"):
        made.start()
        await sqlite_world.jobs.close()
        await until(lambda: made.maintenance_loop.task is None and made.bulk_loop.task is None)
        await made.stop()
    assert caplog.records == []
