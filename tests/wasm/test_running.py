"""Many calls of modules in one worker: they are compiled once, share nothing, and are interrupted one by one."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("wasmtime")

from rowlock.core.job import Status
from rowlock.errors import StoreUnavailable
from rowlock.jobs import Jobs
from rowlock.stores.queries import Filter
from rowlock.wasm.program import Program
from tests.runtime.running import ran, working
from tests.waiting import ended, status_of, until
from tests.wasm.modules import ECHO, saved, text_at, wat, writing

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "wasm"
FOREVER = "(loop $again (br $again))"
UNTIL_CANCELLED = "(loop $again (br_if $again (i32.eqz (call $cancelled))))"


@pytest.mark.proof  # slow
async def test_ten_thousand_calls_compile_once(quick: Jobs, tmp_path: Path) -> None:
    text = wat(ECHO + "(nop) (nop)")  # no other test has compiled it
    task = quick.wasm("echo", saved(tmp_path, text))
    quick.wasm("twin", saved(tmp_path, text, "copy.wasm"))
    before = Program.compilations
    await quick.start(concurrency=8)
    await quick.enqueue_many([task.draft(n=n) for n in range(9_999)])
    await quick.enqueue("twin", {"n": 0})
    await until(lambda: all_ended(quick), every=0.2)
    assert (await quick.stats()).completed == 10_000
    assert Program.compilations == before + 1


async def all_ended(jobs: Jobs) -> bool:
    live = Filter(statuses=[Status.PENDING, Status.PROCESSING])
    return (await jobs.list(live, limit=1)).total == 0


async def test_a_call_sees_nothing_of_earlier_ones(quick: Jobs, tmp_path: Path) -> None:
    """The module changes its memory, a global and a table. Each call finds them in their first state."""
    text = wat(
        f"""(if (i32.load (i32.const 40000)) (then unreachable))
        (if (global.get $g) (then unreachable))
        (if (i32.eqz (ref.is_null (table.get $t (i32.const 0)))) (then unreachable))
        (if (i32.ne (memory.size) (i32.const 1)) (then unreachable))
        (i32.store (i32.const 40000) (i32.const 1)) (global.set $g (i32.const 1))
        (table.set $t (i32.const 0) (ref.func $f)) (drop (memory.grow (i32.const 1))) {writing("1")}""",
        more="(global $g (mut i32) (i32.const 0)) (table $t 1 funcref) (func $f) (elem declare func $f)",
    )
    task = quick.wasm("counts", saved(tmp_path, text), max_retries=0)
    await quick.start(concurrency=2)
    made = await quick.enqueue_many([task.draft() for _ in range(20)])
    assert [(await ended(quick, one.id)).result for one in made] == [1] * 20


async def test_calls_at_the_same_time_end_each_in_its_own_way(quick: Jobs, tmp_path: Path) -> None:
    """wasmtime keeps one last exception of a host function for all threads. No exception of rowlock may get there."""
    texts = {
        "succeeds": wat(writing("1")),
        "exits": wat("(call $proc_exit (i32.const 3))"),
        "aborts": wat("unreachable"),
        "divides": wat("(drop (i32.div_s (i32.const 1) (i32.const 0)))"),
        "fails": wat("(call $fail (i32.const 64) (i32.const 5))", more='(data (i32.const 64) "never")'),
        "points": wat("(call $log (i32.const 1) (i32.const -1) (i32.const 9))"),
    }
    errors = {
        "succeeds": "",
        "exits": "exited with code 3",
        "aborts": "aborted",
        "divides": "divided",
        "fails": "never",
        "points": "bad pointer",
    }
    tasks = [quick.wasm(name, saved(tmp_path, text, f"{name}.wasm"), max_retries=0) for name, text in texts.items()]
    await quick.start(concurrency=12)
    made = await quick.enqueue_many([task.draft() for _ in range(50) for task in tasks])
    for one in made:
        job = await ended(quick, one.id)
        assert job.status is (Status.COMPLETED if job.topic == "succeeds" else Status.FAILED)
        assert errors[job.topic] in (job.last_error or "")


class Away:
    """A context whose database is away. A real outage between two instructions of a module can't be timed."""

    error = StoreUnavailable("the database is away")
    job = SimpleNamespace(id="1", payload={})

    def check(self) -> None:
        pass

    def enqueue(self, topic: str, payload: dict[str, Any], **options: Any) -> None:
        raise self.error


