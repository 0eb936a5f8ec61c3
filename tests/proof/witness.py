"""The witness: its own triggers write down every change of every row, whole and in order.

The witness shares nothing with the product but the tables' names. So the checker can compare what the product says
about itself (its history, its audit, its answers) with what happened.

PostgreSQL tells which transaction made a change. SQLite doesn't. There the witness tells transactions apart by a
function of the connection, if there is one. Otherwise it uses the time that a transaction writes into its rows: a
transaction reads its clock once.
"""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import datetime
from typing import Any, Protocol

import msgspec

from tests.closing import connected
from tests.proof.history import History, RowChange
from tests.stores.rows import micros

JOBS, ARCHIVE, STEPS, SIGNALS = "_jobs", "_jobs_archive", "_jobs_steps", "_jobs_signals"
AUDIT, TOPICS, WORKERS = "_jobs_audit", "_jobs_topics", "_jobs_workers"
RECORDS, BULK = "_jobs_records", "_jobs_bulk"
SCHEDULES, FIRES, EDGES = "_jobs_schedules", "_jobs_fires", "_jobs_edges"
TABLES = (JOBS, ARCHIVE, STEPS, SIGNALS, AUDIT, TOPICS, WORKERS, RECORDS, BULK, SCHEDULES, FIRES, EDGES)
_JSON = frozenset({"payload", "result", "tags", "history", "log", "data", "topics", "definition"})
_FLAGS = frozenset({"ready", "stray", "stopping", "cancelable", "absent", "fills"})
_TIMES = frozenset(
    {"created", "updated", "run_at", "expires_at", "claimed_at", "started_at", "locked_until", "finished_at", "fire_at"}
    | {"cancel_requested_at", "paused_at", "paused_until", "at", "started", "seen", "moved_at", "deadline"}
    | {"resumed_at", "upto", "next_run_at", "last_run_at"}
)
NEVER = 1 << 62  # the time of a wait or pause that does not end by itself, on both stores
_MACHINE_CLOCK = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"  # to the millisecond

_decode = msgspec.json.decode


class Tables(Protocol):
    """A way to the tables that is not the product's. The stores' test harness is one."""

    kind: str

    async def fetch(self, query: str) -> list[tuple[Any, ...]]: ...

    async def execute(self, statement: str) -> None: ...


class TablesAt:
    """A way to the tables of a URL, with a new connection for every call."""

    def __init__(self, url: str) -> None:
        self.kind = "sqlite" if url.startswith("sqlite") else "postgres"
        self._where = url.removeprefix("sqlite:///").partition("?")[0] if self.kind == "sqlite" else url

    async def fetch(self, query: str) -> list[tuple[Any, ...]]:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self._where, timeout=30.0)) as connection, connection:
                return connection.execute(query).fetchall()
        async with connected(self._where) as connection_:
            return [tuple(record) for record in await connection_.fetch(query)]

    async def execute(self, statement: str) -> None:
        await self.fetch(statement)


