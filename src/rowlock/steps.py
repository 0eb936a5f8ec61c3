"""Steps: `@step` gives a function a policy for `ctx.step`. A plain function is a step without one.

@step(timeout=60, retry=[30, 120])
async def charge(order: int) -> str: ...

@jobs.task
async def sell(ctx: Context, order: int) -> str:
    return await ctx.step(charge, order)     # runs once; a retry of the job gets the stored result
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import NoneType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from rowlock.core import codec
from rowlock.core.job import DEFAULT_MAX_RETRIES, check_flag, check_timeout, check_whole
from rowlock.core.retry import DEFAULT_RETRY, RetryPolicy
from rowlock.core.templates import MAX_TITLE, StepInfo, check_step_name
from rowlock.errors import InvalidInput
from rowlock.tasks import ReturnType, check_retry, injected, is_async

if TYPE_CHECKING:
    import typing_extensions  # its TypeVar has a default, also before Python 3.13

    from rowlock.context import Context, SyncContext

    F_co = typing_extensions.TypeVar("F_co", bound=Callable[..., Any], covariant=True, default=Callable[..., Any])
    A = TypeVar("A", bound=Context)  # what ctx.step fills in for an async function
    S = TypeVar("S", Context, SyncContext)  # … and for a sync one
else:
    F_co = TypeVar("F_co", covariant=True)
    A = TypeVar("A")
    S = TypeVar("S")

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
Owner = TypeVar("Owner")
R_co = TypeVar("R_co", covariant=True)

# The result of calling an async function. Not Coroutine[Any, Any, R]: with Any, mypy finds ctx.step ambiguous.
Running = Coroutine[object, None, R]

_KEPT = "__rowlock_step__"


class StepOptions(TypedDict, total=False):
    """The policy of a step. `title`: for people. `timeout`: seconds after which a try fails. `weight`: its share of the
    job's progress. `cancelable` False: it ends before a cancel takes effect, and may run after one. `retry` and
    `max_retries`: its own retries; without both, the job's policy decides. `was`: names that it had before."""

    title: str
    timeout: float | timedelta
    weight: float
    cancelable: bool
    retry: RetryPolicy | Sequence[float]
    max_retries: int
    was: str | Sequence[str]


class Step(Generic[P, R_co, F_co]):
    """Made by `@step`. Calling it runs the function directly; `ctx.step(it, …)` stores its result.

    `Step[P, R]`: P are the arguments of `ctx.step`, R is what the function returns (for `async def`: what its coroutine
    returns). The third type is the function's own. It may be left out.
    """

    def __init__(self, function: F_co, options: StepOptions | None = None, name: str | None = None) -> None:
        given: StepOptions = options or {}
        if not callable(function):
            raise InvalidInput("step", "not_callable", f"{function!r:.80} is no function: put @step above a function")
        if unknown := sorted(given.keys() - StepOptions.__annotations__.keys()):
            known = ", ".join(StepOptions.__annotations__)
            raise InvalidInput(unknown[0], "unknown_option", f"is none of {known}")
        self.function = function
        self._options = given
        self._name = None if name is None else check_step_name(name)
        self.function_name = _name_of(function)
        self.is_async = is_async(function)
        self.timeout = None if given.get("timeout") is None else check_timeout(given["timeout"])
        self.weight = _check_weight(given.get("weight", 1.0))
        self.cancelable = check_flag(given.get("cancelable", True), "cancelable")
        was: object = given.get("was", ())
        if isinstance(was, bytes) or not isinstance(was, str | Sequence):
            raise InvalidInput("was", "not_text", f"must be a name, or a list of names, not {was!r:.40}")
        self.was = tuple(check_step_name(one, "was") for one in ([was] if isinstance(was, str) else was))
        self.has_policy = given.get("retry") is not None or given.get("max_retries") is not None
        self.retry = check_retry(given.get("retry", DEFAULT_RETRY))
        self.max_retries = check_whole(given.get("max_retries", DEFAULT_MAX_RETRIES), "max_retries", 0, 1_000_000)
        title: object = given.get("title")
        self.title = None if title is None else codec.check_text(title, "title", max_chars=MAX_TITLE)
        self.takes = _context_kind(function)
        self._returns: ReturnType | None = None
        self.__doc__ = function.__doc__
        self.__name__ = self.function_name

    def __repr__(self) -> str:
        return f"<Step {self._name or self.function_name}>"

    @property
    def name(self) -> str:
        return check_step_name(self.function_name) if self._name is None else self._name

    @property
    def returns(self) -> ReturnType:
        """Return the converter of the function's results to JSON, and back."""
        if self._returns is None:
            self._returns = ReturnType(_hint(self.function, "return"))
        return self._returns

    @property
    def info(self) -> StepInfo:
        """Return the entry of this step in a template."""
        return StepInfo(
            name=self.name,
            title=self.title,
            timeout=self.timeout,
            weight=self.weight,
            cancelable=self.cancelable,
            max_retries=self.max_retries if self.has_policy else None,
        )

    def using(self, *, name: str) -> Step[P, R_co, F_co]:
        """Return the step under another name: `ctx.step(fetch.using(name="fetch prices"), url)`."""
        return Step(self.function, self._options, name)

    @overload
    def __get__(self, owner: None, kind: type, /) -> Step[P, R_co, F_co]: ...

    @overload
    def __get__(
        self: Step[Concatenate[Owner, A, Q], R, Callable[Concatenate[Owner, A, Q], Running[R]]],
        owner: Owner,
        kind: type,
        /,
    ) -> Step[Q, R, Callable[Concatenate[A, Q], Running[R]]]: ...

    @overload
    def __get__(
        self: Step[Concatenate[Owner, Q], R, Callable[Concatenate[Owner, Q], Running[R]]], owner: Owner, kind: type, /
    ) -> Step[Q, R, Callable[Q, Running[R]]]: ...

    @overload
    def __get__(
        self: Step[Concatenate[Owner, S, Q], R, Callable[Concatenate[Owner, S, Q], R]], owner: Owner, kind: type, /
    ) -> Step[Q, R, Callable[Concatenate[S, Q], R]]: ...

    @overload
    def __get__(
        self: Step[Concatenate[Owner, Q], R, Callable[Concatenate[Owner, Q], R]], owner: Owner, kind: type, /
    ) -> Step[Q, R, Callable[Q, R]]: ...

    def __get__(self, owner: object, kind: type, /) -> Step[..., Any, Any]:
        """Bind the step of a class to an object, as Python binds its methods."""
        bind = getattr(self.function, "__get__", None)
        return self if owner is None or bind is None else Step(bind(owner, kind), self._options, self._name)

    @property
    def seems_to_take_context(self) -> bool:
        """True if a parameter looks like a Context that ctx.step doesn't fill in."""
        try:
            names = list(inspect.signature(self.function).parameters)
        except (TypeError, ValueError):  # a function that is written in C
            return False
        return "ctx" in names or any(_context_at(self.function, name) is not None for name in names)

    if TYPE_CHECKING:

        @property
        def __call__(self) -> F_co: ...

    else:

        def __call__(self, *args, **kwargs):
            return self.function(*args, **kwargs)

        def __class_getitem__(cls, types):
            """Fill in the third type: a TypeVar has no default at run time before Python 3.13."""
            given = types if isinstance(types, tuple) else (types,)
            return super().__class_getitem__((*given, Callable[..., Any]) if len(given) == 2 else given)


