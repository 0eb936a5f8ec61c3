"""The product's defences. Each can be switched off from here, and has a detector that must turn red then.

The product knows nothing of this: the sabotage changes texts of statements as they are loaded, and replaces functions.
A sabotage that no longer finds its text is an error, so none of them can go stale unnoticed.

simulation_sabotage.py sabotages what workers do: leases, trust, lost claims, last words, decisions that must be made
again. model.py sabotages the rules of the protocol.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

import rowlock.client.enqueue
import rowlock.stores.postgres.fence
import rowlock.stores.postgres.store
import rowlock.stores.sqlite.connection
from rowlock.core import lifecycle, moves
from rowlock.core.job import HELD
from rowlock.runtime.claim_settle import ClaimSettle
from rowlock.runtime.claimed_ahead import ClaimedAhead
from rowlock.runtime.heartbeat import HeartbeatThread
from rowlock.runtime.run import Run
from rowlock.runtime.worker import Worker
from rowlock.stores.postgres import statements
from rowlock.stores.postgres.clock import Ghosts
from rowlock.stores.postgres.doorbell import Doorbell
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.postgres.store import PostgresStore
from rowlock.stores.sqlite import claim, maintenance, settle
from rowlock.stores.sqlite import moves as sqlite_moves
from rowlock.stores.sqlite.connection import SqliteConnection
from rowlock.stores.sqlite.fenced import FencedConnection
from rowlock.stores.sqlite.files import Files
from tests.proof import detectors as red
from tests.proof.crash_stage import new_ids
from tests.proof.simulation_world import Machine
from tests.stores.harness import Harness

Switch = Callable[[pytest.MonkeyPatch], None]
Detector = Callable[[Harness], Awaitable[None]]


class Defence(Struct, frozen=True):
    """`off` switches the defence off. `detector` is green with it and red without it. `virtual`: the test sets the
    clock. `waits`: without the defence a process waits too long, so the detector is red if it does not finish soon."""

    name: str
    store: str
    off: Switch
    detector: Detector
    virtual: bool = True
    waits: bool = False

    def __str__(self) -> str:
        return f"{self.name}, {self.store}"


# ── Ways to change a text ──


def without(text: str, old: str, new: str) -> str:
    if old not in text:
        raise LookupError(f"nothing to sabotage: {old!r} is not in {text!r}")
    return text.replace(old, new)


def postgres(names: str, old: str, new: str) -> Switch:
    """Return a switch that changes the text of these statements, by their names in Statements."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        init = Statements.__init__

        def sabotaged(self: Statements, schema: str) -> None:
            init(self, schema)
            for name in names.split():
                setattr(self, name, without(getattr(self, name), old, new))

        patch.setattr(Statements, "__init__", sabotaged)

    return switch_off


