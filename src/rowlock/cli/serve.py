from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import click

from rowlock import config, logs
from rowlock.cli.app import load_jobs
from rowlock.cli.options import Span, log_format, url
from rowlock.cli.service import calm_collector, new_loop
from rowlock.cli.startup import when_it_is_there
from rowlock.jobs import Jobs

F = TypeVar("F", bound=Callable[..., Any])


def listening(command: F) -> F:
    """Options of whatever answers HTTP."""
    for option in reversed(
        [
            click.option("--host", metavar="ADDRESS", help="Where to listen. Default: 127.0.0.1."),
            click.option("-p", "--port", type=click.IntRange(0, 65_535), help="Default: 8090; 0 is any free one."),
            click.option("--allowed-host", multiple=True, metavar="NAME", help="By which this server may be called."),
            click.option("--origin", multiple=True, metavar="ORIGIN", help="Whose pages may call this, too (CORS)."),
            click.option("--public-url", metavar="ORIGIN", help="How browsers call this, if a proxy hides it."),
            click.option("--trusted-proxy", multiple=True, metavar="IP", help="Whose X-Forwarded-* to believe."),
            click.option("--certificate", type=click.Path(exists=True, dir_okay=False), help="For TLS: a PEM file."),
            click.option("--certificate-key", type=click.Path(exists=True, dir_okay=False), help="Its key."),
            click.option("--insecure-http", is_flag=True, default=None, help="Let passwords go over plain http."),
            click.option("--read-only", is_flag=True, default=None, help="Refuse whatever changes anything."),
            log_format,
            click.option("-v", "--verbose", is_flag=True, help="Log every request."),
        ]
    ):
        command = option(command)
    return command


def server_settings(
    allowed_host: tuple[str, ...], origin: tuple[str, ...], trusted_proxy: tuple[str, ...], **given: Any
) -> config.ServerSettings:
    lists = {"allowed_hosts": allowed_host, "origins": origin, "trusted_proxies": trusted_proxy}
    return config.load_server({**given, **{name: value or None for name, value in lists.items()}})


@click.command()
@click.argument("app", metavar="[MODULE:JOBS]", required=False)
@listening
@url
def serve(app: str | None, url: str | None, verbose: bool, **given: Any) -> None:
    """Answer HTTP: the API of the queue, closed by default.

    Without MODULE:JOBS it needs only the database. The first superuser is made by the link that it prints, or by
    `rowlock superuser create`. SIGTERM or Ctrl-C stops it: requests under way may finish. Settings also come from
    ROWLOCK_HOST, ROWLOCK_PORT, ROWLOCK_JWT_SECRET, …, or the table `server` in rowlock.toml.
    """
    if app is not None and url is not None:
        raise click.UsageError("give MODULE:JOBS or --url, not both")
    settings = server_settings(**given)
    jobs = load_jobs(app) if app is not None else Jobs(url, by="http", migrate=None)
    _run(jobs, settings, verbose)


@click.command()
@click.argument("app", metavar="MODULE:JOBS")
@click.option("-c", "--concurrency", type=int, help="Jobs at once. Default: 10.")
@click.option("--grace", type=Span(), help="How long running jobs may go on when it is stopped. Default: 25 s.")
@listening
def dev(app: str, concurrency: int | None, grace: float | None, verbose: bool, **given: Any) -> None:
    """The API and a worker in one process, for developing.

    In production, run `rowlock serve` and `rowlock worker`: a worker of its own survives what handlers do.
    """
    _run(load_jobs(app), server_settings(**given), verbose, {"concurrency": concurrency, "grace": grace})


def _run(jobs: Jobs, settings: config.ServerSettings, verbose: bool, worker: dict[str, Any] | None = None) -> None:
    """`worker`: how to work as well; None: not at all."""
    from rowlock.http import server

    server.api_settings(settings)  # what is wrong with them is said before the port is taken
    bound = server.bind(settings)
    level = logging.INFO if verbose or worker is not None else logging.WARNING
    logs.set_up()
    logging.getLogger("rowlock.http").setLevel(level)

    async def ready(address: str, link: str | None) -> None:
        click.echo(f"rowlock answers at {address}")
        if link is not None:
            click.echo(f"Nobody has an account yet. Make the first one within 30 minutes:\n\n    {link}\n")

    async def run() -> None:
        async with AsyncExitStack() as stack:
            await when_it_is_there(jobs.open)
            stack.push_async_callback(jobs.close)
            if worker is not None:
                await when_it_is_there(lambda: jobs.start(**worker))
            else:
                await jobs._check_listener()
            await server.serve(jobs, settings, bound, ready)

    calm_collector()
    with asyncio.Runner(loop_factory=lambda: new_loop("auto")) as runner:
        runner.run(run())
