"""The small model of the protocol: what a worker does with its jobs, as in claim_settle.py, worker.py and heartbeat.py.
These are pure functions of the worker alone, so each result is computed once."""

from functools import cache

from tests.proof.model import RELEASED, Database, Sabotage, Said
from tests.proof.model_state import AHEAD, DONE, NEW, RUNNING, SENT, Reply, Request, Run, Size, Worker


class Conduct:
    def __init__(self, size: Size, database: Database, sabotage: Sabotage | None) -> None:
        self._size = size
        self._database = database
        self._looks_beside = sabotage is Sabotage.LOOK_BACK_AT_ANY_TIME
        self.conclude = cache(self._conclude)
        self.hear = cache(self._hear)
        self.requests = cache(self._requests)
        self.answered = cache(self._answered)
        self.unknown = cache(self._unknown)

    # ── One run ──

    def _conclude(self, worker: Worker, run: Run, outcome: str) -> Worker:
        to = self._database.decide(run.status, run.retries, outcome)
        return worker.swap(run, run._replace(phase=DONE, outcome=outcome, to=to))

    def _hear(self, worker: Worker, run: Run, said: Said) -> Worker:
        """Return the worker after the answer to a heartbeat."""
        if run.phase in (DONE, SENT) or said.answer == "kept":
            return worker
        if said.answer == "lost":
            return worker.swap(run)
        if run.status == "cancel_requested":
            return worker
        told = run._replace(status="cancel_requested")
        worker = worker.swap(run, told)
        return worker if run.began else self._conclude(worker, told, "is given back")

    # ── Requests ──

    def _requests(self, worker: Worker, work: bool) -> list[tuple[Worker, Request]]:
        """Return the requests that the worker may send now, each with the worker's state after it was sent. `work`:
        there is a job to claim. A claim that finds no job would change nothing."""
        if len(worker.rounds) >= self._size.rounds:
            return []
        if worker.claim_lost and (not worker.rounds or self._looks_beside):
            return [(worker, Request("look"))]
        done = [run for run in worker.runs if run.phase == DONE]
        wishes = tuple((run.job, run.version, run.to) for run in done)
        runs = tuple(run._replace(phase=SENT) if run.phase == DONE else run for run in worker.runs)
        claims = self._claims(worker) if work else []
        asking = worker._replace(runs=runs)
        return [(asking, Request("round", wishes, claim)) for claim in ([()] if done else []) + claims]

    def _claims(self, worker: Worker) -> list[tuple[int, ...]]:
        """Return the claims that the worker may send, as (start, limit). If all jobs of a claim start at once, the
        claim also writes their start marks."""
        if worker.claim_lost:
            return []
        asked = sum(request.claim[1] for request, _ in worker.rounds if request.claim)
        busy = sum(run.phase in (NEW, AHEAD, RUNNING) for run in worker.runs)
        room = self._size.hold - len(worker.runs) - asked
        marked: list[tuple[int, ...]] = [(1, 1)] if room > 0 and busy + asked == 0 else []
        return marked + [(0, limit) for limit in range(1, min(room, self._size.jobs) + 1)]

    # ── Replies ──

    def _answered(self, worker: Worker, request: Request, reply: Reply) -> Worker:
        if request.kind == "look":
            known = {run[:2] for run in worker.runs}
            back = tuple((*held, RELEASED) for held in reply.held if held not in known)
            return worker.sending(Request("give back", back)) if back else worker._replace(claim_lost=False)
        if request.kind == "give back":
            return worker._replace(claim_lost=False)
        for (job, version, to), said in zip(request.wishes, reply.said, strict=True):
            run = next((run for run in worker.runs if run[:2] == (job, version)), None)
            if run is not None:
                worker = self._marked(worker, run, said) if to is None else self._judged(worker, run, said)
        if request.kind == "mark":
            admitted = (run._replace(phase=AHEAD) if run.phase == NEW else run for run in worker.runs)
            return worker._replace(runs=tuple(admitted))
        return self._take(worker, bool(request.claim and request.claim[0]), reply)

    def _judged(self, worker: Worker, run: Run, said: Said) -> Worker:
        if said.answer == "changed":
            told = run._replace(status=said.status)
            return self._conclude(worker.swap(run, told), told, run.outcome)
        return worker.swap(run)

    def _marked(self, worker: Worker, run: Run, said: Said) -> Worker:
        return worker.swap(run) if said.answer == "lost" else worker

    def _take(self, worker: Worker, start: bool, reply: Reply) -> Worker:
        marks = tuple(
            (job, version, None)
            for job, version, retries, suspect in reply.claimed
            if not start and self._database.needs_mark(retries, suspect)
        )
        phase = NEW if marks else AHEAD
        taken = (Run(job, version, phase, retries) for job, version, retries, _ in reply.claimed)
        worker = worker._replace(runs=tuple(sorted((*worker.runs, *taken), key=lambda run: run[:2])))
        return worker.sending(Request("mark", marks)) if marks else worker

    def _unknown(self, worker: Worker, request: Request) -> Worker:
        """Return the worker after a request whose outcome it does not know."""
        named = {wish[:2] for wish in request.wishes}
        if request.kind == "round":
            runs = tuple(run._replace(phase=DONE) if run[:2] in named else run for run in worker.runs)
            return worker._replace(runs=runs, claim_lost=worker.claim_lost or bool(request.claim))
        if request.kind == "mark":
            for run in worker.runs:
                if run.phase == NEW and run[:2] in named:
                    worker = self._conclude(worker, run, "is given back")
                elif run.phase == NEW:
                    worker = worker.swap(run, run._replace(phase=AHEAD))
        return worker
