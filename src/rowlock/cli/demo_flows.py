"""The demo's jobs that depend on jobs: orders as flows, and documents whose pages are read by jobs of their own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from rowlock.client.flows import EnqueuedFlow
from rowlock.context import Context
from rowlock.core.retry import Delays
from rowlock.errors import Final
from rowlock.jobs import Jobs
from rowlock.steps import step

ORDER = "Order"
PAGES = 6  # of a document
_UNLUCKY = 13.0  # the amount of an order whose invoice fails


@dataclass
class Charge:
    order: int
    amount: float


async def _work(ctx: Context, message: str) -> None:
    for percent in range(0, 100, 20):
        ctx.check()
        ctx.progress(percent, message=message)
        await asyncio.sleep(random.uniform(0.1, 0.4))  # noqa: S311 - a demo


async def pay(ctx: Context, order: int, amount: float) -> Charge:
    await _work(ctx, f"order {order} costs {amount:.2f}")
    return Charge(order, amount)


async def pack(ctx: Context, order: int) -> float:
    await _work(ctx, f"order {order} is being packed")
    return round(random.uniform(0.5, 4), 1)  # noqa: S311 - a demo


async def write_invoice(ctx: Context, charge: Charge) -> str:
    await _work(ctx, f"an invoice of {charge.amount:.2f}")
    if charge.amount == _UNLUCKY:
        raise Final("the printer does not like this number")
    return f"invoice {charge.order}"


async def wrap_gift(order: int) -> str:
    await asyncio.sleep(0.5)
    return "a mug"


async def ship(ctx: Context, order: int, kilos: float, invoice: str | None, gift: str | None) -> str:
    await _work(ctx, f"{kilos} kg with {invoice or 'no invoice'} and {gift or 'no gift'}")
    return f"order {order} is on its way"


@step(title="Count the pages")
async def count_pages(document: str) -> int:
    await asyncio.sleep(0.5)
    return PAGES


async def read_page(ctx: Context, document: str, page: int) -> int:
    await _work(ctx, f"page {page} of {document}")
    return random.randint(200, 400)  # noqa: S311 - a demo


async def read_document(ctx: Context, document: str) -> str:
    """Only this handler knows how many pages there are. It holds no slot while they are read."""
    pages = await ctx.step(count_pages, document)
    ctx.progress(message=f"{pages} pages")
    words = await ctx.gather([("page.read", {"document": document, "page": page}) for page in range(1, pages + 1)])
    return f"{document} has {sum(words)} words"


def register_flows(jobs: Jobs) -> None:
    jobs.task("order.pay", title="Pay")(pay)
    jobs.task("order.pack", title="Pack")(pack)
    jobs.task("order.invoice", title="Write the invoice")(write_invoice)
    jobs.task("order.gift", title="Wrap a gift")(wrap_gift)
    jobs.task("order.ship", title="Ship")(ship)
    jobs.task("page.read", retry=Delays((1.0,)), title="Read a page")(read_page)
    jobs.task("document.read", steps=[count_pages], title="Read a document")(read_document)


async def place_order(jobs: Jobs, order: int, amount: float) -> EnqueuedFlow:
    """Enqueue an order: a branch for a gift, a join, and a job that is held if there is no invoice."""
    flow = jobs.flow(ORDER)
    paid = flow.add(("order.pay", {"order": order, "amount": amount}), name="pay")
    packed = flow.add(("order.pack", {"order": order}), after=paid, name="pack")
    invoiced = flow.add(("order.invoice", {"charge": paid.result}), name="invoice")
    gift = flow.add(("order.gift", {"order": order}), after=paid, when="pay.result.amount > 100", name="gift")
    parcel = {"kilos": packed.result, "invoice": invoiced.result, "gift": gift.result}
    shipped = flow.add(("order.ship", {"order": order, **parcel}), name="ship")
    flow.wait(shipped, invoiced, if_failed="hold")
    flow.wait(shipped, gift, if_failed="run")
    flow.add(("mail.send", {"to": f"customer{order}@example.org"}), after=shipped, name="mail")
    return await flow.enqueue()


def amount_of(order: int) -> float:
    """Every second order gets a gift, and every fourth has no invoice."""
    return _UNLUCKY if order % 4 == 0 else 120.0 + order if order % 2 else 40.0


async def held_jobs(jobs: Jobs, flow_id: str) -> Sequence[str]:
    return [node.id for node in (await jobs.flows.graph(flow_id)).nodes if node.held]
