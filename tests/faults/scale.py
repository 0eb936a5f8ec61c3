"""How much of everything: the quick column of the fault table, and what the small test runs."""

from msgspec import Struct


class Scale(Struct, frozen=True, kw_only=True):
    jobs: int = 5000
    rate: float = 120.0  # jobs enqueued per second while faults happen
    kills: int = 100
    last_tries: int = 3  # kills of a worker whose jobs are on their last try …
    on_last_try: int = 2000  # … and how many those are each time
    after_effects: int = 10  # jobs that do harm after they have returned: each costs a worker process
    blocks: int = 12  # handlers that block an event loop
    zombies: int = 20
    restarts: int = 5  # of the database
    cuts: int = 30  # of connections
    clocks: int = 4
    deaf: int = 10  # listeners lost
    fills: int = 1  # of the disk
    losses: int = 8  # of the SQLite file
    poison: int = 20  # jobs that kill
    around_poison: int = 600  # jobs that don't
    pinned: float = 30.0  # seconds that a snapshot is held open
    stops: int = 5  # polite ones, of whole workers
    failovers: int = 4
    lagging: int = 2  # failovers to a standby that lags
    raced: int = 5000  # jobs claimed by 16 connections at once
    lined: int = 5000  # jobs with keys, by 16 connections at once …
    lined_kills: int = 10  # … and how often a worker is killed meanwhile
    flows: int = 60
    flow_kills: int = 12
    gathered: int = 1000  # jobs that one job starts at once
    limited: int = 2000  # jobs of topics with limits …
    limited_workers: int = 16
    limit_faults: int = 20  # … kills and freezes meanwhile
    strange: int = 1200  # values, of which half as many go through handlers
    misuses: int = 300
    seeds: int = 2000  # of the simulation


QUICK = Scale()
SMALL = Scale(jobs=60, rate=60.0, kills=1, restarts=1)