class Witness:
    """Sees every change from `install` on."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def install(self, *, clock: str | None = None, transaction: str | None = None) -> "Witness":
        """Install the triggers. `clock`, `transaction`: SQLite only, functions of the one writing connection (see
        `lend`)."""
        if self._tables.kind == "postgres":
            statements = _postgres_statements()
        else:
            columns = {table: await self._columns(table) for table in TABLES}
            statements = _sqlite_statements(columns, clock or _MACHINE_CLOCK, transaction or "0")
        for statement in statements:
            await self._tables.execute(statement)
        return self

    async def forget(self) -> None:
        """Delete the record, and begin anew."""
        await self._tables.execute(f"DELETE FROM {self._log}")

    async def collect(self, history: History) -> History:
        """Fill in all that the database knows, and return the history."""
        history.changes = await self.changes()
        history.jobs, history.archive = await self.rows(JOBS), await self.rows(ARCHIVE)
        history.steps, history.signals = await self._all_rows(STEPS), await self._all_rows(SIGNALS)
        history.schedules, history.fires = await self._all_rows(SCHEDULES), await self._all_rows(FIRES)
        history.events = await self.events()
        return history

    async def changes(self) -> list[RowChange]:
        if self._tables.kind == "postgres":
            at = "(extract(epoch FROM at) * 1000000)::bigint"
            query = f"SELECT seq, {at}, tx, tbl, op, before::text, after::text, snapshot FROM {self._log}"
        else:
            query = f"SELECT seq, at, tx, tbl, op, before, after, NULL FROM {self._log}"
        found = [
            RowChange(seq, at, table, op, tx, self._row(before), self._row(after), snapshot)
            for seq, at, tx, table, op, before, after, snapshot in await self._tables.fetch(f"{query} ORDER BY seq")
        ]
        found = [change for change in found if not is_limited(change)]
        return found if any(change.tx for change in found) else with_transactions(found)

    async def rows(self, table: str) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in await self._all_rows(table)}

    async def _all_rows(self, table: str) -> list[dict[str, Any]]:
        if self._tables.kind == "postgres":
            query = f"SELECT row_to_json(t)::text FROM {table} t"
        else:
            query = f"SELECT {_json_object('t', await self._columns(table))} FROM {table} t"
        rows = [self._row(text) for (text,) in await self._tables.fetch(query)]
        return [row for row in rows if row is not None]

    async def events(self) -> dict[str, list[dict[str, Any]]]:
        """Return the product's own events by job, oldest first."""
        at, data = ("at", "data") if self._tables.kind == "sqlite" else ("_jobs_us(at)", "data::text")
        found: dict[str, list[dict[str, Any]]] = {}
        for job_id, seq, at_, event, status, version, by, data_ in await self._tables.fetch(
            f'SELECT job_id, seq, {at}, event, status, version, "by", {data} FROM _jobs_events ORDER BY job_id, seq'
        ):
            facts = {"seq": seq, "at": at_, "event": event, "status": status, "version": version, "by": by}
            found.setdefault(str(job_id), []).append(facts | {"data": _decode(data_)})
        return found

    @property
    def _log(self) -> str:
        return "witness.log" if self._tables.kind == "postgres" else "_witness"

    async def _columns(self, table: str) -> list[str]:
        found = await self._tables.fetch(f"SELECT name FROM pragma_table_info('{table}')")
        return [name for (name,) in found if name != "n" or table == STEPS]  # elsewhere n is SQLite's own number

    def _row(self, text: str | None) -> dict[str, Any] | None:
        if text is None:
            return None
        row: dict[str, Any] = _decode(text)
        for name, value in row.items():
            if value is None:
                continue
            if name in _TIMES and value == "infinity":
                row[name] = NEVER
            elif name in _TIMES and isinstance(value, str):
                row[name] = micros(datetime.fromisoformat(value))
            elif self._tables.kind == "sqlite":
                if name in _JSON and isinstance(value, str):  # if not, a JSON function has just made it
                    row[name] = _decode(value)
                elif name in _FLAGS:
                    row[name] = bool(value)
        return row


def is_limited(change: RowChange) -> bool:
    """Return True if a topic's row only changed in whether the topic has limits. That follows from its record, which
    the witness sees, too."""
    if change.table != TOPICS or change.after is None:
        return False
    before = change.before or {}
    rest = [name for name in change.after if name not in ("topic", "limited")]
    is_other = bool(before.get("limited")) != bool(change.after["limited"])
    return is_other and all(change.after[name] == before.get(name) for name in rest)


def lend(connection: sqlite3.Connection, clock: Callable[[], int]) -> dict[str, str]:
    """Give SQLite's one writing connection a clock and a counter of its transactions. Return the arguments of
    `install`."""
    begun = 0

    def heard(statement: str) -> None:
        nonlocal begun
        begun += statement.startswith("BEGIN")

    connection.set_trace_callback(heard)
    connection.create_function("witness_clock", 0, clock)
    connection.create_function("witness_transaction", 0, lambda: begun)
    return {"clock": "witness_clock()", "transaction": "witness_transaction()"}


