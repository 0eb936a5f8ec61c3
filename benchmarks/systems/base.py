"""The description of a system that the harness measures."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Store = Literal["postgres", "redis", "sqlite"]
VERBS = ("setup", "enqueue_one", "enqueue_concurrent", "enqueue_bulk", "produce", "worker")


@dataclass(frozen=True)
class System:
    name: str  # as people call it: graphile-worker
    store: Store
    version: Callable[[], str | None]  # None: it is not installed here
    unfinished: Callable[[str], Awaitable[int]]  # url -> jobs that its store has not completed yet; cheap
    settings: Mapping[str, str]  # its configuration, for the report
    completed: Callable[[str], Awaitable[int]] | None = None  # url -> completed jobs; None: it keeps no record
    pace: int = 1000  # jobs that one worker process drains in a second, roughly: sizes the rounds
    durable: bool = True  # True if a job is on disk when enqueue returns, and its completion when it is gone
    lacks: frozenset[str] = frozenset()  # verbs that it doesn't have
    start: Callable[[str], list[str]] | None = None  # verb -> command; None: the module, run as a program
    options: Mapping[str, Any] = field(default_factory=dict)  # BENCH_OPTIONS

    def command(self, verb: str) -> list[str]:
        if self.start is not None:
            return self.start(verb)
        return [sys.executable, "-m", f"benchmarks.systems.{self.name.replace('-', '_')}", verb]


@dataclass(frozen=True)
class Order:
    """The parameters of a verb. The programs of systems read them from the environment."""

    url: str
    n: int
    callers: int
    batch: int
    gap: float
    options: dict[str, Any]


def order() -> Order:
    return Order(
        os.environ["BENCH_URL"],
        int(os.environ.get("BENCH_N", "0")),
        int(os.environ.get("BENCH_CALLERS", "100")),
        int(os.environ.get("BENCH_BATCH", "1000")),
        float(os.environ.get("BENCH_GAP", "0.02")),
        json.loads(os.environ.get("BENCH_OPTIONS", "{}")),
    )


def took(seconds: float) -> None:
    """Print the answer of an enqueue verb."""
    print(json.dumps({"seconds": seconds}), flush=True)
