"""S1, S2, S12, S13, S17 and S20: what clients asked for, what they were told, and which jobs there are."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rowlock.core.job import LiveKey
from tests.proof.history import Operation
from tests.proof.lives import LIVE, Life, Step, World
from tests.proof.witness import EDGES, JOBS, TOPICS

Found = Iterator[tuple[str | None, str]]

SOURCES = frozenset({"enqueue", "transaction"})  # verbs that make jobs
MIN_RETENTION = 86_400_000_000  # microseconds for which completed jobs are kept at least
_PRUNED_STATUSES = ("completed", "cancelled", "failed", "expired")


def s1_every_acknowledged_enqueue_is_one_job(world: World) -> Found:
    """An operation's `ids` are those that the client chose. If an existing job has the key, `answer` names that job.
    After a delete, a client may enqueue the id anew: that is another job, and another enqueue was told that it made
    it."""
    wanted = _sources(world)
    for job_id, operations in wanted.items():
        made = len(world.by_id.get(job_id, ()))
        new = [one for one in operations if one.outcome == "ok" and _answer(one, job_id) == (job_id, False)]
        unknown = sum(one.outcome == "unknown" for one in operations)
        if made < len(new):
            yield job_id, f"{len(new)} enqueues were told that they made it; it was made {made} times"
        repeated = any(one.outcome == "ok" and _answer(one, job_id) == (job_id, True) for one in operations)
        if repeated and not made:
            yield job_id, "was said to exist, and never did"
        if made > len(new) + unknown + (not new and repeated):
            yield job_id, f"was made {made} times by {len(new)} acknowledged and {unknown} unknown enqueues"
    for operation in world.history.operations:
        if operation.outcome == "ok" and operation.verb in SOURCES:
            for own in operation.ids:
                answered, existing = _answer(operation, own)
                if existing and answered != own and answered not in world.by_id:
                    yield answered, f"answered for {own}, and never existed"


def _sources(world: World) -> dict[str, list[Operation]]:
    found: dict[str, list[Operation]] = {}
    for operation in world.history.operations:
        if operation.verb in SOURCES:
            for job_id in operation.ids:
                found.setdefault(job_id, []).append(operation)
    return found


def _answer(operation: Operation, own: str) -> tuple[str, bool]:
    """Return the id of the job that the enqueue of `own` was answered with, and whether that job existed before. The
    answer to an enqueue of several jobs has one entry per id, in `jobs`."""
    answer: dict[str, Any] = operation.answer or {}
    if "jobs" in answer:
        answer = answer["jobs"][operation.ids.index(own)]
    return answer.get("id", own), bool(answer.get("existing", False))


def s2_every_job_has_a_source(world: World) -> Found:
    sources = _sources(world)
    if not sources:
        return
    edges = [change.after for change in world.history.changes if change.table == EDGES and change.after is not None]
    started = {edge["parent"] for edge in edges if edge["call"] is not None}
    for job_id, lives in world.by_id.items():
        made = lives[0].steps[0].after or {}
        if job_id not in sources and (made.get("schedule_id") is not None or job_id in started):
            continue  # see S14 and S16
        if job_id not in sources:
            yield job_id, "nobody asked for it"
        elif all(one.outcome == "fail" for one in sources[job_id]):
            yield job_id, "was refused, and is there"


def s12_no_claim_of_a_paused_topic(world: World) -> Found:
    """In SQLite all transactions have one order. In PostgreSQL a claim that began before the pause may end after it."""
    margin = 0.0 if world.history.store == "sqlite" else world.history.settings.get("pause_margin", 1.0)
    claims = {step.seq: (life.id, step) for life in world.lives for step in life.steps if step.move == "claim"}
    paused: dict[str, dict[str, Any]] = {}
    for change in world.history.changes:
        row = change.after or change.before
        if change.table == TOPICS and row is not None:
            paused.pop(row["topic"], None)
            if change.after is not None and change.after["paused_at"] is not None:
                paused[row["topic"]] = change.after
        elif change.seq in claims:
            job_id, step = claims[change.seq]
            assert step.after is not None
            pause = paused.get(step.after["topic"])
            if pause is None or step.after["claimed_at"] <= pause["paused_at"] + margin * 1e6:
                continue
            if pause["paused_until"] is None or step.after["claimed_at"] < pause["paused_until"] - margin * 1e6:
                yield job_id, f"{step} although {step.after['topic']} is paused since {pause['paused_at']}"


def s13_one_live_job_per_key(world: World) -> Found:
    """The jobs of a line are left to S15. The unique index makes a transaction that wants a key wait for the commit
    that frees it, so the order of the record is true."""
    holders: dict[LiveKey, str] = {}
    for change in world.history.changes:
        if change.table != JOBS:
            continue
        before, after = change.before, change.after
        if (before or after or {}).get("line_seq") is not None:
            continue
        if before is not None and before["key"] is not None and holders.get(_key(before)) == before["id"]:
            del holders[_key(before)]
        if after is not None and after["key"] is not None and after["status"] in LIVE:
            holder = holders.setdefault(_key(after), after["id"])
            if holder != after["id"]:
                yield after["id"], f"lives with the key {after['key']!r} beside {holder} (#{change.seq})"
    for operation in world.history.operations:
        detail = operation.detail or {}
        if operation.verb == "enqueue" and operation.outcome == "ok" and detail.get("key") is not None:
            for own in operation.ids:
                answered, existing = _answer(operation, own)
                if existing and answered != own:
                    yield from _wrong_holder(world, answered, _key(detail))


def _key(row: dict[str, Any]) -> LiveKey:
    return LiveKey(row["topic"], row.get("scope"), row.get("scope_id"), row["key"])


def _wrong_holder(world: World, answered: str, key: LiveKey) -> Found:
    keys = [_key(life.steps[0].after) for life in world.by_id.get(answered, ()) if life.steps[0].after is not None]
    if keys and key not in keys:
        yield answered, f"answered for {key}, and has {keys[-1]}"


def s17_business_row_and_job_together(world: World) -> Found:
    """`detail["row_visible"]` of a transaction that enqueues or completes says whether its business row is there at the
    end."""
    for operation in world.history.operations:
        visible = (operation.detail or {}).get("row_visible")
        if visible is None:
            continue
        if operation.outcome != "unknown" and visible != (operation.outcome == "ok"):
            yield None, f"{operation.client} was told {operation.outcome}, and its row is {_there(visible)}"
        for job_id in operation.ids:
            lives = world.by_id.get(job_id, [])
            if operation.verb == "complete":
                there = any(_completed_in(life, int((operation.detail or {})["version"])) for life in lives)
            else:
                there = _answer(operation, job_id)[0] in world.by_id
            if there != visible:
                yield job_id, f"its business row is {_there(visible)}, the {operation.verb} is {_there(there)}"


def _there(is_there: bool) -> str:
    return "there" if is_there else "not there"


def _completed_in(life: Life, version: int) -> bool:
    end = life.ends.get(version)
    return end is not None and end.move == "complete"


def s20_nothing_vanishes(world: World) -> Found:
    history = world.history
    for job_id, lives in world.by_id.items():
        there = job_id in history.jobs or job_id in history.archive
        last = lives[-1].last
        if lives[-1].gone:
            if there:
                yield job_id, f"is there after {last}"
        elif not there and not _dropped_with_its_day(world, last):
            yield job_id, f"has vanished after {last}"
        elif last.after is not None and (last.after["status"] == "completed") != (job_id in history.archive):
            yield job_id, f"is not where {last} put it"
        for life in lives:
            if life.last.move == "prune" and life.last.before is not None:
                yield from _pruned_early(world, life)
    for job_id in (history.jobs.keys() | history.archive.keys()) - world.by_id.keys():
        yield job_id, "is there, and was never made"
    ended = Counter(life.last.move for life in world.lives if life.gone)
    kept = len(history.jobs) + len(history.archive)
    if len(world.lives) != kept + ended.total() + sum(_dropped_with_its_day(world, x.last) for x in world.lives):
        yield None, f"{len(world.lives)} jobs were made, {kept} are there, {ended.total()} were removed"


def _dropped_with_its_day(world: World, last: Step) -> bool:
    """Return True if PostgreSQL may have dropped the job with its day of the archive. No trigger sees such a drop."""
    row = last.after
    if world.history.store != "postgres" or row is None or row["status"] != "completed":
        return False
    if row["id"] in world.history.archive:
        return False
    return bool(world.history.settings.get("now", 0) - row["finished_at"] >= MIN_RETENTION)


def _pruned_early(world: World, life: Life) -> Found:
    row = life.last.before
    assert row is not None
    if row["status"] not in _PRUNED_STATUSES:
        yield life.id, f"{life.last} of a job that lives"
    else:
        kept = world.history.settings.get(f"keep_{row['status']}", 0.0) * 1e6
        kept = max(kept, MIN_RETENTION) if row["status"] == "completed" else kept
        if life.last.at + world.slack - row["finished_at"] < kept:
            yield (
                life.id,
                f"{life.last} {life.last.at - row['finished_at']} µs after its end, and not deleted by anyone",
            )
