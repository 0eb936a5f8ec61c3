"""One application that several event loops call: each loop has its own state and tasks, made once."""

import asyncio
from pathlib import Path
from typing import Any

from rowlock import Jobs
from rowlock.http.app import Api
from tests.http.harness import World, by_hand
from tests.http.test_series import lifespan


async def ask(api: Api) -> set["asyncio.Task[None] | None"]:
    """Send a request, and return the background tasks of this loop."""
    assert (await by_hand(api, path="/healthz")).status == 200
    return {api.upkeep.maintenance_loop.task, api.upkeep.bulk_loop.task}


async def stop(api: Api) -> None:
    before = await ask(api)
    api.stop()
    assert api.state.remote_workers._stopping
    assert api.state.wait_for_end.stopping
    assert api.state.live.stopping
    await lifespan(api, lambda: None)
    assert all(task is not None and task.done() for task in before)


def test_loops_that_take_turns_keep_what_is_theirs(tmp_path: Path) -> None:
    jobs = Jobs(f"sqlite:///{tmp_path / 'jobs.db'}")
    api = jobs.asgi()
    with asyncio.Runner() as one, asyncio.Runner() as two:
        first, second = one.run(ask(api)), two.run(ask(api))
        assert None not in first | second
        assert first.isdisjoint(second)
        for _ in range(3):
            assert one.run(ask(api)) == first
            assert two.run(ask(api)) == second
        one.run(stop(api))
        assert not any(task is None or task.done() for task in second)  # the second loop goes on
        two.run(stop(api))
        two.run(jobs.close())


def test_a_loop_that_is_over_is_forgotten(tmp_path: Path) -> None:
    jobs = Jobs(f"sqlite:///{tmp_path / 'jobs.db'}")
    api = jobs.asgi()
    for _ in range(3):
        asyncio.run(ask(api))
    assert len(api._loop_states) == 1
    asyncio.run(jobs.close())


async def test_a_loop_that_ends_without_a_shutdown_leaves_no_error(sqlite_world: World) -> None:
    """Servers print what the lifespan raises, so an operator who presses Ctrl-C twice would see a traceback."""
    said: asyncio.Queue[Any] = asyncio.Queue()
    incoming: asyncio.Queue[Any] = asyncio.Queue()
    serving = asyncio.ensure_future(sqlite_world.another_api()({"type": "lifespan"}, incoming.get, said.put))
    await incoming.put({"type": "lifespan.startup"})
    assert (await said.get())["type"] == "lifespan.startup.complete"
    serving.cancel()
    await serving
