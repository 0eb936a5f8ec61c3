"""A module that can't run is refused when it is registered. The error names the field and a way out."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wasmtime")

from rowlock import Context, Jobs
from rowlock.errors import InvalidInput
from rowlock.runtime.find_handler import name_of
from rowlock.runtime.processes import refusal
from rowlock.wasm.program import Program
from tests.wasm.modules import ECHO, saved, wat

NOOP = wat("")


@pytest.fixture
def jobs() -> Jobs:
    return Jobs("sqlite:///:memory:")


def refused(jobs: Jobs, file: Any, **options: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as raised:
        jobs.wasm("work", file, **options)
    assert "work" not in jobs.tasks
    return raised.value


def test_a_file_that_is_not_there(jobs: Jobs, tmp_path: Path) -> None:
    error = refused(jobs, tmp_path / "no.wasm")
    assert (error.field, error.code) == ("file", "unreadable")
    assert "No such file" in error.problem
    assert "Path(__file__).with_name" in refused(jobs, "no.wasm").problem
    assert refused(jobs, tmp_path).code == "unreadable"
    assert refused(jobs, 7).code == "not_a_path"
    assert refused(jobs, "a\0b").code == "unreadable"


@pytest.mark.parametrize(
    ("data", "code", "problem"),
    [
        (b"", "not_wasm", "is not a WASM module"),
        (b"\x7fELF\2\1\1", "not_wasm", "is not a WASM module"),
        (b"(module)", "not_wasm", "wat2wasm"),
        (b"\0asm\x0d\0\1\0", "not_wasm", "build a core module"),
        (b"\0asm\1\0\0\0\1", "invalid_wasm", "can't be run"),
        (b"\0asm\1\0\0\0" + b"\xff" * 40, "invalid_wasm", "can't be run"),
    ],
)
def test_a_file_that_is_no_module(jobs: Jobs, tmp_path: Path, data: bytes, code: str, problem: str) -> None:
    file = tmp_path / "odd.wasm"
    file.write_bytes(data)
    error = refused(jobs, file)
    assert (error.field, error.code) == ("file", code)
    assert problem in error.problem


@pytest.mark.parametrize(
    ("text", "field", "code", "problem"),
    [
        ("(module)", "file", "no_start", "exports no function _start"),
        ('(module (func (export "_initialize")))', "file", "no_start", "is a library"),
        ('(module (func (export "_start") (param i32)))', "file", "no_start", "_start () → ()"),
        ('(module (memory (export "_start") 1))', "file", "no_start", "exports no function"),
        (
            '(module (import "rowlock" "cancelled" (func (result i32))) (func (export "_start")))',
            "file",
            "no_memory",
            "export its memory",
        ),
        (wat("", memory="1025"), "memory", "too_small", "67,174,400 bytes"),
        ('(module (import "env" "abort" (func)))', "file", "unknown_import", "env.abort: there are only the modules"),
        ('(module (import "rowlock" "shell" (func)))', "file", "unknown_import", "rowlock has only progress, log"),
        (
            '(module (import "wasi_snapshot_preview1" "path_chmod" (func)))',
            "file",
            "unknown_import",
            "has only those of WASI preview 1",
        ),
        ('(module (import "env" "memory" (memory 1)))', "file", "unknown_import", "the memory env.memory"),
        ('(module (import "env" "t" (table 1 funcref)))', "file", "unknown_import", "the table env.t"),
        ('(module (import "rowlock" "log" (global i32)))', "file", "unknown_import", "the global rowlock.log"),
        (
            '(module (import "rowlock" "log" (func (param i64 i64))))',
            "file",
            "wrong_signature",
            "as (i64, i64) → (): it is (i32, i32, i32) → ()",
        ),
        (
            '(module (import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32))))',
            "file",
            "wrong_signature",
            "it is (i32, i32, i32, i32) → (i32)",
        ),
        (
            wat("(drop (call $enqueue (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))"),
            "enqueue",
            "missing",
            "name the topics",
        ),
        # WebAssembly proposals that rowlock turns off
        (wat("", more="(memory 1)"), "file", "invalid_wasm", "multiple memories"),
        ('(module (memory (export "memory") i64 1) (func (export "_start")))', "file", "invalid_wasm", "memory64"),
        ('(module (memory (export "memory") 1 2 shared) (func (export "_start")))', "file", "invalid_wasm", "threads"),
        (wat("", more="(tag $t)"), "file", "invalid_wasm", "exceptions"),
        (wat("", more="(type (struct (field i32)))"), "file", "invalid_wasm", "gc"),
        (wat("", more="(func $f (return_call $f))"), "file", "invalid_wasm", "tail call"),
    ],
)
def test_a_module_that_can_not_run(jobs: Jobs, tmp_path: Path, text: str, field: str, code: str, problem: str) -> None:
    error = refused(jobs, saved(tmp_path, text))
    assert (error.field, error.code) == (field, code)
    assert problem in error.problem


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"memory": 65535}, "memory"),
        ({"memory": (1 << 32) + 1}, "memory"),
        ({"memory": True}, "memory"),
        ({"memory": 1e6}, "memory"),
        ({"fuel": 0}, "fuel"),
        ({"fuel": -1}, "fuel"),
        ({"fuel": 1 << 63}, "fuel"),
        ({"fuel": "much"}, "fuel"),
        ({"grant": ["files"]}, "grant"),
        ({"grant": "clock"}, "grant"),
        ({"grant": [[]]}, "grant"),
        ({"env": ["A"]}, "env"),
        ({"env": {"A=B": "c"}}, "env"),
        ({"env": {"": "c"}}, "env"),
        ({"env": {"A": 7}}, "env.A"),
        ({"env": {"A": "b\0"}}, "env.A"),
        ({"env": {"A": "\ud800"}}, "env"),
        ({"env": {"A": "b" * 70_000}}, "env"),
        ({"enqueue": "topic"}, "enqueue"),
        ({"enqueue": ["no topic"]}, "enqueue"),
        ({"signature": 7}, "signature"),
        ({"steps": []}, "steps"),
        ({"external": True}, "external"),
        ({"timeout": -1}, "timeout"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_an_option_that_is_wrong(jobs: Jobs, tmp_path: Path, options: dict[str, Any], field: str) -> None:
    assert refused(jobs, saved(tmp_path, NOOP), **options).field == field


def test_a_signature_that_is_no_declaration(jobs: Jobs, tmp_path: Path) -> None:
    def with_context(ctx: Context, n: int) -> None: ...

    async def later(n: int) -> None: ...

    def odd(n: object = object()) -> None: ...

    def unknown(n: "Missing") -> None: ...  # type: ignore[name-defined] # noqa: F821

    file = saved(tmp_path, NOOP)
    assert refused(jobs, file, signature=unknown).code == "unknown_type"
    assert refused(jobs, file, signature=with_context).field == "signature.ctx"
    assert refused(jobs, file, signature=later).field == "signature"
    assert refused(jobs, file, signature=odd).code == "bad_default"


def test_a_topic_that_is_none(jobs: Jobs, tmp_path: Path) -> None:
    for topic in ("no topic", "", 7):
        with pytest.raises(InvalidInput) as raised:
            jobs.wasm(topic, saved(tmp_path, NOOP))  # type: ignore[arg-type]
        assert raised.value.field == "topic"


def test_a_child_process_finds_what_a_module_registers(jobs: Jobs, tmp_path: Path) -> None:
    file = saved(tmp_path, NOOP)
    inside = jobs.wasm("inside", file)
    assert "made inside a function" in (refusal(inside, None) or "")
    scope = {"jobs": jobs, "file": file, "__name__": "shop.tasks"}
    exec(compile("task = jobs.wasm('outside', file)", "tasks.py", "exec"), scope)
    outside = jobs.tasks["outside"]
    assert refusal(outside, None) is None
    assert name_of(outside.function) == ("shop.tasks", "outside")


def test_the_limits_themselves_are_allowed(jobs: Jobs, tmp_path: Path) -> None:
    file = saved(tmp_path, NOOP)
    jobs.wasm("small", file, memory=1 << 16, fuel=1)
    jobs.wasm("large", file, memory=1 << 32, fuel=(1 << 63) - 1)


def test_it_makes_a_task_with_a_template(jobs: Jobs, tmp_path: Path) -> None:
    def picture(path: str, width: int = 64) -> dict[str, int]:
        """Scale a picture."""
        raise NotImplementedError

    file = saved(tmp_path, wat(ECHO))
    task = jobs.wasm("picture", file, signature=picture, version=2, key=["path"], timeout=30, max_retries=1)
    template = task.template
    assert (template.topic, template.version, template.key, template.timeout) == ("picture", 2, ("path",), 30.0)
    assert template.description == "Scale a picture."
    assert template.schema is not None
    assert set(template.schema["properties"]) == {"path", "width"}
    assert template.schema["required"] == ["path"]
    assert task.draft("a.png").payload == {"path": "a.png"}
    with pytest.raises(InvalidInput, match="width"):
        task.draft("a.png", width="wide")  # type: ignore[arg-type]
    assert jobs.wasm("any", file).draft(anything=[1], ctx=2, rowlock=3).payload == {
        "anything": [1],
        "ctx": 2,
        "rowlock": 3,
    }


def test_nothing_is_compiled_for_a_process_that_only_enqueues(jobs: Jobs, tmp_path: Path) -> None:
    before = Program.compilations
    jobs.wasm("work", saved(tmp_path, NOOP)).draft()
    assert Program.compilations == before


WITHOUT = """
import sys
sys.modules["wasmtime"] = None  # as if it were not installed
from rowlock import Jobs
from rowlock.errors import MissingExtra
try:
    Jobs("sqlite:///:memory:").wasm("work", "work.wasm")
except MissingExtra as error:
    print(error)
"""


def test_without_wasmtime_the_error_says_what_to_install() -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert ended.stdout == "wasmtime is not installed: pip install 'rowlock[wasm]'\n"


def test_rowlock_imports_wasmtime_only_for_a_module() -> None:
    program = "import sys, rowlock; rowlock.Jobs('sqlite:///:memory:'); print('wasmtime' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
