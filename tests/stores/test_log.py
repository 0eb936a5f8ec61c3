"""The lines that handlers log stay with the job, over all its runs, also in the archive."""

from datetime import timedelta

import pytest

from rowlock.core.job import Log, LogLine, Status
from rowlock.core.lifecycle import Completed, Failed
from rowlock.core.moves import Delete, Requeue, Rescue
from rowlock.stores.base import DAY, MAX_LOG_LINES, MAX_LOG_TEXT, Hold, NewLine, Progress, Retention
from tests.stores.conftest import paired_store, shared_store
from tests.stores.harness import LEASE, NOBODY, START, Harness, settlement

store = paired_store
unpaired = shared_store  # for texts that the store changes


def lines(*texts: str, age: float = 0.0) -> tuple[NewLine, ...]:
    return tuple(NewLine(age, "info", text) for text in texts)


async def texts(store: Harness, job_id: str) -> list[str]:
    return [line.text for line in ((await store.store.read([job_id], Log))[job_id]).lines]


async def test_a_line_knows_its_run_and_when_it_was_said(store: Harness) -> None:
    claimed = await store.claimed()
    await store.store.progress([Progress(claimed.id, 1, 30.0, "stage", "message")])
    now = await store.advance(10)
    said = (NewLine(2.5, "warning", "slow"), NewLine(0.000001, "info", "done"))
    assert await store.store.progress([Progress(claimed.id, 1, lines=said)]) == [Hold.KEPT]
    log = (await store.store.read([claimed.id], Log))[claimed.id]
    assert log.lines[0] == LogLine(now - timedelta(seconds=2.5), 1, "warning", "slow")


async def test_several_reports_of_one_run_in_one_call(store: Harness) -> None:
    """For each field the last report that has it counts. No line is lost, and other jobs get their own lines."""
    run, neighbour = await store.claimed(), await store.claimed()
    reports = [
        Progress(run.id, 1, 10.0, "first", lines=lines("a")),
        Progress(neighbour.id, 1, 5.0, lines=lines("n")),
        Progress(run.id, 1, None, "second", "m", lines("b", "c")),
        Progress(run.id, 2, 99.0, "z", "z", lines("zombie")),
        Progress(run.id, 1, 20.0),
        Progress(run.id, 1, lines=lines("d")),
    ]
    await store.store.progress(reports)
    assert await texts(store, run.id) == ["a", "b", "c", "d"]


async def test_the_newest_lines_stay_and_the_others_are_counted(store: Harness) -> None:
    claimed = await store.claimed()
    words = [str(n) for n in range(2 * MAX_LOG_LINES + 7)]
    most, rest = words[: MAX_LOG_LINES - 1], words[MAX_LOG_LINES - 1 :]
    for part in (most, rest[:1], rest[1:2], rest[2:]):  # almost full; full; one too many; several too many
        await store.store.progress([Progress(claimed.id, 1, lines=lines(*part))])
    assert ((await store.store.read([claimed.id], Log))[claimed.id]).dropped == len(words) - MAX_LOG_LINES


@pytest.mark.parametrize("count", [3 * MAX_LOG_LINES, 10 * MAX_LOG_LINES])
async def test_a_flood_of_long_lines_in_one_report(unpaired: Harness, count: int) -> None:
    claimed = await unpaired.claimed()
    flood = lines(*(f"{n} {'x' * MAX_LOG_TEXT}" for n in range(count)))
    assert await unpaired.store.progress([Progress(claimed.id, 1, 50.0, lines=flood)]) == [Hold.KEPT]
    log = (await unpaired.store.read([claimed.id], Log))[claimed.id]
    assert log.dropped == count - MAX_LOG_LINES
    assert [line.text.split()[0] for line in log.lines] == [str(n) for n in range(count - MAX_LOG_LINES, count)]
    assert all(len(line.text.encode()) <= MAX_LOG_TEXT for line in log.lines)


