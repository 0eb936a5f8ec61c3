"""Workers and clients keep limits: the end of a run lets the next job start at once, and every way to enqueue gives a
job its share."""

import asyncio
import time
from typing import Any
from unittest.mock import AsyncMock

import pytest

from rowlock import Concurrency, Every, Fair, Rate
from rowlock.client.limits import Limits
from rowlock.context import Context
from rowlock.core.job import Lane
from rowlock.core.limits import PUT
from rowlock.errors import InvalidInput
from rowlock.jobs import Jobs
from rowlock.stores.base import Claim
from rowlock.stores.records import Write
from tests.waiting import PATIENCE, until


class Peak:
    """Count how many runs there are at once."""

    def __init__(self) -> None:
        self.running = self.most = self.done = 0
        self.starts: list[float] = []

    async def run(self, tenant: str = "") -> None:
        self.starts.append(time.monotonic())
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        self.done += 1


async def share_of(jobs: Jobs, job_id: str) -> str | None:
    store: Any = (await jobs._stores.handle()).store
    if hasattr(store, "_sql"):
        [(share,)] = await store._fetch("SELECT share FROM _jobs WHERE id = $1::uuid", job_id)
    else:
        [(share,)] = await store._read(
            lambda conn: conn.execute("SELECT share FROM _jobs WHERE id = ?", (job_id,)).fetchall()
        )
    found: str | None = share
    return found


async def test_the_end_of_a_run_makes_room_for_the_next(jobs: Jobs) -> None:
    """The next job does not wait for a poll, which comes every ten minutes here."""
    peak = Peak()
    jobs.register("one", peak.run, limits=[Concurrency(1)])
    await jobs.templates.publish()
    await jobs.enqueue_many([("one", {}) for _ in range(20)])
    await jobs.start(concurrency=5, poll=600)
    await until(lambda: peak.done == 20)
    assert peak.most == 1


async def test_a_worker_claims_when_a_rate_lets_it(jobs: Jobs) -> None:
    peak = Peak()
    jobs.register("rated", peak.run, limits=[Rate(5, per=0.2)])
    await jobs.templates.publish()
    await jobs.enqueue_many([("rated", {}) for _ in range(22)])
    await jobs.start(concurrency=50, poll=600)
    await until(lambda: peak.done == 22)
    assert peak.starts[-1] - peak.starts[0] >= 0.7  # each start is a little later than its claim


async def test_limited_jobs_beside_many_short_ones(jobs: Jobs) -> None:
    """The worker claims short jobs ahead, but not limited jobs. The limited jobs still get their slots."""
    peak, short = Peak(), Peak()
    jobs.register("limited", peak.run, limits=[Concurrency(3, by="tenant")])
    jobs.register("short", short.run)
    await jobs.templates.publish()
    await jobs.enqueue_many([("short", {}) for _ in range(600)])
    await jobs.enqueue_many([("limited", {"tenant": "ab"[n % 2]}) for n in range(60)])
    await jobs.start(concurrency=10)
    await until(lambda: peak.done == 60 and short.done == 600)
    assert peak.most <= 6


async def test_every_way_to_enqueue_gives_a_job_its_share(jobs: Jobs) -> None:
    made: list[str] = []

    async def by_tenant(tenant: str = "") -> None: ...

    async def parent(ctx: Context) -> None:
        made.append((await ctx.enqueue("limited", {"tenant": "a"}, delay=3600)).id)

    limited = jobs.register("limited", by_tenant, fair="tenant")
    jobs.register("parent", parent)
    await jobs.templates.publish()
    later: dict[str, Any] = {"delay": 3600}
    made.append((await jobs.enqueue("limited", {"tenant": "a"}, **later)).id)
    made.append((await limited.using(delay=3600).enqueue("a")).id)
    made += [one.id for one in await jobs.enqueue_many([limited.using(delay=3600).draft("a")])]
    flow = jobs.flow("f")
    first = flow.add(limited.using(delay=3600).draft("a"))
    flow.add(("limited", {"tenant": "a"}), after=first)
    made += [one.id for one in (await flow.enqueue()).jobs.values()]
    await jobs.schedules.put("s", limited.draft("a"), Every(1_000_000))
    fired = (await jobs.schedules.run_now("s")).job_id
    assert fired is not None
    made.append(fired)
    await jobs.start(topics=["parent"])
    await jobs.wait((await jobs.enqueue("parent")).id, timeout=PATIENCE)
    assert {await share_of(jobs, one) for one in made} == {'{"tenant":"a"}'}


