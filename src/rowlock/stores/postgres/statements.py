"""The text of every statement, for one schema. Claim and settle are written as lists of CTEs, so that one statement
can do both: settle the last batch and claim the next in one round trip."""

from __future__ import annotations

import re
from functools import cache

from rowlock.core.sketch import GROWTH, LONGEST, SHORTEST
from rowlock.stores import sql
from rowlock.stores.bulk import Bulk
from rowlock.stores.failures import cut_error
from rowlock.stores.postgres.rows import CLAIMED_COLUMNS, CLAIMED_NULLS, COLUMNS

# One row that says how it went, and one per claimed job, in no order: a sort costs less in Python.
_CLAIMED = (
    f"SELECT seen, next_due, now, until, applied, {CLAIMED_NULLS} FROM {{source}} "  # noqa: S608 - our own text
    "UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, j.* FROM claimed j"
)
_ALL_OF_ONE = "($11::text IS NULL OR locked_by = $11::text)"
_EACH_ITS_OWN = (
    "EXISTS (SELECT FROM unnest($1::uuid[], $11::text[]) AS asked (id, worker) "
    "WHERE asked.id = held.id AND (asked.worker IS NULL OR asked.worker = held.locked_by))"
)
KEY_ORDER = "ORDER BY s.topic, s.key, coalesce(s.scope, ''), coalesce(s.scope_id, ''), s.n"
_CUT_ERROR = cut_error("left(j.last_error, {})", "right(j.last_error, {})")
_BUCKET = f"ceil(ln(least(greatest(seconds, {SHORTEST}), {LONGEST})) / ln({GROWTH}::float8))::int"  # core/sketch.py


