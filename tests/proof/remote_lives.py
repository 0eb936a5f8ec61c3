"""Random lives in which the workers speak HTTP. They claim, die, freeze and come too late. Answers get lost, so workers
repeat their requests. The network delivers old requests a second time, at any moment.

The workers' requests go through the application, as a server would call it. Clients, operators and maintenance use the
same store directly, as in all random lives.
"""

import json
from typing import Any, cast

import httpx
from msgspec import Struct

from rowlock.access import tokens
from rowlock.client.definitions import Definitions
from rowlock.core.job import Job
from rowlock.core.lifecycle import (
    Completed,
    CutOff,
    Failed,
    GaveUp,
    Outcome,
    Released,
    Snoozed,
    StepRetry,
    TimedOut,
    Waits,
)
from rowlock.http.app import Api
from rowlock.jobs import Jobs
from rowlock.stores.base import Store
from tests.proof.history import Fault
from tests.proof.random_lives import LEASE, TOPICS, PlainLives
from tests.proof.simulation_world import NoSchedules
from tests.proof.witness import Witness
from tests.stores.harness import Harness

JSON = dict[str, Any]
SETTLE = ("complete", "fail", "snooze", "release", "give-up")


class Said(Struct, frozen=True):
    """A request, and its first answer."""

    verb: str
    body: JSON
    status: int
    answer: JSON


