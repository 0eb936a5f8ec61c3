"""A waiting job, and everything that can happen to it, in every order, on a real store.

Each order has its own job and topic. So one history holds thousands of orders, and the checker reads it once.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import product
from typing import Any

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Completed, Failed, Outcome, Settlement, Waits, decide
from rowlock.core.moves import (
    AcknowledgeCallback,
    Cancel,
    CancelTimeout,
    Order,
    ReportCallback,
    Requeue,
    Rescue,
    Signal,
    SignalSent,
    Wake,
)
from rowlock.core.steps import StepMark, StepState
from rowlock.core.waits import Wait, callback_name, signal_wait
from rowlock.stores.base import Hold
from tests.proof.history import History, Operation
from tests.stores.harness import LEASE, Harness, claim_by
from tests.stores.rows import micros

GRACE = 7.0
_LIVE = frozenset({Status.PENDING, Status.PROCESSING, Status.WAITING, Status.CANCEL_REQUESTED})


class Waiter:
    """One job. `run` is its last claimed run, even if the worker has lost it. `looked` is what that run has found."""

    def __init__(self, harness: Harness, history: History, number: int) -> None:
        self.harness = harness
        self.history = history
        self.topic = f"t{number}"
        self.id = ""
        self.run: Job | None = None
        self.looked: Waits | None = None
        self.undoes = False
        self._sent = 0

    async def begin(self) -> None:
        self.id = await self.harness.add(self.topic)
        await self.claim()

    # ── The worker ──

    async def claim(self) -> None:
        for one in (await self.harness.store.claim(claim_by("w1", self.topic))).jobs:
            self.run, self.looked = one, None

    async def look(self) -> None:
        if self.run is not None:
            wait = Wait(
                id=self.id, version=self.run.version, waits_for=signal_wait("go"), n=1, position=5, seconds=10.0,
                worker="w1",
            )  # fmt: skip
            found = await self.harness.store.take_signal(wait)
            waits = found.hold is Hold.KEPT and found.state is StepState.RUNNING
            self.looked = Waits(signal_wait("go"), found.left, found.seen, self.undoes) if waits else None

    async def _settle(self, outcome: Outcome) -> None:
        if self.run is not None:
            seen = (await self.harness.store.read([self.id], Job))[self.id]
            to = decide(seen if seen.version == self.run.version else self.run, outcome, self.harness.now, ran=0.0)
            await self.harness.store.settle([Settlement(self.id, self.run.version, to, "w1")])

    async def wait(self) -> None:
        if self.looked is not None and self.run is not None and self.run.status is not Status.CANCEL_REQUESTED:
            await self._settle(self.looked)

    async def fail(self) -> None:
        await self._settle(Failed("boom"))

    async def step(self) -> None:
        await self._mark("pay")

    async def address(self) -> None:
        await self._mark(callback_name("go"), result='{"timeout":20}', lasts=20.0)

    async def _mark(self, name: str, **fields: Any) -> None:
        if self.run is not None:
            usual: dict[str, Any] = {"n": 1, "position": 1, "function": name, "worker": "w1"}
            usual |= {"id": self.id, "version": self.run.version, "state": StepState.SUCCEEDED}
            [hold] = await self.harness.store.checkpoint([StepMark(name=name, **usual | fields)])
            self.undoes |= name == "pay" and hold is not Hold.LOST

    # ── Clients, operators, the outside, time ──

    async def _order(self, order: Order) -> Any:
        [changed] = await self.harness.store.move([self.id], order)
        return changed

    async def _signal(self, sent: SignalSent, number: int | None = None) -> None:
        changed = await self._order(Signal(by="ann", sent=sent, number=number))
        known = changed.why == "known"
        detail = {"name": sent.name, "id": sent.id, "data": sent.id}
        n = len(self.history.operations)
        outcome = "ok" if changed.done or known else "fail"
        self.history.operations.append(
            Operation("c1", n, "signal", 0, 0, outcome, (self.id,), {"known": known}, detail)
        )

    async def signal(self) -> None:
        self._sent += 1
        await self._signal(SignalSent("go", f'"s{self._sent}"', f"s{self._sent}"))

    async def repeat(self) -> None:
        if self._sent:
            await self._signal(SignalSent("go", f'"s{self._sent}"', f"s{self._sent}"))

    async def other(self) -> None:
        await self._signal(SignalSent("else", '"else"', "else"))

    async def answer(self) -> None:
        await self._signal(SignalSent("go", '"@callback:go#1"', "@callback:go#1"), number=1)

    async def report(self) -> None:
        await self._order(ReportCallback(by="outside", signal="go", number=1, timeout=20.0, percent=5.0))

    async def stopped(self) -> None:
        await self._order(AcknowledgeCallback(by="outside", signal="go", number=1))

    async def cancel(self) -> None:
        await self._order(Cancel(by="ann"))

    async def requeue(self) -> None:
        await self._order(Requeue(by="ann", keep_steps=False))

    async def wake(self) -> None:
        await self._order(Wake(by="ann"))

    async def time(self) -> None:
        await self.harness.advance(11.0)
        await self.maintain()

    async def die(self) -> None:
        await self.harness.advance(LEASE + 1)
        await self.maintain()

    async def maintain(self) -> None:
        store = self.harness.store
        await store.promote()
        await store.move_due(CancelTimeout(by="m1", grace=GRACE))
        await store.move_due(Rescue(by="m1", backoff=[1.0]))

    # ── The end ──

    async def finish(self) -> Status:
        """Bring the job to an end with a worker and signals, whatever has happened. Return its status."""
        for n in range(4):
            status = await self._status()
            if status not in _LIVE:
                break
            if status is Status.WAITING:
                await self.signal()
            await self.harness.advance(max(LEASE + 1, 120.0 * n))  # longer than the backoff of two retries
            await self.maintain()
            await self.claim()
            await self._settle(Completed({"run": self.run and self.run.version}))
        return await self._status()

    async def _status(self) -> Status:
        return (await self.harness.store.read([self.id], Job))[self.id].status


Action = Callable[[Waiter], Awaitable[None]]
ACTIONS: tuple[Action, ...] = (
    Waiter.claim, Waiter.look, Waiter.wait, Waiter.fail, Waiter.signal, Waiter.repeat, Waiter.other, Waiter.cancel,
    Waiter.wake, Waiter.time, Waiter.die, Waiter.requeue,
)  # fmt: skip
OUTSIDE: tuple[Action, ...] = (
    Waiter.claim, Waiter.wait, Waiter.signal, Waiter.answer, Waiter.report, Waiter.stopped, Waiter.cancel, Waiter.time,
)  # fmt: skip
# The actions that come first, and those that may follow in any order. All runs have looked and found no signal.
STARTS: dict[str, tuple[Sequence[Action], Sequence[Action]]] = {
    "about to wait": ((Waiter.look,), ACTIONS),
    "about to wait, with a step to undo": ((Waiter.step, Waiter.look), ACTIONS),
    "waiting": ((Waiter.look, Waiter.wait), ACTIONS),
    "waiting, with a step to undo": ((Waiter.step, Waiter.look, Waiter.wait), ACTIONS),
    "the outside works on it": ((Waiter.address, Waiter.look), OUTSIDE),
    "waiting for the outside": ((Waiter.address, Waiter.look, Waiter.wait), OUTSIDE),
}


def orders(start: str, length: int) -> Iterator[tuple[Action, ...]]:
    before, then = STARTS[start]
    return ((*before, *order) for order in product(then, repeat=length))


async def play(harness: Harness, history: History, chosen: Iterator[tuple[Action, ...]]) -> list[str]:
    """Return the orders that did not come to an end."""
    stuck = []
    for number, order in enumerate(chosen):
        waiter = Waiter(harness, history, number)
        await waiter.begin()
        for action in order:
            await action(waiter)
        if (status := await waiter.finish()) in _LIVE:
            stuck.append(f"{waiter.id} is {status} after {', '.join(one.__name__ for one in order)}")
    history.settings["now"] = float(micros(harness.now))
    return stuck
