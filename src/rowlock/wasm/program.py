"""Program: a module, checked when it is registered, compiled when it is first called, and called in fresh instances."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from wasmtime import (
    Config,
    Engine,
    Func,
    FuncType,
    InstancePre,
    Linker,
    Memory,
    Module,
    Store,
    Trap,
    TrapCode,
    ValType,
    WasmtimeError,
)

from rowlock.errors import Interrupted
from rowlock.wasm.guest import Exit, Guest, HostFunction, ModuleFailed
from rowlock.wasm.watch import watch

_MAX_STACK = 512 << 10  # bytes, of the thread that calls it
_MAX_TABLE = 100_000  # elements
_MAX_FRAMES = 5  # of a trap's backtrace, in an error
_VALUES: dict[str, Callable[[], ValType]] = {
    "i32": ValType.i32,
    "i64": ValType.i64,
    "f32": ValType.f32,
    "f64": ValType.f64,
}
_REASONS = {
    TrapCode.STACK_OVERFLOW: "its stack is full: it recurses too deeply",
    TrapCode.MEMORY_OUT_OF_BOUNDS: "it accessed memory outside of its own",
    TrapCode.TABLE_OUT_OF_BOUNDS: "it accessed a table outside of its bounds",
    TrapCode.INDIRECT_CALL_TO_NULL: "it called a function pointer that is null",
    TrapCode.BAD_SIGNATURE: "it called a function pointer of another type",
    TrapCode.INTEGER_OVERFLOW: "an integer overflowed",
    TrapCode.INTEGER_DIVISION_BY_ZERO: "it divided an integer by zero",
    TrapCode.BAD_CONVERSION_TO_INTEGER: "it converted a number that is no integer",
    TrapCode.UNREACHABLE: "it aborted (unreachable)",
}

_calls = threading.local()  # .guest: the Guest whose module this thread runs


class Limits(NamedTuple):
    memory: int  # bytes
    fuel: int


def make_engine() -> Engine:
    """Return an engine that runs standard WebAssembly, with as few proposals as compilers need."""
    config = Config()
    config.consume_fuel = True
    config.epoch_interruption = True
    config.max_wasm_stack = _MAX_STACK
    config.parallel_compilation = False  # its threads would not survive a fork()
    config.signals_based_traps = False  # checks in the code instead of handlers for SIGSEGV in the worker's process
    config.wasm_threads = False
    config.wasm_multi_memory = False
    config.wasm_memory64 = False
    config.wasm_relaxed_simd = False
    config.wasm_tail_call = False
    config.wasm_exceptions = False
    config.wasm_function_references = False
    config.wasm_gc = False
    return Engine(config)


class Program:
    """`imports`: the host functions that the module imports, by the names of module and function."""

    compilations = 0  # of all programs of this process

    def __init__(self, data: bytes, imports: Mapping[tuple[str, str], HostFunction]) -> None:
        self._data = data
        self._imports = imports
        self._compiled: bytes | bytearray | None = None
        self._compiling = threading.Lock()
        self._idle: list[_Seat] = []

    def call(self, guest: Guest, limits: Limits, *, patience: float) -> None:
        """Run the module in a new instance. If it fails, raise the error that ended it. `patience`: see Watch.add."""
        try:
            seat = self._idle.pop()
        except IndexError:
            seat = self._seat()
        try:
            seat.call(guest, limits, patience)
        finally:
            self._idle.append(seat)

    def _seat(self) -> _Seat:
        with self._compiling:
            if self._compiled is None:
                module = Module(make_engine(), self._data)
                Program.compilations += 1
                self._compiled = module.serialize()
        return _Seat(self._compiled, self._imports)


class _Seat:
    """The compiled module in an engine of its own, for one call at a time. An interruption would end all calls of an
    engine."""

    def __init__(self, compiled: bytes | bytearray, imports: Mapping[tuple[str, str], HostFunction]) -> None:
        self._engine = make_engine()
        linker = Linker(self._engine)
        for (module, name), function in imports.items():
            types = [[_VALUES[one]() for one in some] for some in function.signature]
            linker.define_func(module, name, FuncType(*types), partial(_host_call, function))
        self._instance: InstancePre = linker.instantiate_pre(Module.deserialize(self._engine, compiled))

    def call(self, guest: Guest, limits: Limits, patience: float) -> None:
        with Store(self._engine) as store:
            store.set_limits(memory_size=limits.memory, table_elements=_MAX_TABLE, instances=1, tables=10, memories=1)
            store.set_fuel(limits.fuel)
            store.set_epoch_deadline(1)
            guest.stop = lambda: store.set_fuel(0)  # it ends at its next loop or call
            watching = watch()
            watching.add(guest, self._engine.increment_epoch, patience)
            _calls.guest = guest
            trapped: Trap | WasmtimeError | None = None
            try:
                self._run(store, guest)
            except (Trap, WasmtimeError) as error:
                trapped = error
            finally:
                del _calls.guest
                watching.remove(guest)
                guest.flush_stderr()
            if guest.ended is not None:
                _check_end(guest)
            elif trapped is not None:
                raise _explained(trapped, guest, limits) from None

    def _run(self, store: Store, guest: Guest) -> None:
        exports = self._instance.instantiate(store).exports(store)
        memory, start = exports.get("memory"), exports["_start"]
        assert isinstance(start, Func)  # noqa: S101 - checked when the module was registered
        if isinstance(memory, Memory):
            guest.memory = _InstanceMemory(memory, store)
        start(store)


class _InstanceMemory:
    def __init__(self, memory: Memory, store: Store) -> None:
        self._memory = memory
        self._store = store

    def address(self) -> int:
        return ctypes.cast(self._memory.data_ptr(self._store), ctypes.c_void_p).value or 0

    def size(self) -> int:
        return self._memory.data_len(self._store)


def _host_call(function: HostFunction, *arguments: Any) -> Any:
    """Call a host function for the module that this thread runs. It never raises: wasmtime keeps an exception in a
    variable that all threads share, so another module's call could end with it."""
    guest: Guest = _calls.guest
    if guest.ended is not None:
        return function.nothing
    try:
        return function.call(guest, *arguments)
    except BaseException as error:
        guest.end(error)
        return function.nothing


