"""The imports, exports and memory of a WASM module, read from its binary.

wasmtime tells them only after it has compiled the module. That takes seconds for a large module, also in a process that
only enqueues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

PAGE = 1 << 16  # bytes of linear memory
_KINDS = ("function", "table", "memory", "global", "tag")
_VALUES = {0x7F: "i32", 0x7E: "i64", 0x7D: "f32", 0x7C: "f64", 0x7B: "v128", 0x70: "funcref", 0x6F: "externref"}


class Signature(NamedTuple):
    params: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        return f"({', '.join(self.params)}) → ({', '.join(self.results)})"


class Import(NamedTuple):
    module: str
    name: str
    kind: str
    signature: Signature | None  # None: no function

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"[:100]


class Binary:
    """The imports and exports of a module. It must be a valid one: nothing is checked here."""

    def __init__(self, data: bytes) -> None:
        self.imports: list[Import] = []
        self.exports: dict[str, str | Signature] = {}  # the signature of a function, the kind of anything else
        self.memory = 0  # bytes that it has at its start
        types: list[Signature] = []
        functions: list[Signature] = []
        for section, reader in _sections(data):
            match section:
                case 1:  # types
                    types = [reader.signature() for _ in range(reader.number())]
                case 2:  # imports
                    self.imports = [reader.imported(types) for _ in range(reader.number())]
                    functions = [one.signature for one in self.imports if one.signature is not None]
                case 3:  # functions
                    functions += [types[reader.number()] for _ in range(reader.number())]
                case 5:  # memories
                    self.memory = sum(reader.limits() for _ in range(reader.number())) * PAGE
                case 7:  # exports
                    self.exports = dict(reader.exported(functions) for _ in range(reader.number()))
                case _:
                    pass


def _sections(data: bytes) -> Iterator[tuple[int, _Reader]]:
    at = 8  # behind the magic number and the version
    while at < len(data):
        reader = _Reader(data, at + 1)
        size = reader.number()
        yield data[at], _Reader(data, reader.at)
        at = reader.at + size


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self.at = at

    def byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def number(self) -> int:
        """Read an unsigned number, seven bits in each byte."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text(self) -> str:
        size = self.number()
        self.at += size
        return self._data[self.at - size : self.at].decode()

    def limits(self) -> int:
        """Read two limits, and return the smaller one: the size at the start."""
        has_maximum = self.byte() & 1
        smallest = self.number()
        if has_maximum:
            self.number()
        return smallest

    def signature(self) -> Signature:
        self.byte()  # says that it is a function's type; there are no others without the GC proposal
        return Signature(self._values(), self._values())

    def _values(self) -> tuple[str, ...]:
        return tuple(_VALUES.get(byte := self.byte(), f"0x{byte:x}") for _ in range(self.number()))

    def imported(self, types: list[Signature]) -> Import:
        module, name, kind = self.text(), self.text(), self.byte()
        signature = None
        match kind:
            case 0:  # a function
                signature = types[self.number()]
            case 1:  # a table
                self.byte()
                self.limits()
            case 2:  # a memory
                self.limits()
            case _:  # a global: its type, and whether it can change
                self.at += 2
        return Import(module, name, _KINDS[kind], signature)

    def exported(self, functions: list[Signature]) -> tuple[str, str | Signature]:
        name, kind, index = self.text(), self.byte(), self.number()
        return name, functions[index] if kind == 0 else _KINDS[kind]
