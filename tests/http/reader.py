"""A client that reads a stream of events, and builds from it what a page would show."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.http.harness import JSON, Who, World
from tests.waiting import until


class Reader:
    """`jobs`: what the reader knows of each job, by id. While `gate` is closed, it doesn't read: a page that hangs."""

    def __init__(self) -> None:
        self.status = 0
        self.jobs: dict[str, JSON] = {}
        self.stats: JSON | None = None
        self.events: list[tuple[str, JSON]] = []
        self.comments: list[str] = []
        self.text = ""
        self.gate = asyncio.Event()
        self.gate.set()
        self.ended: dict[str, str] = {}  # how jobs have ended, as far as the reader was told
        self.is_over = False
        self.is_stuck = False  # the server writes something that the reader doesn't read
        self._rest = ""
        self._gone = asyncio.Event()

    def hang_up(self) -> None:
        self._gone.set()

    async def receive(self) -> JSON:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.is_stuck = not self.gate.is_set()
        await self.gate.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.text += message["body"].decode()
        *blocks, self._rest = (self._rest + message["body"].decode()).split("\n\n")
        for block in blocks:
            self._take(block)
        self.is_over = not message.get("more_body")

    def _take(self, block: str) -> None:
        if block.startswith(":"):
            self.comments.append(block)
            return
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        if "event" not in fields:
            return
        name, data = fields["event"], json.loads(fields["data"])
        self.events.append((name, data))
        if name == "stats":
            self.stats = data
        elif name == "jobs":
            if data["reset"]:
                self.jobs.clear()
            self.jobs.update({job["id"]: job for job in data["items"]})
            self.ended |= {job["id"]: job["status"] for job in data["items"] if job["finished_at"]}
            for job_id in data["gone"]:
                self.jobs.pop(job_id, None)

    @property
    def statuses(self) -> dict[str, str]:
        return {job_id: job["status"] for job_id, job in self.jobs.items()}

    @property
    def ends(self) -> list[str]:
        """Return the reasons for which the server has ended the stream."""
        return [data["reason"] for name, data in self.events if name == "end"]


@asynccontextmanager
async def reading(
    world: World, who: Who | str, query: str = "", *, api: Any = None, client: str = "127.0.0.1"
) -> AsyncIterator[Reader]:
    """Read /api/events for as long as the block takes. The application is called as a server would call it."""
    somebody = world.who[who] if isinstance(who, str) else who
    reader = Reader()
    headers = {"host": "localhost", **somebody.headers}
    scope = {
        "type": "http", "method": "GET", "path": "/api/events", "query_string": query.encode(), "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": (client, 1),
    }  # fmt: skip
    serving = asyncio.create_task((world.api if api is None else api)(scope, reader.receive, reader.send))
    try:
        await until(lambda: bool(reader.status))
        yield reader
    finally:
        reader.hang_up()
        reader.gate.set()
        await asyncio.wait_for(serving, 30)
