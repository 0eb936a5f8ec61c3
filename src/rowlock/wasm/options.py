"""The options of `jobs.wasm`. Without wasmtime, so that type checkers and `Jobs` can import them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal, TypedDict

from rowlock.core.cron import When
from rowlock.core.debounce import Debounce
from rowlock.core.limits import Fair, Limit
from rowlock.core.retry import RetryPolicy
from rowlock.core.templates import Cancel, IfLive
from rowlock.tasks import Recurring

Grant = Literal["clock", "random"]


class WasmOptions(TypedDict, total=False):
    """The limits and grants of a module, and the options of its task. `Policy` explains the latter."""

    memory: int  # bytes
    fuel: int  # about one per instruction
    grant: Sequence[Grant]
    env: Mapping[str, str]
    enqueue: Sequence[str]  # topics

    version: int
    runs: Sequence[int]
    max_retries: int
    timeout: float | timedelta
    priority: int | str
    retry: RetryPolicy | Sequence[float]
    cancel: Cancel | bool
    key: Sequence[str] | None
    if_live: IfLive | None
    once: bool
    debounce: Debounce | None
    throttle: float | timedelta | None
    schedulable: bool
    limits: Sequence[Limit]
    fair: str | Fair | None
    retention: float | timedelta | None
    title: str | None
    description: str | None
    schedule: When | Recurring | Sequence[When | Recurring] | None
    process: bool
