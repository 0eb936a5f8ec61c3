"""core.moves against MOVES: every order in every status is refused, or makes a patch that MOVES allows."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.json import encode
from msgspec.structs import replace

from rowlock.core.job import HELD, LIVE, Status
from rowlock.core.lifecycle import MOVES
from rowlock.core.moves import (
    COUNTERS,
    AcknowledgeCallback,
    Cancel,
    CancelTimeout,
    Delete,
    Edit,
    Expire,
    Order,
    Patch,
    Refusal,
    Replace,
    ReportCallback,
    Requeue,
    Rescue,
    Resume,
    Row,
    Signal,
    SignalSent,
    Unblock,
    Update,
    WaitOrder,
    Wake,
    advance,
    move,
    move_all,
    tally,
)
from rowlock.core.waits import WaitFacts

NOW = 1_767_268_800_000_000
DEAD = frozenset(Status) - LIVE

times = st.integers(NOW - 10**12, NOW + 10**12)
numbers = st.integers(0, 5)
names = st.sampled_from(["a", "b"])
edits = st.builds(
    Edit,
    priority=numbers | st.just(UNSET),
    delay=st.floats(0, 1000) | st.just(UNSET),
    payload=st.just('{"n":1e22}') | st.just(UNSET),
    tags=st.lists(names).map(tuple) | st.just(UNSET),
)
whom: dict[str, Any] = {"by": names, "reason": st.none() | names}
orders: st.SearchStrategy[Order] = st.one_of(
    *(st.builds(kind, **whom) for kind in (Cancel, Delete, Expire, CancelTimeout, Replace, Unblock, Resume, Wake)),
    st.builds(Update, edit=edits, **whom),
    st.builds(Requeue, edit=edits, version=st.none() | numbers, undo=st.booleans(), keep_steps=st.booleans(), **whom),
    st.builds(Rescue, backoff=st.lists(st.floats(0, 100), min_size=1), workers=st.sampled_from([None, ["w1"]]), **whom),
    st.builds(
        Signal, sent=st.builds(SignalSent, names, st.just("1"), st.none() | names), number=st.none() | numbers, **whom
    ),
    st.builds(ReportCallback, signal=names, number=numbers, timeout=st.none() | st.floats(0, 100), **whom),
    st.builds(AcknowledgeCallback, signal=names, number=numbers, **whom),
)
facts = st.builds(
    WaitFacts,
    unread=st.sampled_from([0, 999, 1000]),
    is_known=st.booleans(),
    has_callback=st.booleans(),
    callback=st.none() | times,
    undoes=st.booleans(),
    timeout=st.none() | st.floats(0, 100),
)


def informed(order: Order, row: Row, known: WaitFacts) -> Order:
    return replace(order, facts={row.id: known}) if isinstance(order, WaitOrder) else order


@st.composite
def rows(draw: st.DrawFn) -> Row:
    status = draw(st.sampled_from(Status))
    # A waiting job that is being cancelled has no lease. It still waits for its signal or time, or runs once more.
    held = status is Status.PROCESSING or (status is Status.CANCEL_REQUESTED and draw(st.booleans()))
    waits = status is Status.WAITING or (status is Status.CANCEL_REQUESTED and not held and draw(st.booleans()))
    claimed = draw(times) if held else None
    return Row(
        id=draw(st.uuids().map(str)),
        topic=draw(names),
        status=status,
        template_version=0,
        version=draw(numbers),
        priority=draw(numbers),
        run_at=draw(times),
        retries=draw(numbers),
        max_retries=draw(numbers),
        crashes=draw(numbers),
        created=draw(times),
        claimed_at=claimed,
        started_at=draw(st.none() | times) if held else None,
        finished_at=draw(times) if status in DEAD else None,
        locked_by=draw(names) if held else None,
        scope=None,
        scope_id=None,
        key=draw(st.none() | names),
        if_live=None,
        line=draw(st.none() | names),
        line_seq=draw(numbers),
        step=draw(st.none() | names),
        fingerprint=draw(st.none() | names) if status in DEAD else None,
        waits_for=draw(st.sampled_from(["sleep", "signal:a", "signal:b"])) if waits else None,
        signals=draw(numbers),
        events=draw(numbers),
        tags=draw(st.none() | st.just('["x"]')),
        payload='{"n":-0.0}',
        place=None,
    )


@given(row=rows(), order=orders, holder=st.none() | names, known=facts)
def test_a_move_is_refused_or_legal(row: Row, order: Order, holder: str | None, known: WaitFacts) -> None:
    rule = MOVES[order.verb]
    if isinstance(order, Rescue) and row.locked_by is None:
        return  # a store rescues no job without a lease
    answer = move(row, informed(order, row, known), NOW, holder)
    if isinstance(answer, Refusal):
        assert answer.status is row.status
        if row.status not in rule.sources:
            assert answer.why is None
        elif isinstance(order, Requeue):
            assert holder is not None or order.version != row.version
        else:  # a signal or callback is refused for another reason than the status
            assert isinstance(order, Signal | ReportCallback | AcknowledgeCallback)
            assert answer.why in ("known", "full", "late", "gone") or row.waits_for is None
        return
    assert row.status in rule.sources
    assert answer.status in (rule.targets or {None})
    assert "version" not in answer.columns  # the version is the fence: only a claim raises it
    if answer.status is not None:
        assert answer.columns.get("status", row.status) is answer.status
        assert answer.columns["updated"] == NOW
        if rule.events:
            assert answer.entry["event"] in rule.events
            assert answer.entry["version"] == row.version
            assert answer.entry["status"] is answer.status
        else:
            assert answer.entry == {}
        same = ("status", "finished_at", "locked_by", "waits_for", "signals")
        after = {name: getattr(row, name) for name in same} | answer.columns
        assert (after["finished_at"] is not None) == (answer.status in DEAD)
        assert (after["locked_by"] is not None) == (row.locked_by is not None and answer.status in HELD)
        ready, cancelling = answer.columns.get("ready"), answer.status is Status.CANCEL_REQUESTED
        assert not ready or answer.status is Status.PENDING or (cancelling and after["locked_by"] is None)
        waits = answer.status is Status.WAITING or (cancelling and after["locked_by"] is None and not ready)
        assert (after["waits_for"] is not None) == waits
        assert after["signals"] - row.signals == (answer.signal is not None)
    assert order.is_audited or not answer.audit
    encode([answer.columns, answer.entry, answer.audit])


@given(row=rows(), order=orders, known=facts)
def test_what_is_counted_is_what_has_happened(row: Row, order: Order, known: WaitFacts) -> None:
    """An end is counted once, and a requeue takes the count back. So the counts of a job add up to its status."""
    answer = move(row, informed(order, row, known), NOW)
    if isinstance(answer, Refusal):
        return
    assert set(answer.counts) <= set(COUNTERS)
    ends = {status.value: answer.counts.get(status, 0) for status in DEAD}
    if answer.status is None:
        assert not any(ends.values())
    else:
        expected = Counter({answer.status.value: 1} if answer.status in DEAD else {})
        expected.subtract([row.status.value] if row.status in DEAD else [])
        assert ends == {status: expected[status] for status in ends}
    assert tally([(row, answer)]) == ({row.topic: Counter(answer.counts)} if answer.counts else {})


def a_row(status: Status, **fields: Any) -> Row:
    known: dict[str, Any] = dict.fromkeys(Row._fields) | {"id": "1", "topic": "mail", "status": status}
    known |= {"template_version": 0, "version": 1, "priority": 100, "run_at": NOW, "retries": 0, "max_retries": 3}
    known |= {"crashes": 0, "created": NOW, "signals": 0, "events": 1, "finished_at": NOW if status in DEAD else None}
    return Row(**known | fields)


# ── Waits ──

WAITS = a_row(Status.WAITING, waits_for="signal:a", signals=4, run_at=NOW + 9)
OPEN, LATE, ENDLESS = (WaitFacts(has_callback=True, callback=at) for at in (NOW + 1, NOW, None))


@pytest.mark.parametrize(
    ("known", "status", "ready", "waits_for"),
    [
        (WaitFacts(), Status.CANCELLED, False, None),
        (LATE, Status.CANCELLED, False, None),
        (OPEN, Status.CANCEL_REQUESTED, False, "signal:a"),
        (ENDLESS, Status.CANCEL_REQUESTED, False, "signal:a"),
        (WaitFacts(undoes=True), Status.CANCEL_REQUESTED, True, None),
        (OPEN._replace(undoes=True), Status.CANCEL_REQUESTED, True, None),
    ],
)
@pytest.mark.parametrize("kind", [Cancel, Replace])
def test_cancel_of_a_waiting_job(
    kind: type[Cancel], known: WaitFacts, status: Status, ready: bool, waits_for: str | None
) -> None:
    patch = move(WAITS, kind(by="ann", facts={"1": known}), NOW)
    assert isinstance(patch, Patch)
    assert (patch.status, patch.columns["ready"], patch.columns["run_at"]) == (status, ready, NOW)
    assert patch.columns.get("waits_for", WAITS.waits_for) == waits_for


def test_facts_don_t_matter_to_the_cancel_of_a_job_that_does_not_wait() -> None:
    known = {"1": ENDLESS._replace(undoes=True)}
    for status, expected in ((Status.PENDING, Status.CANCELLED), (Status.PROCESSING, Status.CANCEL_REQUESTED)):
        patch = move(a_row(status), Cancel(by="ann", facts=known), NOW)
        assert isinstance(patch, Patch)
        assert (patch.status, patch.columns["ready"]) == (expected, False)


@pytest.mark.parametrize(
    ("name", "number", "known", "expected"),
    [
        ("a", None, WaitFacts(), Status.PENDING),
        ("b", None, WaitFacts(), Status.WAITING),
        ("a", None, WaitFacts(is_known=True), "known"),
        ("a", None, WaitFacts(unread=999), Status.PENDING),
        ("a", None, WaitFacts(unread=1000), "full"),
        ("a", 1, WaitFacts(), "gone"),
        ("a", 1, LATE, "late"),
        ("a", 1, LATE._replace(is_known=True), "known"),
        ("a", 1, OPEN, Status.PENDING),
        ("a", 1, ENDLESS, Status.PENDING),
    ],
)
def test_a_signal_for_a_waiting_job(name: str, number: int | None, known: WaitFacts, expected: str) -> None:
    order = Signal(by="ann", sent=SignalSent(name, "1"), number=number, facts={"1": known})
    answer = move(WAITS, order, NOW)
    if isinstance(answer, Refusal):
        assert answer == Refusal(Status.WAITING, why=expected)
        return
    assert (answer.status, answer.columns["signals"], answer.signal) == (expected, 5, order.sent)
    assert order.is_audited == (number is None)
    assert answer.columns.get("run_at") == (NOW if expected is Status.PENDING else None)


def test_wake_ends_the_wait_now() -> None:
    patch = move(WAITS, Wake(by="ann"), NOW)
    assert isinstance(patch, Patch)
    assert (patch.status, patch.deadlines) == (Status.PENDING, {"@signal:a": NOW})
    resumed = move(WAITS, Resume(by="m1"), NOW)
    assert isinstance(resumed, Patch)
    assert (resumed.status, resumed.deadlines) == (Status.PENDING, {})


@pytest.mark.parametrize(
    ("signal", "timeout", "wait_timeout", "deadlines"),
    [
        ("a", 60.0, 90.0, {"@callback:a": NOW + 60_000_000, "@signal:a": NOW + 90_000_000}),
        ("a", None, 90.0, {"@signal:a": NOW + 90_000_000}),
        ("a", 60.0, None, {"@callback:a": NOW + 60_000_000}),
        ("b", 60.0, 90.0, {"@callback:b": NOW + 60_000_000}),
        ("a", None, None, {}),
    ],
)
def test_a_report_moves_deadlines(
    signal: str, timeout: float | None, wait_timeout: float | None, deadlines: dict[str, int]
) -> None:
    known = {"1": OPEN._replace(timeout=wait_timeout)}
    patch = move(WAITS, ReportCallback(by="x", signal=signal, number=1, timeout=timeout, facts=known), NOW)
    assert isinstance(patch, Patch)
    assert (patch.status, patch.entry, patch.deadlines) == (Status.WAITING, {}, deadlines)
    assert patch.columns.get("run_at") == deadlines.get("@signal:a")


def test_a_line_is_looked_at_again_when_a_waiting_head_is_replaced() -> None:
    head = WAITS._replace(if_live="replace", line="k", line_seq=1)
    new = a_row(Status.BLOCKED, id="2", if_live="replace", line="k", line_seq=2)
    plan = advance(head, head, [new], 10)
    assert (plan.replaced, plan.by, plan.head, plan.again) == ([head], "2", None, True)
    cancelled = head._replace(status=Status.CANCEL_REQUESTED)
    plan = advance(cancelled, cancelled, [new], 10)
    assert (plan.replaced, plan.head, plan.again) == ([], None, False)
    assert advance(None, None, [new], 10).head == new


# ── Keys and requeues ──


@given(found=st.lists(rows(), max_size=6), taken=st.booleans())
def test_of_rivals_for_a_key_one_gets_it(found: list[Row], taken: bool) -> None:
    """Jobs of a line share their key."""
    holders = {row.live_key: "another" for row in found if row.has_live_key} if taken else {}
    winners: dict[Any, str] = dict(holders)
    for row, answer in move_all(found, Requeue(by="ann"), NOW, holders):
        if row.status not in MOVES["requeue"].sources:
            assert answer == Refusal(row.status)
        elif row.has_live_key and row.live_key in winners:
            assert answer == Refusal(row.status, winners[row.live_key])
        else:
            assert isinstance(answer, Patch)
            assert answer.to_end == (row.line is not None)
            if row.has_live_key:
                winners[row.live_key] = row.id


@pytest.mark.parametrize("status", sorted(MOVES["requeue"].sources))
def test_undo_leaves_time_and_retries_as_they_were(status: Status) -> None:
    """The undo of a cancel leaves the time and the retries of a job that waited for its time."""
    patch = move(a_row(status, run_at=NOW + 5, retries=2), Requeue(by="ann", undo=True), NOW)
    assert isinstance(patch, Patch)
    assert patch.columns["run_at"] == NOW + 5
    assert not patch.columns["ready"]
    assert not {"retries", "crashes", "expires_at"} & set(patch.columns)
