"""Cases of signals, of waits, and of the verbs that end a wait."""

from collections.abc import Awaitable, Callable
from typing import Any

from rowlock.core.job import Job
from rowlock.core.lifecycle import Failed, Outcome, Waits
from rowlock.core.moves import (
    AcknowledgeCallback,
    Cancel,
    Delete,
    Order,
    ReportCallback,
    Requeue,
    Resume,
    Signal,
    SignalSent,
    Wake,
)
from rowlock.core.steps import StepMark, StepState
from rowlock.core.waits import Wait, callback_name, signal_wait
from rowlock.stores.base import Retention
from tests.proof.crash_case import Act, Actor, case, changes, simply, steps
from tests.proof.crash_stage import ACTOR, Facts, Stage, claim_by, settlement
from tests.proof.history import History
from tests.proof.witness import SIGNALS, STEPS

_GO = SignalSent("go", '{"paid":1}', "s1")
_ANSWER = SignalSent("go", '{"paid":2}', "@callback:go#1")


def _wait(job_id: str, version: int, **fields: Any) -> Wait:
    return Wait(id=job_id, version=version, waits_for=signal_wait("go"), n=1, position=2, worker=ACTOR, **fields)


def _mark(job: Job, name: str, **fields: Any) -> StepMark:
    usual: dict[str, Any] = {"n": 1, "position": 1, "function": name, "state": StepState.SUCCEEDED, "worker": ACTOR}
    return StepMark(id=job.id, version=job.version, name=name, **usual | fields)


_ADDRESS: dict[str, Any] = {"name": callback_name("go"), "result": '{"timeout":60}', "lasts": 60.0}


def _sends(order: Order) -> Callable[[Actor], Awaitable[Act]]:
    return simply(lambda store, one: store.move([one], order))


# ── Preparations ──


async def _run(stage: Stage) -> Facts:
    job = await stage.claimed(fails=True)
    return {"id": job.id, "version": job.version}


async def _run_with_a_signal(stage: Stage) -> Facts:
    facts = await _run(stage)
    await stage.store.move([facts["id"]], Signal(by="ann", sent=_GO))
    return facts


async def _asked_run(stage: Stage) -> Facts:
    """A run that has looked for a signal, found none, and is about to wait."""
    facts = await _run(stage)
    answer = await stage.store.take_signal(_wait(facts["id"], facts["version"], seconds=60.0))
    return facts | {"seen": answer.seen, "left": answer.left}


async def _overtaken_run(stage: Stage) -> Facts:
    """A run that is about to wait, although a signal has come since it looked."""
    facts = await _asked_run(stage)
    await stage.store.move([facts["id"]], Signal(by="ann", sent=_GO))
    return facts


async def _cancelled_run_with_steps(stage: Stage) -> Facts:
    facts = await _asked_run(stage)
    job = (await stage.store.read([facts["id"]], Job))[facts["id"]]
    await stage.store.checkpoint([_mark(job, "pay")])
    await stage.store.move([job.id], Cancel(by="ann"))
    return facts


def _waiting(*marks: dict[str, Any], seconds: float | None = 60.0) -> Callable[[Stage], Awaitable[Facts]]:
    async def prepare(stage: Stage) -> Facts:
        job = await stage.claimed(fails=True)
        await stage.store.checkpoint([_mark(job, **mark) for mark in marks])
        answer = await stage.store.take_signal(_wait(job.id, job.version, seconds=seconds))
        await stage.store.settle([settlement(job, Waits(signal_wait("go"), answer.left, answer.seen, bool(marks)))])
        return {"id": job.id}

    return prepare


async def _overdue(stage: Stage) -> Facts:
    facts = await _waiting(seconds=0.001)(stage)
    await stage.until((await stage.store.read([facts["id"]], Job))[facts["id"]].run_at)
    return facts


async def _to_be_undone(stage: Stage) -> Facts:
    facts = await _waiting({"name": "pay"})(stage)
    await stage.store.move([facts["id"]], Cancel(by="ann"))
    return facts | {"version": 2}


async def _outside_is_told(stage: Stage) -> Facts:
    facts = await _waiting(_ADDRESS)(stage)
    await stage.store.move([facts["id"]], Cancel(by="ann"))
    return facts


async def _dead_letter(stage: Stage) -> Facts:
    """A dead letter whose run has read a signal."""
    facts = await _run_with_a_signal(stage)
    await stage.store.take_signal(_wait(facts["id"], facts["version"]))
    job = (await stage.store.read([facts["id"]], Job))[facts["id"]]
    await stage.store.settle([settlement(job, Failed("boom", final=True))])
    return {"id": job.id}


