"""Spans of enqueues and runs, collected by the SDK's own exporter, on each store in turn."""

import asyncio
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, format_span_id, format_trace_id

from rowlock import Context, Filter, Final, Jobs, Snooze, otel
from rowlock.access import identity
from rowlock.context import Interruption
from rowlock.errors import InvalidInput
from tests.http.harness import Who, by_hand
from tests.runtime.running import nothing
from tests.waiting import ended, until

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # the traceparent of another program


class Spans:
    """The exported spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def of_kind(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.kind is kind]

    async def runs(self, count: int = 1) -> list[ReadableSpan]:
        """Wait until there are so many spans of runs. Return them."""
        await until(lambda: len(self.of_kind(SpanKind.CONSUMER)) >= count)
        return self.of_kind(SpanKind.CONSUMER)

    @property
    def sends(self) -> list[ReadableSpan]:
        return self.of_kind(SpanKind.PRODUCER)

    def of_the_application(self) -> AbstractContextManager[object]:
        return self.provider.get_tracer("test").start_as_current_span("request")


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    yield spans
    spans.provider.shutdown()


@pytest.fixture
async def jobs(url: str, spans: Spans) -> AsyncIterator[Jobs]:
    async with Jobs(url) as jobs:
        otel.instrument(jobs, tracer_provider=spans.provider)
        yield jobs
        await jobs.stop(grace=0)


def traceparent(span: ReadableSpan) -> str:
    assert span.context
    return as_text(span.context)


def as_text(context: SpanContext) -> str:
    flags = f"{context.trace_flags:02x}"  # they differ between versions of the SDK
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{flags}"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else as_text(span.parent)


def assert_linked(run: ReadableSpan, send: ReadableSpan) -> None:
    """The run's span is linked to the enqueue's span, and is not its child."""
    assert run.context
    assert send.context
    assert run.parent is None
    assert run.context.trace_id != send.context.trace_id
    [link] = run.links
    assert (link.context.trace_id, link.context.span_id) == (send.context.trace_id, send.context.span_id)


# ── Enqueue and run ──


async def test_a_run_is_linked_to_the_span_of_its_enqueue(jobs: Jobs, spans: Spans) -> None:
    @jobs.task
    async def add(a: int, b: int) -> int:
        return a + b

    await jobs.start()
    made = await add.enqueue(1, 2)
    assert (await ended(jobs, made.id)).result == 3
    [run], [send] = await spans.runs(), spans.sends
    assert_linked(run, send)
    job = await jobs.get(made.id)
    assert job.trace == traceparent(send)
    assert (send.name, run.name) == ("enqueue add", "run add")
    both = {
        "messaging.system": "rowlock",
        "messaging.destination.name": "add",
        "messaging.message.id": made.id,
        "rowlock.topic": "add",
        "rowlock.job_id": made.id,
    }
    sent = {"messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
    assert attributes(send) == both | sent
    assert attributes(run) == both | {
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "rowlock.version": 1,
        "rowlock.retries": 0,
        "rowlock.worker": (await jobs.workers.list())[0].name,
        "rowlock.outcome": "completed",
    }
    assert run.status.status_code is send.status.status_code is StatusCode.UNSET


async def test_a_thread_and_sync_enqueue_are_traced_as_well(jobs: Jobs, spans: Spans) -> None:
    @jobs.task
    def add(a: int, b: int) -> int:
        assert trace.get_current_span().get_span_context().is_valid
        return a + b

    def enqueue() -> str:
        with spans.of_the_application():
            return add.sync.enqueue(1, 2).id

    await jobs.start()
    job_id = await asyncio.to_thread(enqueue)
    assert (await ended(jobs, job_id)).result == 3
    [run], [send] = await spans.runs(), spans.sends
    assert_linked(run, send)
    [request] = spans.of_kind(SpanKind.INTERNAL)
    assert parent_of(send) == traceparent(request)  # the caller's context reached the portal's thread


async def test_every_run_has_a_span_and_all_are_linked_to_the_enqueue(jobs: Jobs, spans: Spans) -> None:
    @jobs.task
    async def again(ctx: Context) -> None:
        if ctx.job.version < 3:
            raise Snooze(0)

    await jobs.start(poll=0.05)
    made = await again.enqueue()
    await ended(jobs, made.id)
    found, [send] = await spans.runs(3), spans.sends
    for run in found:
        assert_linked(run, send)
    told = [(attributes(run)["rowlock.version"], attributes(run)["rowlock.outcome"]) for run in found]
    assert told == [(1, "snoozed"), (2, "snoozed"), (3, "completed")]
    assert {run.status.status_code for run in found} == {StatusCode.UNSET}


async def test_runs_that_follow_each_other_in_one_task_have_spans_of_their_own(jobs: Jobs, spans: Spans) -> None:
    task = jobs.register("nothing", nothing)
    await jobs.enqueue_many([task.draft() for _ in range(50)])
    await jobs.start()
    found, [send] = await spans.runs(50), spans.sends
    assert len({traceparent(run) for run in found}) == 50
    for run in found:
        assert_linked(run, send)


async def test_a_worker_that_was_started_in_a_span_leaves_its_runs_out_of_it(jobs: Jobs, spans: Spans) -> None:
    task = jobs.register("nothing", nothing)
    with spans.of_the_application():
        await jobs.start()
    await task.enqueue()
    [run], [send] = await spans.runs(), spans.sends
    assert_linked(run, send)
    assert send.parent is None


async def test_what_a_handler_enqueues_is_a_child_of_its_run(jobs: Jobs, spans: Spans) -> None:
    @jobs.task
    async def first(ctx: Context) -> None:
        await ctx.enqueue("second")

    @jobs.task
    def second(ctx: Context) -> None:
        ctx.sync.enqueue("third")

    await jobs.start(topics=["first", "second"])
    await first.enqueue()
    one, two = await spans.runs(2)
    await until(lambda: len(spans.sends) == 3)
    to_one, to_two, to_three = spans.sends
    assert_linked(one, to_one)
    assert parent_of(to_two) == traceparent(one)
    assert_linked(two, to_two)
    assert parent_of(to_three) == traceparent(two)
    [third] = (await jobs.list(Filter(topics=["third"]))).items
    assert third.trace == traceparent(to_three)


# ── How runs end ──


async def test_a_failed_run_says_why(jobs: Jobs, spans: Spans) -> None:
    @jobs.task
    async def pay(order: int) -> None:
        raise Final(f"no order {order}")

    await jobs.start()
    await pay.enqueue(7)
    [run] = await spans.runs()
    assert attributes(run)["rowlock.outcome"] == "failed"
    assert attributes(run)["error.type"] == "Final"
    assert run.status.status_code is StatusCode.ERROR
    [event] = run.events
    assert event.attributes
    assert event.name == "exception"
    assert event.attributes["exception.message"] == "no order 7"


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_errors_reach_the_job_as_they_are(jobs: Jobs, spans: Spans, kind: str) -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("don't look at me")

    def raises(what: str) -> None:
        raise Rude if what == "rude" else StopIteration("over")

    async def raises_later(what: str) -> None:
        raise Rude if what == "rude" else StopIteration("over")

    task = jobs.register("raises", raises if kind == "thread" else raises_later, max_retries=0)
    await jobs.start()
    rude, stop = await task.enqueue("rude"), await task.enqueue("stop")
    assert "Rude" in ((await ended(jobs, rude.id)).last_error or "")
    error = (await ended(jobs, stop.id)).last_error or ""
    if kind == "thread":  # in a coroutine, Python turns StopIteration into a RuntimeError
        assert error.splitlines()[-1] == "StopIteration: over"
    assert {attributes(run)["rowlock.outcome"] for run in await spans.runs(2)} == {"failed"}


async def test_a_timeout_a_cancel_and_a_stop_are_told_apart(jobs: Jobs, spans: Spans) -> None:
    started = asyncio.Event()

    @jobs.task
    async def sleep() -> None:
        started.set()
        await asyncio.Event().wait()

    async def begin(**options: Any) -> str:
        started.clear()
        made = await sleep.using(**options).enqueue()
        await started.wait()
        return made.id

    await jobs.start(poll=0.05, lease=2)
    await ended(jobs, await begin(timeout=0.1, max_retries=0))
    cancelled = await begin()
    await jobs.cancel(cancelled)
    await ended(jobs, cancelled)
    await begin()
    await jobs.stop(grace=0)
    found = await spans.runs(3)
    assert [attributes(run)["rowlock.outcome"] for run in found] == ["timed_out", "cancelled", "released"]
    codes = [run.status.status_code for run in found]
    assert codes == [StatusCode.ERROR, StatusCode.UNSET, StatusCode.UNSET]


async def test_a_job_that_was_completed_in_a_transaction_is_completed(jobs: Jobs, spans: Spans) -> None:
    @jobs.task
    async def book(ctx: Context) -> None:
        async with ctx.transaction():
            ctx.complete("booked")
        raise ValueError("too late")

    await jobs.start()
    made = await book.enqueue()
    assert (await ended(jobs, made.id)).result == "booked"
    [run] = await spans.runs()
    assert attributes(run)["rowlock.outcome"] == "completed"
    assert run.status.status_code is StatusCode.UNSET


async def test_a_run_that_lost_its_lease_says_so(jobs: Jobs, spans: Spans) -> None:
    @jobs.task
    async def stall(ctx: Context) -> None:
        ctx._link.interruption = Interruption.LOST  # as if the database had told the keeper

    await jobs.start()
    await stall.enqueue()
    [run] = await spans.runs()
    assert (attributes(run)["rowlock.outcome"], attributes(run)["error.type"]) == ("lost", "lost")
    assert run.status.status_code is StatusCode.ERROR


# ── Whose child is an enqueue ──


def test_an_enqueue_in_the_caller_s_transaction_is_traced(tmp_path: Path, spans: Spans) -> None:
    jobs = Jobs(f"sqlite:///{tmp_path}/jobs.db")
    otel.instrument(jobs, tracer_provider=spans.provider)
    jobs.sync.open()
    connection = sqlite3.connect(tmp_path / "jobs.db")
    with spans.of_the_application(), connection:
        made = jobs.sync.enqueue("mail", {}, conn=connection)
    connection.close()
    [send], [request] = spans.sends, spans.of_kind(SpanKind.INTERNAL)
    assert parent_of(send) == traceparent(request)
    assert jobs.sync.get(made.id).trace == traceparent(send)
    jobs.sync.close()


async def test_a_batch_is_one_span(jobs: Jobs, spans: Spans) -> None:
    await jobs.enqueue_many([("mail", {"to": n}) for n in range(3)])
    await jobs.enqueue_many([("mail", {}), ("print", {})])
    await jobs.enqueue_many([])
    alike, mixed = spans.sends
    assert (alike.name, mixed.name) == ("enqueue mail", "enqueue")
    assert attributes(alike)["messaging.batch.message_count"] == 3
    assert attributes(alike)["messaging.destination.name"] == "mail"
    assert attributes(mixed)["messaging.batch.message_count"] == 2
    assert "messaging.destination.name" not in attributes(mixed)
    traces = [job.trace for job in (await jobs.list()).items]
    assert sorted(map(str, traces)) == sorted([traceparent(alike)] * 3 + [traceparent(mixed)] * 2)


async def test_concurrent_enqueues_have_a_span_each(jobs: Jobs, spans: Spans) -> None:
    made = await asyncio.gather(*(jobs.enqueue("mail", {"to": n}) for n in range(20)))
    sent = {attributes(span)["messaging.message.id"]: span for span in spans.sends}
    assert sent.keys() == {one.id for one in made}
    for job in (await jobs.list(limit=100)).items:
        assert job.trace == traceparent(sent[job.id])


async def test_a_trace_that_the_caller_names_is_the_parent(jobs: Jobs, spans: Spans) -> None:
    with spans.of_the_application():
        made = await jobs.enqueue("mail", {}, trace=CALLER)
    [send] = spans.sends
    assert parent_of(send) == CALLER
    assert (await jobs.get(made.id)).trace == traceparent(send)


async def test_a_draft_can_be_enqueued_again_in_another_trace(jobs: Jobs, spans: Spans) -> None:
    draft = jobs.register("mail", nothing).draft()
    await jobs.enqueue_many([draft, draft])
    await jobs.enqueue_many([draft])
    assert draft.options == {"version": 0}
    assert [(span.parent, len(span.links)) for span in spans.sends] == [(None, 0), (None, 0)]


async def test_traces_that_jobs_of_a_batch_name_are_linked(jobs: Jobs, spans: Spans) -> None:
    await jobs.enqueue_many([("mail", {}), {"topic": "mail", "trace": CALLER}])
    [send] = spans.sends
    assert send.parent is None
    assert [format_span_id(link.context.span_id) for link in send.links] == [CALLER.split("-")[2]]


async def test_an_enqueue_that_fails_is_an_error_and_raises_the_same(jobs: Jobs, spans: Spans) -> None:
    with pytest.raises(InvalidInput, match="priority"):
        await jobs.enqueue("mail", {}, priority="urgent")
    with pytest.raises(InvalidInput):
        await jobs.enqueue_many([("mail", {}), ("not a topic", {})])
    alone, batch = spans.sends
    for span in (alone, batch):
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == "InvalidInput"
        assert len(span.events) == 1
    await jobs.enqueue("mail", {})
    assert spans.sends[2].status.status_code is StatusCode.UNSET


async def test_a_key_that_is_taken_is_told(jobs: Jobs, spans: Spans) -> None:
    first = await jobs.enqueue("mail", {}, key="ada")
    second = await jobs.enqueue("mail", {}, key="ada")
    assert second.existing
    made, hit = spans.sends
    assert "rowlock.existing" not in attributes(made)
    assert attributes(hit)["rowlock.existing"] == 1
    assert attributes(hit)["messaging.message.id"] == first.id


async def test_a_trace_that_is_none_is_no_link(jobs: Jobs, spans: Spans, url: str) -> None:
    jobs.register("nothing", nothing)
    async with Jobs(url) as elsewhere:  # this client is not instrumented
        await elsewhere.enqueue("nothing", {}, trace="my own order number")
        await elsewhere.enqueue("nothing", {})
    await jobs.start()
    assert [run.links for run in await spans.runs(2)] == [(), ()]


async def test_to_instrument_twice_is_to_instrument_once(jobs: Jobs, spans: Spans) -> None:
    otel.instrument(jobs, tracer_provider=spans.provider)
    await jobs.enqueue("mail", {})
    assert len(spans.sends) == 1


# ── Over HTTP ──


async def test_the_traceparent_of_a_request_is_the_parent(jobs: Jobs, spans: Spans) -> None:
    app = otel.asgi(jobs.asgi(authenticate=lambda request: identity.superuser("ada@example.org")))

    async def enqueue(**headers: str) -> int:
        caller = Who("a caller", headers)
        body = iter([b'{"topic": "mail"}'])
        return (await by_hand(app, "POST", "/api/jobs/enqueue", headers=caller.raw_headers, parts=body)).status

    assert [await enqueue(traceparent=CALLER), await enqueue()] == [200, 200]
    with spans.of_the_application():  # as the ASGI instrumentation would do
        await enqueue(traceparent=CALLER)
    called, alone, inside = spans.sends
    [request] = spans.of_kind(SpanKind.INTERNAL)
    assert (parent_of(called), parent_of(alone), parent_of(inside)) == (CALLER, None, traceparent(request))
    assert not trace.get_current_span().get_span_context().is_valid


# ── In other processes ──


def test_a_child_process_makes_the_span_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        textwrap.dedent("""
            import os
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
            from rowlock import Jobs, otel

            def line(span):
                links = [f"{link.context.span_id:x}" for link in span.links]
                return f"{os.getpid()} {span.name} {span.context.span_id:x} {' '.join(links)}\\n"

            provider = TracerProvider()
            provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
            jobs = Jobs("sqlite:///jobs.db")
            otel.instrument(jobs, tracer_provider=provider)

            @jobs.task(process=True)
            def pid() -> int:
                return os.getpid()
        """)
    )
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""
            import asyncio
            from app import jobs, pid

            async def main():
                async with jobs:
                    await jobs.start()
                    print((await jobs.wait((await pid.enqueue()).id, timeout=60)).result)

            asyncio.run(main())
        """)
    )
    told = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True
    ).stdout
    lines = [line.split() for line in told.splitlines()]
    [[child]] = [line for line in lines if len(line) == 1]
    [[sender, *_, send]] = [line for line in lines if "enqueue" in line]
    [[runner, *_, link]] = [line for line in lines if "run" in line]
    assert runner == child != sender
    assert link == send


def test_without_an_sdk_nothing_is_written_and_a_trace_goes_through(tmp_path: Path) -> None:
    program = f"""
        from rowlock import Jobs, otel
        jobs = Jobs("sqlite:///jobs.db")
        otel.instrument(jobs)
        jobs.sync.open()
        made = [jobs.sync.enqueue("a"), jobs.sync.enqueue("a", trace="{CALLER}"), jobs.sync.enqueue("a", trace="mine")]
        print([jobs.sync.get(one.id).trace for one in made])
        jobs.sync.close()
    """
    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert told.strip() == str([None, CALLER, "mine"])


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    program = "import sys; sys.modules['opentelemetry'] = None\nimport rowlock.otel"
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.stderr.splitlines()[-1] == (
        "rowlock.errors.MissingExtra: opentelemetry-api is not installed: pip install 'rowlock[otel]'"
    )
