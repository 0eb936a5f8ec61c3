"""Random lives in which schedules make jobs, too."""

from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from rowlock.client.definitions import Definitions
from rowlock.client.firing import Firing, zone_of
from rowlock.core.cron import Cron, Every
from rowlock.core.schedules import Fire, Schedule, ScheduleName, pause_from, times_after
from rowlock.stores.base import Store
from rowlock.stores.records import Entry
from rowlock.stores.schedules import ScheduleChange, ScheduleFilter, Which
from tests.proof.crash_stage import new_ids
from tests.proof.random_lives import PlainLives
from tests.stores.harness import Harness

_WHEN: tuple[Any, ...] = (Every(3600.0), Every(600.0), Cron("30 2 * * *", "Europe/Berlin"), Cron("*/15 * * * *"))


def entry(action: str, schedule: Schedule) -> Entry:
    return Entry("ann", f"schedule.{action}", schedule.topic, None, {"schedule_id": schedule.id})


class ScheduledLives(PlainLives):
    verbs = (
        *(verb for verb in PlainLives.verbs if verb not in ("pause", "resume")),
        *("put_schedule", "put_schedule", *("fire",) * 8, "pause_schedule", "backfill", "edit_schedule"),
        *("delete_schedule", "tidy_fires"),
    )

    def __init__(self, seed: int, harness: Harness | None = None) -> None:
        super().__init__(seed, harness)

        async def store() -> Store:
            return self.harness.store

        self.firing = Firing(Definitions(store, {}), new_ids)

    async def _some_schedule(self) -> Schedule | None:
        found = await self.harness.store.schedules(ScheduleFilter())
        return self.random.choice(found) if found else None

    async def _change_some(self, change: Any) -> None:
        """Change a random schedule. `change` gets the schedule and the time, and returns a ScheduleChange."""
        if (some := await self._some_schedule()) is not None:
            await self.harness.store.change_schedules(Which(ids=(some.id,)), change)

    async def _put_schedule(self) -> None:
        def decide(old: Schedule | None, now: datetime) -> ScheduleChange | None:
            if old is not None:
                return None
            new = Schedule(
                id=new_ids.one(), name=name, topic=chance.choice(("mail", "bills")), when=chance.choice(_WHEN),
                missed=chance.choice(("last", "skip", "all")), if_live=chance.choice(("allow", "reject")), most=5,
                upto=now, next_run_at=now, created=now, updated=now,
            )  # fmt: skip
            return ScheduleChange(new, entries=[entry("put", new)])

        chance, name = self.random, self.random.choice("abcd")
        await self.harness.store.change_schedules(Which(name=ScheduleName(name)), decide)

    async def _fire(self) -> None:
        await self.firing.fire_due(self.harness.store)

    async def _pause_schedule(self) -> None:
        def decide(old: Schedule, now: datetime) -> ScheduleChange:
            if old.is_paused:
                new = replace(old, resumed_at=now, updated=now)
            else:
                new = replace(old, paused_at=pause_from(old, now), resumed_at=None, updated=now)
            return ScheduleChange(new, entries=[entry("pause", old)])

        await self._change_some(decide)

    async def _backfill(self) -> None:
        def decide(old: Schedule, now: datetime) -> ScheduleChange:
            local, fires = zone_of(old), list[Fire]()
            for at in times_after(old, now - timedelta(hours=self.random.randint(1, 30)), local):
                if at > now or len(fires) == 8:
                    break
                fires.append(Fire(fire_at=at, kind="backfill", job=self.firing.job(old, at, local, "backfill")))
            return ScheduleChange(old, fires, [entry("backfill", old)])

        await self._change_some(decide)

    async def _edit_schedule(self) -> None:
        def decide(old: Schedule, now: datetime) -> ScheduleChange:
            new = replace(old, missed=self.random.choice(("last", "all")), revision=old.revision + 1, updated=now)
            return ScheduleChange(new, entries=[entry("put", new)])

        await self._change_some(decide)

    async def _delete_schedule(self) -> None:
        if self.random.random() < 0.3:
            await self._change_some(lambda old, _: ScheduleChange(None, entries=[entry("delete", old)]))

    async def _tidy_fires(self) -> None:
        await self.harness.store.tidy("prune_fires", 100)
