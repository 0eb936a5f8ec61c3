"""The `rowlock` command. One file per noun, imported when it is asked for, so that help and completion are quick.

Exit codes:
    0    done
    1    the database or a job said no: one line on stderr, `rowlock: …`; `verify`: something is wrong
    2    wrong usage, or an application that can't be loaded
    3    `jobs wait`, `enqueue --wait`: the job ended otherwise than completed (failed, expired, cancelled)
    4    `jobs wait`, `enqueue --wait`: the time was over first
    130  interrupted (Ctrl-C)
"""

from __future__ import annotations

import click

from rowlock import __version__
from rowlock.cli.groups import Lazy, Root, traceback_option


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"]},
    lazy={
        "worker": Lazy("rowlock.cli.worker:worker", "Run jobs: module:jobs says whose."),
        "enqueue": Lazy("rowlock.cli.enqueue:enqueue", "Add a job."),
        "jobs": Lazy("rowlock.cli.jobs:jobs", "List, show, wait for, and steer jobs."),
        "bulk": Lazy("rowlock.cli.bulk_group:bulk", "Many jobs at once: look first, then do it."),
        "topics": Lazy("rowlock.cli.topics:topics", "List, pause and resume topics."),
        "stats": Lazy("rowlock.cli.stats:stats", "How many jobs stand where, and how they ended."),
        "failures": Lazy("rowlock.cli.failures:failures", "Dead letters in groups that failed alike."),
        "audit": Lazy("rowlock.cli.audit:audit", "What operators did, and why."),
        "top": Lazy("rowlock.cli.top:top", "Watch the queue live."),
        "why": Lazy("rowlock.cli.why:why", "Why is this job not running?"),
        "verify": Lazy("rowlock.cli.verify:verify", "Look for what must not be in a database in use."),
        "workers": Lazy("rowlock.cli.workers:workers", "The workers that the database knows."),
        "serve": Lazy("rowlock.cli.serve:serve", "Answer HTTP: the API of the queue."),
        "dev": Lazy("rowlock.cli.serve:dev", "The API and a worker in one process, for developing."),
        "superuser": Lazy("rowlock.cli.superuser:superuser", "Accounts of operators."),
        "token": Lazy("rowlock.cli.token:token", "API tokens, for programs."),
        "settings": Lazy("rowlock.cli.settings:settings", "Access rules and workers' settings in the database."),
        "migrate": Lazy("rowlock.cli.migrate:migrate", "Create or update rowlock's tables."),
        "bench": Lazy("rowlock.cli.bench:bench", "How many jobs do this machine and this database manage?"),
        "demo": Lazy("rowlock.cli.demo:demo", "See it work, in a minute, on a database of its own."),
        "completion": Lazy("rowlock.cli.completion:completion", "Print the script that completes commands in a shell."),
    },
)
@click.version_option(__version__, prog_name="rowlock")
@traceback_option
def cli() -> None:
    """Jobs that live in the database you already have."""


def main() -> None:
    """What the installed command calls; exit codes as above."""
    cli()
