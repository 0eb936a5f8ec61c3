"""S22: signals, and the waits that read them."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec

from rowlock.core.waits import MAX_UNREAD, WAIT_TIMED_OUT
from tests.proof.checker_moves import settled_by_another
from tests.proof.checker_steps import ENDS, Key, changes_by_job
from tests.proof.history import Operation, RowChange
from tests.proof.lives import Life, Row, Step, World, changed, is_held
from tests.proof.witness import ARCHIVE, JOBS, NEVER, SIGNALS, STEPS

Found = Iterator[tuple[str | None, str]]

_SIGNAL, _CALLBACK, _SLEEP = "@signal:", "@callback:", "@sleep"
_MOVERS = frozenset({"wake", "report_callback"})  # they may move the deadline of an open wait
_ROUNDED = 1_000  # microseconds of rounding: one statement passes a wait to the next in seconds


def s22_signals_are_read_once_and_no_wait_misses_one(world: World) -> Found:
    left: dict[tuple[str, int], Row] = {}
    for job_id, changes in changes_by_job(world, STEPS, SIGNALS).items():
        waits = _Waits(world)
        moves: defaultdict[int, list[Step]] = defaultdict(list)
        for life in world.by_id.get(job_id, ()):
            for step in life.steps:
                moves[step.tx].append(step)
        for tx, own in groupby(changes, key=lambda change: change.tx):
            yield from ((job_id, text) for text in waits.follow(list(own), moves[tx]))
        left |= {(job_id, seq): row for seq, row in waits.signals.items()}
    final = {(row["job_id"], row["seq"]): row for row in world.history.signals}
    for key in final.keys() | left.keys():
        if final.get(key) != left.get(key):
            yield key[0], f"the final row of signal {key[1]} is not what was witnessed"
    for life in world.lives:
        yield from ((life.id, text) for text in _causes(world, life))
        yield from ((life.id, text) for text in _undo_runs(life))
        for step in life.steps:
            if step.move in ("wait", "cancel_wait"):
                yield from settled_by_another(world, life, step)
    yield from _answers(world)


# ── What is stored ──


class _Waits:
    """The stored signals and steps of a job, transaction by transaction."""

    def __init__(self, world: World) -> None:
        self._slack = world.slack
        self.job: Row | None = None
        self.steps: dict[Key, Row] = {}
        self.signals: dict[int, Row] = {}
        self.count = 0  # signals that this job ever got

    def follow(self, changes: list[RowChange], moves: list[Step]) -> Iterator[str]:
        """Apply the changes of one transaction, and yield what is wrong with them."""
        names = {step.move for step in moves}
        where = f"(#{changes[-1].seq})"
        born = any(step.move == "enqueue" for step in moves)
        if born:
            self.count = 0
        for step in moves:
            if step.move in ("cancel", "replace"):
                yield from self._cancel(step)
        kinds = {(change.table, change.op) for change in changes}
        if {(JOBS, "insert"), (JOBS, "delete")} <= kinds:  # PostgreSQL's answer to an id that is archived
            return
        yield from self._reads(changes)
        yield from self._marks(changes, names)
        yield from self._new(changes, [step for step in moves if step.move == "signal"])
        yield from self._removed(changes)
        for change in changes:
            if change.table == STEPS:
                _keep(self.steps, _key(change), change.after)
            elif change.table == SIGNALS:
                _keep(self.signals, (change.after or change.before or {})["seq"], change.after)
            elif change.after is not None:
                self.job = change.after
            elif change.table == ARCHIVE or not any(one.table == ARCHIVE and one.after for one in changes):
                self.job = None
        for step in moves:
            if step.move == "wait" and step.new["status"] == "waiting" and step.after == self.job:
                yield from self._waiting(step)
        yield from (f"{problem} {where}" for problem in self._wrong())

    def _wrong(self) -> Iterator[str]:
        """Yield what must not be true after any transaction."""
        if self.job is None:
            if self.signals:
                yield f"left {len(self.signals)} signals behind"
                self.signals.clear()
            self.steps.clear()
            return
        unread = [row for row in self.signals.values() if row["wait"] is None]
        if len(unread) > MAX_UNREAD:
            yield f"has {len(unread)} unread signals"
        if "signals" in self.job and (self.job["signals"] or 0) != self.count:
            yield f"counts {self.job['signals']} signals, and got {self.count}"
        if self.job.get("status") == "waiting":
            waits_for = str(self.job["waits_for"])
            missed = self._unread(waits_for.removeprefix("signal:"))
            if missed:
                yield f"waits for {waits_for}, and signal {missed[0]['seq']} is there, unread"
            if not self._open(waits_for):
                yield f"waits for {waits_for}, and no such wait is open"

    def _unread(self, name: str) -> list[Row]:
        """Return the unread signals of this name, oldest first."""
        mine = [row for row in self.signals.values() if row["wait"] is None and row["name"] == name]
        return sorted(mine, key=lambda row: int(row["seq"]))

    def _open(self, waits_for: str) -> list[Row]:
        return [row for (name, _), row in self.steps.items() if name == f"@{waits_for}" and row["state"] == "running"]

    # ── Signals ──

    def _new(self, changes: list[RowChange], sent: list[Step]) -> Iterator[str]:
        new = [change.after for change in changes if change.table == SIGNALS and change.op == "insert" and change.after]
        said = Counter((step.said("signal"), step.said("id")) for step in sent)
        stored = Counter((row["name"], row["signal_id"]) for row in new)
        if said != stored:
            yield f"{dict(said)} was sent, and {dict(stored)} was stored"
        ids = {row["signal_id"] for row in self.signals.values()} - {None}
        for row in sorted(new, key=lambda row: int(row["seq"])):
            what = f"signal {row['seq']} ({row['name']})"
            self.count += 1
            if row["seq"] != self.count:
                yield f"{what} is number {self.count} of the job"
            if row["wait"] is not None:
                yield f"{what} was read before it came"
            if row["signal_id"] in ids:
                yield f"{what} has the id {row['signal_id']}, as one before"
            ids |= {row["signal_id"]} - {None}
        for step in sent:
            waited = step.old["status"] == "waiting" and step.old["waits_for"] == f"signal:{step.said('signal')}"
            if waited != (step.new["status"] == "pending" and step.old["status"] != "pending"):
                yield f"{step} of {step.said('signal')}, when it waited for {step.old['waits_for']}"

    def _reads(self, changes: list[RowChange]) -> Iterator[str]:
        ended = {
            _key(change): change.after
            for change in changes
            if change.table == STEPS and change.after is not None and change.after["state"] == "succeeded"
        }
        left = {name: self._unread(name) for name in {row["name"] for row in self.signals.values()}}
        for change in changes:
            before, after = change.before, change.after
            if change.table != SIGNALS or before is None or after is None:
                continue
            what = f"signal {before['seq']} ({before['name']}, #{change.seq})"
            if before != self.signals.get(before["seq"]):
                yield f"{what}: the row before is not what was there"
            if before["wait"] is not None:
                yield f"{what} was read by {before['wait']}#{before['wait_n']}, and again"
                continue
            if more := changed(before, after) - {"wait", "wait_n"}:
                yield f"{what} was read and changed: {', '.join(sorted(more))}"
            first = left[before["name"]].pop(0) if left.get(before["name"]) else None
            if first is not None and first["seq"] != before["seq"]:
                yield f"{what} was read before signal {first['seq']}, which is older"
            wait = ended.get((after["wait"], after["wait_n"]))
            if wait is None or after["wait"] != f"{_SIGNAL}{before['name']}":
                yield f"{what} was read by {after['wait']}#{after['wait_n']}, which did not end with it"
            elif wait["result"] != before["data"]:
                yield f"{what} has {before['data']!r:.80}, and its wait has {wait['result']!r:.80}"
            if self.job is None or not is_held(self.job):
                yield f"{what} was read although nobody held the job"

    def _removed(self, changes: list[RowChange]) -> Iterator[str]:
        """A signal is removed together with its job, or with the wait that has read it."""
        gone = any(change.table in (JOBS, ARCHIVE) and change.op == "delete" for change in changes)
        gone = gone and not any(change.table == ARCHIVE and change.after for change in changes)
        if gone:
            return
        dropped = {_key(change) for change in changes if change.table == STEPS and change.after is None}
        removed = {change.before["seq"] for change in changes if _removes(change) and change.before is not None}
        for seq, row in self.signals.items():
            mine = (row["wait"], row["wait_n"]) in dropped
            if seq in removed and not mine:
                yield f"signal {seq} was removed, and its wait was not"
            elif mine and seq not in removed:
                yield f"signal {seq} is there, and the wait that has read it was removed"

    # ── Waits ──

    def _marks(self, changes: list[RowChange], names: set[str | None]) -> Iterator[str]:
        read = Counter(
            (change.after["wait"], change.after["wait_n"])
            for change in changes
            if change.table == SIGNALS and change.before is not None and change.after is not None
        )
        for change in changes:
            if change.table != STEPS or change.after is None or not change.after["name"].startswith("@"):
                continue
            before, after = change.before, change.after
            what = f"{after['name']}#{after['n']} (#{change.seq})"
            if before is not None and before["deadline"] != after["deadline"] and not names & _MOVERS:
                yield f"{what} had until {before['deadline']}, and has until {after['deadline']}"
            if after["name"].startswith(_CALLBACK) or (before is not None and before["state"] in ENDS):
                continue  # S21 checks that an end stays
            if after["state"] not in ("running", *ENDS):
                yield f"{what} is a wait that is {after['state']}"
            yield from (f"{what} {problem}" for problem in self._asked(change, after, read[_key(change)]))

    def _asked(self, change: RowChange, wait: Row, read: int) -> Iterator[str]:
        """A run has asked whether it must wait. Yield what is wrong with the answer."""
        unread = self._unread(wait["name"].removeprefix(_SIGNAL)) if wait["name"].startswith(_SIGNAL) else []
        if wait["state"] == "running":
            if unread and change.before is None:
                yield f"was opened, although signal {unread[0]['seq']} was there"
            return
        if wait["state"] == "succeeded" and read:
            if read > 1:
                yield f"has read {read} signals"
            return
        if unread:
            yield f"has timed out, although signal {unread[0]['seq']} was there"
        if wait["deadline"] is None or wait["deadline"] > change.at + self._slack:
            yield f"has ended at {change.at}, before {wait['deadline']}"
        if wait["state"] == "failed" and (wait["name"] == _SLEEP or not str(wait["error"]).startswith(WAIT_TIMED_OUT)):
            yield f"has failed with {wait['error']!r:.80}"

    def _waiting(self, step: Step) -> Iterator[str]:
        """The job has begun to wait. It must be due when its wait ends."""
        run_at, claimed = step.new["run_at"], step.old["claimed_at"]
        for wait in self._open(step.new["waits_for"]):
            until = wait["deadline"]
            if until is None:
                if run_at < NEVER // 20:
                    yield f"{step}: its wait has no end, and it is due at {run_at}"
                continue
            if not until - _ROUNDED <= run_at <= until + (step.at - claimed) + self._slack + _ROUNDED:
                yield f"{step}: its wait ends at {until}, and it is due at {run_at}"
            if until < claimed - self._slack:
                yield f"{step}: the time of its wait was over at {until}, before this run"

    # ── Cancels ──

    def _cancel(self, step: Step) -> Iterator[str]:
        """A cancelled waiting job runs once more if it has steps to undo. If an outside system works on it, that system
        gets time to stop. Otherwise the job ends at once."""
        if step.old["status"] != "waiting":
            return
        after = step.new
        done = [name for (name, _), row in self.steps.items() if row["state"] == "succeeded" and name[0] != "@"]
        address = _CALLBACK + step.old["waits_for"].removeprefix("signal:")
        ends = [row["deadline"] for (name, _), row in self.steps.items() if name == address]
        if done:
            if after["status"] != "cancel_requested" or not after["ready"]:
                yield f"{step}: {done[0]} is to be undone, and nobody will"
        elif any(end is None or end > step.at + self._slack for end in ends):
            if after["status"] != "cancel_requested" or after["ready"]:
                yield f"{step}: the outside works on it, and was not given the time to stop"
        elif after["status"] != "cancelled" and all(end <= step.at - _STATEMENT for end in ends if end is not None):
            yield f"{step}: there is nothing to undo, and it goes on"


_STATEMENT = 1_000_000  # microseconds that a statement may take between looking at a clock and writing


def _key(change: RowChange) -> Key:
    row = change.after or change.before or {}
    return row["name"], row["n"]


def _keep(rows: dict[Any, Row], key: Any, row: Row | None) -> None:
    if row is None:
        rows.pop(key, None)
    else:
        rows[key] = row


def _removes(change: RowChange) -> bool:
    return change.table == SIGNALS and change.op == "delete"


# ── Why a job goes on ──


def _causes(world: World, life: Life) -> Iterator[str]:
    """A waiting job goes on because of a signal, a time or an operator. S19 finds the operator's entry in the audit."""
    since: Step | None = None  # the claim of the current run
    signals = 0
    for step in life.steps:
        if step.move == "claim":
            since, signals = step, 0
        elif step.move == "signal":
            signals += 1
        if step.move == "resume" and step.old["run_at"] > step.at + world.slack:
            yield f"{step} before its time, which is {step.old['run_at']}"
        if step.move == "wait" and step.new["status"] == "pending" and not signals:
            yield f"{step} although no signal has come since {since}"
        goes_on = step.move in ("resume", "wake") or (step.move == "signal" and step.old["status"] == "waiting")
        goes_on = goes_on or (step.move == "wait" and step.new["status"] == "pending")
        idle = not step.after or not step.after.get("ready") or step.after["run_at"] > step.at + world.slack
        if goes_on and step.new["status"] == "pending" and idle:
            yield f"{step} and is not due before {step.new['run_at']}, ready: {step.new['ready']}"