async def test_text_that_no_database_takes_is_cleaned(unpaired: Harness) -> None:
    claimed = await unpaired.claimed()
    awkward = 'quote " \\ \n\t NUL \0 surrogate \ud800 emoji \N{PILE OF POO} null [] {}'
    await unpaired.store.progress([Progress(claimed.id, 1, lines=lines(awkward, ""))])
    clean = awkward.replace("\0", "\N{REPLACEMENT CHARACTER}").replace("\ud800", "?")
    assert await texts(unpaired, claimed.id) == [clean, ""]


async def test_the_log_goes_through_all_runs_and_into_the_archive(store: Harness) -> None:
    first = await store.claimed()
    await store.store.progress([Progress(first.id, 1, lines=lines("one"))])
    await store.store.settle([settlement(first, Failed("never", final=True))])
    await store.store.move([first.id], Requeue(by="ann"))
    [second] = (await store.claim()).jobs
    await store.store.progress([Progress(first.id, 2, lines=lines("two"))])
    await store.advance(LEASE + 1)
    await store.store.move_due(Rescue(by="m1", backoff=[1.0]))
    [third] = (await store.claim()).jobs
    await store.store.progress([Progress(first.id, 3, lines=lines(*["three"] * MAX_LOG_LINES))])
    before = (await store.store.read([first.id], Log))[first.id]
    assert {line.version for line in before.lines} == {3}
    assert before.dropped == 2
    await store.store.settle([settlement(third, Completed())])
    assert (await store.job(first.id)).status is Status.COMPLETED
    assert (await store.store.read([first.id], Log))[first.id] == before
    assert second.version == 2


async def test_lines_of_the_run_that_has_completed_the_job(store: Harness) -> None:
    """If a handler completes its job in its own transaction, its last lines come after the completion. The store still
    takes them, but refuses lines of other runs, of other workers and after other outcomes."""
    done, failed = await store.claimed(), await store.claimed()
    await store.store.progress([Progress(done.id, 1, lines=lines("before"))])
    await store.store.settle([settlement(done, Completed()), settlement(failed, Failed("never", final=True))])
    reports = [
        Progress(done.id, 1, 50.0, "stage", lines=lines("a", "b"), worker=done.locked_by),
        Progress(done.id, 1, lines=lines("c"), worker=done.locked_by),
        Progress(done.id, 1, lines=lines("another worker"), worker="w9"),
        Progress(done.id, 2, lines=lines("another run"), worker=done.locked_by),
        Progress(failed.id, 1, lines=lines("too late"), worker=failed.locked_by),
    ]
    before = await store.job(done.id)
    assert await store.store.progress(reports) == [Hold.LOST] * 5
    assert await texts(store, done.id) == ["before", "a", "b", "c"]
    assert await texts(store, failed.id) == []
    assert await store.job(done.id) == before
    await store.store.progress([Progress(done.id, 1, lines=lines(*["more"] * MAX_LOG_LINES))])
    assert ((await store.store.read([done.id], Log))[done.id]).dropped == 4


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
@pytest.mark.parametrize("how", ["delete", "prune"])
async def test_the_log_goes_with_its_job(store: Harness, status: Status, how: str) -> None:
    claimed = await store.claimed()
    await store.store.progress([Progress(claimed.id, 1, lines=lines("hi"))])
    outcome = Completed() if status is Status.COMPLETED else Failed("never", final=True)
    await store.store.settle([settlement(claimed, outcome)])
    assert await texts(store, claimed.id) == ["hi"]
    if how == "delete":
        await store.store.move([claimed.id], Delete(by="ann"))
    else:
        await store.advance(2 * DAY)
        assert await store.store.prune(Retention(completed=DAY, failed=DAY)) == 1
    assert await store.store.read([claimed.id], Log) == {}


async def test_a_job_without_a_log_and_no_job(store: Harness) -> None:
    job_id = await store.add()
    assert await store.store.read([job_id, NOBODY], Log) == {job_id: Log([])}
    assert (await store.store.now()) == START
