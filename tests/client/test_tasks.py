"""Tasks turn arguments into a payload, and back. Wrong arguments are refused before anything is written."""

import dataclasses
import enum
import functools
import uuid
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pydantic
import pytest

from rowlock import errors
from rowlock.core.job import Job
from rowlock.core.retry import Delays
from rowlock.jobs import Jobs
from rowlock.tasks import Arguments


@pytest.fixture
def jobs() -> Jobs:
    return Jobs("sqlite://")


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Customer(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)


class Order(msgspec.Struct):
    n: int


def everything(
    text: str,
    when: datetime,
    ident: uuid.UUID,
    point: Point,
    customer: Customer,
    order: Order,
    colour: Colour,
    names: dict[int, str],
    maybe: int | None = None,
    many: tuple[int, ...] = (1, 2),
    anything: Any = None,
) -> None: ...


def test_arguments_survive_the_payload() -> None:
    given: dict[str, Any] = {
        "text": "ünïcode",
        "when": datetime(2026, 1, 1, tzinfo=UTC),
        "ident": uuid.UUID(int=7),
        "point": Point(1, 2.5),
        "customer": Customer(name="Ada", age=36),
        "order": Order(3),
        "colour": Colour.RED,
        "names": {1: "one"},
        "many": (4, 5),
    }
    arguments = Arguments(everything)
    payload = arguments.payload((), given)
    assert payload["names"] == {"1": "one"}
    assert payload["customer"] == {"name": "Ada", "age": 36}
    assert arguments.values(payload) == given  # omitted arguments keep the defaults of the function


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    unit_price: int = pydantic.Field(alias="unitPrice")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def with_tax(self) -> int:
        return self.unit_price * 2


def priced(price: Strict) -> list[Strict]:
    return [price]


def test_models_with_aliases_and_computed_fields_survive() -> None:
    price = Strict(unitPrice=3)
    arguments = Arguments(priced)
    payload = arguments.payload((price,), {})
    assert payload == {"price": {"unitPrice": 3}}
    assert arguments.values(payload) == {"price": price}
    stored = arguments.returns.storable([price])
    assert stored == [{"unitPrice": 3}]
    assert arguments.returns.read(stored) == [price]


def greet(name: str, times: int = 1, *, loud: bool = False) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "says"),
    [
        ((), {}, "payload.name", "is missing; it must be a text"),
        ((5,), {}, "payload.name", "must be a text, not a whole number"),
        (("ada", "twice"), {}, "payload.times", "must be a whole number, not a text"),
        (("ada",), {"louder": True}, "payload", "unexpected keyword argument 'louder'"),
        (("ada", 1, True), {}, "payload", "too many positional arguments"),
        (("ada",), {"name": "eve"}, "payload", "multiple values for argument 'name'"),
        ((object(),), {}, "payload", "a object can't be stored as JSON"),
    ],
)
async def test_wrong_arguments_are_refused_before_anything_is_written(
    jobs: Jobs, args: tuple[Any, ...], kwargs: dict[str, Any], field: str, says: str
) -> None:
    task: Any = jobs.task(greet)
    with pytest.raises(errors.InvalidInput, match=says) as refused:
        await task.enqueue(*args, **kwargs)
    assert refused.value.field == field
    assert (await jobs.list()).total == 0
    await jobs.close()


def test_a_model_says_what_is_wrong_with_it() -> None:
    def serve(customer: Customer) -> None: ...

    with pytest.raises(errors.InvalidInput, match="greater than or equal to 0") as refused:
        Arguments(serve).values({"customer": {"name": "Ada", "age": -1}})
    assert refused.value.field == "payload.customer"


async def test_enqueue_by_name_is_checked_and_gets_the_policy_too(jobs: Jobs) -> None:
    jobs.register("greet", greet, max_retries=7, timeout=5, priority="explicit", retry=Delays((1.0,)))
    with pytest.raises(errors.InvalidInput, match=r"payload\.who: there is no such argument"):
        await jobs.enqueue("greet", {"name": "ada", "who": 1})
    job = await jobs.get((await jobs.enqueue("greet", {"name": "ada"}, timeout=9)).id)
    assert (job.max_retries, job.timeout, job.priority) == (7, 9.0, 150)
    with pytest.raises(errors.InvalidInput, match="must be a text"):
        await jobs.update(job.id, payload={"name": 1})
    await jobs.close()


