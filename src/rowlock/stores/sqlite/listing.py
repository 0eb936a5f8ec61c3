"""A step of a walk in SQLite's SQL. Each names its index: what SQLite knows of the tables may be old, or nothing."""

from __future__ import annotations

from datetime import datetime
from sqlite3 import Connection
from typing import Any

from rowlock.core.codec import decode
from rowlock.stores.conditions import Renderer
from rowlock.stores.listing import By, Seen, Step, Walk
from rowlock.stores.reading import Filter
from rowlock.stores.sqlite.rows import json_text, micros

_LIVE: dict[By, str] = {
    "id": "sqlite_autoindex__jobs_1",
    "ids": "sqlite_autoindex__jobs_1",
    "lease": "_jobs_lease",
    "status": "_jobs_aside",
    "live_key": "_jobs_live_key",
}
_ARCHIVE: dict[By, str] = {
    "id": "sqlite_autoindex__jobs_archive_1",
    "ids": "sqlite_autoindex__jobs_archive_1",
    "flow_id": "_jobs_archive_flow",
    "key": "_jobs_archive_key",
    "scope_id": "_jobs_archive_scope_id",
    "topic": "_jobs_archive_topic",
    "scope": "_jobs_archive_scope",
}


class SqliteStep(Renderer):
    def _bind(self, value: Any) -> str:
        self.values.append(value)
        return f"?{len(self.values)}"

    def select(self, table: str, where: str, hit: str | None) -> str:
        order = f"{where} ORDER BY j.id DESC LIMIT {self._bind(self.step.count)}"
        if hit is None:
            return f"SELECT count(*), min(id), json_group_array(id) FROM (SELECT j.id FROM {table} {order})"  # noqa: S608 - see Renderer
        return (
            "SELECT count(*), min(id), json_group_array(id) FILTER (WHERE hit) "  # noqa: S608 - see Renderer
            f"FROM (SELECT j.id, {hit} AS hit FROM {table} {order})"
        )

    def table(self, walk: Walk) -> str:
        if walk.archived:
            return f"_jobs_archive j INDEXED BY {_ARCHIVE[walk.by]}"
        return f"_jobs j INDEXED BY {_LIVE[walk.by]}"

    def live_key(self) -> list[str]:
        return ["j.key IS NOT NULL", "j.finished_at IS NULL"]

    def text(self, value: str) -> str:
        return self._bind(value)

    def id(self, value: str) -> str:
        return self._bind(value)

    def time(self, value: datetime) -> str:
        return self._bind(micros(value))

    def any_text(self, column: str, values: list[str]) -> str:
        return f"{column} IN (SELECT value FROM json_each({self._bind(json_text(values))}))"  # noqa: S608 - see Renderer

    def any_id(self, values: list[str]) -> str:
        return self.any_text("j.id", values)

    def tags(self, tags: list[str]) -> str:
        wanted = self._bind(json_text(tags))
        return (
            f"NOT EXISTS (SELECT 1 FROM json_each({wanted}) t "  # noqa: S608 - see Renderer
            "WHERE t.value NOT IN (SELECT value FROM json_each(j.tags)))"
        )

    def member(self, path: list[str], value: str) -> str:
        at = self._bind("$" + "".join(f'."{name}"' for name in path))
        kind, found = f"json_type(j.payload, {at})", f"json_extract(j.payload, {at})"
        wanted = decode(value)
        match wanted:
            case None | True | False:
                return f"{kind} = '{value}'"
            case str():
                return f"({kind} = 'text' AND {found} = {self._bind(wanted)})"
            case int() | float():
                return f"({kind} IN ('integer', 'real') AND {found} = {self._bind(wanted)})"
            case _:
                kinds = f"CASE WHEN {kind} IN ('object', 'array') THEN {found} END"
                return f"_jobs_same_json({kinds}, {self._bind(value)})"

    def error(self, part: str) -> str:
        return f"instr(lower(j.last_error), lower({self._bind(part)})) > 0"


def look(conn: Connection, filter: Filter, step: Step) -> Seen:
    render = SqliteStep(filter, step)
    statement = render.render()
    if "_jobs_same_json" in statement:
        conn.create_function("_jobs_same_json", 2, _same_json, deterministic=True)
    count, last, hits = conn.execute(statement, render.values).fetchone()
    return Seen(count, last, sorted(decode(hits), reverse=True))


def _same_json(one: str | None, other: str) -> bool:
    return one is not None and _same(decode(one), decode(other))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
