"""Bulk actions: which jobs are listed, which are changed, which worker continues a run, and what is kept afterwards."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from msgspec import UNSET, structs

from rowlock.client import bulk as client
from rowlock.core.conditions import Compared, Some
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Completed, Failed, Outcome
from rowlock.core.moves import Cancel, Delete, Order, Requeue, Update
from rowlock.errors import BulkRefused, InvalidInput
from rowlock.stores import bulk as shared
from rowlock.stores import reading
from rowlock.stores.base import Edit, Store
from rowlock.stores.bulk import KEPT, PREVIEW_LIFE, SKIPS, VERBS, Bulk, NewBulk, Unfit, sources
from rowlock.stores.postgres import bulk as on_postgres
from rowlock.stores.queries import Filter
from rowlock.stores.records import AuditFilter
from rowlock.stores.sqlite import bulk as on_sqlite
from tests.stores.harness import NOBODY, START, Harness, PostgresHarness, job, settlement
from tests.stores.processes import ids as bulk_ids
from tests.stores.processes import real_job
from tests.stores.rows import micros
from tests.stores.test_list import CASES, crowd, wanted

MAIL = Filter(topics=["mail"])
ARGUMENTS: dict[str, dict[str, Any]] = {"reprioritise": {"priority": 7}, "reschedule": {"delay": 90.0}}
ORDERS: dict[str, type[Order]] = {"requeue": Requeue, "cancel": Cancel, "delete": Delete, "update": Update}


async def preview(store: Harness, action: str, filter: Filter = MAIL, **options: Any) -> Bulk:
    given = {"priority": UNSET, "run_at": UNSET, "delay": UNSET, **ARGUMENTS.get(action, {}), **options}
    everything = filter == Filter()
    new = client.new_bulk(bulk_ids.one(), action, filter, everything=everything, by="ann", reason="tidy", **given)
    return await client.prepare(store.store, new, filter)


async def started(store: Harness, action: str, filter: Filter = MAIL, **options: Any) -> Bulk:
    prepared = await preview(store, action, filter, **options)
    return await client.start(store.store, prepared.id, by="bob")


async def outcomes(store: Harness, bulk: Bulk) -> dict[str, str | None]:
    return {item.job_id: item.outcome for item in await store.store.bulk_items(bulk.id, limit=10_000)}


async def dead(store: Harness, count: int, topic: str = "mail", **fields: Any) -> list[str]:
    return [(await store.settled(Failed("never", final=True), topic=topic, **fields)).id for _ in range(count)]


# ── The preview ──


async def test_a_preview_lists_what_the_action_can_be_done_to_and_counts_the_rest(store: Harness) -> None:
    there = {status: (await store.in_status(status)).id for status in in_order(Status)}
    await store.in_status(Status.FAILED, topic="other")
    rows, audit = await store.rows(), await store.audit()
    bulks = {}
    for action in VERBS:
        bulk = await preview(store, action)
        fit = sources(action)
        listed = {item.job_id: item.status for item in await store.store.bulk_items(bulk.id)}
        assert listed == {there[status]: status for status in fit}
        assert (bulk.status, bulk.total, bulk.left) == ("preview", len(fit), len(fit))
        assert bulk.unfit == {str(status): Unfit(1) for status in frozenset(Status) - fit}
        assert (bulk.action, bulk.filter, bulk.by, bulk.reason) == (action, {"topics": ["mail"]}, "ann", "tidy")
        bulks[bulk.id] = bulk
    assert await store.store.bulks() == sorted(bulks.values(), key=lambda bulk: bulk.id, reverse=True)
    assert (await store.rows(), await store.audit()) == (rows, audit)  # nothing was changed
    assert await store.store.run_bulk() is None


def in_order(statuses: Iterable[Status]) -> list[Status]:
    """Return the statuses, pending last: otherwise `in_status` would claim the pending job instead of its own."""
    return sorted(statuses, key=lambda status: (status is Status.PENDING, status))


async def test_states_that_the_filter_asks_for_and_the_action_does_not_take_are_only_counted(store: Harness) -> None:
    await store.add()
    bulk = await preview(store, "requeue", Filter(statuses=["pending", "completed"]))
    assert (bulk.total, bulk.unfit) == (0, {"pending": Unfit(1)})
    assert (await client.start(store.store, bulk.id, by="ann")).status == "done"


async def test_every_filter_lists_what_meets_it(store: Harness) -> None:
    everyone = await crowd(store)
    where = Filter(where=Some((Compared("topic", "=", "bills"), Compared("priority", ">", 400))))
    ids = [one.id for one in everyone[::3]]
    for n, filter in enumerate([*CASES, where, Filter(ids=ids)]):
        some = ("cancel", "delete")[n % 2 :][:1] if store.kind == "postgres" else tuple(VERBS)[:4]  # it is slower
        for action in some:
            bulk = await preview(store, action, filter)
            found = {item.job_id for item in await store.store.bulk_items(bulk.id, limit=1000)}
            met = [one for one in everyone if wanted(filter, one)]
            assert found == {one.id for one in met if one.status in sources(action)}, (filter, action)
            assert bulk.total == len(found)
            unfit = Counter(str(one.status) for one in met if one.status not in sources(action))
            assert bulk.unfit == {status: Unfit(count) for status, count in unfit.items()}


async def test_too_many_is_said_before_anything_is_kept(store: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (shared, on_postgres, on_sqlite):
        monkeypatch.setattr(module, "MAX_ITEMS", 2)
    await dead(store, 3)
    with pytest.raises(InvalidInput, match="filter: more than 2 jobs"):
        await preview(store, "requeue")
    assert await store.store.bulks() == []
    assert await store.fetch("SELECT * FROM _jobs_bulk_items") == []


async def test_a_look_that_takes_too_long_is_given_up(store: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.insert(*[job() for _ in range(3000)])
    monkeypatch.setattr(on_sqlite, "LONGEST_LOOK", -1.0)
    monkeypatch.setattr(on_sqlite, "_STEPS", 10)
    monkeypatch.setattr(on_postgres, "_LOOK", "SET LOCAL statement_timeout = '1ms'")
    with pytest.raises(InvalidInput, match="add a topic") as caught:
        await preview(store, "cancel")
    assert (caught.value.field, caught.value.code) == ("filter", "too_broad")
    monkeypatch.undo()
    assert (await preview(store, "cancel")).total == 3000  # the connection is still usable


# ── The run ──


async def test_each_is_done_as_the_verb_would_do_it(store: Harness) -> None:
    """A bulk action and the verb get equal jobs. Rows, histories, audit and counters must agree afterwards."""
    edits = {"reprioritise": Edit(priority=7), "reschedule": Edit(run_at=START + timedelta(seconds=90))}
    for action, verb in VERBS.items():
        mine, others = [
            [(await store.in_status(status, topic)).id for status in in_order(sources(action))]
            for topic in (action, f"{action}.twin")
        ]
        bulk = await started(store, action, Filter(topics=[action]))
        edit: dict[str, Any] = {"edit": edits[action]} if action in edits else {}
        await store.store.move(others, ORDERS[verb](by="bob", reason=bulk.note, **edit))
        ended = await client.run_all(store.store, bulk.id)
        assert (ended.status, ended.done, ended.skipped, ended.finished_at) == ("done", len(mine), 0, START)
        assert set((await outcomes(store, bulk)).values()) == {"done"}
        rows = await store.rows()
        for one, other in zip(mine, others, strict=True):
            assert (one in rows) == (other in rows)
            if one in rows:
                assert same(rows[one].job) == same(rows[other].job)
                assert rows[one].ready == rows[other].ready
                assert await same_story(store, one) == await same_story(store, other)
        audit = [entry for entry in await store.audit() if entry.reason == bulk.note]
        [listed, twins] = [
            sorted(repr((entry.by, entry.action, entry.data)) for entry in audit if entry.topic == topic)
            for topic in (action, f"{action}.twin")
        ]
        assert listed == twins != []
        stats = (await store.store.stats()).topics
        assert stats.get(action) == stats.get(f"{action}.twin")


def same(one: Job) -> Job:
    return structs.replace(one, id="", topic="")


async def same_story(store: Harness, job_id: str) -> list[Any]:
    return [(event.event, event.status, event.version, event.by, event.data) for event in await store.events(job_id)]


async def test_what_came_later_or_has_moved_is_left_alone(store: Harness) -> None:
    kept, requeued, again, deleted, run = await dead(store, 5)
    cancelled = (await store.in_status(Status.CANCELLED)).id
    bulk = await started(store, "requeue")
    late = await dead(store, 2)
    await store.store.move([requeued], Requeue(by="eve"))
    await store.store.move([again], Requeue(by="eve"))
    await store.store.move([again], Cancel(by="eve"))
    await store.store.move([cancelled], Requeue(by="eve"))  # then status and version are as listed, not the history
    await store.store.move([cancelled], Cancel(by="eve"))
    await store.store.move([deleted], Delete(by="eve"))
    await store.store.move([run], Requeue(by="eve"))
    [claimed] = [one for one in (await store.claim("w1")).jobs if one.id == run]
    await store.store.settle([settlement(claimed, Completed(), ran=0.0)])
    untouched = {job_id: row for job_id, row in (await store.rows()).items() if job_id != kept}
    ended = await client.run_all(store.store, bulk.id)
    assert await outcomes(store, bulk) == {
        kept: "done", requeued: "changed", again: "changed", cancelled: "changed", deleted: "gone", run: "changed",
    }  # fmt: skip
    assert (ended.done, ended.changed, ended.gone, ended.skipped) == (1, 4, 1, 5)
    rows = await store.rows()
    assert {job_id: row for job_id, row in rows.items() if job_id != kept} == untouched
    assert rows[kept].job.status is Status.PENDING
    assert {rows[job_id].job.status for job_id in late} == {Status.FAILED}


async def test_an_id_that_was_used_again_is_another_job(store: Harness) -> None:
    first = await store.add()
    bulk = await started(store, "cancel")
    await store.store.move([first], Delete(by="eve"))
    await store.advance(1)
    await store.insert(job(id=first))
    await client.run_all(store.store, bulk.id)
    assert await outcomes(store, bulk) == {first: "changed"}
    assert (await store.job(first)).status is Status.PENDING


async def test_completed_jobs_are_deleted_from_the_archive(store: Harness) -> None:
    done = [(await store.settled(Completed())).id for _ in range(3)]
    bulk = await started(store, "delete", Filter(statuses=["completed"]))
    await store.store.move(done[:1], Delete(by="eve"))
    later = (await store.settled(Completed())).id
    await client.run_all(store.store, bulk.id)
    assert await outcomes(store, bulk) == {done[0]: "gone", done[1]: "done", done[2]: "done"}
    assert (await store.rows()).keys() == {later}


async def test_a_key_that_is_taken_names_who_has_it(store: Harness) -> None:
    """If listed jobs have the same key, in one batch or in two, the oldest job wins."""
    rivals = await dead(store, 4, key="a")
    [other] = await dead(store, 1, key="b")
    elsewhere = await dead(store, 1, key="a", scope_id="t") + await dead(store, 1, key="b", scope="t")
    holder = await store.add(key="b")
    bulk = await started(store, "requeue")
    await store.store.run_bulk(bulk.id, limit=2)
    await client.run_all(store.store, bulk.id)
    found = {item.job_id: (item.outcome, item.holder) for item in await store.store.bulk_items(bulk.id)}
    assert found == {
        rivals[0]: ("done", None), **dict.fromkeys(rivals[1:], ("key_taken", rivals[0])),
        other: ("key_taken", holder), **dict.fromkeys(elsewhere, ("done", None)),
    }  # fmt: skip
    assert (await store.store.bulks([bulk.id]))[0].key_taken == 4


async def test_a_delay_counts_from_the_start_for_every_job(store: Harness) -> None:
    ids = [await store.add() for _ in range(4)]
    bulk = await preview(store, "reschedule", delay=60.0)
    await store.advance(10)
    await client.start(store.store, bulk.id, by="ann")
    for _ in range(2):
        await store.advance(10)
        await store.store.run_bulk(bulk.id, limit=2)
    assert {(await store.job(job_id)).run_at for job_id in ids} == {START + timedelta(seconds=70)}


async def test_reschedule_to_a_time(store: Harness) -> None:
    job_id, at = await store.add(), START + timedelta(days=1)
    bulk = await started(store, "reschedule", delay=UNSET, run_at=at)
    assert bulk.arguments == {"run_at": micros(at)}
    await client.run_all(store.store, bulk.id)
    assert (await store.job(job_id)).run_at == at
    assert not (await store.row(job_id)).ready


# ── Its life ──


async def test_a_reason_that_comes_with_the_start_is_the_one_that_counts(store: Harness) -> None:
    [job_id] = await dead(store, 1)
    bulk = await preview(store, "requeue")
    assert bulk.reason == "tidy"
    started = await client.start(store.store, bulk.id, by="ann", reason="after all")
    assert started.reason == "after all"
    await client.run_all(store.store, bulk.id)
    reasons = [(entry.action, entry.reason) for entry in await store.audit()]
    assert reasons == [("bulk_start", "after all"), ("requeue", f"after all (bulk {bulk.id})")]
    assert (await reading.events(store.store, job_id))[-1].data["reason"] == f"after all (bulk {bulk.id})"


@pytest.mark.parametrize("action", ["requeue", "cancel", "delete", "reprioritise"])
async def test_what_it_does_to_each_job_does_not_bury_what_people_do(store: Harness, action: str) -> None:
    ids = [await store.add() for _ in range(3)] if action != "requeue" else await dead(store, 3)
    bulk = await started(store, action)
    await client.run_all(store.store, bulk.id)
    alone = await store.add()
    await store.store.move([alone], Cancel(by="eve"))
    people, items = await store.store.audit(), await store.store.audit(AuditFilter(bulk=bulk.id))
    assert [(entry.action, entry.job_id, entry.bulk) for entry in people] == [
        ("cancel", alone, None), ("bulk_start", None, None)
    ]  # fmt: skip
    assert sorted(entry.job_id or "" for entry in items) == sorted(ids)
    assert {entry.bulk for entry in items} == {bulk.id}
    assert await store.store.audit(AuditFilter(bulk=bulk.id), limit=1, before=items[0].id) == items[1:2]
    assert await store.store.audit(AuditFilter(bulk=bulk_ids.one())) == []


async def test_start_stop_and_go_on(store: Harness) -> None:
    ids = await dead(store, 5)
    bulk = await started(store, "requeue")
    assert (bulk.status, bulk.started_by, bulk.started_at, bulk.finished_at) == ("running", "bob", START, None)
    now = await store.advance(2)
    moved = await store.store.run_bulk(limit=2)
    assert moved is not None
    assert (moved.status, moved.done, moved.left, moved.moved_at, moved.rate) == ("running", 2, 3, now, 1.0)
    stopped = await client.stop(store.store, bulk.id, by="eve", reason="enough")
    assert (stopped.status, stopped.done, stopped.finished_at) == ("stopped", 2, now)
    assert await store.store.run_bulk() is None
    assert [await story_end(store, job_id) for job_id in ids] == ["requeued"] * 2 + ["failed"] * 3
    assert [item.job_id for item in await store.store.bulk_items(bulk.id, outcome="unrun")] == ids[2:]
    again = await client.start(store.store, bulk.id, by="ann")
    assert (again.status, again.finished_at, again.started_at) == ("running", None, START)
    assert (await client.run_all(store.store, bulk.id)).done == 5
    entries = [entry for entry in await store.audit() if entry.action.startswith("bulk")]
    assert [(entry.by, entry.action, entry.reason) for entry in entries] == [
        ("bob", "bulk_start", "tidy"), ("eve", "bulk_stop", "enough"), ("ann", "bulk_start", "tidy"),
    ]  # fmt: skip
    what = {"bulk": bulk.id, "action": "requeue", "arguments": {}, "filter": {"topics": ["mail"]}, "count": 5}
    assert entries[0].data == what
    assert entries[1].data == {"bulk": bulk.id, "done": 2, "left": 3}


async def story_end(store: Harness, job_id: str) -> str:
    return (await store.story(job_id))[-1]


async def test_those_that_run_take_turns(store: Harness) -> None:
    await dead(store, 4)
    await dead(store, 4, topic="bills")
    bulks = [await started(store, "requeue", Filter(topics=[topic])) for topic in ("mail", "bills")]
    seen = []
    for _ in range(4):
        await store.advance(1)
        moved = await store.store.run_bulk(limit=2)
        assert moved is not None
        seen.append(moved.id)
    assert seen in ([bulks[0].id, bulks[1].id] * 2, [bulks[1].id, bulks[0].id] * 2)
    assert await store.store.run_bulk() is None


async def test_what_is_not_there_is_neither_started_nor_stopped(store: Harness) -> None:
    assert not await store.store.steer_bulk(NOBODY, "start", by="ann")
    assert not await store.store.steer_bulk(NOBODY, "stop", by="ann")
    bulk = await preview(store, "requeue")
    assert not await store.store.steer_bulk(bulk.id, "stop", by="ann")
    assert await store.store.steer_bulk(bulk.id, "start", by="ann")  # done at once: the list is empty
    assert not await store.store.steer_bulk(bulk.id, "start", by="ann")
    assert not await store.store.steer_bulk(bulk.id, "stop", by="ann")


async def test_previews_live_for_an_hour_and_the_rest_for_a_week(store: Harness) -> None:
    await dead(store, 3)
    bulks = {name: await preview(store, "requeue") for name in ("old", "stopped", "running")}
    for name in ("stopped", "running"):
        await client.start(store.store, bulks[name].id, by="ann")
    await client.stop(store.store, bulks["stopped"].id, by="ann", reason=None)
    assert await store.store.tidy("prune_bulks", 10_000) == 0
    await store.advance(PREVIEW_LIFE)
    assert not await store.store.steer_bulk(bulks["old"].id, "start", by="ann")  # parts of its list may be gone
    await pruned(store, limit=2)
    assert {bulk.id for bulk in await store.store.bulks()} == {bulks["stopped"].id, bulks["running"].id}
    await store.advance(KEPT)
    assert not await store.store.steer_bulk(bulks["stopped"].id, "start", by="ann")
    await pruned(store, limit=2)
    assert [bulk.id for bulk in await store.store.bulks()] == [bulks["running"].id]
    assert len(await store.fetch("SELECT * FROM _jobs_bulk_items")) == 3


async def pruned(store: Harness, limit: int) -> None:
    while await store.store.tidy("prune_bulks", limit):
        pass


async def test_a_list_that_somebody_has_emptied_has_an_end(store: Harness) -> None:
    await dead(store, 3)
    bulk = await started(store, "requeue")
    await store.execute("DELETE FROM _jobs_bulk_items")
    assert (await client.run_all(store.store, bulk.id)).status == "done"


async def test_the_same_preview_again_is_the_one_that_is_there(store: Harness) -> None:
    """The client repeats the call after its reply was lost."""
    await dead(store, 1)
    new = NewBulk(id=bulk_ids.one(), action="requeue", arguments={}, filter={}, unfit={}, by="ann")
    first = await store.store.create_bulk(new, MAIL)
    await dead(store, 1)
    assert await store.store.create_bulk(new, MAIL) == first
    assert len(await outcomes(store, first)) == first.total == 1


async def test_pages_of_items_and_of_bulks(store: Harness) -> None:
    ids = sorted(await dead(store, 5))
    bulks = [await preview(store, "requeue") for _ in range(3)]
    first = await store.store.bulk_items(bulks[0].id, limit=2)
    assert [item.job_id for item in first] == ids[:2]
    rest = await store.store.bulk_items(bulks[0].id, after=first[-1].job_id)
    assert [item.job_id for item in rest] == ids[2:]
    newest = sorted((bulk.id for bulk in bulks), reverse=True)
    assert [bulk.id for bulk in await store.store.bulks(limit=2)] == newest[:2]
    assert [bulk.id for bulk in await store.store.bulks(before=newest[1])] == newest[2:]


# ── Undo ──


async def undone(store: Harness, bulk: Bulk) -> Bulk:
    new = client.new_undo(bulk_ids.one(), await client.get(store.store, bulk.id), by="ann", reason=None)
    made = await store.store.create_bulk(new, Filter())
    await client.start(store.store, made.id, by="bob")
    return await client.run_all(store.store, made.id)


async def test_an_undo_puts_back_pending_jobs_as_they_were(store: Harness) -> None:
    retried = await store.settled(Failed("boom"))
    due = await store.add()
    later = await store.add(delay=3600.0, expires_at=START + timedelta(hours=2), priority=7, tags=("t",), key="k")
    ran = await store.in_status(Status.PROCESSING, "other")
    early = await store.in_status(Status.CANCELLED, "bills")  # not by the bulk action
    before = await store.rows()
    cancel = await started(store, "cancel", Filter())
    await client.run_all(store.store, cancel.id)
    await store.advance(60)
    undo = await undone(store, cancel)
    assert (undo.action, undo.undoes, undo.total, undo.done) == ("requeue", cancel.id, 3, 3)
    after = await store.rows()
    for job_id in (retried.id, due, later):
        was, now = before[job_id].job, after[job_id].job
        moved = {"updated": now.updated, "events_count": was.events_count + 2}
        assert now == structs.replace(was, **moved)
        assert after[job_id].ready == (was.run_at <= store.now)
        assert [entry["event"] for entry in after[job_id].history[-2:]] == ["cancelled", "requeued"]
        assert after[job_id].history[-1]["reason"] == f"undo of bulk {cancel.id} (bulk {undo.id})"
    assert after[ran.id].job.status is Status.CANCEL_REQUESTED
    assert after[early.id] == before[early.id]
    assert (await store.store.stats()).cancelled == 1
    again = await undone(store, cancel)
    assert (again.total, again.changed) == (3, 3)


async def test_an_undo_leaves_what_has_happened_since(store: Harness) -> None:
    again, gone, taken, fine = [await store.add(key=key) for key in (None, None, "k", None)]
    unrun = await store.add()
    cancel = await started(store, "cancel")
    await store.store.run_bulk(cancel.id, limit=4)
    await client.stop(store.store, cancel.id, by="ann", reason=None)
    await store.store.move([again], Requeue(by="eve"))
    await store.store.move([again], Cancel(by="eve"))
    await store.store.move([gone], Delete(by="eve"))
    holder = await store.add(key="k")
    undo = await undone(store, cancel)
    told = await outcomes(store, undo)
    assert told == {again: "changed", gone: "gone", taken: "key_taken", fine: "done"}
    states = {job_id: row.job.status for job_id, row in (await store.rows()).items()}
    assert (states[again], states[taken]) == (Status.CANCELLED, Status.CANCELLED)
    assert {states[job_id] for job_id in (fine, unrun, holder)} == {Status.PENDING}


async def test_what_can_not_be_undone_is_refused(store: Harness) -> None:
    await dead(store, 1)
    requeue = await started(store, "requeue")
    await client.run_all(store.store, requeue.id)
    with pytest.raises(BulkRefused, match="it is a requeue, and only a cancel can be undone"):
        await undone(store, requeue)
    with pytest.raises(BulkRefused, match="nothing is done"):
        await undone(store, await preview(store, "cancel"))
    running = await started(store, "cancel")
    with pytest.raises(BulkRefused, match="stop it first"):
        await undone(store, running)


# ── Many at once ──


async def test_many_who_work_on_it_do_each_job_once(real_store: Harness) -> None:
    await real_store.insert(*[real_job() for _ in range(600)])
    bulk = await started(real_store, "cancel")
    workers = [await real_store.another() for _ in range(6)]

    async def work(store: Any) -> None:
        while (await client.get(store, bulk.id)).status == "running":
            await store.run_bulk(limit=50)

    await asyncio.gather(*map(work, workers))
    [ended] = await real_store.store.bulks([bulk.id])
    assert (ended.done, ended.skipped, ended.status) == (600, 0, "done")
    [(times,)] = await real_store.fetch("SELECT count(*) FROM _jobs_audit WHERE action = 'cancel'")
    assert times == 600
    assert (await real_store.store.stats()).cancelled == 600


async def test_when_stop_returns_nothing_more_is_changed(real_store: Harness) -> None:
    await real_store.insert(*[real_job() for _ in range(2000)])
    bulk = await started(real_store, "cancel")
    other = await real_store.another()
    running = asyncio.create_task(client.run_all(other, bulk.id))
    while not (await client.get(real_store.store, bulk.id)).done:
        pass  # each query is a round trip, so no sleep is needed
    stopped = await client.stop(real_store.store, bulk.id, by="ann", reason=None)
    assert (await real_store.store.stats()).cancelled == stopped.done
    assert (await running).done == stopped.done < 2000
    assert (await real_store.store.stats()).cancelled == stopped.done


async def test_others_at_the_same_moment(real_store: Harness) -> None:
    """The bulk action changes a job only as it was listed: its entry comes next in the job's history, and only once."""
    jobs = [real_job() for _ in range(200)]
    await real_store.insert(*jobs)
    await real_store.store.move([one.id for one in jobs], Cancel(by="ann"))
    listed = await real_store.rows()
    bulk = await started(real_store, "requeue")
    others = [await real_store.another() for _ in range(3)]
    running = True

    async def meddle(store: Store, chance: random.Random) -> None:
        while running:
            some = [one.id for one in chance.sample(jobs, 3)]
            await store.move(some, Requeue(by="eve"))
            await store.move(some, Cancel(by="eve"))

    async def run() -> None:
        nonlocal running
        while await real_store.store.run_bulk(bulk.id, limit=5):
            pass
        running = False

    await asyncio.gather(run(), *(meddle(store, random.Random(n)) for n, store in enumerate(others)))
    rows, told = await real_store.rows(), await outcomes(real_store, bulk)
    assert {"done", "changed"} <= set(told.values())
    for job_id, outcome in told.items():
        ours = [n for n, entry in enumerate(rows[job_id].history) if entry.get("reason") == bulk.note]
        assert ours == ([len(listed[job_id].history)] if outcome == "done" else [])