# ── Runs ──


def _asking(**fields: Any) -> Callable[[Actor], Awaitable[Act]]:
    async def ready(actor: Actor) -> Act:
        wait = _wait(actor.facts["id"], actor.facts["version"], **fields)
        return lambda: actor.store.take_signal(wait)

    return ready


def _marked(state: str) -> Callable[[History, Facts], int]:
    """Return a function that counts how often the wait came to this state. An open wait that is written again counts
    once."""
    return lambda history, _: sum(
        one.table == STEPS
        and bool(one.after and (one.after["name"], one.after["state"]) == ("@signal:go", state))
        and (one.before is None or one.before["state"] != state)
        for one in history.changes
    )


def _settling(outcome: Callable[[Facts], Outcome]) -> Callable[[Actor], Awaitable[Act]]:
    async def ready(actor: Actor) -> Act:
        job = (await actor.store.read([actor.facts["id"]], Job))[actor.facts["id"]]
        one = settlement(job, outcome(actor.facts))
        return lambda: actor.store.settle([one])

    return ready


def _waits(facts: Facts) -> Outcome:
    return Waits(signal_wait("go"), facts["left"], facts["seen"], undoes=True)


case("take a signal", _run_with_a_signal, _asking(), changes(SIGNALS, "update"))
case("take no signal", _run, _asking(seconds=60.0), _marked("running"))
case("take a signal too late", _run, _asking(seconds=0.0), _marked("failed"))
case("wait", _asked_run, _settling(_waits), steps("wait"))
case("wait, and a signal has come", _overtaken_run, _settling(_waits), steps("wait"))
case("wait, and a cancel has come", _cancelled_run_with_steps, _settling(_waits), steps("cancel_wait"))


async def _claiming(actor: Actor) -> Act:
    return lambda: actor.store.claim(claim_by(ACTOR))


async def _leave_it(actor: Actor, act: Act) -> None: ...


case("claim to undo", _to_be_undone, _claiming, steps("claim"), recover=_leave_it, repeats=False)


# ── Signals, and other ends of a wait ──

_sent = changes(SIGNALS, "insert")
case("signal", _waiting(), _sends(Signal(by=ACTOR, sent=_GO)), _sent)
case("signal a run", _asked_run, _sends(Signal(by=ACTOR, sent=_GO)), _sent)
case("wake", _waiting(), _sends(Wake(by=ACTOR)), steps("wake"))
case("resume", _overdue, simply(lambda store, _: store.move_due(Resume(by=ACTOR))), steps("resume"))
case("cancel a waiting job", _waiting(), _sends(Cancel(by=ACTOR)), steps("cancel"))
case("cancel, to be undone", _waiting({"name": "pay"}), _sends(Cancel(by=ACTOR)), steps("cancel"))
case("cancel, and tell the outside", _waiting(_ADDRESS), _sends(Cancel(by=ACTOR)), steps("cancel"))


# ── Callbacks ──


async def _asking_outside(actor: Actor) -> Act:
    job = (await actor.store.read([actor.facts["id"]], Job))[actor.facts["id"]]
    return lambda: actor.store.checkpoint([_mark(job, **_ADDRESS)])


def _addresses(history: History, _: Facts) -> int:
    return sum(one.table == STEPS and one.op == "insert" for one in history.changes)


case("make a callback", _run, _asking_outside, _addresses)
case("answer a callback", _waiting(_ADDRESS), _sends(Signal(by=ACTOR, sent=_ANSWER, number=1)), _sent)
case(
    "report to a callback", _waiting(_ADDRESS),
    _sends(ReportCallback(by=ACTOR, signal="go", number=1, timeout=60.0, percent=50.0)), steps("report_callback"),
    once=False,
)  # fmt: skip
case(
    "acknowledge a cancel to a callback", _outside_is_told,
    _sends(AcknowledgeCallback(by=ACTOR, signal="go", number=1)), steps("acknowledge_callback"),
)  # fmt: skip


# ── Removals ──

case(
    "requeue without waits", _dead_letter, _sends(Requeue(by=ACTOR, keep_steps=False)), changes(SIGNALS, "delete")
)  # fmt: skip
case("delete with signals", _dead_letter, _sends(Delete(by=ACTOR)), steps("delete"))
case("prune with signals", _dead_letter, simply(lambda store, _: store.prune(Retention(failed=0.0))), steps("prune"))
