"""Traces with OpenTelemetry: a span for every call that enqueues, and a span for every run, which is linked to it.

    jobs = Jobs(…)
    rowlock.otel.instrument(jobs)  # beside `jobs`, not under `if __name__ == …`: child processes import it as well

A run is a trace of its own, linked to the enqueue: it may come days later, and several times. The job's `trace`, a W3C
traceparent, joins the two. For process=True the child process makes the span, because it has imported the application
and so instrumented it too. If the child is killed, its span is lost.

Needs only opentelemetry-api. The application's SDK decides which spans are kept, and where they go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from rowlock import __version__
from rowlock.context import Context, Interruption
from rowlock.core.job import MAX_TOPIC
from rowlock.errors import Cancelled, MissingExtra, Snooze
from rowlock.stores.base import Enqueued
from rowlock.tasks import Draft

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, Tracer, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise MissingExtra("otel", "opentelemetry-api") from None

if TYPE_CHECKING:
    from rowlock.jobs import Jobs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_W3C = TraceContextTextMapPropagator()  # `trace` holds this, whatever propagators the application uses
_RUNNING = contexts.create_key("rowlock-running")  # the trace of the job that runs here
_ERRORS = ("failed", "timed_out", "lost")

_instrumented: WeakSet[Jobs] = WeakSet()


def instrument(jobs: Jobs, *, tracer_provider: TracerProvider | None = None) -> None:
    """Trace what these Jobs enqueue and run. A second call changes nothing."""
    if jobs in _instrumented:
        return
    _instrumented.add(jobs)
    tracer = trace.get_tracer("rowlock", __version__, tracer_provider)
    jobs.on_enqueue(partial(_around_enqueue, tracer))
    jobs.on_run(partial(_around_run, tracer))


def asgi(app: AsgiApp) -> AsgiApp:
    """Let `jobs.asgi()` continue the trace of a request's `traceparent` header. Not needed with OpenTelemetry's own
    ASGI instrumentation, which also makes a span for each request."""

    async def continued(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _current().is_valid:
            return await app(scope, receive, send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        token = contexts.attach(propagate.extract(headers))
        try:
            return await app(scope, receive, send)
        finally:
            contexts.detach(token)

    return continued


def _current() -> SpanContext:
    return trace.get_current_span().get_span_context()


def _span_of(traceparent: str | None) -> SpanContext | None:
    if traceparent is None:
        return None
    # From an empty context: else an unreadable traceparent would give the current span.
    found = trace.get_current_span(_W3C.extract({"traceparent": traceparent}, contexts.Context())).get_span_context()
    return found if found.is_valid else None


# ── Enqueue ──


class _Call:
    """One call of enqueue or enqueue_many. Middleware sees its jobs one by one: the first begins the span, which the
    others share, and the last to leave ends it."""

    def __init__(self, tracer: Tracer, draft: Draft) -> None:
        self._topics = {_topic(draft)}
        self._answers: list[Enqueued] = []
        self._error: BaseException | None = None
        self._seen = 0
        self.open = 0
        given = _given(draft)  # a trace that the caller gives comes before the current one
        parent = None if given is None else trace.set_span_in_context(trace.NonRecordingSpan(given), contexts.Context())
        # It does not become the current span: else connections that this call opens would count as part of it, with
        # everything that they do later.
        self._span = tracer.start_span(
            f"enqueue {_topic(draft)}",
            parent,
            SpanKind.PRODUCER,
            {"messaging.system": "rowlock", "messaging.operation.name": "enqueue", "messaging.operation.type": "send"},
        )
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(self._span, contexts.Context()))
        self.traceparent = carrier.get("traceparent")  # None: no SDK, and no trace that could go on

    def enter(self, draft: Draft) -> None:
        self._topics.add(_topic(draft))
        given = _given(draft)
        if self._seen and given is not None and given.span_id != self._span.get_span_context().span_id:
            self._span.add_link(given)  # the span has a parent already
        self._seen += 1
        self.open += 1
        if self.traceparent is not None:
            draft.options = {**draft.options, "trace": self.traceparent}

    def wrote(self, answer: Enqueued) -> None:
        self._answers.append(answer)

    def failed(self, error: BaseException) -> None:
        self._error = error

    def leave(self) -> None:
        self.open -= 1
        if not self.open:
            self._end()

    def _end(self) -> None:
        span = self._span
        if len(self._topics) == 1:
            [topic] = self._topics
            span.set_attributes({"messaging.destination.name": topic, "rowlock.topic": topic})
        else:
            span.update_name("enqueue")
        if self._seen > 1:
            span.set_attribute("messaging.batch.message_count", self._seen)
        elif self._answers:
            job_id = self._answers[0].id
            span.set_attributes({"messaging.message.id": job_id, "rowlock.job_id": job_id})
        if existing := sum(answer.existing for answer in self._answers):
            span.set_attribute("rowlock.existing", existing)
        if self._error is not None:
            _record(span, self._error)
        span.end()


_call: ContextVar[_Call] = ContextVar("rowlock-enqueue-span")


def _around_enqueue(tracer: Tracer, draft: Draft) -> Generator[None, Enqueued, None]:
    call, token, options = _call.get(None), None, draft.options
    if call is None or not call.open:
        call = _Call(tracer, draft)
        token = _call.set(call)
    call.enter(draft)
    try:
        call.wrote((yield))
    except BaseException as error:
        call.failed(error)  # raised again by the caller
    finally:
        draft.options = options  # the caller may use its draft again, in another trace
        call.leave()
        if token is not None:
            with suppress(ValueError):  # an ending event loop closes generators from another context
                _call.reset(token)


def _given(draft: Draft) -> SpanContext | None:
    """Return the trace that the caller gives, unless it only inherited it from the running job."""
    named = draft.options.get("trace")
    return None if named == contexts.get_value(_RUNNING) else _span_of(named)


def _topic(draft: Draft) -> str:
    return str(draft.topic)[:MAX_TOPIC]  # not checked yet


# ── Run ──


def _around_run(tracer: Tracer, ctx: Context) -> Generator[None, Any, None]:
    job = ctx.job
    enqueued = _span_of(job.trace)
    span = tracer.start_span(
        f"run {job.topic}",
        contexts.Context(),  # not a child of the trace in which the worker was started
        SpanKind.CONSUMER,
        {
            "messaging.system": "rowlock",
            "messaging.operation.name": "run",
            "messaging.operation.type": "process",
            "messaging.destination.name": job.topic,
            "messaging.message.id": job.id,
            "rowlock.topic": job.topic,
            "rowlock.job_id": job.id,
            "rowlock.version": job.version,
            "rowlock.retries": job.retries,
            "rowlock.worker": job.locked_by or "",
        },
        [] if enqueued is None else [Link(enqueued)],
    )
    inside = contexts.set_value(_RUNNING, job.trace, contexts.Context())
    token = contexts.attach(trace.set_span_in_context(span, inside))
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised  # raised again by the caller
    finally:
        contexts.detach(token)
        outcome = _outcome(ctx, error)
        span.set_attribute("rowlock.outcome", outcome)
        if outcome in _ERRORS:
            _record(span, error, outcome)
        span.end()


def _outcome(ctx: Context, error: BaseException | None) -> str:
    """Return the outcome as the worker will see it: see Executor._meaning. The worker decides about a retry later."""
    why = ctx._link.interruption
    if ctx._link.completed:
        return "completed"
    if why is Interruption.LOST:
        return "lost"
    if error is None:
        return "completed"
    if isinstance(error, GeneratorExit):  # the run goes on later
        return "suspended"
    match why:
        case Interruption.TIMED_OUT:
            return "timed_out"
        case Interruption.STOPPING:
            return "released"
        case Interruption.CANCELLED if isinstance(error, asyncio.CancelledError | Snooze):
            return "cancelled"
    return "snoozed" if isinstance(error, Snooze) else "cancelled" if isinstance(error, Cancelled) else "failed"


def _record(span: trace.Span, error: BaseException | None, otherwise: str = "failed") -> None:
    kind = otherwise if error is None else type(error).__qualname__
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, kind)
    if error is not None:
        with suppress(Exception):  # the application's own __str__ may fail
            span.record_exception(error)
