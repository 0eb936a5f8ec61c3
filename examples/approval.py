"""A person decides: the job asks, waits for days, reminds, and goes on with the decision. It holds no slot meanwhile.

rowlock serve --url sqlite:///jobs.db                              # has the page, and takes answers at the addresses
python examples/approval.py                                        # enqueue a request; prints the id of its job
cd examples && rowlock worker approval:jobs                        # asks, and prints the address for the answer

Then decide in one of these ways:

curl --json '{"ok": true}' ADDRESS
rowlock jobs signal ID decision '{"ok": true}' --url sqlite:///jobs.db
python examples/approval.py ID yes
on the page: Jobs, waiting, "Send signal"
"""

import asyncio
import sys
from dataclasses import dataclass

from rowlock import Context, Jobs, Signal, step

jobs = Jobs("sqlite:///jobs.db", public_url="http://127.0.0.1:8090")
DAY = 86_400


@dataclass
class Decision:
    ok: bool


@step(title="Ask")
async def ask(request: int, url: str) -> None:
    print(f"Request {request}: answer at {url}", flush=True)


@step(title="Remind")
async def remind(request: int) -> None:
    print(f"Request {request} still waits for an answer", flush=True)


@step(title="Book it", cancelable=False)
async def book(request: int) -> str:
    return f"request {request} is booked"


@step(title="Reject it")
async def reject(request: int) -> str:
    return f"request {request} is rejected"


@step(title="Let it expire")
async def expire(request: int) -> str:
    return f"nobody has decided about request {request}"


decision = Signal("decision", Decision)  # typed at both ends; a plain name works, too


@jobs.task
async def approval(ctx: Context, request: int) -> str:
    link = await ctx.callback(decision, timeout=3 * DAY)  # an address for the outside; the same after a replay
    await ctx.step(ask, request, link.url)
    for _ in range(3):
        if (got := await ctx.wait_for(decision, timeout=DAY, default=None)) is not None:
            return await ctx.step(book if got.ok else reject, request)
        await ctx.step(remind, request)
    return await ctx.step(expire, request)


async def main() -> None:
    async with jobs:
        if len(sys.argv) > 2:
            await jobs.signal(sys.argv[1], decision, Decision(ok=sys.argv[2] == "yes"))
        else:
            print((await approval.enqueue(request=7)).id)


if __name__ == "__main__":
    asyncio.run(main())
