"""The defences of waits and signals: see sabotage.py."""

from typing import Any

from msgspec.structs import replace

import rowlock.core.moves
from rowlock.core.job import HELD
from rowlock.core.waits import WaitFacts
from rowlock.stores.sqlite import claim, maintenance, settle, waits
from rowlock.stores.sqlite import moves as sqlite_moves
from tests.proof import detectors_waits as red
from tests.proof.sabotage import (
    _ANYBODY,
    _LEASED,
    _OURS,
    Defence,
    Detector,
    Switch,
    _any_holder,
    _any_version,
    postgres,
    replaced,
    sqlite,
    wrapped,
)

_SETTLES = "settle settle_mixed settle_and_claim settle_mixed_and_claim"
_CLAIMS = "claim settle_and_claim settle_mixed_and_claim complete_and_claim"
_KEEPS = "CASE status WHEN 'pending' THEN 'processing' ELSE status END"
_OPEN = "WHERE NOT EXISTS (SELECT FROM stored WHERE state <> 'running')"
_ANY = "AND (worker IS NULL OR locked_by = worker)"  # holds if no worker has the job, too


def _all_seen(apply: Any) -> Any:
    return lambda conn, now, moves: apply(conn, now, [(row, replace(to, seen=10**9)) for row, to in moves])


def _may_without_lease(row: Any, settlement: Any) -> bool:
    if row.version != settlement.version or settlement.worker not in (None, row.locked_by):
        return False
    return row.status == "processing" or (row.status in HELD and settlement.transition.from_cancel_requested)


def _holds_without_lease(rows: Any, run: Any) -> bool:
    row = rows.get(run.id)
    if row is None or row.version != run.version or run.worker not in (None, row.locked_by):
        return False
    return row.status in HELD


def _without(**columns: Any) -> Any:
    """Write a resumed job with these columns."""

    def around(resumed: Any) -> Any:
        def sabotaged(*arguments: Any, **more: Any) -> Any:
            patch = resumed(*arguments, **more)
            return replace(patch, columns={**patch.columns, **columns})

        return sabotaged

    return around


def _keeping_expiry(patch: Any) -> Any:
    def sabotaged(*arguments: Any) -> Any:
        made = patch(*arguments)
        return replace(made, columns={name: value for name, value in made.columns.items() if name != "expires_at"})

    return sabotaged


def _unasked(**facts: Any) -> Any:
    """Give the moves these facts in place of the true ones."""

    def around(known: Any) -> Any:
        def sabotaged(self: Any, row: Any) -> WaitFacts:
            return known(self, row)._replace(**facts)  # type: ignore[no-any-return]

        return sabotaged

    return around


def _knowing(**facts: Any) -> Switch:
    return wrapped(rowlock.core.moves.WaitOrder, "_facts", _unasked(**facts))


def _of_both(name: str, switch: Switch, detector: Detector) -> tuple[Defence, Defence]:
    """Return two defences, one for each store, of one rule of the core. No store may break that rule."""
    return Defence(name, "sqlite", switch, detector), Defence(name, "postgres", switch, detector)


