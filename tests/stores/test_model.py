"""Random lives: Hypothesis drives each store and the reference side by side. Everything is compared after each step.

ROWLOCK_TEST_EXAMPLES=5000 pytest tests/stores/test_model.py   runs longer than the default.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from msgspec import UNSET, structs

from rowlock.core.job import Job, NewJob, Status, new_job
from rowlock.core.lifecycle import (
    Completed,
    Failed,
    GaveUp,
    Outcome,
    Released,
    Settlement,
    Snoozed,
    StepRetry,
    TimedOut,
    Waits,
    decide,
)
from rowlock.core.moves import (
    AcknowledgeCallback,
    Cancel,
    CancelTimeout,
    Delete,
    Expire,
    ReportCallback,
    Requeue,
    Rescue,
    Resume,
    Signal,
    SignalSent,
    Update,
    Wake,
)
from rowlock.core.retry import Delays
from rowlock.core.steps import StepMark, StepState
from rowlock.core.waits import Wait, WaitTerms, callback_name
from rowlock.http import metrics
from rowlock.stores.base import DAY, Beat, Claim, Claimed, Edit, Hold, NewLine, Progress, Retention, Settled, WorkerInfo
from tests.databases import Databases
from tests.stores.exposition import counters_of
from tests.stores.harness import NOBODY, Harness, SqliteHarness, harness_at, lanes, opened
from tests.stores.paired import Paired

T = TypeVar("T")

EXAMPLES = {"memory": 50, "sqlite": 10, "postgres": 15}
MANY_EXAMPLES = {"memory": 400, "sqlite": 80, "postgres": 160}
STEPS = 40
MAY_BE_READY = (Status.PENDING, Status.WAITING, Status.CANCEL_REQUESTED)

topics = st.sampled_from(["a", "b"])
workers = st.sampled_from(["w1", "w2"])
people = st.sampled_from(["ann", "bob"])
reasons = st.sampled_from([None, "because"])
seconds = st.sampled_from([0.0, 0.5, 7.0, 60.0])
# The worker that a call names for a run: its own, none (any), or another. The other worker may have a run of the same
# version too, because deleted jobs come back under their ids.
whose = st.sampled_from([None, "own", "own", "w1", "w2"])
WAITS = ["sleep", "signal:go", "signal:stop"]
signals = st.sampled_from(["go", "stop"])
numbers = st.integers(1, 2)
# Any job or run so far: as an index, so that examples shrink well.
which = st.integers(0, 15)
some = st.lists(which, min_size=1, max_size=3)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Completed, st.sampled_from([None, 0, {"a": [1.5]}])),
    st.builds(Failed, st.sampled_from(["boom", "boom\0"]), final=st.booleans()),
    st.builds(TimedOut, seconds),
    st.builds(StepRetry, seconds, st.just("no answer"), st.sampled_from(["a", "b"])),
    st.builds(Snoozed, seconds),
    st.builds(Released),
    st.builds(GaveUp, reasons),
    st.builds(Waits, st.sampled_from(WAITS), st.sampled_from([None, 0.0, 7.0]), st.integers(0, 2), st.booleans()),
)
claims = st.builds(
    Claim,
    workers,
    st.sampled_from([lanes("a"), lanes("a", "b", ("a", 1)), lanes(("b", 1), "b")]),
    limit=st.integers(1, 4),
    lease=st.sampled_from([5.0, 30.0]),
    start=st.booleans(),
)
# Sometimes many lines at once, so that a log overflows within one life.
said = st.builds(
    lambda line, count: (line,) * count,
    st.builds(
        NewLine, seconds, st.sampled_from(["info", "warning"]), st.sampled_from(["", "so", "so\0 \ud800 \U0001f600"])
    ),
    st.sampled_from([0, 0, 1, 2, 70, 201]),
)
marks: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(
        dict,
        name=st.sampled_from(["a", "b"]),
        n=st.integers(1, 2),
        position=st.integers(1, 3),
        function=st.sampled_from(["f", "g"]),
        state=st.sampled_from([state for state in StepState if state is not StepState.SKIPPED]),
        result=st.sampled_from([None, "1.5", '{"a":[null,"\xe4"]}']),
        error=st.sampled_from([None, "boom\0"]),
        cancelable=st.booleans(),
        percent=st.none() | st.floats(-10, 110),
    ),
    min_size=1,
    max_size=4,
)
edits = st.builds(
    Edit,
    priority=st.sampled_from([UNSET, 1, 9]),
    delay=st.sampled_from([UNSET, 0.0, 60.0]),
    payload=st.sampled_from([UNSET, '{"x":1}']),
    tags=st.sampled_from([UNSET, (), ("t",)]),
) | st.just(Edit())
infos = st.builds(
    WorkerInfo,
    name=workers,
    host=st.sampled_from(["h1", "h2"]),
    pid=st.integers(1, 3),
    topics=st.sampled_from([(), ("a",), ("b", "a")]),
    concurrency=st.integers(1, 3),
    running=st.integers(0, 3),
    lease=st.sampled_from([5.0, 30.0]),
    stopping=st.booleans(),
    rowlock=st.just("1.0"),
)


class Model(RuleBasedStateMachine):
    harness: Harness
    run: Callable[[Awaitable[Any]], Any]

    @initialize()
    def begin(self) -> None:
        self.now(self.harness.reset())
        self.paired = Paired(self.harness)
        self.reference = self.paired.reference
        self.counters: dict[str, float] = {}
        self.known: list[NewJob] = []  # everything that was ever inserted
        self.runs: list[Job] = []  # everything that was ever claimed, as it was then

    def now(self, call: Awaitable[T]) -> T:
        result: T = self.run(call)
        return result

    def both(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """Call the verb on the store and the reference; their answers and everything that they keep must agree."""
        before = dict(self.reference.rows)
        answer = self.now(self.paired.do(verb, *arguments, **options))
        claimed = answer.claimed if isinstance(answer, Settled) else answer
        if isinstance(claimed, Claimed):
            self.runs += claimed.jobs
        self.compare(before)
        return answer

    def compare(self, before: dict[str, Any]) -> None:
        changed = {job_id for job_id, row in self.reference.rows.items() if row != before.get(job_id)}
        self.now(self.paired.compare(changed))
        self.no_counter_falls(self.now(metrics.render(self.harness.store, self.reference.stats())))

    def no_counter_falls(self, exposition: bytes) -> None:
        """Check that no counter falls: Prometheus takes a falling counter for a restart, and alerts."""
        counters = counters_of(exposition)
        for name, before in self.counters.items():
            assert counters.get(name, 0.0) >= before, name  # a counter that vanishes begins again at 0
        self.counters = counters

    def ids(self, chosen: list[int]) -> list[str]:
        """Return ids of inserted jobs, and now and then an id that no job has."""
        found = [self.known[n % len(self.known)].id if n and self.known else NOBODY for n in chosen]
        return list(dict.fromkeys(found))

    def chosen(self, indexes: list[int]) -> list[Job]:
        """Return runs, the latest first, one per job at most: stores differ on a stale run beside the current one."""
        runs = [self.runs[-1 - n % len(self.runs)] for n in indexes]
        return list({run.id: run for run in runs}.values())

    def worker_of(self, run: Job, whose: str | None) -> str | None:
        return run.locked_by if whose == "own" else whose

    # ── Clients ──

    @rule(
        digit=st.integers(0, 15),
        topic=topics,
        key=st.sampled_from([None, None, "k1", "k2"]),
        scope=st.sampled_from([None, None, "a"]),
        scope_id=st.sampled_from([None, None, "a"]),
        delay=seconds,
        ago=st.sampled_from([None, None, None, 30.0, 9e7]),
        expires=st.sampled_from([None, None, 5.0, 70.0]),
        priority=st.integers(1, 3),
        template_version=st.sampled_from([0, 0, 1]),
        max_retries=st.integers(0, 2),
        count=st.integers(1, 3),
        repeat=st.booleans(),
    )
    def insert(
        self, digit: int, expires: float | None, count: int, repeat: bool, topic: str, ago: float | None, **fields: Any
    ) -> None:
        expires_at = None if expires is None else self.reference.now + timedelta(seconds=expires)
        if ago is not None:
            fields |= {"delay": 0.0, "run_at": self.reference.now - timedelta(seconds=ago)}
        new = [
            # The first digit is random, so that the order of ids is not the order of inserts.
            new_job(
                f"{digit:x}193fb1e-0000-7000-8000-{len(self.known) + i + 1:012x}",
                topic,
                {"n": i},
                expires_at=expires_at,
                **fields,
            )
            for i in range(count)
        ]
        self.known += new
        self.both("insert", new, repeat=repeat)

    @precondition(lambda self: self.known)
    @rule(chosen=some)
    def insert_again(self, chosen: list[int]) -> None:
        self.both("insert", [self.known[n % len(self.known)] for n in chosen], repeat=True)

    # ── Workers ──

    @rule(claim=claims)
    def claim(self, claim: Claim) -> None:
        self.both("claim", claim)

    @precondition(lambda self: self.runs)
    @rule(chosen=some, started=st.booleans(), whose=whose, lease=st.sampled_from([1.0, 30.0, 100.0]))
    def heartbeat(self, chosen: list[int], started: bool, whose: str | None, lease: float) -> None:
        runs = self.chosen(chosen)
        self.both("heartbeat", [Beat(run.id, run.version, started, self.worker_of(run, whose)) for run in runs], lease)

    @precondition(lambda self: self.runs)
    @rule(
        chosen=some,
        whose=whose,
        percent=st.none() | st.floats(-10, 110),
        stage=reasons,
        message=reasons,
        lines=said,
        more=st.lists(st.builds(dict, percent=st.sampled_from([None, 7.0]), stage=reasons, lines=said), max_size=2),
    )
    def progress(self, chosen: list[int], whose: str | None, more: list[dict[str, Any]], **first: Any) -> None:
        runs = self.chosen(chosen)
        reports = [Progress(run.id, run.version, worker=self.worker_of(run, whose), **first) for run in runs]
        reports += [structs.replace(reports[0], **{"percent": None, "message": None} | fields) for fields in more]
        self.both("progress", reports)

    @precondition(lambda self: self.runs)
    @rule(chosen=some, whose=whose, said=marks, age=seconds, retries=st.integers(0, 1))
    def checkpoint(self, chosen: list[int], whose: str | None, said: list[dict[str, Any]], **same: Any) -> None:
        """Each run sends all the marks, so a batch has several jobs, and several marks of one step. `same`: fields that
        all marks share, because one try began at one time."""
        self.both(
            "checkpoint",
            [
                StepMark(id=run.id, version=run.version, worker=self.worker_of(run, whose), **same, **fields)
                for fields in said
                for run in self.chosen(chosen)
            ],
        )

    @precondition(lambda self: self.runs)
    @rule(
        chosen=which,
        whose=whose,
        waits_for=st.sampled_from(WAITS),
        n=numbers,
        ends=st.sampled_from([None, None, 0.0, 7.0, 60.0]),
        until=st.booleans(),
        default=st.sampled_from([UNSET, UNSET, "null", '{"a":[1.5]}']),
        settles=st.booleans(),
        undoes=st.booleans(),
    )
    def wait(
        self,
        chosen: int,
        whose: str | None,
        waits_for: str,
        n: int,
        ends: float | None,
        until: bool,
        default: Any,
        settles: bool,
        undoes: bool,
    ) -> None:
        """A run asks whether it must wait, and mostly obeys the answer."""
        [run] = self.chosen([chosen])
        seconds, at = ends, None
        if until and ends is not None:
            seconds, at = None, self.reference.now + timedelta(seconds=ends)
        wait = Wait(
            id=run.id,
            version=run.version,
            waits_for=waits_for,
            n=n,
            position=n + 3,
            seconds=seconds,
            until=at,
            default=default,
            terms=WaitTerms(seconds).text,
            worker=self.worker_of(run, whose),
        )
        answer = self.both("take_signal", wait)
        if settles and answer.hold is Hold.KEPT and answer.state is StepState.RUNNING:
            outcome = Waits(waits_for, answer.left, answer.seen, undoes)
            transition = decide(run, outcome, self.reference.now, ran=0.0)
            self.both("settle", [Settlement(run.id, run.version, transition, run.locked_by)], None)

    @precondition(lambda self: self.runs)
    @rule(chosen=which, signal=signals, n=numbers, lasts=st.sampled_from([None, 7.0, 60.0]))
    def callback(self, chosen: int, signal: str, n: int, lasts: float | None) -> None:
        [run] = self.chosen([chosen])
        address = StepMark(
            id=run.id,
            version=run.version,
            worker=run.locked_by,
            name=callback_name(signal),
            n=n,
            position=2,
            function="callback",
            state=StepState.SUCCEEDED,
            result=WaitTerms(lasts).text,
            lasts=lasts,
        )
        self.both("checkpoint", [address])

    @rule(
        chosen=some,
        by=people,
        signal=signals,
        id=st.sampled_from([None, None, "x", "y"]),
        number=st.sampled_from([None, None, 1, 2]),
        data=st.sampled_from(["1", "null", '{"a":"\xe4"}']),
    )
    def signal(self, chosen: list[int], by: str, signal: str, id: str | None, number: int | None, data: str) -> None:
        self.both("move", self.ids(chosen), Signal(by=by, sent=SignalSent(signal, data, id), number=number))

    @rule(chosen=some, by=people, reason=reasons)
    def wake(self, chosen: list[int], by: str, reason: str | None) -> None:
        self.both("move", self.ids(chosen), Wake(by=by, reason=reason))

    @rule(
        chosen=some,
        signal=signals,
        number=numbers,
        timeout=st.sampled_from([None, 60.0]),
        percent=st.sampled_from([None, 30.0]),
        stage=reasons,
    )
    def report_callback(self, chosen: list[int], **order: Any) -> None:
        self.both("move", self.ids(chosen), ReportCallback(by="outside", **order))

    @rule(chosen=some, signal=signals, number=numbers)
    def acknowledge_callback(self, chosen: list[int], **order: Any) -> None:
        self.both("move", self.ids(chosen), AcknowledgeCallback(by="outside", **order))

    @precondition(lambda self: self.runs)
    @rule(chosen=some, whose=whose)
    def look(self, chosen: list[int], whose: str | None) -> None:
        runs = self.chosen(chosen)
        self.both("look", [Beat(run.id, run.version, worker=self.worker_of(run, whose)) for run in runs])

    @rule(worker=workers)
    def held_by(self, worker: str) -> None:
        self.both("held_by", [worker])

    @rule(worker=infos)
    def report(self, worker: WorkerInfo) -> None:
        self.both("report", worker)
        self.both("workers")

    @rule(names=st.lists(workers, max_size=2, unique=True))
    def retire(self, names: list[str]) -> None:
        self.both("retire", names)
        self.both("workers")

    @precondition(lambda self: self.runs)
    @rule(
        chosen=some,
        wishes=st.lists(outcomes, min_size=3, max_size=3),
        informed=st.booleans(),
        ran=st.sampled_from([None, 0.0, 3.0]),
        wrong=st.sampled_from([0, 0, 0, 0, -1]),
        whose=st.lists(whose, min_size=3, max_size=3) | st.just(["own"] * 3),
        claim=st.none() | claims,
    )
    def settle(
        self,
        chosen: list[int],
        wishes: list[Outcome],
        informed: bool,
        ran: float | None,
        wrong: int,
        whose: list[str | None],
        claim: Claim | None,
    ) -> None:
        settlements = []
        for run, outcome, by in zip(self.chosen(chosen), wishes, whose, strict=False):
            row = self.reference.rows.get(run.id)
            seen = row.job if row and informed and row.job.version == run.version else run
            transition = decide(seen, outcome, self.reference.now, retry=Delays((0.0, 9.0)), ran=ran)
            settlements.append(Settlement(run.id, run.version + wrong, transition, self.worker_of(run, by)))
        if any(wish.transition.status in MAY_BE_READY for wish in settlements):
            claim = None  # stores differ on jobs that the same call made ready
        self.both("settle", settlements, claim)

    # ── Maintenance ──

    @rule(delta=st.sampled_from([0.5, 5.0, 7.5, 31.0, 61.0, DAY, 8 * DAY]))
    def time_passes(self, delta: float) -> None:
        self.reference.now = self.now(self.harness.advance(delta))

    @rule()
    def promote(self) -> None:
        self.both("promote")

    @rule(
        by=people,
        backoff=st.sampled_from([(7.0, 60.0), (0.0,)]),
        only=st.none() | st.lists(workers, max_size=2),
        detail=st.sampled_from([None, "killed by SIGKILL"]),
        ago=st.none() | st.sampled_from([0.0, 6.0, 40.0]),
    )
    def rescue(
        self, by: str, backoff: tuple[float, ...], only: list[str] | None, detail: str | None, ago: float | None
    ) -> None:
        before = None if ago is None else self.reference.now - timedelta(seconds=ago)
        order = Rescue(by=by, backoff=backoff, workers=only, detail=detail, before=before)
        self.both("move_due", order)

    @rule(tables=st.dictionaries(topics, st.sampled_from([None, (3.0,), (0.0, 11.0)]), max_size=2))
    def set_backoff(self, tables: dict[str, tuple[float, ...] | None]) -> None:
        self.both("set_backoff", tables)

    @rule(by=people)
    def resume_waits(self, by: str) -> None:
        self.both("move_due", Resume(by=by))

    @rule(by=people)
    def expire(self, by: str) -> None:
        self.both("move_due", Expire(by=by))

    @rule(by=people, grace=st.sampled_from([0.0, 7.0]))
    def cancel_timeout(self, by: str, grace: float) -> None:
        self.both("move_due", CancelTimeout(by=by, grace=grace))

    @rule(keep=st.sampled_from([None, 0.0, DAY]), dead=st.sampled_from([None, 10.0]))
    def prune(self, keep: float | None, dead: float | None) -> None:
        self.both("prune", Retention(completed=keep, cancelled=keep, failed=dead, expired=dead))

    @rule(limit=st.integers(1, 3))
    def fold_counts(self, limit: int) -> None:
        self.now(self.harness.store.tidy("fold_counts", limit))
        self.compare(self.reference.rows)

    # ── Operators ──

    @rule(chosen=some, by=people, reason=reasons)
    def cancel(self, chosen: list[int], by: str, reason: str | None) -> None:
        self.both("move", self.ids(chosen), Cancel(by=by, reason=reason))

    @rule(
        chosen=some,
        by=people,
        reason=reasons,
        edit=edits,
        version=st.sampled_from([None, None, 1]),
        from_step=st.sampled_from([None, None, "a", "b#2"]),
        keep_steps=st.sampled_from([True, True, False]),
    )
    def requeue(self, chosen: list[int], **order: Any) -> None:
        self.both("move", self.ids(chosen), Requeue(**order))

    @rule(chosen=some, by=people, reason=reasons, edit=edits)
    def update(self, chosen: list[int], edit: Edit, **options: Any) -> None:
        if edit != Edit():
            self.both("move", self.ids(chosen), Update(edit=edit, **options))

    @rule(chosen=some, by=people, reason=reasons)
    def delete(self, chosen: list[int], by: str, reason: str | None) -> None:
        self.both("move", self.ids(chosen), Delete(by=by, reason=reason))

    @rule(topic=topics, by=people, reason=reasons, until=st.sampled_from([None, 7.0]))
    def pause(self, topic: str, by: str, reason: str | None, until: float | None) -> None:
        end = None if until is None else self.reference.now + timedelta(seconds=until)
        self.both("steer_topic", topic, "pause", by=by, reason=reason, until=end)
        self.both("paused")

    @rule(topic=topics, by=people)
    def resume(self, topic: str, by: str) -> None:
        self.both("steer_topic", topic, "resume", by=by)
        self.both("paused")


@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", EXAMPLES)
def test_random_lives(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    live(kind, int(os.environ.get("ROWLOCK_TEST_EXAMPLES", EXAMPLES[kind])), tmp_path, request)


@pytest.mark.proof
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", MANY_EXAMPLES)
def test_many_random_lives(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    live(kind, MANY_EXAMPLES[kind], tmp_path, request)


def live(kind: str, examples: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:

    async def prepare(stack: AsyncExitStack) -> Harness:
        if kind == "memory":
            return await stack.enter_async_context(opened(SqliteHarness(None, virtual=True), migrated=False))
        databases: Databases = request.getfixturevalue("databases")
        harness: Harness = await stack.enter_async_context(harness_at(kind, databases, tmp_path, virtual=True))
        return harness

    async def finish(stack: AsyncExitStack) -> None:
        await stack.aclose()

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            harness_ = runner.run(prepare(stack))

            class ThisModel(Model):
                harness = harness_
                run = staticmethod(runner.get_loop().run_until_complete)

            run_state_machine_as_test(
                ThisModel,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=STEPS,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    print_blob=True,
                ),
            )
        finally:
            runner.run(finish(stack))
