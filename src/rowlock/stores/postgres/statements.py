"""The text of every statement, for one schema. docs/postgres.sql shows all of them, assembled.

A whole statement is sql/<name>.sql, and numbers its parameters itself. What several statements share is in sql/parts.
Claim, settle and complete are lists of CTEs there, so that one statement can settle a batch and claim the next in one
round trip. Their parameters are blanks with names, which are numbered here: behind a settle, a claim begins with $15.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from rowlock.core.job import Job, Log, Status
from rowlock.core.moves import COUNTERS, Row
from rowlock.core.sketch import GROWTH, LONGEST, SHORTEST
from rowlock.stores import sql
from rowlock.stores.bulk import Bulk
from rowlock.stores.columns import COPIED, SHAPES, STORED, listed
from rowlock.stores.failures import cut_error
from rowlock.stores.postgres.rows import ARCHIVED_VALUES, CLAIMED_COLUMNS, CLAIMED_NULLS, LIVE_VALUES
from rowlock.stores.queries import State
from rowlock.stores.schedules import COLUMNS as SCHEDULE_COLUMNS
from rowlock.stores.schedules import TIMES as SCHEDULE_TIMES

PACKAGE = "rowlock.stores.postgres"

# The parameters of the parts, in the order in which the store passes them.
CLAIM = (
    "topics", "template_versions", "after_ranks", "after_run_ats", "after_ids", "until_ranks", "until_run_ats",
    "due_after", "most", "worker", "lease", "start", "not_after", "size",
)  # fmt: skip
SETTLE = (
    "ids", "runs", "goals", "delays", "retries", "errors", "outcomes", "ran", "reasons", "entries", "worker",
    "fingerprints", "waits", "seen",
)  # fmt: skip
COMPLETE = ("ids", "version", "outcomes", "ran", "worker")

# The workers whose runs may be settled: one worker, or for each run the worker that is named with it. NULL: any worker.
# A waiting job that is being cancelled has no worker, and is no run.
_OF_ONE_WORKER = "locked_by = coalesce({worker}::text, locked_by)"
_OF_EACH_WORKER = (
    "EXISTS (SELECT FROM unnest({ids}::uuid[], {worker}::text[]) AS asked (id, worker) "
    "WHERE asked.id = held.id AND held.locked_by = coalesce(asked.worker, held.locked_by))"
)
# An id that was used twice may be in the archive already: its first completion stands. A batch of completions is first
# tried without this clause, which costs a tenth.
_FIRST_STANDS = "ON CONFLICT (id) DO NOTHING"
_AFTER_SETTLE = "(SELECT count(*) FROM held) >= 0 AND"
# One row with the outcome, and one row per claimed job, in no order: a sort costs less in Python.
_CLAIMED = (
    f"SELECT seen, next_due, now, until, applied, {CLAIMED_NULLS} FROM {{source}}\n"  # noqa: S608 - our own text
    "UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, j.* FROM claimed j"
)
_SETTLED = "SELECT applied, {ended} AS ended, {woken} AS woken FROM settle_summary"
# Jobs that were to wait, or to stop, and are ready instead.
_WOKEN = "EXISTS (SELECT FROM moved WHERE woken)"
# The run_at of a wait that does not end by itself. No infinity: not every driver can read that.
_NEVER = "timestamptz '9999-12-31 23:59:59.999999+00'"
# The most common batch has no job that stands in a line. The end of such a job must be noted.
_PLAIN = " AND line IS NULL"
_ENDED = """
ended AS (
    INSERT INTO {schema}._jobs_ends (line) SELECT DISTINCT line FROM gone WHERE line IS NOT NULL
),"""
KEY_ORDER = "ORDER BY s.topic, s.key, coalesce(s.scope, ''), coalesce(s.scope_id, ''), s.n"
_IGNORE = "ON CONFLICT DO NOTHING"
_KEYS = (
    "unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[]) "
    "WITH ORDINALITY AS s (id, topic, scope, scope_id, key, n)"
)
_KEYS_ON_CONN = (
    "json_to_recordset($1::text::json) AS s (id uuid, n int, topic text, scope text, scope_id text, key text)"
)
# The jobs that are due for a pass. Jobs of dead workers: by a range, see held_by.sql. The other passes: by the clock.
_OF_DEAD_WORKERS = "j.locked_until > '-infinity' AND j.locked_by = ANY ($2::text[])"
_LEASE_OVER = "j.locked_until < (SELECT least(clock_timestamp(), coalesce($2::timestamptz, 'infinity')))"
_EXPIRED = "j.status = 'pending' AND j.expires_at IS NOT NULL AND j.expires_at <= (SELECT clock_timestamp())"
_WAIT_OVER = (
    "j.status = 'waiting' AND NOT j.ready AND j.run_at <= (SELECT clock_timestamp()) "
    "AND j.run_at > coalesce($2::timestamptz, '-infinity')"
)
# The grace of the job's template, or the usual one.
_GRACE_OVER = (
    "j.cancel_requested_at < (SELECT clock_timestamp()) - coalesce(("
    "SELECT (r.data->'template'->'cancel'->>'grace')::float8 FROM {schema}._jobs_records r "
    "WHERE r.kind = 'template' AND r.id = j.topic || '@' || j.template_version "
    "AND json_typeof(r.data->'template'->'cancel'->'grace') = 'number'), $2::float8) * interval '1 second'"
)
# The run is in a step that is not cancelable, and its lease is live. The range is for the planner: see read.sql.
_SHIELDED = (
    "j.locked_until >= (SELECT clock_timestamp()) AND EXISTS (SELECT FROM {schema}._jobs_steps s "
    "WHERE s.job_id >= j.id AND s.job_id <= j.id AND s.state = 'running' AND NOT s.cancelable "
    "AND s.version = j.version)"
)
# The schedules to lock. If another transaction has locked a due schedule, it is firing it.
_SCHEDULES_BY_ID = (
    "s.id = ANY (ARRAY(SELECT value::uuid FROM asked, json_array_elements_text(a->'ids'))) ORDER BY s.id FOR UPDATE"
)
_SCHEDULE_BY_NAME = (
    "s.name = (SELECT a->>'name' FROM asked) AND coalesce(s.scope, '') = (SELECT coalesce(a->>'scope', '') FROM asked) "
    "AND coalesce(s.scope_id, '') = (SELECT coalesce(a->>'scope_id', '') FROM asked) FOR UPDATE"
)
_SCHEDULES_DUE = (
    "s.next_run_at IS NOT NULL AND s.next_run_at <= (SELECT clock_timestamp()) "
    "AND s.id <> ALL (ARRAY(SELECT value::uuid FROM asked, json_array_elements_text(a->'skip'))) "
    "ORDER BY s.next_run_at LIMIT (SELECT (a->>'due')::int FROM asked) FOR UPDATE SKIP LOCKED"
)
# If the client falls silent in this transaction, the server ends it and frees its locks.
_SILENCE = "set_config('idle_in_transaction_session_timeout', '10s', true)"
# The columns that a move may set.
_PATCHED = {
    **dict.fromkeys(
        (
            "status",
            "stage",
            "message",
            "cancel_reason",
            "last_error",
            "fingerprint",
            "locked_by",
            "step",
            "waits_for",
            "line",
            "share",
        ),
        "text",
    ),
    **dict.fromkeys(("priority", "retries", "crashes", "signals"), "int"),
    "ready": "bool",
    "progress": "float8",
    "tags": "jsonb",
    "payload": "json",
    "result": "json",
}
_PATCHED_TIMES = ("run_at", "expires_at", "finished_at", "cancel_requested_at", "locked_until", "updated")


class Statements:
    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str: ...

    def __init__(self, schema: str) -> None:
        def part(name: str, **blanks: str) -> str:
            return _assemble(schema, f"parts/{name}", blanks)

        for name in sql.names(PACKAGE):
            setattr(self, name, _assemble(schema, name, {}))

        claim = claiming(schema, _numbered(CLAIM))
        settle = settling(schema, _numbered(SETTLE))
        complete = completing(schema, _numbered(COMPLETE), conflict="", plain=True)
        mixed = settling(schema, _numbered(SETTLE), whose=_OF_EACH_WORKER)
        # The claim waits until the settled rows are locked. It never waits for a lock itself, so it can't deadlock.
        behind_settle = claiming(
            schema,
            _numbered(CLAIM, behind=SETTLE),
            after_settle=_AFTER_SETTLE,
            or_ended=" OR EXISTS (SELECT FROM ended)",
            or_woken=f" OR {_WOKEN}",
        )
        behind_complete = claiming(schema, _numbered(CLAIM, behind=COMPLETE), after_settle=_AFTER_SETTLE)
        nothing_settled = "(SELECT *, NULL::uuid[] AS applied FROM claim_summary) summary"
        both = _CLAIMED.format(source="settle_summary CROSS JOIN claim_summary")
        self.claim = f"WITH\n{claim}\n{_CLAIMED.format(source=nothing_settled)}"
        ended = "EXISTS (SELECT FROM ended)"
        self.settle = f"WITH\n{settle}\n{_SETTLED.format(ended=ended, woken=_WOKEN)}"
        self.settle_mixed = f"WITH\n{mixed}\n{_SETTLED.format(ended=ended, woken=_WOKEN)}"
        self.complete = f"WITH\n{complete}\n{_SETTLED.format(ended='false', woken='false')}"
        # Without comments: the driver keeps no statement of more than 15 KiB prepared.
        self.settle_and_claim = _bare(f"WITH\n{settle},\n{behind_settle}\n{both}")
        self.settle_mixed_and_claim = _bare(f"WITH\n{mixed},\n{behind_settle}\n{both}")
        self.complete_and_claim = f"WITH\n{complete},\n{behind_complete}\n{both}"
        self.settle_on_conn = part("settle_on_conn", settle=settling(schema, _from_json(SETTLE)))

        self.limits_take = part("limits_take", columns=CLAIMED_COLUMNS, nulls=CLAIMED_NULLS)

        self.insert = part("insert", order="", conflict=_IGNORE)
        self.insert_new = part("insert", order="", conflict="")
        self.insert_keyed = part("insert", order=KEY_ORDER, conflict=_IGNORE)
        self.insert_undo = part("insert_undo", asked="unnest($1::uuid[]) AS s (id)")
        self.existing = part("existing", asked=_KEYS)
        self.insert_undo_on_conn = part("insert_undo_on_conn", undo=part("insert_undo", asked=_KEYS_ON_CONN))
        self.existing_on_conn = part("existing_on_conn", existing=part("existing", asked=_KEYS_ON_CONN))
        # The condition is written again, without a NULL: each form has an index of its own.
        self.audited = part("audited", whose="bulk IS NULL")
        self.audited_of_bulk = part("audited", whose="bulk = $3::uuid")
        self.audited_of_job = part("audited", whose="job_id = $4::uuid")
        self.failures = part("failures", seen=part("failures_newest"))
        self.failures_of_one = part("failures", seen=part("failures_of_one"))
        self.series = part("series", of_topic="true")
        self.series_of_topic = part("series", of_topic="topic = $2::text")
        self.stats = part("stats", of_topic="")
        self.stats_of_topic = part("stats", of_topic="AND j.topic = $3::text")
        self.lock_jobs = part("lock_jobs", **_move_rows(payload="CASE WHEN $2::bool THEN j.payload::text END"))

        self.rescue_expired = part("lock_due", since="locked_until", due=_LEASE_OVER)
        self.rescue_workers = part("lock_due", since="locked_until", due=_OF_DEAD_WORKERS)
        self.expire_due = part("lock_due", since="expires_at", due=_EXPIRED)
        cancelling = (
            f"j.status = 'cancel_requested' AND {_GRACE_OVER} AND (j.step IS NULL OR ({_SHIELDED}) IS NOT TRUE)"
        )
        self.cancel_timeout_due = part("lock_due", since="cancel_requested_at", due=cancelling)
        self.resume_due = part("lock_due", since="run_at", due=_WAIT_OVER)

        self.schedules_by_id = part("schedules_lock_on_conn", which=_SCHEDULES_BY_ID)
        self.schedule_by_name = part("schedules_lock_on_conn", which=_SCHEDULE_BY_NAME)
        self.schedules_due = part("schedules_lock_on_conn", which=_SCHEDULES_DUE)

        self.progress = part("progress", added=part("add_lines", said="ok", most="$8"))
        self.progress_archived = part("progress_archived", added=part("add_lines", said="s", most="$5"))
        self.read_jobs, self.read_states = _reading(schema, Job), _reading(schema, State)
        self.read_statuses, self.read_logs = _reading(schema, Status), _reading(schema, Log)
        live, archived = listed(STORED, "j."), listed(STORED, "j.", ARCHIVED_VALUES)
        self.stored_rows = part("stored_rows", columns=live, table="_jobs", other="_jobs_archive")
        self.stored_rows_archived = part("stored_rows", columns=archived, table="_jobs_archive", other="_jobs")

        self.all: frozenset[str] = frozenset(vars(self).values())
        # They read no table, so their plans are the same for any number of jobs. A claim's plan that was made while
        # there were no jobs must not be kept without the settings of a session: see PLANNER in connections.py.
        self.lasting = frozenset([self.insert, self.insert_new, self.insert_alike, self.insert_keyed, self.ring])


def _reading(schema: str, shape: type) -> str:
    names = SHAPES[shape]
    blanks = {"columns": listed(names, "j.", LIVE_VALUES), "archived": listed(names, "j.", ARCHIVED_VALUES)}
    return _assemble(schema, "parts/read", blanks)


@cache
def statements_on_conn(schema: str) -> Statements:
    """Return the statements for a caller's connection. The schema is not quoted yet."""
    return Statements(f'"{schema}"')