async def test_an_update_of_the_payload_changes_the_share(jobs: Jobs) -> None:
    await jobs.limits.put("free", Concurrency(1, by="tenant"))
    job_id = (await jobs.enqueue("free", {"tenant": "a"})).id
    assert await share_of(jobs, job_id) == '{"tenant":"a"}'
    await jobs.update(job_id, payload={"tenant": "b"})
    assert await share_of(jobs, job_id) == '{"tenant":"b"}'
    await jobs.update(job_id, priority=3)
    assert await share_of(jobs, job_id) == '{"tenant":"b"}'
    await jobs.cancel(job_id)
    await jobs.requeue(job_id, payload={"tenant": "c"})
    assert await share_of(jobs, job_id) == '{"tenant":"c"}'


@pytest.mark.parametrize("limit", [Concurrency(1, by="tenant"), Rate(1, per=60, by="tenant"), Fair("tenant")])
async def test_jobs_that_wait_get_a_share_when_a_limit_by_a_field_is_put(jobs: Jobs, limit: Any) -> None:
    made = await jobs.enqueue_many([("free", {"tenant": str(n % 7)}) for n in range(450)])
    await jobs.limits.put("free", limit)
    shares = [await share_of(jobs, one.id) for one in (*made[:8], *made[-8:])]
    assert shares == [f'{{"tenant":"{n % 7}"}}' for n in (*range(8), *range(442, 450))]


async def test_the_same_limit_put_again_gives_jobs_a_share_that_have_none(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that first put the limit died before it had given every job its share."""
    job_id = (await jobs.enqueue("free", {"tenant": "a"})).id
    limit = Concurrency(1, by="tenant")
    with monkeypatch.context() as patch:
        patch.setattr(Limits, "_give_shares", AsyncMock())
        await jobs.limits.put("free", limit)
    assert await share_of(jobs, job_id) is None
    await jobs.limits.put("free", limit)
    assert await share_of(jobs, job_id) == '{"tenant":"a"}'


async def test_jobs_that_wait_get_a_share_when_the_code_has_a_new_limit(jobs: Jobs, url: str) -> None:
    async def by_tenant(tenant: str = "") -> None: ...

    jobs.register("limited", by_tenant)
    await jobs.templates.publish()
    job_id = (await jobs.enqueue("limited", {"tenant": "a"})).id
    assert await share_of(jobs, job_id) is None
    async with Jobs(url) as newer:
        newer.register("limited", by_tenant, limits=[Concurrency(1, by="tenant")])
        await newer.templates.publish()
    assert await share_of(jobs, job_id) == '{"tenant":"a"}'


async def test_the_newest_fair_share_holds_whatever_it_is_by(jobs: Jobs) -> None:
    await jobs.limits.put("mail", Fair("scope_id"))
    await jobs.limits.put("mail", Fair("key"))
    assert [one.limit for one in await jobs.limits.get("mail")] == [Fair("key")]
    assert await jobs.limits.clear("mail") == 1


async def test_one_field_in_two_spellings_is_one_limit(jobs: Jobs) -> None:
    async def by_tenant(tenant: str = "") -> None: ...

    jobs.register("limited", by_tenant, limits=[Concurrency(1, by="tenant")])
    await jobs.templates.publish()
    store = (await jobs._stores.handle()).store
    older = {"name": "limited", "limit": {"kind": "concurrency", "max": 7, "by": "payload.tenant"}}
    await store.write_records([Write(PUT, '["limited","concurrency","payload.tenant",null]', older)])
    [info] = await jobs.limits.list()
    assert (info.limit, info.source) == (Concurrency(7, by="tenant"), "put")
    await jobs.limits.put("limited", Concurrency(50, by="payload.tenant"))
    [info] = await jobs.limits.list()
    assert info.limit == Concurrency(50, by="tenant")
    assert len(await store.records(PUT)) == 1
    assert await jobs.limits.clear("limited", field="payload.tenant") == 1
    with pytest.raises(InvalidInput, match="kind: must be one of concurrency, rate, fair"):
        await jobs.limits.clear("limited", kind="nope")  # type: ignore[arg-type]
    await store.write_records([Write(PUT, '["limited","concurrency","payload.tenant",null]', older)])
    assert await jobs.limits.clear("limited", field="tenant") == 1
    [info] = await jobs.limits.list()
    assert info.source == "code"


async def test_why_names_the_limit_also_if_no_worker_lives(jobs: Jobs) -> None:
    await jobs.limits.put("mail", Rate(1, per=600))
    store = (await jobs._stores.handle()).store
    first, second = await jobs.enqueue_many([("mail", {}), ("mail", {})])
    claimed = await store.claim(Claim("w", (Lane("mail"),), 10, 30.0))
    assert [job.id for job in claimed.jobs] == [first.id]
    why = await jobs.why(second.id)
    assert why.code == "rate"
    assert "1 of 1 starts in 600 s" in why.answer
    assert any("No worker is running" in detail for detail in why.details)
