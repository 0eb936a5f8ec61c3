"""Make a handler of a WASM module: check the file and the options, and call the module for each run."""

from __future__ import annotations

import hashlib
import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, cast
from weakref import WeakValueDictionary

import msgspec

from rowlock.context import SyncContext
from rowlock.core import codec
from rowlock.core.job import check_topic
from rowlock.errors import InvalidInput, MissingExtra
from rowlock.tasks import Misfit, ReturnType, injected, is_async
from rowlock.wasm import host, wasi
from rowlock.wasm.binary import PAGE, Binary, Import, Signature
from rowlock.wasm.guest import Guest, HostFunction, Sandbox

try:
    from wasmtime import Module, WasmtimeError

    from rowlock.wasm.program import Limits, Program, failure, make_engine
except ImportError:
    raise MissingExtra("wasm", "wasmtime") from None

DEFAULT_MEMORY = 64 << 20
DEFAULT_FUEL = 10_000_000_000
MAX_MEMORY = 1 << 32
MAX_FUEL = (1 << 63) - 1
MAX_FILE = 64 << 20
MAX_ENV = 1 << 16  # bytes
GRANTS = ("clock", "random")
HOST_MODULES: Mapping[str, Mapping[str, HostFunction]] = {
    "rowlock": host.FUNCTIONS,
    "wasi_snapshot_preview1": wasi.FUNCTIONS,
}
_CORE = b"\0asm\1\0\0\0"
_NOTICE = 1.0  # seconds after a cancel, for modules that ask rowlock.cancelled
_CONTEXT = "rowlock_context"  # the parameter that the worker fills in

_programs: WeakValueDictionary[bytes, Program] = WeakValueDictionary()  # by the hash of the file: compiled once


def make_handler(
    topic: str,
    file: str | os.PathLike[str],
    caller: FrameType,
    *,
    signature: Callable[..., Any] | None = None,
    memory: int = DEFAULT_MEMORY,
    fuel: int = DEFAULT_FUEL,
    grant: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    enqueue: Sequence[str] = (),
) -> Callable[..., Any]:
    """Return a sync handler that calls the module. Raise InvalidInput if it could not.

    `caller`: the code that registers it. A child process imports that module to find the handler.
    """
    topic = check_topic(topic)
    path, data = _read(file)
    limits = Limits(_number("memory", memory, PAGE, MAX_MEMORY), _number("fuel", fuel, 1, MAX_FUEL))
    granted = _grants(grant)
    topics = _topics(enqueue)
    sandbox = Sandbox(path.name, topics, _environment(env), "clock" in granted, "random" in granted)
    imports = _check_module(path.name, data, limits, topics)
    program = _program(data, imports)
    patience = _NOTICE if ("rowlock", "cancelled") in imports else 0.0
    types = _Types(signature)

    def handler(**values: Any) -> Any:
        ctx: SyncContext = values[_CONTEXT]
        stdin = msgspec.json.encode({**types.defaults, **ctx.job.payload})
        guest = Guest(ctx, sandbox, stdin)
        program.call(guest, limits, patience=patience)
        return _result(guest, types.returns)

    handler.__signature__ = types.signature  # type: ignore[attr-defined] # inspect.signature looks there
    handler.__annotations__ = types.hints
    handler.__name__ = topic
    handler.__module__ = caller.f_globals.get("__name__", "__main__")
    inside = caller.f_code.co_name != "<module>"  # then a child process can't find it by importing the module
    handler.__qualname__ = f"{caller.f_code.co_name}.<locals>.{topic}" if inside else topic
    handler.__doc__ = None if signature is None else signature.__doc__
    return handler


def _result(guest: Guest, returns: ReturnType) -> Any:
    """Return the result that the module wrote to stdout. An empty stdout is null."""
    text = bytes(guest.stdout).strip()
    try:
        result = codec.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise failure(guest, f"its stdout must be JSON, and is not: {error}. It begins with {text[:60]!r}") from None
    try:
        returns.read(result)
    except Misfit as misfit:
        where = f"result.{misfit.path}" if misfit.path else "result"
        raise failure(guest, f"its {where} {misfit.problem}, as the return annotation of its signature says") from None
    return result


class _Types:
    """The types of payload and result: those of a function, or any."""

    def __init__(self, function: Callable[..., Any] | None) -> None:
        if function is None:
            rest = inspect.Parameter("payload", inspect.Parameter.VAR_KEYWORD)
            parameters, hints = [rest], {"payload": Any, "return": Any}
        else:
            parameters, hints = _declared(function)
        context = inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY)
        is_rest = [one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters]
        place = len(parameters) - sum(is_rest)
        self.signature = inspect.Signature([*parameters[:place], context, *parameters[place:]])
        self.hints: dict[str, Any] = {**hints, _CONTEXT: SyncContext}
        self.returns = ReturnType(hints.get("return", Any))
        given = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
        try:
            self.defaults: dict[str, Any] = cast(dict[str, Any], msgspec.to_builtins(given, str_keys=True))
        except TypeError as error:
            raise InvalidInput("signature", "bad_default", f"its defaults must be JSON values: {error}") from None


def _declared(function: object) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    if not callable(function) or is_async(function):
        raise InvalidInput("signature", "not_a_function", f"must be a function without async, not {function!r:.40}")
    parameters = list(inspect.signature(function).parameters.values())
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise InvalidInput("signature", "unknown_type", f"{error}: import its types at run time") from None
    for one in parameters:
        if injected(hints.get(one.name)) is not None:
            problem = (
                "declares the payload and the result: a module gets no Context. It has the functions of docs/wasm.md"
            )
            raise InvalidInput(f"signature.{one.name}", "not_here", problem)
    return parameters, hints


