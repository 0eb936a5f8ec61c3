from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from rowlock.cli.completion import complete_topic
from rowlock.cli.connect import Database, actor, database
from rowlock.cli.groups import Group
from rowlock.cli.options import Moment
from rowlock.cli.show import items, moment, note, number, percent, print_json, print_table
from rowlock.cli.spelling import did_you_mean, guess_topic
from rowlock.jobs import Jobs
from rowlock.stores.base import Pause
from rowlock.stores.queries import Stats, TopicStats


@click.group(cls=Group)
def topics() -> None:
    """List, pause and resume topics."""


@topics.command("list")
@database
def list_topics(db: Database) -> None:
    """All topics: their jobs by status, and who paused them."""

    async def look(jobs: Jobs) -> tuple[Stats, Sequence[Pause]]:
        return await jobs.stats(), await jobs.topics.paused()

    stats, pauses = db.run(look)
    paused = {pause.topic: pause for pause in pauses}
    found = {name: stats.topics.get(name, TopicStats()) for name in sorted(stats.topics.keys() | paused.keys())}
    if db.wants_json:
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
@click.option("--until", type=Moment(+1), metavar="TIME", help="Resume at this time: 2h, 2026-05-01T14:30:00Z.")
@actor
@database
def pause(db: Database, topic: str, until: datetime | None) -> None:
    """Start no more jobs of a topic. Running jobs continue."""

    async def stop(jobs: Jobs) -> Pause | None:
        guess = await guess_topic(jobs, topic)
        await jobs.topics.pause(topic, reason=db.reason, until=until)
        if guess is not None:
            note(f"rowlock: no job and no worker has the topic {topic!r}. It is paused all the same.{guess}")
        return next((pause for pause in await jobs.topics.paused() if pause.topic == topic), None)

    document = {"topic": topic, "paused": db.run(stop)}
    db.tell(document, f"{topic} is paused{f' until {moment(until)}' if until else ''}")


@topics.command()
@click.argument("topic", shell_complete=complete_topic)
@actor
@database
def resume(db: Database, topic: str) -> None:
    """Start jobs of a topic again."""

    async def go_on(jobs: Jobs) -> tuple[bool, list[str]]:
        resumed = await jobs.topics.resume(topic, reason=db.reason)
        return resumed, [pause.topic for pause in await jobs.topics.paused()]

    resumed, others = db.run(go_on)
    guess = did_you_mean(topic, others)
    text = f"{topic} is resumed" if resumed else f"{topic} was not paused{'.' if guess else ''}{guess}"
    db.tell({"topic": topic, "resumed": resumed}, text)
