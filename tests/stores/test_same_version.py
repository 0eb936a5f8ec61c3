"""Two runs with the same version: the database lost a claim, or an id was used again. The worker's name decides."""

from collections.abc import Sequence

import pytest
from msgspec import structs

from rowlock.core.job import Job, Log, Status
from rowlock.core.lifecycle import Answer, Completed, Failed, Outcome, Released, Settlement
from rowlock.core.moves import Cancel, Delete, Rescue
from rowlock.stores.base import Beat, Hold, NewLine, Progress
from tests.stores.conftest import paired_store, shared_store
from tests.stores.harness import LEASE, OUTCOMES, Harness, claim_by, job, settlement

store = paired_store
unpaired = shared_store  # stores differ on what the claim of a settle sees of that settle

LOST, KEPT, CANCEL = Hold.LOST, Hold.KEPT, Hold.CANCEL


async def given_twice(store: Harness, *, worker: str = "B") -> tuple[Job, Job]:
    """Return worker A's run, which the database has forgotten, and B's run of the same version."""
    a = await store.claimed("A")
    await store.forget_claims()
    [b] = (await store.claim(worker)).jobs
    assert (b.id, b.version, b.locked_by) == (a.id, a.version, worker)
    return a, b


def beat(run: Job) -> Beat:
    return Beat(run.id, run.version, started=True, worker=run.locked_by)


def report(run: Job, percent: float = 50.0) -> Progress:
    return Progress(run.id, run.version, percent, "s", "m", (NewLine(0.0, "info", "here"),), run.locked_by)


def by_anyone(run: Job) -> Job:
    return structs.replace(run, locked_by=None)


async def answers(store: Harness, *wishes: Settlement) -> list[Answer]:
    return [verdict.answer for verdict in (await store.store.settle(wishes)).verdicts]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_run_that_was_forgotten_writes_nothing(store: Harness, cancelled: bool) -> None:
    """This also holds if the run of the other worker has a cancel request."""
    a, b = await given_twice(store)
    if cancelled:
        await store.store.move([b.id], Cancel(by="ann"))
    before = await store.rows()
    assert await store.store.heartbeat([beat(a)], 1000.0) == [LOST]
    assert await store.store.progress([report(a)]) == [LOST]
    assert await store.store.look([beat(a), beat(b)]) == [LOST, CANCEL if cancelled else KEPT]
    for outcome in OUTCOMES.values():
        assert await answers(store, settlement(a, outcome, ran=1.0)) == [Answer.LOST]
    assert await store.rows() == before
    if cancelled:
        assert await answers(store, settlement(b, Failed("too late"))) == [Answer.CHANGED]
    assert await store.store.progress([report(b)]) == [CANCEL if cancelled else KEPT]
    assert await answers(store, settlement(b, Completed("B's"))) == [Answer.APPLIED]
    assert await answers(store, settlement(a, Completed("A's"))) == [Answer.LOST]


async def test_the_same_id_once_more(store: Harness) -> None:
    first = await store.claimed("A")
    await store.store.settle([settlement(first, Completed("first"))])
    await store.store.move([first.id], Delete(by="ann"))
    await store.insert(job(id=first.id))
    [second] = (await store.claim("B")).jobs
    assert (second.id, second.version) == (first.id, 1)
    assert await store.store.heartbeat([beat(first)], 1000.0) == [LOST]
    assert await answers(store, settlement(first, Completed("again"))) == [Answer.LOST]
    assert await answers(store, settlement(first, Released())) == [Answer.LOST]


async def test_who_names_no_worker_is_judged_by_the_version_alone(store: Harness) -> None:
    run = by_anyone(await store.claimed("A"))
    assert await store.store.heartbeat([beat(run)], LEASE) == [KEPT]
    assert await store.store.progress([report(run)]) == [KEPT]
    assert await store.store.look([beat(run)]) == [KEPT]
    assert await answers(store, settlement(run, Released())) == [Answer.APPLIED]
    assert await answers(store, settlement(run, Released())) == [Answer.ALREADY]
    [run] = map(by_anyone, (await store.claim("A")).jobs)
    assert await answers(store, settlement(run, Completed())) == [Answer.APPLIED]
    assert await answers(store, settlement(run, Completed())) == [Answer.ALREADY]


# ── Repeats ──


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
async def test_a_repeat_of_ones_own_is_known_by_the_worker_too(store: Harness, outcome: Outcome) -> None:
    a, b = await given_twice(store)
    wish = settlement(b, outcome, ran=1.0)
    assert await answers(store, wish) == [Answer.APPLIED]
    before = await store.rows()
    assert await answers(store, wish) == [Answer.ALREADY]
    assert await answers(store, structs.replace(wish, worker=None)) == [Answer.ALREADY]
    assert await answers(store, settlement(a, outcome, ran=1.0)) == [Answer.LOST]
    assert await store.rows() == before