def claiming(
    schema: str,
    parameters: Mapping[str, str],
    *,
    columns: str = CLAIMED_COLUMNS,
    after_settle: str = "",
    or_ended: str = "",
    or_woken: str = "",
) -> str:
    """Return the CTEs of a claim, with these texts as parameters."""
    blanks = {"columns": columns, "after_settle": after_settle, "or_ended": or_ended, "or_woken": or_woken}
    blanks |= parameters
    return _assemble(schema, "parts/claim", blanks)


def settling(schema: str, parameters: Mapping[str, str], *, whose: str = _OF_ONE_WORKER) -> str:
    blanks = {"archived": _archiving(schema, _FIRST_STANDS), "whose": whose, **parameters}
    return _assemble(schema, "parts/settle", blanks)


def completing(
    schema: str, parameters: Mapping[str, str], *, conflict: str = _FIRST_STANDS, plain: bool = False
) -> str:
    """Return the CTEs of completions. `plain`: jobs that stand in a line are left out."""
    blanks = {"plain": _PLAIN, "ended": ""} if plain else {"plain": "", "ended": _ENDED}
    return _assemble(schema, "parts/complete", {"archived": _archiving(schema, conflict), **blanks, **parameters})


def _archiving(schema: str, conflict: str) -> str:
    return _assemble(
        schema, "parts/archived", {"conflict": conflict, "copied": listed(COPIED), "values": listed(COPIED, "g.")}
    )


