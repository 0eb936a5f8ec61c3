"""Plants: what clients and operators must not be told, and what must not follow from their requests."""

from msgspec import structs

from tests.proof.history import Operation
from tests.proof.lives import Life, Step
from tests.proof.planting import HOUR, STRANGER, Barren, Garden, breaks


def _own(garden: Garden, life: Life) -> Operation:
    """Return the enqueue that made this job."""
    return garden.operation(
        lambda one: one.verb == "enqueue" and life.id in one.ids and one.answer == {"id": life.id, "existing": False}
    )


def _enqueued(garden: Garden) -> Life:
    """Return a job that is still there, and whose enqueue was acknowledged."""
    made = {one.ids[0] for one in garden.history.operations if one.outcome == "ok" and one.verb == "enqueue"}
    return garden.life(lambda life: life.id in made and not life.gone and len(garden.world.by_id[life.id]) == 1)


def _last(life: Life, step: Step) -> bool:
    return step is life.last


@breaks("S1")
def an_acknowledged_job_was_never_written(garden: Garden) -> None:
    life = _enqueued(garden)
    _own(garden, life)
    garden.forget(life)


@breaks("S1")
def one_enqueue_made_two_jobs(garden: Garden) -> None:
    life, _ = garden.step("delete")
    _own(garden, life)
    garden.repeat(life.steps[0])


@breaks("S1")
def two_enqueues_were_told_that_they_made_it(garden: Garden) -> None:
    garden.history.operations.append(_own(garden, _enqueued(garden)))


@breaks("S1")
def an_enqueue_was_answered_with_a_job_that_never_was(garden: Garden) -> None:
    garden.swap(_own(garden, _enqueued(garden)), answer={"id": STRANGER, "existing": True})


@breaks("S2")
def a_job_that_nobody_asked_for(garden: Garden) -> None:
    life = _enqueued(garden)
    garden.history.operations = [one for one in garden.history.operations if life.id not in one.ids]


@breaks("S2")
def a_refused_enqueue_made_a_job(garden: Garden) -> None:
    life = _enqueued(garden)
    for one in [one for one in garden.history.operations if life.id in one.ids]:
        garden.swap(one, outcome="fail", answer=None)


@breaks("S12")
def a_claim_of_a_paused_topic(garden: Garden) -> None:
    _, claim = garden.step("claim")
    pause = next((c for c in garden.history.changes if c.table == "_jobs_topics" and c.op == "insert"), None)
    if pause is None or pause.after is None:
        raise Barren
    row = pause.after | {
        "topic": claim.new["topic"],
        "paused_at": claim.new["claimed_at"] - 1,
        "paused_until": None,
    }
    place = [change.seq for change in garden.history.changes].index(claim.first)
    garden.history.changes.insert(place, structs.replace(pause, after=row))


@breaks("S13")
def two_live_jobs_with_one_key(garden: Garden) -> None:
    life = garden.life(lambda life: life.steps[0].after and life.steps[0].after["key"] == "k1")
    twin = garden.life(lambda other: other.id != life.id and not other.steps[0].after["key"])  # type: ignore[index]
    first = life.steps[0].after
    assert first is not None
    garden.alter(twin.steps[0], after={name: first[name] for name in ("key", "topic", "scope", "scope_id")})
    garden.history.changes.sort(key=lambda change: change.seq != life.steps[0].seq)
    garden.history.changes.sort(key=lambda change: change.seq not in (life.steps[0].seq, twin.steps[0].seq))


@breaks("S13")
def the_answer_for_a_key_is_of_another_scope(garden: Garden) -> None:
    """Another scope may have a live job with the same topic and key, but that job must not answer."""
    keyed = garden.operation(lambda one: (one.detail or {}).get("key") and (one.answer or {}).get("existing"))
    garden.swap(keyed, detail=(keyed.detail or {}) | {"scope_id": "of another tenant"})


@breaks("S13")
def the_answer_for_a_key_names_a_job_without_it(garden: Garden) -> None:
    other = garden.life(lambda life: life.steps[0].after and life.steps[0].after["key"] is None)
    keyed = garden.operation(lambda one: (one.detail or {}).get("key") and (one.answer or {}).get("existing"))
    garden.swap(keyed, answer={"id": other.id, "existing": True})


@breaks("S17")
def a_business_row_without_its_job(garden: Garden) -> None:
    garden.history.operations.append(Operation("c9", 1, "transaction", 0, 0, "unknown", (STRANGER,)))
    garden.swap(garden.history.operations[-1], detail={"row_visible": True})


@breaks("S17")
def a_completion_without_its_business_row(garden: Garden) -> None:
    done = garden.operation(lambda one: one.verb == "complete" and one.outcome == "ok")
    garden.swap(done, detail=(done.detail or {}) | {"row_visible": False})


