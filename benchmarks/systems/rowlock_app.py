"""The application whose jobs are measured, as a user would write it."""

from __future__ import annotations

from benchmarks import marks
from benchmarks.systems.base import order
from rowlock import Jobs


def url() -> str:
    """Return the URL with the options of the round."""
    asked = order()
    said = {name: str(asked.options[name]) for name in ("synchronous", "listen", "pool_size") if name in asked.options}
    return asked.url + "?" * bool(said) + "&".join(f"{name}={value.lower()}" for name, value in said.items())


jobs = Jobs(url(), listen_url=order().options.get("listen_url"))


@jobs.task
async def noop(n: int, t0: int = 0) -> None:
    if t0:
        marks.picked_up(n, t0)
    else:
        marks.seen(n)
