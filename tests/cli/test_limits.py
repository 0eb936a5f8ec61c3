"""`rowlock limits`: show what is used, put limits at run time, clear them."""

import asyncio
import json
import re

import pytest

from rowlock import Concurrency, Fair, Rate
from rowlock.cli.limits import spell
from rowlock.client.check import Comparison, compare
from rowlock.core.limits import MAX_LIMITS, Limit
from rowlock.jobs import Jobs
from tests.cli.conftest import Shell
from tests.cli.test_manners import at_terminal


def lines(text: str) -> list[list[str]]:
    return [re.split(r"  +", line) for line in text.splitlines()]


def test_put_see_clear(shell: Shell) -> None:
    shell("migrate")
    assert shell.json("limits", "list") == {"items": [], "total": 0, "next": None}
    assert shell("limits", "put", "mail", "--max", "1", "--reason", "slow").stdout == "mail: 1 at once\n"
    told = shell.json("limits", "put", "mail", "--max", "500", "--per", "1m", "--by", "scope_id", "--burst", "10")
    assert told == {
        "name": "mail", "value": None, "also": [],
        "limit": {"kind": "rate", "max": 500, "per": 60.0, "by": "scope_id", "name": None, "burst": 10},
    }  # fmt: skip
    more = ("limits", "put", "mail", "--max", "900", "--per", "60", "--by", "scope_id", "--value", "acme")
    assert shell(*more, "--as", "ann").stdout == "mail for scope_id acme: 900 in 60 s by scope_id\n"
    assert shell("limits", "put", "mail", "--fair", "scope_id", "--weight", "acme=3", "--weight", "b=2").stdout == (
        "mail: turns by scope_id (acme=3, b=2)\n"
    )
    for _ in range(3):
        shell.add("mail", "{}", "--scope", "tenant", "--scope-id", "acme")
    running = shell.start()

    assert lines(shell("limits", "list").stdout) == [
        ["name", "limit", "used", "waiting", "source", "topics"],
        ["mail", "1 at once", "1 of 1", "2", "put", "mail"],
        ["mail", "turns by scope_id (acme=3, b=2)", "-", "2", "put", "mail"],
        ["mail", "500 in 60 s, 10 at once by scope_id", "1 value", "2", "put", "mail"],
    ]
    shown = shell("limits", "show", "mail").stdout
    assert ["mail", "500 in 60 s, 10 at once by scope_id", "acme", "1 of 900", "-"] in lines(shown)
    assert ["mail", "turns by scope_id (acme=3, b=2)", "acme", "1 running, weight 3", "-"] in lines(shown)
    assert running in shown
    document = shell.json("limits", "show", "mail")
    assert [(one["kind"], one["used_up"], one["waiting"]) for one in document["items"]] == [
        ("concurrency", 1, 2), ("fair", 0, 2), ("rate", 0, 2),
    ]  # fmt: skip
    assert [(one["id"], one["worker"]) for one in document["holders"]] == [(running, "w1")]

    assert shell("limits", "clear", "mail", "--kind", "rate", "--value", "acme").stdout == "1 limit of mail cleared\n"
    nothing = shell.json("limits", "clear", "mail", "--kind", "fair", "--field", "", code=1)
    assert nothing == {"name": "mail", "cleared": 0}
    assert shell.json("limits", "clear", "mail", "--field", "scope_id") == {"name": "mail", "cleared": 2}
    assert shell("limits", "clear", "mail").stdout == "1 limit of mail cleared\n"
    again = shell("limits", "clear", "mail", code=1)
    assert (again.stdout, "mail: no such limit was put" in again.stderr) == ("", True)
    audited = {(one["action"], one["reason"], one["by"][:3]) for one in shell.json("audit")["items"]}
    assert {("limit.put", "slow", "cli"), ("limit.put", None, "ann"), ("limit.clear", None, "cli")} <= audited


