"""Tasks: a plain function becomes a topic, a policy and a typed `.enqueue`.

Arguments become the fields of the payload, and back, by the function's type hints (msgspec; pydantic models too). They
are checked when the job is enqueued, before anything is written, and again when it runs.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast

import msgspec
from msgspec import Struct

from rowlock.core import codec
from rowlock.core.expected import explain
from rowlock.core.job import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_PRIORITY,
    DEFAULT_TIMEOUT,
    Job,
    NewJob,
    check_topic,
    new_job,
)
from rowlock.core.retry import DEFAULT_RETRY, RetryPolicy
from rowlock.errors import InvalidInput
from rowlock.stores.base import Enqueued

if TYPE_CHECKING:
    from rowlock.context import Context

P = ParamSpec("P")
R = TypeVar("R")

INJECTED: Any = None
"""Default of an injected parameter that doesn't come first, so that type checkers don't ask callers for it:
`def embed(file_id: str, ctx: Context = INJECTED)`."""

Kind = Literal["async", "thread", "process"]


class JobOptions(TypedDict, total=False):
    """What may be said about a job beside its topic and payload. See `Job` for the meaning."""

    id: str
    run_at: datetime
    delay: float | timedelta
    expires_at: datetime
    priority: int | str
    key: str
    scope: str
    scope_id: str
    max_retries: int
    timeout: float | timedelta
    tags: Sequence[str]
    trace: str


class EnqueueOptions(JobOptions, total=False):
    """`conn`: enqueue in this connection's transaction. `notify`: wake workers when that transaction commits, at the
    cost of a lock that PostgreSQL takes for every commit that notifies (see docs/transactions.md)."""

    conn: Any
    notify: bool


class Draft(Struct):
    """A job about to be enqueued, for `enqueue_many` and for middleware, which may change it."""

    topic: str
    payload: dict[str, Any]
    options: JobOptions


class Policy(Struct, frozen=True, kw_only=True):
    """How jobs of a topic are treated unless a job says otherwise."""

    max_retries: int = DEFAULT_MAX_RETRIES
    timeout: float | timedelta = DEFAULT_TIMEOUT
    priority: int | str = DEFAULT_PRIORITY
    retry: RetryPolicy = DEFAULT_RETRY
    process: bool = False  # run in a child process
    memory: float | None = None  # MiB that the child process may use; None: half of the machine's

    def defaults(self) -> JobOptions:
        return {"max_retries": self.max_retries, "timeout": self.timeout, "priority": self.priority}


class SyncEnqueues(Protocol):
    def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued: ...


class Enqueues(Protocol):
    """What a task needs of `Jobs`."""

    async def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued: ...

    @property
    def sync(self) -> SyncEnqueues: ...


class Task(Generic[P, R]):
    """Made by `@jobs.task`. Calling it runs the function here and now; `.enqueue` runs it in a worker."""

    def __init__(self, jobs: Enqueues, topic: str, function: Callable[P, R], policy: Policy) -> None:
        self.topic = check_topic(topic)
        self.function = function
        self.policy = policy
        self.arguments = Arguments(function)
        self.is_async = _is_async(function)
        self.kind: Kind = "process" if policy.process else "async" if self.is_async else "thread"
        self._jobs = jobs
        self._usual: tuple[int, int, float] | None = None  # priority, retries, timeout, once they have been checked
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", topic)

    def usual_job(self, job_id: str, payload: Mapping[str, Any] | None) -> NewJob:
        """A job without options of its own. The payload's fields must fit; what the policy says is checked once."""
        self.arguments.values(payload or {})
        if self._usual is None:
            job = new_job(job_id, self.topic, payload, **cast(dict[str, Any], self.policy.defaults()))
            self._usual = job.priority, job.max_retries, job.timeout
            return job
        priority, retries, timeout = self._usual
        text = codec.encode_payload(payload)
        return NewJob(job_id, self.topic, text, priority, max_retries=retries, timeout=timeout)

    def __repr__(self) -> str:
        return f"<Task {self.topic}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Enqueue a call with these arguments."""
        return await self._jobs.enqueue(self.topic, self.arguments.payload(args, kwargs))

    @property
    def sync(self) -> SyncTask[P]:
        """`task.sync.enqueue(…)` for code without an event loop."""
        return SyncTask(self._jobs, self.topic, self.arguments, {})

    def using(self, **options: Unpack[EnqueueOptions]) -> TaskWith[P]:
        """The same task with options: `task.using(delay=60, key="order-7").enqueue(…)`."""
        return TaskWith(self._jobs, self.topic, self.arguments, options)

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """A job for `jobs.enqueue_many`."""
        return Draft(self.topic, self.arguments.payload(args, kwargs), {})


class SyncTask(Generic[P]):
    def __init__(self, jobs: Enqueues, topic: str, arguments: Arguments, options: EnqueueOptions) -> None:
        self._jobs = jobs
        self._topic = topic
        self._arguments = arguments
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        return self._jobs.sync.enqueue(self._topic, self._arguments.payload(args, kwargs), **self._options)

    def using(self, **options: Unpack[EnqueueOptions]) -> SyncTask[P]:
        return SyncTask(self._jobs, self._topic, self._arguments, {**self._options, **options})


class TaskWith(Generic[P]):
    """A task with options for its next jobs."""

    def __init__(self, jobs: Enqueues, topic: str, arguments: Arguments, options: EnqueueOptions) -> None:
        self._jobs = jobs
        self._topic = topic
        self._arguments = arguments
        self._options = options

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        return await self._jobs.enqueue(self._topic, self._arguments.payload(args, kwargs), **self._options)

    @property
    def sync(self) -> SyncTask[P]:
        return SyncTask(self._jobs, self._topic, self._arguments, self._options)

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        given = cast(dict[str, Any], self._options)
        if unfit := sorted(given.keys() & {"conn", "notify"}):
            raise InvalidInput(unfit[0], "not_here", "belongs to enqueue_many, for all of its jobs")
        return Draft(self._topic, self._arguments.payload(args, kwargs), cast(JobOptions, dict(given)))