def _program(data: bytes, imports: Mapping[tuple[str, str], HostFunction]) -> Program:
    key = hashlib.sha256(data).digest()
    program = _programs.get(key)
    if program is None:
        program = _programs[key] = Program(data, imports)
    return program


# ── Checks ──


def _read(file: object) -> tuple[Path, bytes]:
    if not isinstance(file, str | os.PathLike):
        raise InvalidInput("file", "not_a_path", f"must be the path of a .wasm file, not {file!r:.40}")
    path = Path(os.fsdecode(file))
    try:
        if path.stat().st_size > MAX_FILE:
            raise InvalidInput("file", "too_large", f"{path} is larger than {MAX_FILE:,} bytes")
        return path, path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        way_out = "" if path.is_absolute() else ". Name it relative to your code: Path(__file__).with_name(…)"
        why = getattr(error, "strerror", None) or error
        raise InvalidInput("file", "unreadable", f"{path.absolute()}: {why}{way_out}") from None


def _check_module(
    name: str, data: bytes, limits: Limits, topics: frozenset[str]
) -> dict[tuple[str, str], HostFunction]:
    """Return the host functions that the module imports. Raise InvalidInput if it can't be run so."""
    if not data.startswith(_CORE):
        raise InvalidInput("file", "not_wasm", f"{name} {_what_else(data)}")
    try:
        Module.validate(make_engine(), data)
    except WasmtimeError as error:
        problem = " ".join(str(error).split())
        raise InvalidInput("file", "invalid_wasm", f"{name} can't be run: {problem}") from None
    binary = Binary(data)
    imports = {(one.module, one.name): _granted(name, one, topics) for one in binary.imports}
    start = binary.exports.get("_start")
    if start != Signature((), ()):
        is_library = "_initialize" in binary.exports
        why = "is a library (a reactor)" if is_library else f"exports no function _start {Signature((), ())}"
        raise InvalidInput("file", "no_start", f"{name} {why}: build a program with a main function, for wasm32-wasi")
    if imports and binary.exports.get("memory") != "memory":
        raise InvalidInput("file", "no_memory", f"{name} does not export its memory as `memory`: the host needs it")
    if binary.memory > limits.memory:
        raise InvalidInput("memory", "too_small", f"{name} starts with {binary.memory:,} bytes: allow at least as many")
    return imports


def _what_else(data: bytes) -> str:
    if data.startswith(b"\0asm"):
        return "is a component or of another version: build a core module, for wasm32-wasi or wasm32-wasip1"
    if data.lstrip().startswith(b"("):
        return "is WebAssembly text: translate it first, with wat2wasm"
    return "is not a WASM module"


def _granted(name: str, wanted: Import, topics: frozenset[str]) -> HostFunction:
    if wanted.signature is None:
        raise InvalidInput(
            "file", "unknown_import", f"{name} imports the {wanted.kind} {wanted}: only functions are given"
        )
    functions = HOST_MODULES.get(wanted.module)
    if functions is None:
        known = " and ".join(HOST_MODULES)
        raise InvalidInput("file", "unknown_import", f"{name} imports {wanted}: there are only the modules {known}")
    found = functions.get(wanted.name)
    if found is None:
        which = ", ".join(functions) if wanted.module == "rowlock" else "those of WASI preview 1"
        raise InvalidInput("file", "unknown_import", f"{name} imports {wanted}: {wanted.module} has only {which}")
    if found.signature != wanted.signature:
        problem = f"{name} imports {wanted} as {wanted.signature}: it is {found.signature}"
        raise InvalidInput("file", "wrong_signature", problem)
    if found is host.enqueue and not topics:
        raise InvalidInput("enqueue", "missing", f"{name} imports {wanted}: name the topics that it may enqueue")
    return found


def _number(field: str, given: object, least: int, most: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise InvalidInput(field, "out_of_range", f"must be an integer from {least:,} to {most:,}, not {given!r:.40}")
    return given


def _list(field: str, given: object, what: str) -> list[Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence | set | frozenset):
        raise InvalidInput(field, "not_a_list", f"must be a list of {what}, not {given!r:.40}")
    return list(given)


def _topics(given: object) -> frozenset[str]:
    topics = _list("enqueue", given, 'topics, such as ["report"]')
    try:
        return frozenset(check_topic(one) for one in topics)
    except InvalidInput as error:
        raise InvalidInput("enqueue", error.code, f"has a bad topic: {error.problem}") from None


def _grants(given: object) -> list[str]:
    grants = _list("grant", given, 'grants, such as ["clock"]')
    for one in grants:
        if one not in GRANTS:
            raise InvalidInput("grant", "unknown", f"{one!r:.40} is none of {', '.join(GRANTS)}")
    return grants


def _environment(given: object) -> Mapping[str, str]:
    env = {} if given is None else given
    if not isinstance(env, Mapping):
        raise InvalidInput("env", "not_a_mapping", f"must map names to texts, not {env!r:.40}")
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise InvalidInput("env", "bad_name", f"{name!r:.40} is no name of a variable")
        if not isinstance(value, str) or "\0" in value:
            raise InvalidInput(f"env.{name}", "bad_value", "must be a text without NUL")
    try:
        size = sum(len(f"{name}={value}".encode()) + 1 for name, value in env.items())
    except UnicodeEncodeError:
        raise InvalidInput("env", "bad_value", "holds a lone surrogate, which is not valid Unicode") from None
    if size > MAX_ENV:
        raise InvalidInput("env", "too_large", f"is {size:,} bytes, at most {MAX_ENV:,} are allowed")
    return dict(env)