class Statements:
    def __init__(self, schema: str) -> None:
        claim = _metered(_load("claim", schema), schema).replace("{columns}", CLAIMED_COLUMNS)
        settle, settle_mixed = settling(schema), settling(schema, mixed=True)
        complete = _load("complete", schema).replace("{archived}", _load("archived", schema).replace("{conflict}", ""))
        # The claim waits until the settled rows are locked. It never waits for a lock itself, so no circle can close.
        after_settle = claim.replace("{after_settle}", "(SELECT count(*) FROM held) >= 0 AND")
        nothing_settled = "(SELECT *, NULL::uuid[] AS applied FROM claim_summary) summary"
        self.claim = f"WITH {claim.replace('{after_settle}', '')} {_CLAIMED.format(source=nothing_settled)}"
        self.settle = f"WITH {settle} SELECT applied FROM settle_summary"  # noqa: S608 - our own text
        self.settle_mixed = f"WITH {settle_mixed} SELECT applied FROM settle_summary"  # noqa: S608 - our own text
        self.complete = f"WITH {complete} SELECT applied FROM settle_summary"  # noqa: S608 - our own text
        both = _CLAIMED.format(source="settle_summary CROSS JOIN claim_summary")
        self.settle_and_claim = f"WITH {settle}, {_shift(after_settle, 12)} {both}"
        self.settle_mixed_and_claim = f"WITH {settle_mixed}, {_shift(after_settle, 12)} {both}"
        self.complete_and_claim = f"WITH {complete}, {_shift(after_settle, 5)} {both}"
        insert = _load("insert", schema)
        self.insert = insert.replace("{order}", "")
        self.insert_new = self.insert.replace("ON CONFLICT DO NOTHING", "")
        self.insert_alike = _load("insert_alike", schema)
        self.insert_keyed = insert.replace(
            "{order}", "ORDER BY s.topic, s.key, coalesce(s.scope, ''), coalesce(s.scope_id, ''), s.n"
        )
        self.insert_undo = _load("insert_undo", schema).replace("{asked}", "unnest($1::uuid[]) AS s (id)")
        asked = (
            "unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[]) "
            "WITH ORDINALITY AS s (id, topic, scope, scope_id, key, n)"
        )
        self.existing = _load("existing", schema).replace("{asked}", asked)
        self.identity = _load("identity", schema)
        self.standing = _load("standing", schema)
        self.statuses = _load("statuses", schema)
        self.states = _load("states", schema)
        self.newest_of_scopes = _load("newest_of_scopes", schema)
        self.mark = _load("mark", schema)
        self.heartbeat = _load("heartbeat", schema)
        self.start_marks = _load("start_marks", schema)
        self.progress = _load("progress", schema)
        self.look = _load("look", schema)
        self.held_by = _load("held_by", schema)
        self.held_by_any = _load("held_by_any", schema)
        self.report = _load("report", schema)
        self.retire = _load("retire", schema)
        self.workers = _load("workers", schema)
        self.set_backoff = _load("set_backoff", schema)
        self.promote = _metered(_load("promote", schema), schema)
        rescue = _load("rescue", schema)
        expired = "j.locked_until < (SELECT least(clock_timestamp(), coalesce($6::timestamptz, 'infinity')))"
        self.rescue = rescue.replace("{whose}", expired).replace("{crashes}", "1")
        of_the_dead = "j.locked_until > '-infinity' AND j.locked_by = ANY ($6::text[])"  # a range: see held_by.sql
        self.rescue_workers = rescue.replace("{whose}", of_the_dead).replace("{crashes}", "d.started::int")
        self.expire = _load("expire", schema)
        self.cancel_timeout = _load("cancel_timeout", schema)
        self.cancel = _load("cancel", schema)
        self.requeue = _load("requeue", schema)
        self.update = _load("update", schema)
        self.delete = _load("delete", schema)
        self.pause = _load("pause", schema)
        self.resume = _load("resume", schema)
        self.paused = _load("paused", schema)
        self.prune = _load("prune", schema)
        self.get = _load("get", schema).replace("{columns}", f"{COLUMNS}, j.events_count")
        self.events = _load("events", schema)
        self.logs = _load("logs", schema)
        self.kept = _load("kept", schema)
        self.kept_archived = _load("kept_archived", schema)
        self.kept_counts = _load("kept_counts", schema)
        self.records = _load("records", schema)
        self.record_put = _load("record_put", schema)
        self.record_replace = _load("record_replace", schema)
        self.record_delete = _load("record_delete", schema)
        self.record_sweep = _load("record_sweep", schema)
        self.audit_entry = _load("audit_entry", schema)
        audited = _load("audited", schema)
        # Said once more, without a NULL: each has an index of its own.
        self.audited = audited.replace("{whose}", "bulk IS NULL")
        self.audited_of_bulk = audited.replace("{whose}", "bulk = $3::uuid")
        self.audited_of_job = audited.replace("{whose}", "job_id = $4::uuid")
        columns = ", ".join(f"b.{name}" for name in Bulk.__struct_fields__)
        self.bulk_create = _load("bulk_create", schema).replace("{columns}", columns.replace("b.", ""))
        self.bulk_undo = _load("bulk_undo", schema)
        self.bulk_start = _load("bulk_start", schema)
        self.bulk_stop = _load("bulk_stop", schema)
        self.bulk_take = _load("bulk_take", schema).replace("{columns}", columns)
        self.bulk_next = _load("bulk_next", schema)
        self.bulk_archived = _load("bulk_archived", schema)
        self.bulk_note = _load("bulk_note", schema).replace("{columns}", columns)
        self.bulks = _load("bulks", schema).replace("{columns}", columns)
        self.bulk_items = _load("bulk_items", schema)
        self.bulk_prune = _load("bulk_prune", schema)
        self.ring = _load("ring", schema)
        self.ungrouped = _load("ungrouped", schema).replace("{error}", _CUT_ERROR)
        self.group_failures = _load("group_failures", schema)
        failures = _load("failures", schema).replace("{error}", _CUT_ERROR)
        self.failures = failures.replace("{seen}", _load("failures_newest", schema))
        self.failures_of_one = failures.replace("{seen}", _load("failures_of_one", schema))
        minutes = _load("minutes", schema).replace("{bucket}", _BUCKET)
        self.fold_lock = _load("fold_lock", schema)
        self.fold_counts = _load("fold_counts", schema).replace("{minutes}", minutes.replace("{notes}", "folded"))
        self.rollup_sketches = _load("rollup_sketches", schema)
        self.rollup_add = _load("rollup_add", schema)
        self.rollup_sweep = _load("rollup_sweep", schema)
        series = _load("series", schema).replace("{minutes}", minutes.replace("{notes}", "waiting"))
        self.series = series.replace("{of_topic}", "true")
        self.series_of_topic = series.replace("{of_topic}", "topic = $2::text")
        stats = _load("stats", schema)
        self.stats = stats.replace("{of_topic}", "")
        self.stats_of_topic = stats.replace("{of_topic}", "AND j.topic = $3::text")
        self.all = frozenset(vars(self).values())
        # They read no table, so that their plans are the same however many jobs there are. Those of a claim, made while
        # there were none, are not to be kept without the settings of a session: see PLANNER in connections.py.
        self.lasting = frozenset([self.insert, self.insert_new, self.insert_alike, self.insert_keyed, self.ring])


def settling(schema: str, *, mixed: bool = False) -> str:
    """The CTEs of settle. `mixed`: the settlements are of several workers, which no worker ever sends."""
    # Only a caller's own id that was used twice can be in the archive already: its first completion stands. A batch of
    # completions is tried without this: being ready for it costs a tenth.
    archived = _load("archived", schema).replace("{conflict}", "ON CONFLICT (id) DO NOTHING")
    whose = _EACH_ITS_OWN if mixed else _ALL_OF_ONE
    return _load("settle", schema).replace("{archived}", archived).replace("{whose}", whose)


@cache
def _load(name: str, schema: str) -> str:
    return sql.load("rowlock.stores.postgres", name).replace("{schema}", schema)


def _metered(text: str, schema: str) -> str:
    """With counts of dead entries read: those that an index scan returned, less those that led to a row."""
    for name in ("claim", "due"):
        index = f"('{schema}._jobs_{name}'::regclass)"
        dead = f"(pg_stat_get_xact_tuples_returned{index} - pg_stat_get_xact_tuples_fetched{index})"
        text = text.replace(f"{{dead_{name}}}", dead)
    return text


def _shift(text: str, by: int) -> str:
    """The claim's parameters, behind the settle's."""
    return re.sub(r"\$(\d+)", lambda match: f"${int(match[1]) + by}", text)
