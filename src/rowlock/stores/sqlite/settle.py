"""settle, heartbeat, progress and look. Guards are judged under the write lock, so they hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from sqlite3 import Connection
from typing import Any, NamedTuple

import msgspec

from rowlock.core.codec import decode
from rowlock.core.job import LIVE, Status
from rowlock.core.lifecycle import APPLIED, Settlement, Standing, Transition, Verdict, ended_by, judge, same_worker
from rowlock.core.times import NEVER
from rowlock.stores.base import MAX_LOG_LINES, Beat, Claim, Hold, NewLine, Progress, Settled
from rowlock.stores.sqlite.claim import claim as claim_next
from rowlock.stores.sqlite.counts import Ended, add, count
from rowlock.stores.sqlite.lines import advance_lines
from rowlock.stores.sqlite.rollups import Runs
from rowlock.stores.sqlite.rows import STATUS, append_history, json_text, span, sql
from rowlock.stores.worker_reports import merge

_lines = msgspec.json.Decoder(list[msgspec.Raw]).decode  # old lines are moved as they are
_CLAIMABLE = (Status.PENDING, Status.CANCEL_REQUESTED)
_whole = msgspec.json.Decoder(list[int]).decode


class _Held(NamedTuple):
    id: str
    n: int
    status: str
    version: int
    locked_by: str | None
    claimed_at: int
    started_at: int | None
    topic: str
    due: int
    line: str | None
    leased: int  # 0: no run has it
    signals: int


def settle(conn: Connection, now: int, settlements: Sequence[Settlement], claim: Claim | None = None) -> Settled:
    verdicts = _settle(conn, now, settlements)
    return Settled(verdicts, None if claim is None else claim_next(conn, now, claim))


def _settle(conn: Connection, now: int, settlements: Sequence[Settlement]) -> list[Verdict]:
    """Return the verdicts. Completions are applied together if none is refused. All else is applied one by one."""
    completions = [one for one in settlements if one.transition.status is Status.COMPLETED]
    # A job that is settled twice in one batch: its first settlement counts.
    twice = len({one.id for one in settlements}) < len(settlements)
    if not completions or twice or not _complete(conn, now, completions):
        return _settle_each(conn, now, settlements)
    if len(completions) == len(settlements):
        return [APPLIED] * len(settlements)
    rest = [one for one in settlements if one.transition.status is not Status.COMPLETED]
    verdicts = iter(_settle_each(conn, now, rest))
    return [APPLIED if one.transition.status is Status.COMPLETED else next(verdicts) for one in settlements]


def _complete(conn: Connection, now: int, settlements: list[Settlement]) -> bool:
    """Complete these jobs by a number of statements that doesn't grow with the batch. Return False, and write nothing,
    if a job is refused or stands in a line, or if they are of several workers."""
    worker = settlements[0].worker
    if any(one.worker != worker for one in settlements):
        return False
    (before,) = conn.execute(sql("settle_before")).fetchone()
    rows = json_text([_completion(one.id, one.version, one.transition) for one in settlements])
    conn.execute("SAVEPOINT completions")
    archived = conn.execute(sql("settle_archive"), {"now": now, "rows": rows, "worker": worker, "lined": 0}).rowcount
    if archived < len(settlements):
        conn.execute("ROLLBACK TO completions")
    conn.execute("RELEASE completions")
    if archived < len(settlements):
        return False
    conn.execute(sql("settle_delete"), (json_text([one.id for one in settlements]),))
    topics: dict[str, list[int]] = {}
    runs: dict[str, Runs] = {}
    for topic, jobs, waits, took in conn.execute(sql("settle_counts"), (before,)).fetchall():
        runs[topic] = _whole(waits), _whole(took)
        topics[topic] = [jobs, 0, 0, 0, len(runs[topic][1]), sum(runs[topic][1]), 0, 0]
    add(conn, now, topics, runs)
    return True


def _completion(job_id: str, version: int, to: Transition) -> tuple[str, int, str | None, int | None]:
    return job_id, version, to.result, None if to.ran is None else span(to.ran)


def _settle_each(conn: Connection, now: int, settlements: Sequence[Settlement]) -> list[Verdict]:
    rows = _standing(conn, settlements)
    completed: list[tuple[Any, ...]] = []
    others: list[tuple[_Held, Transition]] = []
    ended: list[Ended] = []
    runs: defaultdict[str, Runs] = defaultdict(lambda: ([], []))
    refused: list[tuple[int, Settlement]] = []
    lines: set[str] = set()
    for place, settlement in enumerate(settlements):
        # The row is taken out: a second settlement of the same job finds none, and is judged after the first was
        # applied.
        row = rows.pop(settlement.id, None)
        to = settlement.transition
        if row is None or not _may(row, settlement):
            refused.append((place, settlement))
            if row is not None:
                rows[settlement.id] = row
            continue
        if row.line is not None and to.status not in LIVE:
            lines.add(row.line)
        if to.status is Status.COMPLETED:
            completed.append(_completion(row.id, row.version, to))
            ended.append((row.topic, Status.COMPLETED, _ran(row, to, now, runs)))
        else:
            others.append((row, to))
            ended.append((row.topic, to.status, None))
            if to.status is Status.FAILED or _is_retry(to):
                _ran(row, to, now, runs)
    if completed:
        values = {"now": now, "rows": json_text(completed), "worker": None, "lined": 1}
        conn.execute(sql("settle_archive"), values)
        conn.execute(sql("settle_delete"), (json_text([job_id for job_id, *_ in completed]),))
    if others:
        _apply(conn, now, others)
    count(conn, now, ended, [row.topic for row, to in others if _is_retry(to)], runs)
    if lines:
        advance_lines(conn, now, sorted(lines))
    verdicts = [APPLIED] * len(settlements)
    for place, settlement in refused:
        verdicts[place] = _refuse(conn, settlement)
    return verdicts


def _standing(conn: Connection, asked: Iterable[Settlement | Beat | Progress]) -> dict[str, _Held]:
    ids = json_text([one.id for one in asked])
    return {row[0]: _Held._make(row) for row in conn.execute(sql("standing"), (ids,)).fetchall()}


def _may(row: _Held, settlement: Settlement) -> bool:
    if not row.leased or row.version != settlement.version or not same_worker(settlement.worker, row.locked_by):
        return False
    to = settlement.transition
    if row.status == "processing":
        return to.status is not Status.CANCEL_REQUESTED
    return to.from_cancel_requested


def _started(row: _Held, to: Transition, now: int) -> int | None:
    return row.started_at if to.ran is None else max(row.claimed_at, now - span(to.ran))


def _ran(row: _Held, to: Transition, now: int, runs: defaultdict[str, Runs]) -> int | None:
    """Return for how many microseconds it ran, and add its times to `runs`. None: it never began."""
    began = _started(row, to, now)
    if began is None:
        return None
    waits, took = runs[row.topic]
    waits.append(began - row.due)
    took.append(now - began)
    return now - began


def _is_retry(to: Transition) -> bool:
    """Return True if the job is put back because it failed. A job that was snoozed or given back is pending again too,
    but pays no retry."""
    return to.status is Status.PENDING and to.retries is not None


def _apply(conn: Connection, now: int, moves: list[tuple[_Held, Transition]]) -> None:
    changes, entries = [], []
    for row, to in moves:
        # PENDING: a signal has come since the run looked.
        came = to.status is Status.WAITING and row.signals > to.seen
        status, delay = (Status.PENDING, 0.0) if came else (to.status, to.delay)
        started_at = _started(row, to, now)
        changes.append(
            {
                "n": row.n,
                "now": now,
                "status": status.value,
                "ready": status in _CLAIMABLE and not delay,
                "run_at": _run_at(status, delay, now),
                "waits_for": to.waits_for if status is Status.WAITING else None,
                "retries": to.retries,
                "error": to.error,
                "fingerprint": to.fingerprint,
                "reason": to.reason if to.status is Status.CANCELLED else None,
                "started_at": started_at,
                "has_run": started_at is not None and to.status not in (Status.FAILED, Status.CANCELLED),
                "finished_at": now if to.status in (Status.FAILED, Status.CANCELLED) else None,
            }
        )
        entry = to.entry(row.version) | {"status": status, "at": now, "claimed_at": row.claimed_at}
        if row.locked_by is not None:
            entry["by"] = row.locked_by
        if started_at is not None:
            entry["started_at"] = started_at
        entries.append((row.n, entry))
    conn.executemany(sql("settle"), changes)
    append_history(conn, entries)


def _run_at(status: Status, delay: float | None, now: int) -> int | None:
    """Return the new run_at; None: it stays."""
    if status not in LIVE:
        return None
    if delay is not None:
        return now + span(delay)
    return NEVER if status is Status.WAITING else None


def _refuse(conn: Connection, settlement: Settlement) -> Verdict:
    row = conn.execute(sql("settle_refused"), {"id": settlement.id}).fetchone()
    version, worker, standing = settlement.version, settlement.worker, None
    if row is not None:
        status, current, holder, history = row
        ended = ended_by(version, STATUS[status], current, decode(history) if history else [], worker, holder)
        standing = Standing(STATUS[status], current, ended, holder)
    return judge(version, settlement.transition.event, standing, worker)


def heartbeat(conn: Connection, now: int, beats: Sequence[Beat], lease: float) -> list[Hold]:
    rows = _standing(conn, beats)
    until = now + span(lease)
    kept = [{"n": rows[b.id].n, "until": until, "started": b.started, "now": now} for b in beats if _holds(rows, b)]
    conn.executemany(sql("heartbeat"), kept)
    return [_hold(rows, beat) for beat in beats]


def progress(conn: Connection, now: int, reports: Sequence[Progress]) -> list[Hold]:
    rows = _standing(conn, reports)
    kept = [(rows[report.id].n, report) for report in merge(reports).values() if _holds(rows, report)]
    conn.executemany(
        sql("progress"),
        [{"n": n, "percent": r.percent, "stage": r.stage, "message": r.message, "now": now} for n, r in kept],
    )
    if said := {n: report for n, report in kept if report.lines}:
        _append_lines(conn, now, said, "_jobs")
    if last := [report for report in merge(reports).values() if report.lines and not _holds(rows, report)]:
        _append_last_lines(conn, now, last)
    return [_hold(rows, report) for report in reports]


def _append_last_lines(conn: Connection, now: int, reports: Sequence[Progress]) -> None:
    """Add the lines to archived jobs that a run logged before it completed its job in its own transaction."""
    said = {}
    for report in reports:
        found = conn.execute(sql("progress_archived"), (report.id, report.version)).fetchone()
        if found is not None and same_worker(report.worker, found[1]):
            said[found[0]] = report
    _append_lines(conn, now, said, "_jobs_archive")


def _append_lines(conn: Connection, now: int, said: dict[int, Progress], table: str) -> None:
    changes = []
    for n, log in conn.execute(sql("progress_log").format(table=table), (json_text(list(said)),)).fetchall():
        report = said[n]
        lines = [*(_lines(log) if log else ()), *(_line(now, report.version, line) for line in report.lines)]
        newest = lines[-MAX_LOG_LINES:]
        changes.append({"n": n, "log": json_text(newest), "dropped": len(lines) - len(newest)})
    conn.executemany(sql("progress_lines").format(table=table), changes)


def _line(now: int, version: int, line: NewLine) -> dict[str, Any]:
    return {"at": now - span(line.age), "version": version, "level": line.level, "text": line.text}


def look(conn: Connection, runs: Sequence[Beat]) -> list[Hold]:
    rows = _standing(conn, runs)
    return [_hold(rows, run) for run in runs]


def _holds(rows: dict[str, _Held], run: Beat | Progress) -> bool:
    row = rows.get(run.id)
    if row is None or row.version != run.version or not same_worker(run.worker, row.locked_by):
        return False
    return bool(row.leased)


def _hold(rows: dict[str, _Held], run: Beat | Progress) -> Hold:
    if not _holds(rows, run):
        return Hold.LOST
    return Hold.CANCEL if rows[run.id].status == "cancel_requested" else Hold.KEPT