def sqlite(module: Any, statement: str, old: str, new: str) -> Switch:
    """Return a switch that changes the text of this statement when this module loads it."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        load = module.sql
        patch.setattr(module, "sql", lambda name: without(load(name), old, new) if name == statement else load(name))

    return switch_off


def replaced(owner: Any, name: str, by: Any) -> Switch:
    return lambda patch: patch.setattr(owner, name, by)


def wrapped(owner: Any, name: str, around: Callable[[Any], Any]) -> Switch:
    return lambda patch: patch.setattr(owner, name, around(getattr(owner, name)))


def both(one: Switch, other: Switch) -> Switch:
    def switch_off(patch: pytest.MonkeyPatch) -> None:
        one(patch)
        other(patch)

    return switch_off


# ── Replacements ──


def _any_version(rows: Any, run: Any) -> bool:
    return run.id in rows and rows[run.id].status in HELD


def _any_holder(rows: Any, run: Any) -> bool:
    return _any_version(rows, run) and bool(rows[run.id].version == run.version)


def _any_worker(row: Any, settlement: Any) -> bool:
    return row.status in HELD and bool(row.version == settlement.version)


def _any_status(row: Any, settlement: Any) -> bool:
    return bool(row.version == settlement.version)


def _uncharged(patch: Any) -> Any:
    def sabotaged(*arguments: Any) -> Any:
        decided = patch(*arguments)
        columns = {name: value for name, value in decided.columns.items() if name != "retries"}
        return replace(decided, columns=columns)

    return sabotaged


def _before_forgotten(move_due: Any) -> Any:
    return lambda conn, now, order, limit: move_due(conn, now, replace(order, before=None), limit)


def _never_a_repeat(insert: Any) -> Any:
    return lambda conn, now, jobs, repeat: insert(conn, now, jobs, False)


async def _at_once(*_: Any) -> None:
    """Return at once, in place of a function that waits."""


async def _again_with_new_ids(store: Any, jobs: Sequence[Any]) -> Any:
    return await store.insert([replace(job, id=new_ids.one()) for job in jobs])


def _fence_ignores_the_version(hold: Any) -> Any:
    return lambda schema: without(hold(schema), "JOIN asked USING (version)", "CROSS JOIN asked")


def _fence_ignores_the_worker(hold: Any) -> Any:
    return lambda schema: without(hold(schema), "found.locked_by = coalesce(asked.worker, found.locked_by)", "true")


def _without_a_rescan(attend: Any) -> Any:
    """The listener takes its lock, and the waiting workers don't look for jobs again."""

    async def sabotaged(self: Doorbell, session: Any) -> Any:
        lock = session.lock

        async def lock_and_say_nothing() -> None:
            await lock()
            self._rang = _Mute(self._rang)  # type: ignore[assignment]

        session.lock = lock_and_say_nothing
        return await attend(self, session)

    return sabotaged


class _Mute:
    """An event that ignores its next `set`."""

    def __init__(self, event: Any) -> None:
        self._event = event
        self._muted = True

    def set(self) -> None:
        if not self._muted:
            self._event.set()
        self._muted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._event, name)


_PROCESSING = "OR status = 'cancel_requested' AND goal IN ('completed', 'cancelled', 'cancel_requested')"
_VERSION = "version = json_extract(s.value, '$[1]') AND"
_RUN = "version = $2::int"
_WORKER = "AND (:worker IS NULL OR locked_by = :worker)"
_OURS = "AND locked_by = coalesce(worker, locked_by)"
_ANYBODY = "($5::text IS NULL OR locked_by = $5::text)"  # or held by no worker
_LEASED = "AND locked_by IS NOT NULL"
_RUNNING = "AND (status = 'processing' OR status = 'cancel_requested')"
_LOCKED = "AND locked_until IS NOT NULL"
_HELD = "AND status IN ('processing', 'cancel_requested')"
_EXPIRED = "least(clock_timestamp(), coalesce($2::timestamptz, 'infinity'))"
_NO_BEFORE = "coalesce(nullif($2::timestamptz, $2::timestamptz), clock_timestamp())"
_PAUSED = "paused_at IS NOT NULL AND"

