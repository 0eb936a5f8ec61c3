"""Writes src/rowlock/sync.py: `jobs.sync`, the verbs of Jobs and of its groups for code without an event loop.

python tools/sync_twin.py            write it
python tools/sync_twin.py --check    exit 1 if it is out of date
"""

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src/rowlock"

GROUPS = {  # attribute of Jobs → its class, and the module that has it
    "audit": ("Audit", "client/audit.py"),
    "bulk": ("BulkActions", "client/bulk.py"),
    "failures": ("FailureGroups", "client/failures.py"),
    "flows": ("Flows", "client/flows.py"),
    "limits": ("Limits", "client/limits.py"),
    "schedules": ("Schedules", "client/schedules.py"),
    "templates": ("Templates", "client/templates.py"),
    "tokens": ("Tokens", "client/tokens.py"),
    "topics": ("Topics", "client/topics.py"),
    "workers": ("Workers", "client/workers.py"),
}

HEAD = '''"""`jobs.sync`: the verbs of Jobs for code without an event loop. Made by tools/sync_twin.py: do not edit.

Each verb calls its async twin on the portal, a thread with an event loop. With `conn=` it runs in the caller's thread,
on the caller's driver.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from rowlock.access.short_lived import USUAL
from rowlock.access.tokens import Token
from rowlock.client.audit import Audit
from rowlock.client.bulk import BulkActions, BulkPage, ItemsPage
from rowlock.client.enqueue import Draftable
from rowlock.client.failures import FailureGroups
from rowlock.client.flows import EnqueuedFlow, FlowDraft, FlowPage, Flows, FlowView, Graph
from rowlock.client.limits import Kind, LimitInfo, Limits
from rowlock.client.portal import drive, refuse_in_loop
from rowlock.client.schedules import BackfillTime, Preview, SchedulePage, Schedules
from rowlock.client.signals import Key
from rowlock.client.step_list import StepStatus
from rowlock.client.templates import Change, Templates
from rowlock.client.tokens import NewToken, Tokens
from rowlock.client.topics import Topics
from rowlock.client.verify import Report
from rowlock.client.why import Why
from rowlock.client.workers import Workers
from rowlock.core.cron import When
from rowlock.core.flows import IfFailed
from rowlock.core.job import Event, Job, Log
from rowlock.core.limits import Limit
from rowlock.core.schedules import Fired, IfLiveJob, Missed, Schedule, State
from rowlock.core.templates import Stored, Unreadable
from rowlock.signals import Signal
from rowlock.stores.base import Enqueued, Pause, WorkerInfo
from rowlock.stores.bulk import Bulk
from rowlock.stores.failures import Failures
from rowlock.stores.queries import Filter, Page, Stats
from rowlock.stores.records import Audited
from rowlock.stores.series import Series
from rowlock.tasks import EnqueueOptions, Task

if TYPE_CHECKING:
    from rowlock.jobs import Jobs

R = TypeVar("R")
D = TypeVar("D")
T = TypeVar("T")
Answers = list[Enqueued]  # `list` is a verb below
Steps = list[StepStatus]


class SyncJobs:
    """Usable from any number of threads, and after fork(). Refuses to be called where an event loop is running."""

    def __init__(self, jobs: Jobs) -> None:
        self._async = jobs
{groups}
    def open(self) -> None:
        """Connect now, and raise what is wrong. Without it, the first use connects."""
        refuse_in_loop()
        self._async._stores.reopen()
        self._run(self._async.open)

    def close(self) -> None:
        """Stop the worker, and close all connections. Safe to call twice."""
        refuse_in_loop()
        if self._async._worker is not None:
            self.stop()
        self._async._stores.close_from_sync()

    def flow(self, name: str) -> SyncFlow:
        """Begin a flow: jobs that wait for each other. `flow.add` adds jobs, `flow.enqueue` enqueues all of them."""
        return SyncFlow(name, self)

    def _run(self, verb: Callable[[], Coroutine[Any, Any, T]], conn: Any = None) -> T:
        refuse_in_loop()
        stores = self._async._stores
        if conn is None:
            return stores.portal.run(verb)
        if not stores.knows_home:
            stores.portal.run(stores.home)  # from here on the verb need not wait for anything …
        if self._async.definitions.is_stale:
            stores.portal.run(self._async.definitions.refresh)  # … not even for templates
        return drive(verb())
'''

