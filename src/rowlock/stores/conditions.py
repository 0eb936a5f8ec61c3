"""Renders a step of a walk as SQL. The stores write values, JSON and the choice of an index in different ways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any

from rowlock.core.conditions import FIELDS, Compared, Condition, Every, Listed, Some, Value
from rowlock.core.job import Status
from rowlock.stores.listing import AT_ONCE, Walk, WalkPart, given, is_decided, residue
from rowlock.stores.queries import Filter

_RANGES = {
    "created_from": "j.created >= ",
    "created_until": "j.created < ",
    "run_at_from": "j.run_at >= ",
    "run_at_until": "j.run_at < ",
    "finished_from": "j.finished_at >= ",
    "finished_until": "j.finished_at < ",
}
_COMPLETED = {"status": "'completed'", "progress": "100.0"}  # constants that the archive doesn't store


class Renderer(ABC):
    """One statement and its values. The text has only rowlock's own names; values from callers are bound."""

    @property
    @abstractmethod
    def jobs(self) -> str:
        """Return the name of the table of jobs."""

    def __init__(self, filter: Filter, step: WalkPart) -> None:
        self.filter = filter
        self.step = step
        self.values: list[Any] = []

    def render(self) -> str:
        walk = self.step.walk
        driver = self._driver(walk) + self._bounds(walk)
        where = f"WHERE {' AND '.join(driver)}" if driver else ""
        hit = None if is_decided(self.filter, walk) else " AND ".join(self._residue(walk))
        if walk.by in AT_ONCE:
            return self.at_once(walk, where, "true" if hit is None else hit)
        return self.in_order(walk, where, hit)

    def where(self, walk: Walk) -> str:
        """Return the condition that all rows of a walk meet that meet the filter, for statements that take all of these
        rows."""
        self.step = WalkPart(walk, None, 0, 0)
        return " AND ".join([*self._driver(walk), *self._bounds(walk), *self._residue(walk)]) or "true"

    def _bounds(self, walk: Walk) -> list[str]:
        highs = [bound for bound in (self.step.after, walk.high) if bound is not None]
        bounds = [f"j.id < {self.bind(min(highs), 'uuid')}"] if highs else []
        return bounds if walk.low is None else [*bounds, f"j.id >= {self.bind(walk.low, 'uuid')}"]

    def _driver(self, walk: Walk) -> list[str]:
        """Return the conditions for the index. Statuses are literals in the text, so that the planner sees which
        partial indexes apply."""
        match walk.by:
            case "id":
                return []
            case "stray":
                return ["j.stray"]
            case "ready":
                topics = [self.any_text("j.topic", list(self.filter.topics))] if self.filter.topics else []
                # A waiting job that is cancelled is ready for its last run. There are few of these at any time.
                cancelled = f"SELECT c.id FROM {self.jobs} c WHERE c.status = 'cancel_requested'"  # noqa: S608 - our table
                return ["j.ready", *topics, f"j.id NOT IN ({cancelled})"]
            case "due":
                return ["j.status = 'pending'", "NOT j.ready"]
            case "dead":
                names = ", ".join(f"'{name}'" for name in walk.value.split())
                return ["j.finished_at IS NOT NULL", f"j.status IN ({names})", *self._conditions("topics")]
            case "finished":
                return self._conditions("finished_from", "finished_until")
            case "ids":
                return [self.any_id(list(self.filter.ids))]
            case "lease":
                return ["j.locked_until IS NOT NULL"]
            case "cancelling":
                return ["j.status = 'cancel_requested'"]
            case "status":
                return [f"j.status = '{Status(walk.value).value}'"]
            case "live_key":
                return [*self._conditions("keys", "topics"), *self._scoped(), *self.live_key()]
            case "flow_id":
                return [f"j.flow_id = {self.bind(walk.value, 'uuid')}"]
            case "fingerprint":
                return [f"j.fingerprint = {self.bind(walk.value, 'text')}", "j.finished_at IS NOT NULL"]
            case "key" | "scope_id" | "topic" | "scope":
                return [f"j.{walk.by} = {self.bind(walk.value, 'text')}"]

    def _residue(self, walk: Walk) -> list[str]:
        conditions = [self._condition(name) for name in residue(self.filter, walk)]
        if walk.low is not None or walk.high is not None:
            conditions.append("NOT j.stray")
        if walk.statuses:
            names = ", ".join(f"'{status.value}'" for status in sorted(walk.statuses))
            conditions.insert(0, f"j.status IN ({names})")
        return conditions

    def _scoped(self) -> list[str]:
        """Return conditions on scope and scope_id in the form of the index _jobs_live_key. In another form, every
        tenant's job with the key would be read."""
        given = {name: value for name in ("scope", "scope_id") if (value := getattr(self.filter, name)) is not None}
        return [
            f"{self.in_live_key(f'j.{name}')} = {self.in_live_key(self.bind(one, 'text'))}"
            for name, one in given.items()
        ]

    def _conditions(self, *names: str) -> list[str]:
        return [self._condition(name) for name in names if given(self.filter, name)]

    def _condition(self, name: str) -> str:
        filter = self.filter
        if name in _RANGES:
            return _RANGES[name] + self.bind(getattr(filter, name), "timestamptz")
        match name:
            case "topics" | "keys":
                return self.any_text(f"j.{name[:-1]}", list(getattr(filter, name)))
            case "scope" | "scope_id" | "fingerprint":
                return f"j.{name} = {self.bind(getattr(filter, name), 'text')}"
            case "flow_id":
                return f"j.flow_id = {self.bind(filter.flow_id or '', 'uuid')}"
            case "tags":
                return self.tags(list(filter.tags))
            case "payload":
                return " AND ".join(self.member(path, value) for path, value in filter.paths)
            case "error":
                return self.error(filter.error or "")
            case "where":
                return self._where(filter.where or False)
            case _:
                raise AssertionError(name)

    def _where(self, condition: Condition) -> str:
        match condition:
            case bool():
                return "true" if condition else "false"
            case Every():
                return f"({' AND '.join(map(self._where, condition.parts))})"
            case Some():
                return f"({' OR '.join(map(self._where, condition.parts))})"
            case Compared():
                return self._test(condition)
            case Listed():
                return self._test_list(condition)

    def _test(self, test: Compared) -> str:
        column, kind = self._column(test.field), FIELDS[test.field]
        if test.value is None:
            if kind == "text":
                return f"coalesce({column}, '') {'=' if test.op == '=' else '<>'} ''"
            return f"{column} IS {'' if test.op == '=' else 'NOT '}NULL"
        if test.op in ("~", "!~"):
            told = f"{'' if test.op == '~' else 'NOT '}{self.like(column, str(test.value))}"
        elif isinstance(test.value, str):
            told = f"{self.binary(column)} {test.op} {self.bind(test.value, 'text')}"
        else:
            bound = self.bind(test.value, "timestamptz" if isinstance(test.value, datetime) else "float8")
            told = f"{column} {test.op} {bound}"
        return f"({column} IS NULL OR {told})" if test.null else told

    def _test_list(self, test: Listed) -> str:
        column = self._column(test.field)
        if test.op in ("=", "!="):
            return self.one_of(column, test.values, test.op == "=")
        return self.contains(column, [str(one) for one in test.values], test.op == "~", test.some)

    def _column(self, field: str) -> str:
        """Return the job's value as SQL. The table may store it in another form."""
        if self.step.walk.archived and field in _COMPLETED:
            return _COMPLETED[field]
        return self.id_text(f"j.{field}") if field in ("id", "flow_id") else f"j.{field}"

    def topics(self, archive: str) -> str:
        """Return the source of t.topic: the filter's topics, or else all topics of the archive, by leaps along the
        index."""
        if self.filter.topics:
            return self.listed(list(self.filter.topics))
        first = f"SELECT a.topic FROM {archive} a ORDER BY a.topic LIMIT 1"  # noqa: S608 - our own names
        after = f"SELECT a.topic FROM {archive} a WHERE a.topic > t.topic ORDER BY a.topic LIMIT 1"  # noqa: S608
        return (  # our own names again
            f"(WITH RECURSIVE t (topic) AS (SELECT ({first}) UNION ALL SELECT ({after}) FROM t "  # noqa: S608
            "WHERE t.topic IS NOT NULL) SELECT topic FROM t WHERE topic IS NOT NULL) t"
        )

    @abstractmethod
    def in_order(self, walk: Walk, where: str, hit: str | None) -> str:
        """Return SQL that reads the number of rows, the last id, the number of rows for which `hit` holds, and their
        ids."""

    @abstractmethod
    def at_once(self, walk: Walk, where: str, hit: str) -> str:
        """Return SQL that reads the number of rows, NULL, the number of rows for which `hit` holds, and their ids."""

    @abstractmethod
    def listed(self, topics: list[str]) -> str:
        """Return these topics as the source of t.topic."""

    @abstractmethod
    def live_key(self) -> list[str]:
        """Return the predicate of the index _jobs_live_key."""

    @abstractmethod
    def in_live_key(self, value: str) -> str:
        """Return a scope or scope_id in the form of that index."""

    @abstractmethod
    def bind(self, value: Any, kind: str) -> str:
        """Return the place of a value in the statement. `kind`: its type, as PostgreSQL names it."""

    @abstractmethod
    def id_text(self, column: str) -> str:
        """Return an id as text."""

    @abstractmethod
    def binary(self, column: str) -> str:
        """Return a text that is compared by its code points."""

    @abstractmethod
    def like(self, column: str, pattern: str) -> str:
        """Return a condition: the column matches the pattern of core.conditions.like."""

    @abstractmethod
    def one_of(self, column: str, values: tuple[Value, ...], found: bool) -> str:
        """Return a condition: the column has one of these values, which are of one kind, or (not `found`) none of
        them."""

    @abstractmethod
    def contains(self, column: str, parts: list[str], found: bool, some: bool) -> str:
        """Return a condition: at least one of these parts (`some`), or each, is in the text, or (not `found`) is not in
        it."""

    @abstractmethod
    def any_text(self, column: str, values: list[str]) -> str: ...

    @abstractmethod
    def any_id(self, values: list[str]) -> str: ...

    @abstractmethod
    def tags(self, tags: list[str]) -> str: ...

    @abstractmethod
    def member(self, path: list[str], value: str) -> str:
        """Return a condition: the payload has this JSON value at the path. Numbers are compared by value; true is not
        1."""

    @abstractmethod
    def error(self, part: str) -> str: ...
