"""The tasks and the middleware that an application has registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from rowlock.client.enqueue import checked
from rowlock.client.middleware import EnqueueMiddleware, check_middleware
from rowlock.context import Context
from rowlock.core.job import DEFAULT_MAX_RETRIES, DEFAULT_PRIORITY, DEFAULT_TIMEOUT, Job
from rowlock.core.retry import DEFAULT_RETRY, RetryPolicy
from rowlock.errors import InvalidInput
from rowlock.tasks import Draft, Enqueues, Policy, Task

if TYPE_CHECKING:  # a process that only enqueues doesn't load the worker
    from rowlock.runtime.handlers import RunMiddleware

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=EnqueueMiddleware)
MR = TypeVar("MR", bound="RunMiddleware")


class TaskMaker(Protocol):
    """`@jobs.task(…)`. If the first parameter is a Context or Job, the worker fills it in, not the caller of
    enqueue."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class Registry:
    """The part of `Jobs` that knows the handlers. `in_memory`: no other process can see the database."""

    def __init__(self, *, in_memory: bool) -> None:
        self._in_memory = in_memory
        self._tasks: dict[str, Task[..., Any]] = {}
        self._middleware: list[EnqueueMiddleware] = []
        self._run_middleware: list[RunMiddleware] = []

    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def task(self, function: Callable[Concatenate[Job, P], R], /) -> Task[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        topic: str | None = None,
        /,
        *,
        max_retries: int = ...,
        timeout: float | timedelta = ...,
        priority: int | str = ...,
        retry: RetryPolicy = ...,
        process: bool = ...,
        memory: float | None = ...,
    ) -> TaskMaker: ...

    def task(self, topic: Any = None, /, **policy: Any) -> Any:
        """Make a function a task. Its name, or the given topic, is the topic; its arguments are the payload.

        @jobs.task(max_retries=5, timeout=60)
        async def send_mail(to: str, subject: str) -> None: ...

        await send_mail.enqueue(to="ada@example.org", subject="hello")

        Async functions run in the worker's event loop, other functions in threads. With `process=True` a function runs
        in a child process. It is killed after the timeout, or if it uses more than `memory` MiB; other jobs continue.
        """
        if callable(topic):
            return self.register(_name(topic), topic)
        if unknown := sorted(policy.keys() - set(Policy.__struct_fields__)):
            raise InvalidInput(unknown[0], "unknown_option", f"is none of {', '.join(Policy.__struct_fields__)}")
        return lambda function: self.register(topic or _name(function), function, **policy)

    def register(
        self,
        topic: str,
        handler: Callable[P, R],
        *,
        max_retries: int = DEFAULT_MAX_RETRIES,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        priority: int | str = DEFAULT_PRIORITY,
        retry: RetryPolicy = DEFAULT_RETRY,
        process: bool = False,
        memory: float | None = None,
    ) -> Task[P, R]:
        """`@jobs.task` without the decorator."""
        policy = Policy(
            max_retries=max_retries, timeout=timeout, priority=priority, retry=retry, process=process, memory=memory
        )
        self._check_process(policy)
        task = Task(cast(Enqueues, self), topic, handler, policy)
        checked(
            Draft(topic, {}, policy.defaults()), "", None
        )  # raises here if the policy is wrong, not at the first job
        if topic in self._tasks:
            raise InvalidInput("topic", "registered_twice", f"{topic!r} has a handler already: {self._tasks[topic]!r}")
        self._tasks[topic] = task
        return task

    def _check_process(self, policy: Policy) -> None:
        memory: object = policy.memory
        if memory is not None:
            if not policy.process:
                raise InvalidInput("memory", "not_here", "limits child processes only: give process=True as well")
            if isinstance(memory, bool) or not isinstance(memory, int | float) or not memory > 0:
                raise InvalidInput("memory", "out_of_range", f"must be MiB, more than 0, not {memory!r:.40}")
        if policy.process and self._in_memory:
            raise InvalidInput("process", "in_memory", "a child process can't see an in-memory database: use a file")

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        return dict(self._tasks)

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
