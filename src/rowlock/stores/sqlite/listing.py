"""Renders a part of a walk as SQL for SQLite. Each names its index: SQLite's statistics may be old or missing."""

from __future__ import annotations

import re
from datetime import datetime
from sqlite3 import Connection
from typing import Any

from rowlock.core.codec import decode
from rowlock.core.conditions import Value
from rowlock.stores.conditions import Renderer
from rowlock.stores.listing import By, Seen, Walk, WalkPart
from rowlock.stores.queries import Filter
from rowlock.stores.sqlite.rows import json_text, micros

# Most indexes have the name of the value that is looked up in them.
_INDEXES: dict[By, str] = {"status": "aside", "ready": "claim", "flow_id": "flow"}


def table(walk: Walk) -> str:
    name = "_jobs_archive" if walk.archived else "_jobs"
    index = f"sqlite_autoindex_{name}_1" if walk.by in ("id", "ids") else f"{name}_{_INDEXES.get(walk.by, walk.by)}"
    return f"{name} j INDEXED BY {index}"


class SqlitePart(Renderer):
    @property
    def jobs(self) -> str:
        return "_jobs"

    def bind(self, value: Any, kind: str = "") -> str:
        self.values.append(micros(value) if isinstance(value, datetime) else value)
        return f"?{len(self.values)}"

    def in_order(self, walk: Walk, where: str, hit: str | None) -> str:
        rows = f"FROM {table(walk)} {where} ORDER BY j.id DESC LIMIT {self.bind(self.step.count)}"
        hits = "FILTER (WHERE hit)" if hit else ""
        return (
            f"SELECT count(*), min(id), count(*) {hits}, json_group_array(id) {hits} "  # noqa: S608 - see Renderer
            f"FROM (SELECT j.id, {hit or 1} AS hit {rows})"
        )

    def at_once(self, walk: Walk, where: str, hit: str) -> str:
        source = f"{table(walk)} {where}"
        if walk.by == "finished":
            source = f"{self.topics('_jobs_archive')} CROSS JOIN {source} AND j.topic = t.topic"
        count, keep = self.bind(self.step.count), self.bind(self.step.keep)
        counted, size, most = "", "SELECT count(*) FROM seen", count
        if walk.by == "ready":
            # Count first, which the index can do alone: too many rows are not looked at one by one.
            counted = f"size (n) AS MATERIALIZED (SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT {count})), "  # noqa: S608
            size = "SELECT n FROM size"
            most = f"CASE WHEN ({size}) < {count} THEN {count} ELSE 0 END"
        return (
            f"WITH {counted}seen AS MATERIALIZED (SELECT j.id, {hit} AS hit FROM {source} LIMIT {most}) "  # noqa: S608
            f"SELECT ({size}), NULL, (SELECT count(*) FROM seen WHERE hit), "
            "(SELECT json_group_array(id) FROM "
            f"(SELECT id FROM seen WHERE hit ORDER BY id DESC LIMIT {keep}))"
        )

    def listed(self, topics: list[str]) -> str:
        return f"(SELECT value AS topic FROM json_each({self.bind(json_text(topics))})) t"  # noqa: S608 - see Renderer

    def live_key(self) -> list[str]:
        return ["j.key IS NOT NULL", "j.finished_at IS NULL"]

    def in_live_key(self, value: str) -> str:
        return f"coalesce({value}, '')"

    def id_text(self, column: str) -> str:
        return column

    def binary(self, column: str) -> str:
        return column

    def like(self, column: str, pattern: str) -> str:
        """Return a condition with GLOB. LIKE would take A for a; GLOB doesn't."""
        escaped = re.sub(r"([*?\[])", r"[\1]", pattern if "%" in pattern else f"%{pattern}%")
        return f"{column} GLOB {self.bind(escaped.replace('%', '*'))}"

    def one_of(self, column: str, values: tuple[Value, ...], found: bool) -> str:
        if isinstance(values[0], str):
            told = self.any_text(column, [str(one) for one in values])
        else:  # bound singly: a number that is read from JSON may differ in its last digit
            told = f"{column} IN ({', '.join(map(self.bind, values))})"
        return told if found else f"NOT {told}"

    def contains(self, column: str, parts: list[str], found: bool, some: bool) -> str:
        # Of a list, SQL can ask whether one part is such. Every part is such if none is otherwise.
        wanted = "> 0" if found == some else "= 0"
        source = f"json_each({self.bind(json_text(parts))}) p"
        one = f"EXISTS (SELECT 1 FROM {source} WHERE instr({column}, p.value) {wanted})"  # noqa: S608 - see Renderer
        return one if some else f"({column} IS NOT NULL AND NOT {one})"

    def any_text(self, column: str, values: list[str]) -> str:
        return f"{column} IN (SELECT value FROM json_each({self.bind(json_text(values))}))"  # noqa: S608 - see Renderer

    def any_id(self, values: list[str]) -> str:
        return self.any_text("j.id", values)

    def tags(self, tags: list[str]) -> str:
        wanted = self.bind(json_text(tags))
        return (
            f"NOT EXISTS (SELECT 1 FROM json_each({wanted}) t "  # noqa: S608 - see Renderer
            "WHERE t.value NOT IN (SELECT value FROM json_each(j.tags)))"
        )

    def member(self, path: list[str], value: str) -> str:
        at = self.bind("$" + "".join(f'."{name}"' for name in path))
        kind, found = f"json_type(j.payload, {at})", f"json_extract(j.payload, {at})"
        wanted = decode(value)
        match wanted:
            case None | True | False:
                return f"{kind} = '{value}'"
            case str():
                return f"({kind} = 'text' AND {found} = {self.bind(wanted)})"
            case int() | float():
                return f"({kind} IN ('integer', 'real') AND {found} = {self.bind(wanted)})"
            case _:
                kinds = f"CASE WHEN {kind} IN ('object', 'array') THEN {found} END"
                return f"_jobs_same_json({kinds}, {self.bind(value)})"

    def error(self, part: str) -> str:
        return f"instr(lower(j.last_error), lower({self.bind(part)})) > 0"


def look(conn: Connection, filter: Filter, step: WalkPart) -> Seen:
    render = SqlitePart(filter, step)
    statement = render.render()
    same_json(conn, statement)
    count, last, hits, ids = conn.execute(statement, render.values).fetchone()
    return Seen(count, last, hits, sorted(decode(ids), reverse=True)[: step.keep])


def same_json(conn: Connection, statement: str) -> None:
    """Define the SQL function, if the statement calls it."""
    if "_jobs_same_json" in statement:
        conn.create_function("_jobs_same_json", 2, _same_json, deterministic=True)


def _same_json(one: str | None, other: str) -> bool:
    return one is not None and _same(decode(one), decode(other))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
