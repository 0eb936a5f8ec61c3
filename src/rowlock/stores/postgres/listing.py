"""A step of a walk in PostgreSQL's SQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rowlock.core.codec import encode
from rowlock.stores.conditions import Renderer
from rowlock.stores.listing import BUDGET, UNFINISHED, By, Seen, Step, Walk
from rowlock.stores.reading import Filter

# Read-only and one snapshot, so that a page and its jobs belong together. Planned for the values at hand: filters are
# of many kinds, and a plan that suits all of them suits none.
BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL plan_cache_mode = force_custom_plan"

_UNFINISHED = ", ".join(f"'{status.value}'" for status in sorted(UNFINISHED))

_BY_CHOICE: dict[By, str] = {"lease": "ORDER BY j.locked_until", "live_key": ""}


class PostgresStep(Renderer):
    def __init__(self, schema: str, filter: Filter, step: Step) -> None:
        super().__init__(filter, step)
        self._schema = schema

    def _bind(self, value: Any, kind: str) -> str:
        self.values.append(value)
        return f"${len(self.values)}::{kind}"

    def select(self, table: str, where: str, hit: str | None) -> str:
        if self.step.walk.by in _BY_CHOICE:
            # Their index is not in the order of ids. Apart from that order the planner sees that it is the best.
            table, where = f"(SELECT * FROM {table} {where} {_BY_CHOICE[self.step.walk.by]} LIMIT {BUDGET}) j", ""  # noqa: S608
        order = f"{where} ORDER BY j.id DESC LIMIT {self._bind(self.step.count, 'int')}"
        # min(uuid) came with version 18; the rows are in order, so the last one will do.
        last = "count(*)::int, (array_agg(w.id))[count(*)]"
        if hit is None:
            return f"SELECT {last}, array_agg(w.id) FROM (SELECT j.id FROM {table} {order}) w"  # noqa: S608 - see Renderer
        return (
            f"SELECT {last}, array_agg(w.id) FILTER (WHERE w.hit) "  # noqa: S608 - see Renderer
            f"FROM (SELECT j.id, {hit} AS hit FROM {table} {order}) w"
        )

    def table(self, walk: Walk) -> str:
        return f"{self._schema}._jobs{'_archive' if walk.archived else ''} j"

    def live_key(self) -> list[str]:
        return ["j.key IS NOT NULL", f"j.status IN ({_UNFINISHED})"]

    def text(self, value: str) -> str:
        return self._bind(value, "text")

    def id(self, value: str) -> str:
        return self._bind(value, "uuid")

    def time(self, value: datetime) -> str:
        return self._bind(value, "timestamptz")

    def any_text(self, column: str, values: list[str]) -> str:
        return f"{column} = ANY ({self._bind(values, 'text[]')})"

    def any_id(self, values: list[str]) -> str:
        return f"j.id = ANY ({self._bind(values, 'uuid[]')})"

    def tags(self, tags: list[str]) -> str:
        return f"j.tags @> {self._bind(encode(tags, 'tags'), 'text')}::jsonb"

    def member(self, path: list[str], value: str) -> str:
        # -> with a text never looks into an array, where #> would take digits for an index.
        steps = "".join(f" -> {self._bind(name, 'text')}" for name in path)
        return f"(j.payload{steps})::jsonb = {self._bind(value, 'text')}::jsonb"

    def error(self, part: str) -> str:
        # Folded as SQLite does it, whatever the database's locale.
        return f'position(lower({self._bind(part, "text")} COLLATE "C") IN lower(j.last_error COLLATE "C")) > 0'


def seen(row: Any) -> Seen:
    count, last, hits = row
    return Seen(count, None if last is None else str(last), [str(job_id) for job_id in hits or ()])
