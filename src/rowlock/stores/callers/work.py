"""The kinds of work in a caller's transaction. Each database system carries them out in its own way: see
dialects.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from rowlock.core.flows import NewFlow
from rowlock.core.job import NewJob
from rowlock.stores.base import Enqueued, Guard
from rowlock.stores.schedules import Decide, Decided, Which

T = TypeVar("T")


class Work(Struct, Generic[T], frozen=True):
    """`T`: the type of its answer."""


class Insert(Work[list[Enqueued]], frozen=True):
    jobs: Sequence[NewJob]
    repeat: bool
    notify: bool


class InsertFlow(Work[list[Enqueued]], frozen=True):
    flow: NewFlow
    repeat: bool
    notify: bool


class Fence(Work[None], frozen=True):
    guard: Guard


class ChangeSchedules(Work[list[Decided]], frozen=True):
    which: Which
    decide: Decide
