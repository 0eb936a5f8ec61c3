"""The `rowlock` command. One file per noun, imported when it is used, so that help and completion are quick.

Exit codes:
    0    done
    1    the database failed or refused, or a job can't be changed: one line on stderr, `rowlock: …`; `verify`,
         `check`: it found something wrong; `templates diff`: publish would be refused
    2    wrong usage, or an application that can't be loaded
    3    `jobs wait`, `enqueue --wait`: the job ended otherwise than completed (failed, expired, cancelled)
    4    `jobs wait`, `enqueue --wait`: the timeout was over first
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
        "worker": Lazy("rowlock.cli.worker:worker", "Run the jobs of an application."),
        "enqueue": Lazy("rowlock.cli.enqueue:enqueue", "Add a job."),
        "jobs": Lazy("rowlock.cli.jobs:jobs", "List, show, wait for, and change jobs."),
        "bulk": Lazy("rowlock.cli.bulk:bulk", "One action for many jobs: preview it, then start it."),
        "topics": Lazy("rowlock.cli.topics:topics", "List, pause and resume topics."),
        "templates": Lazy("rowlock.cli.templates:templates", "The stored definitions of topics; types for TypeScript."),
        "schedules": Lazy(
            "rowlock.cli.schedules:schedules", "When jobs are made by themselves; a preview of the times."
        ),
        "flows": Lazy("rowlock.cli.flows:flows", "Jobs that wait for each other: show, cancel, requeue, create."),
        "limits": Lazy("rowlock.cli.limits:limits", "How many jobs may run or start at once, and whose turn it is."),
        "check": Lazy("rowlock.cli.check:check", "Compare new code with the database before a deploy."),
        "stats": Lazy("rowlock.cli.stats:stats", "How many jobs have which status."),
        "failures": Lazy("rowlock.cli.failures:failures", "Dead letters in groups that failed alike."),
        "audit": Lazy("rowlock.cli.audit:audit", "What operators did, and why."),
        "top": Lazy("rowlock.cli.top:top", "Watch the queue live."),
        "why": Lazy("rowlock.cli.why:why", "Why is this job not running?"),
        "verify": Lazy("rowlock.cli.verify:verify", "Check a database in use for contradictions."),
        "workers": Lazy("rowlock.cli.workers:workers", "The workers that the database knows."),
        "serve": Lazy("rowlock.cli.serve:serve", "Run the HTTP API and the admin page."),
        "dev": Lazy("rowlock.cli.serve:dev", "The API and a worker in one process, for development."),
        "superuser": Lazy("rowlock.cli.superuser:superuser", "Accounts of operators."),
        "token": Lazy("rowlock.cli.token:token", "API tokens, for programs."),
        "settings": Lazy("rowlock.cli.settings:settings", "Settings in the database: access rules, workers."),
        "migrate": Lazy("rowlock.cli.migrate:migrate", "Create or update rowlock's tables."),
        "bench": Lazy("rowlock.cli.bench:bench", "Measure how many jobs this machine and database can run."),
        "demo": Lazy("rowlock.cli.demo:demo", "See rowlock work, on a database of its own."),
        "completion": Lazy("rowlock.cli.completion:completion", "Print the script that completes commands in a shell."),
    },
)
@click.version_option(__version__, prog_name="rowlock")
@traceback_option
def cli() -> None:
    """Jobs that live in the database you already have."""


def main() -> None:
    """Run the command. The package's docstring lists the exit codes."""
    cli()
