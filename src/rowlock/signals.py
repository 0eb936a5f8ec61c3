"""Signal: a message from outside to a job that waits, typed at both ends.

decision = Signal("decision", Decision)

@jobs.task
async def approval(ctx: Context, request: int) -> str:
    got = await ctx.wait_for(decision, timeout=3 * DAY)      # got: Decision

await jobs.signal(job_id, decision, Decision(ok=True))
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from msgspec import Struct

from rowlock.core import codec
from rowlock.core.waits import check_signal_name
from rowlock.errors import InvalidInput
from rowlock.schemas import result_schema
from rowlock.tasks import Misfit, ReturnType

if TYPE_CHECKING:
    import typing_extensions  # its TypeVar has a default, also before Python 3.13

    T = typing_extensions.TypeVar("T", default=Any)
else:
    T = TypeVar("T")


own_job: ContextVar[str | None] = ContextVar("rowlock_own_job", default=None)
"""The id of the job whose handler runs here. A worker sets it: a job must not signal itself."""


class Signal(Generic[T]):
    """A name, and the type of the data. Without a type, the data is any JSON."""

    @overload
    def __init__(self, name: str) -> None: ...

    @overload
    def __init__(self, name: str, type: type[T]) -> None: ...

    def __init__(self, name: str, type: Any = Any) -> None:
        self.name = check_signal_name(name)
        self._data = ReturnType(type)

    def __repr__(self) -> str:
        return f"<Signal {self.name}>"

    @property
    def schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the data; None: any JSON."""
        return result_schema(self._data.type)

    def encode(self, data: T) -> str:
        """Return the data as JSON text. Raise InvalidInput if it does not fit the type, or can't be stored."""
        text = codec.encode(self._data.storable(data), "data")
        self.read(codec.decode(text))
        return text

    def read(self, value: Any) -> T:
        """Return JSON values in the signal's type. Raise InvalidInput if they don't fit."""
        try:
            found: T = self._data.read(value)
        except Misfit as misfit:
            where = f"data.{misfit.path}" if misfit.path else "data"
            problem = f"{misfit.problem} (signal {self.name})"
            raise InvalidInput(where, "bad_type", problem) from None
        return found


def signal_of(signal: Signal[T] | str) -> Signal[T]:
    """Return the signal; a plain name stands for a signal with any data."""
    return signal if isinstance(signal, Signal) else Signal(signal)


class Callback(Struct, frozen=True):
    """An address for the outside world, made by `ctx.callback`. A POST to `url` sends the signal to the job, once."""

    signal: str
    url: str
