"""The small model of the protocol: the parts of a state of the world. They are plain tuples, because there are many."""

from functools import cache
from typing import NamedTuple

from msgspec import Struct

from tests.proof.model import Row, Said, To

DEAD = -2  # the holder is a dead worker whose name no process knows any more
NAMED_DEAD = 100  # numbers from here on are dead workers whose names a supervisor knows
NEW, AHEAD, RUNNING, DONE, SENT = range(5)  # a run awaits its mark, may start, runs, is to be settled, is being settled


class Run(NamedTuple):
    """One job that a worker holds. `status` is the status that the worker knows of."""

    job: int
    version: int
    phase: int
    retries: int
    status: str = "processing"
    began: bool = False
    outcome: str = ""
    to: To | None = None


class Request(NamedTuple):
    """`wishes`: a (job, version, to) for each run to settle, or to mark as started if `to` is None. `claim`: (start,
    limit), or ()."""

    kind: str  # "round", "look" for lost claims, "give back" lost claims, "mark" the start
    wishes: tuple[tuple[int, int, To | None], ...] = ()
    claim: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.kind == "look":
            return "what do I hold?"
        parts = [f"{to.event if to else 'start mark'} (run {version} of job {job})" for job, version, to in self.wishes]
        if self.claim:
            start, limit = self.claim
            parts.append(f"claim {limit} " + ("to start at once" if start else "ahead"))
        return " + ".join(parts)


class Reply(NamedTuple):
    said: tuple[Said, ...] = ()
    claimed: tuple[tuple[int, int, int, bool], ...] = ()  # job, version, retries, suspect
    held: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        parts = [f"{said.answer} {said.status}".rstrip() for said in self.said]
        parts += [f"run {version} of job {job} is yours" for job, version, *_ in self.claimed + self.held]
        return " + ".join(parts) or "nothing"


class Worker(NamedTuple):
    runs: tuple[Run, ...] = ()
    rounds: tuple[tuple[Request, Reply | None], ...] = ()  # under way; carried out if there is a reply
    claim_lost: bool = False

    def swap(self, run: Run, *by: Run) -> "Worker":
        at = self.runs.index(run)
        return self._replace(runs=(*self.runs[:at], *by, *self.runs[at + 1 :]))

    def sending(self, request: Request) -> "Worker":
        return self._replace(rounds=(*self.rounds, (request, None)))


class Budget(NamedTuple):
    """How often each of these may still happen in one course of the world."""

    crash: int = 0  # a worker dies, and another starts in its place
    lose: int = 0  # a request or its reply never arrives, or a supervisor dies
    late: int = 0  # a request arrives after its sender has given it up or died
    stall: int = 0  # a lease runs out although its worker lives
    detour: int = 0  # a run ends in another way than by completing or failing
    cancel: int = 0
    requeue: int = 0
    delete: int = 0
    expire: int = 0


class State(NamedTuple):
    jobs: tuple[Row, ...]
    workers: tuple[Worker, ...]
    budget: Budget
    late: tuple[tuple[int, Request], ...] = ()
    orders: tuple[tuple[int, tuple[tuple[int, int], ...], bool], ...] = ()  # supervisors: dead worker, started, marked
    picked: tuple[int, ...] = ()  # jobs that a rescue has found and not yet written, if it takes two steps

    def with_job(self, job: int, row: Row) -> "State":
        return State(put(self.jobs, job, row), *self[1:])

    def with_worker(self, name: int, worker: Worker) -> "State":
        workers = (*self.workers[:name], worker, *self.workers[name + 1 :])
        return State(self.jobs, workers, *self[2:])


class Size(Struct, frozen=True, kw_only=True):
    """The size of a world. `hold`: jobs that a worker may hold at once; it runs one of them. `rounds`: requests that a
    worker may have under way at once. `in_parts`: a request, its work and its reply are three steps, not one. Several
    rounds need this."""

    budget: Budget
    jobs: int = 1
    workers: int = 2
    retries: int = 1
    hold: int = 1
    rounds: int = 1
    in_parts: bool = False
    supervised: bool = False
    reports: bool = False


def put(jobs: tuple[Row, ...], job: int, row: Row) -> tuple[Row, ...]:
    return (*jobs[:job], row, *jobs[job + 1 :])


@cache
def spend(budget: Budget, what: str) -> Budget | None:
    """Return the budget after one such event, or None if it allows no more of them."""
    left: int = getattr(budget, what)
    return budget._replace(**{what: left - 1}) if left else None
