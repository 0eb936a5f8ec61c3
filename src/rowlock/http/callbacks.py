"""Routes of callbacks, by which external systems answer a job that waits.

The token in the path is the only credential. No cookie, session or token of the API counts here, so a foreign page
gains nothing by calling (CSRF). Bodies are JSON only, so a browser asks first (CORS). The token must not reach any log:
see respond.py.

A forged token and one whose job is gone get the same answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct

from rowlock.client.callbacks import Callback
from rowlock.client.signals import check_data, open_wait
from rowlock.core import codec
from rowlock.core.job import LIVE, Status
from rowlock.core.moves import AcknowledgeCallback, ReportCallback, SignalSent, WaitOrder
from rowlock.core.moves import Signal as SignalOrder
from rowlock.core.steps import StoredStep
from rowlock.core.waits import callback_name, read_terms
from rowlock.http.call import Call
from rowlock.http.parse import read_value
from rowlock.http.problems import Problem, check_range
from rowlock.http.routes import CALLBACK, Routes
from rowlock.http.shapes import Asked, schema
from rowlock.stores import reading
from rowlock.stores.base import MAX_PROGRESS_TEXT, Changed, Store

ROUTES = Routes()

BY = "callback"
_CANCELLED = (Status.CANCEL_REQUESTED, Status.CANCELLED)
_ERRORS = (409, 429)

State = Literal["wanted", "answered", "cancelled", "ended"]


class CallbackBody(Struct, kw_only=True):
    """`state`: wanted (the job waits for the answer, or will); answered; cancelled (the job was cancelled: stop, and
    acknowledge); ended (the address is too old, or the job has ended without the answer)."""

    state: Annotated[str, schema(enum=["wanted", "answered", "cancelled", "ended"])]


class ReportBody(Asked, frozen=True, kw_only=True):
    """Fields that are left out stay as they are."""

    percent: Annotated[float, schema(minimum=0, maximum=100)] | None = None
    stage: str | None = None
    message: str | None = None


@ROUTES.add("GET", "/api/callbacks/{token}", CALLBACK, "Is the answer still wanted?", errors=(429,))
async def get_callback(call: Call) -> CallbackBody:
    callback, store, status = await _found(call)
    return CallbackBody(state=await _state(store, callback, status))


@ROUTES.add(
    "POST", "/api/callbacks/{token}", CALLBACK, "Answer: the body is the data of the signal", any_body=True,
    errors=(*_ERRORS, 413),
)  # fmt: skip
async def answer_callback(call: Call) -> CallbackBody:
    """Store the answer, once. A job that is cancelled does not take it, but then the outside has stopped."""
    callback, store, status = await _found(call)
    data = await read_value(call.request)
    if status in LIVE and status not in _CANCELLED:
        steps = await reading.steps(store, callback.job_id)
        check_data(data, _row(steps, callback), open_wait(steps, callback.signal))
    order = SignalOrder(
        by=BY,
        sent=SignalSent(callback.signal, codec.encode(data, "data"), callback.signal_id),
        number=callback.n,
    )
    change = await _moved(store, callback, order)
    if change.status in _CANCELLED:
        await _moved(store, callback, _acknowledged(callback))
    if not change.done:
        raise await _refusal(store, callback, change)
    call.api.jobs._announce(await call.api.jobs._stores.handle())
    return CallbackBody(state="answered")


@ROUTES.add(
    "POST", "/api/callbacks/{token}/progress", CALLBACK, "Report progress; restarts the deadlines", body=ReportBody,
    body_optional=True, errors=_ERRORS,
)  # fmt: skip
async def report_callback(call: Call, asked: ReportBody) -> CallbackBody:
    if asked.percent is not None:
        check_range("percent", asked.percent, 0, 100)
    return await _reported(call, percent=asked.percent, stage=_text(asked.stage), message=_text(asked.message))


@ROUTES.add("POST", "/api/callbacks/{token}/heartbeat", CALLBACK, "Restart the deadlines", errors=_ERRORS)
async def renew_callback(call: Call) -> CallbackBody:
    return await _reported(call)


async def _reported(call: Call, **said: Any) -> CallbackBody:
    callback, store, _ = await _found(call)
    row = _row(await reading.steps(store, callback.job_id), callback)
    timeout = None if row is None else read_terms(row.result).timeout
    order = ReportCallback(by=BY, signal=callback.signal, number=callback.n, timeout=timeout, **said)
    change = await _moved(store, callback, order)
    if not change.done:
        # A run is under way, and its job may wait for this answer in a moment: then the next report counts.
        if change.why is not None or change.status is None or change.status in _CANCELLED or change.status not in LIVE:
            raise await _refusal(store, callback, change)
        state = await _state(store, callback, change.status)
        if state != "wanted":
            raise _problem(state)
    return CallbackBody(state="wanted")


@ROUTES.add(
    "POST", "/api/callbacks/{token}/acknowledge", CALLBACK, "The outside has stopped after a cancel", errors=_ERRORS
)
async def acknowledge_callback(call: Call) -> CallbackBody:
    callback, store, _ = await _found(call)
    change = await _moved(store, callback, _acknowledged(callback))
    if change.done or (change.status in _CANCELLED and change.why is None):  # a repeat, or a worker undoes something
        return CallbackBody(state="cancelled")
    if change.status in LIVE and change.why is None:
        raise Problem("not_cancelled", "the job is not cancelled: there is nothing to acknowledge")
    raise await _refusal(store, callback, change)


# ── What the routes share ──


async def _found(call: Call) -> tuple[Callback, Store, Status]:
    """Return the callback that the token names, the store, and the status of the job."""
    limits, address = call.api.callback_limits, call.request.network
    limits.take(address)
    callback = await call.api.jobs._callbacks.read(call.parameters["token"])
    store = await call.store()
    status = None if callback is None else (await store.read([callback.job_id], Status)).get(callback.job_id)
    if callback is None or status is None:
        limits.unknown(address)
        raise _unknown()
    limits.take_callback(call.parameters["token"])
    return callback, store, status


def _unknown() -> Problem:
    return Problem("no_callback", "there is no such callback, or its job is gone")


async def _moved(store: Store, callback: Callback, order: WaitOrder) -> Changed:
    [change] = await store.move([callback.job_id], order)
    if change.status is None:  # deleted a moment ago
        raise _unknown()
    return change


def _acknowledged(callback: Callback) -> AcknowledgeCallback:
    return AcknowledgeCallback(by=BY, signal=callback.signal, number=callback.n)


def _row(steps: list[StoredStep], callback: Callback) -> StoredStep | None:
    name = callback_name(callback.signal)
    return next((row for row in steps if (row.name, row.n) == (name, callback.n)), None)


async def _state(store: Store, callback: Callback, status: Status) -> State:
    row = _row(await reading.steps(store, callback.job_id), callback)
    if await _is_answered(store, callback, row):
        return "answered"
    if status in _CANCELLED:
        return "cancelled"
    if status not in LIVE:
        return "ended"
    is_over = row is None or (row.deadline is not None and row.deadline <= await store.now())
    return "ended" if is_over else "wanted"


async def _is_answered(store: Store, callback: Callback, row: StoredStep | None) -> bool:
    """True if the job's history has the answer. After a requeue that drops steps, a callback with the same number is a
    new one."""
    asked = (callback.signal, callback.signal_id)
    return any(
        (one.data.get("signal"), one.data.get("id")) == asked and (row is None or one.at >= row.started_at)
        for one in await reading.events(store, callback.job_id)
    )


_WHY: dict[str, State] = {"known": "answered", "late": "ended", "gone": "ended"}


async def _refusal(store: Store, callback: Callback, change: Changed) -> Problem:
    if change.why == "full":
        return Problem(
            "signals_full", "the job has too many signals that it has not read", headers={"retry-after": "60"}
        )
    if change.why == "late":
        return Problem("callback_late", "the time for an answer is over")
    if change.why is not None:
        return _problem(_WHY[change.why])
    return _problem(await _state(store, callback, change.status or Status.CANCELLED))


def _problem(state: State) -> Problem:
    match state:
        case "answered":
            return Problem("callback_answered", "this callback has its answer already")
        case "cancelled":
            return Problem("callback_cancelled", "the job was cancelled and no longer waits for the answer: stop")
        case _:
            return Problem("callback_ended", "the job does not ask for this answer any more")


def _text(value: str | None) -> str | None:
    return None if value is None else codec.clean_text(value, MAX_PROGRESS_TEXT)
