"""Strange JSON and strange text go through the client and through handlers. An accepted value comes back equal. A
refusal names the field, and writes nothing. Every run is settled, whatever its handler returns, raises or reports. All
calls are repeated on a database in memory: both databases must answer the same."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from click.testing import CliRunner

from rowlock.cli import cli
from rowlock.core.job import Job, Log
from rowlock.errors import InvalidInput
from rowlock.jobs import Jobs
from rowlock.stores.base import MAX_LOG_TEXT, MAX_PROGRESS_TEXT
from rowlock.stores.queries import Filter
from tests.faults import fuzz_app, strange
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, Stage
from tests.faults.strange import KEPT, REFUSED, exact, shown
from tests.faults.suites import Cell
from tests.proof.history import Violation
from tests.proof.history_app import new_ids
from tests.waiting import until

LIMITS = {"key": 512, "scope": 512, "scope_id": 512, "trace": 512}
SHORT = 2000  # bytes: a shorter error text is stored in full
FAR = timedelta(days=300)  # the suite does not wait for a job that is put off for longer


async def run(cell: Cell) -> Result:
    async with (
        staged(cell, app="tests.faults.fuzz_app:jobs") as stage,
        Jobs(stage.url) as jobs,
        fuzz_app.made("sqlite:///:memory:", ("async", "thread")) as twin,
    ):
        fuzz = Fuzz(stage, jobs, twin)
        for _ in range(cell.scale.strange):
            await fuzz.enqueue()
        await fuzz.check_count()
        await fuzz.command_line()
        await fuzz.handlers(cell.scale.strange // 2)
        result = cell.result(**fuzz.figures)
        result.violations += fuzz.violations
        return result


class Fuzz:
    def __init__(self, stage: Stage, jobs: Jobs, twin: Jobs) -> None:
        self._stage = stage
        self._chance = stage.chance
        self._jobs = jobs
        self._twin = twin
        self._there: set[str] = set()
        self.violations: list[Violation] = []
        self.figures: dict[str, float] = {"values": 0, "kept": 0, "refused": 0, "texts of commands": 0, "runs": 0}

    def _wrong(self, text: str, job_id: str | None = None) -> None:
        self.violations.append(Violation("FUZZ", job_id, strange.harmless(text)))

    # ── Clients ──

    async def enqueue(self) -> None:
        """Enqueue a job with some strange values, sometimes behind a good job in the same batch. Judge the answer."""
        chance, job_id = self._chance, new_ids.one()
        topic, payload, options = self._draft(chance)
        bad, unsure = verdicts(topic, payload, options)
        batch = chance.random() < 0.1
        answers = [await self._one(jobs, job_id, topic, payload, options, batch) for jobs in (self._jobs, self._twin)]
        self.figures["values"] += 1
        what = f"{shown(topic)} {shown(payload)} {shown(options)}"
        if str(answers[0]) != str(answers[1]):
            self._wrong(f"{what}: {answers[0]} here and {answers[1]} in memory", job_id)
        field = answers[0]
        if field is None:
            self.figures["kept"] += 1
            if bad:
                self._wrong(f"{what} was accepted, although {bad} can't be kept", job_id)
            await self._compare(job_id, topic, payload, options, what)
            if chance.random() < 0.3:
                await self._update(job_id)
        elif field:
            self.figures["refused"] += 1
            if root(field) not in bad | unsure:
                self._wrong(f"{what} was refused for its {field}", job_id)

    @staticmethod
    def _draft(chance: Random) -> tuple[Any, Any, dict[str, Any]]:
        topic: Any = "fuzz" if chance.random() < 0.9 else strange.value(chance, 0)
        payload: Any = {"a": strange.value(chance)} if chance.random() < 0.7 else {"a": strange.tame(chance)}
        if chance.random() < 0.1:
            payload = strange.value(chance)
        options: dict[str, Any] = {}
        for name in LIMITS:
            if chance.random() < 0.2:
                options[name] = strange.text(chance) if chance.random() < 0.9 else strange.value(chance)
        if chance.random() < 0.3:
            tags = [strange.text(chance) for _ in range(chance.choice([1, 2, 3, 33]))]
            options["tags"] = tags if chance.random() < 0.9 else strange.value(chance, 1)
        return topic, payload, options

    async def _one(
        self, jobs: Jobs, job_id: str, topic: Any, payload: Any, options: dict[str, Any], batch: bool
    ) -> str | None:
        """Enqueue a job. Return None if it is stored now, the field that was refused, the name of another error, or ""
        if the answer is another job."""
        try:
            if batch:
                good = {"topic": "fuzz", "id": new_ids.one()}
                bad = {"topic": topic, "payload": payload, "id": job_id, **options}
                made = (await jobs.enqueue_many([good, bad]))[1]
                if jobs is self._jobs:
                    self._there.add(good["id"])
            else:
                made = await jobs.enqueue(topic, payload, id=job_id, **options)
        except InvalidInput as error:
            return error.field.removeprefix("jobs[1].")
        except Exception as error:
            self._wrong(f"{shown(topic)} {shown(payload)} {shown(options)} led to {error!r:.300}", job_id)
            return f"{type(error).__name__}"
        if made.id != job_id:
            return ""
        if jobs is self._jobs:
            self._there.add(job_id)
        return None

    async def _compare(self, job_id: str, topic: Any, payload: Any, options: dict[str, Any], what: str) -> None:
        ours, other = await self._jobs.get(job_id), await self._twin.get(job_id)
        asked = {"topic": topic, "payload": payload or {}, **options}
        if "tags" in asked:
            asked["tags"] = tuple(asked["tags"] or ())
        for name, value in asked.items():
            for job in (ours, other):
                if exact(getattr(job, name)) != exact(value):
                    self._wrong(f"{what}: {name} came back as {shown(getattr(job, name))}", job_id)
        if (key := options.get("key")) is not None:
            page = await self._jobs.list(Filter(keys=[key]), limit=100)
            if job_id not in {job.id for job in page.items}:
                self._wrong(f"{what}: is not found by its key", job_id)

    async def _update(self, job_id: str) -> None:
        """Update the job with another payload, other tags, and a reason. Judge the answer."""
        chance = self._chance
        given: dict[str, Any] = {
            "payload": {"b": strange.value(chance)},
            "tags": [strange.text(chance)],
            "reason": strange.text(chance),
        }
        bad, unsure = verdicts("fuzz", given["payload"], {"tags": given["tags"]})
        if strange.text_verdict(given["reason"], 2000) is REFUSED:
            bad.add("reason")
        before = await self._jobs.get(job_id)
        try:
            after = await self._jobs.update(job_id, **given)
        except InvalidInput as error:
            if root(error.field) not in bad | unsure:
                self._wrong(f"an update by {shown(given)} was refused for its {error.field}", job_id)
            if await self._jobs.get(job_id) != before:
                self._wrong(f"an update by {shown(given)} was refused, and changed something", job_id)
            return
        if bad:
            self._wrong(f"an update by {shown(given)} was accepted", job_id)
        if exact([after.payload, after.tags]) != exact([given["payload"], given["tags"]]):
            self._wrong(f"an update by {shown(given)} made {shown(after)} of it", job_id)
        if (said := (await self._jobs.events(job_id))[-1].data.get("reason")) != given["reason"]:
            self._wrong(f"the reason {shown(given['reason'])} came back as {shown(said)}", job_id)

    async def check_count(self) -> None:
        """Exactly the accepted jobs are in the table: a refused enqueue has left none."""
        found = {str(one) for (one,) in await self._stage.tables.fetch("SELECT id FROM _jobs")}
        for one in found ^ self._there:
            self._wrong("is there, and was refused" if one in found else "was accepted, and is not there", one)

    # ── JSON as text ──

    async def command_line(self) -> None:
        texts: dict[str, Any] = {
            '{"a": 1, "a": 2}': REFUSED,
            '{"a": 1e400}': REFUSED,
            '{"a": NaN}': REFUSED,
            '{"a": -Infinity}': REFUSED,
            '{"a": 9223372036854775808}': REFUSED,
            '{"a": 9223372036854775807}': {"a": 2**63 - 1},
            '{"a": ' + "9" * 5000 + "}": REFUSED,
            '{"a": "\\u0000"}': REFUSED,
            '{"a": "\\ud83d\\ude00"}': {"a": "😀"},
            '{"a": "\\ud83d"}': REFUSED,
            '{"\\u0000": 1}': REFUSED,
            '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}": REFUSED,
            "[1]": REFUSED,
            "null": {},
            "{": REFUSED,
            "": REFUSED,
            "\ufeff{}": REFUSED,
            '{"a": -0.0}': {"a": -0.0},
            '{"a": 1e2}': {"a": 100.0},
            '{"a": "\u202e\u2066"}': {"a": "\u202e\u2066"},
        }
        for text, wanted in texts.items():
            self.figures["texts of commands"] += 1
            words = ["enqueue", "fuzz", text, "--url", self._stage.url]
            told = await asyncio.to_thread(CliRunner().invoke, cli, words)
            if told.exception is not None and not isinstance(told.exception, SystemExit):
                self._wrong(f"rowlock enqueue fuzz {shown(text)} broke: {told.exception!r:.300}")
            elif (told.exit_code == 0) == (wanted is REFUSED):
                self._wrong(f"rowlock enqueue fuzz {shown(text)} ended with {told.exit_code}: {told.output:.300}")
            elif told.exit_code == 0:
                kept = (await self._jobs.get(told.stdout.split()[-1])).payload
                if exact(kept) != exact(wanted):
                    self._wrong(f"rowlock enqueue fuzz {shown(text)} is kept as {shown(kept)}")

    # ── Handlers ──

    async def handlers(self, count: int) -> None:
        """Run handlers of every kind in a worker process, and the same ones in this process, on the database in memory.
        Judge how the jobs ended."""
        seed = self._stage.seed
        planned = []
        for n in range(count):
            what = self._chance.choice(["returning", "raising", "saying"])
            kind = self._chance.choice(["async", "async", "thread", "process"])
            planned.append((n, what, kind))
        drafts = [
            {"topic": f"{what}:{kind}", "payload": {"seed": seed, "n": n}, "max_retries": 0}
            for n, what, kind in planned
        ]
        ids = await self._jobs.enqueue_many(drafts)
        await self._stage.start_workers(1, FUZZ_WORKER="1")
        others = []
        for n, what, kind in planned:
            inside = "thread" if kind == "process" else kind
            others.append(await self._twin.enqueue(f"{what}:{inside}", {"seed": seed, "n": n}))
        await self._twin.start(concurrency=4)
        for (n, what, kind), mine, other in zip(planned, ids, others, strict=True):
            self.figures["runs"] += 1
            ours, theirs = await ended(self._jobs, mine.id), await ended(self._twin, other.id)
            logs = (await self._jobs.logs(mine.id), await self._twin.logs(other.id))
            if outcome(ours, logs[0]) != outcome(theirs, logs[1]):
                here, there = shown(outcome(ours, logs[0])), shown(outcome(theirs, logs[1]))
                self._wrong(f"{what} {n} by {kind}: {here} here, {there} in memory", ours.id)
            for problem in wrong_end(what, seed, n, ours, logs[0]):
                self._wrong(f"{what} {n} by {kind}: {problem}", ours.id)
        await self._twin.stop(grace=5.0)
        await self._stage.stop_all()


async def ended(jobs: Jobs, job_id: str) -> Job:
    async def found() -> Job | None:
        job = await jobs.get(job_id)
        return job if not job.is_live or job.run_at > datetime.now(UTC) + FAR else None

    job: Job = await until(found, what=f"the end of {job_id}", patience=PATIENCE)
    return job


def verdicts(topic: Any, payload: Any, options: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return the fields that must be refused, and those that may be refused."""
    found = {"topic": strange.topic_verdict(topic), "payload": strange.json_verdict(payload)}
    if payload is not None and not isinstance(payload, dict):
        found["payload"] = REFUSED
    for name, value in options.items():
        if value is None:  # counts as not given
            continue
        found[name] = strange.tags_verdict(value) if name == "tags" else strange.text_verdict(value, LIMITS[name])
    return {n for n, said in found.items() if said is REFUSED}, {
        n for n, said in found.items() if said not in (KEPT, REFUSED)
    }


