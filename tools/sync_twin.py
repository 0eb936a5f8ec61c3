"""Writes src/rowlock/sync.py: the verbs of Jobs for code without an event loop, from the verbs themselves.

python tools/sync_twin.py            write it
python tools/sync_twin.py --check    exit 1 if it is out of date
"""

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src/rowlock"

HEAD = '''"""`jobs.sync`: the verbs of Jobs for code without an event loop. Made by tools/sync_twin.py: do not edit.

One implementation stands behind both. Verbs run on the portal, a thread with an event loop; with `conn=` they run in
the caller's thread, on the caller's driver.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from msgspec import UNSET, UnsetType

from rowlock.client.bulk import BulkPage, ItemsPage
from rowlock.client.enqueue import Draftable
from rowlock.client.portal import drive, refuse_in_loop
from rowlock.client.verify import Report
from rowlock.client.why import Why
from rowlock.core.job import Event, Job, Log
from rowlock.stores.base import Enqueued, Pause, WorkerInfo
from rowlock.stores.bulk import Bulk
from rowlock.stores.failures import Failures
from rowlock.stores.reading import Filter, Page, Stats
from rowlock.stores.records import Audited
from rowlock.stores.series import Series
from rowlock.tasks import EnqueueOptions

if TYPE_CHECKING:
    from rowlock.jobs import Jobs

T = TypeVar("T")
Answers = list[Enqueued]  # `list` is a verb below


class SyncJobs:
    """Usable from any number of threads, and after fork(). Refuses to be called where an event loop is running."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def open(self) -> None:
        """Connect now, and find out what is wrong. Without it, the first use connects."""
        refuse_in_loop()
        self._jobs._stores.reopen()
        self._run(self._jobs.open)

    def close(self) -> None:
        """Stop working, and let go of all connections. Safe to call twice."""
        refuse_in_loop()
        if self._jobs._worker is not None:
            self.stop()
        self._jobs._stores.close_from_sync()

    def _run(self, verb: Callable[[], Coroutine[Any, Any, T]], conn: Any = None) -> T:
        refuse_in_loop()
        run = self._jobs._stores.portal.run
        if conn is None:
            return run(verb)
        if not self._jobs._knows_home:
            run(self._jobs._home)  # known from here on: the verb need not wait for anything
        return drive(verb())
'''

SKIPPED = {"open", "close"}  # by hand, above


def twin(source: str) -> str:
    tree = ast.parse(source)
    [jobs] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Jobs"]
    verbs = [
        node
        for node in jobs.body
        if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_") and node.name not in SKIPPED
    ]
    return HEAD + "".join(_method(verb) for verb in verbs)


def _method(verb: ast.AsyncFunctionDef) -> str:
    """The same signature and documentation; the body hands the call over."""
    arguments = verb.args
    names = [argument.arg for argument in [*arguments.args[1:], *arguments.kwonlyargs]]
    passed = [argument.arg for argument in arguments.args[1:]]
    passed += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    conn = ", conn" if "conn" in names else ""
    if arguments.kwarg is not None:
        passed.append(f"**{arguments.kwarg.arg}")
        conn = f', {arguments.kwarg.arg}.get("conn")'
    documentation = ast.get_docstring(verb, clean=False)
    assert documentation, f"{verb.name} needs a docstring"
    assert arguments.vararg is None, f"{verb.name}: *args are not handed over"
    returns = "" if verb.returns is None else ast.unparse(verb.returns)
    return (
        f"\n    def {verb.name}({ast.unparse(arguments)}) -> {returns}:\n"
        f'        """{documentation}"""\n'
        f"        return self._run(lambda: self._jobs.{verb.name}({', '.join(passed)}){conn})\n"
    )


def main() -> None:
    text = twin((SOURCE / "jobs.py").read_text("utf-8"))
    target = SOURCE / "sync.py"
    if "--check" in sys.argv:
        old = ast.dump(ast.parse(target.read_text("utf-8"))) if target.exists() else ""
        if old != ast.dump(ast.parse(text)):
            sys.exit("src/rowlock/sync.py is out of date: run make format")
    else:
        target.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
