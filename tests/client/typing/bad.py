"""Code that both checkers must refuse: every line marked `refused`, and no other."""

from rowlock import Context, Jobs, Signal, SyncContext, step

jobs = Jobs("sqlite://")


@jobs.task(max_retries=5)
async def send_mail(to: str, subject: str = "hi") -> None: ...


@jobs.task
def double(n: int) -> int:
    return 2 * n


@jobs.task
def with_context(ctx: Context, n: int) -> int:
    return n


@jobs.task
async def fetch(ctx: Context, url: str) -> dict[str, int]:
    return {url: 1}


@jobs.task
def with_sync_context(ctx: SyncContext, n: int) -> int:
    ctx.enqueue("t", delay="soon")  # refused
    return n


def asynchronous(ctx: SyncContext) -> None:
    ctx.transaction().__aenter__()  # refused


async def results(ctx: Context) -> None:
    text: str = await jobs.result(await double.enqueue(1))  # refused
    (await jobs.result(await fetch.enqueue("x"))).append(text)  # refused
    jobs.sync.result(double.sync.enqueue(1)).upper()  # refused
    await jobs.result(5)  # refused
    await jobs.result("id", timeout="long")  # refused
    await with_sync_context.enqueue("one")  # refused
    with_sync_context.sync.enqueue(ctx.sync, 1)  # refused
    await double(1)  # refused
    (await fetch(ctx, "x")).append(1)  # refused
    await fetch("x")  # refused


async def main() -> None:
    await with_context.enqueue("one")  # refused
    await with_context.enqueue(m=1)  # refused
    await with_context.enqueue()  # refused
    await send_mail.enqueue()  # refused
    await send_mail.enqueue(5)  # refused
    await send_mail.enqueue("a", subjct="b")  # refused
    await send_mail.using(kee="k").enqueue("a")  # refused
    await send_mail.using(key=5).enqueue("a")  # refused
    double.sync.enqueue("four")  # refused
    double("four")  # refused
    jobs.sync.enqueue("t", {}, priority=[1])  # refused
    jobs.task(max_retries="five")  # refused
    jobs.sync.topics.pause(5)  # refused
    await jobs.bulk.prepare("cancel", "topic = mail")  # refused
    await jobs.failures.list(trend="week")  # refused


@step(timeout=60)
async def plain_step(n: int) -> str:
    return str(n)


class Shop:
    @step
    async def sell(self, what: str) -> int:
        return len(what)

    @step(retry=[30])
    def book(self, ctx: SyncContext, what: str) -> bytes:
        return what.encode()


@step
async def step_with_context(ctx: Context, n: int) -> list[int]:
    return [n]


async def plain_function(n: int) -> int:
    return n


def sync_function(ctx: SyncContext, text: str) -> int:
    return len(text)


async def steps(ctx: Context) -> None:
    await ctx.step(plain_step, "one")  # refused
    await ctx.step(plain_step)  # refused
    await ctx.step(plain_step, m=1)  # refused
    await ctx.step(step_with_context, "one")  # refused
    await ctx.step(step_with_context)  # refused
    await ctx.step(plain_function, "one")  # refused
    await ctx.step(sync_function, 1)  # refused
    await ctx.step(5)  # refused
    await ctx.step(Shop().sell, 1)  # refused
    await ctx.step(Shop().book)  # refused
    number: int = await ctx.step(plain_step, 1)  # refused
    (await ctx.step(step_with_context, number)).upper()  # refused
    step(timeout="long")  # refused
    step(colour="blue")  # refused
    plain_step.using(title="x")  # refused
    await jobs.requeue("id", from_step=5)  # refused


def sync_steps(ctx: SyncContext) -> None:
    ctx.step(sync_function, 1)  # refused
    ctx.step(sync_function, "x").upper()  # refused
    ctx.step(sync_function, "x").append(1)  # refused


number = Signal("number", int)


async def waits(ctx: Context) -> None:
    await ctx.sleep("long")  # refused
    await ctx.sleep(until=5)  # refused
    await ctx.sleep(until="noon")  # refused
    await ctx.wait_for(5)  # refused
    await ctx.wait_for(number, 60)  # refused
    await ctx.wait_for(number, timeout="long")  # refused
    (await ctx.wait_for(number)).upper()  # refused
    (await ctx.wait_for(number, timeout=1, default=None)).bit_length()  # refused
    text: str = await ctx.wait_for(number, timeout=1, default="late")  # refused
    await ctx.callback(number, timeout=text, default=1)  # refused
    await ctx.callback(5)  # refused
    print((await ctx.callback(number)).uri)  # refused
    Signal(5)  # refused


def sync_waits(ctx: SyncContext) -> None:
    ctx.sleep("long")  # refused
    ctx.wait_for(number).upper()  # refused
    ctx.wait_for(number, default=None).bit_length()  # refused
    print(ctx.callback(number).uri)  # refused


async def flows(ctx: Context) -> None:
    flow = jobs.flow("order")
    doubled = flow.add(double.draft(1))
    flow.add(send_mail.draft(doubled.result))  # refused
    doubled.result.upper()  # refused
    flow.add(double.draft(1), if_failed="ignore")  # refused
    flow.add(double.draft(1), after=5)  # refused
    flow.add(double)  # refused
    flow.wait(doubled, 5)  # refused
    (await ctx.gather([double.draft(1)]))[0].upper()  # refused
    (await ctx.gather([double.draft(1)], if_failed="return"))[0].bit_length()  # refused
    await ctx.gather([double.draft(1)], if_failed="cancel")  # refused
    (await ctx.run(double.draft(1))).upper()  # refused
    await jobs.chain(5)  # refused


def sync_children(ctx: SyncContext) -> None:
    ctx.run(double.draft(1)).upper()  # refused
    ctx.gather([double.draft(1)])[0].upper()  # refused