class StepMaker(Protocol):
    """`@step(…)`. If the first parameter is a Context or SyncContext, ctx.step fills it in, not its caller."""

    @overload
    def __call__(  # type: ignore[overload-overlap] # a sync one may return a coroutine
        self, function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], /
    ) -> Step[P, R, Callable[Concatenate[A, P], Running[R]]]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R, Callable[P, Running[R]]]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[S, P], R], /) -> Step[P, R, Callable[Concatenate[S, P], R]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R, Callable[P, R]]: ...


@overload
def step(  # type: ignore[overload-overlap] # a sync one may return a coroutine
    function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], /
) -> Step[P, R, Callable[Concatenate[A, P], Running[R]]]: ...


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R, Callable[P, Running[R]]]: ...


@overload
def step(function: Callable[Concatenate[S, P], R], /) -> Step[P, R, Callable[Concatenate[S, P], R]]: ...


@overload
def step(function: Callable[P, R], /) -> Step[P, R, Callable[P, R]]: ...


@overload
def step(**options: Unpack[StepOptions]) -> StepMaker: ...


def step(function: Any = None, /, **options: Any) -> Any:
    """Give a function a policy for `ctx.step`: `@step`, or `@step(timeout=60, retry=[30, 120], …)`. See StepOptions."""
    if function is not None:
        return Step(function)
    return lambda decorated: Step(decorated, typing.cast(StepOptions, options))


def step_of(function: Step[..., Any, Any] | Callable[..., Any], field: str = "step") -> Step[..., Any]:
    """Return the function as a Step. A plain function keeps its own: reading its annotations takes a while. `field`:
    what an error names."""
    if isinstance(function, Step):
        return function
    kept = getattr(function, _KEPT, None)
    if isinstance(kept, Step) and kept.function is function:  # functools.wraps copies attributes
        return kept
    if not callable(function):
        raise InvalidInput(field, "not_callable", f"{function!r:.80} is no function: give a function, or a Step")
    made: Step[..., Any] = Step(function)
    with suppress(AttributeError, TypeError):  # not every callable takes attributes
        setattr(function, _KEPT, made)
    return made


def _check_weight(weight: object) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1e6:
        raise InvalidInput("weight", "out_of_range", f"must be 0 to 1,000,000, not {weight!r:.40}")
    return float(weight)


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def _context_kind(function: Callable[..., Any]) -> type | None:
    """Return Context or SyncContext if the first parameter is one: ctx.step fills it in."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a function that is written in C
        return None
    if not parameters or parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return None
    return _context_at(function, parameters[0].name)


def _context_at(function: Callable[..., Any], parameter: str) -> type | None:
    from rowlock.context import Context, SyncContext  # that module imports tasks, which imports this one

    try:
        kind = injected(_hint(function, parameter))
    except InvalidInput:  # a type that exists for type checkers only
        return None
    return kind if kind in (Context, SyncContext) else None


def _hint(function: Callable[..., Any], name: str) -> Any:
    """Return the annotation of one parameter, or of what it returns. The others need not exist at run time."""
    while isinstance(function, partial):
        function = function.func
    target: Any = function if inspect.isroutine(function) else type(function).__call__
    target = inspect.unwrap(target)
    hint = getattr(target, "__annotations__", {}).get(name, Any)
    if not isinstance(hint, str):
        return NoneType if hint is None else hint
    holder = SimpleNamespace(__annotations__={name: hint})
    try:
        return typing.get_type_hints(holder, getattr(target, "__globals__", {}), include_extras=True)[name]
    except NameError as error:
        raise InvalidInput(
            name,
            "unknown_type",
            f"{_name_of(function)}: {error}: import the types of a step at run time, not under TYPE_CHECKING",
        ) from None
