"""Flows of every shape, and jobs that start many other jobs. Their jobs fail, and are cancelled, requeued and released,
while workers are killed and the server is restarted. Every child runs after its parents and once, joins fire once, no
child is made twice, results are right, and no job stays blocked."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from rowlock.client.flows import Flow
from rowlock.errors import InvalidState, OutcomeUnknown, StoreError
from rowlock.jobs import Jobs
from tests.faults.flows_app import HOPELESS
from tests.faults.places import on_server, staged
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, Stage
from tests.faults.suites import Cell
from tests.faults.suites.kills import PROCESSES, are_enough, kill_busy
from tests.faults.suites.outages import Outage, suffer
from tests.proof.history import History, Violation
from tests.proof.history_app import new_ids
from tests.proof.witness import EDGES
from tests.servers import PostgresServer
from tests.waiting import until

APP = "tests.faults.flows_app:jobs"
WORKERS = 2
LARGEST = 50  # jobs in the largest flow
HOW = (*("good",) * 6, "flaky", "hopeless", "giving_up")
CONDITIONS = ("{}.status = 'completed'", "{}.status != 'completed'", "{}.result.n > 5")


async def run(cell: Cell) -> Result:
    if cell.store == "postgres":
        async with on_server(cell, app=APP) as (stage, server):
            return await endure(cell, stage, server)
    async with staged(cell, app=APP) as stage:
        return await endure(cell, stage, None)


async def endure(cell: Cell, stage: Stage, server: PostgresServer | None) -> Result:
    scale = cell.scale
    async with Jobs(stage.url) as jobs:
        work = Work(stage, jobs)
        survivor = stage.launch()  # one worker must live long enough to take jobs back
        stage.workers.remove(survivor)
        await stage.start_workers(WORKERS, processes=PROCESSES)
        async with work.going_on(scale.flows):
            await work.collect(scale.gathered)
            for n in range(scale.flow_kills):
                await until(lambda: are_enough(stage), what="enough workers", patience=PATIENCE)
                await kill_busy(stage)
                await stage.pause(0.2, 0.8)
                if server is not None and n % max(1, scale.flow_kills // max(1, scale.restarts)) == 1:
                    await suffer(stage, server, Outage("server kill"))
        async with work.releasing():
            await stage.drained(3 * PATIENCE)
        stage.workers.append(survivor)
        await stage.stop_all()
        result = await stage.judged(cell.result(flows=work.flows, released=work.released))
    result.violations += wrongly_gathered(stage.histories[-1])
    result.figures["children"] = sum(row["topic"] == "piece" for row in stage.histories[-1].archive.values())
    return result


class Work:
    """Producers of flows, which repeat each enqueue until it is answered, and an operator who interferes."""

    def __init__(self, stage: Stage, jobs: Jobs) -> None:
        self._stage = stage
        self._jobs = jobs
        self._made: list[str] = []
        self._ids: list[str] = []
        self.flows = self.released = 0

    @asynccontextmanager
    async def going_on(self, count: int, callers: int = 3) -> AsyncIterator[None]:
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            meddling = group.create_task(self._meddle(over))
            makers = [group.create_task(self._make(count // callers)) for _ in range(callers)]
            try:
                yield
                await asyncio.gather(*makers)
            finally:
                over.set()
            await meddling

    async def collect(self, most: int) -> None:
        """Enqueue jobs that start other jobs: one that starts many, and some that start a few, again and again."""
        few: list[dict[str, Any]] = [{"counts": [5, 1, 3]}, {"counts": [30, 30]}, {"counts": [20], "hopeless": True}]
        wanted: list[tuple[str, dict[str, Any]]] = [
            ("collecting", {"counts": [most]}),
            *(("collecting", one) for one in few),
            ("threaded_collecting", {"counts": [10, 2]}),
        ]
        for topic, payload in wanted:
            job_id = new_ids.one()
            while True:
                try:
                    with self._stage.record.operation("enqueue", [job_id], topic=topic, key=None) as told:
                        told(await self._jobs.enqueue(topic, payload, id=job_id, priority=200))
                    break
                except StoreError:
                    await asyncio.sleep(0.1)

    async def _make(self, count: int) -> None:
        for _ in range(count):
            flow, ids = self._draw()
            while True:
                try:
                    with self._stage.record.operation("enqueue", ids, batch=True) as told:
                        made = await flow.enqueue()
                        told(list(made.jobs.values()))
                    break
                except StoreError:  # enqueue the same flow again: its jobs keep their ids
                    await asyncio.sleep(0.1)
            self.flows += 1
            self._made += ids
            self._ids.append(flow.id)
            await self._stage.pause(0.0, 0.2)

    def _draw(self) -> tuple[Flow, list[str]]:
        chance = self._stage.chance
        flow, names, ids = self._jobs.flow("proof"), list[str](), list[str]()
        for n in range(chance.randint(1, LARGEST)):
            after = chance.sample(names, min(len(names), chance.choice([0, 1, 1, 1, 2, 3, 5])))
            payload: dict[str, Any] = {"how": chance.choice(HOW), "seconds": chance.choice([0.0, 0.0, 0.02])}
            when = chance.choice(CONDITIONS).format(after[0]) if after and chance.random() < 0.15 else None
            if after and when is None and chance.random() < 0.3:
                payload["x"] = {"$result": after[0]}
            ids.append(new_ids.one())
            policy: Any = chance.choice(["cancel", "cancel", "run", "run", "hold"])
            draft: Any = {"topic": "part", "payload": payload, "id": ids[-1]}
            flow.add(draft, after=after, if_failed=policy, when=when, name=f"n{n}")
            names.append(f"n{n}")
        return flow, ids

    async def _meddle(self, over: asyncio.Event) -> None:
        """Cancel, requeue, delete and release as an operator would, also where that is not allowed."""
        chance = self._stage.chance
        while not over.is_set():
            await self._stage.pause(0.02, 0.15)
            if not self._made:
                continue
            one, flow = chance.choice(self._made[-300:]), chance.choice(self._ids[-10:])
            verb = chance.choice(["cancel", "requeue", "requeue", "delete", "release", "release", "flow", "again"])
            with suppress(InvalidState, LookupError, StoreError), self._stage.record.operation(verb, [one]):
                match verb:
                    case "release":
                        await self._release()
                    case "flow":
                        await self._jobs.flows.cancel(flow, by="ann")
                    case "again":
                        await self._jobs.flows.requeue(flow, by="ann")
                    case _:
                        await getattr(self._jobs, verb)(one, by="ann")

    async def _release(self, most: int = 3) -> None:
        held = "SELECT DISTINCT e.child FROM _jobs_edges e JOIN _jobs j ON j.id = e.child"
        where = "WHERE e.verdict = 'hold' AND j.status = 'blocked'"
        try:
            found = await self._stage.tables.fetch(f"{held} {where} LIMIT {most}")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return  # the server is away
        for (job_id,) in found:
            with suppress(InvalidState, LookupError):
                await self._jobs.flows.release(str(job_id), by="ann")
                self.released += 1

    @asynccontextmanager
    async def releasing(self) -> AsyncIterator[None]:
        """While the block runs, an operator releases all jobs that are held."""

        async def release() -> None:
            while True:
                with suppress(StoreError, OutcomeUnknown):
                    await self._release(50)
                await asyncio.sleep(0.2)

        task = asyncio.create_task(release())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def wrongly_gathered(history: History) -> Iterator[Violation]:
    """Every piece belongs to one call of one job, no piece is missing, and the results are right."""
    pieces: defaultdict[str, Counter[int]] = defaultdict(Counter)
    known: set[str] = set()
    for change in history.changes:
        if change.table == EDGES and change.op == "insert" and change.after and change.after["call"] is not None:
            pieces[change.after["child"]][change.after["call"]] += 1
            known.add(change.after["parent"])
    rows = {**history.jobs, **history.archive}
    for job_id, row in rows.items():
        if row["topic"] == "piece" and job_id not in known:
            yield Violation("GATHER", job_id, "was started, and nobody waits for it")
        if row["topic"] not in ("collecting", "threaded_collecting"):
            continue
        counts, hopeless = row["payload"]["counts"], row["payload"].get("hopeless", False)
        if sorted(pieces[job_id].values()) != sorted(counts):
            yield Violation("GATHER", job_id, f"has started {sorted(pieces[job_id].values())}, not {sorted(counts)}")
        if job_id not in history.archive:
            yield Violation("GATHER", job_id, f"is {row['status']}: {row.get('last_error')}")
            continue
        wanted = [[None if hopeless and n % HOPELESS == 0 else n for n in range(count)] for count in counts]
        if row["result"]["got"] != wanted:
            yield Violation("GATHER", job_id, f"has got {str(row['result']['got'])[:200]}")
