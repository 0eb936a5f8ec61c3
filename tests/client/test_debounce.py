"""Debounce and throttle in application code: as options, as the policy of a task, by name, in transactions."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from rowlock import Context, Cron, Debounce, Jobs
from rowlock.client.check import compare
from rowlock.core.debounce import Window
from rowlock.core.job import Job, Status
from rowlock.errors import IdTaken, InvalidInput, OnceTaken
from rowlock.tasks import Draft
from tests.client.conn_kinds import Kind
from tests.closing import connected
from tests.databases import KINDS, Databases
from tests.stores.test_debounce import debounced, throttled
from tests.waiting import until

OWN = "0193fb1e-0000-7000-8000-000000000007"


@pytest.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[str]:
    async with databases.at(request.param, tmp_path) as url:
        yield url


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[Jobs]:
    async with Jobs(url) as jobs:
        yield jobs
        await jobs.stop(grace=0)


@pytest.fixture
async def sqlite_jobs(tmp_path: Path) -> AsyncIterator[Jobs]:
    async with Jobs(f"sqlite:///{tmp_path / 'jobs.db'}") as jobs:
        yield jobs


async def test_a_thousand_edits_of_a_hundred_documents(jobs: Jobs) -> None:
    """While a worker runs, every document is processed after its last edit, and at most once in a window."""
    seconds = 0.2
    seen: defaultdict[int, list[tuple[int, Job]]] = defaultdict(list)

    @jobs.task(key=["doc"], debounce=Debounce(seconds, at_most=3 * seconds))
    async def reindex(ctx: Context, doc: int, edit: int) -> None:
        seen[doc].append((edit, ctx.job))
        await asyncio.sleep(random.uniform(0, 0.02))

    await jobs.start(concurrency=20)
    edits = [doc for doc in range(100) for _ in range(10)]
    random.shuffle(edits)
    last = {doc: n for n, doc in enumerate(edits)}
    for at in range(0, 1000, 20):
        await jobs.enqueue_many([reindex.draft(doc, n) for n, doc in enumerate(edits[at : at + 20], at)])
    async with asyncio.timeout(60):
        await until(lambda: {doc: found[-1][0] for doc, found in seen.items()} == last)
    for found in seen.values():
        numbers = [edit for edit, _ in found]
        assert numbers == sorted(set(numbers))
        claimed = [job.claimed_at for _, job in found]
        for one, other in pairwise(claimed):
            assert one is not None
            assert other is not None
            assert other - one >= timedelta(seconds=seconds)


async def test_options_of_a_call(jobs: Jobs) -> None:
    @jobs.task
    async def reindex(doc: int, text: str = "") -> None: ...

    using = reindex.using(key="doc-7", debounce=Debounce(timedelta(seconds=30), at_most=300))
    made = await using.enqueue(7, "a")
    assert made.run_at - made.created == timedelta(seconds=30)
    told = await using.enqueue(7, "b")
    assert (told.id, told.existing) == (made.id, True)
    [told] = await jobs.enqueue_many([using.draft(7, "c")])
    assert (told.id, told.existing) == (made.id, True)
    told = await jobs.enqueue("reindex", {"doc": 7, "text": "d"}, key="doc-7", debounce=Debounce(5))
    assert (told.id, told.existing) == (made.id, True)
    mapping = {"topic": "reindex", "payload": {"doc": 7}, "key": "doc-7", "debounce": {"seconds": 5, "at_most": 9.5}}
    [told] = await jobs.enqueue_many([mapping])
    assert told.id == made.id
    assert (await jobs.get(made.id)).payload == {"doc": 7}
    assert [event.event for event in await jobs.events(made.id)].count("debounced") == 4
    throttle = reindex.using(key="user-7", throttle=timedelta(hours=1))
    first = await throttle.enqueue(1)
    assert not first.existing
    second = await throttle.enqueue(2)
    assert (second.id, second.existing) == (first.id, True)
    assert (await jobs.get(first.id)).payload == {"doc": 1}


async def test_the_policy_of_a_task_counts_by_name_too(jobs: Jobs, url: str) -> None:
    @jobs.task("doc.index", key=["doc"], debounce=Debounce(30, at_most=300))
    async def index(doc: int, n: int = 0) -> None: ...

    @jobs.task("mail.digest", throttle=3600)
    async def digest(user: int) -> None: ...

    await jobs.templates.publish()
    async with Jobs(url) as elsewhere:
        stored = {one.template.topic: one.template for one in await elsewhere.templates.list()}
        assert stored["doc.index"].debounce == Window(30.0, 300.0)
        assert stored["mail.digest"].throttle == 3600.0
        made = await index.enqueue(7)
        told = await elsewhere.enqueue("doc.index", {"doc": 7, "n": 2})
        assert (told.id, told.existing) == (made.id, True)
        [told, plain] = await elsewhere.enqueue_many([("doc.index", {"doc": 7, "n": 3}), ("doc.index", {"doc": 8})])
        assert (told.id, plain.existing) == (made.id, False)
        with pytest.raises(InvalidInput) as refused:
            await elsewhere.enqueue("mail.digest", {"user": 7})
        assert (refused.value.field, refused.value.code) == ("throttle", "needs_key")
        first = await elsewhere.enqueue("mail.digest", {"user": 7}, key="7")
        assert (await digest.using(key="7").enqueue(8)).id == first.id
        assert (await digest.using(key="7", throttle=1e-6).enqueue(8)).existing  # the first job is live
        other = await index.using(debounce=Debounce(1)).enqueue(9)
        assert other.run_at - other.created == timedelta(seconds=1)


WRONG_OPTIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no key": ({"debounce": Debounce(1)}, "debounce", "needs_key"),
    "no key for throttle": ({"throttle": 1}, "throttle", "needs_key"),
    "negative": ({"key": "k", "debounce": Debounce(-1)}, "debounce.seconds", "out_of_range"),
    "zero": ({"key": "k", "debounce": Debounce(0)}, "debounce.seconds", "out_of_range"),
    "nan": ({"key": "k", "debounce": Debounce(float("nan"))}, "debounce.seconds", "out_of_range"),
    "infinite": ({"key": "k", "debounce": Debounce(float("inf"))}, "debounce.seconds", "out_of_range"),
    "enormous": ({"key": "k", "debounce": Debounce(366 * 86_400 + 1)}, "debounce.seconds", "out_of_range"),
    "bool": ({"key": "k", "debounce": Debounce(True)}, "debounce.seconds", "not_a_number"),
    "text": ({"key": "k", "debounce": Debounce("30")}, "debounce.seconds", "not_a_number"),  # type: ignore[arg-type]
    "at_most is less": ({"key": "k", "debounce": Debounce(30, at_most=29)}, "debounce.at_most", "out_of_range"),
    "at_most is nan": ({"key": "k", "debounce": Debounce(30, float("nan"))}, "debounce.at_most", "out_of_range"),
    "at_most is a bool": ({"key": "k", "debounce": Debounce(1, at_most=True)}, "debounce.at_most", "not_a_number"),
    "a number": ({"key": "k", "debounce": 30}, "debounce", "bad_value"),
    "unknown": ({"key": "k", "debounce": {"seconds": 1, "most": 2}}, "debounce.most", "unknown_field"),
    "missing": ({"key": "k", "debounce": {"at_most": 2}}, "debounce.seconds", "missing"),
    **{
        f"throttle {value!r}": ({"key": "k", "throttle": value}, "throttle", code)
        for value, code in [
            (-1, "out_of_range"), (0, "out_of_range"), (float("nan"), "out_of_range"), (1e300, "out_of_range"),
            (float("inf"), "out_of_range"), (True, "not_a_number"), ("1h", "not_a_number"),
        ]
    },
    "both": ({"key": "k", "debounce": Debounce(1), "throttle": 1}, "throttle", "with_debounce"),
    "queue": ({"key": "k", "debounce": Debounce(1), "if_live": "queue"}, "if_live", "with_debounce"),
    "replace": ({"key": "k", "debounce": Debounce(1), "if_live": "replace"}, "if_live", "with_debounce"),
    "delay": ({"key": "k", "debounce": Debounce(1), "delay": 5}, "delay", "with_debounce"),
    "once": ({"topic": "once", "key": "k", "debounce": Debounce(1)}, "debounce", "with_once"),
    "once and throttle": ({"topic": "once", "key": "k", "throttle": 1}, "throttle", "with_once"),
    "queue of the template": ({"topic": "queue", "key": "k", "debounce": Debounce(1)}, "if_live", "with_debounce"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_OPTIONS)
async def test_wrong_options(sqlite_jobs: Jobs, wrong: str) -> None:
    given, field, code = WRONG_OPTIONS[wrong]
    sqlite_jobs.register("once", lambda: None, once=True)
    sqlite_jobs.register("queue", lambda: None, if_live="queue")
    topic, options = given.get("topic", "mail"), {name: value for name, value in given.items() if name != "topic"}
    with pytest.raises(InvalidInput) as refused:
        await sqlite_jobs.enqueue(topic, {}, **options)
    assert (refused.value.field, refused.value.code) == (field, code)
    assert (await sqlite_jobs.list()).items == []


WRONG_POLICIES: dict[str, tuple[dict[str, Any], str, str]] = {
    "both": ({"debounce": Debounce(1), "throttle": 1}, "throttle", "with_debounce"),
    "if_live": ({"debounce": Debounce(1), "if_live": "reject"}, "if_live", "with_debounce"),
    "once": ({"throttle": 1, "once": True}, "throttle", "with_once"),
    "value": ({"throttle": -1}, "throttle", "out_of_range"),
    "at_most": ({"debounce": Debounce(9, 1)}, "debounce.at_most", "out_of_range"),
    "schedule": ({"debounce": Debounce(1), "key": [], "schedule": Cron("0 9 * * *")}, "schedule", "with_debounce"),
    "schedule of throttle": ({"throttle": 1, "key": [], "schedule": Cron("0 9 * * *")}, "schedule", "with_debounce"),
}


@pytest.mark.parametrize("wrong", WRONG_POLICIES)
async def test_wrong_policies(sqlite_jobs: Jobs, wrong: str) -> None:
    """A wrong policy is refused when the task is declared, or when its template is first needed."""
    policy, field, code = WRONG_POLICIES[wrong]

    async def declare() -> None:
        sqlite_jobs.register("mail", lambda: None, **policy)
        await sqlite_jobs.enqueue("mail", {}, key="k")

    with pytest.raises(InvalidInput) as refused:
        await declare()
    assert (refused.value.field, refused.value.code) == (field, code)


@pytest.mark.parametrize("policy", [{"debounce": Debounce(1)}, {"throttle": 1.0}])
async def test_flows_children_and_schedules_refuse_them(sqlite_jobs: Jobs, policy: Any) -> None:
    jobs = sqlite_jobs
    name = next(iter(policy))
    jobs.register("doc.index", lambda: None, key=[], **policy)
    flow = jobs.flow("f")
    flow.add(Draft("doc.index", {}, {}), name="index")
    with pytest.raises(InvalidInput) as refused:
        await flow.enqueue()
    assert (refused.value.field, refused.value.code) == (f"jobs[0].{name}", "in_flow")

    @jobs.task
    async def parent(ctx: Context) -> None:
        await ctx.gather([Draft("doc.index", {}, {})])

    made = await parent.using(max_retries=0).enqueue()
    await jobs.start()
    job = await jobs.wait(made.id, timeout=30)
    await jobs.stop(grace=0)
    assert f"jobs[0].{name}" in (job.last_error or "")
    with pytest.raises(InvalidInput) as refused:
        await jobs.schedules.put("s", ("doc.index", {}), Cron("0 9 * * *"))
    assert (refused.value.field, refused.value.code) == ("topic", "with_debounce")


async def test_rowlock_check_finds_a_schedule(sqlite_jobs: Jobs) -> None:
    """The check finds a schedule that was put before its task got a debounce or throttle window."""
    await sqlite_jobs.schedules.put("s", ("doc.index", {}), Cron("0 9 * * *"))
    sqlite_jobs.register("doc.index", lambda: None, key=[], throttle=60)
    found = await compare(await sqlite_jobs._store(), sqlite_jobs.lanes(), limit=100)
    assert any("debounce or throttle" in misfit.text for misfit in found.findings)


async def test_ids_of_the_caller(jobs: Jobs) -> None:
    """A repeated enqueue finds its job, even if a later enqueue has replaced the payload."""
    window = Debounce(60)
    made = await jobs.enqueue("mail", {"n": 1}, key="k", id=OWN, debounce=window)
    assert made.id == OWN
    await jobs.enqueue("mail", {"n": 2}, key="k", debounce=window)
    told = await jobs.enqueue("mail", {"n": 1}, key="k", id=OWN, debounce=window)
    assert (told.id, told.existing) == (OWN, True)
    assert (await jobs.get(OWN)).payload == {"n": 2}
    with pytest.raises(IdTaken):
        await jobs.enqueue("other", {"n": 1}, key="k", id=OWN, debounce=window)
    with pytest.raises(IdTaken, match="another key or scope"):
        await jobs.enqueue("mail", {"n": 1}, key="l", id=OWN, debounce=window)
    with pytest.raises(IdTaken, match="another key or scope"):
        await jobs.enqueue("mail", {"n": 1}, key="k", scope_id="7", id=OWN, debounce=window)


async def test_without_an_event_loop(tmp_path: Path) -> None:
    def work() -> None:
        jobs = Jobs(f"sqlite:///{tmp_path / 'jobs.db'}")
        jobs.sync.open()

        @jobs.task
        def reindex(doc: int) -> None: ...

        using = reindex.sync.using(key="a", debounce=Debounce(30, at_most=300))
        assert using.enqueue(1).id == using.enqueue(2).id
        assert (
            jobs.sync.enqueue("mail", {}, key="a", throttle=60).id
            == jobs.sync.enqueue("mail", {}, key="a", throttle=60).id
        )
        jobs.sync.close()

    await asyncio.to_thread(work)


async def test_once_takes_back_what_was_throttled_with_it(jobs: Jobs) -> None:
    """A batch is enqueued as a whole or not at all."""
    jobs.register("welcome", lambda: None, key=[], once=True)
    await jobs.enqueue("welcome")
    batch: list[dict[str, Any]] = [
        {"topic": "mail", "key": "k", "throttle": 60},
        {"topic": "doc", "key": "k", "debounce": {"seconds": 9}},
    ]
    with pytest.raises(OnceTaken):
        await jobs.enqueue_many([*batch, ("welcome", {})])
    assert [one.topic for one in (await jobs.list()).items] == ["welcome"]
    assert [one.existing for one in await jobs.enqueue_many(batch)] == [False, False]


class Oops(Exception):
    pass


@pytest.mark.sampled(4)  # kinds of connections
async def test_they_commit_and_roll_back_with_the_data(kind: Kind) -> None:
    first = debounced(n=1)
    with suppress(Oops):
        async with kind.transaction():
            await kind.insert(debounced(n=0), throttled())
            await kind.order(1)
            raise Oops
    assert await kind.place.committed() == ([], [])
    mail = throttled()
    async with kind.transaction():
        await kind.order(1)
        [made, sent] = await kind.insert(first, mail)
    assert (made.id, made.existing, sent.id, sent.existing) == (first.id, False, mail.id, False)
    with suppress(Oops):
        async with kind.transaction():
            [told] = await kind.insert(debounced(n=2))
            assert (told.id, told.existing) == (first.id, True)
            raise Oops
    assert (await kind.place.store.read([first.id], Job))[first.id].payload == {"n": 1}
    async with kind.transaction():
        [told, again, new] = await kind.insert(debounced(n=3, tags=("é",)), throttled(), debounced("other"))
    assert (told.id, told.existing) == (first.id, True)
    assert (again.id, again.existing, again.status) == (mail.id, True, Status.PENDING)
    assert not new.existing
    job = (await kind.place.store.read([first.id], Job))[first.id]
    assert (job.payload, job.tags) == ({"n": 3}, ("é",))


@pytest.mark.parametrize("policy", [{"debounce": Debounce(1)}, {"throttle": 1.0}])
async def test_the_sql_function_refuses_them(databases: Databases, tmp_path: Path, policy: Any) -> None:
    """The SQL function can't apply debounce and throttle windows."""
    async with databases.at("postgres", tmp_path) as url, Jobs(url) as jobs, connected(url) as connection:
        jobs.register("doc.index", lambda: None, **policy)
        await jobs.templates.publish()
        with pytest.raises(asyncpg.InvalidParameterValueError, match="a window") as refused:
            await connection.fetchval("SELECT enqueue_job('doc.index', '{}')")
        assert refused.value.detail == "needs_library"
