"""The state of a server that belongs to one event loop: waiting clients, and the work beside answering."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rowlock.access import settings as access_settings
from rowlock.access.record_batches import RecordBatches
from rowlock.client.firing import Firing
from rowlock.http.authenticate import Authenticator
from rowlock.http.counting import Counting
from rowlock.http.live import Live
from rowlock.http.login_attempts import Hashing
from rowlock.http.remote_workers import RemoteWorkers
from rowlock.http.service import Readiness
from rowlock.http.settings import ApiSettings
from rowlock.http.streams import StreamLimits
from rowlock.http.upkeep import Upkeep
from rowlock.http.wait_for_end import WaitForEnd
from rowlock.stores.base import Store


class LoopState:
    """The state of one event loop. It is made in its loop, or before there is any."""

    def __init__(self, settings: ApiSettings, store: Callable[[], Awaitable[Store]], firing: Firing) -> None:
        self.authenticator = Authenticator(settings, store)
        self.records = RecordBatches(store, access_settings.KIND)
        self.current: access_settings.Current | None = None
        self.read_at = 0.0
        self.hashing = Hashing()
        self.readiness = Readiness()
        self.wait_for_end = WaitForEnd(store)
        self.counting = Counting(store)
        self.live = Live(store)
        self.stream_limits = StreamLimits()
        self.remote_workers = RemoteWorkers(store)
        self.upkeep = Upkeep(store, self.remote_workers, firing)
