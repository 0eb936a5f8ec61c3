"""take_signal finds out whether a run has to wait. It runs under the write lock."""

from __future__ import annotations

from sqlite3 import Connection

from rowlock.core.steps import STEP_ENDS, StepState
from rowlock.core.waits import WAIT_TIMED_OUT, Wait
from rowlock.stores.base import Awaited, Beat, Hold
from rowlock.stores.sqlite.rows import sql
from rowlock.stores.sqlite.settle import look


def take_signal(conn: Connection, now: int, wait: Wait) -> Awaited:
    [hold] = look(conn, [Beat(wait.id, wait.version, worker=wait.worker)])
    if hold is not Hold.KEPT:
        return Awaited(hold)
    asked = {"id": wait.id, "name": wait.name, "n": wait.n}
    seen, state, result, deadline = conn.execute(sql("wait_found"), asked).fetchone()
    if state in STEP_ENDS:
        return Awaited(hold, StepState(state), result, seen=seen)
    if state is None:
        deadline = wait.deadline(now)
    error = None
    unread = conn.execute(sql("signal_unread"), (wait.id, wait.signal)).fetchone()
    if unread is not None:
        seq, result = unread
        conn.execute(sql("signal_read"), asked | {"seq": seq})
        state = StepState.SUCCEEDED
    elif deadline is not None and deadline <= now:
        result = wait.fallback
        state = StepState.FAILED if result is None else StepState.SUCCEEDED
        error = WAIT_TIMED_OUT if result is None else None
    else:
        state, result = StepState.RUNNING, None
    written = asked | {"position": wait.position, "version": wait.version, "now": now, "deadline": deadline}
    written |= {"state": state.value, "error": error, "finished_at": now if state in STEP_ENDS else None}
    conn.execute(sql("wait"), written | {"result": wait.terms if state is StepState.RUNNING else result})
    conn.execute(sql("checkpoint_job"), {"id": wait.id, "step": wait.name, "percent": None, "now": now})
    left = None if deadline is None or state is not StepState.RUNNING else (deadline - now) / 1e6
    return Awaited(hold, state, result, left, seen)
