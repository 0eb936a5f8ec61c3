"""What of a server belongs to one event loop: who waits there, and what is done there beside answering."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rowlock.access import settings as access_settings
from rowlock.access.lookup import Lookup
from rowlock.http.attempts import Hashing
from rowlock.http.bulk_runner import BulkRunner
from rowlock.http.counting import Counting
from rowlock.http.desk import Desk
from rowlock.http.doorkeeper import Doorkeeper
from rowlock.http.ends import Ends
from rowlock.http.live import Live
from rowlock.http.places import Places
from rowlock.http.service import Readiness
from rowlock.http.settings import ApiSettings
from rowlock.http.upkeep import Upkeep
from rowlock.stores.base import Store


class Room:
    """Made in its loop, or before there is any."""

    def __init__(self, settings: ApiSettings, store: Callable[[], Awaitable[Store]]) -> None:
        self.doorkeeper = Doorkeeper(settings, store)
        self.records = Lookup(store, access_settings.KIND)
        self.current: access_settings.Current | None = None
        self.read_at = 0.0
        self.hashing = Hashing()
        self.readiness = Readiness()
        self.ends = Ends(store)
        self.counting = Counting(store)
        self.live = Live(store)
        self.places = Places()
        self.desk = Desk(store)
        self.upkeep = Upkeep(store)
        self.bulk = BulkRunner(store)
