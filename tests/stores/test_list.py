"""list: every filter against the same filter in Python, order, pages, totals, windows, and what is refused."""

import random
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.conditions import holds
from rowlock.core.fingerprint import fingerprint
from rowlock.core.ids import first_id
from rowlock.core.job import Job, Status, new_job
from rowlock.core.lifecycle import Completed, Failed
from rowlock.core.moves import Delete
from rowlock.errors import InvalidInput
from rowlock.stores import listing
from rowlock.stores.queries import MAX_TOTAL, Filter, Page
from tests.stores.conftest import shared_store
from tests.stores.harness import NOBODY, START, Harness, job, settlement

store = shared_store

MINE = "0193fb1e-0000-7000-8000-0000000a0001"
FLOW = "0193fb1e-0000-7000-8000-00000000f10f"
MIDDLE = START + timedelta(seconds=30)
PAYLOADS: list[dict[str, Any]] = [
    {},
    {"n": 1, "user": {"id": 7, "name": "Ann"}, "on": True},
    {"n": 1.0, "user": {"id": "7"}, "on": 1, "none": None},
    {"n": 10**15, "list": [1, {"a": [True]}], "user": {"name": "Ann", "id": 7}},
    {"0": "zero", "list": [1, {"a": [1]}], "x": -0.5, "é": "ü"},
]


async def crowd(store: Harness) -> list[Job]:
    """Insert and return jobs of every status, with values for every filter."""
    made = []
    pending_last = sorted(Status, key=lambda status: status is Status.PENDING)  # else another claim takes it
    for n, status in enumerate([*pending_last[:-1], *pending_last]):
        one = await store.in_status(status, "mail" if n % 3 else "bills")
        made.append(one.id)
        await store.advance(5)
    digits = "0123456789abcdef0123"
    for n in range(12):
        fields: dict[str, Any] = {
            "id": f"{digits[n * 5 % 16]}193fb1e-0000-7000-8000-0000000001{n:02x}",
            "key": f"k{n % 4}",
            "priority": 500,
            "scope": ["user", "system", None][n % 3],
            "scope_id": [None, "u1", "u2"][n % 3],
            "tags": [(), ("red",), ("blue", "red"), ("re",)][n % 4],
        }
        inserted = await store.insert(new_job(fields.pop("id"), "mail", PAYLOADS[n % 5], **fields))
        made.append(inserted[0].id)
        [claimed] = (await store.claim("w1", "mail", limit=1)).jobs if n % 2 else [None]
        if claimed is not None:
            outcome = Completed() if n % 3 else Failed(f"Boom\n{n}: Äh %_", final=True)
            await store.store.settle([settlement(claimed, outcome, ran=0.0)])
    await store.execute(f"UPDATE _jobs SET flow_id = '{FLOW}' WHERE status IN ('pending', 'failed')")
    await store.execute(f"UPDATE _jobs_archive SET flow_id = '{FLOW}' WHERE key IS NOT NULL")
    return sorted((await store.store.read(made, Job)).values(), key=lambda one: one.id, reverse=True)


