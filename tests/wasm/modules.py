"""WebAssembly modules for tests. A test gives only the instructions of _start, as text."""

import re
from pathlib import Path

from wasmtime import wat2wasm

from rowlock.wasm.binary import PAGE
from rowlock.wasm.handler import HOST_MODULES

# The iovec for fd_read and fd_write is at 0, the number of bytes at 8, and the data are in the rest of the page.
ECHO = """
    (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 60000))
    (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (i32.store (i32.const 4) (i32.load (i32.const 8)))
    (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
"""


def imports(text: str) -> str:
    """Return the imports of the host functions that this text calls. Each import keeps the function's name."""
    found = []
    for module, functions in HOST_MODULES.items():
        for name, function in functions.items():
            if re.search(rf"\$({name})\b", text):
                params, results = (" ".join(some) for some in function.signature)
                found.append(f'(import "{module}" "{name}" (func ${name} (param {params}) (result {results})))')
    return "\n".join(found)


def wat(start: str, *, more: str = "", memory: str = "1") -> str:
    return f"""(module {imports(start + more)}
        (memory (export "memory") {memory})
        {more}
        (func (export "_start") {start}))"""


def writing(text: str | bytes, fd: int = 1) -> str:
    """Return instructions that write this text."""
    data = text.encode() if isinstance(text, str) else text
    assert len(data) < PAGE - 64
    stores = "".join(f"(i32.store8 (i32.const {64 + n}) (i32.const {byte}))" for n, byte in enumerate(data))
    return f"""{stores}
        (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const {len(data)}))
        (drop (call $fd_write (i32.const {fd}) (i32.const 0) (i32.const 1) (i32.const 8)))"""


def text_at(place: int, text: str) -> str:
    """Return a data segment with this text."""
    escaped = "".join(f"\\{byte:02x}" for byte in text.encode())
    return f'(data (i32.const {place}) "{escaped}")'


def saved(folder: Path, text: str, name: str = "module.wasm") -> Path:
    file = folder / name
    file.write_bytes(bytes(wat2wasm(text)))
    return file
