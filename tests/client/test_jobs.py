"""The async API of Jobs, as application code uses it, on both databases."""

import asyncio
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rowlock import errors
from rowlock.core.job import Lane, Status
from rowlock.core.lifecycle import Completed, Failed, Settlement, decide
from rowlock.jobs import Jobs
from rowlock.stores.base import Claim, Enqueued
from rowlock.stores.queries import Filter
from rowlock.tasks import Draft
from tests.databases import Databases


@pytest.fixture(params=["sqlite", "memory", "postgres"])
async def jobs(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[Jobs]:
    async with AsyncExitStack() as stack:
        memory = request.param == "memory"
        url = "sqlite://" if memory else await stack.enter_async_context(databases.at(request.param, tmp_path))
        yield await stack.enter_async_context(Jobs(url))


async def finish(jobs: Jobs, topic: str, *, fail: bool = False) -> None:
    """Run the oldest job of a topic, as a worker would."""
    store = await jobs._store()
    [job] = (await store.claim(Claim("w1", (Lane(topic),), 1, 30.0))).jobs
    outcome = Failed("no", final=True) if fail else Completed({"ok": True})
    await store.settle([Settlement(job.id, job.version, decide(job, outcome, await store.now(), ran=0.01))])


# ── Enqueue ──


async def test_a_job_is_there_when_enqueue_returns(jobs: Jobs) -> None:
    enqueued = await jobs.enqueue("mail", {"to": "ada"}, priority="explicit", tags=["a"], scope="user", scope_id="7")
    job = await jobs.get(enqueued.id)
    assert (job.topic, job.payload, job.priority, job.tags) == ("mail", {"to": "ada"}, 150, ("a",))
    assert (job.scope, job.scope_id, job.status) == ("user", "7", Status.PENDING)
    assert enqueued == Enqueued(job.id, False, Status.PENDING, job.run_at, job.created)


async def test_enqueue_at_and_delay(jobs: Jobs) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    later = await jobs.enqueue_at("mail", {}, at)
    delayed = await jobs.enqueue("mail", delay=timedelta(hours=1))
    assert (await jobs.get(later.id)).run_at == at
    job = await jobs.get(delayed.id)
    assert job.run_at - job.created == timedelta(hours=1)


async def test_a_key_answers_with_the_live_job(jobs: Jobs) -> None:
    first = await jobs.enqueue("mail", {"n": 1}, key="k")
    again = await jobs.enqueue("mail", {"n": 2}, key="k")
    assert (again.id, again.existing) == (first.id, True)
    await finish(jobs, "mail")
    assert not (await jobs.enqueue("mail", {"n": 3}, key="k")).existing


async def test_an_own_id_is_enqueued_once_also_after_it_has_finished(jobs: Jobs) -> None:
    own = "0193fb1e-0000-7000-8000-000000000007"
    assert not (await jobs.enqueue("mail", {"n": 1}, id=own)).existing
    assert (await jobs.enqueue("mail", {"n": 1}, id=own)).existing
    await finish(jobs, "mail")
    again = await jobs.enqueue("mail", {"n": 1}, id=own)
    assert (again.existing, again.status) == (True, Status.COMPLETED)
    with pytest.raises(errors.IdTaken, match="another payload"):
        await jobs.enqueue("mail", {"n": 2}, id=own)
    with pytest.raises(errors.IdTaken, match="another topic"):
        await jobs.enqueue("other", {"n": 1}, id=own)


async def test_many_are_all_or_none(jobs: Jobs) -> None:
    entries: list[Any] = [("mail", {"n": 1}), {"topic": "bills", "priority": 5}, Draft("mail", {}, {"key": "k"})]
    enqueued = await jobs.enqueue_many(entries)
    assert [one.existing for one in enqueued] == [False] * 3
    assert (await jobs.get(enqueued[1].id)).priority == 5
    with pytest.raises(errors.InvalidInput) as refused:
        await jobs.enqueue_many([("mail", {}), ("mail", {"x": float("nan")})])
    assert refused.value.field == "jobs[1].payload.x"
    assert (await jobs.list()).total == 3
    assert await jobs.enqueue_many([]) == []


async def test_ten_thousand_appear_in_one_transaction(jobs: Jobs) -> None:
    enqueued = await jobs.enqueue_many([("bulk", {"n": n}) for n in range(10_000)])
    assert len({one.id for one in enqueued}) == 10_000
    assert len({one.created for one in enqueued}) == 1
    assert (await jobs.stats("bulk")).pending == 10_000


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (7, "jobs[0]"),
        ({"payload": {}}, "jobs[0].topic"),
        ({"topic": "mail", "colour": "red"}, "jobs[0].colour"),
        (("mail", [1]), "jobs[0].payload"),
    ],
)
async def test_entries_that_are_no_jobs(jobs: Jobs, entry: Any, field: str) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        await jobs.enqueue_many([entry])
    assert refused.value.field == field


