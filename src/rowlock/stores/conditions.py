"""A step of a walk as SQL. The stores differ in how they write values, JSON and the choice of an index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any

from rowlock.core.job import Status
from rowlock.stores.listing import Step, Walk, is_decided, residue
from rowlock.stores.reading import Filter

_RANGES = {
    "created_from": "j.created >= ",
    "created_until": "j.created < ",
    "run_at_from": "j.run_at >= ",
    "run_at_until": "j.run_at < ",
    "finished_from": "j.finished_at >= ",
    "finished_until": "j.finished_at < ",
}


class Renderer(ABC):
    """One statement and its values. Only names of ours stand in the text; what callers gave is bound."""

    def __init__(self, filter: Filter, step: Step) -> None:
        self.filter = filter
        self.step = step
        self.values: list[Any] = []

    def render(self) -> str:
        walk = self.step.walk
        driver = self._driver(walk)
        if self.step.after is not None:
            driver = [*driver, f"j.id < {self.id(self.step.after)}"]
        where = f"WHERE {' AND '.join(driver)}" if driver else ""
        hit = None if is_decided(self.filter, walk) else " AND ".join(self._residue(walk))
        return self.select(self.table(walk), where, hit)

    def _driver(self, walk: Walk) -> list[str]:
        """What the index is asked. Statuses are written out, so that partial indexes are seen to apply."""
        match walk.by:
            case "id":
                return []
            case "ids":
                return [self.any_id(list(self.filter.ids))]
            case "lease":
                return ["j.locked_until IS NOT NULL"]
            case "status":
                return [f"j.status = '{Status(walk.value).value}'"]
            case "live_key":
                topics, keys = list(self.filter.topics), list(self.filter.keys)
                return [self.any_text("j.topic", topics), self.any_text("j.key", keys), *self.live_key()]
            case "flow_id":
                return [f"j.flow_id = {self.id(walk.value)}"]
            case "key" | "scope_id" | "topic" | "scope":
                return [f"j.{walk.by} = {self.text(walk.value)}"]

    def _residue(self, walk: Walk) -> list[str]:
        conditions = [self._condition(name) for name in residue(self.filter, walk)]
        if walk.statuses:
            names = ", ".join(f"'{status.value}'" for status in sorted(walk.statuses))
            conditions.insert(0, f"j.status IN ({names})")
        return conditions

    def _condition(self, name: str) -> str:
        filter = self.filter
        if name in _RANGES:
            return _RANGES[name] + self.time(getattr(filter, name))
        match name:
            case "topics" | "keys":
                return self.any_text(f"j.{name[:-1]}", list(getattr(filter, name)))
            case "scope" | "scope_id":
                return f"j.{name} = {self.text(getattr(filter, name))}"
            case "flow_id":
                return f"j.flow_id = {self.id(filter.flow_id or '')}"
            case "tags":
                return self.tags(list(filter.tags))
            case "payload":
                return " AND ".join(self.member(path, value) for path, value in filter.paths)
            case "error":
                return self.error(filter.error or "")
            case _:
                raise AssertionError(name)

    @abstractmethod
    def select(self, table: str, where: str, hit: str | None) -> str:
        """How many rows there are, the last id, the ids of those for which `hit` holds."""

    @abstractmethod
    def table(self, walk: Walk) -> str: ...

    @abstractmethod
    def live_key(self) -> list[str]:
        """The predicate of the index _jobs_live_key."""

    @abstractmethod
    def text(self, value: str) -> str: ...

    @abstractmethod
    def id(self, value: str) -> str: ...

    @abstractmethod
    def time(self, value: datetime) -> str: ...

    @abstractmethod
    def any_text(self, column: str, values: list[str]) -> str: ...

    @abstractmethod
    def any_id(self, values: list[str]) -> str: ...

    @abstractmethod
    def tags(self, tags: list[str]) -> str: ...

    @abstractmethod
    def member(self, path: list[str], value: str) -> str:
        """The payload has this JSON value there. Numbers are compared by value; true is not 1."""

    @abstractmethod
    def error(self, part: str) -> str: ...
