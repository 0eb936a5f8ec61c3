"""`jobs.limits`: limits of topics, set at run time; what is used of them, and by which jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal, get_args

from msgspec import Struct, to_builtins

from rowlock.client.audit import Actor, check_reason
from rowlock.client.connections import Handle, Stores
from rowlock.client.definitions import REVISION, Definitions, Found, read_templates
from rowlock.client.shares import give_shares
from rowlock.client.templates import limited_writes
from rowlock.client.why import spell_time
from rowlock.core.codec import check_text
from rowlock.core.job import MAX_TEXT, Job, Status
from rowlock.core.limits import (
    PUT,
    Concurrency,
    Fair,
    Limit,
    Limited,
    Put,
    Rate,
    Room,
    Rule,
    Start,
    check_by,
    check_limit_name,
    check_rules,
    fields_of,
    kind_of,
    rules_of,
    share_of,
    value_in,
    value_text,
)
from rowlock.core.times import moment
from rowlock.errors import InvalidInput, LimitNotFound, StoreBusy
from rowlock.stores.base import Store
from rowlock.stores.limits import Usage
from rowlock.stores.queries import Filter
from rowlock.stores.records import Entry, Write

Kind = Literal["concurrency", "rate", "fair"]
_TRIES = 16  # writes that other processes may get ahead of
_NAMED = 5  # holders that `why` names
_VALUES = 100  # of a limit by a field: those of which most is used


class UsedBy(Struct, frozen=True, kw_only=True):
    """The usage of a limit by one value of its field. `value` "": the limit is by no field, or jobs have no value.
    `max`: for this value. `free_at`: when a rate lets the next job start; None: now, or when a job ends."""

    value: str
    used: int
    max: int
    free_at: datetime | None = None

    def is_used_up(self, limit: Limit) -> bool:
        """True if no job with this value can start now, because of this limit."""
        return self.used >= self.max if isinstance(limit, Concurrency) else self.free_at is not None


class LimitInfo(Struct, frozen=True, kw_only=True):
    """A limit, and what is used of it now. `source`: "code", or "put" at run time. `code`: what it takes the place of.
    `values`: what was put for certain values. `topics`: those that share it. `used_by`: values, those that use most of
    it first. `waiting`: jobs of these topics that are due, counted up to a bound."""

    name: str
    limit: Limit
    source: str
    code: Limit | None
    values: dict[str, Limit]
    topics: list[str]
    used_by: list[UsedBy]
    waiting: int

    @property
    def kind(self) -> str:
        return kind_of(self.limit)


class Limits:
    """`announce` wakes the workers."""

    def __init__(
        self, stores: Stores, actor: Actor, definitions: Definitions, announce: Callable[[Handle], None]
    ) -> None:
        self._stores = stores
        self._actor = actor
        self._definitions = definitions
        self._announce = announce

    async def put(
        self,
        name: str,
        limit: Limit,
        *,
        value: object = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> None:
        """Set a limit at run time, for a topic or for all topics that share the limit with this name. It takes the
        place of the limit in the code with the same kind and field, until it is cleared. `value`: only for this value
        of the field. It holds from the next claim of any worker on.

        Jobs that wait already get their values of a new field. Jobs that other processes enqueue within the next second
        may have none: they count together, as those without a value."""
        put = _checked(name, limit, value)
        await self._write(put.name, "limit.put", put, None, check_reason(reason), self._actor(by))

    async def clear(
        self,
        name: str,
        *,
        kind: Kind | None = None,
        field: str | None = None,
        value: object = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> int:
        """Remove limits that were put at run time, so that those of the code hold again; return how many. All of this
        name, or those of a kind, by a field (the empty text: by no field), or for a value. 0: none was put."""
        if kind not in (None, *get_args(Kind)):
            raise InvalidInput("kind", "bad_value", f"must be one of {', '.join(get_args(Kind))}, not {kind!r:.40}")
        text = None if value is None else value_text(value)
        by_field = check_by(field, "field") if field else field

        def is_meant(put: Put) -> bool:
            return (
                put.name == name
                and kind in (None, kind_of(put.limit))
                and by_field in (None, put.limit.by or "")
                and text in (None, put.value)
            )

        check_limit_name(name)
        return await self._write(name, "limit.clear", None, is_meant, check_reason(reason), self._actor(by))

    async def _write(
        self,
        name: str,
        action: str,
        put: Put | None,
        cleared: Callable[[Put], bool] | None,
        reason: str | None,
        by: str,
    ) -> int:
        handle = await self._stores.handle()
        store = handle.store
        for _ in range(_TRIES):
            kind, record = REVISION
            revision = next((one.revision for one in await store.records(kind, [record])), 0)
            found = await read_templates(store)
            gone = [one for one in found.puts if cleared is not None and cleared(one)]
            if put is None and not gone:
                return 0
            puts = {one.id: one for one in found.puts if one not in gone}
            if put is not None:
                puts[put.id] = put
            _check_together(found, name, list(puts.values()), put)
            writes = [Write(kind, record, {}, revision)]
            old = {record for one in gone for record in found.put_records[one.id]}
            if put is not None:
                old |= {*found.put_records.get(put.id, ())} - {put.id}
                writes.append(Write(PUT, put.id, to_builtins(put)))
            writes += [Write(PUT, record, None) for record in sorted(old)]
            shared = any(name in one.names(topic) for topic, one in found.limited.items() if topic != name)
            if not shared or name in found.limited:  # else it is the name of a limit, and no topic
                code = found.limited.get(name, Limited())
                writes += limited_writes(found, name, code, list(puts.values()))
            data = {"limits": to_builtins([put] if put is not None else gone), "name": name}
            if await store.write_records(writes, Entry(by, action, name, reason, data)):
                self._definitions.forget()
                if put is not None and put.value is None:
                    await self._give_shares(store, name)
                self._announce(handle)
                return max(1, len(gone))
        raise StoreBusy("other processes are writing templates or limits all the time: try again")

    async def _give_shares(self, store: Store, name: str) -> None:
        """Give values of the limits' fields to jobs that wait already: without them, they would all count as one. Do it
        also if the field is not new: the process that put the limit first may have died before it was through."""
        now = await read_templates(store)
        for topic, limited in now.limited.items():
            if name in limited.names(topic):
                await give_shares(store, topic, now.fields(topic))

    async def get(self, name: str) -> Sequence[LimitInfo]:
        """Return the limits of a topic or of a name, and what is used of them. Raise LimitNotFound if there is none."""
        check_limit_name(name)
        found = [one for one in await self._all() if one.name == name or name in one.topics]
        if not found:
            raise LimitNotFound(name)
        return found

    async def holders(self, name: str, *, limit: int = 20) -> Sequence[Job]:
        """Return jobs that workers hold now, of all topics that have a limit of this name; the newest first."""
        topics = sorted({topic for one in await self.get(name) for topic in one.topics})
        store = (await self._stores.handle()).store
        held = Filter(topics=topics, statuses=[Status.PROCESSING, Status.CANCEL_REQUESTED])
        return (await store.list(held, limit=limit)).items

    async def _all(self) -> list[LimitInfo]:
        store = (await self._stores.handle()).store
        return await limit_infos(store)

    async def misfits(self) -> Sequence[str]:
        """Return sentences about limits that were put and don't fit the template of their topic. They can be put before
        the template is published."""
        found = (await read_templates((await self._stores.handle()).store)).misfits()
        return [text for texts in found.values() for text in texts]

    # `list` is a verb from here on

    async def list(self) -> Sequence[LimitInfo]:
        """Return all limits by name, and what is used of them."""
        return await self._all()


def _checked(name: str, limit: Limit, value: object) -> Put:
    if not isinstance(limit, Limit):
        raise InvalidInput("limit", "bad_value", f"must be Concurrency, Rate or Fair, not {limit!r:.40}")
    checked = check_limit_name(name)
    if not isinstance(limit, Fair) and limit.name not in (None, checked):
        raise InvalidInput("limit.name", "other_name", f"is {limit.name}, but the limit of {checked} is put")
    if value is None:
        return Put(checked, limit)
    if isinstance(limit, Fair):
        raise InvalidInput("value", "not_here", "fair shares have weights for values: Fair(by, weights={…})")
    if limit.by is None:
        raise InvalidInput("value", "needs_by", "names a value of a field: give the limit a field, too: by")
    return Put(checked, limit, _value(value))


def _value(value: object) -> str:
    text = value_text(value)
    if not text:
        raise InvalidInput("value", "bad_length", "is empty: jobs without a value have no limit of their own")
    return check_text(text, "value", max_chars=MAX_TEXT)


def _check_together(found: Found, name: str, puts: Sequence[Put], new: Put | None) -> None:
    """Raise InvalidInput if limits of one topic don't fit together. Limits that were put count, too."""
    topics = {topic: one for topic, one in found.limited.items() if name in one.names(topic)}
    if not topics:  # it is no limit that topics share, so it is a topic
        topics[name] = Limited()
    for topic, limited in topics.items():
        rules = rules_of(topic, limited, puts)
        check_rules(topic, rules, None if new is None else new.limit, found.schema(topic))
        for put in puts:
            if put.value is not None and put.name == name and not any(_is_of(put, rule) for rule in rules):
                problem = (
                    f"{topic} has no {kind_of(put.limit)} limit by {put.limit.by}: put that first, without a value"
                )
                raise InvalidInput("value", "no_limit", problem)