def _undo_runs(life: Life) -> Iterator[str]:
    """A cancelled job runs once more. It may run again only if that run was given back before it could undo its
    steps."""
    undone: Step | None = None
    for step in life.steps:
        if step.move in ("requeue", "cancel_wait"):
            undone = None
        elif step.move == "claim" and step.old["status"] == "cancel_requested":
            if undone is not None:
                yield f"{step} after {undone}: it was to be undone once"
            undone = step


# ── What clients were told ──


def _answers(world: World) -> Found:
    """An acknowledged signal was stored once, a refused one never. Each signal has its own data; a repeat has the
    same."""
    asked: defaultdict[tuple[str, str, str], list[Operation]] = defaultdict(list)
    for operation in world.history.operations:
        if operation.verb == "signal":
            detail = operation.detail or {}
            asked[operation.ids[0], detail["name"], _text(detail.get("data"))].append(operation)
    if not asked:
        return
    stored = Counter(
        (change.after["job_id"], change.after["name"], _text(change.after["data"]))
        for change in world.history.changes
        if change.table == SIGNALS and change.op == "insert" and change.after is not None
    )
    for key in asked.keys() | stored.keys():
        job_id, name, data = key
        what = f"the signal {name} with {data:.80}"
        known = [one for one in asked[key] if one.outcome == "ok" and (one.answer or {}).get("known")]
        new = sum(one.outcome == "ok" for one in asked[key]) - len(known)
        unknown = sum(one.outcome == "unknown" for one in asked[key])
        if stored[key] < max(new, bool(known)):
            yield job_id, f"{what} was acknowledged {new or 1} times, and stored {stored[key]} times"
        if stored[key] > new + unknown:
            yield job_id, f"{what} was stored {stored[key]} times; {new} were acknowledged, {unknown} are unknown"


def _text(data: Any) -> str:
    return msgspec.json.encode(data, order="sorted").decode()
