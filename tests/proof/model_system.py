"""The small model of the protocol: workers, maintenance, operators and a lossy network, around the rows of model.py.

A step is one thing that happens at one place: a request is sent or carried out, its reply arrives, a handler begins or
ends, a lease runs out, a worker dies. Every order of steps is a course of the world, so no step has a duration. A
worker that stalls is one whose next step comes late. Workers do what claim_settle.py, worker.py and heartbeat.py do.
"""

from collections.abc import Iterator
from itertools import combinations

from tests.proof.model import (
    ENDED,
    GONE,
    NOBODY,
    OPEN,
    OUTCOMES,
    TAKEN_AWAY,
    Broken,
    Database,
    Row,
    Sabotage,
    Said,
    To,
    sources,
)
from tests.proof.model_state import (
    AHEAD,
    DEAD,
    NAMED_DEAD,
    RUNNING,
    Reply,
    Request,
    Run,
    Size,
    State,
    Worker,
    put,
    spend,
)
from tests.proof.model_worker import Conduct

TOLD = ("completes", "fails", "gives up")  # the outcomes of a handler that knows of a cancel

Label = tuple[str, tuple[object, ...]]
Step = tuple[Label, bool, State]  # what happens; True if it can happen when nothing goes wrong; the state after it


class System:
    """The world and its steps. `doing`: the current step. The explorer reads it when it catches Broken."""

    def __init__(self, size: Size, sabotage: Sabotage | None = None, ignoring: str = "") -> None:
        self.size = size
        self.doing: Label = ("", ())
        self._database = Database(size.retries, sabotage, ignoring)
        self._conduct = Conduct(size, self._database, sabotage)
        self._sabotage = sabotage

    def first(self) -> State:
        return State((Row(),) * self.size.jobs, (Worker(),) * self.size.workers, self.size.budget)

    def at_rest(self, state: State) -> bool:
        """Return True if every job has ended and no worker or supervisor has anything left to do."""
        ended = all(row.status in ENDED for row in state.jobs)
        return ended and not state.orders and not any(worker.runs or worker.rounds for worker in state.workers)

    def steps(self, state: State) -> Iterator[Step]:
        for name, worker in enumerate(state.workers):
            for run in worker.runs:
                yield from self._handler(state, name, worker, run)
                yield from self._keeper(state, name, worker, run)
            yield from self._send(state, name, worker)
            for at in range(len(worker.rounds)):
                yield from self._round(state, name, worker, at)
            yield from self._crash(state, name, worker)
        for job, row in enumerate(state.jobs):
            yield from self._maintain(state, job, row)
            yield from self._operate(state, job, row)
        yield from self._supervise(state)
        for at, (name, request) in enumerate(state.late):
            label = self._do("the late request of {} arrives: {}", _who(name), request)
            for jobs, _ in self._carry_out(state.jobs, name, request):
                yield label, False, state._replace(jobs=jobs, late=state.late[:at] + state.late[at + 1 :])

    def _do(self, text: str, *about: object) -> Label:
        self.doing = (text, about)
        return self.doing

    # ── Handlers, and the heartbeat thread ──

    def _handler(self, state: State, name: int, worker: Worker, run: Run) -> Iterator[Step]:
        who = ("worker {}: run {} of job {} {}", name, run.version, run.job)
        if run.phase == AHEAD:
            if not any(other.phase == RUNNING for other in worker.runs):
                label = self._do(*who, "starts")
                self._check_overlap(state, run)
                after = state.with_job(run.job, self._database.begin(state.jobs[run.job], run.version))
                running = run._replace(phase=RUNNING, began=True)
                yield label, True, after.with_worker(name, worker.swap(run, running))
            row = state.jobs[run.job]
            too_late = row.expired or row.version != run.version  # the worker may know that by its own clock
            if budget := state.budget if too_late else spend(state.budget, "detour"):
                label = self._do(*who, "has waited for too long and is given back")
                given_back = self._conduct.conclude(worker, run, "is given back")
                yield label, too_late, state.with_worker(name, given_back)._replace(budget=budget)
        elif run.phase == RUNNING:
            told = run.status == "cancel_requested"
            after = state.with_job(run.job, self._database.finish(state.jobs[run.job], run.version))
            for outcome in TOLD if told else OUTCOMES:
                detour = not told and outcome not in ("completes", "fails")
                if budget := spend(state.budget, "detour") if detour else state.budget:
                    label = self._do(*who, outcome)
                    concluded = self._conduct.conclude(worker, run, outcome)
                    yield label, not detour, after.with_worker(name, concluded)._replace(budget=budget)

    def _check_overlap(self, state: State, run: Run) -> None:
        for other in (other for worker in state.workers for other in worker.runs):
            if other.job == run.job and other.version != run.version and other.phase == RUNNING:
                older = min(run.version, other.version)
                ended = state.jobs[run.job].ends[older - 1]
                if ended not in TAKEN_AWAY:
                    raise Broken("X3", f"a run overlaps run {older}, which nobody took away: {ended!r}")

    def _keeper(self, state: State, name: int, worker: Worker, run: Run) -> Iterator[Step]:
        """Yield the steps of a heartbeat. Request and reply are one step: a late reply says the same as the reply to an
        earlier heartbeat."""
        row = state.jobs[run.job]
        who = (name, run.version, run.job)
        label = self._do("worker {}: heartbeat of run {} of job {}", *who)
        after, said = self._database.heartbeat(row, name, run.version, run.began)
        heard = self._conduct.hear(worker, run, said)
        if after != row or heard != worker:
            yield label, True, state.with_job(run.job, after).with_worker(name, heard)
        if after != row and (budget := spend(state.budget, "lose")):
            label = self._do("worker {}: heartbeat of run {} of job {}, the reply is lost", *who)
            yield label, False, state.with_job(run.job, after)._replace(budget=budget)
        if self.size.reports and run.phase == RUNNING:
            label = self._do("worker {}: run {} of job {} reports progress", *who)
            after, _ = self._database.progress(row, name, run.version)
            if after != row:
                yield label, True, state.with_job(run.job, after)

    # ── Rounds ──

    def _send(self, state: State, name: int, worker: Worker) -> Iterator[Step]:
        for asking, request in self._conduct.requests(worker, _has_work(state)):
            if self.size.in_parts:
                label = self._do("worker {} asks: {}", name, request)
                yield label, True, state.with_worker(name, asking.sending(request))
            else:
                yield from self._exchange(state, name, asking, request)

    def _exchange(self, state: State, name: int, worker: Worker, request: Request) -> Iterator[Step]:
        """Yield the steps in which a request and its reply are one. No course gets lost by this. Until the reply comes,
        a worker can only do what it could have done before the request. And a reply stays true, however late it
        comes."""
        unknown = self._conduct.unknown(worker, request)
        label = self._do("worker {}: {}", name, request)
        for jobs, reply in self._carry_out(state.jobs, name, request):
            after = state._replace(jobs=jobs)
            yield label, True, self._hear(after, name, worker, request, reply)
            if budget := spend(state.budget, "lose"):
                lost = self._do("worker {}: {}, the reply is lost", name, request)
                yield lost, False, after.with_worker(name, unknown)._replace(budget=budget)
        yield from self._not_carried_out(state, name, unknown, request)

    def _round(self, state: State, name: int, worker: Worker, at: int) -> Iterator[Step]:
        request, reply = worker.rounds[at]
        others = worker.rounds[:at] + worker.rounds[at + 1 :]
        without = worker._replace(rounds=others)
        if not self.size.in_parts:
            yield from self._exchange(state, name, without, request)
        elif reply is None:
            label = self._do("the database serves worker {}: {}", name, request)
            for jobs, answer in self._carry_out(state.jobs, name, request):
                after = worker._replace(rounds=(*others, (request, answer)))
                yield label, True, state._replace(jobs=jobs).with_worker(name, after)
            yield from self._not_carried_out(state, name, self._conduct.unknown(without, request), request)
        else:
            label = self._do("worker {} hears: {}", name, reply)
            yield label, True, self._hear(state, name, without, request, reply)
            if budget := spend(state.budget, "lose"):
                label = self._do("worker {}: the reply to {} is lost", name, request)
                unknown = self._conduct.unknown(without, request)
                yield label, False, state.with_worker(name, unknown)._replace(budget=budget)

    def _hear(self, state: State, name: int, worker: Worker, request: Request, reply: Reply) -> State:
        for (job, version, to), said in zip(request.wishes, reply.said, strict=bool(reply.said)):
            if to is not None:
                _check_verdict(state.jobs[job], version, to, said)
        return state.with_worker(name, self._conduct.answered(worker, request, reply))

    def _not_carried_out(self, state: State, name: int, unknown: Worker, request: Request) -> Iterator[Step]:
        after = state.with_worker(name, unknown)
        if budget := spend(state.budget, "lose"):
            label = self._do("worker {}: {} never arrives", name, request)
            yield label, False, after._replace(budget=budget)
        if request.kind != "look" and (budget := spend(state.budget, "late")):
            label = self._do("worker {} gives up on {}, which is still on its way", name, request)
            yield label, False, after._replace(budget=budget, late=(*state.late, (name, request)))

    def _carry_out(self, jobs: tuple[Row, ...], name: int, request: Request) -> Iterator[tuple[tuple[Row, ...], Reply]]:
        """Yield every possible result of one transaction: the rows after it, and the reply."""
        if request.kind == "look":
            held = tuple((job, row.version) for job, row in enumerate(jobs) if row.holder == name)
            yield jobs, Reply(held=held)
            return
        said = []
        for job, version, to in request.wishes:
            if to is None:
                row, answer = self._database.heartbeat(jobs[job], name, version, started=True)
            else:
                row, answer = self._database.settle(jobs[job], name, version, to)
            jobs = put(jobs, job, row)
            said.append(answer)
        due = [job for job, row in enumerate(jobs) if _is_due(row)]
        if not (request.claim and due):
            yield jobs, Reply(tuple(said))
            return
        start, limit = request.claim
        for chosen in (chosen for size in range(1, limit + 1) for chosen in combinations(due, size)):
            after, claimed = jobs, []
            for job in chosen:
                row = self._database.claim(jobs[job], name, bool(start))
                after = put(after, job, row)
                claimed.append((job, row.version, row.retries, row.suspect))
            yield after, Reply(tuple(said), tuple(claimed))

    # ── Deaths ──

    def _crash(self, state: State, name: int, worker: Worker) -> Iterator[Step]:
        budget = spend(state.budget, "crash")
        if worker == Worker() or budget is None:
            return
        label = self._do("worker {} dies", name)
        dead = NAMED_DEAD + budget.crash if self.size.supervised else DEAD
        jobs = tuple(row._replace(holder=dead) if row.holder == name else row for row in state.jobs)
        late = tuple((dead if who == name else who, request) for who, request in state.late)
        after = state._replace(jobs=jobs, budget=budget, late=late).with_worker(name, Worker())
        if self.size.supervised:
            started = tuple((run.job, run.version) for run in worker.runs if run.phase == RUNNING)
            after = after._replace(orders=(*state.orders, (dead, started, False)))
        yield label, False, after
        if budget := spend(budget, "late"):
            sent = [request for request, reply in worker.rounds if reply is None]
            if not self.size.in_parts:
                sent += [request for _, request in self._conduct.requests(worker, _has_work(state))]
            for request in (request for request in sent if request.kind != "look"):
                label = self._do("worker {} dies after it sent: {}", name, request)
                yield label, False, after._replace(budget=budget, late=(*late, (dead, request)))

    def _supervise(self, state: State) -> Iterator[Step]:
        for at, (dead, started, marked) in enumerate(state.orders):
            rest = state.orders[:at] + state.orders[at + 1 :]
            jobs = state.jobs
            if not marked:
                label = self._do("the supervisor marks what {} had started: {}", _who(dead), started)
                for job, version in started:
                    jobs = put(jobs, job, self._database.heartbeat(jobs[job], dead, version, started=True)[0])
                yield label, True, state._replace(jobs=jobs, orders=(*rest, (dead, started, True)))
            else:
                label = self._do("the supervisor rescues what {} held", _who(dead))
                for job, row in enumerate(jobs):
                    if row.holder == dead:
                        jobs = put(jobs, job, self._database.rescue(row, named=True))
                yield label, True, state._replace(jobs=jobs, orders=rest)
            if budget := spend(state.budget, "lose"):
                label = self._do("the supervisor of {} dies too", _who(dead))
                yield label, False, state._replace(orders=rest, budget=budget)

    # ── Maintenance, operators ──

    def _maintain(self, state: State, job: int, row: Row) -> Iterator[Step]:
        if row.holder != NOBODY and not row.expired:
            label = self._do("the lease of run {} of job {} runs out", row.version, job)
            alive = _is_known(state, job, row.version)
            if budget := spend(state.budget, "stall") if alive else state.budget:
                after = state.with_job(job, row._replace(expired=True))
                yield label, not alive, after._replace(budget=budget)
        label = self._do("the cancel of job {} times out", job)
        if ended := self._database.cancel_timeout(row):
            yield label, True, state.with_job(job, ended)
        if self._sabotage is Sabotage.RESCUE_IN_TWO_STEPS:
            yield from self._rescue_in_two_steps(state, job, row)
        elif self._database.may_rescue(row):
            label = self._do("rescue of job {}", job)
            yield label, True, state.with_job(job, self._database.rescue(row))

    def _rescue_in_two_steps(self, state: State, job: int, row: Row) -> Iterator[Step]:
        if job not in state.picked and self._database.may_rescue(row):
            yield self._do("rescue finds job {}", job), True, state._replace(picked=(*state.picked, job))
        if job in state.picked:
            label = self._do("rescue writes job {}", job)
            jobs = state.jobs
            if row.status in sources("rescue"):
                jobs = put(jobs, job, self._database.rescue(row))
            yield label, True, state._replace(jobs=jobs, picked=tuple(one for one in state.picked if one != job))

    def _operate(self, state: State, job: int, row: Row) -> Iterator[Step]:
        for verb in ("cancel", "requeue", "delete", "expire"):
            if budget := spend(state.budget, verb):
                label = self._do("{} job {}", verb, job)
                if after := self._database.operate(row, verb):
                    yield label, False, state.with_job(job, after)._replace(budget=budget)


