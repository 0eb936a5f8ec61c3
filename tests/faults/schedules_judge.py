"""Judge what schedules did against a brute-force oracle (S14).

The test's own triggers record every change of a schedule and of a fire. So the judge also knows what was edited or
deleted. It knows the policies from the specification, and the oracle shares no code with rowlock.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from tests.core.cron_oracle import Fields, Walk
from tests.proof.history import History, RowChange, Violation
from tests.proof.lives import LIVE
from tests.proof.witness import JOBS, Tables

SECOND = 1_000_000
LATE = 60 * SECOND
MOST_RECORDED = 10_000  # at most so many times of one decision, or of one edit, are recorded one by one
DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Found = Iterator[tuple[str | None, str]]


# ── The triggers ──

SCHEDULE = ("id", "name", "definition", "upto", "next_run_at", "created", "paused_at", "resumed_at")
FIRE = ("schedule_id", "fire_at", "at", "kind", "job_id", "reason", "detail")
MARK = ("schedule_id", "fire_at")  # columns of a job
TIMES = {"upto", "next_run_at", "created", "paused_at", "resumed_at", "fire_at", "at"}
WATCHED = {"_jobs_schedules": SCHEDULE, "_jobs_fires": FIRE}


async def watch(tables: Tables) -> None:
    """Record every change of schedules and fires from now on, in place of the witness. On PostgreSQL, one trigger call
    records a whole statement, because after an outage of hours a statement writes tens of thousands of rows."""
    for table, columns in WATCHED.items():
        if tables.kind == "postgres":
            await tables.execute(f"DROP TRIGGER IF EXISTS witness ON {table}")
        else:
            for op in ("insert", "update", "delete"):
                await tables.execute(f"DROP TRIGGER IF EXISTS _witness{table}_{op}")
        names = ", ".join(columns)
        if tables.kind == "sqlite":
            await tables.execute(f"CREATE TABLE seen{table} (seq INTEGER PRIMARY KEY, op TEXT, {names})")
            for op, row in (("insert", "NEW"), ("update", "NEW"), ("delete", "OLD")):
                values = ", ".join(f"{row}.{name}" for name in columns)
                await tables.execute(
                    f"CREATE TRIGGER seen{table}_{op} AFTER {op} ON {table} BEGIN"
                    f" INSERT INTO seen{table} (op, {names}) VALUES ('{op}', {values}); END"
                )
            continue
        kinds = ", ".join(f"{name} {'bigint' if name in TIMES else 'text'}" for name in columns)
        values = ", ".join(f"_jobs_us({name})" if name in TIMES else f"{name}::text" for name in columns)
        await tables.execute(f"CREATE TABLE seen{table} (seq bigserial PRIMARY KEY, op text, {kinds})")
        for op, rows in (("insert", "NEW"), ("update", "NEW"), ("delete", "OLD")):
            await tables.execute(
                f"CREATE FUNCTION seen{table}_{op}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                f" INSERT INTO seen{table} (op, {names}) SELECT '{op}', {values} FROM changed; RETURN NULL; END $$"
            )
            await tables.execute(
                f"CREATE TRIGGER seen{table}_{op} AFTER {op} ON {table} REFERENCING {rows} TABLE AS changed"
                f" FOR EACH STATEMENT EXECUTE FUNCTION seen{table}_{op}()"
            )


class Version(NamedTuple):
    """A schedule after a change. Times are microseconds."""

    op: str
    id: str
    name: str
    definition: dict[str, Any]
    upto: int
    next_run_at: int | None
    created: int
    paused_at: int | None
    resumed_at: int | None


class Record(NamedTuple):
    """A fire, as it was written to the table."""

    op: str
    schedule_id: str
    fire_at: int
    at: int
    kind: str
    job_id: str | None
    reason: str | None
    detail: str | None


class Made(NamedTuple):
    """A job as it is now."""

    id: str
    schedule_id: str | None
    fire_at: int | None
    payload: dict[str, Any]


class Seen(NamedTuple):
    versions: dict[str, list[Version]]
    records: list[Record]
    jobs: list[Made]


async def collect(tables: Tables) -> Seen:
    versions: dict[str, list[Version]] = defaultdict(list)
    for row in await tables.fetch(f"SELECT op, {', '.join(SCHEDULE)} FROM seen_jobs_schedules ORDER BY seq"):
        one = Version(*row)
        versions[one.id].append(one._replace(definition=msgspec.json.decode(row[3])))
    fires = await tables.fetch(f"SELECT op, {', '.join(FIRE)} FROM seen_jobs_fires ORDER BY seq")
    at = "fire_at" if tables.kind == "sqlite" else "_jobs_us(fire_at)"
    jobs = [
        Made(str(job_id), None if schedule is None else str(schedule), fire_at, msgspec.json.decode(payload))
        for table in ("_jobs", "_jobs_archive")
        for job_id, schedule, fire_at, payload in await tables.fetch(
            f"SELECT id, schedule_id, {at}, payload FROM {table}"
        )
    ]
    return Seen(dict(versions), [Record(*row) for row in fires], jobs)


def without_marks(history: History) -> History:
    """Return the history as if jobs were inserted with their schedule and time. In fact, a second statement of the same
    transaction sets both, and the checker doesn't know that statement."""
    marks: dict[str, dict[str, Any]] = {}
    for change in history.changes:
        if is_mark(change) and change.after is not None:
            marks[change.after["id"]] = {name: change.after[name] for name in MARK}
    changes = []
    for change in history.changes:
        if change.table == JOBS and change.op == "insert" and change.after is not None:
            after = change.after | marks.get(change.after["id"], {})
            changes.append(msgspec.structs.replace(change, after=after))
        elif not is_mark(change):
            own = marks.get((change.before or {}).get("id", ""), {}) if change.table == JOBS else {}
            rows = [None if row is None else row | own for row in (change.before, change.after)]
            changes.append(msgspec.structs.replace(change, before=rows[0], after=rows[1]))
    return msgspec.structs.replace(history, changes=changes)


