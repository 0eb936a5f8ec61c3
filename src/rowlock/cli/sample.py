"""The demo's application: a shop with all kinds of jobs, and customers who enqueue them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field

from rowlock.cli.demo_flows import PAGES, amount_of, held_jobs, place_order, register_flows
from rowlock.cli.demo_limits import ASK, TENANTS, register_limits
from rowlock.cli.demo_schedules import EVERY_MINUTE, TOPIC, FireWatch, put_schedules, report_sales
from rowlock.cli.demo_steps import download, embed, execute, finalize, notify, prepare, split, upload
from rowlock.cli.demo_waits import DECISION, Decision, ask, decide_refund, pay_back, refuse, remind
from rowlock.client.flows import EnqueuedFlow
from rowlock.context import Context
from rowlock.core.job import Job
from rowlock.core.retry import Delays
from rowlock.core.templates import Cancel
from rowlock.errors import OnceTaken, RowlockError
from rowlock.jobs import Jobs
from rowlock.stores.queries import Filter

RECENT = 400  # ids that are kept for the picture

_PAGES = 40
_ACCOUNT = 9_007_199_254_740_993  # the first number that a browser would round


@dataclass
class Address:
    city: str
    street: str
    lines: list[str] = field(default_factory=list)


def register(jobs: Jobs) -> None:
    """Register the tasks. Each shows something that docs/lifecycle.md explains."""

    @jobs.task("mail.send")  # fast: most jobs are
    async def send_mail(to: str) -> str:
        await asyncio.sleep(random.uniform(0.01, 0.1))  # noqa: S311 - a demo
        return f"sent to {to}"

    @jobs.task("report.render", timeout=60)  # slow, in a thread, with progress
    def render_report(ctx: Context, report: int) -> dict[str, int]:
        for page in range(_PAGES):
            ctx.check()
            ctx.progress(100 * page / _PAGES, stage="rendering", message=f"page {page + 1} of {_PAGES}")
            if page % 15 == 14:
                ctx.log(f"page {page + 1} has no picture", level="warning")
            time.sleep(random.uniform(0.05, 0.15))  # noqa: S311 - a demo
        ctx.log(f"report {report} has {_PAGES} pages")
        return {"pages": _PAGES}

    @jobs.task("payment.check", retry=Delays((1.0, 2.0)))  # fails at first, then succeeds
    async def check_payment(job: Job, order: int, account: int, card: dict[str, str]) -> str:
        await asyncio.sleep(0.2)
        if order % 4 == 0:
            raise PermissionError("the bank says that this card was stolen")
        if job.retries < 2:
            raise ConnectionError(f"the bank is not answering (try {job.retries + 1})")
        return f"order {order} is paid"

    @jobs.task("stock.sync", max_retries=1, retry=Delays((1.5,)))  # never succeeds: ends as a dead letter
    async def sync_stock(warehouse: str) -> None:
        raise LookupError(f"there is no warehouse {warehouse!r}")

    @jobs.task("video.encode", timeout=120)  # some are cancelled
    async def encode_video(ctx: Context, title: str) -> None:
        for percent in range(0, 100, 2):
            ctx.check()
            ctx.progress(percent, stage="encoding", message=title)
            await asyncio.sleep(0.3)

    @jobs.task("invoice.remind")  # enqueued for later
    async def remind_of_invoice(invoice: int) -> None:
        await asyncio.sleep(0.1)

    @jobs.task("newsletter.send")  # paused: see Customers.open
    async def send_newsletter(issue: int) -> None:
        await asyncio.sleep(0.1)

    @jobs.task("order.express")  # runs before all waiting jobs
    async def express(order: int) -> str:
        await asyncio.sleep(0.3)
        return f"order {order} is on its way"

    # A line: the parcels of an order are packed one after the other.
    @jobs.task("parcel.pack", version=1, key=["order"], if_live="queue", title="Pack a parcel")
    async def pack(ctx: Context, order: int, parcel: int, address: Address) -> str:
        for percent in range(0, 100, 10):
            ctx.progress(percent, stage="packing", message=f"parcel {parcel} of order {order}")
            await asyncio.sleep(0.2)
        return f"parcel {parcel} goes to {address.city}"

    # Steps: a run that fails, or whose worker dies, goes on where it stopped.
    @jobs.task(
        "demo_long_task", version=1, steps=[prepare, execute, finalize], key=["target"], if_live="reject", timeout=600,
        max_retries=1, retry=[2, 8], cancel=Cancel(grace=30), title="A long task",
    )  # fmt: skip
    async def demo_long_task(ctx: Context, target: str) -> dict[str, int]:
        parts = await ctx.step(prepare, target)
        done = await ctx.step(execute, parts)
        return await ctx.step(finalize, done)

    @jobs.task(
        "multi_step_pipeline", version=1, steps=[download, split, embed, upload, notify], timeout=600,
        max_retries=1, retry=[2, 8], title="Index a document",
    )  # fmt: skip
    async def multi_step_pipeline(ctx: Context, document: str, url: str) -> dict[str, int]:
        text = await ctx.step(download, document)
        parts = await ctx.step(split, text)
        vectors = [await ctx.step(embed, part) for part in parts]
        await ctx.step(upload, url, len(vectors))
        await ctx.step(notify, document)
        return {"parts": len(parts)}

    # A wait: a person decides, on the page.
    jobs.task(
        "refund.approve", version=1, steps=[ask, remind, pay_back, refuse], key=["order"], title="Approve a refund"
    )(decide_refund)

    # Flows: the jobs of an order wait for each other. A document starts a job for each of its pages.
    register_flows(jobs)

    # Limits: two at once, 20 a minute for each tenant, and tenants take turns.
    register_limits(jobs)

    # A schedule: every minute, by itself. Customers.open puts others.
    jobs.task(TOPIC, title="Add up the sales", schedule=EVERY_MINUTE)(report_sales)

    @jobs.task("account.welcome", key=["account"], once=True, title="Welcome a customer")  # one job per account, ever
    async def welcome(account: int) -> str:
        return f"account {account} is welcome"


class Customers:
    """Enqueue jobs without end. `recent`: the ids of the last jobs, newest first."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self.recent: deque[str] = deque(maxlen=RECENT)
        self.enqueued = 0
        self._fires = FireWatch(jobs)
        self._orders = 0  # that are flows
        self._minds: set[asyncio.Task[None]] = set()  # people who are about to change or make up their mind

    async def open(self) -> None:
        """Make what a new queue lacks: schedules, a paused topic, and a job that no worker knows."""
        await self._fires.new_jobs()  # those of an earlier demo
        await put_schedules(self._jobs)
        await self._count_fires()
        await self._jobs.topics.pause("newsletter.send", reason="the text has a typo", by="ann@example.org")
        for issue in range(3):
            await self._enqueue("newsletter.send", {"issue": issue}, tags=["marketing"], priority="backfill")
        await self._pack(order=1, parcels=12)
        await self._enqueue("refund.approve", {"order": 1, "amount": 420.0}, tags=["for you"])  # Ann leaves it to you
        await self._place_order(0)  # is held, and Ann leaves it to you, too
        with suppress(OnceTaken):  # a database of an earlier demo
            await self._enqueue("account.welcome", {"account": 7})
        await self._enqueue(
            "legacy.import", {"account": _ACCOUNT, "password": "hunter2"}, scope="account", scope_id="7"
        )

    async def shop(self) -> None:
        n = 0
        while True:
            n += 1
            for customer in range(random.randint(1, 3)):  # noqa: S311 - a demo
                await self._enqueue("mail.send", {"to": f"customer{n}.{customer}@example.org"})
            if n % 3 == 1:
                order = {"order": n, "account": _ACCOUNT, "card": {"number": "…4242", "token": "tok_demo"}}
                await self._enqueue("payment.check", order, key=f"order-{n}", scope="user", scope_id=str(n % 9))
            if n % 5 == 1:
                await self._enqueue("report.render", {"report": n}, priority="backfill")
            if n % 7 == 2:
                await self._enqueue("stock.sync", {"warehouse": "Atlantis"})
            if n % 18 == 3:
                video = await self._enqueue("video.encode", {"title": f"holiday-{n}.mp4"})
                if n % 54 == 3:
                    self._soon(self._change_mind(video))
            if n % 4 == 2:
                await self._enqueue("invoice.remind", {"invoice": n}, delay=4)
            if n % 6 == 4:
                await self._enqueue("order.express", {"order": n}, priority="explicit")
            if n % 30 == 2:
                await self._enqueue("demo_long_task", {"target": f"target-{n}"})
            if n % 25 == 3:
                url = "s3://down/vectors" if n % 50 == 28 else "s3://demo/vectors"
                await self._enqueue("multi_step_pipeline", {"document": f"book-{n}.pdf", "url": url})
            if n % 20 == 5:
                refund = await self._enqueue("refund.approve", {"order": n, "amount": float(n)})
                self._soon(self._decide(refund, ok=n % 40 == 5))
            if n % 40 == 4:
                self._orders += 1
                self._soon(self._release(await self._place_order(self._orders)))
            if n % 60 == 8:
                await self._enqueue("document.read", {"document": f"letter-{n}.pdf"})
                self.enqueued += PAGES  # its handler enqueues them
            if n % 45 == 9:
                for tenant, questions in TENANTS.items():
                    for question in range(questions):
                        await self._enqueue(
                            ASK, {"prompt": f"question {n}.{question}"}, scope="tenant", scope_id=tenant
                        )
            if n % 15 == 9:
                await self._enqueue("llm.embed", {"text": f"letter {n}"}, scope="tenant", scope_id="globex")
            if n % 60 == 30:
                await self._pack(order=n, parcels=6)
            if n % 200 == 20:
                await self._complain()
            await self._count_fires()
            await asyncio.sleep(0.4)

    async def _pack(self, order: int, parcels: int) -> None:
        """Make a line: all parcels of an order have the same key."""
        address = {"city": "London", "street": "12 St James's Square"}
        for parcel in range(1, parcels + 1):
            await self._enqueue("parcel.pack", {"order": order, "parcel": parcel, "address": address})

    async def _place_order(self, order: int) -> EnqueuedFlow:
        made = await place_order(self._jobs, order, amount_of(order))
        for job in made.jobs.values():
            self._count(job.id)
        return made

    async def _complain(self) -> None:
        """Requeue all jobs that failed because there is no warehouse. They will fail again."""
        lost = Filter(topics=["stock.sync"], statuses=["failed"])
        await self._jobs.bulk.prepare("requeue", lost, dry_run=False, reason="it must be there", by="ann@example.org")

    async def _enqueue(self, topic: str, payload: dict[str, object], **options: object) -> str:
        made = await self._jobs.enqueue(topic, payload, **options)  # type: ignore[arg-type]
        self._count(made.id)
        return made.id

    async def _count_fires(self) -> None:
        for job_id in await self._fires.new_jobs():
            self._count(job_id)

    def _count(self, job_id: str) -> None:
        self.recent.appendleft(job_id)
        self.enqueued += 1

    def _soon(self, change: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(change)
        self._minds.add(task)
        task.add_done_callback(self._minds.discard)

    async def _decide(self, job_id: str, ok: bool) -> None:
        await asyncio.sleep(random.uniform(5, 9))  # noqa: S311 - a demo
        with suppress(RowlockError):
            decision = Decision(ok, "" if ok else "the parcel has arrived")
            await self._jobs.signal(job_id, DECISION, decision, by="ann@example.org")

    async def _release(self, order: EnqueuedFlow) -> None:
        """Ship an order that is held because it has no invoice."""
        with suppress(RowlockError):
            await self._jobs.wait(order.jobs["invoice"].id)
            await asyncio.sleep(random.uniform(4, 8))  # noqa: S311 - a demo
            for job_id in await held_jobs(self._jobs, order.id):
                await self._jobs.flows.release(job_id, reason="the invoice comes by mail", by="ann@example.org")

    async def _change_mind(self, job_id: str) -> None:
        await asyncio.sleep(random.uniform(1.5, 4))  # noqa: S311 - a demo
        with suppress(RowlockError):
            await self._jobs.cancel(job_id, reason="the customer changed their mind")

    def leave(self) -> None:
        for change in self._minds:
            change.cancel()