def root(field: str) -> str:
    """Return the field without its path: payload.a[3] → payload"""
    return field.partition(".")[0].partition("[")[0]


def outcome(job: Job, log: Log) -> Any:
    """Return what must be equal on both databases. Errors are left out, because their stacks differ."""
    lines = [(line.level, line.text) for line in log.lines]
    return exact([job.status.value, job.result, job.stage, job.message, job.progress, lines, log.dropped])


def wrong_end(what: str, seed: int, n: int, job: Job, log: Log) -> Iterator[str]:
    for name in ("last_error", "stage", "message", "cancel_reason"):
        text = getattr(job, name)
        if text is not None and text != strange.harmless(text):
            yield f"its {name} holds what can't be stored: {shown(text)}"
    if what == "returning":
        value = fuzz_app.returned(seed, n)
        verdict = strange.json_verdict(value)
        if job.status == "completed":
            if verdict is REFUSED or exact(job.result) != exact(value):
                yield f"returned {shown(value)}, kept is {shown(job.result)}"
        elif verdict is KEPT or job.status != "failed" or "result" not in (job.last_error or ""):
            yield f"returned {shown(value)} and is {job.status}: {shown(job.last_error)}"
    elif what == "raising":
        text, error = fuzz_app.raised(seed, n)
        ends = {"cancelled"} if type(error).__name__ == "Cancelled" else {"failed"}
        if type(error).__name__ == "Snooze":
            ends.add("pending")
        if job.status not in ends:
            yield f"raised {shown(error) if text else type(error)} and is {job.status}"
        short = len(text.encode("utf-8", "replace")) < SHORT and isinstance(error, ValueError) and len(error.args) == 1
        # A traceback is stored without the line breaks at its end. These may belong to the message.
        if short and strange.harmless(text).rstrip("\n") not in (job.last_error or ""):
            yield f"raised {shown(text)}, which is not in {shown(job.last_error)}"
    else:
        stage, message, line, _ = fuzz_app.said(seed, n)
        if job.status != "completed":
            yield f"said {shown(stage)} and is {job.status}: {shown(job.last_error)}"
        for name, text in (("stage", stage), ("message", message)):
            if len(text.encode("utf-8", "replace")) <= MAX_PROGRESS_TEXT // 2 and getattr(
                job, name
            ) != strange.harmless(text):
                yield f"{name} {shown(text)} is kept as {shown(getattr(job, name))}"
        if len(line.encode("utf-8", "replace")) <= MAX_LOG_TEXT // 2 and [one.text for one in log.lines] != [
            strange.harmless(line)
        ]:
            yield f"the line {shown(line)} is kept as {shown(log.lines)}"
