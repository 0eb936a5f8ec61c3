"""A store without one of its defences is caught by the right invariant. Otherwise the checker would prove nothing.

Each sabotage takes something away from the real SQLite store, in memory: a condition of a statement, or a step of a
verb.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import rowlock.core.flows
import rowlock.stores.flows
from rowlock.core.flows import Block
from rowlock.core.moves import Order, Refusal, Requeue, Rescue
from rowlock.stores import sql
from rowlock.stores.sqlite import moves as sqlite_moves
from rowlock.stores.sqlite import settle
from tests.proof import sabotage_flows
from tests.proof.checker import check
from tests.proof.flowing_lives import FlowingLives
from tests.proof.random_lives import RandomLives
from tests.proof.sabotage import Switch, replaced

SEEDS = range(100, 130)
STEPS = 150

STATEMENTS = {  # what is taken away: (file, text, its replacement, invariants of which one must catch it)
    "the version doesn't grow": ("claim", "version = version + 1", "version = version", {"S4"}),
    "a claim without a lease": ("claim", "locked_until = :until", "locked_until = 1 + 0 * :until", {"S5"}),
    "rescue doesn't wait for the lease": ("rescue_expired", "locked_until < :now", ":now > 0", {"S10"}),
    "heartbeats shorten leases": ("heartbeat", "max(locked_until, :until)", "0 * :until", {"S10"}),
    "promote doesn't look at the time": ("promote", "run_at <= ?", "(run_at <= ? OR true)", {"S11"}),
    "pauses are not looked at": ("claim_paused", "WHERE", "WHERE false AND", {"S12"}),
    "expired jobs are claimed": ("claim_lane", "expires_at > ?", "(expires_at > ? OR true)", {"S11"}),
    "expire doesn't wait": ("expire_due", "expires_at <= :now", "expires_at > :now", {"S11"}),
    "cancels time out at once": ("cancel_timeout_due", "j.cancel_requested_at < :now -", "0 < :now -", {"S10"}),
    "a settle forgets to let go": ("settle", "locked_by = NULL", "locked_by = locked_by", {"S3"}),
    "a settle is free": ("settle", "coalesce(:retries, retries)", "coalesce(0 * :retries, retries)", {"S9"}),
    "a completed job stays": ("settle_delete", "WHERE", "WHERE false AND", {"S3", "S7"}),
    "results get lost": ("settle_archive", "json_extract(s.value, '$[2]')", "NULL", {"S8"}),
    "entries overwrite each other": ("history", "'$[#]'", "'$[0]'", {"S19"}),
    "history is not written": ("history", "'$[#]'", "'$.no.where'", {"S19"}),
    "prune takes what is fresh": ("prune_archive", ":since", "(:since + 1e18)", {"S20"}),
    "steps are written again": ("checkpoint", "WHERE state NOT IN", "WHERE true OR state NOT IN", {"S21"}),
    "no mark on the job": ("checkpoint_job", "WHERE id = :id", "WHERE id = :id AND false", {"S21"}),
    "steps stay behind": ("drop_all_steps", "WHERE job_id IN", "WHERE false AND job_id IN", {"S21"}),
    "a requeue removes nothing": ("drop_step", "WHERE job_id = ?", "WHERE false AND job_id = ?", {"S21"}),
    "progress is anybody's": ("progress", "WHERE n = :n", "WHERE n = :n OR true", {"S3"}),
}


def caught(lives_of: type[RandomLives] = RandomLives) -> set[str]:
    """Return the invariants that the first failing seed breaks, or an empty set if no seed fails."""
    for seed in SEEDS:
        history = asyncio.run(lives_of(seed).play(STEPS))
        if found := {violation.invariant for violation in check(history)}:
            return found
    return set()


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_without_its_guard_is_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    file, text, replacement, invariants = STATEMENTS[name]
    load = sql.load

    def sabotaged(package: str, wanted: str) -> str:
        statement = load(package, wanted)
        if wanted != file or not package.endswith("sqlite"):
            return statement
        assert text in statement
        return statement.replace(text, replacement)

    monkeypatch.setattr(sql, "load", sabotaged)
    assert caught() & invariants


def _any_version(row: Any, settlement: Any) -> bool:
    return bool(row.status in ("processing", "cancel_requested"))


def _any_holder(rows: Any, run: Any) -> bool:
    return run.id in rows


def _nothing(*_arguments: Any, **_options: Any) -> None:
    pass


def _patched(order: type[Order], without: str = "", **more: Any) -> Callable[..., Any]:
    """Return the order's `patch`, changed to leave out a column or to add columns."""
    patch = order.patch

    def sabotaged(*arguments: Any) -> Any:
        decided = patch(*arguments)
        if isinstance(decided, Refusal):
            return decided
        kept = {name: value for name, value in decided.columns.items() if name != without}
        return replace(decided, columns=kept | more)

    return sabotaged


@pytest.mark.parametrize(
    ("module", "function", "instead", "invariants"),
    [
        (settle, "_may", _any_version, {"S3", "S6", "S8", "X1"}),
        (settle, "_holds", _any_holder, {"S21"}),
        (sqlite_moves, "_audit", _nothing, {"S19", "S20"}),
        (Rescue, "patch", _patched(Rescue, without="retries"), {"S9"}),
        (Rescue, "patch", _patched(Rescue, without="locked_by"), {"S3"}),
        (Requeue, "patch", _patched(Requeue, without="retries"), {"S9"}),
        (Requeue, "patch", _patched(Requeue, last_error=None), {"S3"}),
    ],
    ids=[
        "the fence is off",
        "the fence of steps is off",
        "the audit is not written",
        "rescue doesn't charge",
        "rescue keeps the lease's owner",
        "a requeue keeps the retries",
        "a requeue forgets why it failed",
    ],
)
def test_a_verb_without_its_defence_is_caught(
    monkeypatch: pytest.MonkeyPatch, module: Any, function: str, instead: Callable[..., Any], invariants: set[str]
) -> None:
    monkeypatch.setattr(module, function, instead)
    assert caught() & invariants


FLOWS: dict[str, Switch] = {
    "a join does not wait for all": sabotage_flows.planned(sabotage_flows.first_is_enough),
    "if_failed is not looked at": sabotage_flows.told(if_failed="run"),
    "conditions are not looked at": sabotage_flows.told(condition=None),
    "all conditions are false": replaced(rowlock.core.flows, "holds", lambda *_: False),
    "what a person has cancelled comes back": sabotage_flows.planned(sabotage_flows.always_because_of_parents),
    "what was stopped stays cancelled": sabotage_flows.planned(sabotage_flows.without(Block)),
    "what is stopped stops nobody": replaced(rowlock.stores.flows, "lines", lambda _: []),
    "payloads are not filled in": replaced(rowlock.core.flows, "filled", lambda payload, _: payload),
}


@pytest.mark.parametrize("name", FLOWS)
def test_a_flow_without_its_defence_is_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    FLOWS[name](monkeypatch)
    assert "S16" in caught(FlowingLives)
