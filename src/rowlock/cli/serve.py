from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import click

from rowlock import config, logs
from rowlock.cli.app import load_jobs
from rowlock.cli.options import Span, log_format, together, url
from rowlock.cli.service import calm_collector, new_loop
from rowlock.cli.startup import when_it_is_there
from rowlock.jobs import Jobs

_FILE = click.Path(exists=True, dir_okay=False)
listening = together(
    click.option("--host", metavar="ADDRESS", help="Address to listen on. Default: 127.0.0.1."),
    click.option("-p", "--port", type=click.IntRange(0, 65_535), help="Default: 8090; 0: any free port."),
    click.option("--allowed-host", "allowed_hosts", multiple=True, metavar="NAME", help="A host name of this server."),
    click.option("--origin", "origins", multiple=True, metavar="ORIGIN", help="Pages of it may call this API (CORS)."),
    click.option("--public-url", metavar="ORIGIN", help="The origin that browsers see, if it is behind a proxy."),
    click.option("--trusted-proxy", "trusted_proxies", multiple=True, metavar="IP", help="Trust its X-Forwarded-*."),
    click.option("--certificate", type=_FILE, help="For TLS: a PEM file."),
    click.option("--certificate-key", type=_FILE, help="The key of the certificate."),
    click.option("--insecure-http", is_flag=True, default=None, help="Allow passwords over plain http."),
    click.option("--read-only", is_flag=True, default=None, help="Refuse every request that changes something."),
    log_format,
    click.option("-v", "--verbose", is_flag=True, help="Log every request."),
)


def server_settings(given: Mapping[str, Any]) -> config.ServerSettings:
    return config.load_server({name: None if value == () else value for name, value in given.items()})


@click.command()
@click.argument("app", metavar="[MODULE:JOBS]", required=False)
@listening
@url
def serve(app: str | None, url: str | None, verbose: bool, **given: Any) -> None:
    """Run the HTTP API and the admin page. Access is closed by default.

    Without MODULE:JOBS it needs only the database. Create the first superuser with the link that it prints, or with
    `rowlock superuser create`. SIGTERM or Ctrl-C stops it: running requests may finish. Settings also come from
    ROWLOCK_HOST, ROWLOCK_PORT, ROWLOCK_JWT_SECRET, …, or the table `server` in rowlock.toml.
    """
    if app is not None and url is not None:
        raise click.UsageError("give MODULE:JOBS or --url, not both")
    settings = server_settings(given)
    jobs = load_jobs(app) if app is not None else Jobs(url, by="http", migrate=None)
    _run(jobs, settings, verbose)


@click.command()
@click.argument("app", metavar="MODULE:JOBS")
@click.option("-c", "--concurrency", type=int, help="Jobs at once. Default: 10.")
@click.option("--grace", type=Span(), help="How long running jobs may continue after SIGTERM. Default: 25 s.")
@listening
def dev(app: str, concurrency: int | None, grace: float | None, verbose: bool, **given: Any) -> None:
    """The API and a worker in one process, for development.

    In production, run `rowlock serve` and `rowlock worker`: then a handler can't block or kill the server.
    """
    _run(load_jobs(app), server_settings(given), verbose, {"concurrency": concurrency, "grace": grace})


def _run(jobs: Jobs, settings: config.ServerSettings, verbose: bool, worker: dict[str, Any] | None = None) -> None:
    """Run the server. `worker`: the settings of a worker to run as well; None: run no worker."""
    from rowlock.http import server

    server.api_settings(settings)  # raises before the port is taken
    bound = server.bind(settings)
    level = logging.INFO if verbose or worker is not None else logging.WARNING
    logs.set_up()
    logging.getLogger("rowlock.http").setLevel(level)

    async def ready(address: str, link: str | None) -> None:
        click.echo(f"rowlock answers at {address}")
        if link is not None:
            click.echo(f"There is no account yet. Create the first one within 30 minutes:\n\n    {link}\n")

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