def _is_of(put: Put, rule: Rule) -> bool:
    return rule.name == put.name and kind_of(rule.limit) == kind_of(put.limit) and rule.limit.by == put.limit.by


async def limit_infos(store: Store) -> list[LimitInfo]:
    return infos_of(await store.limit_usage())


def infos_of(usage: Usage) -> list[LimitInfo]:
    rules = usage.stored.rules()
    topics: dict[str, list[str]] = {}
    known: dict[str, Rule] = {}
    for topic, mine in sorted(rules.items()):
        for rule in mine:
            known.setdefault(rule.id, rule)
            topics.setdefault(rule.id, []).append(topic)
    waiting = dict(usage.waiting)
    infos = []
    for rule in sorted(known.values(), key=lambda one: (one.name, kind_of(one.limit), one.limit.by or "")):
        code = rules_of(topics[rule.id][0], usage.stored.limited[topics[rule.id][0]], ())
        infos.append(
            LimitInfo(
                name=rule.name,
                limit=rule.limit,
                source=rule.source,
                code=next((one.limit for one in code if one.id == rule.id), None),
                values=rule.values,
                topics=topics[rule.id],
                used_by=_used_by(rule, topics[rule.id], usage),
                waiting=sum(waiting.get(topic, 0) for topic in topics[rule.id]),
            )
        )
    return infos