def is_mark(change: RowChange) -> bool:
    before, after = change.before, change.after
    if change.table != JOBS or before is None or after is None or before["schedule_id"] is not None:
        return False
    return after["schedule_id"] is not None and all(before[name] == after[name] for name in after if name not in MARK)


# ── The oracle ──


class Oracle:
    """Computes the nominal times between two moments."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = moment(low), moment(high) + DAY + timedelta(hours=2)
        self._walks: dict[str, Walk] = {}
        self._crons: dict[tuple[str, ...], list[int]] = {}

    def times(self, definition: dict[str, Any], after: int, upto: int) -> list[int]:
        """Return the times after `after`, up to `upto`, oldest first."""
        when = definition["when"]
        found = self._every(when, after, upto) if "every" in when else self._cron(when, after, upto)
        start, end = read(definition.get("start")), read(definition.get("end"))
        return [at for at in found if (start is None or at >= start) and (end is None or at <= end)]

    def next(self, definition: dict[str, Any], after: int) -> int | None:
        """Return the first time after `after`; None if there is none within a day."""
        start = read(definition.get("start"))
        after = after if start is None else max(after, start - 1)
        for seconds in (120, 4 * 3600, 25 * 3600):
            if found := self.times(definition, after, after + seconds * SECOND):
                return found[0]
        return None

    @staticmethod
    def _every(when: dict[str, Any], after: int, upto: int) -> list[int]:
        step = round(when["every"] * SECOND)
        first = read(when.get("anchor")) or 0
        at = first + ((after - first) // step + 1) * step
        return list(range(at, upto + 1, step))

    def _cron(self, when: dict[str, Any], after: int, upto: int) -> list[int]:
        key = (when["cron"], when["zone"], when["gap"], when["overlap"])
        if key not in self._crons:
            expression, zone, gap, overlap = key
            if zone not in self._walks:
                self._walks[zone] = Walk(ZoneInfo(zone), self._low - timedelta(hours=2), self._high)
            fires = self._walks[zone].expect(Fields(expression), gap, overlap).fires
            self._crons[key] = sorted(map(micros, fires))
        times = self._crons[key]
        return times[bisect_right(times, after) : bisect_right(times, upto)]


# ── The judge ──


class Judge:
    def __init__(self, seen: Seen, history: History) -> None:
        self._seen = seen
        self._history = history
        moments = [one.upto for versions in seen.versions.values() for one in versions]
        self._oracle = Oracle(min(moments), max(moments))
        self._definitions = {one: versions[-1].definition for one, versions in seen.versions.items()}
        self.late: list[float] = []  # seconds from a nominal time to its decision, if it was the only one
        self.cut_short = 0  # decisions of which only the newest MOST_RECORDED times were recorded
        self.unrecorded = 0  # times that an edit left without a record
        self.again = 0  # times that came again, after the clock was set back
        self.decisions = 0
        self.caught_up = 0  # decisions about more than one time

    def violations(self) -> list[Violation]:
        checks = (self._decided, self._once, self._jobs_and_fires, self._reject)
        return [Violation("S14", job_id, text) for check in checks for job_id, text in check()]

    def figures(self) -> dict[str, float]:
        kept = [one for one in self._seen.records if one.op == "insert"]
        late = sorted(self.late) or [0.0]
        return {
            "schedules": len(self._seen.versions),
            "changes of them": sum(len(versions) for versions in self._seen.versions.values()) - self.decisions,
            "decisions": self.decisions,
            "of many times at once": self.caught_up,
            "nominal times": len(kept),
            **{f"times that are {why}": sum(one.reason == why for one in kept) for why in ("missed", "paused", "live")},
            "jobs of schedules": len(self._seen.jobs),
            "decisions cut to 10,000 times": self.cut_short,
            "times that an edit has not recorded": self.unrecorded,
            "times that came again after a clock was set back": self.again,
            "s from a time to its job (median)": round(median(late), 3),
            "s (99 %)": round(late[int(0.99 * len(late))], 3),
        }

    def _decided(self) -> Found:
        """Every nominal time between the creation and `upto` has one record, and that agrees with the policies."""
        by_decision: dict[tuple[str, int], dict[int, Record]] = defaultdict(dict)
        has_job: dict[str, set[int]] = defaultdict(set)
        for one in self._seen.records:
            if one.op != "delete" and one.kind == "schedule":
                by_decision[one.schedule_id, one.at][one.fire_at] = one
            elif one.op != "delete" and one.kind == "backfill":
                has_job[one.schedule_id].add(one.fire_at)
        for schedule_id, versions in self._seen.versions.items():
            first = versions[0]
            if first.op != "insert" or first.upto != first.created:
                yield None, f"{first.name}: begins with {first.op}, upto {first.upto}, created {first.created}"
            for before, after in zip([first, *versions], versions, strict=False):
                if after.op == "delete":
                    continue
                wanted = self._oracle.next(after.definition, after.upto)
                if after.next_run_at != wanted and (wanted is not None or not self._is_far(after)):
                    yield None, f"{after.name}: the next time is {shown(after.next_run_at)}, not {shown(wanted)}"
                if after.upto < before.upto and not is_edit(before, after):
                    yield None, f"{after.name}: upto goes back from {shown(before.upto)} to {shown(after.upto)}"
                records = by_decision.pop((schedule_id, after.upto), {}) if after.upto != before.upto else {}
                yield from self._as_planned(before, after, records, has_job[schedule_id])
                # If upto has gone back, times come again. Such a time keeps its job.
                has_job[schedule_id] |= {at for at, one in records.items() if one.job_id is not None}
        for (schedule_id, at), records in by_decision.items():
            name = self._seen.versions[schedule_id][0].name
            yield (
                None,
                f"{name}: {len(records)} times were decided at {shown(at)}, which was no decision: {some(records)}",
            )

    @staticmethod
    def _is_far(version: Version) -> bool:
        """True if the next time may be more than a day away."""
        return version.next_run_at is not None and version.next_run_at > version.upto + 24 * 3600 * SECOND

    def _as_planned(self, before: Version, after: Version, records: dict[int, Record], others: set[int]) -> Found:
        due = self._oracle.times(before.definition, before.upto, after.upto)
        if not due and not records:
            return
        edited = any(before.definition.get(one) != after.definition.get(one) for one in ("when", "start", "end"))
        expected: dict[int, str | None]
        told = f"{before.name} ({before.definition['when']}), decided at {shown(after.upto)}"
        if edited:
            self.unrecorded += max(0, len(due) - MOST_RECORDED)
            expected = {at: why or "missed" for at, why in planned(before, due[-MOST_RECORDED:], after.upto).items()}
        else:
            self.decisions += 1
            self.caught_up += len(due) > 1
            if len(due) > MOST_RECORDED:
                self.cut_short += 1
                due = due[-MOST_RECORDED:]
                oldest = records.get(due[0])
                if oldest is not None and not (oldest.detail or "").startswith("so were all earlier ones"):
                    yield None, f"{told}: the oldest of many does not tell of those before: {oldest}"
            expected = planned(before, due, after.upto)
            if len(due) == 1 and expected[due[0]] is None:
                self.late.append((after.upto - due[0]) / SECOND)
        if missing := expected.keys() - records.keys() - others:
            yield None, f"{told}: {len(missing)} times have no record: {some(missing)}"
        if unexpected := records.keys() - expected.keys():
            yield None, f"{told}: {len(unexpected)} records are of no nominal time: {some(unexpected)}"
        if_live = before.definition.get("if_live", "allow")
        for at in expected.keys() & records.keys():
            record, reason = records[at], expected[at]
            if reason is not None and record.reason != reason:
                yield record.job_id, f"{told}: {shown(at)} should be {reason}: {record}"
            may_be_live = record.reason == "live" and if_live in ("reject", "queue")
            if reason is None and record.job_id is None and not may_be_live:
                yield None, f"{told}: {shown(at)} should have a job: {record}"

    def _once(self) -> Found:
        """A time is decided once, and has at most one job, by the fires and by the jobs. If a schedule is edited after
        the clock was set back, later times come again."""
        again = {
            schedule_id: [(after.upto, before.upto) for before, after in pairwise(versions) if after.upto < before.upto]
            for schedule_id, versions in self._seen.versions.items()
        }
        for one in self._seen.records:
            if one.op == "update" and one.kind == "schedule":
                if not any(low < one.fire_at <= high for low, high in again[one.schedule_id]):
                    yield one.job_id, f"{shown(one.fire_at)} was decided again: {one}"
                self.again += 1
        by_time: dict[tuple[str | None, int | None], set[str]] = defaultdict(set)
        for job in self._seen.jobs:
            by_time[job.schedule_id, job.fire_at].add(job.id)
        for (schedule_id, at), ids in by_time.items():
            if schedule_id is not None and len(ids) > 1:
                yield min(ids), f"schedule {schedule_id} has {len(ids)} jobs for {shown(at)}: {sorted(ids)}"

    def _jobs_and_fires(self) -> Found:
        fires = {one.job_id: one for one in self._seen.records if one.job_id is not None and one.op != "delete"}
        jobs = {job.id: job for job in self._seen.jobs}
        for job_id in fires.keys() - jobs.keys():
            yield job_id, f"has a record and is not there: {fires[job_id]}"
        for job_id, job in jobs.items():
            fire = fires.get(job_id)
            if fire is None or (fire.schedule_id, fire.fire_at) != (job.schedule_id, job.fire_at):
                yield job_id, f"of the schedule {job.schedule_id} at {shown(job.fire_at)}: its record is {fire}"
            elif job.payload["at"] != shown(fire.fire_at):
                yield job_id, f"of {shown(fire.fire_at)} has {job.payload} for its payload"
        for change in self._history.changes:
            if change.table != JOBS or change.op != "insert" or change.after is None:
                continue
            fire = fires.get(change.after["id"])
            if fire is None:
                yield change.after["id"], "was inserted, and no schedule has a record of it"
            elif fire.kind == "schedule":
                # An operator may have edited the jitter after the job was made. So any version's jitter is allowed.
                late = change.after["run_at"] - fire.fire_at
                if not 0 <= late <= SECOND * self._most_jitter(fire.schedule_id):
                    yield fire.job_id, f"of {shown(fire.fire_at)} was to run {late} µs later"

    def _most_jitter(self, schedule_id: str) -> float:
        return max(float(one.definition.get("jitter", 0.0)) for one in self._seen.versions[schedule_id])

    def _reject(self) -> Found:
        """Under if_live="reject" a schedule never has two live jobs. Schedules whose policy was edited may have two."""
        always = {
            one
            for one, versions in self._seen.versions.items()
            if all(version.definition.get("if_live") == "reject" for version in versions)
        }
        own = {one.job_id: one.schedule_id for one in self._seen.records if one.job_id and one.kind != "backfill"}
        live: dict[str, set[str]] = defaultdict(set)
        for change in self._history.changes:
            row = change.after or change.before
            if change.table != JOBS or row is None or own.get(row["id"]) not in always:
                continue
            mine = live[own[row["id"]]]
            mine.discard(row["id"])
            if change.after is not None and change.after["status"] in LIVE:
                mine.add(row["id"])
            if len(mine) > 1:
                yield row["id"], f"lives beside others of its schedule, which rejects that: {sorted(mine)}"


def is_edit(before: Version, after: Version) -> bool:
    """True if an operator has changed or resumed the schedule."""
    return before.definition != after.definition or before.resumed_at != after.resumed_at


def planned(before: Version, due: list[int], now: int) -> dict[int, str | None]:
    """Return, for times that are decided together, why the specification wants no job. None: it wants one."""
    reasons: dict[int, str | None] = {}
    for at in due:
        if before.paused_at is None:
            continue
        # A paused schedule makes no job, not even for an earlier time that was not decided yet.
        if before.resumed_at is None or before.paused_at <= at <= before.resumed_at:
            reasons[at] = "paused"
    rest = [at for at in due if at not in reasons]
    missed = before.definition.get("missed", "last")
    chosen: list[int] = []
    if missed == "last":
        chosen = rest[-1:]
    elif missed == "skip":
        chosen = [at for at in rest[-1:] if now - at <= LATE]
    elif rest:
        within = before.definition.get("within")
        chosen = rest[-before.definition.get("most", 100) :]
        if within is not None:
            chosen = [at for at in chosen if now - at <= max(within * SECOND, LATE)]
    reasons |= {at: None if at in chosen else "missed" for at in rest}
    return reasons


# ── Times ──


def moment(at: int) -> datetime:
    return EPOCH + timedelta(microseconds=at)


def micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def read(text: str | None) -> int | None:
    return None if text is None else micros(datetime.fromisoformat(text))


def shown(at: int | None) -> str:
    """Return the time in the form that {{fire_at}} in a payload gets."""
    return "never" if at is None else moment(at).isoformat().replace("+00:00", "Z")


def some(times: Iterable[int]) -> str:
    many = sorted(times)
    return ", ".join(map(shown, many[:3])) + (f" … {shown(many[-1])}" if len(many) > 3 else "")
