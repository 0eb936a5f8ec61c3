"""A hostile module fails its own job, with a reason, and harms nothing else."""

from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("wasmtime")

from rowlock.core.job import Status
from rowlock.jobs import Jobs
from rowlock.wasm.options import WasmOptions
from tests.runtime.running import ran
from tests.wasm.modules import ECHO, saved, text_at, wat, writing


class Hostile(NamedTuple):
    text: str  # the module
    reason: str  # a part of the job's error
    options: WasmOptions | None = None


FOREVER = "(loop $again (br $again))"
QUICK: WasmOptions = {"fuel": 10_000_000}
MINUS = "(i32.const -1)"  # also the last address: 2 ** 32 - 1


def calls(function: str, *arguments: str, drop: bool = True) -> str:
    called = f"(call ${function} {' '.join(arguments)})"
    return wat(f"(drop {called})" if drop else called, more='(data (i32.const 128) "{}")')


def bad_vector(function: str, fd: int, pointer: int, size: int) -> str:
    stores = f"(i32.store (i32.const 0) (i32.const {pointer})) (i32.store (i32.const 4) (i32.const {size}))"
    return wat(f"{stores} (drop (call ${function} (i32.const {fd}) (i32.const 0) (i32.const 1) (i32.const 8)))")


HOSTILE = {
    # Endless modules
    "loops": Hostile(wat(FOREVER), "used up its fuel of 10,000,000", QUICK),
    "loops past its timeout": Hostile(wat(FOREVER), "Timed out", {"fuel": 1 << 62, "timeout": 0.5}),
    "loops in its start function": Hostile(
        f'(module (memory (export "memory") 1) (func $begin {FOREVER}) (start $begin) (func (export "_start")))',
        "used up its fuel",
        QUICK,
    ),
    "recurses": Hostile(
        wat("(call $deeper)", more="(func $deeper (call $deeper) (call $deeper))"), "recurses too deeply"
    ),
    "goes on after its exit": Hostile(
        wat(f"(call $proc_exit (i32.const 5)) {FOREVER}"), "exited with code 5", {"fuel": 1 << 62, "timeout": 30}
    ),
    "goes on after it has failed": Hostile(
        wat("(loop $a (call $fail (i32.const 64) (i32.const 4)) (br $a))", more=text_at(64, "away")),
        "Final: away",
        {"fuel": 1 << 62, "timeout": 30},
    ),
    "writes stdout without end": Hostile(
        wat(
            "(i32.store (i32.const 4) (i32.const 60000))"
            "(loop $a (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))) (br $a))"
        ),
        "more than 1,048,576 bytes to stdout",
    ),
    "writes stderr without end": Hostile(
        wat(
            "(i32.store (i32.const 4) (i32.const 60000))"
            "(loop $a (drop (call $fd_write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8))) (br $a))"
        ),
        "used up its fuel",
        {"fuel": 10_000},
    ),
    "writes a million empty lines to stderr": Hostile(
        wat(
            "(memory.fill (i32.const 64) (i32.const 10) (i32.const 1000000))"
            "(i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 1000000))"
            "(loop $a (drop (call $fd_write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8))) (br $a))",
            memory="20",
        ),
        "used up its fuel",
        {"fuel": 1000},
    ),
    "logs without end": Hostile(
        wat("(loop $a (call $log (i32.const 1) (i32.const 0) (i32.const 60000)) (br $a))"),
        "used up its fuel",
        {"fuel": 9999},
    ),
    # Memory and tables
    "grows its memory": Hostile(
        wat("(loop $a (br_if $a (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable"),
        "aborted (unreachable). It had 1,048,576 of at most 1,048,576 bytes",
        {"memory": 1 << 20},
    ),
    "loads beyond its memory": Hostile(wat("(drop (i32.load (i32.const 65536)))"), "memory outside of its own"),
    "stores at the last address": Hostile(wat(f"(i64.store {MINUS} (i64.const 1))"), "memory outside of its own"),
    "fills beyond its memory": Hostile(
        wat(f"(memory.fill (i32.const 8) (i32.const 1) {MINUS})"), "memory outside of its own"
    ),
    "has data beyond its memory": Hostile(wat("", more='(data (i32.const 65535) "ab")'), "memory outside of its own"),
    "grows its table": Hostile(
        wat(
            "(loop $a (br_if $a (i32.ne (table.grow $t (ref.null func) (i32.const 1000)) (i32.const -1)))) unreachable",
            more="(table $t 1 funcref)",
        ),
        "aborted (unreachable)",
    ),
    "has a huge table": Hostile(wat("", more='(table (export "t") 4000000000 funcref)'), "table"),
    "has many tables": Hostile(wat("", more="(table 1 funcref)" * 11), "table"),
    "calls a null pointer": Hostile(
        wat("(call_indirect (type $v) (i32.const 0))", more="(type $v (func)) (table 1 funcref)"), "null"
    ),
    "calls a pointer of another type": Hostile(
        wat(
            "(drop (call_indirect (type $n) (i32.const 0)))",
            more="(type $n (func (result i32))) (func $v) (table funcref (elem $v))",
        ),
        "another type",
    ),
    # Traps
    "aborts": Hostile(wat("unreachable"), "aborted (unreachable)"),
    "divides by zero": Hostile(wat("(drop (i32.div_s (i32.const 1) (i32.const 0)))"), "divided an integer by zero"),
    "overflows": Hostile(wat("(drop (i32.div_s (i32.const 0x80000000) (i32.const -1)))"), "overflowed"),
    "converts NaN": Hostile(wat("(drop (i32.trunc_f64_s (f64.const nan)))"), "no integer"),
    # Exit codes
    "exits with 1": Hostile(wat("(call $proc_exit (i32.const 1))"), "exited with code 1"),
    "exits with 255": Hostile(wat("(call $proc_exit (i32.const 255))"), "exited with code 255"),
    "exits with -1": Hostile(wat("(call $proc_exit (i32.const -1))"), "exited with code 4294967295"),
    "exits, and says why": Hostile(
        wat(writing("first\nno such file", fd=2) + "(call $proc_exit (i32.const 3))"),
        "code 3. Its last lines on stderr: first | no such file",
    ),
    # Results
    "answers no JSON": Hostile(wat(writing("hello")), "stdout must be JSON"),
    "answers half a JSON": Hostile(wat(writing('{"a": ')), "stdout must be JSON"),
    "answers two JSONs": Hostile(wat(writing("{} {}")), "stdout must be JSON"),
    "answers NaN": Hostile(wat(writing('{"a": NaN}')), "stdout must be JSON"),
    "answers a number without end": Hostile(wat(writing("1e999")), "JSON"),
    "answers a lone surrogate": Hostile(wat(writing(r'"\ud800"')), "JSON"),
    "answers no UTF-8": Hostile(wat(writing(b'"\xff\xfe"')), "stdout must be JSON"),
    "answers NUL": Hostile(wat(writing('{"a": "\\u0000"}')), "NUL"),
    "answers a deep nest": Hostile(wat(writing("[" * 2000 + "]" * 2000)), "JSON"),
    # Bad pointers
    "writes from nowhere": Hostile(bad_vector("fd_write", 1, 65530, 100), "a bad pointer: 100 bytes at 0xfffa"),
    "writes from the last address": Hostile(bad_vector("fd_write", 1, -1, 2), "a bad pointer"),
    "writes a negative length": Hostile(bad_vector("fd_write", 2, 64, -1), "a bad pointer: 4,294,967,295 bytes"),
    "reads to nowhere": Hostile(bad_vector("fd_read", 0, 65536, 1), "a bad pointer"),
    "reads vectors from nowhere": Hostile(
        calls("fd_read", "(i32.const 0)", MINUS, "(i32.const 1)", "(i32.const 8)"), "a bad pointer"
    ),
    "writes the count to nowhere": Hostile(
        calls("fd_write", "(i32.const 1)", "(i32.const 0)", "(i32.const 0)", MINUS), "a bad pointer"
    ),
    "takes its arguments to nowhere": Hostile(calls("args_get", MINUS, "(i32.const 0)"), "a bad pointer"),
    "takes its sizes to nowhere": Hostile(calls("environ_sizes_get", "(i32.const 0)", MINUS), "a bad pointer"),
    "takes the time to nowhere": Hostile(
        calls("clock_time_get", "(i32.const 0)", "(i64.const 1)", "(i32.const 65529)"), "a bad pointer: 8 bytes"
    ),
    "takes random bytes to nowhere": Hostile(calls("random_get", "(i32.const 0)", MINUS), "a bad pointer"),
    "takes the state of a stream to nowhere": Hostile(
        calls("fd_fdstat_get", "(i32.const 0)", "(i32.const 65520)"), "a bad pointer"
    ),
    "polls from nowhere": Hostile(
        calls("poll_oneoff", MINUS, "(i32.const 0)", "(i32.const 1)", "(i32.const 8)"), "a bad pointer"
    ),
    "logs from nowhere": Hostile(calls("log", "(i32.const 1)", MINUS, MINUS, drop=False), "a bad pointer"),
    "logs at no level": Hostile(
        calls("log", "(i32.const 7)", "(i32.const 0)", "(i32.const 1)", drop=False), "the level 7"
    ),
    "reports from nowhere": Hostile(
        calls("progress", "(f64.const nan)", "(i32.const 65536)", "(i32.const 1)", drop=False), "a bad pointer"
    ),
    "fails from nowhere": Hostile(calls("fail", "(i32.const 64)", MINUS, drop=False), "a bad pointer"),
    "snoozes for ever": Hostile(calls("snooze", "(f64.const inf)", drop=False), "snooze with inf"),
    "snoozes backwards": Hostile(calls("snooze", "(f64.const -1)", drop=False), "snooze with -1"),
    "enqueues from nowhere": Hostile(
        calls("enqueue", "(i32.const 65000)", "(i32.const 1000)", "(i32.const 0)", "(i32.const 200)"),
        "a bad pointer",
        {"enqueue": ["good"]},
    ),
    "enqueues with an answer to nowhere": Hostile(
        calls("enqueue", "(i32.const 128)", "(i32.const 2)", MINUS, "(i32.const 200)"),
        "a bad pointer",
        {"enqueue": ["good"]},
    ),
    "enqueues without room for the answer": Hostile(
        calls("enqueue", "(i32.const 128)", "(i32.const 2)", "(i32.const 0)", "(i32.const 127)"),
        "at least 128",
        {"enqueue": ["good"]},
    ),
    "calls the host before it has memory": Hostile(
        """(module (import "rowlock" "log" (func $log (param i32 i32 i32))) (memory (export "memory") 1)
            (func $begin (call $log (i32.const 1) (i32.const 0) (i32.const 1))) (start $begin)
            (func (export "_start")))""",
        "its start function calls the host",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_it_fails_its_job_and_nothing_else(name: str, quick: Jobs, tmp_path: Path) -> None:
    hostile = HOSTILE[name]
    options: WasmOptions = {"max_retries": 0, **(hostile.options or {})}
    task = quick.wasm("hostile", saved(tmp_path, hostile.text), **options)
    echo = quick.wasm("good", saved(tmp_path, wat(ECHO), "echo.wasm"))
    await quick.start(concurrency=2)
    beside = await echo.enqueue(beside=True)
    job = await ran(quick, task)
    assert job.status is Status.FAILED
    assert hostile.reason in (job.last_error or "")
    assert (await quick.wait(beside.id, timeout=30)).result == {"beside": True}
    after = await ran(quick, echo, after=True)
    assert after.result == {"after": True}


async def test_a_failure_is_retried_by_the_policy_of_its_job(quick: Jobs, tmp_path: Path) -> None:
    task = quick.wasm("traps", saved(tmp_path, wat("unreachable")), max_retries=2, retry=[0])
    job = await ran(quick, task)
    assert (job.status, job.retries) == (Status.FAILED, 2)
