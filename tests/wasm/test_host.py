"""The functions that the host gives to a module: WASI's streams, clocks and random bytes, and rowlock's own
functions."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wasmtime")

from rowlock.core.job import Job, Status
from rowlock.jobs import Jobs
from rowlock.stores.queries import Filter
from rowlock.wasm.wasi import EBADF, EINVAL, ENOSYS, ESPIPE
from tests.runtime.running import ran
from tests.waiting import status_of, until
from tests.wasm.modules import ECHO, saved, text_at, wat, writing

# $show writes `size` bytes from `place` on as a JSON text: each byte as two letters from "a" (0) to "p" (15).
SHOW = """
    (func $show (param $place i32) (param $size i32) (local $n i32) (local $byte i32)
        (i32.store8 (i32.const 30000) (i32.const 34))
        (loop $next
            (local.set $byte (i32.load8_u (i32.add (local.get $place) (local.get $n))))
            (i32.store8 (i32.add (i32.const 30001) (i32.mul (local.get $n) (i32.const 2)))
                (i32.add (i32.const 97) (i32.shr_u (local.get $byte) (i32.const 4))))
            (i32.store8 (i32.add (i32.const 30002) (i32.mul (local.get $n) (i32.const 2)))
                (i32.add (i32.const 97) (i32.and (local.get $byte) (i32.const 15))))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $next (i32.lt_u (local.get $n) (local.get $size))))
        (i32.store8 (i32.add (i32.const 30001) (i32.mul (local.get $n) (i32.const 2))) (i32.const 34))
        (i32.store (i32.const 20000) (i32.const 30000))
        (i32.store (i32.const 20004) (i32.add (i32.const 2) (i32.mul (local.get $n) (i32.const 2))))
        (drop (call $fd_write (i32.const 1) (i32.const 20000) (i32.const 1) (i32.const 20008))))
