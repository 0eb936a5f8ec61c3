"""The demo's job that waits for a person: a refund that an operator must approve."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rowlock.context import Context
from rowlock.signals import Signal
from rowlock.steps import step

REMINDED_AFTER = 12.0  # seconds without a decision
EXPIRES_AFTER = 600.0  # seconds without a decision, after the reminder


@dataclass
class Decision:
    """What the page asks for."""

    ok: bool
    note: str = ""


DECISION = Signal("decision", Decision)


@step(title="Ask for a decision")
async def ask(order: int, amount: float) -> str:
    await asyncio.sleep(0.3)
    return f"May order {order} have {amount:.2f} back?"


@step(title="Remind them")
async def remind(order: int) -> None:
    await asyncio.sleep(0.3)


@step(title="Pay it back", cancelable=False)
async def pay_back(order: int, note: str) -> str:
    await asyncio.sleep(0.5)
    return f"order {order} was paid back" + (f": {note}" if note else "")


@step(title="Refuse it")
async def refuse(order: int, note: str) -> str:
    await asyncio.sleep(0.3)
    return f"order {order} was not paid back" + (f": {note}" if note else "")


async def decide_refund(ctx: Context, order: int, amount: float) -> str:
    """Ask, remind once, and pay back if a person says so. Nothing is held while it waits."""
    question = await ctx.step(ask, order, amount)
    ctx.progress(message=question)
    for patience in (REMINDED_AFTER, EXPIRES_AFTER):
        got = await ctx.wait_for(DECISION, timeout=patience, default=None)
        if got is not None:
            return await ctx.step(pay_back if got.ok else refuse, order, got.note)
        if patience == REMINDED_AFTER:
            await ctx.step(remind, order)
    return await ctx.step(refuse, order, "nobody has decided")
