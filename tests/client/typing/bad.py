"""What both checkers must refuse: every line marked `refused`, and no other."""

from rowlock import Context, Jobs

jobs = Jobs("sqlite://")


@jobs.task(max_retries=5)
async def send_mail(to: str, subject: str = "hi") -> None: ...


@jobs.task
def double(n: int) -> int:
    return 2 * n


@jobs.task
def with_context(ctx: Context, n: int) -> int:
    return n


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