ACTS = ("requeue", "cancel", "delete", "update", "claim", "insert", "settle")


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(3, 23))])
async def test_whatever_others_do_meanwhile(real_store: Harness, seed: int) -> None:
    """Other clients make random changes before and between batches. The action changes only jobs that are still as they
    were listed, and leaves the rest alone. Its counters agree with its items."""
    chance = random.Random(seed)
    action = chance.choice(sorted(VERBS))
    await real_store.insert(*[real_job(key=chance.choice([None, None, "a", "b"])) for _ in range(40)])
    await disturb(real_store, chance, 60)
    listed = await real_store.rows()
    bulk = await started(real_store, action)
    marks = {item.job_id: item.status for item in await real_store.store.bulk_items(bulk.id, limit=1000)}
    assert marks == {i: row.job.status for i, row in listed.items() if row.job.status in sources(action)}
    await disturb(real_store, chance, 15)
    done: set[str] = set()
    while (await client.get(real_store.store, bulk.id)).status == "running":
        before = await real_store.rows()
        await real_store.store.run_bulk(limit=chance.randint(1, 9))
        after = await real_store.rows()
        told = await outcomes(real_store, bulk)
        now = {job_id for job_id, outcome in told.items() if outcome == "done"} - done
        for job_id in now:  # these jobs were still as listed
            assert before[job_id].job.status is marks[job_id]
            assert before[job_id].job.events_count == listed[job_id].job.events_count
            assert job_id not in after or bulk.note in str(after[job_id].history[-1])
        for job_id in before.keys() - now:
            assert after[job_id] == before[job_id]
        done |= now
        await disturb(real_store, chance, 6)
    [ended] = await real_store.store.bulks([bulk.id])
    told = await outcomes(real_store, bulk)
    counted = {name: list(told.values()).count(name) for name in ("done", *SKIPS)}
    assert counted == {name: getattr(ended, name) for name in counted}
    assert None not in told.values()
    entries = [entry.job_id for entry in await real_store.audit() if entry.reason == bulk.note]
    assert sorted(map(str, entries)) == sorted(done)