async def test_a_task_is_still_the_function(jobs: Jobs) -> None:
    @jobs.task("double.it", max_retries=1)
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    @jobs.task
    async def later(n: int) -> int:
        return n

    assert (double(4), double.topic, double.__doc__, double.__name__) == (8, "double.it", "Twice as much.", "double")
    assert (await later(5), later.topic) == (5, "later")
    assert set(jobs.tasks) == {"double.it", "later"}


async def test_options_for_one_call(jobs: Jobs) -> None:
    task = jobs.task(greet)
    first = await task.using(key="k", delay=60).enqueue("ada")
    assert (await task.using(key="k").enqueue("eve")).id == first.id
    many = await jobs.enqueue_many([task.draft("a"), task.using(priority=1).draft("b", loud=True)])
    assert [(await jobs.get(one.id)).payload for one in many] == [{"name": "a"}, {"name": "b", "loud": True}]
    with pytest.raises(errors.InvalidInput, match="enqueue_many"):
        task.using(conn=object()).draft("c")
    await jobs.close()


def test_a_job_parameter_is_given_by_the_worker() -> None:
    def handler(n: int, job: Job, maybe: Job | None = None) -> None: ...

    arguments = Arguments(handler)
    assert set(arguments.injected) == {"job", "maybe"}
    assert arguments.payload((1,), {}) == {"n": 1}

    def first(job: Job, n: int) -> None: ...

    assert Arguments(first).payload((1,), {}) == {"n": 1}  # `job` is not counted among the arguments


def test_open_ended_handlers_take_any_field() -> None:
    def handler(n: int, **rest: Any) -> None: ...

    arguments = Arguments(handler)
    assert arguments.payload((1,), {"x": [2]}) == {"n": 1, "x": [2]}
    assert arguments.values({"n": 1, "x": [2]}) == {"n": 1, "x": [2]}


def _positional(n: int, /) -> None: ...


def _starred(*numbers: int) -> None: ...


@pytest.mark.parametrize("function", [_positional, _starred])
def test_fields_need_names(jobs: Jobs, function: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="make this a named parameter"):
        jobs.register("t", function)


def test_what_is_wrong_with_a_registration(jobs: Jobs) -> None:
    jobs.register("greet", greet)
    with pytest.raises(errors.InvalidInput, match="has a handler of version 0 already"):
        jobs.register("greet", greet)
    with pytest.raises(errors.InvalidInput) as bad_topic:
        jobs.register("no spaces", greet)
    assert bad_topic.value.field == "topic"
    with pytest.raises(errors.InvalidInput) as bad_policy:
        jobs.task("other", max_retries=-1)(greet)
    assert bad_policy.value.field == "max_retries"
    assert set(jobs.tasks) == {"greet"}
    with pytest.raises(errors.InvalidInput, match="give a topic"):
        jobs.task(functools.partial(greet, "ada"))


def test_an_option_that_no_task_has_is_named_with_those_that_there_are(jobs: Jobs) -> None:
    with pytest.raises(errors.InvalidInput, match="retries: is none of version, runs, max_retries") as caught:
        jobs.task(retries=3)  # type: ignore[call-overload]
    assert (caught.value.field, caught.value.code) == ("retries", "unknown_option")


def test_types_that_only_the_checker_knows(jobs: Jobs, tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}
    exec("from __future__ import annotations\ndef f(x: Missing) -> None: ...", namespace)
    with pytest.raises(errors.InvalidInput, match="import its argument types at run time"):
        jobs.register("f", namespace["f"])


def test_limits_of_child_processes_are_checked() -> None:
    jobs = Jobs("sqlite:///jobs.db")
    with pytest.raises(errors.InvalidInput, match="process=True as well"):
        jobs.register("a", print_it, memory=100)
    for memory in (0, -5, float("nan"), True, "much"):
        with pytest.raises(errors.InvalidInput, match="memory: must be MiB"):
            jobs.register("a", print_it, process=True, memory=memory)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInput, match="use a file"):
        Jobs("sqlite://").register("a", print_it, process=True)
    assert jobs.register("a", print_it, process=True, memory=100).kind == "process"


def print_it() -> None: ...


def test_any_mapping_is_a_payload() -> None:
    def work(ids: list[int]) -> None: ...

    assert Arguments(work).values(MappingProxyType({"ids": [1]})) == {"ids": [1]}
