"""Tasks: a plain function becomes a topic, a policy and a typed `.enqueue`.

Arguments become the fields of the payload, and back, by the function's type hints (msgspec; pydantic models too). They
are checked when the job is enqueued, before anything is written, and again when it runs.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast

import msgspec
from msgspec import Struct

from rowlock.core import codec
from rowlock.core.cron import Cron, Every, When
from rowlock.core.debounce import Debounce, check_debounce, check_window
from rowlock.core.expected import explain
from rowlock.core.flows import NodeResult, blanked, outside_of
from rowlock.core.job import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_PRIORITY,
    DEFAULT_TIMEOUT,
    Job,
    check_delay,
    check_priority,
    check_timeout,
    check_topic,
)
from rowlock.core.limits import Fair, Limit
from rowlock.core.retry import DEFAULT_RETRY, Delays, Exponential, Quadratic, RetryPolicy
from rowlock.core.schedules import SAMPLE, Definition, IfLiveJob, Missed, check_definition, fill
from rowlock.core.templates import (
    MAX_DESCRIPTION,
    Cancel,
    IfLive,
    StepInfo,
    Template,
    check_if_live,
    check_template,
    check_template_version,
    retry_data,
    retry_policy,
)
from rowlock.errors import InvalidInput, WrongContext, WrongResult
from rowlock.schemas import is_pydantic, payload_schema, result_schema
from rowlock.stores.base import Enqueued
from rowlock.zones import zone

if TYPE_CHECKING:
    import typing_extensions  # its TypeVar has a default, also before Python 3.13

    from rowlock.context import Context
    from rowlock.steps import Step

    F_co = typing_extensions.TypeVar("F_co", bound=Callable[..., Any], covariant=True, default=Callable[..., Any])
    Returns = typing_extensions.TypeVar("Returns", covariant=True, default=Any)
else:
    F_co = TypeVar("F_co", covariant=True)
    Returns = TypeVar("Returns", covariant=True)

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

INJECTED: Any = None
"""The default of an injected parameter that is not the first one, so that type checkers don't require it from callers:
`def embed(file_id: str, ctx: Context = INJECTED)`."""

Kind = Literal["async", "thread", "process"]


class JobOptions(TypedDict, total=False):
    """The options of a job, beside its topic and payload. `Job` explains them."""

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
    version: int
    if_live: IfLive
    debounce: Debounce
    throttle: float | timedelta


class EnqueueOptions(JobOptions, total=False):
    """`conn`: enqueue in this connection's transaction. `notify`: wake workers when that transaction commits, at the
    cost of a lock that PostgreSQL takes for every commit that notifies (see docs/transactions.md)."""

    conn: Any
    notify: bool


class Draft(Struct, Generic[Returns]):
    """A job about to be enqueued, for `enqueue_many`, for flows, and for middleware, which may change it. `Draft[R]`: R
    is what the job's handler returns; only type checkers see it."""

    topic: str
    payload: dict[str, Any]
    options: JobOptions


class Policy(Struct, frozen=True, kw_only=True):
    """The options of a task. Most of them are stored with its template, for every process that enqueues or rescues its
    jobs. A job may override priority, max_retries, timeout, key, if_live, debounce and throttle."""

    version: int = 0  # from 1 on, the schema and the steps of a published version don't change
    runs: Sequence[int] = ()  # older versions whose jobs this function can run, too
    max_retries: int = DEFAULT_MAX_RETRIES
    timeout: float | timedelta = DEFAULT_TIMEOUT
    priority: int | str = DEFAULT_PRIORITY
    retry: RetryPolicy | Sequence[float] = DEFAULT_RETRY  # a list: seconds, of which the last repeats
    cancel: Cancel | bool = Cancel()  # False: a job can't be cancelled once a run has started
    key: Sequence[str] | None = None  # fields of the payload that make the key; []: one key per scope
    if_live: IfLive | None = None  # what happens if a live job has the same key
    once: bool = False  # one job per key, ever
    debounce: Debounce | None = None  # a newer enqueue with the key replaces the job that has not started
    throttle: float | timedelta | None = None  # seconds in which one job per key is made
    schedulable: bool = True
    retention: float | timedelta | None = None  # how long finished jobs stay
    limits: Sequence[Limit] = ()  # how many run at once, or start in a while, in all workers together
    fair: str | Fair | None = None  # the values of this field take turns
    title: str | None = None
    description: str | None = None  # None: the function's docstring
    steps: Sequence[
        Step[..., Any, Any] | Callable[..., Any]
    ] = ()  # steps that it may call: for the page, and for weighted progress
    schedule: When | Recurring | Sequence[When | Recurring] | None = None  # when its jobs are made by themselves
    external: bool = False  # only workers of the worker protocol run it: the function declares the types
    process: bool = False  # run in a child process
    memory: float | None = None  # MiB that the child process may use; None: half of the machine's memory