@pytest.mark.parametrize("options", [{}, {"key": "k"}])
async def test_a_topic_that_is_no_text_is_refused(jobs: Jobs, options: Any) -> None:
    topic: Any = ["mail"]
    with pytest.raises(errors.InvalidInput, match="topic: must be a string, not list"):
        await jobs.enqueue(topic, **options)


async def test_an_id_with_other_content_writes_nothing_of_its_batch(jobs: Jobs) -> None:
    own = "0193fb1e-0000-7000-8000-000000000007"
    await jobs.enqueue("mail", {"n": 1}, id=own)
    with pytest.raises(errors.IdTaken):
        await jobs.enqueue_many([("bills", {}), Draft("mail", {"n": 2}, {"id": own})])
    other = "0193fb1e-0000-7000-8000-000000000008"
    with pytest.raises(errors.IdTaken):
        await jobs.enqueue_many([Draft("mail", {"n": n}, {"id": other}) for n in (1, 2)])
    assert (await jobs.list()).total == 1


# ── Middleware ──


async def test_middleware_changes_refuses_and_sees_the_end(jobs: Jobs) -> None:
    seen: list[tuple[str, str]] = []

    @jobs.on_enqueue
    def label(draft: Draft) -> None:
        draft.options["tags"] = ["web"]
        if draft.topic == "forbidden":
            raise PermissionError(draft.topic)

    @jobs.on_enqueue
    def watch(draft: Draft) -> Generator[None, Enqueued, None]:
        try:
            enqueued = yield
        except errors.InvalidInput as error:
            seen.append((draft.topic, error.field))
            raise
        seen.append((draft.topic, enqueued.id))

    enqueued = await jobs.enqueue("mail")
    assert (await jobs.get(enqueued.id)).tags == ("web",)
    with pytest.raises(PermissionError):
        await jobs.enqueue("forbidden")
    with pytest.raises(errors.InvalidInput):
        await jobs.enqueue("mail", max_retries=-1)
    assert seen == [("mail", enqueued.id), ("mail", "max_retries")]


