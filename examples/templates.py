"""A topic with a version, a nested payload, a line per order, and a job that exists once per account.

python examples/templates.py                                       # enqueue some jobs
cd examples && rowlock worker templates:jobs                       # run them
rowlock templates types --url sqlite:///jobs.db                    # the same types for TypeScript
"""

from dataclasses import dataclass

from rowlock import Context, Jobs, OnceTaken

jobs = Jobs("sqlite:///jobs.db")


@dataclass
class Address:
    city: str
    street: str


@jobs.task("parcel.pack", version=1, key=["order"], if_live="queue", title="Pack a parcel")
async def pack(ctx: Context, order: int, parcel: int, address: Address) -> str:
    """The parcels of one order are packed one after the other, in the order of the enqueues."""
    ctx.progress(50, stage="packing")
    return f"parcel {parcel} of order {order} goes to {address.city}"


@jobs.task("account.welcome", key=["account"], once=True, title="Welcome a customer")
async def welcome(account: int) -> str:
    return f"welcome, account {account}"


if __name__ == "__main__":
    jobs.sync.open()
    for parcel in (1, 2, 3):
        pack.sync.enqueue(order=7, parcel=parcel, address=Address("London", "12 St James's Square"))
    try:
        welcome.sync.enqueue(account=7)
    except OnceTaken as refused:
        print("account 7 is welcome already: job", refused.first)
    jobs.sync.close()
