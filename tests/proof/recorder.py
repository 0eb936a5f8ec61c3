"""What clients were told and what handlers did, in JSON lines: one file per process, one line before and one after.

A line is one write to a file opened for appending, so a killed process loses nothing that it had written. A beginning
without an end is an operation whose outcome is unknown, or a run that never ended.

    record = Recorder(folder)
    with record.operation("enqueue", [job_id], topic="mail", key=None) as told:
        told(await jobs.enqueue("mail", id=job_id))
    record.watch(jobs)      # every run of its handlers, of all kinds
    record.load(history)
"""

import asyncio
import itertools
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rowlock.context import AnyContext, Context
from rowlock.errors import OutcomeUnknown
from rowlock.jobs import Jobs
from rowlock.stores.base import Enqueued
from tests.proof.history import Execution, Fault, History, Operation, StepRun

Told = Callable[[Enqueued | Sequence[Enqueued]], None]

_UNKNOWN = (OutcomeUnknown, asyncio.CancelledError, TimeoutError, KeyboardInterrupt)


def now() -> int:
    """Return the microseconds of CLOCK_MONOTONIC, which all processes of a machine share."""
    return time.monotonic_ns() // 1000


class Recorder:
    """Writes the record. Any process, thread or child may use it: each process has its own file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self._file = (0, -1)  # pid, descriptor
        self._mark = secrets.token_hex(3)  # if many processes are killed, a pid may come again, with the same numbers

    def _write(self, **line: Any) -> None:
        pid, descriptor = self._file
        if pid != os.getpid():  # on first use, and after a fork
            pid = os.getpid()
            name = f"{pid}-{self._mark}.jsonl"
            descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._file = (pid, descriptor)
        os.write(descriptor, msgspec.json.encode(line, enc_hook=repr) + b"\n")

    # ── Clients ──

    @contextmanager
    def operation(self, verb: str, ids: Sequence[str], **detail: Any) -> Iterator[Told]:
        """Record an operation. It yields a function: call that with the answer to an enqueue. An error inside is
        recorded as `fail`, or as `unknown` if the error leaves the outcome open."""
        n = next(self._numbers)
        answer: dict[str, Any] | None = None

        def told(answered: Enqueued | Sequence[Enqueued]) -> None:
            nonlocal answer
            if isinstance(answered, Enqueued):
                answer = {"id": answered.id, "existing": answered.existing}
            else:
                answer = {"jobs": [{"id": one.id, "existing": one.existing} for one in answered]}

        self._write(kind="asked", n=n, verb=verb, ids=ids, at=now(), detail=detail)
        try:
            yield told
        except _UNKNOWN:
            self._write(kind="told", n=n, at=now(), outcome="unknown")
            raise
        except BaseException:
            self._write(kind="told", n=n, at=now(), outcome="fail")
            raise
        self._write(kind="told", n=n, at=now(), outcome="ok", answer=answer)

    def fault(self, kind: str, target: str | int) -> None:
        """Record a fault. Call this right before the fault."""
        self._write(kind="fault", fault=kind, target=str(target), at=now())

    # ── Handlers ──

    def watch(self, jobs: Jobs) -> None:
        """Record every run of these handlers. Of several such hooks, the last one to be registered is nearest to the
        handler."""
        jobs.on_run(self.around)

    def around(self, ctx: Context) -> Generator[None, Any, None]:
        n = next(self._numbers)
        job = ctx.job
        self._write(kind="begun", n=n, worker=job.locked_by, job_id=job.id, version=job.version, at=now())
        try:
            result = yield
        except BaseException as error:
            self._write(kind="ended", n=n, at=now(), error=f"{type(error).__name__}: {error}", told=_told(ctx))
            raise
        self._write(kind="ended", n=n, at=now(), result=result, told=_told(ctx))

    def step_begins(self, ctx: AnyContext, name: str) -> None:
        """Record that a step began. The function of a step that a handler takes once calls this."""
        self._write(kind="step", job_id=ctx.job.id, version=ctx.job.version, name=name, at=now())

    # ── Reading ──

    def load(self, history: History) -> History:
        """Add the whole record, and how the clocks compare, to the history, and return it. Call this only when the
        processes have ended or are idle."""
        offset = time.time_ns() // 1000 - now()
        history.settings.setdefault("monotonic_offset", offset)
        for file in sorted(self._folder.glob("*.jsonl")):
            _load(file, history)
        history.faults.sort(key=lambda fault: fault.at)
        return history


def _told(ctx: Context) -> str | None:
    """Return how the run was interrupted, or None. This does not use the handler's own way to ask: the worker treats a
    handler that asks differently."""
    interruption = ctx._link.interruption
    return None if interruption is None else interruption.value


def _load(file: Path, history: History) -> None:
    begun: dict[int, dict[str, Any]] = {}
    ended: dict[int, dict[str, Any]] = {}
    for text in file.read_bytes().splitlines():
        line = msgspec.json.decode(text)
        if line["kind"] == "fault":
            history.faults.append(Fault(line["at"], line["fault"], line["target"]))
        elif line["kind"] == "step":
            history.step_runs.append(StepRun(line["job_id"], line["version"], line["name"], 1, line["at"]))
        else:
            (begun if line["kind"] in ("asked", "begun") else ended)[line["n"]] = line
    for n, line in begun.items():
        end = ended.get(n, {})
        if line["kind"] == "begun":
            history.executions.append(
                Execution(
                    worker=line["worker"],
                    job_id=line["job_id"],
                    version=line["version"],
                    begun=line["at"],
                    ended=end.get("at"),
                    result=end.get("result"),
                    error=end.get("error"),
                    told=end.get("told"),
                )
            )
        else:
            history.operations.append(
                Operation(
                    client=file.stem,
                    n=n,
                    verb=line["verb"],
                    begun=line["at"],
                    ended=end.get("at", line["at"]),
                    outcome=end.get("outcome", "unknown"),
                    ids=tuple(line["ids"]),
                    answer=end.get("answer"),
                    detail=line["detail"],
                )
            )