"""


def shown(job: Job) -> bytes:
    """Return the bytes that $show has written."""
    assert job.status is Status.COMPLETED, job.last_error
    return bytes(
        (ord(high) - 97) << 4 | ord(low) - 97 for high, low in zip(job.result[::2], job.result[1::2], strict=True)
    )


def number(job: Job) -> int:
    return int.from_bytes(shown(job), "little")


async def run(jobs: Jobs, folder: Path, text: str, payload: dict[str, Any] | None = None, **options: Any) -> Job:
    topic = f"work{len(jobs.tasks)}"
    jobs.wasm(topic, saved(folder, text, f"{topic}.wasm"), **{"max_retries": 0, **options})
    await jobs.stop(grace=0)  # so that the worker starts again with the new topic
    return await ran(jobs, topic, payload or {})


def answers(call: str) -> str:
    """Return a module that shows the number which this call returns."""
    return wat(f"(i32.store (i32.const 40000) {call}) (call $show (i32.const 40000) (i32.const 4))", more=SHOW)


# ── Streams ──


async def test_the_payload_is_stdin_and_stdout_the_result(quick: Jobs, tmp_path: Path) -> None:
    payload = {"text": "grüße", "n": [1, 2.5, None, True], "rowlock_context": "mine", "ctx": {}}
    assert (await run(quick, tmp_path, wat(ECHO), payload)).result == payload


async def test_no_output_is_null(quick: Jobs, tmp_path: Path) -> None:
    job = await run(quick, tmp_path, wat(""))
    assert (job.status, job.result) == (Status.COMPLETED, None)
    job = await run(quick, tmp_path, wat(writing(" \n ") + "(call $proc_exit (i32.const 0))"))
    assert (job.status, job.result) == (Status.COMPLETED, None)


async def test_stdin_is_read_to_its_end_in_tiny_pieces(quick: Jobs, tmp_path: Path) -> None:
    """The module copies stdin to stdout byte by byte, until fd_read reports the end. Another fd_read reports it
    again."""
    piece = "(call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8))"
    text = wat(f"""
        (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 1))
        (loop $more
            (drop {piece})
            (if (i32.load (i32.const 8)) (then
                (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
                (br $more))))
        (drop {piece})
        (if (i32.load (i32.const 8)) (then unreachable))""")
    payload = {"numbers": list(range(300))}
    assert (await run(quick, tmp_path, text, payload)).result == payload


async def test_a_large_output_is_written_piece_by_piece(quick: Jobs, tmp_path: Path) -> None:
    """One fd_write takes 64 KiB at most, and returns how much it took."""
    text = wat(
        """(memory.fill (i32.const 64) (i32.const 32) (i32.const 200000))
        (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 200000))
        (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
        (call $show (i32.const 8) (i32.const 4))""",
        more=SHOW,
        memory="4",
    )
    assert number(await run(quick, tmp_path, text)) == 65536


async def test_stderr_is_the_log_line_by_line(quick: Jobs, tmp_path: Path) -> None:
    lines = writing("one\n\ntw", 2) + writing("o\nthree", 2) + writing(b"\xff\n" + b"x" * 1500, 2)
    job = await run(quick, tmp_path, wat(lines + writing("4")))
    assert job.result == 4
    log = (await quick.logs(job.id)).lines
    assert [line.text for line in log[:3]] == ["one", "two", "three\N{REPLACEMENT CHARACTER}"]
    assert log[3].text.startswith("xxx")


async def test_other_streams_and_files_are_not_there(quick: Jobs, tmp_path: Path) -> None:
    zero, rights = "(i32.const 0)", "(i64.const -1)"
    for call, answer in {
        f"(call $fd_write (i32.const 3) {zero} {zero} {zero})": EBADF,
        f"(call $fd_write (i32.const 0) {zero} {zero} {zero})": EBADF,
        f"(call $fd_read (i32.const 1) {zero} {zero} {zero})": EBADF,
        f"(call $fd_write (i32.const 1) {zero} (i32.const 1025) {zero})": EINVAL,
        f"(call $fd_read {zero} {zero} (i32.const -1) {zero})": EINVAL,
        "(call $fd_close (i32.const 3))": EBADF,
        "(call $fd_close (i32.const 1))": 0,
        f"(call $fd_seek (i32.const 1) (i64.const 0) {zero} {zero})": ESPIPE,
        f"(call $fd_prestat_get (i32.const 3) {zero})": EBADF,
        f"(call $path_open (i32.const 3) {zero} {zero} {zero} {zero} {rights} {rights} {zero} {zero})": ENOSYS,
        f"(call $sock_send (i32.const 3) {zero} {zero} {zero} {zero})": ENOSYS,
        f"(call $sock_accept (i32.const 3) {zero} {zero})": ENOSYS,
        f"(call $random_get {zero} (i32.const 65536))": 0,
        f"(call $clock_time_get (i32.const 9) (i64.const 0) {zero})": EINVAL,
        f"(call $poll_oneoff {zero} {zero} {zero} {zero})": EINVAL,
        "(call $sched_yield)": 0,
    }.items():
        assert number(await run(quick, tmp_path, answers(call))) == answer, call


# ── Grants ──

TIME = wat(
    "(drop (call $clock_time_get (i32.const 0) (i64.const 1) (i32.const 64)))(call $show (i32.const 64) (i32.const 8))",
    more=SHOW,
)
# Show the bytes in the log, and fail, so that the same job runs again.
RANDOM = wat(
    "(drop (call $random_get (i32.const 64) (i32.const 32))) (call $show (i32.const 64) (i32.const 32)) unreachable",
    more=SHOW.replace("$fd_write (i32.const 1)", "$fd_write (i32.const 2)"),
)


async def test_there_is_no_clock_unless_it_is_granted(quick: Jobs, tmp_path: Path) -> None:
    assert number(await run(quick, tmp_path, TIME)) == 0
    job = await run(quick, tmp_path, TIME, grant=["clock"])
    assert job.finished_at is not None
    assert abs(number(job) / 1e9 - job.finished_at.timestamp()) < 60


async def test_random_bytes_depend_on_the_job_alone_unless_they_are_granted(quick: Jobs, tmp_path: Path) -> None:
    async def bytes_of_two_runs(**options: Any) -> tuple[str, str]:
        job = await run(quick, tmp_path, RANDOM, max_retries=1, retry=[0], **options)
        first, second = [line.text for line in (await quick.logs(job.id)).lines]
        return first, second

    one, again = await bytes_of_two_runs()
    assert one == again
    other, _ = await bytes_of_two_runs()
    assert other != one
    real, once_more = await bytes_of_two_runs(grant=["random"])
    assert real != once_more


async def test_only_the_given_environment_is_seen(quick: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "7")
    sizes = "(drop (call $environ_sizes_get (i32.const 64) (i32.const 68)))"
    text = wat(f"{sizes} (call $show (i32.const 64) (i32.const 8))", more=SHOW)
    assert shown(await run(quick, tmp_path, text)) == bytes(8)
    text = wat(
        f"""{sizes} (drop (call $environ_get (i32.const 80) (i32.const 100)))
        (call $show (i32.load (i32.const 84)) (i32.const 4))""",
        more=SHOW,
    )
    assert shown(await run(quick, tmp_path, text, env={"A": "first", "B": "ß"})) == "B=ß".encode()


async def test_its_only_argument_is_its_name(quick: Jobs, tmp_path: Path) -> None:
    text = wat(
        "(drop (call $args_get (i32.const 64) (i32.const 100))) (call $show (i32.const 100) (i32.const 11))", more=SHOW
    )
    assert shown(await run(quick, tmp_path, text)) == b"work0.wasm\0"


def sleeping(seconds: int) -> str:
    """Return a module that waits for a clock by poll_oneoff, and shows the number of events."""
    return wat(
        f"""(i64.store (i32.const 64) (i64.const 7)) (i32.store (i32.const 80) (i32.const 1))
        (i64.store (i32.const 88) (i64.const {seconds * 10**9}))
        (drop (call $poll_oneoff (i32.const 64) (i32.const 200) (i32.const 1) (i32.const 300)))
        (call $show (i32.const 300) (i32.const 4))""",
        more=SHOW,
    )


async def test_without_a_clock_a_sleep_ends_at_once(quick: Jobs, tmp_path: Path) -> None:
    assert number(await run(quick, tmp_path, sleeping(3600), timeout=20)) == 1


async def test_a_cancel_ends_a_sleep(quick: Jobs, tmp_path: Path) -> None:
    task = quick.wasm("sleeps", saved(tmp_path, sleeping(3600)), grant=["clock"])
    await quick.start()
    made = await task.enqueue()
    await status_of(quick, made.id, Status.PROCESSING)
    await quick.cancel(made.id)
    assert (await quick.wait(made.id, timeout=30)).status is Status.CANCELLED


# ── rowlock's own functions ──


async def test_progress_and_log(quick: Jobs, tmp_path: Path) -> None:
    text = wat(
        """(call $progress (f64.const 40) (i32.const 64) (i32.const 7))
        (call $progress (f64.const nan) (i32.const 0) (i32.const 0))
        (call $log (i32.const 2) (i32.const 64) (i32.const 7))
        (call $log (i32.const 0) (i32.const 71) (i32.const 2))""",
        more=text_at(64, "halfway") + '(data (i32.const 71) "\\ff!")',
    )
    job = await run(quick, tmp_path, text)
    assert (job.progress, job.message) == (100.0, "halfway")
    logged = [(line.level, line.text) for line in (await quick.logs(job.id)).lines]
    assert logged == [("warning", "halfway"), ("debug", "\N{REPLACEMENT CHARACTER}!")]


async def test_fail_is_final(quick: Jobs, tmp_path: Path) -> None:
    text = wat("(call $fail (i32.const 64) (i32.const 9))", more=text_at(64, "no such!!"))
    job = await run(quick, tmp_path, text, max_retries=9)
    assert (job.status, job.retries) == (Status.FAILED, 0)
    assert "Final: no such!!" in (job.last_error or "")


async def test_snooze_costs_no_retry(quick: Jobs, tmp_path: Path) -> None:
    task = quick.wasm("snoozes", saved(tmp_path, wat("(call $snooze (f64.const 3600))")), max_retries=0)
    await quick.start()
    made = await task.enqueue()
    job = await until(lambda: snoozed(quick, made.id))
    assert (job.status, job.retries) == (Status.PENDING, 0)


async def snoozed(jobs: Jobs, job_id: str) -> Job | None:
    job = await jobs.get(job_id)
    return job if job.run_at > job.created + timedelta(minutes=50) else None


def enqueuing(job: str, room: int = 1000) -> str:
    """Return a module that enqueues this job, and returns the host's answer."""
    return wat(
        f"""(local $size i32)
        (local.set $size
            (call $enqueue (i32.const 5000) (i32.const {len(job.encode())}) (i32.const 64) (i32.const {room})))
        (if (i32.lt_s (local.get $size) (i32.const 0)) (then
            (local.set $size (i32.sub (i32.const 0) (local.get $size)))))
        (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (local.get $size))
        (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))""",
        more=text_at(5000, job),
    )


async def test_it_enqueues_a_job_of_a_granted_topic_in_its_own_scope(jobs: Jobs, tmp_path: Path) -> None:
    text = '{"topic": "next", "payload": {"n": 7}, "delay": 3600, "key": "k", "priority": 3, "tags": ["a"]}'
    task = jobs.wasm("first", saved(tmp_path, enqueuing(text)), enqueue=["other", "next"])
    await jobs.start()
    made = await task.using(scope="tenant", scope_id="t1").enqueue()
    answer = (await jobs.wait(made.id, timeout=30)).result
    [job] = (await jobs.list(Filter(topics=["next"]))).items
    assert answer == {"id": job.id, "existing": False}
    assert (job.payload, job.scope, job.scope_id, job.key, job.priority) == ({"n": 7}, "tenant", "t1", "k", 3)
    again = await task.using(scope="tenant", scope_id="t1").enqueue()
    assert (await jobs.wait(again.id, timeout=30)).result == {"id": job.id, "existing": True}


@pytest.mark.parametrize(
    ("job", "code", "message"),
    [
        ('{"topic": "secret"}', "not_granted", "'secret' is none of those that the module may enqueue: next"),
        ('{"topic": "next", "scope": "other"}', "bad_json", "scope"),
        ('{"topic": "next", "conn": 1}', "bad_json", "conn"),
        ('{"topic": "next", "payload": []}', "bad_json", "payload"),
        ('{"topic": "next", "delay": -5}', "out_of_range", "delay"),
        ('{"topic": "next", "priority": "high!"}', "unknown_name", "priority"),
        ('{"topic": "next"', "bad_json", "truncated"),
        ("", "bad_json", "truncated"),
        ("[" * 3000, "bad_json", ""),
    ],
)
async def test_a_job_that_is_refused_is_an_answer(
    job: str, code: str, message: str, quick: Jobs, tmp_path: Path
) -> None:
    ran = await run(quick, tmp_path, enqueuing(job), enqueue=["next"])
    assert ran.status is Status.COMPLETED, ran.last_error
    assert ran.result["code"] == code
    assert message in ran.result["message"]
    assert (await quick.list(Filter(topics=["next", "secret"]))).items == []


async def test_the_error_fits_into_its_room(quick: Jobs, tmp_path: Path) -> None:
    topics = [f"a.rather.long.topic.{n}" for n in range(20)]
    ran = await run(quick, tmp_path, enqueuing('{"topic": "secret"}', room=128), enqueue=topics)
    assert ran.result["code"] == "not_granted"
    assert "topic: 'secret' is none".startswith(ran.result["message"][:20])
    assert len(ran.result["message"]) > 20
