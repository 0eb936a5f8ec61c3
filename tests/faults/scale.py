"""How many jobs and faults each suite makes: for the quick column of the fault table, and for the small test."""

from msgspec import Struct


class Scale(Struct, frozen=True, kw_only=True):
    jobs: int = 5000
    rate: float = 120.0  # jobs enqueued per second while faults happen
    kills: int = 100
    last_tries: int = 3  # kills of a worker whose jobs are on their last try …
    on_last_try: int = 2000  # … and the number of these jobs each time
    after_effects: int = 10  # jobs that do harm after they have returned: each kills a worker process
    blocks: int = 12  # handlers that block an event loop
    zombies: int = 20
    restarts: int = 5  # outages of the database
    cuts: int = 30  # cuts of connections
    clocks: int = 4
    deaf: int = 10  # listeners that are lost
    fills: int = 1  # times that the disk is filled
    losses: int = 8  # times that the SQLite file is moved, deleted or replaced, in each part
    poison: int = 20  # jobs that kill their process or use up its memory
    around_poison: int = 600  # good jobs beside them
    pinned: float = 30.0  # seconds that a snapshot is held open
    stops: int = 5  # stops by SIGTERM, of each kind
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
    strange: int = 1200  # values for clients, and half as many for handlers
    misuses: int = 300
    seeds: int = 2000  # seeds of the simulation


QUICK = Scale()
SMALL = Scale(jobs=60, rate=60.0, kills=1, restarts=1)