def test_an_outage_leaves_the_module_as_it_came(tmp_path: Path) -> None:
    """The host function's error leaves the module as the same object. So the worker knows it, and charges no retry."""
    call = "(loop $a (drop (call $enqueue (i32.const 64) (i32.const 16) (i32.const 1000) (i32.const 200))) (br $a))"
    file = saved(tmp_path, wat(call, more=text_at(64, '{"topic":"work"}')))
    task = Jobs("sqlite:///:memory:").wasm("work", file, enqueue=["work"])
    with pytest.raises(StoreUnavailable) as raised:
        task.function(rowlock_context=Away())
    assert raised.value is Away.error


async def test_a_new_file_has_no_effect_on_a_registered_module(quick: Jobs, tmp_path: Path) -> None:
    file = saved(tmp_path, wat(writing("1")))
    task = quick.wasm("old", file)
    file.write_bytes(b"broken")
    assert (await ran(quick, task)).result == 1


async def test_a_cancel_interrupts_one_of_several_loops(jobs: Jobs, tmp_path: Path) -> None:
    """The loops of one module run at the same time, because a loop releases the GIL."""
    task = jobs.wasm("loops", saved(tmp_path, wat(FOREVER)), fuel=1 << 62, max_retries=0)
    await jobs.start(concurrency=5)
    made = await jobs.enqueue_many([task.draft() for _ in range(3)])
    for one in made:
        await status_of(jobs, one.id, Status.PROCESSING)
    await jobs.cancel(made[1].id)
    assert (await ended(jobs, made[1].id)).status is Status.CANCELLED
    assert [(await jobs.get(one.id)).status for one in (made[0], made[2])] == [Status.PROCESSING] * 2
    for one in (made[0], made[2]):
        await jobs.cancel(one.id)
        assert (await ended(jobs, one.id)).status is Status.CANCELLED
    await until(lambda: working(jobs).slots.leaked == 0)


async def test_a_timeout_interrupts_a_loop_and_its_thread_is_free(quick: Jobs, tmp_path: Path) -> None:
    task = quick.wasm("loops", saved(tmp_path, wat(FOREVER)), fuel=1 << 62, timeout=0.3, max_retries=0)
    job = await ran(quick, task)
    assert "Timed out: the handler ran for more than 0.3 s" in (job.last_error or "")
    assert working(quick).slots.leaked == 0


async def test_a_module_that_asks_may_clean_up_after_a_cancel(quick: Jobs, tmp_path: Path) -> None:
    task = quick.wasm("asks", saved(tmp_path, wat(UNTIL_CANCELLED + writing('"cleaned up"'))), fuel=1 << 62)
    await quick.start()
    made = await task.enqueue()
    await status_of(quick, made.id, Status.PROCESSING)
    await quick.cancel(made.id)
    job = await ended(quick, made.id)
    assert (job.status, job.result) == (Status.COMPLETED, "cleaned up")


async def test_a_module_that_asks_and_does_not_listen_is_interrupted(quick: Jobs, tmp_path: Path) -> None:
    task = quick.wasm("asks", saved(tmp_path, wat(UNTIL_CANCELLED + FOREVER)), fuel=1 << 62)
    await quick.start()
    made = await task.enqueue()
    await status_of(quick, made.id, Status.PROCESSING)
    await quick.cancel(made.id)
    assert (await ended(quick, made.id)).status is Status.CANCELLED


async def test_a_worker_that_stops_interrupts_a_loop_and_gives_the_job_back(jobs: Jobs, tmp_path: Path) -> None:
    task = jobs.wasm("loops", saved(tmp_path, wat(FOREVER)), fuel=1 << 62)
    await jobs.start()
    made = await task.enqueue()
    await status_of(jobs, made.id, Status.PROCESSING)
    await jobs.stop(grace=0)
    job = await jobs.get(made.id)
    assert (job.status, job.retries) == (Status.PENDING, 0)


