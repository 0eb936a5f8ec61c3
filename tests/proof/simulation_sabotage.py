"""Ways to break the product on purpose: a simulation that doesn't find them proves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

import rowlock.client.enqueue
import rowlock.core.moves
import rowlock.stores.sqlite.connection
import rowlock.stores.sqlite.maintenance
import rowlock.stores.sqlite.settle
import rowlock.stores.sqlite.steps
import rowlock.stores.sqlite.waits
from rowlock.core.job import HELD
from rowlock.core.lifecycle import LOST, Answer
from rowlock.core.steps import StepMark, StepState
from rowlock.errors import LeaseLost
from rowlock.run_steps import RunSteps
from rowlock.runtime.claim_settle import ClaimSettle
from rowlock.runtime.heartbeat import HeartbeatThread
from rowlock.runtime.maintenance import Maintenance
from rowlock.runtime.rescue_guard import RescueGuard
from rowlock.runtime.run import Run
from rowlock.stores.base import Hold
from rowlock.stores.sqlite.fence import fence
from rowlock.stores.sqlite.rows import sql
from rowlock.stores.sqlite.settle import look
from tests.proof.simulation_store import Weather

Break = Callable[[pytest.MonkeyPatch], None]


async def _nothing(*args: Any, **kwargs: Any) -> None: ...


async def _no(*args: Any, **kwargs: Any) -> bool:
    return False


def settle_whatever_the_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rowlock.stores.sqlite.settle, "_may", lambda row, settlement: row.status in HELD)


def renew_and_report_whatever_the_version(patch: pytest.MonkeyPatch) -> None:
    def broken(rows: Any, run: Any) -> bool:
        return run.id in rows and rows[run.id].status in HELD

    patch.setattr(rowlock.stores.sqlite.settle, "_holds", broken)


def commit_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    def broken(conn: Any, now: int, guard: Any) -> None:
        with suppress(LeaseLost):
            fence(conn, now, guard)

    patch.setattr(rowlock.stores.sqlite.connection, "fence", broken)


def rescue_at_once_after_an_outage(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RescueGuard, "wait", lambda self, at, others: 0.0)


def never_renew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeartbeatThread, "_beat", _nothing)


def never_tell_who_is_to_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeartbeatThread, "_tell", lambda self, runs, holds: None)


def take_a_changed_status_for_a_loss(patch: pytest.MonkeyPatch) -> None:
    judged = ClaimSettle._judged

    def broken(self: ClaimSettle, run: Any, to: Any, verdict: Any) -> None:
        judged(self, run, to, LOST if verdict.answer is Answer.CHANGED else verdict)

    patch.setattr(ClaimSettle, "_judged", broken)


def do_not_look_for_lost_claims(patch: pytest.MonkeyPatch) -> None:
    async def broken(self: ClaimSettle) -> None:
        self.claim_lost = False

    patch.setattr(ClaimSettle, "_find_lost_claims", broken)


def lose_what_a_failed_round_had_to_settle(patch: pytest.MonkeyPatch) -> None:
    settle = ClaimSettle._settle

    async def broken(self: ClaimSettle, batch: Any, claim: Any) -> Any:
        finished = set(map(id, batch))
        try:
            return await settle(self, batch, claim)
        except BaseException:
            for one in [one for one in self._finished if id(one) in finished]:
                self._finished.remove(one)
            raise

    patch.setattr(ClaimSettle, "_settle", broken)


def drop_last_words(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimSettle, "_write_last_words", _nothing)


def never_promote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimSettle, "_promote", _nothing)
    patch.setattr(Maintenance, "_promote", _no)


def never_rescue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Maintenance, "_rescue", _no)


def enqueue_again_without_asking(patch: pytest.MonkeyPatch) -> None:
    async def broken(store: Any, jobs: Any) -> Any:
        await asyncio.sleep(1.0)
        return await store.insert(jobs)

    patch.setattr(rowlock.client.enqueue, "_find_out", broken)


def run_finished_steps_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunSteps, "_find", lambda self, call: None)


def forget_to_store_results(patch: pytest.MonkeyPatch) -> None:
    def broken(self: RunSteps, mark: StepMark) -> Any:
        if mark.state is not StepState.SUCCEEDED:
            yield from persist(self, mark)

    persist = RunSteps._persist
    patch.setattr(RunSteps, "_persist", broken)


def store_steps_whatever_the_version(patch: pytest.MonkeyPatch) -> None:
    def broken(conn: Any, runs: Any) -> Any:
        return [Hold.KEPT if hold is Hold.LOST else hold for hold in look(conn, runs)]

    patch.setattr(rowlock.stores.sqlite.steps, "look", broken)


def wait_whatever_has_come(patch: pytest.MonkeyPatch) -> None:
    apply = rowlock.stores.sqlite.settle._apply

    def broken(conn: Any, now: int, moves: Any) -> None:
        apply(conn, now, [(row, replace(to, seen=10**9)) for row, to in moves])

    patch.setattr(rowlock.stores.sqlite.settle, "_apply", broken)


def read_signals_whatever_the_version(patch: pytest.MonkeyPatch) -> None:
    def broken(conn: Any, runs: Any) -> Any:
        return [Hold.KEPT if hold is Hold.LOST else hold for hold in look(conn, runs)]

    patch.setattr(rowlock.stores.sqlite.waits, "look", broken)


def never_resume(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rowlock.stores.sqlite.maintenance, "move_due", lambda *_: [])


def store_signals_twice(patch: pytest.MonkeyPatch) -> None:
    known = rowlock.core.moves.WaitOrder._facts

    def broken(self: Any, row: Any) -> Any:
        return known(self, row)._replace(is_known=False)

    patch.setattr(rowlock.core.moves.WaitOrder, "_facts", broken)


def begin_the_time_of_a_wait_anew(patch: pytest.MonkeyPatch) -> None:
    load = sql

    def broken(name: str) -> str:
        return load(name).replace("s.deadline", "NULL") if name == "wait_found" else load(name)

    patch.setattr(rowlock.stores.sqlite.waits, "sql", broken)


def cancel_waits_at_once(patch: pytest.MonkeyPatch) -> None:
    known = rowlock.core.moves.WaitOrder._facts

    def broken(self: Any, row: Any) -> Any:
        return known(self, row)._replace(undoes=False, has_callback=False)

    patch.setattr(rowlock.core.moves.Cancel, "_facts", broken)


def disturb_runs_that_undo(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "undoes", False)


FREEZES: dict[str, Any] = {"faults": ("freeze",), "tempo": 0.8, "seconds": 10.0}
# Handlers that ignore a cancel are still at work when their worker wakes up and another worker has their job.
DEAF: dict[str, Any] = {"faults": ("freeze",), "only": "deaf", "jobs": 10, "tempo": 1.0, "seconds": 14.0}
OUTAGES: dict[str, Any] = {"faults": ("outage",), "tempo": 0.8, "seconds": 14.0, "jobs": 20}
LOSSES: dict[str, Any] = {
    "weather": Weather(refused=0.03, unsent=0.03, unheard=0.03),
    "faults": ("term",),
    "tempo": 0.3,
    "seconds": 6.0,
}
CANCELS: dict[str, Any] = {"operates": True, "faults": (), "jobs": 25, "tempo": 0.8, "seconds": 10.0}
KILLS: dict[str, Any] = {"faults": ("kill",), "tempo": 0.8}
CALM: dict[str, Any] = {"faults": ()}

# Each has the break, the climate in which it shows soonest, and a seed that has shown it, which is tried first.
SABOTAGES: tuple[tuple[Break, dict[str, Any], int], ...] = (
    (settle_whatever_the_version, FREEZES, 15),
    (renew_and_report_whatever_the_version, DEAF, 6),
    (commit_without_a_fence, {**FREEZES, "only": "commit", "weather": Weather(latency=0.3)}, 72),
    (rescue_at_once_after_an_outage, OUTAGES, 36),
    (never_renew, CALM, 10),
    (never_tell_who_is_to_end, CANCELS, 11),
    (take_a_changed_status_for_a_loss, CANCELS, 76),
    (do_not_look_for_lost_claims, LOSSES, 3),
    (lose_what_a_failed_round_had_to_settle, LOSSES, 4),
    (drop_last_words, CALM, 2),
    (never_promote, CALM, 2),
    (never_rescue, KILLS, 2),
    (enqueue_again_without_asking, LOSSES, 7),
    (run_finished_steps_again, KILLS, 9),
    (forget_to_store_results, CALM, 4),
    (store_steps_whatever_the_version, FREEZES, 19),
)
# The same for defences of waits. In every seventh seed, handlers wait.
WAITS: dict[str, Any] = {"weather": Weather(unheard=0.03, latency=0.2), "faults": (), "jobs": 25, "operates": True}
WAIT_SABOTAGES: tuple[tuple[Break, dict[str, Any], int], ...] = (
    (wait_whatever_has_come, WAITS, 7),
    (read_signals_whatever_the_version, {**WAITS, "faults": ("freeze",), "seconds": 14.0}, 378),
    (never_resume, WAITS, 7),
    (store_signals_twice, WAITS, 7),
    (begin_the_time_of_a_wait_anew, WAITS, 7),
    (cancel_waits_at_once, WAITS, 14),
    (disturb_runs_that_undo, {**WAITS, "tempo": 0.8, "seconds": 14.0, "jobs": 40}, 413),
)