def member(payload: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(payload, dict) or name not in payload:
            return ...
        payload = payload[name]
    return payload


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def wanted(filter: Filter, one: Job) -> bool:
    """Return True if the job meets the filter."""
    spans = ((one.created, "created"), (one.finished_at, "finished"), (one.run_at, "run_at"))
    return (
        (not filter.ids or one.id in filter.ids)
        and (not filter.topics or one.topic in filter.topics)
        and (not filter.statuses or one.status in filter.statuses)
        and (not filter.keys or one.key in filter.keys)
        and filter.scope in (None, one.scope)
        and filter.scope_id in (None, one.scope_id)
        and filter.flow_id in (None, one.flow_id)
        and all(within(at, getattr(filter, f"{name}_from"), getattr(filter, f"{name}_until")) for at, name in spans)
        and set(filter.tags) <= set(one.tags)
        and all(same(member(one.payload, path), value) for path, value in dict(filter.payload).items())
        and (filter.error is None or filter.error.lower() in (one.last_error or "").lower())
        and (filter.where is None or holds(filter.where, structs.asdict(one)))
        and (filter.fingerprint is None or has_fingerprint(one, filter.fingerprint))
    )


def within(at: datetime | None, since: datetime | None, until: datetime | None) -> bool:
    if at is None:
        return since is None and until is None
    return (since is None or since <= at) and (until is None or at < until)


def has_fingerprint(one: Job, wanted: str) -> bool:
    dead = one.status in (Status.FAILED, Status.EXPIRED) and one.last_error is not None
    return dead and fingerprint(one.topic, str(one.last_error)) == wanted


CASES = [
    Filter(),
    Filter(ids=[NOBODY]),
    Filter(topics=["bills"]),
    Filter(topics=["mail", "bills", "none"]),
    Filter(topics=["none"]),
    *(Filter(statuses=[status]) for status in Status),
    Filter(statuses=["failed", "expired", "processing"]),
    Filter(statuses=["completed", "waiting", "cancel_requested", "processing"], topics=["mail"]),
    Filter(keys=["k1"]),
    Filter(keys=["k1", "k2"], topics=["mail", "none"]),
    Filter(keys=["k1", "k0"], topics=["mail"], statuses=["pending", "failed"]),
    Filter(scope="user"),
    Filter(scope_id="u1"),
    Filter(scope="system", scope_id="u2"),
    Filter(scope="user", topics=["mail", "none"]),
    Filter(scope="user", topics=["mail"], created_from=MIDDLE, statuses=["completed"]),
    Filter(flow_id=FLOW),
    Filter(created_from=MIDDLE, created_until=MIDDLE + timedelta(seconds=20)),
    Filter(finished_from=MIDDLE, finished_until=MIDDLE + timedelta(seconds=50)),
    Filter(finished_until=MIDDLE, topics=["mail"]),
    Filter(run_at_from=MIDDLE, topics=["mail"]),
    Filter(run_at_until=MIDDLE),
    Filter(fingerprint=fingerprint("mail", "never")),
    Filter(tags=["red"]),
    Filter(tags=["red", "blue"]),
    Filter(tags=["red"], statuses=["failed"]),
    Filter(payload={"n": 1}),
    Filter(payload={"n": 1.0}),
    Filter(payload={"n": 10**15}),
    Filter(payload={"x": -0.5}),
    Filter(payload={"on": True}),
    Filter(payload={"on": 1}),
    Filter(payload={"none": None}),
    Filter(payload={"user.id": 7}),
    Filter(payload={"user.id": "7"}),
    Filter(payload={"user": {"name": "Ann", "id": 7}}),
    Filter(payload={"list": [1, {"a": [1]}]}),
    Filter(payload={"list": [1, {"a": [True]}]}),
    Filter(payload={"list.0": 1}),  # paths do not lead into lists
    Filter(payload={"0": "zero"}),
    Filter(payload={"é": "ü"}),
    Filter(payload=[("n", 1), ("on", True)]),
    Filter(error="bOOM"),
    Filter(error=": Äh %_"),
    Filter(error="b%m"),
]


async def test_filters(store: Harness) -> None:
    everyone = await crowd(store)
    assert len({one.status for one in everyone}) == len(Status)
    empty = 0
    for filter in CASES:
        expected = [one for one in everyone if wanted(filter, one)]
        empty += not expected
        page = await store.store.list(filter, limit=200)
        assert page.items == expected, filter
        whole = (len(expected), False, False, None)
        assert (page.total, page.total_capped, page.partial, page.next) == whole, filter
    assert empty < 10  # the other filters find jobs
    chosen = [one.id for one in everyone[::3]]
    for statuses in ((), ("completed", "pending")):
        page = await store.store.list(Filter(ids=chosen, statuses=statuses))
        assert page.items == [one for one in everyone[::3] if not statuses or one.status in statuses]


def test_the_cases_ask_for_something() -> None:
    """CASES uses each field of Filter."""
    given = {name for filter in CASES for name in Filter.__struct_fields__ if getattr(filter, name)}
    assert given | {"ids", "where"} == set(Filter.__struct_fields__)


# ── Pages ──


async def pages(store: Harness, filter: Filter, limit: int) -> list[Page]:
    """Return all pages: follow the cursor to the end."""
    found = [await store.store.list(filter, limit=limit)]
    while found[-1].next is not None:
        found.append(await store.store.list(filter, limit=limit, cursor=found[-1].next))
        assert len(found) < 200
    return found


@pytest.mark.parametrize(
    "filter", [Filter(), Filter(topics=["mail", "bills"]), Filter(statuses=["failed", "completed"])]
)
async def test_pages(store: Harness, filter: Filter) -> None:
    everyone = await crowd(store)
    if filter.statuses:
        everyone = [one for one in everyone if one.status in filter.statuses]
    for limit in (1, 4, len(everyone), 200):
        walked = await pages(store, filter, limit)
        assert [one for page in walked for one in page.items] == everyone
        assert {page.total for page in walked} == {len(everyone)}
        assert {(page.limit, page.offset, page.partial) for page in walked} == {(limit, 0, False)}
        for offset in (0, 3, len(everyone) - 1, len(everyone), MAX_TOTAL):
            page = await store.store.list(filter, limit=limit, offset=offset)
            assert page.items == everyone[offset : offset + limit]
            assert (page.total, page.offset) == (len(everyone), offset)
            assert (page.next is None) == (offset + limit >= len(everyone))


async def test_an_empty_database(store: Harness) -> None:
    page = await store.store.list(Filter())
    assert page == Page(items=[], total=0, total_capped=False, partial=False, next=None, limit=20, offset=0)


async def test_a_cursor_outlives_the_job_it_points_at(store: Harness) -> None:
    await store.insert(*[job() for _ in range(5)])
    everyone = (await store.store.list(Filter())).items
    first = await store.store.list(Filter(), limit=2)
    await store.store.move([everyone[1].id], Delete(by="ann"))
    await store.insert(job())  # newer than everything: not on a later page
    rest = await store.store.list(Filter(), limit=5, cursor=first.next)
    assert rest.items == everyone[2:]


# ── Bounds ──


async def test_a_total_is_exact_to_ten_thousand(store: Harness) -> None:
    await store.insert(*[job() for _ in range(MAX_TOTAL)])
    done = (await store.claim(limit=4)).jobs
    await store.store.settle([settlement(one, Completed(), ran=0.0) for one in done])
    page = await store.store.list(Filter())
    assert (page.total, page.total_capped, len(page.items)) == (MAX_TOTAL, False, 20)
    await store.insert(job("other"))
    page = await store.store.list(Filter())
    assert (page.total, page.total_capped, page.partial) == (MAX_TOTAL, True, False)
    page = await store.store.list(Filter(), cursor=page.next)
    assert (page.total, page.total_capped, page.partial) == (MAX_TOTAL, True, False)
    page = await store.store.list(Filter(topics=["mail"]))
    assert (page.total, page.total_capped) == (MAX_TOTAL, False)
    page = await store.store.list(Filter(), offset=MAX_TOTAL)
    assert len(page.items) == 1
    assert page.next is None


@pytest.mark.parametrize(
    ("filter", "bound"), [(Filter(tags=["red"]), "WINDOW"), (Filter(run_at_until=START + timedelta(days=1)), "BUDGET")]
)
async def test_a_window_is_marked_and_the_cursor_goes_on_behind_it(
    store: Harness, filter: Filter, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that match are rare and old. A page that has not looked at everything is marked as partial."""
    matching: dict[str, Any] = {"tags": ("red",)} if filter.tags else {}
    other: dict[str, Any] = {} if filter.tags else {"run_at": START + timedelta(days=2)}
    old = [(await store.insert(job(**matching)))[0].id for _ in range(3)]
    [done] = (await store.claim(limit=1)).jobs
    await store.store.settle([settlement(done, Completed(), ran=0.0)])
    await store.insert(*[job(**other) for _ in range(2500)])
    newest = (await store.insert(job(**matching)))[0].id
    monkeypatch.setattr(listing, "WINDOW", 1000)
    monkeypatch.setattr(listing, "BUDGET", 1000)
    first = await store.store.list(filter)
    assert ([one.id for one in first.items], first.total, first.partial) == ([newest], 2, True)  # one below the horizon
    assert first.total_capped
    walked = await pages(store, filter, 20)
    assert [one.id for page in walked for one in page.items] == [newest, *sorted(old, reverse=True)]
    assert (walked[-1].next, walked[-1].partial, walked[-1].total_capped) == (None, False, True)
    assert 3 <= len(walked) <= 4
    full = await store.store.list(filter, limit=1)
    assert full.next is not None


@pytest.mark.parametrize("seed", range(4))
async def test_what_a_page_says_of_the_rest_is_true(store: Harness, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any filter and bounds, a page tells whether there is more, whether that is sure, and how many there are."""
    dice = random.Random(seed)
    everyone = await crowd(store)
    monkeypatch.setattr(listing, "MAX_TOTAL", most := dice.choice([5, 12, 1000]))
    for filter in dice.sample(CASES, 12):
        name, expected = repr(filter), [one for one in everyone if wanted(filter, one)]
        budget, limit = dice.choice([1, 2, 5, 11, 1000]), dice.choice([1, 3, 10])
        monkeypatch.setattr(listing, "_budget", lambda *_, budget=budget: budget)
        monkeypatch.setattr(listing, "BUDGET", budget)
        seen: list[Job] = []
        for page in await pages(store, filter, limit):
            seen += page.items
            what = (name, budget, limit, page.partial, page.next, page.total, page.total_capped, len(seen))
            assert seen == expected[: len(seen)], what
            if page.next is None:
                assert (seen, page.partial) == (expected, False), what
            elif not page.partial:
                assert len(page.items) == limit, what
                assert len(seen) < len(expected), what
            assert min(len(page.items), most) <= page.total <= min(len(expected), most), what
            assert page.total_capped or page.total == len(expected), what
        first = await store.store.list(filter, limit=200)
        if first.next is None:
            assert (first.items, first.total) == (expected, min(len(expected), most)), name
            assert first.total_capped == (len(expected) > most), name


# ── Refused ──


@pytest.mark.parametrize(
    ("given", "field", "code"),
    [
        ({"statuses": ["done"]}, "statuses", "unknown_status"),
        ({"statuses": "failed"}, "statuses", "not_a_list"),
        ({"topics": "mail"}, "topics", "not_a_list"),
        ({"topics": ["a b"]}, "topic", "bad_characters"),
        ({"topics": [f"t{n}" for n in range(101)]}, "topics", "too_many"),
        ({"ids": ["x"]}, "id", "bad_id"),
        ({"keys": [""]}, "keys", "bad_length"),
        ({"keys": 5}, "keys", "not_a_list"),
        ({"scope": 5}, "scope", "not_text"),
        ({"flow_id": "x"}, "id", "bad_id"),
        ({"created_from": datetime(2026, 1, 1)}, "created_from", "naive_time"),  # noqa: DTZ001 - that's the point
        ({"run_at_until": "now"}, "run_at_until", "not_a_time"),
        ({"tags": "red"}, "tags", "not_a_list"),
        ({"tags": [1]}, "tags[0]", "not_text"),
        ({"payload": "n"}, "payload", "not_an_object"),
        ({"payload": {"a..b": 1}}, "payload", "bad_path"),
        ({"payload": {'a"b': 1}}, "payload", "bad_path"),
        ({"payload": {"a": float("nan")}}, "payload.a", "not_finite"),
        ({"payload": {"a": object()}}, "payload.a", "not_json"),
        ({"payload": {f"a{n}": 1 for n in range(9)}}, "payload", "too_many"),
        ({"payload": [1]}, "payload", "not_a_pair"),
        ({"error": ""}, "error", "bad_length"),
        ({"error": "a\0"}, "error", "nul"),
    ],
)
def test_a_filter_that_can_not_be(given: dict[str, Any], field: str, code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Filter(**given)
    assert (refused.value.field, refused.value.code) == (field, code)


def test_a_filter_is_put_in_order() -> None:
    near = datetime(2026, 1, 1, 13, tzinfo=UTC)
    filter = Filter(topics=iter(["a", "a"]), statuses=["failed"], created_from=near, payload={"a.b": 1})  # type: ignore[arg-type]
    assert filter.topics == ("a",)
    assert filter.statuses == (Status.FAILED,)
    assert filter.paths == [(["a", "b"], "1")]
    assert structs.replace(filter, topics=["b"]).topics == ("b",)


@pytest.mark.parametrize(
    ("place", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": "5"}, "limit"),
        ({"offset": -1}, "offset"),
        ({"offset": MAX_TOTAL + 1}, "offset"),
        ({"cursor": ""}, "cursor"),
        ({"cursor": "!!!"}, "cursor"),
        ({"cursor": "AAAA"}, "cursor"),
        ({"cursor": 5}, "cursor"),
        ({"cursor": "AZ8fAAAAcACAAAAAAAAAAB"}, "cursor"),  # unused bits must be 0: a cursor has one text only
        ({"cursor": "AZ8fAAAAcACAAAAAAAAAAA", "offset": 1}, "offset"),
    ],
)
async def test_a_place_that_can_not_be(store: Harness, place: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await store.store.list(Filter(), **place)
    assert refused.value.field == field


# ── Ids whose time is not the time of creation ──

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("bound", ["at once", "in order"])
async def test_ranges_of_time_find_every_id(store: Harness, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store looks for jobs by the time in their ids. It also finds jobs whose id has another time."""
    shifts = [timedelta(0), HOUR - timedelta(seconds=1), HOUR + timedelta(seconds=1), timedelta(days=40)]
    made = []
    for n in range(12):
        at = store.now + [*shifts, *(-shift for shift in shifts)][n % 8]
        job_id = first_id(at)[:-3] + f"{n:03x}"
        await store.insert(new_job(job_id, f"t{n % 3}"))
        made.append(job_id)
        [claimed] = (await store.claim("w1", "t0", "t1", "t2")).jobs
        await store.advance(1000 * (n % 2))
        if n % 4:
            await store.store.settle([settlement(claimed, Completed(), ran=0.0)])
        await store.advance(1800)
    everyone = sorted((await store.store.read(made, Job)).values(), key=lambda one: one.id, reverse=True)
    if bound == "in order":
        monkeypatch.setattr(listing, "BUDGET", -1)
    for begin in range(0, 22_000, 2000):
        since, until = START + timedelta(seconds=begin), START + timedelta(seconds=begin + 5000)
        for topics, statuses in product(([], ["t1"], ["t0", "t2", "t9"]), ([], ["processing"], ["completed"])):
            for field in ("created", "finished", "run_at"):
                span: dict[str, Any] = {f"{field}_from": since, f"{field}_until": until}
                filter = Filter(topics=topics, statuses=statuses, **span)
                expected = [one for one in everyone if wanted(filter, one)]
                assert (await store.store.list(filter)).items == expected, (filter, expected)


@pytest.mark.parametrize(
    ("shift", "stray"),
    [(0.0, False), (3599.99, False), (-3599.99, False), (3600.01, True), (-3600.01, True), (1e7, True), (-1e7, True)],
)
async def test_strays_are_marked(store: Harness, shift: float, stray: bool) -> None:
    job_id = first_id(START, timedelta(seconds=shift))
    await store.insert(new_job(job_id, "mail"), job())
    found = {str(row[0]): bool(row[1]) for row in await store.fetch("SELECT id, stray FROM _jobs")}
    assert found.pop(job_id) is stray
    assert list(found.values()) == [False]
    jobs = (await store.claim()).jobs
    await store.store.settle([settlement(one, Completed(), ran=0.0) for one in jobs])
    [archived] = await store.fetch(f"SELECT stray FROM _jobs_archive WHERE id = '{job_id}'")
    assert bool(archived[0]) is stray


class Word(str):  # noqa: SLOT000 - as an application writes it
    """Text of a class that the application defines."""

    def __str__(self) -> str:
        return "something else"


async def test_text_of_a_class_of_the_callers_own_is_text(store: Harness) -> None:
    words: dict[str, Any] = {name: Word(name) for name in ("key", "scope", "scope_id", "trace")}
    [made] = await store.insert(new_job(MINE, Word("mail"), {"a": {"b": 1}}, tags=(Word("red"),), **words))
    [found] = (await store.store.read([made.id], Job)).values()
    assert (found.topic, found.tags) == ("mail", ("red",))
    assert {name: getattr(found, name) for name in words} == {name: name for name in words}
    for asked in (
        Filter(ids=[Word(made.id)]),
        Filter(topics=[Word("mail")], keys=[Word("key")]),
        Filter(statuses=[Status.PENDING], scope=Word("scope"), scope_id=Word("scope_id")),
        Filter(keys=[Word("key")], tags=[Word("red")], payload=[(Word("a.b"), 1)]),
    ):
        assert [one.id for one in (await store.store.list(asked)).items] == [made.id]