DEFENCES: tuple[Defence, ...] = (
    # ── The fence ──
    Defence("version in settle", "sqlite", replaced(settle, "_may", lambda row, _: row.status in HELD), red.settle),
    Defence(
        "version in settle",
        "postgres",
        postgres("settle settle_and_claim", "version = run", "true"),
        red.settle,
    ),
    Defence("status in settle", "sqlite", replaced(settle, "_may", _any_status), red.status),
    Defence("status in settle", "postgres", postgres("settle settle_and_claim", _PROCESSING, "OR true"), red.status),
    Defence("version in complete", "sqlite", sqlite(settle, "settle_archive", _VERSION, ""), red.completion),
    Defence("lease in complete", "sqlite", sqlite(settle, "settle_archive", _LOCKED, ""), red.complete),
    Defence(
        "version in complete", "postgres", postgres("complete complete_and_claim", _RUN, "$2::int > 0"), red.completion
    ),
    # Status and lease say the same, except for a waiting job that is being cancelled: see sabotage_waits.py.
    Defence(
        "status and lease in complete",
        "postgres",
        both(
            postgres("complete complete_and_claim", _RUNNING, ""),
            postgres("complete complete_and_claim", "locked_by = coalesce($5::text, locked_by)", _ANYBODY),
        ),
        red.complete,
    ),
    Defence("version in heartbeat", "sqlite", replaced(settle, "_holds", _any_version), red.heartbeat),
    Defence("version in heartbeat", "postgres", postgres("heartbeat", "version = run AND", ""), red.heartbeat),
    Defence("version in progress", "sqlite", replaced(settle, "_holds", _any_version), red.progress),
    Defence("version in progress", "postgres", postgres("progress", "version = run AND", ""), red.progress),
    Defence(
        "status and lease in heartbeat",
        "postgres",
        both(postgres("heartbeat", _HELD, ""), postgres("heartbeat", _OURS, "")),
        red.heartbeat_after_the_end,
    ),
    Defence(
        "fence",
        "sqlite",
        replaced(rowlock.stores.sqlite.connection, "fence", lambda *_: None),
        red.fence,
        virtual=False,
    ),
    Defence(
        "version in fence",
        "postgres",
        wrapped(rowlock.stores.postgres.fence, "_hold", _fence_ignores_the_version),
        red.fence,
        virtual=False,
    ),
    Defence("worker in settle", "sqlite", replaced(settle, "_may", _any_worker), red.others_settle),
    Defence(
        "worker in settle",
        "postgres",
        postgres("settle settle_and_claim", "locked_by = coalesce($11::text, locked_by)", "$11::text IS NOT NULL"),
        red.others_settle,
    ),
    Defence(
        "worker in a mixed settle",
        "postgres",
        postgres(
            "settle_mixed settle_mixed_and_claim", "held.locked_by = coalesce(asked.worker, held.locked_by)", "true"
        ),
        red.others_in_a_mixed_batch,
    ),
    Defence("worker in complete", "sqlite", sqlite(settle, "settle_archive", _WORKER, ""), red.others_completion),
    Defence(
        "worker in complete",
        "postgres",
        postgres("complete complete_and_claim", "locked_by = coalesce($5::text, locked_by)", "$5::text IS NOT NULL"),
        red.others_completion,
    ),
    Defence("worker in heartbeat", "sqlite", replaced(settle, "_holds", _any_holder), red.others_heartbeat),
    Defence("worker in heartbeat", "postgres", postgres("heartbeat", _OURS, _LEASED), red.others_heartbeat),
    Defence("worker in progress", "sqlite", replaced(settle, "_holds", _any_holder), red.others_progress),
    Defence("worker in progress", "postgres", postgres("progress", _OURS, _LEASED), red.others_progress),
    Defence("worker in fence", "sqlite", replaced(settle, "_holds", _any_holder), red.others_fence, virtual=False),
    Defence(
        "worker in fence",
        "postgres",
        wrapped(rowlock.stores.postgres.fence, "_hold", _fence_ignores_the_worker),
        red.others_fence,
        virtual=False,
    ),
    Defence("worker in repeats", "sqlite", replaced(lifecycle, "same_worker", lambda *_: True), red.others_repeat),
    Defence("worker in repeats", "postgres", replaced(lifecycle, "same_worker", lambda *_: True), red.others_repeat),
    Defence(
        "what a settle claims is not its own",
        "postgres",
        wrapped(
            PostgresStore, "_verdicts", lambda judge: lambda self, wishes, done, _: judge(self, wishes, done, None)
        ),
        red.own_claim_beside_the_settle,
    ),
    Defence(
        "an older run makes room",
        "sqlite",
        replaced(Worker, "_replaced", lambda *_: None),
        red.older_run,
        virtual=False,
    ),
    # ── The claim ──
    Defence("version grows", "sqlite", sqlite(claim, "claim", "version = version + 1", "version = version"), red.claim),
    Defence(
        "version grows",
        "postgres",
        postgres("claim settle_and_claim complete_and_claim", "version = version + 1", "version = version"),
        red.claim,
    ),
    Defence("pause", "sqlite", sqlite(claim, "claim_paused", "WHERE", "WHERE 0 AND"), red.pause),
    Defence("pause", "postgres", postgres("claim", _PAUSED, "false AND"), red.pause),
    Defence("expiry in claim", "sqlite", sqlite(claim, "claim_lane", "expires_at > ?", "? > 0"), red.expiry),
    Defence(
        "expiry in claim",
        "postgres",
        postgres("claim", "j.expires_at > (SELECT clock_timestamp())", "true"),
        red.expiry,
    ),
    Defence(
        "skip locked",
        "postgres",
        postgres("claim", "FOR UPDATE SKIP LOCKED", "FOR UPDATE"),
        red.claim_of_locked_rows,
        waits=True,
    ),
    Defence(
        "heartbeats wait for nobody",
        "postgres",
        postgres("heartbeat progress", "FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"),
        red.heartbeat_of_locked_rows,
        waits=True,
    ),
    # ── Leases ──
    Defence("lease", "sqlite", sqlite(sqlite_moves, "rescue_expired", "locked_until < :now", ":now > 0"), red.lease),
    Defence(
        "lease",
        "postgres",
        postgres(
            "rescue_expired",
            "j.locked_until < (",
            "($2::timestamptz IS NULL OR true) AND j.locked_until > '-infinity' OR j.locked_until < (",
        ),
        red.lease,
    ),
    Defence("before", "sqlite", wrapped(sqlite_moves, "move_due", _before_forgotten), red.before),
    Defence("before", "postgres", postgres("rescue_expired", _EXPIRED, _NO_BEFORE), red.before),
    Defence(
        "lease never shrinks", "sqlite", sqlite(settle, "heartbeat", "max(locked_until, :until)", ":until"), red.shrink
    ),
    Defence(
        "lease never shrinks", "postgres", postgres("heartbeat", "greatest(j.locked_until, ", "greatest("), red.shrink
    ),
    Defence("crashes charged", "sqlite", wrapped(moves.Rescue, "patch", _uncharged), red.charge),
    Defence("crashes charged", "postgres", wrapped(moves.Rescue, "patch", _uncharged), red.charge),
    Defence(
        "rescue holds its locks until it has written",
        "postgres",
        both(  # a row that has changed since has moved, which also keeps it safe, so both defences must go
            postgres("rescue_expired", "FOR NO KEY UPDATE SKIP LOCKED", ""),
            postgres("write_moves", "j.ctid = p.tid", "j.id = p.id"),
        ),
        red.race_of_rescues,
        virtual=False,
    ),
    Defence("promote", "sqlite", sqlite(maintenance, "promote", "run_at <= ?", "run_at <= ? AND 0"), red.promote),
    Defence("promote", "postgres", postgres("promote", "NOT ready AND", "false AND"), red.promote),
    # ── Enqueue ──
    Defence(
        "archive looked at",
        "sqlite",
        wrapped(rowlock.stores.sqlite.insert, "_insert_jobs", _never_a_repeat),
        red.archive,
    ),
    Defence(
        "archive looked at", "postgres", postgres("insert_undo", "j.ctid = ANY", "false AND j.ctid = ANY"), red.archive
    ),
    Defence("one live job per key", "sqlite", red.without_the_index, red.keys),
    Defence("one live job per key", "postgres", red.without_the_index, red.keys),
    Defence(
        "repeat with the same id",
        "sqlite",
        replaced(rowlock.client.enqueue, "_find_out", _again_with_new_ids),
        red.swallowed_insert,
        virtual=False,
    ),
    Defence(
        "repeat with the same id",
        "postgres",
        replaced(rowlock.client.enqueue, "_find_out", _again_with_new_ids),
        red.swallowed_insert,
        virtual=False,
    ),
    Defence(
        "a repeat waits until the first insert is over",
        "postgres",
        replaced(Ghosts, "outlast", _at_once),
        red.insert_on_its_way,
        virtual=False,
    ),
    Defence(
        "an insert that waited too long",
        "postgres",
        postgres("insert_keyed", "count(*) > 0 AND clock_timestamp() > $16::timestamptz", "false"),
        red.insert_that_waited,
        virtual=False,
    ),
    # ── PostgreSQL's own traps ──
    Defence(
        "applied is asked of the write",
        "postgres",
        postgres("settle", "FROM (SELECT id FROM gone UNION ALL SELECT id FROM moved) written", "FROM ok"),
        red.write_that_waited,
        virtual=False,
    ),
    Defence(
        "missed writes are repeated",
        "postgres",
        replaced(rowlock.stores.postgres.store, "_may_settle", lambda *_: False),
        red.write_that_waited,
        virtual=False,
    ),
    Defence(
        "sorted batches",
        "postgres",
        postgres("insert_keyed", statements.KEY_ORDER, ""),
        red.opposite_inserts,
        virtual=False,
    ),
    Defence(
        "sorted settles",
        "postgres",
        postgres("settle", "ORDER BY id\n)", ")"),
        red.opposite_settles,
        virtual=False,
    ),
    Defence(
        "look again when armed",
        "postgres",
        wrapped(Doorbell, "_attend", _without_a_rescan),
        red.lost_listener,
        virtual=False,
        waits=True,
    ),
    # ── SQLite's own ──
    Defence(
        "watchdog",
        "sqlite",
        wrapped(FencedConnection, "watch", lambda watch: lambda self, _: watch(self, 3600.0)),
        red.watchdog,
        virtual=False,
        waits=True,
    ),
    Defence("clock read under the lock", "sqlite", red.clock_read_before_the_lock, red.clock, virtual=False),
    Defence("file looked at", "sqlite", replaced(Files, "is_current", lambda _: True), red.lost_file, virtual=False),
    Defence(
        "file looked at after the commit",
        "sqlite",
        replaced(SqliteConnection, "_acknowledge", lambda _: None),
        red.file_lost_in_a_commit,
        virtual=False,
    ),
    Defence("log looked at", "sqlite", replaced(Files, "has_log", lambda _: True), red.lost_log, virtual=False),
    Defence(
        "log of the old file removed",
        "sqlite",
        replaced(Files, "abandon", lambda _, *, complete: None),
        red.replaced_file,
        virtual=False,
    ),
    Defence(
        "identity of a copy",
        "sqlite",
        replaced(rowlock.stores.sqlite.connection, "mark", lambda *_: None),
        red.connection_to_a_deleted_original,
        virtual=False,
    ),
)