async def test_a_middleware_that_fails_afterwards_does_not_make_it_look_as_if_nothing_was_written(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []

    @jobs.on_enqueue
    def outer(draft: Draft) -> Generator[None, Enqueued, None]:
        ended.append((yield).id)

    @jobs.on_enqueue
    def broken(draft: Draft) -> Generator[None, Enqueued, None]:
        yield
        raise ValueError("too late")

    enqueued = await jobs.enqueue("mail")
    assert ended == [enqueued.id]
    assert "failed after the enqueue" in caplog.text

    async def wrong(draft: Draft) -> None: ...

    with pytest.raises(errors.InvalidInput, match="plain function"):
        jobs.on_enqueue(wrong)  # type: ignore[type-var]


# ── Read and change jobs ──


async def test_wait_answers_the_job_that_has_ended(jobs: Jobs) -> None:
    enqueued = await jobs.enqueue("mail")
    waiting = asyncio.ensure_future(jobs.wait(enqueued.id, timeout=30))
    await finish(jobs, "mail")
    assert (await waiting).result == {"ok": True}
    assert (await jobs.wait(enqueued.id, timeout=0)).status is Status.COMPLETED
    with pytest.raises(TimeoutError):
        await jobs.wait((await jobs.enqueue("mail")).id, timeout=0.05)


async def test_steering_a_job_through_its_life(jobs: Jobs) -> None:
    enqueued = await jobs.enqueue("mail", {"n": 1})
    changed = await jobs.update(
        enqueued.id, priority="backfill", payload={"n": 2}, tags=["x"], delay=60, reason="later"
    )
    assert (changed.priority, changed.payload, changed.tags) == (30, {"n": 2}, ("x",))
    assert (await jobs.cancel(enqueued.id, reason="mistake", by="ann")).status is Status.CANCELLED
    with pytest.raises(errors.InvalidState, match="it is cancelled"):
        await jobs.cancel(enqueued.id)
    with pytest.raises(errors.InvalidState, match="needs pending"):
        await jobs.update(enqueued.id, priority=1)
    assert (await jobs.requeue(enqueued.id)).status is Status.PENDING
    assert [event.event for event in await jobs.events(enqueued.id)] == ["enqueued", "updated", "cancelled", "requeued"]
    await jobs.delete(enqueued.id)
    for verb in (jobs.get, jobs.cancel, jobs.requeue, jobs.delete, jobs.events, jobs.wait):
        with pytest.raises(errors.JobNotFound):
            await verb(enqueued.id)


async def test_an_update_changes_what_is_given_and_needs_something(jobs: Jobs) -> None:
    enqueued = await jobs.enqueue("mail", {"n": 1})
    with pytest.raises(errors.InvalidInput, match="give priority"):
        await jobs.update(enqueued.id)
    with pytest.raises(errors.InvalidInput, match="not None"):
        await jobs.update(enqueued.id, payload=None)  # type: ignore[arg-type]
    assert (await jobs.get(enqueued.id)).payload == {"n": 1}
    with pytest.raises(errors.InvalidInput, match="Filter"):
        await jobs.list("mail")  # type: ignore[arg-type]


@pytest.mark.parametrize("far", [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)])
async def test_times_that_drivers_take_for_infinity_are_refused(jobs: Jobs, far: datetime) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        await jobs.enqueue("mail", run_at=far)
    assert (refused.value.field, refused.value.code) == ("run_at", "time_range")


async def test_cancelling_twice_while_it_runs_is_one_request(jobs: Jobs) -> None:
    enqueued = await jobs.enqueue("mail")
    await (await jobs._store()).claim(Claim("w1", (Lane("mail"),), 1, 30.0))
    for _ in range(2):
        assert (await jobs.cancel(enqueued.id)).status is Status.CANCEL_REQUESTED
    assert [event.event for event in await jobs.events(enqueued.id)] == ["enqueued", "claimed", "cancel_requested"]


async def test_a_requeue_names_who_has_the_key(jobs: Jobs) -> None:
    old = await jobs.enqueue("mail", key="k")
    await finish(jobs, "mail", fail=True)
    new = await jobs.enqueue("mail", key="k")
    with pytest.raises(errors.KeyTaken) as taken:
        await jobs.requeue(old.id)
    assert (taken.value.holder, taken.value.key) == (new.id, "k")


