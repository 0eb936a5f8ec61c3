"""The defences of schedules: see sabotage.py."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import rowlock.client.firing
import rowlock.client.schedules
import rowlock.core.schedules
import rowlock.stores.postgres.schedules
import rowlock.stores.sqlite.schedules
from rowlock.client.firing import Firing
from rowlock.core.schedules import Planned
from rowlock.stores.postgres.statements import Statements
from tests.proof import detectors_schedules as red
from tests.proof.sabotage import Defence, Switch, both, postgres, replaced, sqlite, wrapped

_SQLITE = rowlock.stores.sqlite.schedules


def _on_conn(names: str, old: str, new: str) -> Switch:
    """Return a switch for statements that callers' connections use. The product keeps those for ever, so make them
    anew."""
    fresh = replaced(rowlock.stores.postgres.schedules, "statements_on_conn", lambda schema: Statements(f'"{schema}"'))
    return both(postgres(names, old, new), fresh)


def _stays(rescheduled: Callable[..., Any]) -> Callable[..., Any]:
    """Move on the next time, but not `upto`."""
    return lambda schedule, upto, local: replace(rescheduled(schedule, upto, local), upto=schedule.upto)


def _only_jobs(plan: Callable[..., Any]) -> Callable[..., Any]:
    """Move `upto` on without a record of the times that made no job."""
    return lambda *asked: Planned([one for one in plan(*asked).times if one[1] is None])


def _all_make_jobs(plan: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *asked: Planned([(at, None) for at, _ in plan(*asked).times])


async def _nothing(*_arguments: Any) -> list[Any]:
    return []


def _by_itself(pause_from: Callable[..., Any]) -> Callable[..., Any]:
    return lambda schedule, now: now


def _own_only(schedule: Any, at: Any) -> bool:
    """Let times before the current pause make jobs."""
    if schedule.paused_at is None or at < schedule.paused_at:
        return False
    return schedule.resumed_at is None or at <= schedule.resumed_at


def _unlocked(name: str) -> Switch:
    return _on_conn(name, " FOR UPDATE SKIP LOCKED" if name == "schedules_due" else " FOR UPDATE", "")


def _raises(patch: pytest.MonkeyPatch) -> None:
    """Let one unreadable schedule be an error for all schedules."""
    patch.setattr(
        "rowlock.stores.sqlite.schedules.schedules_of",
        lambda rows: rowlock.stores.schedules.Read([rowlock.stores.schedules._schedule_of(row) for row in rows], []),
    )


_FIRED = "_jobs_time(t.fire_at)) IS NOT NULL"
_GUARD = "WHERE f.job_id IS NULL\n"
_MARK = "WHERE j.id = ANY ("

SCHEDULES: tuple[Defence, ...] = (
    Defence(
        "the look for jobs", "postgres", _on_conn("schedules_look_on_conn", _FIRED, f"{_FIRED} AND false"), red.one_job
    ),
    Defence("the look for jobs", "sqlite", sqlite(_SQLITE, "schedule_fired", "IS NOT NULL", "= 'x'"), red.one_job),
    Defence(
        "the look into lines", "postgres", _on_conn("schedules_look_on_conn", "LIMIT 2", "LIMIT 0"), red.one_waits
    ),
    Defence("the look into lines", "sqlite", sqlite(_SQLITE, "line_waits", "LIMIT 2", "LIMIT 0"), red.one_waits),
    Defence("a job keeps its time", "postgres", _on_conn("schedules_write_on_conn", _GUARD, ""), red.one_job),
    Defence(
        "a job keeps its time", "sqlite", sqlite(_SQLITE, "schedule_fire", "WHERE job_id IS NULL", ""), red.one_job
    ),
    Defence(
        "a job knows its time", "postgres",
        _on_conn("schedules_write_on_conn", _MARK, f"{_MARK[:6]}false AND {_MARK[6:]}"), red.dated,
    ),
    Defence("locked ones are left out", "postgres", _unlocked("schedules_due"), red.skip_locked),
    Defence(
        "locked ones are not waited for", "postgres", _on_conn("schedules_due", " SKIP LOCKED", ""), red.skip_locked,
        waits=True,
    ),
    *(
        Defence(f"the lock of {name}", "postgres", _unlocked(name), red.locks(which))
        for name, which in (("schedules_by_id", "ids"), ("schedule_by_name", "name"), ("schedules_due", "due"))
    ),
    Defence("one that can't be read is left out", "sqlite", _raises, red.unreadable),
    Defence(
        "fires with a job are kept", "sqlite", sqlite(_SQLITE, "prune_fires", "job_id IS NULL AND", ""), red.pruned
    ),
    Defence(
        "fires with a job are kept", "postgres", postgres("prune_fires", "job_id IS NULL AND", ""), red.pruned
    ),
    *(
        defence
        for store in ("sqlite", "postgres")
        for defence in (
            Defence("upto moves on", store, wrapped(rowlock.client.firing, "rescheduled", _stays), red.oracle),
            Defence("all times are recorded", store, wrapped(rowlock.client.firing, "plan", _only_jobs), red.oracle),
            Defence("the policies", store, wrapped(rowlock.client.firing, "plan", _all_make_jobs), red.oracle),
            Defence("pauses join", store, wrapped(rowlock.client.schedules, "pause_from", _by_itself), red.joined),
            Defence("a pause holds", store, replaced(rowlock.core.schedules, "_in_pause", _own_only), red.holds),
            Defence("a refused job stands alone", store, replaced(Firing, "fire_alone", _nothing), red.refused),
        )
    ),
)  # fmt: skip
