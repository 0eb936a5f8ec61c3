from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from rowlock import logs
from rowlock.cli.options import Span, log_format
from rowlock.errors import InvalidInput


@click.command()
@click.argument("app", metavar="MODULE:JOBS")
@click.option("-c", "--concurrency", type=int, help="Jobs at once in each process. Default: 10.")
@click.option(
    "-t", "--topics", multiple=True, help="Only these topics, separated by commas. Default: all with a handler."
)
@click.option("-p", "--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
@click.option("--grace", type=Span(), help="How long running jobs may continue after SIGTERM. Default: 25 s.")
@click.option(
    "--lease", type=Span(), help="Other workers may take the jobs of a worker that is silent for longer. Default: 30 s."
)
@click.option("--poll", type=Span(), help="Time between looks for work. Default: 1 s.")
@click.option("--no-listen", is_flag=True, help="Only poll; don't let new jobs wake the worker.")
@click.option(
    "--loop",
    type=click.Choice(["auto", "asyncio", "uvloop"]),
    default="auto",
    show_default=True,
    help="Event loop: uvloop if it is installed, or always one of them.",
)
@click.option(
    "--health-file",
    type=click.Path(dir_okay=False),
    help="A file that is written every second while the worker is healthy.",
)
@click.option(
    "--health-port", metavar="[HOST:]PORT", help="Answer GET with 200 while the worker is healthy, else with 503."
)
@log_format
@click.option("-v", "--verbose", is_flag=True, help="Log every job.")
def worker(
    app: str,
    topics: tuple[str, ...],
    processes: int,
    no_listen: bool,
    health_file: str | None,
    health_port: str | None,
    loop: str,
    verbose: bool,
    **settings_given: Any,
) -> None:
    """Run the jobs of an application: `rowlock worker app:jobs` for `jobs = Jobs(…)` in app.py.

    SIGTERM or Ctrl-C stops it: it claims no more jobs, lets running jobs finish within the grace, and gives back the
    rest at no cost of a retry. A second one ends it at once. Settings also come from ROWLOCK_CONCURRENCY,
    ROWLOCK_LEASE, ROWLOCK_POLL, ROWLOCK_GRACE, or rowlock.toml.
    """
    from rowlock import config
    from rowlock.runtime.health import Health
    from rowlock.runtime.settings import WorkerSettings
    from rowlock.runtime.supervisor import Supervisor

    if sys.platform == "win32":
        raise click.ClickException("`rowlock worker` needs Linux or macOS; on Windows, use `await jobs.start()`")
    given = {name: value for name, value in settings_given.items() if value is not None}
    only = [topic.strip() for part in topics for topic in part.split(",") if topic.strip()]
    if topics and not only:
        raise click.BadParameter("names no topic", param_hint="--topics")
    known = config.load({"url": "sqlite://", **given})  # the application has the real URL
    try:
        settings = WorkerSettings(concurrency=known.concurrency, grace=known.grace, lease=known.lease, poll=known.poll)
    except InvalidInput as error:
        raise click.UsageError(str(error)) from None
    own = {**given, "listen": not no_listen, **({"topics": only} if only else {})}

    def command(control: int, status: int, board: int, restarted: bool) -> Sequence[str]:
        options = {
            "app": app, "settings": own, "loop": loop, "verbose": verbose, "restarted": restarted,
            "control": control, "status": status, "board": board,
        }  # fmt: skip
        return [sys.executable, "-m", "rowlock.cli.service", msgspec.json.encode(options).decode()]

    logs.set_up()
    health = None
    if health_file or health_port:
        patience = max(settings.lease, 3 * settings.poll)  # a worker that is silent for longer may lose its jobs anyway
        try:
            health = Health(file=health_file, address=_address(health_port), patience=patience)
        except OSError as error:
            raise click.ClickException(f"--health-port {health_port} can't be used: {error}") from None
    sys.exit(Supervisor(command, processes=processes, grace=settings.grace, health=health).run())


def _address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter(f"{text!r} is not PORT or HOST:PORT", param_hint="--health-port")
    return host.strip("[]") or "127.0.0.1", int(port)