@breaks("S20")
def a_job_vanished(garden: Garden) -> None:
    life = _enqueued(garden)
    garden.history.jobs.pop(life.id, None)
    garden.history.archive.pop(life.id, None)


@breaks("S20")
def a_job_is_there_that_was_never_made(garden: Garden) -> None:
    _, row = next(iter(garden.history.archive.items()), (None, None))
    if row is None:
        raise Barren
    garden.history.archive[STRANGER] = row | {"id": STRANGER}


@breaks("S20")
def a_deleted_job_is_still_there(garden: Garden) -> None:
    life, step = garden.step("delete", lambda life, step: _last(life, step) and step.before)
    kept = garden.history.archive if step.old["status"] == "completed" else garden.history.jobs
    kept[life.id] = step.old


@breaks("S20")
def a_completed_job_was_pruned_within_a_day(garden: Garden) -> None:
    _, step = garden.step("prune", lambda _, step: step.before and step.before["status"] == "completed")
    garden.alter(step, before={"finished_at": step.at - HOUR})


@breaks("S20")
def a_live_job_was_pruned(garden: Garden) -> None:
    _, step = garden.step("prune", lambda _, step: step.before and step.before["status"] != "completed")
    garden.alter(step, before={"status": "pending", "finished_at": None})


@breaks("S19")
def a_move_without_an_entry(garden: Garden) -> None:
    _, step = garden.step("rescue")
    garden.alter(step, after={"history": step.old["history"], "history_dropped": step.old["history_dropped"]})


@breaks("S19")
def an_entry_written_in_another_transaction(garden: Garden) -> None:
    garden.move(garden.step("fail")[1], tx=10**9)


@breaks("S19")
def an_operator_s_deed_without_an_audit(garden: Garden) -> None:
    _, step = garden.step("requeue")
    garden.history.changes.remove(garden.audit(step.tx))


@breaks("S20")
def a_pending_job_was_deleted_without_an_audit(garden: Garden) -> None:
    _, step = garden.step("delete", lambda _, step: step.before and step.before["status"] == "pending")
    garden.history.changes.remove(garden.audit(step.tx))


@breaks("S20")
def a_dead_letter_was_deleted_without_an_audit(garden: Garden) -> None:
    _, step = garden.step(
        "delete", lambda _, s: s.before and s.before["status"] == "failed" and s.at - s.before["finished_at"] < HOUR
    )
    garden.history.changes.remove(garden.audit(step.tx))


@breaks("S19")
def an_audit_of_something_that_was_not_done(garden: Garden) -> None:
    _, step = garden.step("cancel")
    audit = garden.audit(step.tx)
    assert audit.after is not None
    garden.history.changes.append(structs.replace(audit, after=audit.after | {"job_id": STRANGER}))


@breaks("S19")
def an_entry_of_the_past_was_rewritten(garden: Garden) -> None:
    _, step = garden.step("claim", lambda _, step: step.before and step.before["history"])
    garden.alter(step, after={"history": [step.new["history"][0] | {"by": "nobody"}, *step.new["history"][1:]]})


@breaks("S19")
def an_entry_names_another_status(garden: Garden) -> None:
    garden.entry(garden.step("update")[1], status="failed")


@breaks("S19")
def entries_were_dropped_and_not_counted(garden: Garden) -> None:
    _, step = garden.step("fail", lambda _, step: step.before and not step.before["history"])
    garden.alter(step, after={"history_dropped": 1})


@breaks("EVENTS")
def an_event_was_lost(garden: Garden) -> None:
    life = garden.life(lambda life: len(garden.history.events.get(life.id, ())) > 2)
    garden.history.events[life.id] = garden.history.events[life.id][:-1]


@breaks("EVENTS")
def an_event_was_invented(garden: Garden) -> None:
    life = garden.life(lambda life: len(garden.history.events.get(life.id, ())) > 2)
    events = garden.history.events[life.id]
    garden.history.events[life.id] = [*events, events[-1] | {"seq": len(events)}]


@breaks("EVENTS")
def events_in_another_order(garden: Garden) -> None:
    life = garden.life(lambda life: len(garden.history.events.get(life.id, ())) > 2)
    first, second, *rest = garden.history.events[life.id]
    garden.history.events[life.id] = [second | {"seq": 0}, first | {"seq": 1}, *rest]


@breaks("EVENTS")
def an_event_by_somebody_else(garden: Garden) -> None:
    life = garden.life(lambda life: len(garden.history.events.get(life.id, ())) > 2)
    *rest, last = garden.history.events[life.id]
    garden.history.events[life.id] = [*rest, last | {"by": "somebody else"}]