async def disturb(store: Harness, chance: random.Random, acts: int) -> None:
    for _ in range(acts):
        rows = [row.job for row in (await store.rows()).values()]
        some = [one.id for one in chance.sample(rows, min(len(rows), 2))]
        match chance.choice(ACTS):
            case "requeue":
                await store.store.move(some, Requeue(by="eve"))
            case "cancel":
                await store.store.move(some, Cancel(by="eve"))
            case "delete" if len(rows) > 25:
                await store.store.move(some, Delete(by="eve"))
            case "update":
                await store.store.move(some, Update(by="eve", edit=Edit(priority=chance.randint(1, 200))))
            case "claim":
                await store.claim("w1", limit=2)
            case "settle":
                held = [one for one in rows if one.locked_by is not None and one.finished_at is None]
                outcome: Outcome = Completed() if chance.random() < 0.5 else Failed("never", final=True)
                await store.store.settle([settlement(one, outcome, ran=0.0) for one in held[:2]])
            case _:
                await store.insert(real_job(key=chance.choice([None, "a", "b"])))


# ── PostgreSQL only: other transactions ──


async def test_a_key_that_a_transaction_is_about_to_take_holds_up_nobody_else(
    real_postgres_store: PostgresHarness,
) -> None:
    jobs = [real_job(key=f"k{n}") for n in range(30)]
    await real_postgres_store.insert(*jobs)
    await real_postgres_store.store.move([one.id for one in jobs], Cancel(by="ann"))
    bulk = await started(real_postgres_store, "requeue")
    connection = await real_postgres_store.connection()
    async with connection.transaction():  # the application's transaction: it may stay open as long as it likes
        await connection.execute(
            "INSERT INTO _jobs (id, created, updated, run_at, timeout, priority, max_retries, ready, topic, status, "
            "key, payload) "
            "VALUES (gen_random_uuid(), now(), now(), now(), 60, 100, 3, true, 'mail', 'pending', 'k7', '{}')"
        )
        ended = await client.run_all(real_postgres_store.store, bulk.id)
    assert (ended.done, ended.locked) == (29, 1)
    assert [item.job_id for item in await real_postgres_store.store.bulk_items(bulk.id, outcome="locked")] == [
        jobs[7].id
    ]
