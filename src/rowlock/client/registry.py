"""The tasks and the middleware that an application has registered."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from rowlock.client.middleware import EnqueueMiddleware, check_middleware
from rowlock.context import Context, SyncContext
from rowlock.core.cron import When
from rowlock.core.job import Job, Lane
from rowlock.core.limits import Fair, Limit
from rowlock.core.retry import RetryPolicy
from rowlock.core.templates import Cancel, IfLive
from rowlock.errors import InvalidInput
from rowlock.steps import Step
from rowlock.tasks import Enqueues, Policy, Recurring, Task

if TYPE_CHECKING:  # a process that only enqueues doesn't load the worker
    from rowlock.runtime.handlers import RunMiddleware

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", Context, Job)  # what the worker fills in for an async handler
S = TypeVar("S", Context, SyncContext, Job)  # … and for a sync one
M = TypeVar("M", bound=EnqueueMiddleware)
MR = TypeVar("MR", bound="RunMiddleware")


class TaskOptions(TypedDict, total=False):
    """The options of a task. `Policy` explains them."""

    version: int
    runs: Sequence[int]
    max_retries: int
    timeout: float | timedelta
    priority: int | str
    retry: RetryPolicy | Sequence[float]
    cancel: Cancel | bool
    key: Sequence[str] | None
    if_live: IfLive | None
    once: bool
    schedulable: bool
    limits: Sequence[Limit]
    fair: str | Fair | None
    retention: float | timedelta | None
    title: str | None
    description: str | None
    steps: Sequence[Step[..., Any, Any] | Callable[..., Any]]
    schedule: When | Recurring | Sequence[When | Recurring] | None
    external: bool
    process: bool
    memory: float | None


class TaskMaker(Protocol):
    """`@jobs.task(…)`. If the first parameter is a Context, SyncContext or Job, the worker fills it in, not the caller
    of enqueue."""

    @overload
    def __call__(  # type: ignore[overload-overlap] # a sync one may return a coroutine
        self, function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Callable[Concatenate[A, P], Coroutine[Any, Any, R]]]: ...

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[S, P], R], /) -> Task[P, R, Callable[Concatenate[S, P], R]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, Callable[P, R]]: ...


class Registry:
    """The part of `Jobs` that knows the handlers. `in_memory`: no other process can see the database."""

    def __init__(self, *, in_memory: bool) -> None:
        self._in_memory = in_memory
        self._versions: dict[str, dict[int, Task[..., Any]]] = {}  # by topic and version
        self._middleware: list[EnqueueMiddleware] = []
        self._run_middleware: list[RunMiddleware] = []

    @overload
    def task(  # type: ignore[overload-overlap] # a sync one may return a coroutine
        self, function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Callable[Concatenate[A, P], Coroutine[Any, Any, R]]]: ...

    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...

    @overload
    def task(self, function: Callable[Concatenate[S, P], R], /) -> Task[P, R, Callable[Concatenate[S, P], R]]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, Callable[P, R]]: ...

    @overload
    def task(self, topic: str | None = None, /, **options: Unpack[TaskOptions]) -> TaskMaker: ...

    def task(self, topic: Any = None, /, **policy: Any) -> Any:
        """Make a function a task. Its name, or the given topic, is the topic; its arguments are the payload.

        @jobs.task(max_retries=5, timeout=60)
        async def send_mail(to: str, subject: str) -> None: ...

        await send_mail.enqueue(to="ada@example.org", subject="hello")

        Async functions run in the worker's event loop, other functions in threads. With `process=True` a function runs
        in a child process. It is killed after the timeout, or if it uses more than `memory` MiB; other jobs continue.
        With `external=True` only workers of the worker protocol run it, in any language: the function declares its
        types for Python callers, and is never called.
        """
        if callable(topic):
            return self.register(_name(topic), topic)
        if unknown := sorted(policy.keys() - set(Policy.__struct_fields__)):  # before the function is defined
            raise InvalidInput(unknown[0], "unknown_option", f"is none of {', '.join(Policy.__struct_fields__)}")
        return lambda function: self.register(topic or _name(function), function, **policy)

    @overload
    def register(  # type: ignore[overload-overlap] # a sync one may return a coroutine
        self, topic: str, handler: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], **options: Unpack[TaskOptions]
    ) -> Task[P, R, Callable[Concatenate[A, P], Coroutine[Any, Any, R]]]: ...

    @overload
    def register(
        self, topic: str, handler: Callable[P, Coroutine[Any, Any, R]], **options: Unpack[TaskOptions]
    ) -> Task[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...

    @overload
    def register(
        self, topic: str, handler: Callable[Concatenate[S, P], R], **options: Unpack[TaskOptions]
    ) -> Task[P, R, Callable[Concatenate[S, P], R]]: ...

    @overload
    def register(
        self, topic: str, handler: Callable[P, R], **options: Unpack[TaskOptions]
    ) -> Task[P, R, Callable[P, R]]: ...

    def register(self, topic: str, handler: Callable[..., Any], **options: Any) -> Task[..., Any]:
        """`@jobs.task` without the decorator."""
        if unknown := sorted(options.keys() - set(Policy.__struct_fields__)):
            raise InvalidInput(unknown[0], "unknown_option", f"is none of {', '.join(Policy.__struct_fields__)}")
        if not callable(handler):
            raise InvalidInput("handler", "not_a_function", f"must be a function, not {handler!r:.40}")
        policy = Policy(**options)
        self._check_external(policy)
        self._check_process(policy)
        task: Task[..., Any] = Task(cast(Enqueues, self), topic, handler, policy)
        _ = task.template  # raises here if the policy is wrong, not at the first job
        versions = self._versions.setdefault(topic, {})
        if task.version in versions:
            raise InvalidInput(
                "version" if task.version else "topic",
                "registered_twice",
                f"{topic!r} has a handler of version {task.version} already: {versions[task.version]!r}",
            )
        for version in sorted(task.runs):
            for other in versions.values():
                if version == other.version or version in other.runs:
                    raise InvalidInput(
                        "runs", "registered_twice", f"version {version} of {topic!r} is run by {other!r}"
                    )
        versions[task.version] = task
        self._registered()
        return task

    def _registered(self) -> None:
        """Called after each registration."""

    def _check_external(self, policy: Policy) -> None:
        external: object = policy.external
        if not isinstance(external, bool):
            raise InvalidInput("external", "not_a_bool", f"must be True or False, not {external!r:.40}")
        for name in ("process", "runs", "steps") if external else ():
            if getattr(policy, name):
                problem = "is for workers of this library: an external topic is run elsewhere"
                raise InvalidInput(name, "not_here", problem)

    def _check_process(self, policy: Policy) -> None:
        process: object = policy.process
        if not isinstance(process, bool):
            raise InvalidInput("process", "not_a_bool", f"must be True or False, not {process!r:.40}")
        memory: object = policy.memory
        if memory is not None:
            if not policy.process:
                raise InvalidInput("memory", "not_here", "limits child processes only: give process=True as well")
            if isinstance(memory, bool) or not isinstance(memory, int | float) or not memory > 0:
                raise InvalidInput("memory", "out_of_range", f"must be MiB, more than 0, not {memory!r:.40}")
        if isinstance(policy.cancel, Cancel) and policy.cancel.mode == "kill" and not policy.process:
            raise InvalidInput("cancel.mode", "not_here", '"kill" ends child processes only: give process=True as well')
        if policy.process and self._in_memory:
            raise InvalidInput("process", "in_memory", "a child process can't see an in-memory database: use a file")

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks by topic; of several versions, the newest."""
        return {topic: versions[max(versions)] for topic, versions in self._versions.items()}

    def lanes(self) -> dict[Lane, Task[..., Any]]:
        """The tasks of this process by what they can run: declared versions, versions named in `runs`, and version 0.
        External topics are among them, although no worker of this process runs them."""
        lanes: dict[Lane, Task[..., Any]] = {}
        for topic, versions in self._versions.items():
            lanes[Lane(topic, 0)] = versions.get(0) or versions[max(versions)]
            for task in versions.values():
                lanes |= {Lane(topic, version): task for version in (*task.runs, task.version)}
        return lanes

    def on_enqueue(self, middleware: M) -> M:
        """Register a function, or generator function, that gets every job before it is written, and may change it."""
        check_middleware(middleware)
        self._middleware.append(middleware)
        return middleware

    def on_run(self, middleware: MR) -> MR:
        """Register a function, or generator function, that gets the Context of every run.

        The code before `yield` runs before the handler, in the same thread or task. `yield` returns the handler's
        result, or raises its exception. Another exception that the middleware raises replaces it.
        """
        check_middleware(middleware)
        self._run_middleware.append(middleware)
        return middleware

    @property
    def run_middleware(self) -> Sequence[RunMiddleware]:
        return tuple(self._run_middleware)


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise InvalidInput("topic", "missing", f"{function!r:.80} has no name: give a topic, @jobs.task('topic')")
    return name
