"""jobs.signal, jobs.wake, addresses of callbacks, and tasks that other programs run."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Struct

from rowlock import Jobs, Key, Signal, Status
from rowlock.access import settings
from rowlock.client.callbacks import Callback
from rowlock.core.job import Job
from rowlock.core.steps import StepState
from rowlock.errors import InvalidInput, InvalidState, JobNotFound, SignalRefused, WrongContext
from rowlock.signals import own_job
from rowlock.stores import open_store
from tests.waits import DECISION, mark, run_of, take, waiting

NOBODY = "0193fb1e-0000-7000-8000-000000000000"


class Decision(Struct):
    ok: bool
    note: str | None = None


decision = Signal("decision", Decision)


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[Jobs]:
    async with Jobs(url, by="ann") as jobs:
        yield jobs


async def enqueued(jobs: Jobs, **options: Any) -> str:
    return (await jobs.enqueue("order", {}, **options)).id


async def read(jobs: Jobs, job_id: str, **asked: Any) -> Any:
    """Return what the next run of the job gets for its wait: the data, or the state if there is no data."""
    store = await jobs._store()
    taken = await take(store, await run_of(store, job_id), **asked)
    return taken.state if taken.result is None else taken.result


# ── Signals ──


async def test_a_signal_resumes_a_job_that_waits_for_it(jobs: Jobs) -> None:
    job_id = await enqueued(jobs)
    await waiting(await jobs._store(), job_id, schema=decision.schema)
    job = await jobs.signal(job_id, decision, Decision(ok=True))
    assert (job.status, job.waits_for) == (Status.PENDING, None)
    assert await read(jobs, job_id) == '{"ok":true,"note":null}'
    [line] = await jobs.audit.list(job_id=job_id)
    assert (line.by, line.action, line.data["signal"]) == ("ann", "signal", "decision")


async def test_a_signal_is_kept_for_a_job_that_has_not_asked_yet(jobs: Jobs) -> None:
    job_id = await enqueued(jobs)
    assert (await jobs.signal(job_id, "decision", {"ok": False})).status is Status.PENDING
    await jobs.signal(job_id, "other", 7)
    await jobs.signal(job_id, "decision", {"ok": True})
    assert await read(jobs, job_id) == '{"ok":false}'


async def test_a_signal_rings_the_bell(jobs: Jobs, url: str) -> None:
    """The doorbell wakes a worker in another process at once."""
    job_id = await enqueued(jobs)
    await waiting(await jobs._store(), job_id)
    other = open_store(url)
    await other.open()
    try:
        while await other.wait_for_work(0.1):
            pass
        await jobs.signal(job_id, "decision", None)
        assert await other.wait_for_work(30.0)
    finally:
        await other.close()


async def test_the_data_must_fit_the_signals_own_type(jobs: Jobs) -> None:
    job_id = await enqueued(jobs)
    await waiting(await jobs._store(), job_id)
    with pytest.raises(InvalidInput) as refused:
        await jobs.signal(job_id, decision, Decision(ok="yes"))  # type: ignore[arg-type]
    assert refused.value.field == "data.ok"
    assert (await jobs.get(job_id)).status is Status.WAITING


@pytest.mark.parametrize(
    ("data", "field"), [({"ok": "yes"}, "data.ok"), ({}, "data.ok"), ("yes", "data"), (None, "data"), ([], "data")]
)
async def test_the_data_must_fit_what_the_job_waits_for(jobs: Jobs, data: Any, field: str) -> None:
    job_id = await enqueued(jobs)
    await waiting(await jobs._store(), job_id, schema=DECISION)
    with pytest.raises(InvalidInput) as refused:
        await jobs.signal(job_id, "decision", data)
    assert (refused.value.field, refused.value.code) == (field, "bad_data")
    assert (await jobs.get(job_id)).status is Status.WAITING
    assert (await jobs.signal(job_id, "decision", {"ok": True})).status is Status.PENDING


async def test_a_signal_that_the_job_does_not_wait_for_is_not_checked(jobs: Jobs) -> None:
    job_id = await enqueued(jobs)
    await waiting(await jobs._store(), job_id, schema=DECISION)
    assert (await jobs.signal(job_id, "other", "anything")).status is Status.WAITING


async def test_an_id_counts_once(jobs: Jobs) -> None:
    job_id, other = await enqueued(jobs), await enqueued(jobs)
    await jobs.signal(job_id, "paid", 1, id="charge-1")
    with pytest.raises(SignalRefused) as refused:
        await jobs.signal(job_id, "paid", 2, id="charge-1")
    assert (refused.value.why, refused.value.job_id) == ("known", job_id)
    await jobs.signal(job_id, "paid", 3, id="charge-2")
    await jobs.signal(other, "paid", 4, id="charge-1")  # another job may have a signal with the same id


@pytest.mark.parametrize("bad", ["", "@callback:decision#1", "x" * 513])
async def test_ids_that_are_no_ids(jobs: Jobs, bad: str) -> None:
    """An id that begins with @ would answer a callback."""
    job_id = await enqueued(jobs)
    with pytest.raises(InvalidInput) as refused:
        await jobs.signal(job_id, "decision", 1, id=bad)
    assert refused.value.field == "id"


async def test_a_job_that_has_ended_takes_none(jobs: Jobs) -> None:
    job_id = await enqueued(jobs)
    await jobs.cancel(job_id)
    with pytest.raises(InvalidState) as refused:
        await jobs.signal(job_id, "decision", 1)
    assert (refused.value.verb, refused.value.status) == ("signal", "cancelled")
    with pytest.raises(JobNotFound):
        await jobs.signal(NOBODY, "decision", 1)
    with pytest.raises(InvalidInput):
        await jobs.signal("order-7", "decision", 1)


@pytest.mark.parametrize("name", ["", "two words", "a\n", "x" * 129])
async def test_names_that_are_no_names(jobs: Jobs, name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await jobs.signal(NOBODY, name, 1)
    assert refused.value.field == "signal"


async def test_a_handler_can_not_signal_its_own_job(jobs: Jobs) -> None:
    job_id, other = await enqueued(jobs), await enqueued(jobs)

    async def handler() -> None:
        own_job.set(job_id)
        await jobs.signal(other, "decision", 1)
        with pytest.raises(WrongContext, match="can't signal itself"):
            await jobs.signal(job_id, "decision", 1)

    await asyncio.create_task(handler())
    await jobs.signal(job_id, "decision", 1)  # allowed outside of the handler


# ── By key ──


async def test_a_signal_finds_the_job_by_its_key(jobs: Jobs) -> None:
    plain = await enqueued(jobs, key="order-7")
    scoped = await enqueued(jobs, key="order-7", scope="shop", scope_id="a")
    await enqueued(jobs, key="order-8")
    assert (await jobs.signal(Key("order", "order-7"), "paid", 1)).id == plain
    assert (await jobs.signal(Key("order", "order-7", "shop", "a"), "paid", 1)).id == scoped
    with pytest.raises(JobNotFound, match="order-7"):
        await jobs.signal(Key("order", "order-7", "shop", "b"), "paid", 1)
    with pytest.raises(JobNotFound):
        await jobs.signal(Key("other", "order-7"), "paid", 1)


async def test_a_key_names_a_live_job(jobs: Jobs) -> None:
    old = await enqueued(jobs, key="order-7")
    await jobs.cancel(old)
    with pytest.raises(JobNotFound):
        await jobs.signal(Key("order", "order-7"), "paid", 1)
    new = await enqueued(jobs, key="order-7")
    assert (await jobs.signal(Key("order", "order-7"), "paid", 1)).id == new


async def test_in_a_line_the_first_job_gets_it(jobs: Jobs) -> None:
    first, second, _ = [await enqueued(jobs, key="order-7", if_live="queue") for _ in range(3)]
    other = await enqueued(jobs, key="order-7", if_live="queue", scope_id="b")
    assert (await jobs.signal(Key("order", "order-7"), "paid", 1)).id == first
    await waiting(await jobs._store(), first)
    assert (await jobs.signal(Key("order", "order-7"), "paid", 1)).id == first
    await jobs.cancel(first)
    assert (await jobs.signal(Key("order", "order-7"), "paid", 1)).id == second
    assert (await jobs.signal(Key("order", "order-7", scope_id="b"), "paid", 1)).id == other


@pytest.mark.parametrize("bad", [("", "k"), ("a b", "k"), ("order", ""), ("order", "x" * 513)])
def test_keys_that_are_no_keys(bad: tuple[str, str]) -> None:
    with pytest.raises(InvalidInput):
        Key(*bad)


# ── Wake ──


async def test_wake_ends_a_sleep(jobs: Jobs) -> None:
    job_id = await enqueued(jobs)
    await waiting(await jobs._store(), job_id, signal=None, seconds=3600)
    job = await jobs.wake(job_id, reason="no need to wait", by="bob")
    assert job.status is Status.PENDING
    assert await read(jobs, job_id, signal=None, seconds=3600) == "null"
    [line] = await jobs.audit.list(job_id=job_id)
    assert (line.by, line.action, line.reason) == ("bob", "wake", "no need to wait")


async def test_wake_ends_the_time_of_a_wait(jobs: Jobs) -> None:
    job_id = await enqueued(jobs)
    await waiting(await jobs._store(), job_id)
    await jobs.wake(job_id)
    assert await read(jobs, job_id) is StepState.FAILED


async def test_only_a_job_that_waits_can_be_woken(jobs: Jobs) -> None:
    job_id = await enqueued(jobs)
    with pytest.raises(InvalidState) as refused:
        await jobs.wake(job_id)
    assert refused.value.verb == "wake"
    with pytest.raises(JobNotFound):
        await jobs.wake(NOBODY)


async def test_the_sync_twins(jobs: Jobs) -> None:
    job_id = await enqueued(jobs, key="order-7")
    store = await jobs._store()
    await waiting(store, job_id)

    def send() -> Job:
        return jobs.sync.signal(Key("order", "order-7"), decision, Decision(ok=True))

    assert (await asyncio.to_thread(send)).status is Status.PENDING
    run = await run_of(store, job_id)
    await take(store, run)
    sleeper = await enqueued(jobs)
    await waiting(store, sleeper, signal=None, seconds=3600)
    assert (await asyncio.to_thread(jobs.sync.wake, sleeper)).status is Status.PENDING


# ── What is shown ──


async def test_steps_show_waits_readably(jobs: Jobs) -> None:
    job_id = await enqueued(jobs)
    store = await jobs._store()
    await waiting(store, job_id, schema=DECISION, seconds=60.0, steps=["ask"], callback=120.0)
    ask, callback, wait = await jobs.steps(job_id)
    assert (ask.kind, ask.name, ask.label, ask.result) == ("step", "ask", "ask", {"done": "ask"})
    assert (callback.kind, callback.name, callback.label) == ("callback", "decision", "@callback:decision")
    assert (callback.timeout, callback.result) == (120.0, None)
    assert (wait.kind, wait.name, wait.label, wait.state) == ("signal", "decision", "@signal:decision", "running")
    assert (wait.timeout, wait.schema, wait.result) == (60.0, DECISION, None)
    assert wait.deadline is not None
    assert wait.started_at is not None
    assert (wait.deadline - wait.started_at).total_seconds() == 60.0
    await jobs.signal(job_id, "decision", {"ok": True})
    run = await run_of(store, job_id)
    await take(store, run, seconds=60.0)
    await mark(store, run, "book", 11, 1)
    found = {step.label: step for step in await jobs.steps(job_id)}
    assert (found["@signal:decision"].state, found["@signal:decision"].result) == ("succeeded", {"ok": True})
    assert found["@signal:decision"].schema is None


async def test_an_open_wait_of_a_job_that_is_cancelled(jobs: Jobs) -> None:
    job_id = await enqueued(jobs)
    await waiting(await jobs._store(), job_id)
    await jobs.cancel(job_id)
    [wait] = await jobs.steps(job_id)
    assert (wait.state, wait.is_open_wait) == ("cancelled", False)


async def test_why_says_what_a_job_waits_for(jobs: Jobs) -> None:
    store = await jobs._store()
    for_ever, timed, sleeper = [await enqueued(jobs) for _ in range(3)]
    runs: dict[str, Any] = {for_ever: {}, timed: {"seconds": 60.0}, sleeper: {"signal": None, "seconds": 60.0}}
    for job_id, asked in runs.items():
        await waiting(store, job_id, **asked)
    assert (await jobs.why(for_ever)).answer == "It waits for the signal decision without end, and holds no slot."
    assert (await jobs.why(timed)).answer.startswith("It waits for the signal decision until 2")
    why = await jobs.why(sleeper)
    assert (why.code, why.answer[:16]) == ("sleeping", "It sleeps until ")


async def test_why_says_what_a_cancel_waits_for(jobs: Jobs) -> None:
    store = await jobs._store()
    undone, outside = await enqueued(jobs), await enqueued(jobs)
    await waiting(store, undone, steps=["book"])
    await waiting(store, outside, callback=True)
    assert (await jobs.cancel(undone)).status is Status.CANCEL_REQUESTED
    why = await jobs.why(undone)
    assert why.code == "cancel_undo"
    assert any("No worker is running" in text for text in why.details)
    assert (await jobs.cancel(outside)).status is Status.CANCEL_REQUESTED
    why = await jobs.why(outside)
    assert (why.code, "callback for the signal decision" in why.answer) == ("cancel_outside", True)


# ── Addresses ──


async def test_an_address_is_the_same_in_every_process(url: str, jobs: Jobs) -> None:
    async with Jobs(url, public_url="https://jobs.example.com/queue/") as one:
        first = await one._callbacks.address(NOBODY, "decision", 1)
        assert first.startswith("https://jobs.example.com/queue/api/callbacks/")
        async with Jobs(url, public_url="https://jobs.example.com/queue") as other:
            assert await other._callbacks.address(NOBODY, "decision", 1) == first
            token = first.rpartition("/")[2]
            assert await other._callbacks.read(token) == Callback(NOBODY, "decision", 1)
        assert NOBODY not in first
        assert "decision" not in first
        others = [(NOBODY, "decision", 2), (NOBODY, "other", 1), (NOBODY.replace("7", "4"), "decision", 1)]
        assert first not in [await one._callbacks.address(*name) for name in others]


async def test_two_databases_have_two_keys(tmp_path_factory: pytest.TempPathFactory) -> None:
    tokens = set()
    for n in range(2):
        async with Jobs(f"sqlite:///{tmp_path_factory.mktemp('key')}/{n}.db") as jobs:
            tokens.add(await jobs._callbacks.token(Callback(NOBODY, "decision", 1)))
    assert len(tokens) == 2


async def test_processes_that_make_the_key_at_the_same_time_use_one(url: str) -> None:
    several = [Jobs(url) for _ in range(4)]
    try:
        tokens = await asyncio.gather(*(one._callbacks.token(Callback(NOBODY, "a", 1)) for one in several))
    finally:
        for one in several:
            await one.close()
    assert len(set(tokens)) == 1


async def test_every_change_of_a_token_is_noticed(jobs: Jobs) -> None:
    token = await jobs._callbacks.token(Callback(NOBODY, "decision", 1))
    changed = [
        token[:n] + other + token[n + 1 :] for n in range(len(token)) for other in ("A", "B", "_") if other != token[n]
    ]
    for bad in [*changed, "", token[:-1], f"{token}A", f"{token}=", f" {token}", "é" * 40, "A" * 5000, token[:20]]:
        assert await jobs._callbacks.read(bad) is None, bad


async def test_without_a_key_no_token_is_good(jobs: Jobs) -> None:
    assert await jobs._callbacks.read("A" * 80) is None


async def test_an_address_needs_a_public_url(jobs: Jobs) -> None:
    with pytest.raises(InvalidInput, match="ROWLOCK_PUBLIC_URL") as refused:
        await jobs._callbacks.address(NOBODY, "decision", 1)
    assert refused.value.field == "public_url"
    await settings.change(await jobs._store(), {"public_url": "https://stored.example.com/"}, by="ann")
    address = await jobs._callbacks.address(NOBODY, "decision", 1)
    assert address.startswith("https://stored.example.com/api/callbacks/")


@pytest.mark.parametrize(
    "bad", ["jobs.example.com", "ftp://a", "https://", "https://a?x=1", "https://a/#b", "https://u@a"]
)
def test_public_urls_that_are_none(bad: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Jobs("sqlite://", public_url=bad)
    assert (refused.value.field, refused.value.code) == ("public_url", "bad_url")


# ── Tasks that other programs run ──


async def test_an_external_task_is_enqueued_here_and_run_elsewhere(jobs: Jobs) -> None:
    @jobs.task("gpu.render", external=True, timeout=60)
    async def render(scene: str) -> Decision:
        raise NotImplementedError

    made = await render.enqueue(scene="a")
    with pytest.raises(InvalidInput):
        await render.enqueue(scene=1)  # type: ignore[arg-type]
    with pytest.raises(WrongContext, match=r"render\.enqueue"):
        await render("a")
    await jobs.templates.publish()
    stored = await jobs.templates.get("gpu.render")
    assert (stored.template.external, stored.template.timeout) == (True, 60.0)
    why = await jobs.why(made.id)
    assert (why.code, "external topic" in why.answer) == ("no_worker", True)


async def test_a_worker_here_does_not_claim_it(jobs: Jobs) -> None:
    ran = asyncio.Event()

    @jobs.task("gpu.render", external=True)
    async def render(scene: str) -> None: ...

    @jobs.task
    async def own() -> None:
        ran.set()

    made = await render.enqueue(scene="a")
    await own.enqueue()
    await jobs.start(poll=0.05)
    try:
        async with asyncio.timeout(60):
            await ran.wait()
        [worker] = await jobs.workers.list()
        assert worker.topics == ("own",)
        assert (await jobs.get(made.id)).status is Status.PENDING
    finally:
        await jobs.stop()


async def test_a_worker_with_nothing_but_external_tasks_says_so(jobs: Jobs) -> None:
    @jobs.task("gpu.render", external=True)
    async def render(scene: str) -> None: ...

    with pytest.raises(InvalidInput, match=r"gpu\.render is an external topic"):
        await jobs.start()

    @jobs.task
    async def own() -> None: ...

    with pytest.raises(InvalidInput, match=r"gpu\.render is an external topic"):
        await jobs.start(topics=["gpu.render"])


async def test_the_result_of_an_external_task_has_its_type(jobs: Jobs) -> None:
    from rowlock.core.lifecycle import Completed
    from tests.stores.harness import settlement

    @jobs.task("gpu.render", external=True)
    async def render(scene: str) -> Decision:
        raise NotImplementedError

    made = await render.enqueue(scene="a")
    store = await jobs._store()
    await store.settle([settlement(await run_of(store, made.id), Completed({"ok": True}), ran=0.0)])
    assert await jobs.result(made) == Decision(ok=True)


@pytest.mark.parametrize("option", [{"process": True}, {"runs": [1]}, {"external": 1}])
def test_options_that_an_external_task_can_not_have(option: dict[str, Any]) -> None:
    jobs = Jobs("sqlite:///nowhere.db")

    async def render(scene: str) -> None: ...

    with pytest.raises(InvalidInput) as refused:
        jobs.register("gpu.render", render, **{"external": True, **option})
    assert refused.value.field == next(iter(option))
