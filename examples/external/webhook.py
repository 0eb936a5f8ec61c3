"""The same work by a service that knows nothing of jobs: it gets an address, and sends the result there.

rowlock serve --url sqlite:///jobs.db
node service.mjs                                                   # the service, on port 8191
python webhook.py                                                  # enqueue a job; prints its id
rowlock worker webhook:jobs                                        # orders the film, and goes on when it is there

While the service works, the job is `waiting`: it needs no worker and no slot.
"""

import asyncio
import json
import os
import urllib.request
from dataclasses import dataclass

from rowlock import Cancel, Context, Jobs, Signal, step

API = os.environ.get("ROWLOCK_API", "http://127.0.0.1:8090")
SERVICE = os.environ.get("SERVICE", "http://127.0.0.1:8191")
jobs = Jobs("sqlite:///jobs.db", public_url=API)  # where the service reaches the HTTP API


@dataclass
class Film:
    target: str
    frames: int


rendered = Signal("rendered", Film)


@step(title="Order the film", timeout=30)
def order(target: str, frames: int, callback: str) -> None:
    body = json.dumps({"target": target, "frames": frames, "callback": callback}).encode()
    request = urllib.request.Request(f"{SERVICE}/render", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=20).close()


@step(title="Publish it")
async def publish(film: Film) -> str:
    return f"{film.target} has {film.frames} frames"


@jobs.task("film.render", version=1, steps=[order, publish], cancel=Cancel(grace=30))
async def render(ctx: Context, target: str, frames: int) -> str:
    callback = await ctx.callback(rendered, timeout=60)  # a progress report of the service restarts the time
    await ctx.step(order, target, frames, callback.url)
    film = await ctx.wait_for(rendered, timeout=60)  # without a default: the job fails if no film comes
    return await ctx.step(publish, film)


async def main() -> None:
    async with jobs:
        print((await render.enqueue(target="holiday", frames=8)).id)


if __name__ == "__main__":
    asyncio.run(main())