class Arguments:
    """Between a function's arguments and a job's payload."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = getattr(function, "__qualname__", repr(function))
        self._signature = inspect.signature(function)
        hints = self._hints(function)
        fields: dict[str, Any] = {}
        self.injected: dict[str, Any] = {}  # parameter → what the worker puts there
        self._open_ended = False
        for name, parameter in self._signature.parameters.items():
            hint = hints.get(name, Any)
            match parameter.kind:
                case inspect.Parameter.VAR_KEYWORD:
                    self._open_ended = True
                case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.POSITIONAL_ONLY:
                    raise InvalidInput(
                        name, "positional", f"{self._name} can't be a handler: fields of a payload have names"
                    )
                case _ if _is_injected(hint):
                    self.injected[name] = hint
                case _ if parameter.default is inspect.Parameter.empty:
                    fields[name] = _usable(hint)
                case _:  # left out of the payload, it keeps the function's own default
                    fields[name] = typing.NotRequired[_usable(hint)]
        self._fields = frozenset(fields)
        self._required = {name for name, hint in fields.items() if typing.get_origin(hint) is not typing.NotRequired}
        kinds = {name: _without_default(hint) for name, hint in fields.items()}
        self._scalars = {name: kind for name, kind in kinds.items() if kind in (str, int, float, bool)}
        given = [one for one in self._signature.parameters.values() if one.name not in self.injected]
        self._signature = self._signature.replace(parameters=given)
        self._type = typing.TypedDict("Arguments", fields)  # type: ignore[misc] # made at run time

    def payload(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The payload of a call with these arguments, checked."""
        try:
            bound = self._signature.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidInput("payload", "bad_arguments", f"{self._name}: {error}") from None
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                bound.update(bound.pop(name, {}))
        try:
            fields = msgspec.to_builtins(bound, str_keys=True, enc_hook=_encode_model)
        except (TypeError, msgspec.ValidationError) as error:
            raise InvalidInput("payload", "bad_arguments", f"{self._name}: {error}") from None
        self.values(fields)
        return cast(dict[str, Any], fields)

    def values(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that a payload stands for; InvalidInput names the field that doesn't fit."""
        if self._fits_as_it_is(payload):
            return dict(payload)
        try:
            values: dict[str, Any] = msgspec.convert(
                payload if isinstance(payload, dict) else dict(payload),
                self._type,
                str_keys=True,
                dec_hook=_decode_model,
            )
        except msgspec.ValidationError as error:
            misfit = explain(error, self._type)
            field = f"payload.{misfit.path}" if misfit.path else "payload"
            raise InvalidInput(field, "bad_arguments", f"{misfit.problem} ({self._name})") from None
        if len(values) < len(payload):
            unknown = {name: value for name, value in payload.items() if name not in self._fields}
            if not self._open_ended:
                extra = f"payload.{next(iter(unknown))}"
                raise InvalidInput(extra, "bad_arguments", f"there is no such argument ({self._name})")
            values |= unknown
        return values

    def _fits_as_it_is(self, payload: Mapping[str, Any]) -> bool:
        """Are all arguments there, and of just the types that were asked for? To convert them takes longer."""
        scalars = self._scalars
        for name, value in payload.items():
            if type(value) is not scalars.get(name):
                return False
        return payload.keys() >= self._required

    def call(self, payload: Mapping[str, Any], job: Job, context: Context) -> dict[str, Any]:
        """All keyword arguments of a run: those of the payload, and those that are injected."""
        values = self.values(payload)
        for name, hint in self.injected.items():
            values[name] = job if hint is Job or Job in typing.get_args(hint) else context
        return values

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        target = function if inspect.isroutine(function) else type(function).__call__
        try:
            return typing.get_type_hints(target, include_extras=True)
        except NameError as error:
            raise InvalidInput(
                "handler", "unknown_type", f"{self._name}: {error}: import the types of its arguments at run time"
            ) from None


def _without_default(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.NotRequired else hint


def _is_injected(hint: Any) -> bool:
    from rowlock.context import Context  # it needs this module

    return any(kind is hint or kind in typing.get_args(hint) for kind in (Job, Context))


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - an object with an async __call__


def _usable(hint: Any) -> Any:
    """The hint, or Any where msgspec can't check it (a class of its own kind, a union of two of them)."""
    try:
        msgspec.convert({}, msgspec.defstruct("Probe", [("field", hint | None, None)]), dec_hook=_decode_model)
    except TypeError:
        return Any
    return hint if _pydantic(hint) or _checkable(hint) else Any


def _checkable(hint: Any) -> bool:
    """Not a class that only its own code could make from JSON."""
    found = msgspec.inspect.type_info(hint)
    return not isinstance(found, msgspec.inspect.CustomType)


def _pydantic(hint: Any) -> bool:
    pydantic = sys.modules.get("pydantic")  # who has a model has imported it
    return pydantic is not None and isinstance(hint, type) and issubclass(hint, pydantic.BaseModel)


def _encode_model(value: Any) -> Any:
    if _pydantic(type(value)):
        return value.model_dump(mode="json")
    raise TypeError(f"a {type(value).__name__} can't be stored as JSON")


def _decode_model(hint: type[Any], value: Any) -> Any:
    if not _pydantic(hint):
        return value
    try:
        return hint.model_validate(value)
    except ValueError as error:
        raise ValueError("; ".join(str(error).splitlines()[:3])) from None