class Recurring(Struct, frozen=True, kw_only=True):
    """A schedule in code: `@jobs.task(schedule=Recurring(when=Cron("0 9 * * *"), payload={"tenant": 7}))`. Without
    policies, `schedule=Cron("0 9 * * *")` is enough. `name`: the topic if it is not given. `jobs.schedules.put`
    explains the policies."""

    when: When
    name: str | None = None
    payload: dict[str, Any] = {}
    options: dict[str, Any] = {}
    scope: str | None = None
    scope_id: str | None = None
    missed: Missed = "last"
    most: int = 100
    within: float | None = None
    if_live: IfLiveJob = "allow"
    start: datetime | None = None
    end: datetime | None = None
    jitter: float = 0.0
    description: str | None = None

    def definition(self, topic: str, version: int) -> Definition:
        """Return what the schedule of this task makes, and when; checked."""
        own = {name: getattr(self, name) for name in Definition.__struct_fields__ if hasattr(self, name)}
        return check_definition(Definition(topic=topic, version=version, **own))


class SyncEnqueues(Protocol):
    def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued: ...


class Enqueues(Protocol):
    """The part of `Jobs` that a task needs."""

    async def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued: ...

    @property
    def sync(self) -> SyncEnqueues: ...


class Task(Generic[P, R_co, F_co]):
    """Made by `@jobs.task`. Calling it runs the function directly; `.enqueue` runs it in a worker.

    `Task[P, R]`: P are the arguments of `.enqueue`, R is what the handler returns (for `async def`: what its coroutine
    returns). The third type is the function's own. It may be left out: `Task[[int], str]`.
    """

    def __init__(self, jobs: Enqueues, topic: str, function: F_co, policy: Policy) -> None:
        self.topic = check_topic(topic)
        self.function = function
        self.policy = policy
        self.arguments = Arguments(function)
        self.is_async = is_async(function)
        if self.is_async:
            self.arguments.refuse_sync_context()
        self.kind: Kind = "process" if policy.process else "async" if self.is_async else "thread"
        self.version = check_template_version(policy.version)
        runs = _listed(policy.runs, "runs", "versions, such as [1, 2]")
        self.runs = frozenset(check_template_version(version, f"runs[{n}]") for n, version in enumerate(runs))
        self.retry: RetryPolicy = check_retry(policy.retry)
        self.schedules = _schedules(policy.schedule, self)
        self._jobs = jobs
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", topic)

    @cached_property
    def template(self) -> Template:
        """Return the definition that is published. It is made when it is first needed: a schema takes a while."""
        policy, arguments = self.policy, self.arguments
        return check_template(
            Template(
                topic=self.topic,
                version=self.version,
                title=policy.title,
                description=_description(policy, self.function),
                schema=payload_schema(arguments.type, is_open=arguments.is_open, defaults=arguments.defaults),
                result=result_schema(arguments.returns.type),
                steps=_declared(policy.steps),
                max_retries=policy.max_retries,
                retry=retry_data(self.retry),
                timeout=check_timeout(policy.timeout),
                priority=check_priority(policy.priority),
                cancel=_cancel(policy.cancel),
                key=None if policy.key is None else _listed(policy.key, "key", 'payload fields, such as ["target"]'),
                if_live=None if policy.if_live is None else check_if_live(policy.if_live),
                once=policy.once,
                debounce=None if policy.debounce is None else check_debounce(policy.debounce),
                throttle=None if policy.throttle is None else check_window(policy.throttle, "throttle"),
                schedulable=policy.schedulable,
                retention=None if policy.retention is None else check_delay(policy.retention, "retention"),
                limits=_limits(policy),
                external=policy.external,
            )
        )

    @property
    def is_external(self) -> bool:
        """True if no worker of this library runs it."""
        return self.policy.external

    def __repr__(self) -> str:
        return f"<Task {self.topic}{f'@{self.version}' if self.version else ''}>"

    if TYPE_CHECKING:

        @property
        def __call__(self) -> F_co: ...

    else:

        def __call__(self, *args, **kwargs):
            if self.is_external:
                raise WrongContext(
                    f"{self.topic} is an external topic: only workers of the worker protocol run it. "
                    f"Use {self.__name__}.enqueue(…)"
                )
            return self.function(*args, **kwargs)

        def __class_getitem__(cls, types):
            """Fill in the third type: a TypeVar has no default at run time before Python 3.13."""
            given = types if isinstance(types, tuple) else (types,)
            return super().__class_getitem__((*given, Callable[..., Any]) if len(given) == 2 else given)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued[R_co]:
        """Enqueue a call with these arguments."""
        return await self._jobs.enqueue(self.topic, self.arguments.payload(args, kwargs), version=self.version)

    @property
    def sync(self) -> SyncTask[P, R_co]:
        """`task.sync.enqueue(…)` for code without an event loop."""
        return SyncTask(self._jobs, self.topic, self.arguments, {"version": self.version})

    def using(self, **options: Unpack[EnqueueOptions]) -> TaskWith[P, R_co]:
        """Return the task with options: `task.using(delay=60, key="order-7").enqueue(…)`."""
        return TaskWith(self._jobs, self.topic, self.arguments, {"version": self.version, **options})

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft[R_co]:
        """Return a job for `jobs.enqueue_many`, or for a flow."""
        return Draft(self.topic, self.arguments.payload(args, kwargs), {"version": self.version})