# ── Workers ──


def no_start_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "needs_mark", property(lambda self: False))


def marks_for_all_that_is_claimed_ahead(patch: pytest.MonkeyPatch) -> None:
    to_mark = ClaimedAhead.to_mark
    patch.setattr(ClaimedAhead, "to_mark", lambda self, _: to_mark(self, 1_000_000))


def off_the_board_when_the_handler_has_ended(patch: pytest.MonkeyPatch) -> None:
    done = Worker._done

    def sabotaged(self: Worker, run: Run, outcome: Any) -> None:
        self.slots.clear(run)
        done(self, run, outcome)

    patch.setattr(Worker, "_done", sabotaged)


def renew_only_what_the_loop_knows(patch: pytest.MonkeyPatch) -> None:
    async def sabotaged(self: HeartbeatThread) -> None: ...

    patch.setattr(HeartbeatThread, "_renew_unheard", sabotaged)


def never_look_for_claims_that_came_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimSettle, "look_for_lost_claims", lambda self: None)


def heartbeats_on_the_event_loop(patch: pytest.MonkeyPatch) -> None:
    init = Machine.__init__

    def sabotaged(self: Machine, *arguments: Any) -> None:
        init(self, *arguments)
        self.heartbeat_thread = self.main

    patch.setattr(Machine, "__init__", sabotaged)


WORKERS: tuple[tuple[Switch, Callable[[], None]], ...] = (
    (no_start_mark, lambda: red.unmarked_suspects(range(1, 20))),
    (marks_for_all_that_is_claimed_ahead, red.marked_and_not_begun),
    (off_the_board_when_the_handler_has_ended, red.unsettled_on_the_board),
    (renew_only_what_the_loop_knows, red.unheard_claims),
    (never_look_for_claims_that_came_late, red.late_claims),
    (heartbeats_on_the_event_loop, red.blocked_loops),
)