def _check_end(guest: Guest) -> None:
    """Raise the error with which a host function has ended the module, except for a proc_exit with code 0."""
    match guest.ended:
        case None | Exit(code=0):
            pass
        case Exit(code=code):
            raise failure(guest, f"it exited with code {code}")
        case ModuleFailed() as error:
            raise failure(guest, str(error))
        case BaseException() as error:
            raise error


def _explained(error: Trap | WasmtimeError, guest: Guest, limits: Limits) -> BaseException:
    """Return the error that tells why the module has ended."""
    code = error.trap_code if isinstance(error, Trap) else None
    match code:
        case TrapCode.INTERRUPT:
            try:
                guest.ctx.check()
            except Interrupted as why:
                return why
            reason = "it was interrupted"
        case TrapCode.OUT_OF_FUEL:
            reason = f"it used up its fuel of {limits.fuel:,}. Give it more (fuel=…), or less work"
        case None:
            reason = str(error).splitlines()[0]
        case _:
            reason = _REASONS.get(code, code.name.lower().replace("_", " "))
    used = (
        "" if guest.memory is None else f". It had {guest.memory.size():,} of at most {limits.memory:,} bytes of memory"
    )
    return failure(guest, f"{reason}{used}{_frames(error)}")


def failure(guest: Guest, reason: str) -> ModuleFailed:
    """Return the error, with the last lines that the module wrote to stderr. It is one line: lists of failures show the
    last line of an error."""
    lines = " | ".join(guest.last_lines)
    return ModuleFailed(f"{guest.sandbox.name}: {reason}" + (f". Its last lines on stderr: {lines}" if lines else ""))


def _frames(error: Trap | WasmtimeError) -> str:
    """Return the functions of the backtrace, the innermost first."""
    frames = error.frames[:_MAX_FRAMES] if isinstance(error, Trap) else []
    shown = [f"{(one.func_name or f'function {one.func_index}')[:80]} ({one.module_offset:#x})" for one in frames]
    return f". It was in {', called by '.join(shown)}" if shown else ""