def _limits(policy: Policy) -> tuple[Limit, ...]:
    limits = _listed(policy.limits, "limits", "limits, such as [Concurrency(20)]")
    for n, limit in enumerate(limits):
        if not isinstance(limit, Limit):
            raise InvalidInput(f"limits[{n}]", "bad_value", f"must be Concurrency, Rate or Fair, not {limit!r:.40}")
    if policy.fair is None:
        return tuple(limits)
    return *limits, policy.fair if isinstance(policy.fair, Fair) else Fair(policy.fair)


class SyncTask(Generic[P, R_co]):
    def __init__(self, jobs: Enqueues, topic: str, arguments: Arguments, options: EnqueueOptions) -> None:
        self._jobs = jobs
        self._topic = topic
        self._arguments = arguments
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued[R_co]:
        return self._jobs.sync.enqueue(self._topic, self._arguments.payload(args, kwargs), **self._options)

    def using(self, **options: Unpack[EnqueueOptions]) -> SyncTask[P, R_co]:
        return SyncTask(self._jobs, self._topic, self._arguments, {**self._options, **options})


class TaskWith(Generic[P, R_co]):
    """A task with options. Made by `task.using(…)`."""

    def __init__(self, jobs: Enqueues, topic: str, arguments: Arguments, options: EnqueueOptions) -> None:
        self._jobs = jobs
        self._topic = topic
        self._arguments = arguments
        self._options = options

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued[R_co]:
        return await self._jobs.enqueue(self._topic, self._arguments.payload(args, kwargs), **self._options)

    @property
    def sync(self) -> SyncTask[P, R_co]:
        return SyncTask(self._jobs, self._topic, self._arguments, self._options)

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft[R_co]:
        given = cast(dict[str, Any], self._options)
        if unfit := sorted(given.keys() & {"conn", "notify"}):
            raise InvalidInput(unfit[0], "not_here", "give it to enqueue_many: it is the same for all jobs")
        return Draft(self._topic, self._arguments.payload(args, kwargs), cast(JobOptions, dict(given)))