def _assemble(schema: str, name: str, blanks: Mapping[str, str]) -> str:
    """Return the text of a file with its own blanks filled, and the blanks that any statement may have."""
    return sql.fill(sql.fill(sql.load(PACKAGE, name), blanks), _shared(schema)).strip()


def _bare(text: str) -> str:
    """Return a statement without lines that are comments."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))


def _numbered(names: tuple[str, ...], behind: tuple[str, ...] = ()) -> dict[str, str]:
    """Return $1, $2, … for these parameters, or the numbers that follow those of a part before it."""
    return {name: f"${n}" for n, name in enumerate(names, len(behind) + 1)}


def _from_json(names: tuple[str, ...]) -> dict[str, str]:
    """Return where settle_on_conn.sql finds each parameter: in an array of arrays, but for the worker."""
    arrays = {
        name: f"ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> {n}) AS e (value))"  # noqa: S608 - our own text
        for n, name in enumerate(names)
    }
    return arrays | {"worker": f"(SELECT given.columns ->> {names.index('worker')} FROM given)"}  # noqa: S608 - the same


@cache
def _shared(schema: str) -> dict[str, str]:
    """Return the blanks that any statement may have."""
    return {
        "minutes": sql.load(PACKAGE, "parts/minutes").strip(),
        "bucket": f"ceil(ln(least(greatest(seconds, {SHORTEST}), {LONGEST})) / ln({GROWTH}::float8))::int",
        "shielded": _SHIELDED,
        "never": _NEVER,
        "short_error": cut_error("left(j.last_error, {})", "right(j.last_error, {})"),
        "bulk_columns": ", ".join(f"b.{name}" for name in Bulk.__struct_fields__),
        **_move_rows(payload="NULL::text"),
        **_move_patches(),
        "silence": _SILENCE,
        "schedule_columns": ", ".join(SCHEDULE_COLUMNS),
        "schedule_row": _schedule_row(),
        "dead_claim": _dead("claim"),
        "dead_due": _dead("due"),
        "schema": schema,
    }


def _schedule_row() -> str:
    """Return a schedule as JSON: times as microseconds, the definition as text, which not every release can read."""
    values = {name: f"s.{name}" for name in SCHEDULE_COLUMNS} | {"definition": "s.definition::text"}
    values |= {name: f"{{schema}}._jobs_us(s.{name})" for name in SCHEDULE_TIMES}
    pairs = [f"'{name}', {value}" for name, value in values.items()]
    return f"json_build_object({', '.join(pairs)})"


def _move_rows(payload: str) -> dict[str, str]:
    """Return the blanks of a statement that locks jobs and reads them as core.moves.Row. If the client falls silent
    between locking and writing, the server ends the transaction and frees the locks."""
    times = ("run_at", "created", "claimed_at", "started_at", "finished_at")
    row = {name: f"j.{name}" for name in Row._fields} | {name: f"{{schema}}._jobs_us(j.{name})" for name in times}
    row["events"] = "j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped"
    row["signals"] = "coalesce(j.signals, 0)"
    row |= {"id": "j.id::text", "tags": "j.tags::text", "payload": payload, "place": "j.ctid::text"}
    archived = row | {
        "status": "'completed'",
        "fingerprint": "NULL::text",
        "line": "NULL::text",
        "line_seq": "NULL::bigint",
        "waits_for": "NULL::text",
        "signals": "0",
    }
    return {
        "row": ", ".join(f"{text} AS {name}" for name, text in row.items()),
        "archived_row": ", ".join(f"{text} AS {name}" for name, text in archived.items()),
        "locked": f"clock_timestamp() AS now, (SELECT {_SILENCE}) AS silence",
    }


def _move_patches() -> dict[str, str]:
    """Return the blanks of write_moves.sql, which writes patches (core.moves.Patch)."""
    columns = {name: f"(c.change->>'{name}')::{kind}" for name, kind in _PATCHED.items()}
    columns |= {name: f"{{schema}}._jobs_time((c.change->>'{name}')::bigint)" for name in _PATCHED_TIMES}
    values = [f"c.change ? '{name}' AS sets_{name}, {new} AS {name}" for name, new in columns.items()]
    names = [f"patch.sets_{name}, patch.{name}" for name in columns]
    change = [f"{name} = CASE WHEN p.sets_{name} THEN p.{name} ELSE j.{name} END" for name in columns]
    return {
        "values": ",\n        ".join(values),
        "names": ",\n        ".join(names),
        "set": ",\n        ".join(change),
        "counters": ", ".join(COUNTERS),
        "counter_types": ", ".join(f"{name} int" for name in COUNTERS),
    }


def _dead(index: str) -> str:
    """Return a count of dead index entries that this session has read: those returned, less those that led to a row."""
    of = f"('{{schema}}._jobs_{index}'::regclass)"
    return f"(pg_stat_get_xact_tuples_returned{of} - pg_stat_get_xact_tuples_fetched{of})"