def _used_by(rule: Rule, topics: Sequence[str], usage: Usage) -> list[UsedBy]:
    held: Counter[str] = Counter()
    for topic, share, count in usage.held:
        if topic in topics:
            held[value_in(share, rule.limit.by)] += count
    found: list[UsedBy] = []
    if isinstance(rule.limit, Concurrency | Fair):
        for value, count in held.most_common(_VALUES):
            limit = rule.of(value)
            most = limit.weights.get(value, 1) if isinstance(limit, Fair) else limit.max
            found.append(UsedBy(value=value, used=count, max=most))
        return found
    values = Counter[str]()
    for start in usage.starts:
        if start.rule == rule.id and start.at > usage.stored.now - _window(rule.of(start.value)):
            values[start.value] += start.n
    for value, _ in values.most_common(_VALUES):
        limit = rule.of(value)
        assert isinstance(limit, Rate)  # noqa: S101 - narrows the type
        room = Room({"": [rule]}, [], usage.stored.now)
        room.learn([(rule.id, value)], [one for one in usage.starts if (one.rule, one.value) == (rule.id, value)])
        used, free_at = room.used(rule, value)
        at = None if free_at is None else moment(free_at)
        found.append(UsedBy(value=value, used=used, max=limit.max, free_at=at))
    return found


def _window(limit: Limit) -> int:
    """Return the microseconds for which starts count, which are stored for longer; 0 if the limit is no rate."""
    return limit.windows[0][0] if isinstance(limit, Rate) else 0


async def hindrances(store: Store, job: Job) -> list[tuple[str, str]]:
    """Return codes and sentences about limits that keep a job from starting, for `why`."""
    usage = await store.limit_usage()
    limited = usage.stored.limited.get(job.topic)
    if limited is None:
        return []
    rules = usage.stored.rules()
    mine = rules[job.topic]
    share = share_of(fields_of(mine), job, job.payload)
    room = Room(rules, usage.held, usage.stored.now)
    room.learn(room.unknown(job.topic, [share]), [one for one in usage.starts if _is_about(one, mine, share)])
    found = []
    for rule in mine:
        value = value_in(share, rule.limit.by)
        limit = rule.of(value)
        whose = f"of {rule.name}" + (f" for {limit.by} {value or 'null'}" if limit.by is not None else "")
        if isinstance(limit, Concurrency) and (held := room.held(rule, value)) >= limit.max:
            holders = await _holders(store, rules, rule, value)
            found.append(("limit", f"The limit {whose} is {limit.max} at once, and {held} {_are(held)} held{holders}."))
        elif isinstance(limit, Rate):
            used, at = room.used(rule, value)
            if at is not None:
                when = f"the next may start at {spell_time(moment(at))}"
                rate = f"{used} of {limit.max} starts in {limit.per:g} s are used"
                found.append(("rate", f"The rate {whose} is used up ({rate}): {when}."))
    return found


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _is_about(start: Start, rules: Sequence[Rule], share: str | None) -> bool:
    return any((start.rule, start.value) == (rule.id, value_in(share, rule.limit.by)) for rule in rules)


async def _holders(store: Store, rules: Mapping[str, Sequence[Rule]], rule: Rule, value: str) -> str:
    topics = [topic for topic, known in rules.items() if any(one.id == rule.id for one in known)]
    held = Filter(topics=topics, statuses=[Status.PROCESSING, Status.CANCEL_REQUESTED])
    found = [
        job.id
        for job in (await store.list(held, limit=200)).items
        if value_in(share_of(fields_of(rules[job.topic]), job, job.payload), rule.limit.by) == value
    ]
    named = ", ".join(found[:_NAMED])
    return f": {named}{f' and {len(found) - _NAMED} more' if len(found) > _NAMED else ''}" if found else ""
