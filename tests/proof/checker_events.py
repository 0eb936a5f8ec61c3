"""S19 and EVENTS: the product's own history, compared with the witness's record."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rowlock.core.lifecycle import MAX_HISTORY, MOVES
from tests.proof.lives import Life, Step, World
from tests.proof.witness import BULK, RECORDS, SCHEDULES, TOPICS, is_backoff

Found = Iterator[tuple[str | None, str]]

_BY_COLUMNS = frozenset({"enqueue", "claim", "complete", "delete", "prune"})  # moves that leave no entry in the history
_AUDITED = frozenset({"cancel", "requeue", "update", "delete", "wake", "signal", "release_hold"})


def s19_every_move_is_recorded_in_its_transaction(world: World) -> Found:
    operated = Counter[tuple[int, str, str | None]]()
    for life in world.lives:
        for step in life.steps:
            yield from ((life.id, problem) for problem in _badly_recorded(step, world.slack))
            if step.move in _AUDITED and not _is_answer(step):
                operated[step.tx, step.move, life.id] += 1
    for change in world.history.changes:
        if change.table == TOPICS and change.after is not None and not is_backoff(change):
            operated[change.tx, "resume" if change.after["paused_at"] is None else "pause", None] += 1
    for (tx, action, job_id), count in (operated - world.audits).items():
        yield job_id, f"{count} × {action} in transaction {tx} without an entry in the audit"
    records = {change.tx for change in world.history.changes if change.table in (RECORDS, BULK, SCHEDULES)}
    for (tx, action, job_id), count in (world.audits - operated).items():
        if tx in records:
            continue  # the entry is about an account, a token, a setting, the start of a bulk action, or a schedule
        yield job_id, f"the audit says {count} × {action} in transaction {tx}, which didn't happen there"


def _is_answer(step: Step) -> bool:
    """Return True if the signal came by a callback or from the job's own children. The audit records neither."""
    if step.move != "signal":
        return False
    return str(step.said("id")).startswith("@callback:") or str(step.said("signal")).startswith("@children:")


def _badly_recorded(step: Step, slack: int) -> Iterator[str]:
    if step.rewritten:
        yield f"{step} rewrote the history"
    if step.before is None or step.after is None:
        return
    should = step.move is None or (step.move not in _BY_COLUMNS and bool(MOVES[step.move].events))
    if len(step.entries) != should:
        yield f"{step} wrote {len(step.entries)} history entries, not {int(should)}"
    for entry in step.entries:
        if step.move is not None and entry["event"] not in MOVES[step.move].events:
            yield f"{step} is recorded as {entry['event']}"
        for name, true in (("status", step.after["status"]), ("version", step.after["version"])):
            if entry[name] != true:
                yield f"{step} is recorded with {name} {entry[name]}"
        if entry.get("by") is None or entry["at"] > step.at + slack:
            yield f"{step} is recorded by {entry.get('by')} at {entry['at']}; it was {step.at}"
    kept = len(step.before["history"] or ())
    dropped = step.after["history_dropped"] - step.before["history_dropped"]
    if dropped != max(0, kept + len(step.entries) - MAX_HISTORY):
        yield f"{step} counted {dropped} dropped entries, with {kept} kept before"


def events_equal_what_was_witnessed(world: World) -> Found:
    told = world.history.events
    if not told:
        return
    for job_id, lives in world.by_id.items():
        if lives[-1].gone or job_id not in world.history.jobs.keys() | world.history.archive.keys():
            expected: list[dict[str, Any]] = []
        else:
            expected = _expected(lives[-1])
        events = told.get(job_id, [])
        seen = [{name: event[name] for name in ("event", "status", "version", "by", "at")} for event in events]
        if seen != expected:
            yield job_id, f"tells {_names(seen)}; witnessed was {_names(expected)}{_difference(seen, expected)}"
        seqs = [event["seq"] for event in events]
        dropped = lives[-1].last.after is not None and lives[-1].last.after["history_dropped"]
        if seqs != (sorted(set(seqs)) if dropped else list(range(len(seqs)))):
            yield job_id, f"its events are numbered {seqs}"
    for job_id in told.keys() - world.by_id.keys():
        yield job_id, "has events, and was never made"


def _expected(life: Life) -> list[dict[str, Any]]:
    """Return the events that the product must report. In a long history, the oldest entries are missing, and so are the
    claims of the runs that they end."""
    last = life.last.after
    assert last is not None
    dropped = last["history_dropped"]
    number = 0
    place: dict[int, int] = {}  # by version: the number of the entry that ended the run
    facts: list[tuple[int | None, dict[str, Any]]] = []  # events, each with the number of its entry
    for step in life.steps:
        for entry in step.entries:
            if "claimed_at" in entry:
                place[entry["version"]] = number
            said = {name: entry.get(name) for name in ("event", "status", "version", "by", "at")}
            facts.append((number, said))
            number += 1
        if step.after is not None and step.move in ("enqueue", "claim", "complete"):
            facts.append((None, _from_columns(step.move, step.after)))
    return [
        fact
        for entry_, fact in facts
        if (place.get(fact["version"], number) if fact["event"] == "claimed" else entry_ or number) >= dropped
        and (entry_ is None or entry_ >= dropped)
    ]


def _from_columns(move: str, row: dict[str, Any]) -> dict[str, Any]:
    match move:
        case "enqueue":
            return {"event": "enqueued", "status": row["status"], "version": 0, "by": None, "at": row["created"]}
        case "claim":
            said = {"event": "claimed", "status": "processing", "version": row["version"]}
            return said | {"by": row["locked_by"], "at": row["claimed_at"]}
        case _:
            said = {"event": "completed", "status": "completed", "version": row["version"]}
            return said | {"by": row["locked_by"], "at": row["finished_at"]}


def _names(events: list[dict[str, Any]]) -> list[str]:
    return [f"{event['event']}@{event['version']}" for event in events]


def _difference(seen: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str:
    for one, other in zip(seen, expected, strict=False):
        if one != other:
            return f" (first {one} in place of {other})"
    return ""
