"""An order as a flow: jobs that wait for each other, with a branch, a join, an undo, and a job that a person releases.

              ┌─▶ pack ────┬──────────▶ refund (if it was not packed)
     pay ─────┼─▶ invoice ─┼─▶ ship ─▶ mail
              └─▶ gift ────┘
          (above 100)

cd examples && rowlock worker order_flow:jobs
python examples/order_flow.py mug 120        # enqueue an order; prints the id of its flow
python examples/order_flow.py show FLOW      # how its jobs stand
python examples/order_flow.py unicorn 120    # can't be packed: the money is paid back
python examples/order_flow.py mug 13         # the invoice fails, and ship is held
python examples/order_flow.py release FLOW   # ship it without an invoice
"""

import asyncio
import sys
from dataclasses import dataclass

from rowlock import Final, Jobs

jobs = Jobs("sqlite:///jobs.db")


@dataclass
class Charge:
    id: str
    amount: float


@jobs.task("order.pay")
async def pay(item: str, amount: float) -> Charge:
    return Charge(f"charge for a {item}", amount)


@jobs.task("order.pack")
async def pack(item: str) -> float:
    await asyncio.sleep(0.5)
    if item == "unicorn":
        raise Final("there is no unicorn left")
    return 1.5  # kilos


@jobs.task("order.invoice")
async def write_invoice(charge: Charge) -> str:
    if charge.amount == 13:
        raise Final("the printer does not like this number")
    return f"invoice of {charge.amount:.2f}"


@jobs.task("order.gift")
async def wrap_gift(item: str) -> str:
    return f"a card for your {item}"


@jobs.task("order.refund")
async def refund(charge: Charge) -> str:
    return f"{charge.amount:.2f} are paid back"


@jobs.task("order.ship")
async def ship(item: str, kilos: float, invoice: str | None, gift: str | None) -> str:
    return f"a {item}, {kilos} kg, with {invoice or 'no invoice'} and {gift or 'no gift'}"


@jobs.task("order.mail")
async def mail(parcel: str) -> str:
    return f"On its way: {parcel}"


async def order(item: str, amount: float) -> str:
    """Enqueue an order. All its jobs are written in one transaction."""
    flow = jobs.flow("order")
    paid = flow.add(pay.draft(item, amount), name="pay")
    packed = flow.add(pack.draft(item), after=paid, name="pack")
    invoiced = flow.add(write_invoice.draft(paid.result), name="invoice")  # .result implies after=
    gift = flow.add(wrap_gift.draft(item), after=paid, when="pay.result.amount > 100", name="gift")
    shipped = flow.add(ship.draft(item, packed.result, invoiced.result, gift.result), name="ship")
    flow.wait(shipped, invoiced, if_failed="hold")  # a person decides
    flow.wait(shipped, gift, if_failed="run")  # also without a gift
    flow.add(mail.draft(shipped.result), name="mail")
    flow.add(refund.draft(paid.result), after=packed, when="pack.status != 'completed'", name="refund")
    return (await flow.enqueue()).id


async def show(flow_id: str) -> None:
    graph = await jobs.flows.graph(flow_id)
    print(graph.flow.status)
    for node in graph.nodes:
        job = await jobs.get(node.id)
        status = "held" if node.held else job.status if node.taken else "not taken"
        print(f"{node.name}: {status}" + (f", {job.result}" if job.result is not None else ""))


async def release(flow_id: str) -> None:
    for node in (await jobs.flows.graph(flow_id)).nodes:
        if node.held:
            await jobs.flows.release(node.id, reason="the invoice comes by mail")
            print(f"{node.name} is released")


async def main(what: str, rest: str) -> None:
    async with jobs:
        if what == "show":
            await show(rest)
        elif what == "release":
            await release(rest)
        else:
            print(await order(what, float(rest)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