def with_transactions(changes: Iterable[RowChange]) -> list[RowChange]:
    """Return the changes with numbered transactions, for SQLite. There is one writer, so a transaction is in one
    piece."""
    found: list[RowChange] = []
    number, stamp, asked = 0, None, False
    for change in changes:
        if change.table == EDGES:  # no check asks for the transaction of an edge
            found.append(msgspec.structs.replace(change, tx=number))
            continue
        mine = _stamp(change)
        asks = _asks(change) and not (found and _is_over(found[-1], change))
        if asks or asked:
            joins = asked and _is_answered(found[-1], change)
        elif (
            mine is None
            and change.table in (STEPS, SIGNALS)
            and change.op == "delete"
            and (place := _removed(found, change)) is not None
        ):
            number = found[place].tx
            found[place:] = [msgspec.structs.replace(one, tx=number) for one in found[place:]]
            joins = True
        elif mine is None:
            joins = bool(found) and _goes_on(found, change, number)
        else:
            explained = None if mine == stamp or stamp is not None else _explained(found, change)
            if explained is not None:  # the transaction is in one piece: all changes since are part of it
                number = found[explained].tx
                found[explained:] = [msgspec.structs.replace(one, tx=number) for one in found[explained:]]
            joins = mine == stamp or explained is not None
        if not joins:
            number += 1
        if not joins or mine is not None:
            stamp = mine
        found.append(msgspec.structs.replace(change, tx=number))
        asked = asks
    return found


def _asks(change: RowChange) -> bool:
    """Return True if by this statement a run asks whether it must wait. The run reads a signal, writes the wait, and
    then marks the job. That is the whole transaction."""
    before, after = change.before, change.after
    if change.table == SIGNALS:
        return change.op == "update"
    if change.table != STEPS or after is None or not after["name"].startswith(("@signal:", "@sleep")):
        return False
    return before is None or {name for name in after if before[name] != after[name]} != {"deadline"}


def _is_answered(last: RowChange, change: RowChange) -> bool:
    """Return True if this is the next statement of a run that asks whether it must wait."""
    row, mine = last.after or {}, change.after or {}
    if last.table == SIGNALS:
        return change.table == STEPS and (row["job_id"], row["wait"]) == (mine["job_id"], mine["name"])
    return change.table == JOBS and row["job_id"] == mine.get("id")


def _is_over(last: RowChange, change: RowChange) -> bool:
    """Return True if this is a sleep that was over before the run began. Such a sleep is marked as a step is: first the
    job, then the step."""
    row, mine = last.after or {}, change.after or {}
    if last.table != JOBS or change.table != STEPS or row.get("id") != mine.get("job_id"):
        return False
    return bool(mine["name"] == "@sleep" and mine["finished_at"] is not None and mine["finished_at"] == row["updated"])


def _stamp(change: RowChange) -> int | None:
    """Return the time that the transaction wrote into the row, or None if it wrote none."""
    before, after = change.before or {}, change.after
    if after is None:
        return None
    if change.table in (AUDIT, FIRES) or (change.table == SIGNALS and change.op == "insert"):
        return int(after["at"])
    if change.table == SCHEDULES:
        moved = [name for name in ("updated", "upto") if before.get(name) != after[name]]
        return max((int(after[name]) for name in moved), default=None)
    if change.table == RECORDS:
        return int(after["updated"])
    if change.table == BULK:
        return max(int(after[name]) for name in ("created", "moved_at", "finished_at") if after[name] is not None)
    if change.table in (JOBS, ARCHIVE):
        if before.get("updated") != after["updated"] or before.get("status") != after.get("status"):
            return int(after["updated"])
        if before.get("history") != after["history"]:
            return int(after["history"][-1]["at"])
    elif change.table == TOPICS and after["paused_at"] is not None and not is_backoff(change):
        return int(after["paused_at"])
    return None


def is_backoff(change: RowChange) -> bool:
    """Return True if a worker wrote a topic's backoff, which rescues need. Pauses and resumes leave that alone."""
    return (change.before or {}).get("backoff") != (change.after or {}).get("backoff")


def is_dated(change: RowChange) -> bool:
    """Return True if the change only writes into a new job which schedule made it, and for which time."""
    before, after = change.before, change.after
    if change.table != JOBS or before is None or after is None or before["schedule_id"] is not None:
        return False
    return {name for name in after if before[name] != after[name]} == {"schedule_id", "fire_at"}


