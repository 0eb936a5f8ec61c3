"""The systems that are measured."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from benchmarks.systems.base import System

OURS = ("rowlock", "raw", "rowlock-sqlite", "raw-sqlite")
NODE = ("graphile-worker", "pg-boss")
QUICK = ("rowlock", "raw", "pgqueuer", "graphile-worker", "rowlock-sqlite", "raw-sqlite", "huey-sqlite")
FULL = (
    "rowlock", "raw", "pgqueuer", "graphile-worker", "pg-boss", "awa-pg", "chancy", "saq", "procrastinate",
    "huey", "dramatiq", "celery", "rq", "rowlock-sqlite", "raw-sqlite", "huey-sqlite",
)  # fmt: skip


def load(names: Sequence[str]) -> tuple[list[System], dict[str, str]]:
    """Return the systems that can be measured here, and why the others can't."""
    found: list[System] = []
    missing: dict[str, str] = {}
    node_is_there, reason = _install_node() if set(names) & set(NODE) else (False, "")
    for name in names:
        if name in NODE and not node_is_there:
            missing[name] = reason
            continue
        try:
            system: System = import_module(f"benchmarks.systems.{name.replace('-', '_')}").SYSTEM
        except ImportError as error:
            missing[name] = f"can't be imported: {error}"
            continue
        if system.version() is None:
            missing[name] = "is not installed"
        else:
            found.append(system)
    return found, missing


def _install_node() -> tuple[bool, str]:
    from benchmarks.systems import node

    return node.install()