class Arguments:
    """Converts a function's arguments to a job's payload, and back."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = getattr(function, "__qualname__", repr(function))
        self._signature = inspect.signature(function)
        hints = self._hints(function)
        fields: dict[str, Any] = {}
        self.injected: dict[str, Any] = {}  # parameter → Job, Context or SyncContext; the worker fills it in
        self.returns = ReturnType(hints.get("return", Any))
        self.is_open = False
        for name, parameter in self._signature.parameters.items():
            hint = hints.get(name, Any)
            match parameter.kind:
                case inspect.Parameter.VAR_KEYWORD:
                    self.is_open = True
                case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.POSITIONAL_ONLY:
                    raise InvalidInput(
                        name, "positional", f"{self._name} can't be a handler: make this a named parameter"
                    )
                case _ if (kind := injected(hint)) is not None:
                    self.injected[name] = kind
                case _ if parameter.default is inspect.Parameter.empty:
                    fields[name] = _usable(hint)
                case _:  # a field that the payload lacks gets the function's default
                    fields[name] = typing.NotRequired[_usable(hint)]
        self._fields = frozenset(fields)
        self._required = {name for name, hint in fields.items() if typing.get_origin(hint) is not typing.NotRequired}
        kinds = {name: _without_default(hint) for name, hint in fields.items()}
        self._scalars = {name: kind for name, kind in kinds.items() if kind in (str, int, float, bool)}
        given = [one for one in self._signature.parameters.values() if one.name not in self.injected]
        self._signature = self._signature.replace(parameters=given)
        self.type = typing.TypedDict("Arguments", fields)  # type: ignore[misc] # made at run time
        self.defaults = {one.name: one.default for one in given if one.default is not inspect.Parameter.empty}

    def payload(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the checked payload of a call with these arguments."""
        try:
            bound = self._signature.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidInput("payload", "bad_arguments", f"{self._name}: {error}") from None
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                bound.update(bound.pop(name, {}))
        try:
            fields = msgspec.to_builtins(bound, str_keys=True, builtin_types=(NodeResult,), enc_hook=_encode_model)
        except (TypeError, msgspec.ValidationError) as error:
            raise InvalidInput("payload", "bad_arguments", f"{self._name}: {error}") from None
        try:
            self.values(fields)
        except InvalidInput:
            if not outside_of(blanked(fields)):  # results of other jobs come later: the flow checks the rest
                raise
        return cast(dict[str, Any], fields)

    def values(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in a payload. Raise InvalidInput with the field that doesn't fit."""
        if self._fits_as_it_is(payload):
            return dict(payload)
        try:
            values = self._converted(payload if isinstance(payload, dict) else dict(payload))
        except msgspec.ValidationError as error:
            misfit = explain(error, self.type)
            field = f"payload.{misfit.path}" if misfit.path else "payload"
            raise InvalidInput(field, "bad_arguments", f"{misfit.problem} ({self._name})") from None
        except UnicodeEncodeError:
            codec.encode(dict(payload), "payload")  # names the text that is not valid Unicode
            raise
        if len(values) < len(payload):
            unknown = {name: value for name, value in payload.items() if name not in self._fields}
            if not self.is_open:
                extra = f"payload.{next(iter(unknown))}"
                raise InvalidInput(extra, "bad_arguments", f"there is no such argument ({self._name})")
            values |= unknown
        return values

    def _converted(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Return the payload's values as arguments. In JSON, 7.0 is a whole number, too, but msgspec doesn't take it as
        an int. So it gets a 7."""
        try:
            return self._convert(payload)
        except msgspec.ValidationError:
            with suppress(msgspec.ValidationError):
                return self._convert(_whole(payload))
            raise

    def _convert(self, payload: Any) -> dict[str, Any]:
        try:
            values: dict[str, Any] = msgspec.convert(payload, self.type, str_keys=True, dec_hook=_decode_model)
        except TypeError as error:  # a set of lists or objects
            raise msgspec.ValidationError(str(error)) from None
        return values

    def _fits_as_it_is(self, payload: Mapping[str, Any]) -> bool:
        """True if all arguments are there with exactly the right types, so that nothing needs to be converted."""
        scalars = self._scalars
        for name, value in payload.items():
            if type(value) is not scalars.get(name):
                return False
        return payload.keys() >= self._required

    def call(self, payload: Mapping[str, Any], job: Job, context: Context) -> dict[str, Any]:
        """Return all keyword arguments of a run: those of the payload and the injected ones."""
        values = self.values(payload)
        for name, kind in self.injected.items():
            values[name] = job if kind is Job else context if isinstance(context, kind) else context.sync
        return values

    def refuse_sync_context(self) -> None:
        """Raise if a parameter is a SyncContext: it would block the event loop of an async handler."""
        from rowlock.context import SyncContext  # that module imports this one

        for name, kind in self.injected.items():
            if kind is SyncContext:
                raise InvalidInput(
                    name,
                    "sync_context",
                    f"{self._name} is async: annotate this parameter with Context, not SyncContext",
                )

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        target = function if inspect.isroutine(function) else type(function).__call__
        try:
            return typing.get_type_hints(target, include_extras=True)
        except NameError as error:
            raise InvalidInput(
                "handler",
                "unknown_type",
                f"{self._name}: {error}: import its argument types at run time, not under TYPE_CHECKING",
            ) from None


class ReturnType:
    """Converts the result of a handler to JSON, and back, by the handler's return annotation."""

    def __init__(self, hint: Any) -> None:
        try:
            self.type = _usable(hint)
        except Exception:  # a class whose own annotations can't be resolved: nothing is converted
            self.type = Any
        self._is_json = _is_json(self.type)

    def storable(self, result: Any) -> Any:
        """Return the result as JSON values; or as it is, if it can't be: the codec then names what is wrong."""
        if self._is_json:
            return result
        try:
            return msgspec.to_builtins(result, str_keys=True, enc_hook=_encode_model)
        except (TypeError, ValueError):
            return result

    def convert(self, job: Job) -> Any:
        """Return the result of a completed job, in the handler's own type. Raise WrongResult if it doesn't fit."""
        if self.type is NoneType and job.result is not None:
            raise WrongResult(job, "its result is not null, as its handler is annotated")
        try:
            return self.read(job.result)
        except Misfit as misfit:
            where = f"result.{misfit.path}" if misfit.path else "its result"
            raise WrongResult(job, f"{where} {misfit.problem}") from None

    def read(self, result: Any) -> Any:
        """Return stored JSON values in the annotated type. Raise Misfit if they don't fit."""
        if self.type is Any:
            return result
        try:
            return msgspec.convert(result, self.type, str_keys=True, dec_hook=_decode_model)
        except msgspec.ValidationError as error:
            found = explain(error, self.type)
            raise Misfit(found.path, found.problem) from None


class Misfit(ValueError):
    """A stored value is not of the annotated type: at `path` inside it."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path} {problem}" if path else problem)


def _is_json(hint: Any) -> bool:
    """True if values of this type are stored as they are."""
    if typing.get_origin(hint) is dict:
        key, value = typing.get_args(hint)
        return key in (str, Any) and _is_json(value)
    if typing.get_origin(hint) in (list, tuple, typing.Union, UnionType):
        return all(_is_json(one) for one in typing.get_args(hint))
    return hint in (Any, NoneType, bool, int, float, str, dict, list, tuple, ...)


def _description(policy: Policy, function: Callable[..., Any]) -> str | None:
    """Return the description of the policy; by default, the first paragraph of the docstring."""
    if policy.description is not None or not (doc := inspect.getdoc(function)):
        return policy.description
    return codec.clean_text(" ".join(doc.split("\n\n")[0].split()), MAX_DESCRIPTION)


def check_retry(given: object) -> RetryPolicy:
    if isinstance(given, Quadratic | Delays | Exponential):
        return retry_policy(retry_data(given))
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return retry_policy(list(given))
    if not callable(given):
        what = "a list of seconds such as [30, 120], Quadratic(…), Exponential(…) or a function (job, error) -> seconds"
        raise InvalidInput("retry", "not_a_policy", f"must be {what}, not {given!r:.40}")
    return cast(RetryPolicy, given)


def _cancel(given: object) -> Cancel:
    if isinstance(given, Cancel):
        return given
    if not isinstance(given, bool):
        raise InvalidInput("cancel", "bad_value", f"must be True, False or Cancel(grace=…), not {given!r:.40}")
    return Cancel(supported=given)


def _listed(given: object, field: str, what: str) -> tuple[Any, ...]:
    """Return a list's entries. A text is no list, although Python can iterate over its letters."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence | Set):
        raise InvalidInput(field, "not_a_list", f"must be a list of {what}, not {given!r:.40}")
    return tuple(given)


def _whole(value: Any) -> Any:
    """Return the same JSON with whole numbers as int."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    return [_whole(one) for one in value] if isinstance(value, list) else value


def _declared(steps: Sequence[Step[..., Any, Any] | Callable[..., Any]]) -> tuple[StepInfo, ...]:
    if not steps:
        return ()
    from rowlock.steps import step_of  # that module imports this one

    functions = _listed(steps, "steps", "functions, such as [prepare, execute]")
    return tuple(step_of(function, f"steps[{n}]").info for n, function in enumerate(functions))


def _without_default(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.NotRequired else hint


def injected(hint: Any) -> type | None:
    """Return what the worker fills in for a parameter of this type; None if its value is in the payload."""
    from rowlock.context import Context, SyncContext  # that module imports this one

    kinds: tuple[type, ...] = (Job, Context, SyncContext)
    return next((kind for kind in kinds if kind is hint or kind in typing.get_args(hint)), None)


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - an object with an async __call__


def _usable(hint: Any) -> Any:
    """Return the hint, or Any if msgspec can't check it: a custom class, or a union of two of them."""
    try:
        msgspec.convert({}, msgspec.defstruct("Probe", [("field", hint | None, None)]), dec_hook=_decode_model)
    except TypeError:
        return Any
    return hint if is_pydantic(hint) or _checkable(hint) else Any


def _checkable(hint: Any) -> bool:
    """Return False for a custom class, which msgspec can't make from JSON."""
    found = msgspec.inspect.type_info(hint)
    return not isinstance(found, msgspec.inspect.CustomType)


def _encode_model(value: Any) -> Any:
    if is_pydantic(type(value)):
        # By alias, as it is validated. Without computed fields, which a model may refuse: it computes them again.
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"a {type(value).__name__} can't be stored as JSON")


def _decode_model(hint: type[Any], value: Any) -> Any:
    if not is_pydantic(hint):
        return value
    try:
        return hint.model_validate(value)
    except ValueError as error:
        raise ValueError("; ".join(str(error).splitlines()[:3])) from None


def _schedules(given: Any, task: Task[..., Any, Any]) -> tuple[Recurring, ...]:
    """Return the schedules that a task declares. Their payloads are checked by the function's arguments."""
    if given is None:
        return ()
    many = given if isinstance(given, list | tuple) else [given]
    found = []
    for n, one in enumerate(many):
        field = f"schedule[{n}]" if len(many) > 1 else "schedule"
        recurring = Recurring(when=one) if isinstance(one, Cron | Every) else one
        if not isinstance(recurring, Recurring):
            raise InvalidInput(field, "not_a_schedule", f"must be Cron(…), Every(…) or Recurring(…), not {one!r:.40}")
        if task.policy.debounce is not None or task.policy.throttle is not None:
            name = "debounce" if task.policy.debounce is not None else "throttle"
            raise InvalidInput(
                field, "with_debounce", f"does not go with {name}: schedule another task, which enqueues"
            )
        if not task.policy.schedulable:
            raise InvalidInput(field, "not_schedulable", "the task says schedulable=False")
        try:
            defined = recurring.definition(task.topic, 0)
            if isinstance(defined.when, Cron):
                zone(defined.when.zone)
            task.arguments.values(fill(defined.payload, SAMPLE))
        except InvalidInput as error:
            raise InvalidInput(f"{field}.{error.field}", error.code, error.problem) from None
        found.append(recurring)
    if len({one.name for one in found}) < len(found):
        raise InvalidInput("schedule", "declared_twice", "give each schedule of the task a name of its own")
    return tuple(found)
