"""The defences of steps: see sabotage.py."""

from typing import Any

import rowlock.core.moves
import rowlock.stores.sqlite.moves
import rowlock.stores.sqlite.steps
from rowlock.stores.sqlite import claim, maintenance, settle
from rowlock.stores.sqlite import moves as sqlite_moves
from tests.proof import detectors_steps as red
from tests.proof.sabotage import (
    _HELD,
    _LEASED,
    _OURS,
    Defence,
    Switch,
    _any_holder,
    _any_version,
    both,
    postgres,
    replaced,
    sqlite,
    wrapped,
)
from tests.proof.sabotage_lines import _statement

_ENDS_STAY = "state NOT IN ('succeeded', 'failed')"
_KEEPS = "CASE WHEN step IS NULL THEN 0 ELSE progress END"
_CLAIMS = "claim settle_and_claim settle_mixed_and_claim complete_and_claim"
_UNSHIELDED = "(j.step IS NULL OR ("
_LIVE_LEASE = {"postgres": "j.locked_until >= (SELECT clock_timestamp()) AND", "sqlite": "j.locked_until >= :now AND"}
_OWN_RUN = "AND s.version = j.version"
_OTHER_JOB = {
    "postgres": 'AND NOT EXISTS (SELECT FROM "public"._jobs j WHERE j.id = $1::uuid)',
    "sqlite": "WHERE NOT EXISTS (SELECT 1 FROM _jobs j WHERE j.id = i.value)",
}


def _any_status(rows: Any, run: Any) -> bool:
    row = rows.get(run.id)
    return row is not None and row.version == run.version and run.worker in (None, row.locked_by)


def _both_looks(old: str, new: str) -> Switch:
    """Return a switch for SQLite's two statements that look for steps that are not cancelable."""
    return both(_statement("cancel_timeout_due", old, new), sqlite(sqlite_moves, "shielded", old, new))


STEPS: tuple[Defence, ...] = (
    # ── The fence ──
    Defence("version in checkpoint", "sqlite", replaced(settle, "_holds", _any_version), red.version),
    Defence("version in checkpoint", "postgres", postgres("checkpoint", "version = run AND", ""), red.version),
    Defence("worker in checkpoint", "sqlite", replaced(settle, "_holds", _any_holder), red.worker),
    Defence("worker in checkpoint", "postgres", postgres("checkpoint", _OURS, _LEASED), red.worker),
    Defence("status in checkpoint", "sqlite", replaced(settle, "_holds", _any_status), red.status),
    Defence(
        "status and lease in checkpoint", "postgres",
        both(postgres("checkpoint", _HELD, ""), postgres("checkpoint", _OURS, "")), red.status,
    ),
    # ── Stored steps ──
    Defence(
        "an end stays", "sqlite", sqlite(rowlock.stores.sqlite.steps, "checkpoint", _ENDS_STAY, "true"), red.end
    ),
    Defence("an end stays", "postgres", postgres("checkpoint", f"s.{_ENDS_STAY}", "true"), red.end),
    Defence(
        "a late mark replaces nothing", "sqlite",
        sqlite(rowlock.stores.sqlite.steps, "checkpoint", "excluded.state = 'running'", "false"), red.late,
    ),
    Defence(
        "a late mark replaces nothing", "postgres",
        postgres("checkpoint", "excluded.state = 'running'", "false"), red.late,
    ),
    Defence("claim keeps the progress", "sqlite", sqlite(claim, "claim", _KEEPS, "0"), red.progress),
    Defence("claim keeps the progress", "postgres", postgres(_CLAIMS, _KEEPS, "0"), red.progress),
    Defence(
        "marks that waited are repeated", "postgres",
        postgres("checkpoint", "marked.id IS NOT NULL", "true"), red.mark_that_waited,
    ),
    Defence(
        "sorted checkpoints", "postgres", postgres("checkpoint", "ORDER BY id\n)", ")"), red.opposite_marks,
        virtual=False,
    ),
    # ── Cancels ──
    Defence(
        "the shield", "sqlite",
        both(
            _statement("cancel_timeout_due", _UNSHIELDED, "(true OR ("),
            wrapped(rowlock.core.moves.CancelTimeout, "patch", lambda patch: lambda self, row, now, holder: patch(
                rowlock.core.moves.CancelTimeout(by=self.by, grace=self.grace), row, now, holder)),
        ),
        red.shield,
    ),
    Defence(
        "the shield", "postgres",
        both(
            postgres("cancel_timeout_due", "(j.step IS NULL OR (", "(true OR ("),
            postgres("shielded", "WHERE j.locked_until", "WHERE false AND j.locked_until"),
        ),
        red.shield,
    ),
    Defence(
        "shields are passed over", "sqlite",
        _statement("cancel_timeout_due", _UNSHIELDED, "(true OR ("), red.hidden,
    ),
    Defence(
        "shields are passed over", "postgres",
        postgres("cancel_timeout_due", "(j.step IS NULL OR (", "(true OR ("), red.hidden,
    ),
    Defence(
        "shields are looked at under the lock", "postgres",
        postgres("shielded", "WHERE j.locked_until", "WHERE false AND j.locked_until"), red.late_shield,
    ),
    Defence("the shield needs a live lease", "sqlite", _both_looks(_LIVE_LEASE["sqlite"], ""), red.lease),
    Defence(
        "the shield needs a live lease", "postgres",
        postgres("cancel_timeout_due shielded", _LIVE_LEASE["postgres"], ""), red.lease,
    ),
    Defence("the shield is that of the run", "sqlite", _both_looks(_OWN_RUN, ""), red.own_shield),
    Defence(
        "the shield is that of the run", "postgres",
        postgres("cancel_timeout_due shielded", _OWN_RUN, ""), red.own_shield,
    ),
    # ── Removals ──
    Defence(
        "requeue removes", "sqlite", sqlite(sqlite_moves, "drop_step", "WHERE", "WHERE false AND"), red.requeue
    ),
    Defence("requeue removes", "postgres", postgres("drop_steps", "WHERE", "WHERE false AND"), red.requeue),
    *(
        Defence(
            "another payload removes all", store,
            replaced(rowlock.core.moves, "_is_other_payload", lambda *_: False), red.payload,
        )
        for store in ("sqlite", "postgres")
    ),
    Defence("delete removes", "sqlite", replaced(sqlite_moves, "drop_steps", lambda *_: None), red.delete),
    Defence(
        "delete removes", "postgres", postgres("drop_all_steps", "WHERE job_id", "WHERE false AND job_id"), red.delete
    ),
    Defence("prune removes", "sqlite", replaced(maintenance, "drop_steps", lambda *_: None), red.prune),
    Defence(
        "prune removes", "postgres",
        postgres("prune", "_jobs_steps WHERE job_id", "_jobs_steps WHERE false AND job_id"), red.prune,
    ),
    Defence(
        "steps of another job with this id", "sqlite",
        sqlite(sqlite_moves, "drop_all_steps", _OTHER_JOB["sqlite"], ""), red.used_again,
    ),
    Defence(
        "steps of another job with this id", "postgres",
        postgres("drop_all_steps", _OTHER_JOB["postgres"], ""), red.used_again,
    ),
    Defence(
        "steps of another job with this id, pruned", "postgres",
        postgres("prune", 'AND NOT EXISTS (SELECT FROM "public"._jobs j WHERE j.id = a.id)', ""),
        red.used_again_and_pruned,
    ),
)  # fmt: skip
