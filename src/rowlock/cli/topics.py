from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from rowlock.cli.completion import complete_topic
from rowlock.cli.connect import run
from rowlock.cli.groups import Group
from rowlock.cli.options import Moment, actor, database
from rowlock.cli.show import items, moment, note, number, percent, print_json, print_table
from rowlock.cli.spelling import did_you_mean, guess_topic
from rowlock.jobs import Jobs
from rowlock.stores.base import Pause
from rowlock.stores.reading import Stats, TopicStats


@click.group(cls=Group)
def topics() -> None:
    """List, pause and resume topics."""


@topics.command("list")
@database
def list_topics(url: str | None, output: str) -> None:
    """All topics, with their backlog, and which are paused by whom."""

    async def look(jobs: Jobs) -> tuple[Stats, Sequence[Pause]]:
        return await jobs.stats(), await jobs.paused()

    stats, pauses = run(url, look)
    paused = {pause.topic: pause for pause in pauses}
    found = {name: stats.topics.get(name, TopicStats()) for name in sorted(stats.topics.keys() | paused.keys())}
    if output == "json":
        documents = [{"topic": name, "paused": paused.get(name), "stats": counts} for name, counts in found.items()]
        print_json(items(documents, topics_capped=stats.topics_capped))
        return
    rows = [
        (
            name,
            number(counts.pending, "pending" in counts.capped),
            number(counts.processing, "processing" in counts.capped),
            number(counts.failed + counts.expired),
            number(counts.completed),
            percent(counts.success_rate),
            _paused(paused.get(name)),
        )
        for name, counts in found.items()
    ]
    print_table(("topic", "pending", "processing", "dead", "completed", "success", "paused"), rows)
    if stats.topics_capped:
        note("there are more topics than these")


def _paused(pause: Pause | None) -> str:
    if pause is None:
        return ""
    until = f" until {moment(pause.until)}" if pause.until else ""
    return f"by {pause.by}{until}{f': {pause.reason}' if pause.reason else ''}"


@topics.command()
@click.argument("topic", shell_complete=complete_topic)
@click.option("--until", type=Moment(+1), metavar="TIME", help="Resume by itself: 2h, 2026-05-01T14:30:00Z.")
@actor
@database
def pause(topic: str, until: datetime | None, reason: str | None, by: str | None, url: str | None, output: str) -> None:
    """Start no more jobs of a topic. Running ones go on."""

    async def stop(jobs: Jobs) -> Pause | None:
        guess = await guess_topic(jobs, topic)
        await jobs.pause(topic, reason=reason, until=until)
        if guess is not None:
            note(f"rowlock: no job and no worker has the topic {topic!r}. It is paused all the same.{guess}")
        return next((pause for pause in await jobs.paused() if pause.topic == topic), None)

    paused = run(url, stop, by=by)
    if output == "json":
        print_json({"topic": topic, "paused": paused})
    else:
        click.echo(f"{topic} is paused{f' until {moment(until)}' if until else ''}")


@topics.command()
@click.argument("topic", shell_complete=complete_topic)
@actor
@database
def resume(topic: str, reason: str | None, by: str | None, url: str | None, output: str) -> None:
    """Start jobs of a topic again."""

    async def go_on(jobs: Jobs) -> tuple[bool, list[str]]:
        return await jobs.resume(topic, reason=reason), [pause.topic for pause in await jobs.paused()]

    resumed, others = run(url, go_on, by=by)
    if output == "json":
        print_json({"topic": topic, "resumed": resumed})
    elif resumed:
        click.echo(f"{topic} goes on")
    else:
        guess = did_you_mean(topic, others)
        click.echo(f"{topic} was not paused{'.' if guess else ''}{guess}")