FLOW = '''

class SyncFlow(FlowDraft):
    """Made by `jobs.sync.flow(name)`."""

    def __init__(self, name: str, jobs: SyncJobs) -> None:
        super().__init__(name, jobs._async._flow_parts)
        self._run = jobs._run

    def enqueue(self, *, conn: Any = None, notify: bool | None = None, by: str | None = None) -> EnqueuedFlow:
        """Add all jobs in one transaction: all or none. With `conn=`, in that of the caller."""
        return self._run(lambda: self._enqueue(conn, notify, by), conn)
'''

GROUP = '''

class Sync{kind}:
    """`jobs.sync.{name}`."""

    def __init__(self, group: {kind}, jobs: SyncJobs) -> None:
        self._async = group
        self._run = jobs._run
'''

SKIPPED = {"open", "close"}  # HEAD has both, written by hand


def twin() -> str:
    groups = "".join(f"        self.{name} = Sync{kind}(jobs.{name}, self)\n" for name, (kind, _) in GROUPS.items())
    text = HEAD.replace("{groups}", groups) + _methods("Jobs", "jobs.py") + FLOW
    for name, (kind, module) in GROUPS.items():
        text += GROUP.format(kind=kind, name=name) + _methods(kind, module)
    return text


def _methods(kind: str, module: str) -> str:
    tree = ast.parse((SOURCE / module).read_text("utf-8"))
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind]
    verbs = [node for node in found.body if isinstance(node, ast.AsyncFunctionDef)]
    return "".join(_method(verb) for verb in verbs if not verb.name.startswith("_") and verb.name not in SKIPPED)


def _method(verb: ast.AsyncFunctionDef) -> str:
    """Return the source of a verb of the same signature and documentation. Its body calls the async verb."""
    arguments = verb.args
    returns = "" if verb.returns is None else ast.unparse(verb.returns)
    signature = f"def {verb.name}({ast.unparse(arguments)}) -> {returns}:"
    if verb.decorator_list:
        assert [ast.unparse(one) for one in verb.decorator_list] == ["overload"], f"{verb.name}: unknown decorator"
        return f"\n    @overload\n    {signature} ...\n"
    names = [argument.arg for argument in [*arguments.args[1:], *arguments.kwonlyargs]]
    passed = [argument.arg for argument in arguments.args[1:]]
    passed += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    if arguments.vararg is not None:
        passed.insert(0, f"*{arguments.vararg.arg}")
    conn = ", conn" if "conn" in names else ""
    if arguments.kwarg is not None:
        passed.append(f"**{arguments.kwarg.arg}")
        conn = f', {arguments.kwarg.arg}.get("conn")'
    documentation = ast.get_docstring(verb, clean=False)
    assert documentation, f"{verb.name} needs a docstring"
    assert arguments.vararg is None or not arguments.args[1:], f"{verb.name}: arguments before *args"
    return (
        f"\n    {signature}\n"
        f'        """{documentation}"""\n'
        f"        return self._run(lambda: self._async.{verb.name}({', '.join(passed)}){conn})\n"
    )


def main() -> None:
    text = twin()
    target = SOURCE / "sync.py"
    if "--check" in sys.argv:
        old = ast.dump(ast.parse(target.read_text("utf-8"))) if target.exists() else ""
        if old != ast.dump(ast.parse(text)):
            sys.exit("src/rowlock/sync.py is out of date: run make format")
    else:
        target.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