def _goes_on(found: list[RowChange], change: RowChange, number: int) -> bool:
    """Return True if the change belongs to the transaction `number`. It may remove a job from _jobs that this
    transaction has just archived, or add the lines of its progress report. Or it may write or remove a step or signal
    of a job whose row this transaction has just changed."""
    if change.table in (SCHEDULES, FIRES):  # jobs first, then schedules, then fires
        last = found[-1]
        return last.table in (SCHEDULES, FIRES) or (last.table, last.op) == (JOBS, "insert")
    if change.table == RECORDS:  # removed together with other records that are written
        return found[-1].table == RECORDS
    if is_dated(change):
        return found[-1].table in (SCHEDULES, FIRES) or is_dated(found[-1])
    if change.table in (STEPS, SIGNALS):
        job_id = (change.after or change.before or {})["job_id"]
        mine = [one for one in found if one.tx == number and one.table == JOBS and one.after is not None]
        return any((one.after or {})["id"] == job_id for one in mine)
    if change.table != JOBS or change.before is None:
        return False
    if change.op == "delete":
        first = (ARCHIVE, "insert")
    elif change.after is not None and change.before["log"] != change.after["log"]:
        first = (JOBS, "update")
    else:
        return False
    for earlier in reversed(found):
        if earlier.tx != number:
            return False
        if (earlier.table, earlier.op) == first and earlier.after and earlier.after["id"] == change.before["id"]:
            return True
    return False


def _removed(found: list[RowChange], change: RowChange) -> int | None:
    """Return the place at which the job of this step or signal was removed, or None if other changes came since."""
    assert change.before is not None
    for place in range(len(found) - 1, -1, -1):
        one = found[place]
        if one.table == EDGES:
            continue
        if one.op != "delete" or one.table not in (JOBS, ARCHIVE, STEPS, SIGNALS) or one.before is None:
            return None
        if one.table in (JOBS, ARCHIVE) and one.before["id"] == change.before["job_id"]:
            return place
    return None


def _explained(found: list[RowChange], audit: RowChange) -> int | None:
    """Return the place of the change that this audit entry is about, if neither that change nor any since has a stamp.
    Otherwise return None."""
    if audit.table != AUDIT or audit.after is None or not found:
        return None
    if found[-1].table in (SCHEDULES, FIRES):
        place = len(found)
        while place and found[place - 1].table in (SCHEDULES, FIRES):
            place -= 1
        return place
    if found[-1].table == TOPICS:
        row = found[-1].after or found[-1].before or {}
        return len(found) - 1 if row.get("topic") == audit.after["topic"] else None
    for place in range(len(found) - 1, -1, -1):
        change = found[place]
        if change.table == EDGES:
            continue
        if change.op != "delete" or change.table not in (JOBS, ARCHIVE, STEPS, SIGNALS) or change.before is None:
            return None
        if change.before.get("id") == audit.after["job_id"]:
            return place
    return None


def _json_object(row: str, columns: Iterable[str]) -> str:
    return "json_object(" + ", ".join(f"'{name}', {row}.\"{name}\"" for name in columns) + ")"


def _sqlite_statements(columns: dict[str, list[str]], clock: str, transaction: str) -> list[str]:
    columns_ = "at INTEGER NOT NULL, tx INTEGER NOT NULL, tbl TEXT NOT NULL, op TEXT NOT NULL, before TEXT, after TEXT"
    statements = [f"CREATE TABLE _witness (seq INTEGER PRIMARY KEY AUTOINCREMENT, {columns_})"]
    for table, names in columns.items():
        for op in ("insert", "update", "delete"):
            before = "NULL" if op == "insert" else _json_object("OLD", names)
            after = "NULL" if op == "delete" else _json_object("NEW", names)
            statements.append(
                f"CREATE TRIGGER _witness{table}_{op} AFTER {op} ON {table} BEGIN"
                " INSERT INTO _witness (at, tx, tbl, op, before, after)"
                f" VALUES ({clock}, {transaction}, '{table}', '{op}', {before}, {after}); END"
            )
    return statements


def _postgres_statements() -> list[str]:
    return [
        "CREATE SCHEMA witness",
        """CREATE TABLE witness.log (seq bigserial PRIMARY KEY, at timestamptz NOT NULL, tx bigint NOT NULL,
            tbl text NOT NULL, op text NOT NULL, before json, after json, snapshot text NOT NULL)""",
        """CREATE FUNCTION witness.note() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO witness.log (at, tx, tbl, op, before, after, snapshot) VALUES (
                clock_timestamp(), txid_current(), TG_ARGV[0], lower(TG_OP),
                CASE WHEN TG_OP <> 'INSERT' THEN row_to_json(OLD) END,
                CASE WHEN TG_OP <> 'DELETE' THEN row_to_json(NEW) END, txid_current_snapshot()::text);
            RETURN NULL;
        END $$""",
        *(
            f"CREATE TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON {table}"
            f" FOR EACH ROW EXECUTE FUNCTION witness.note('{table}')"
            for table in TABLES
        ),
    ]
