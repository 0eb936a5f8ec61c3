"""Requests to a language model, within what its provider allows: 4 at once, and 10 in 5 seconds for each tenant.

Two topics use the same account, so they share the limits by a name. Tenants take turns.

python examples/llm_limits.py    # a large and a small tenant ask; two workers in this process answer
"""

import asyncio
import tempfile
import time
from collections import Counter, deque

from rowlock import Concurrency, Jobs, Rate

AT_ONCE, IN_A_WINDOW, WINDOW = 4, 10, 5.0
LIMITS = (Concurrency(AT_ONCE, name="llm"), Rate(IN_A_WINDOW, per=WINDOW, by="scope_id", name="llm"))


class Provider:
    """Stands for the model. It notes how many requests run at once, and whose they are, to show what the limits do."""

    def __init__(self) -> None:
        self.busy = self.busiest = 0
        self.asked: deque[str] = deque()

    async def answer(self, tenant: str, question: str) -> str:
        self.asked.append(tenant)
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await asyncio.sleep(0.05)
        self.busy -= 1
        return question.upper()


provider = Provider()


def application(url: str) -> Jobs:
    jobs = Jobs(url)

    @jobs.task("llm.complete", limits=LIMITS, fair="scope_id")
    async def complete(tenant: str, prompt: str) -> str:
        return await provider.answer(tenant, prompt)

    @jobs.task("llm.embed", limits=LIMITS, fair="scope_id")
    async def embed(tenant: str, text: str) -> int:
        return len(await provider.answer(tenant, text))

    return jobs


async def main() -> None:
    url = f"sqlite:///{tempfile.mkdtemp()}/jobs.db"
    async with application(url) as first, application(url) as second:
        await first.publish()
        asked = [await ask(first, "large", n) for n in range(14)]
        asked += [await ask(first, "small", n) for n in range(3)]
        began = time.monotonic()
        await first.start()
        await second.start()
        await asyncio.sleep(1.0)
        for limit in await first.limits.get("llm"):
            used = {one.value or "all": f"{one.used} of {one.max}" for one in limit.used_by}
            print(f"{limit.kind}: {used}, {limit.waiting} waiting")
        for job_id in asked:
            await first.wait(job_id, timeout=60)
        print(f"at most {provider.busiest} at once, {dict(Counter(provider.asked))}, {time.monotonic() - began:.0f} s")
        print(f"small was served among the first {list(provider.asked).index('small') + 1}")


async def ask(jobs: Jobs, tenant: str, n: int) -> str:
    topic, field = ("llm.embed", "text") if n % 3 == 2 else ("llm.complete", "prompt")
    payload = {"tenant": tenant, field: f"question {n}"}
    return (await jobs.enqueue(topic, payload, scope="tenant", scope_id=tenant)).id


if __name__ == "__main__":
    asyncio.run(main())