async def test_a_repeat_is_known_when_others_have_run_it_since(store: Harness) -> None:
    a, b = await given_twice(store)
    await store.store.settle([settlement(b, Released())])
    [c] = (await store.claim("C")).jobs
    assert await answers(store, settlement(b, Released())) == [Answer.ALREADY]
    assert await answers(store, settlement(a, Released())) == [Answer.LOST]
    await store.store.settle([settlement(c, Completed())])
    assert await answers(store, settlement(b, Released())) == [Answer.ALREADY]
    assert await answers(store, settlement(a, Released())) == [Answer.LOST]


async def test_a_run_that_was_taken_away_is_nobodys_repeat(store: Harness) -> None:
    a, b = await given_twice(store)
    await store.store.move_due(Rescue(by="A", backoff=[0.0], workers=["B"]))  # A only rescues it: that gives A no run
    before = await store.rows()
    for run in (a, b):
        for outcome in OUTCOMES.values():
            assert await answers(store, settlement(run, outcome)) == [Answer.LOST]
    assert await store.rows() == before


# ── Batches ──

KINDS: dict[str, tuple[Outcome, Outcome, Outcome]] = {
    "completions": (Completed("1"), Completed("2"), Completed("3")),
    "all kinds": (Completed("1"), Failed("2"), Released()),
}


def statuses(outcomes: Sequence[Outcome]) -> list[Status]:
    after = {Completed: Status.COMPLETED, Failed: Status.PENDING, Released: Status.PENDING}
    return [after[type(outcome)] for outcome in outcomes]


@pytest.mark.parametrize("claims", [False, True], ids=["alone", "with a claim"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_batch_of_several_workers(unpaired: Harness, kind: str, claims: bool) -> None:
    lost, other = await given_twice(unpaired, worker="B")
    before = await unpaired.row(lost.id)
    ours = [await unpaired.claimed("A"), await unpaired.claimed("B"), by_anyone(await unpaired.claimed("C"))]
    wishes = [settlement(run, outcome) for run, outcome in zip(ours, KINDS[kind], strict=True)]
    wishes.insert(1, settlement(lost, Completed("0")))
    waiting = await unpaired.add("other")
    settled = await unpaired.store.settle(wishes, claim_by("A", "other") if claims else None)
    applied = Answer.APPLIED
    assert [verdict.answer for verdict in settled.verdicts] == [applied, Answer.LOST, applied, applied]
    assert [(await unpaired.job(run.id)).status for run in ours] == statuses(KINDS[kind])
    assert [one.id for one in settled.claimed.jobs] == [waiting] if settled.claimed else not claims
    assert await unpaired.row(lost.id) == before
    assert await answers(unpaired, settlement(other, Completed("B's"))) == [applied]


@pytest.mark.parametrize("outcome", [Completed("B's"), Released()], ids=["completed", "released"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
async def test_both_in_one_batch(store: Harness, first: bool, outcome: Outcome) -> None:
    a, b = await given_twice(store)
    runs = [a, b] if first else [b, a]
    expected = [LOST, KEPT] if first else [KEPT, LOST]
    assert await store.store.heartbeat([beat(run) for run in runs], LEASE) == expected
    reports = [report(run, 1.0 if run is a else 2.0) for run in runs]
    assert await store.store.progress(reports) == expected
    assert (await store.job(b.id)).progress == 2.0
    assert len(((await store.store.read([b.id], Log))[b.id]).lines) == 1
    wanted = [Answer.LOST, Answer.APPLIED] if first else [Answer.APPLIED, Answer.LOST]
    assert await answers(store, *(settlement(run, outcome) for run in runs)) == wanted
    if isinstance(outcome, Completed):
        assert (await store.job(b.id)).result == "B's"


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
async def test_a_settle_can_not_end_what_its_own_claim_brings(store: Harness, outcome: Outcome) -> None:
    """One call settles the forgotten run and claims. The same worker then gets the same version again."""
    a = await store.claimed("A")
    await store.forget_claims()
    settled = await store.store.settle([settlement(a, outcome)], claim_by("A"))
    assert [verdict.answer for verdict in settled.verdicts] == [Answer.LOST]
    assert settled.claimed is not None
    [again] = settled.claimed.jobs
    assert (again.id, again.version) == (a.id, a.version)
    assert await store.job(a.id) == again
