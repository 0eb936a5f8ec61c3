"""core.moves against MOVES: every order in every status is refused, or makes a patch that MOVES allows."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.json import encode

from rowlock.core.job import HELD, LIVE, Status
from rowlock.core.lifecycle import MOVES
from rowlock.core.moves import (
    COUNTERS,
    Cancel,
    CancelTimeout,
    Delete,
    Edit,
    Expire,
    Order,
    Patch,
    Refusal,
    Replace,
    Requeue,
    Rescue,
    Row,
    Unblock,
    Update,
    move,
    move_all,
    tally,
)

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
    *(st.builds(kind, **whom) for kind in (Cancel, Delete, Expire, CancelTimeout, Replace, Unblock)),
    st.builds(Update, edit=edits, **whom),
    st.builds(Requeue, edit=edits, version=st.none() | numbers, undo=st.booleans(), keep_steps=st.booleans(), **whom),
    st.builds(Rescue, backoff=st.lists(st.floats(0, 100), min_size=1), workers=st.sampled_from([None, ["w1"]]), **whom),
)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    status = draw(st.sampled_from(Status))
    claimed = draw(times) if status in HELD else None
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
        started_at=draw(st.none() | times) if status in HELD else None,
        finished_at=draw(times) if status in DEAD else None,
        locked_by=draw(names) if status in HELD else None,
        scope=None,
        scope_id=None,
        key=draw(st.none() | names),
        if_live=None,
        line=draw(st.none() | names),
        line_seq=draw(numbers),
        step=draw(st.none() | names),
        fingerprint=draw(st.none() | names) if status in DEAD else None,
        events=draw(numbers),
        tags=draw(st.none() | st.just('["x"]')),
        payload='{"n":-0.0}',
        place=None,
    )


@given(row=rows(), order=orders, holder=st.none() | names)
def test_a_move_is_refused_or_legal(row: Row, order: Order, holder: str | None) -> None:
    rule = MOVES[order.verb]
    answer = move(row, order, NOW, holder)
    if isinstance(answer, Refusal):
        assert answer.status is row.status
        if row.status in rule.sources:  # only a requeue may find something else in its way
            assert isinstance(order, Requeue)
            assert holder is not None or order.version != row.version
        return
    assert row.status in rule.sources
    assert answer.status in (rule.targets or {None})
    assert "version" not in answer.columns  # it is the fence: a claim alone raises it
    if answer.status is not None:
        assert answer.columns.get("status", row.status) is answer.status
        assert answer.columns["updated"] == NOW
        assert answer.entry["event"] in rule.events
        assert answer.entry["version"] == row.version
        after = {"status": row.status, "finished_at": row.finished_at, "locked_by": row.locked_by} | answer.columns
        assert (after["finished_at"] is not None) == (answer.status in DEAD)
        assert (after["locked_by"] is not None) == (answer.status in HELD)
        assert not answer.columns.get("ready") or answer.status is Status.PENDING
    assert order.is_audited or not answer.audit
    encode([answer.columns, answer.entry, answer.audit])


@given(row=rows(), order=orders)
def test_what_is_counted_is_what_has_happened(row: Row, order: Order) -> None:
    """An end is counted once, a requeue takes it back; so the counts of a job add up to where it stands."""
    answer = move(row, order, NOW)
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


@given(found=st.lists(rows(), max_size=6), taken=st.booleans())
def test_of_rivals_for_a_key_one_gets_it(found: list[Row], taken: bool) -> None:
    """Jobs of a line share theirs."""
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
    """Of a cancelled job that waited for its time."""
    row = Row(
        "1", "mail", status, 0, 0, 100, NOW + 5, 2, 3, 1, NOW, None, None, NOW, None, None, None, None, None, None,
        None, None, None, 1, None, None, None,
    )  # fmt: skip
    patch = move(row, Requeue(by="ann", undo=True), NOW)
    assert isinstance(patch, Patch)
    assert patch.columns["run_at"] == NOW + 5
    assert not patch.columns["ready"]
    assert not {"retries", "crashes", "expires_at"} & set(patch.columns)
