"""A store without one of its defences is caught by the right invariant: else the checker would prove nothing.

Each sabotage takes something away from the real SQLite store, in memory: a condition of a statement, a step of a verb.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rowlock.stores import sql
from rowlock.stores.sqlite import operators, settle
from tests.proof.checker import check
from tests.proof.random_lives import RandomLives

SEEDS = range(100, 130)
STEPS = 150

_RETRIES = "retries = iif(:undo, retries, 0)"
STATEMENTS = {  # what is taken away: (file, text, its replacement, the invariants one of which must catch it)
    "the version doesn't grow": ("claim", "version = version + 1", "version = version", {"S4"}),
    "a claim without a lease": ("claim", "locked_until = :until", "locked_until = 1 + 0 * :until", {"S5"}),
    "rescue doesn't wait for the lease": ("rescue_expired", "locked_until < :now", ":now > 0", {"S10"}),
    "rescue doesn't charge": ("rescue", "retries + :charged", "retries + 0 * :charged", {"S9"}),
    "rescue keeps the lease's owner": ("rescue", "locked_by = NULL,", "", {"S3"}),
    "heartbeats shorten leases": ("heartbeat", "max(locked_until, :until)", "0 * :until", {"S10"}),
    "promote doesn't look at the time": ("promote", "run_at <= ?", "(run_at <= ? OR true)", {"S11"}),
    "pauses are not looked at": ("claim_paused", "WHERE", "WHERE false AND", {"S12"}),
    "expired jobs are claimed": ("claim_lane", "expires_at > ?", "(expires_at > ? OR true)", {"S11"}),
    "expire doesn't wait": ("expire_due", "expires_at <= ?", "expires_at > ?", {"S11"}),
    "cancels time out at once": ("cancel_timeout_due", "cancel_requested_at < ?", "? > 0", {"S10"}),
    "a requeue keeps the retries": ("requeue", _RETRIES, "retries = retries", {"S9"}),
    "a requeue forgets why it failed": ("requeue", _RETRIES, f"{_RETRIES}, last_error = NULL", {"S3"}),
    "a settle forgets to let go": ("settle", "locked_by = NULL", "locked_by = locked_by", {"S3"}),
    "a settle is free": ("settle", "coalesce(:retries, retries)", "coalesce(0 * :retries, retries)", {"S9"}),
    "a completed job stays": ("settle_delete", "WHERE", "WHERE false AND", {"S3", "S7"}),
    "results get lost": ("settle_archive", "json_extract(s.value, '$[2]')", "NULL", {"S8"}),
    "entries overwrite each other": ("history", "'$[#]'", "'$[0]'", {"S19"}),
    "history is not written": ("history", "WHERE n = :n", "WHERE n = :n AND false", {"S19"}),
    "prune takes what is fresh": ("prune_archive", ":since", "(:since + 1e18)", {"S20"}),
    "progress is anybody's": ("progress", "WHERE n = :n", "WHERE n = :n OR true", {"S3"}),
}


def caught() -> set[str]:
    """By which invariants, over the seeds, until something was found."""
    for seed in SEEDS:
        history = asyncio.run(RandomLives(seed).play(STEPS))
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


def _nothing(*_arguments: Any, **_options: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("module", "function", "instead", "invariants"),
    [
        (settle, "_may", _any_version, {"S6", "S8", "X1"}),
        (operators, "_audit", _nothing, {"S19", "S20"}),
    ],
    ids=["the fence is off", "the audit is not written"],
)
def test_a_verb_without_its_defence_is_caught(
    monkeypatch: pytest.MonkeyPatch, module: Any, function: str, instead: Callable[..., Any], invariants: set[str]
) -> None:
    monkeypatch.setattr(module, function, instead)
    assert caught() & invariants