def _check_verdict(row: Row, version: int, to: To, said: Said) -> None:
    """Raise Broken unless the verdict that the worker hears is true. It must stay true, however late the worker
    hears."""
    ended = row.ends[version - 1]
    if said.answer in ("applied", "already") and ended != to.event:
        raise Broken("X1", f"run {version} was told {said.answer} for {to.event}, but ended so: {ended!r}")
    if said.answer == "lost" and row.status != GONE and ended in (OPEN, to.event):
        raise Broken("S3", f"run {version} was told that it was lost, but ended so: {ended!r}")


def _has_work(state: State) -> bool:
    return any(_is_due(row) for row in state.jobs)


def _is_due(row: Row) -> bool:
    """Return True if a worker may claim the job. No job of this model waits, so no cancelled job has to be claimed once
    more."""
    return row.status in sources("claim") and row.status != "cancel_requested"


def _is_known(state: State, job: int, version: int) -> bool:
    """Return True if a worker has this run, or its claim's reply is under way."""
    return any(
        any(run.job == job and run.version == version for run in worker.runs)
        or any(reply and any(one[:2] == (job, version) for one in reply.claimed) for _, reply in worker.rounds)
        for worker in state.workers
    )


def _who(name: int) -> str:
    return f"worker {name}" if 0 <= name < NAMED_DEAD else "a dead worker"