def test_what_is_refused(shell: Shell) -> None:
    shell("migrate")
    for options, code, said in (
        ([], 2, "Give --max N, or --fair FIELD."),
        (["--max", "x"], 2, "--max"),
        (["--max", "0"], 1, "max: must be 1 to 1000000, not 0: to stop a topic, pause it"),
        (["--max", "5", "--per", "soon"], 2, "is not a length of time"),
        (["--max", "5", "--burst", "5"], 2, "--burst needs --per TIME."),
        (["--max", "5", "--weight", "a=1"], 2, "--weight needs --fair FIELD."),
        (["--fair", "key", "--max", "5"], 2, "--fair FIELD takes no --max"),
        (["--fair", "key", "--weight", "a"], 2, "'a' is not VALUE=N, such as acme=3."),
        (["--fair", "key", "--weight", "a=1", "--weight", "a=2"], 2, "--weight names a value twice"),
        (["--max", "5", "--by", "key", "--value", ""], 1, "value: is empty: jobs without a value"),
        (["--max", "5", "--value", "a"], 1, "value: names a value of a field"),
        (["--max", "5", "--by", "key", "--value", "a"], 1, "mail has no concurrency limit by key: put that first"),
        (["--max", "5", "--by", "a..b"], 1, "by: 'a..b' names no field"),
    ):
        assert said in shell("limits", "put", "mail", *options, code=code).stderr, options
    assert shell("limits", "show", "mail", code=1).stderr == "rowlock: mail has no limits\n"
    assert "--kind" in shell("limits", "clear", "mail", "--kind", "speed", code=2).stderr


def test_put_tells_of_limits_with_another_name(shell: Shell) -> None:
    shell("migrate")
    limits = [{"kind": "concurrency", "max": 1, "name": "smtp"}, {"kind": "concurrency", "max": 9}]
    shell("templates", "create", "-", input=json.dumps({"topic": "mail", "limits": limits}))
    told = ("limits", "put", "mail", "--max", "6")
    assert shell(*told).stdout == "mail: 6 at once\nmail also has the limit smtp: 1 at once\n"
    assert shell.json(*told)["also"] == ["smtp"]
    smtp = shell("limits", "put", "smtp", "--max", "2")
    assert (smtp.stdout, smtp.stderr) == ("smtp: 2 at once\n", "")
    typo = shell("limits", "put", "smtpp", "--max", "2")
    assert (typo.stdout, "Did you mean 'smtp'?" in typo.stderr) == ("smtpp: 2 at once\n", True)


def test_limits_that_were_put_before_the_code(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    shell("migrate")
    for n in range(MAX_LIMITS):
        shell("limits", "put", "mail", "--max", "5", "--by", f"payload.f{n}")
    shell("limits", "put", "bills", "--fair", "tenant")
    assert shell("limits", "list").stderr == ""
    app = Jobs(shell.url)

    async def tenants(tenant: str = "") -> None: ...

    app.register("mail", tenants, limits=[Concurrency(1)])
    app.register("bills", tenants, fair="scope_id", limits=[Concurrency(1, by="scope_id")])
    app.register("fine", tenants, fair="scope_id")
    for _ in range(2):  # the second publish changes nothing, and warns too
        caplog.clear()
        asyncio.run(publish(app))
        said = {one.getMessage() for one in caplog.records}
        assert any("mail has no field for the concurrency limit of mail by f3, which was put" in text for text in said)
        assert any("mail has 11 limits" in text for text in said)
        assert any("the fair share of bills is by tenant, but a limit is by scope_id" in text for text in said)
    listed = shell("limits", "list").stderr
    assert listed.count("warning: mail has no field for") == MAX_LIMITS
    assert "warning: the fair share of bills is by tenant" in listed

    async def compared(jobs: Jobs) -> Comparison:
        return await compare(await jobs._store(), app.lanes(), limit=10)

    assert {(one.check, one.topic) for one in shell.do(compared).findings} == {("limit", "mail"), ("limit", "bills")}


async def publish(app: Jobs) -> None:
    async with app:
        await app.templates.publish()


def test_a_list_fits_a_terminal(shell: Shell) -> None:
    shell("migrate")
    shell("limits", "put", f"accounts.{'x' * 60}", "--max", "500", "--per", "60", "--by", "scope_id")
    text = at_terminal(["limits", "list"], shell.folder, ROWLOCK_URL=shell.url, COLUMNS="80")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert [line for line in plain.splitlines() if "500 in 60" in line]
    assert max(map(len, plain.splitlines())) <= 80


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Concurrency(1000), "1,000 at once"),
        (Concurrency(2, by="payload.tenant"), "2 at once by tenant"),
        (Rate(5, per=0.5), "5 in 0.5 s"),
        (Rate(5, per=60, burst=2, by="key"), "5 in 60 s, 2 at once by key"),
        (Fair("scope"), "turns by scope"),
    ],
)
def test_limits_in_words(limit: Limit, text: str) -> None:
    assert spell(limit) == text