WAITS: tuple[Defence, ...] = (
    # ── Does a run have to wait? ──
    Defence("signals that a run has not seen", "sqlite", wrapped(settle, "_apply", _all_seen), red.seen),
    Defence(
        "signals that a run has not seen", "postgres", postgres(_SETTLES, "AND signals > seen", "AND false"), red.seen
    ),
    Defence(
        "signals that a run has seen", "postgres", postgres(_SETTLES, "AND signals > seen", "AND signals > 0"),
        red.not_seen,
    ),
    Defence("version in take_signal", "sqlite", replaced(settle, "_holds", _any_version), red.run),
    Defence("version in take_signal", "postgres", postgres("take_signal", "version = run AND", ""), red.run),
    Defence("worker in take_signal", "sqlite", replaced(settle, "_holds", _any_holder), red.run),
    Defence("worker in take_signal", "postgres", postgres("take_signal", _OURS, _LEASED), red.run),
    Defence(
        "a cancelled run does not wait", "postgres", postgres("take_signal", "AND status = 'processing'", ""),
        red.status,
    ),
    Defence(
        "a look that waited for its row is repeated", "postgres",
        postgres("take_signal", "j.ctid = ANY (ARRAY(SELECT tid FROM decided)) AND", ""), red.look_that_waited,
    ),
    Defence("order of signals", "sqlite", sqlite(waits, "signal_unread", "ORDER BY seq", "ORDER BY -seq"), red.order),
    Defence(
        "order of signals", "postgres", postgres("take_signal", "ORDER BY s.seq", "ORDER BY s.seq DESC"), red.order
    ),
    Defence("read once", "sqlite", sqlite(waits, "signal_unread", "AND wait IS NULL", ""), red.order),
    Defence("read once", "postgres", postgres("take_signal", "AND s.wait IS NULL", ""), red.order),
    Defence("a wait stays ended", "sqlite", replaced(waits, "STEP_ENDS", frozenset()), red.repeat),
    Defence("a wait stays ended", "postgres", postgres("take_signal", _OPEN, ""), red.repeat),
    Defence(
        "the deadline of the first call", "sqlite", sqlite(waits, "wait_found", "s.state,", "NULL,"), red.deadline
    ),
    Defence(
        "the deadline of the first call", "postgres",
        postgres("take_signal", "CASE WHEN EXISTS (SELECT FROM stored)", "CASE WHEN false"), red.early,
    ),
    Defence(
        "not before the deadline", "postgres",
        postgres("take_signal", "WHEN (deadline > now) IS NOT FALSE", "WHEN deadline IS NULL"), red.early,
    ),
    Defence(
        "a signal wins over the deadline", "postgres",
        postgres("take_signal", "CASE WHEN EXISTS (SELECT FROM unread) THEN 'succeeded'",
                 "CASE WHEN EXISTS (SELECT FROM unread) AND (deadline > now) IS NOT FALSE THEN 'succeeded'"),
        red.signal_wins,
    ),
    # ── What wakes a job ──
    Defence(
        "claims know when waits end", "sqlite",
        sqlite(claim, "claim_next_due", "status = 'waiting' AND NOT ready", "false"), red.time,
    ),
    Defence(
        "claims know when waits end", "postgres",
        postgres(_CLAIMS, "status IN ('pending', 'waiting') AND NOT ready", "status = 'pending' AND NOT ready"),
        red.time,
    ),
    Defence("promote resumes", "sqlite", replaced(maintenance, "move_due", lambda *_: []), red.time),
    Defence("promote resumes", "postgres", postgres("resume_due", "j.status = 'waiting'", "false"), red.time),
    Defence(
        "a wait without an end", "sqlite",
        replaced(settle, "NEVER", 1_700_000_000_000_000), red.endless,
    ),
    *_of_both("a resumed job is ready", wrapped(rowlock.core.moves, "_resumed", _without(ready=False)), red.woken),
    *_of_both(
        "a resumed job is due now",
        wrapped(rowlock.core.moves, "_resumed", _without(run_at=4_000_000_000_000_000)), red.due_now,
    ),
    *_of_both("a signal counts once", _knowing(is_known=False), red.once),
    Defence(
        "ids of signals are looked up", "sqlite",
        sqlite(sqlite_moves, "wait_facts", "signal_id = :signal_id AND", "false AND"), red.once,
    ),
    Defence(
        "ids of signals are looked up", "postgres",
        postgres("wait_facts", "s.signal_id = $4::text AND", "false AND"), red.once,
    ),
    *_of_both("the bound of unread signals", _knowing(unread=0), red.bound),
    Defence(
        "wake ends the wait", "sqlite",
        sqlite(sqlite_moves, "wait_deadline", "WHERE", "WHERE false AND"), red.wake,
    ),
    Defence("wake ends the wait", "postgres", postgres("set_deadlines", "WHERE", "WHERE false AND"), red.wake),
    Defence(
        "wake ends open waits only", "sqlite",
        sqlite(sqlite_moves, "wait_deadline", "AND state = 'running'", ""), red.ended_waits,
    ),
    Defence(
        "wake ends open waits only", "postgres",
        postgres("set_deadlines", "s.state = 'running' OR", "true OR"), red.ended_waits,
    ),
    # ── Callbacks ──
    *_of_both(
        "late answers are refused", _knowing(callback=None), red.late
    ),
    *_of_both(
        "answers to no callback are refused",
        _knowing(has_callback=True), red.late,
    ),
    *_of_both(
        "a report restarts the wait", _knowing(timeout=None), red.report
    ),
    Defence(
        "a report is about one callback", "sqlite",
        sqlite(sqlite_moves, "wait_deadline", "n = :n OR", "true OR"), red.one_callback,
    ),
    Defence(
        "a report is about one callback", "postgres",
        postgres("set_deadlines", "AND s.n = $4::int", "AND $4::int > 0"), red.one_callback,
    ),
    # ── Cancels ──
    *_of_both("steps are undone", _knowing(undoes=False), red.undo),
    *_of_both(
        "the outside may stop", replaced(rowlock.core.moves.Cancel, "_is_outside", lambda *_: False), red.outside
    ),
    Defence(
        "an address is nothing to undo", "sqlite",
        sqlite(sqlite_moves, "wait_facts", "AND substr(name, 1, 1) <> '@'", ""), red.outside,
    ),
    Defence(
        "an address is nothing to undo", "postgres",
        postgres("wait_facts", "AND s.name NOT LIKE '@%'", ""), red.outside,
    ),
    Defence("the last run stays cancelled", "sqlite", sqlite(claim, "claim", _KEEPS, "'processing'"), red.undo),
    Defence("the last run stays cancelled", "postgres", postgres(_CLAIMS, _KEEPS, "'processing'"), red.undo),
    Defence(
        "a last run needs a cancel", "postgres",
        postgres(_SETTLES, "status = 'processing' AND goal <> 'cancel_requested'", "status = 'processing'"),
        red.no_cancel,
    ),
    Defence(
        "a cancelled run may ask for a last one", "postgres",
        postgres(_SETTLES, "'cancelled', 'cancel_requested')", "'cancelled')"),
        red.cancel_before_the_wait,
    ),
    # ── Without a lease no run writes, even if it names no worker ──
    Defence("lease in settle", "sqlite", replaced(settle, "_may", _may_without_lease), red.lease_in_settle),
    Defence(
        "lease in settle", "postgres",
        postgres("complete complete_and_claim", "locked_by = coalesce($5::text, locked_by)", _ANYBODY),
        red.lease_in_settle,
    ),
    *(
        Defence(f"lease in {verb}", "sqlite", replaced(settle, "_holds", _holds_without_lease), detector)
        for verb, detector in (
            ("heartbeat", red.lease_in_heartbeat), ("progress", red.lease_in_progress),
            ("checkpoint", red.lease_in_checkpoint),
        )
    ),
    *(
        Defence(f"lease in {verb}", "postgres", postgres(verb, _OURS, _ANY), detector)
        for verb, detector in (
            ("heartbeat", red.lease_in_heartbeat), ("progress", red.lease_in_progress),
            ("checkpoint", red.lease_in_checkpoint),
        )
    ),
    # ── Removals, and the first start ──
    Defence(
        "signals of dropped waits", "sqlite", sqlite(sqlite_moves, "drop_read_signals", "WHERE", "WHERE false AND"),
        red.requeue,
    ),
    Defence(
        "signals of dropped waits", "postgres",
        postgres("drop_steps", "_jobs_signals WHERE", "_jobs_signals WHERE false AND"), red.requeue,
    ),
    Defence("delete removes signals", "sqlite", replaced(sqlite_moves, "drop_signals", lambda *_: None), red.delete),
    Defence(
        "delete removes signals", "postgres", postgres("drop_signals", "WHERE s.job_id", "WHERE false AND s.job_id"),
        red.delete,
    ),
    Defence("prune removes signals", "sqlite", replaced(maintenance, "drop_signals", lambda *_: None), red.prune),
    Defence(
        "prune removes signals", "postgres",
        postgres("prune", "_jobs_signals WHERE job_id", "_jobs_signals WHERE false AND job_id"), red.prune,
    ),
    Defence(
        "a started job does not expire", "sqlite",
        sqlite(settle, "settle", "CASE WHEN :has_run THEN NULL ELSE expires_at END", "expires_at"), red.first_start,
    ),
    Defence(
        "a started job does not expire", "postgres",
        postgres(_SETTLES, "(ok.ran IS NOT NULL OR j.started_at IS NOT NULL)", "false"), red.first_start,
    ),
    *_of_both(
        "a crashed job does not expire", wrapped(rowlock.core.moves.Rescue, "patch", _keeping_expiry), red.crashed_job,
    ),
)  # fmt: skip