class Application:
    """The parts of a Jobs that the protocol needs: a store whose clock the test sets."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.definitions = Definitions(self._store, {})
        self.schedules = NoSchedules()

    async def _store(self) -> Store:
        return self._harness.store


class RemoteLives(PlainLives):
    """`wrong`: the wrong answers. The checker finds the other errors in the history."""

    # No id is used again: an old request of the same worker about version 1 would then be about the new job.
    verbs = tuple(verb for verb in PlainLives.verbs if verb not in ("transaction", "reuse")) + ("replay",) * 6

    def __init__(self, seed: int, harness: Harness | None = None) -> None:
        super().__init__(seed, harness)
        self.wrong: list[str] = []
        self.said: list[Said] = []
        self._lives = [1, 1, 1]  # a worker that dies and comes back has another name
        self._owner = self._token = ""

    async def play_on(self, witness: Witness, steps: int) -> None:
        made, self._token = await tokens.create(self.harness.store, "remote", ["worker"], by="test")
        self._owner = f"token:{made.id}"
        self._api = Api(cast(Jobs, Application(self.harness)))
        await self._send("/healthz", None)  # the first request starts the application
        # The random lives have their own maintenance. The server's would change jobs between two checks.
        await self._api.upkeep.stop()
        await super().play_on(witness, steps)

    # ── The network ──

    async def _send(self, path: str, body: JSON | None) -> httpx.Response:
        headers = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
        request = httpx.Request(
            "GET" if body is None else "POST", f"http://localhost{path}", headers=headers,
            content=None if body is None else json.dumps(body),
        )  # fmt: skip
        answer = await httpx.ASGITransport(self._api).handle_async_request(request)
        await answer.aread()
        return answer

    async def _ask(self, verb: str, body: JSON) -> Said:
        """Send a worker's request, and return the answer. Sometimes the answer gets lost, and the worker repeats it."""
        answer = await self._send(f"/api/worker/{verb}", body)
        said = Said(verb, body, answer.status_code, answer.json())
        if said.status not in (200, 409):
            self.wrong.append(f"{verb} {body}: {said.status} {said.answer}")
        self.said.append(said)
        if self.random.random() < 0.2:
            await self._again_as_before(said)
        return said

    async def _again_as_before(self, said: Said) -> None:
        """A worker reports the end of a run twice. The job ends once, and the second answer is the same, as long as the
        job is known."""
        job_id = said.body.get("id")
        before = await self._row(job_id)
        answer = await self._send(f"/api/worker/{said.verb}", said.body)
        if said.verb not in SETTLE:
            return
        told = Said(said.verb, said.body, answer.status_code, answer.json())
        if await self._row(job_id) != before:
            self.wrong.append(f"a repeated {said.verb} has changed {job_id}")
        if before is None:
            known = told.status == 409
        elif said.status == 200:
            known = told == said
        else:
            known = (told.status, told.answer.get("code")) == (409, "lost")
        if not known:
            self.wrong.append(f"{said} was answered by {told}")

    async def _replay(self) -> None:
        if self.said:
            await self._again_as_before(self.random.choice(self.said))

    async def _row(self, job_id: object) -> Job | None:
        return None if job_id is None else (await self.harness.store.read([str(job_id)], Job)).get(str(job_id))

    # ── Workers ──

    def _name(self, n: int) -> str:
        return f"remote-{n}-{self._lives[n]}"

    def _full_name(self, n: int) -> str:
        return f"{self._name(n)}@{self._owner}"

    def _running_of(self, n: int) -> list[tuple[Job, str]]:
        return [run for run in self.running if run[1] == self._full_name(n)]

    @staticmethod
    def _of(job: Job, worker: str) -> JSON:
        return {"worker": worker.partition("@")[0], "id": job.id, "version": job.version}

    async def _claim(self) -> None:
        n = self.random.randrange(3)
        body: JSON = {"worker": self._name(n), "topics": list(TOPICS), "limit": 3, "lease": LEASE}
        if self.random.random() < 0.7:
            body["runs"] = [{"id": job.id, "version": job.version} for job, _ in self._running_of(n)]
        answer = await self._send("/api/worker/claim", body)
        items = answer.json()["items"]
        self.said.append(Said("claim", body, answer.status_code, {}))
        if self.random.random() < 0.1:
            return  # the reply was lost, so the worker does not know of these jobs
        found = await self.harness.store.read([item["id"] for item in items], Job)
        self.running += [(found[item["id"]], self._full_name(n)) for item in items]

    async def _settle(self) -> None:
        for job, worker in self.random.sample(self.running, min(len(self.running), 3)):
            outcome = self._outcome(job)
            verb, more = self._told(outcome)
            self.running.remove((job, worker))
            said = await self._ask(verb, {**self._of(job, worker), **more})
            result = outcome.result if isinstance(outcome, Completed) else None
            error = None if isinstance(outcome, Completed) else type(outcome).__name__
            told = "lost" if said.status == 409 else None
            self._ran(job, worker, ended=self.now, result=result, error=error, told=told)

    def _told(self, outcome: Outcome) -> tuple[str, JSON]:
        match outcome:
            case Completed():
                return "complete", {"result": outcome.result}
            case Failed() | TimedOut():
                final = isinstance(outcome, Failed) and outcome.final
                return "fail", {"error": "boom", "final": final, "delay": self.random.choice([0.0, 9.0])}
            case Snoozed() | StepRetry() | Waits():  # these workers have neither steps nor waits
                return "snooze", {"seconds": 3.0}
            case Released() | CutOff():
                return "release", {}
            case GaveUp():
                return "give-up", {"reason": outcome.reason}

    async def _heartbeat(self) -> None:
        n = self.random.randrange(3)
        running = self._running_of(n)
        if not running:
            return
        runs = [{"id": job.id, "version": job.version} for job, _ in running]
        said = await self._ask("heartbeat", {"worker": self._name(n), "runs": runs, "lease": LEASE})
        for (job, worker), item in zip(running, said.answer["items"], strict=True):
            if item["hold"] == "lost":
                self.running.remove((job, worker))
                self._ran(job, worker, ended=self.now, error="LeaseLost", told="lost")

    async def _progress(self) -> None:
        for job, worker in self.running[:3]:
            await self._ask("progress", {**self._of(job, worker), "percent": self.random.random() * 100})
            await self._ask("log", {**self._of(job, worker), "lines": [{"text": "so far, so good"}]})

    async def _kill(self) -> None:
        n = self.random.randrange(3)
        self.history.faults.append(Fault(self.now, "kill", self._full_name(n)))
        for job, worker in self._running_of(n):
            self.running.remove((job, worker))
            self._ran(job, worker, ended=None)
        self._lives[n] += 1
