"""Renders a part of a walk as SQL for PostgreSQL."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from rowlock.core.codec import encode
from rowlock.core.conditions import Value
from rowlock.stores.conditions import Renderer
from rowlock.stores.listing import UNFINISHED, By, Seen, Walk, WalkPart
from rowlock.stores.queries import Filter

# Read-only and one snapshot, so that a page and its jobs belong together. Planned for the given values: filters are of
# many kinds, and one plan for all of them would be a bad plan. The rest is as in every session of ours (see
# connections).
BEGIN = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL plan_cache_mode = force_custom_plan; "
    "SET LOCAL enable_seqscan = off; SET LOCAL jit = off"
)

_UNFINISHED = ", ".join(f"'{status.value}'" for status in sorted(UNFINISHED))

# An order that only the right index has, so that the planner takes that index: PostgreSQL's statistics may be old or
# missing.
_ORDER: dict[By, str] = {
    "ready": "ORDER BY j.topic",
    "due": "ORDER BY j.run_at",
    "lease": "ORDER BY j.locked_until",
    "cancelling": "ORDER BY j.cancel_requested_at",
    "live_key": "ORDER BY j.key",
    "dead": "",
    "finished": "",
}


class PostgresPart(Renderer):
    def __init__(self, schema: str, filter: Filter, step: WalkPart) -> None:
        super().__init__(filter, step)
        self._schema = schema

    def bind(self, value: Any, kind: str) -> str:
        self.values.append(float(value) if kind == "float8" else value)
        return f"${len(self.values)}::{kind}"

    def in_order(self, walk: Walk, where: str, hit: str | None) -> str:
        rows = f"FROM {self.table(walk)} j {where} ORDER BY j.id DESC LIMIT {self.bind(self.step.count, 'int')}"
        keep = f"[1:{self.bind(self.step.keep, 'int')}]::text[]"  # the driver makes objects of uuids, one by one
        # min(uuid) came with version 18; the rows are in order, so the last one will do.
        last = "count(*)::int, (array_agg(w.id))[count(*)]"
        if hit is None:
            return f"SELECT {last}, count(*)::int, (array_agg(w.id)){keep} FROM (SELECT j.id {rows}) w"  # noqa: S608 - see Renderer
        return (
            f"SELECT {last}, count(*) FILTER (WHERE w.hit)::int, (array_agg(w.id) FILTER (WHERE w.hit)){keep} "  # noqa: S608
            f"FROM (SELECT j.id, {hit} AS hit {rows}) w"
        )

    def at_once(self, walk: Walk, where: str, hit: str) -> str:
        count, keep = self.bind(self.step.count, "int"), self.bind(self.step.keep, "int")
        table = self.table(walk)
        source = f"{table} j {where} {_ORDER[walk.by]}"
        if walk.by == "finished":
            rows = f"SELECT * FROM {table} j {where} AND j.topic = t.topic ORDER BY j.finished_at LIMIT {count}"  # noqa: S608
            source = f"{self.topics(table)} CROSS JOIN LATERAL ({rows}) j"
        # No CTE: what doesn't fit into work_mem would be written to disk.
        return (
            "SELECT count(*)::int, NULL, count(*) FILTER (WHERE w.hit)::int, "  # noqa: S608
            f"(array_agg(w.id ORDER BY w.id DESC) FILTER (WHERE w.hit))[1:{keep}]::text[] "
            f"FROM (SELECT j.id, {hit} AS hit FROM {source} LIMIT {count}) w"
        )

    @property
    def jobs(self) -> str:
        return f"{self._schema}._jobs"

    def table(self, walk: Walk) -> str:
        return f"{self.jobs}{'_archive' if walk.archived else ''}"

    def listed(self, topics: list[str]) -> str:
        return f"unnest({self.bind(topics, 'text[]')}) t (topic)"

    def live_key(self) -> list[str]:
        return ["j.key IS NOT NULL", f"j.status IN ({_UNFINISHED})"]

    def in_live_key(self, value: str) -> str:
        return f"{self._schema}._jobs_short({value})"

    def id_text(self, column: str) -> str:
        return f"{column}::text"

    def binary(self, column: str) -> str:
        return f'{column} COLLATE "C"'

    def like(self, column: str, pattern: str) -> str:
        return f'{column} COLLATE "C" LIKE {self.bind(_escaped(pattern), "text")}'

    def one_of(self, column: str, values: tuple[Value, ...], found: bool) -> str:
        # Without COLLATE, so that an index may serve: equal texts are the same bytes in every collation.
        kind = "text" if isinstance(values[0], str) else "timestamptz" if isinstance(values[0], datetime) else "float8"
        bound: list[Any] = [float(one) if isinstance(one, int) else one for one in values]
        return f"{column} {'= ANY' if found else '<> ALL'} ({self.bind(bound, f'{kind}[]')})"

    def contains(self, column: str, parts: list[str], found: bool, some: bool) -> str:
        operator = f"{'' if found else 'NOT '}LIKE {'ANY' if some else 'ALL'}"
        return f'{column} COLLATE "C" {operator} ({self.bind([_escaped(part) for part in parts], "text[]")})'

    def any_text(self, column: str, values: list[str]) -> str:
        return f"{column} = ANY ({self.bind(values, 'text[]')})"

    def any_id(self, values: list[str]) -> str:
        return f"j.id = ANY ({self.bind(values, 'uuid[]')})"

    def tags(self, tags: list[str]) -> str:
        return f"j.tags @> {self.bind(encode(tags, 'tags'), 'text')}::jsonb"

    def member(self, path: list[str], value: str) -> str:
        if any(name.lstrip("-").isdigit() for name in path):
            # #> would take it for a place in an array, -> with a text never does.
            steps = "".join(f" -> {self.bind(name, 'text')}" for name in path)
        else:
            steps = f" #> {self.bind(path, 'text[]')}"
        return f"(j.payload{steps})::jsonb = {self.bind(value, 'text')}::jsonb"

    def error(self, part: str) -> str:
        # Folded as SQLite does it, whatever the database's locale.
        return f'position(lower({self.bind(part, "text")} COLLATE "C") IN lower(j.last_error COLLATE "C")) > 0'


def _escaped(pattern: str) -> str:
    return re.sub(r"([\\_])", r"\\\1", pattern if "%" in pattern else f"%{pattern}%")


def seen(row: Any) -> Seen:
    count, last, hits, ids = row
    return Seen(count, None if last is None else str(last), hits, ids or [])
