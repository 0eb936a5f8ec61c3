"""jobs.result: the result in the handler's own type, or why there is none."""

import dataclasses
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pydantic
import pytest

from rowlock import errors
from rowlock.core.job import Job
from rowlock.jobs import Jobs
from rowlock.tasks import Arguments, ReturnType, Task

AT = datetime(2026, 1, 31, 8, tzinfo=UTC)


@dataclasses.dataclass
class Point:
    x: int
    on: date


class Customer(pydantic.BaseModel):
    name: str
    since: datetime


class Order(msgspec.Struct):
    n: int
    customers: list[Customer]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_result_comes_back_in_its_own_type(jobs: Jobs, kind: str) -> None:
    def thread(n: int) -> Order:
        return Order(n, [Customer(name="Ada", since=AT)])

    async def asynchronous(n: int) -> Order:
        return thread(n)

    task: Task[[int], Order] = jobs.register("make", asynchronous if kind == "async" else thread)
    await jobs.start()
    made = await task.enqueue(3)
    assert await jobs.result(made, timeout=60) == thread(3)
    assert await jobs.result(made.id) == thread(3)
    assert (await jobs.get(made.id)).result == {"n": 3, "customers": [{"name": "Ada", "since": "2026-01-31T08:00:00Z"}]}
    async with Jobs(jobs.settings.url) as others:  # these Jobs don't know the task
        assert await others.result(made) == (await jobs.get(made.id)).result


async def test_why_there_is_no_result(jobs: Jobs) -> None:
    @jobs.task(max_retries=0)
    async def work(what: str) -> int:
        if what == "fail":
            raise ValueError("no such customer")
        if what == "cancel":
            raise errors.Cancelled("withdrawn")
        return "text"  # type: ignore[return-value]

    await jobs.start()
    made = await work.enqueue("fail")
    with pytest.raises(errors.JobFailed) as failed:
        await jobs.result(made, timeout=60)
    assert str(failed.value) == f"job {made.id} (work) failed: ValueError: no such customer"
    assert failed.value.job.id == made.id
    made = await work.enqueue("cancel")
    with pytest.raises(errors.JobCancelled, match=f"job {made.id} \\(work\\) was cancelled: withdrawn"):
        await jobs.result(made, timeout=60)
    made = await work.enqueue("misfit")
    with pytest.raises(errors.WrongResult, match="its result must be a whole number, not a text") as wrong:
        await jobs.result(made, timeout=60)
    assert wrong.value.job.result == "text"
    with pytest.raises(TimeoutError):
        await jobs.result(await work.using(delay=60).enqueue("wait"), timeout=0.05)
    with pytest.raises(errors.JobNotFound):
        await jobs.result("01890000-0000-7000-8000-000000000000")


@pytest.mark.parametrize(
    ("hint", "result"),
    [
        (Point, Point(1, date(2026, 1, 2))),
        (Customer, Customer(name="Ada", since=AT)),
        (Customer | None, None),
        (list[Customer], [Customer(name="Ada", since=AT)]),
        (dict[int, datetime], {1: AT}),
        (tuple[int, ...], (1, 2)),
        (set[str], {"a"}),
        (None, None),
        (Any, {"a": [1]}),
        (object, {"a": [1]}),
        (dict[str, list[int | None]], {"a": [1, None]}),
    ],
)
def test_there_and_back(hint: Any, result: Any, job: Job) -> None:
    def handler() -> Any: ...

    handler.__annotations__["return"] = hint
    returns = Arguments(handler).returns
    stored = msgspec.json.decode(msgspec.json.encode(returns.storable(result)))
    assert returns.convert(msgspec.structs.replace(job, result=stored)) == result


def test_what_does_not_fit_is_named(job: Job) -> None:
    with pytest.raises(errors.WrongResult, match=r"result\.x must be a whole number, not a text"):
        ReturnType(Point).convert(msgspec.structs.replace(job, result={"x": "1", "on": "2026-01-02"}))
    with pytest.raises(errors.WrongResult, match="its result is not null"):
        ReturnType(type(None)).convert(msgspec.structs.replace(job, result=1))
    with pytest.raises(errors.WrongResult, match="since"):
        ReturnType(Customer).convert(msgspec.structs.replace(job, result={"name": "Ada"}))


def test_a_type_with_two_parameters_is_enough() -> None:
    assert Task[[int], int].__origin__ is Task  # type: ignore[attr-defined]


@pytest.fixture
async def job() -> Job:
    async with Jobs("sqlite://") as jobs:
        return await jobs.get((await jobs.enqueue("work")).id)