async def test_the_declared_defaults_are_filled_in_and_the_result_is_checked(quick: Jobs, tmp_path: Path) -> None:
    def declared(a: int, b: str = "x") -> dict[str, int]:
        raise NotImplementedError

    task = quick.wasm("typed", saved(tmp_path, wat(ECHO)), signature=declared, max_retries=0)
    job = await ran(quick, task, 1)
    assert "module.wasm: its result.[...] must be a whole number, not a text" in (job.last_error or "")


APP = """
from pathlib import Path
from rowlock import Jobs
jobs = Jobs("sqlite:///jobs.db")
echo = jobs.wasm("echo", Path(__file__).with_name("echo.wasm"), process=True)
"""


async def test_it_runs_in_a_child_process(tmp_path: Path) -> None:
    saved(tmp_path, wat(ECHO), "echo.wasm")
    (tmp_path / "app.py").write_text(APP)
    async with Jobs(f"sqlite:///{tmp_path / 'jobs.db'}") as jobs:
        made = await jobs.enqueue("echo", {"n": 7})
        command = [sys.executable, "-m", "rowlock", "worker", "app:jobs"]
        worker = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
        try:
            job = await ended(jobs, made.id)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(30)
    assert (job.status, job.result) == (Status.COMPLETED, {"n": 7})


# ── The examples ──


async def test_the_examples_run(jobs: Jobs) -> None:
    """thumbnail.wasm is written in C, words.wasm in Rust, javascript.wasm in JavaScript."""
    thumbnail = jobs.wasm("thumbnail", EXAMPLES / "thumbnail.wasm", memory=8 << 20, max_retries=9)
    words = jobs.wasm("words", EXAMPLES / "words.wasm", enqueue=["report"], max_retries=0)
    order = jobs.wasm("order", EXAMPLES / "javascript.wasm", max_retries=0)
    job = await ran(jobs, thumbnail, width=4, height=2, pixels="AAIEBggKDA4=", factor=2)
    assert job.result == {"width": 2, "height": 1, "pixels": "BQk="}
    assert (job.progress, job.message) == (100.0, "scaling")
    assert [line.text for line in (await jobs.logs(job.id)).lines] == ["scaled 4 x 2 to 2 x 1"]
    job = await ran(jobs, thumbnail, width=9, height=2, pixels="AAIEBggKDA4=", factor=2)
    assert (job.status, job.retries) == (Status.FAILED, 0)  # it called rowlock_fail, so no retry was used
    assert "pixels: must be width × height bytes" in (job.last_error or "")
    job = await ran(jobs, words, text="drei süße Wörter", report_to="report")
    assert job.result == {"words": 3, "longest": "Wörter"}
    [report] = (await jobs.list(Filter(topics=["report"]))).items
    assert report.payload == job.result
    job = await ran(jobs, words, text="a", report_to="elsewhere")
    assert "exited with code 1" in (job.last_error or "")
    assert "not_granted" in (job.last_error or "")
    job = await ran(jobs, order, items=[{"name": "tea", "price": 300, "count": 2}, {"name": "bread", "price": 250}])
    assert job.result == {"total": 850, "items": ["bread", "tea"]}
    job = await ran(jobs, order, items=[{"name": "tea", "price": "much"}])
    assert "TypeError: tea: its price is no number" in (job.last_error or "")


def test_the_program_of_the_examples_runs(tmp_path: Path) -> None:
    for file in EXAMPLES.glob("*.*"):
        shutil.copy(file, tmp_path)
    environ = {**os.environ, "PYTHONWARNINGS": "error"}
    ended = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "thumbnail completed {'width': 2, 'height': 2, 'pixels': 'Nka2xg=='}",
        "words completed {'words': 5, 'longest': 'jumps'}",
        "order completed {'total': 850, 'items': ['bread', 'tea']}",
        "5 words, the longest is 'jumps'",
    ]