async def test_a_requeue_may_change_the_job_if_it_has_not_run_since(jobs: Jobs) -> None:
    made = await jobs.enqueue("mail", {"n": 1}, tags=["old"])
    await finish(jobs, "mail", fail=True)
    seen = await jobs.get(made.id)
    await jobs.requeue(made.id)
    await finish(jobs, "mail", fail=True)
    with pytest.raises(errors.VersionPassed) as passed:
        await jobs.requeue(made.id, payload={"n": 2}, version=seen.version)
    assert passed.value.version == seen.version
    assert (await jobs.get(made.id)).payload == {"n": 1}
    changed = await jobs.requeue(
        made.id, payload={"n": 2}, priority="explicit", delay=3600, tags=[], version=seen.version + 1, reason="typo"
    )
    assert (changed.status, changed.payload, changed.priority, changed.tags) == (Status.PENDING, {"n": 2}, 150, ())
    assert changed.run_at > changed.updated
    last = (await jobs.events(made.id))[-1]
    assert (last.event, last.data["reason"]) == ("requeued", "typo")
    assert last.data["changed"] == ["payload", "priority", "run_at", "tags"]


async def test_a_requeue_takes_no_nonsense(jobs: Jobs) -> None:
    made = await jobs.enqueue("mail", {"n": 1})
    await finish(jobs, "mail", fail=True)
    both = {"delay": 1, "run_at": datetime.now(UTC)}
    nonsense: list[dict[str, Any]] = [{"payload": None}, {"payload": [1]}, {"version": -1}, {"version": True}, both]
    for wrong in nonsense:
        with pytest.raises(errors.InvalidInput):
            await jobs.requeue(made.id, **wrong)
    assert (await jobs.get(made.id)).status is Status.FAILED


async def test_pause_and_resume(jobs: Jobs) -> None:
    await jobs.topics.pause("mail", reason="provider is down", by="ann")
    [pause] = await jobs.topics.paused()
    assert (pause.topic, pause.reason, pause.by) == ("mail", "provider is down", "ann")
    assert await jobs.topics.resume("mail")
    assert not await jobs.topics.resume("mail")


async def test_list_and_stats(jobs: Jobs) -> None:
    for n in range(5):
        await jobs.enqueue("mail" if n % 2 else "bills", {"n": n})
    await finish(jobs, "mail")
    await finish(jobs, "bills", fail=True)
    page = await jobs.list(Filter(topics=["mail"]), limit=1)
    assert (page.total, len(page.items)) == (2, 1)
    assert [job.topic for job in (await jobs.list(Filter(topics=["mail"]), limit=1, cursor=page.next)).items] == [
        "mail"
    ]
    stats = await jobs.stats()
    assert (stats.pending, stats.completed, stats.failed, stats.success_rate) == (3, 1, 1, 0.5)


@pytest.mark.parametrize("bad", ["no uuid", "", "0193fb1e", "x" * 500])
async def test_an_id_that_is_none(jobs: Jobs, bad: str) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        await jobs.get(bad)
    assert refused.value.field == "id"


# ── Opening and closing ──


async def test_closed_and_opened_again(jobs: Jobs) -> None:
    await jobs.close()
    await jobs.close()
    with pytest.raises(errors.StoreClosed, match="closed"):
        await jobs.enqueue("mail")
    await jobs.open()
    assert not (await jobs.enqueue("mail")).existing


def test_one_object_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    jobs = Jobs(f"sqlite:///{tmp_path}/jobs.db")
    asyncio.run(_enqueue(jobs))
    threads = threading.active_count()
    ids = {asyncio.run(_enqueue(jobs)).id for _ in range(10)}
    assert threading.active_count() <= threads  # no loop leaves a thread behind
    assert len(ids) == 10
    assert jobs.sync.stats().pending == 11
    jobs.sync.close()


async def _enqueue(jobs: Jobs) -> Enqueued:
    return await jobs.enqueue("mail")


async def test_a_database_that_is_not_there_is_tried_again_by_the_next_call(tmp_path: Path) -> None:
    jobs = Jobs(f"sqlite:///{tmp_path}/missing/jobs.db")
    with pytest.raises(errors.StoreUnavailable, match="missing"):
        await jobs.enqueue("mail")
    (tmp_path / "missing").mkdir()
    assert not (await jobs.enqueue("mail")).existing
    await jobs.close()
