"""`rowlock flows`: make flows from a file, show them as a tree, and change them."""

import json
import re
from contextlib import suppress

from rowlock.core.lifecycle import Completed, Failed
from tests.cli.conftest import Shell
from tests.cli.test_manners import NOBODY, at_terminal
from tests.waiting import wait_until

ORDER = {
    "name": "order",
    "jobs": [
        {"name": "receipt", "topic": "mail", "after": ["pay"], "when": "pay.result.amount > 100",
         "payload": {"amount": {"$result": "pay.amount"}}},
        {"name": "small", "topic": "mail", "after": ["pay"], "when": "pay.result.amount <= 100"},
        {"name": "ship", "topic": "ship", "after": ["pack", "pay"], "ifFailed": "hold"},
        {"name": "track", "topic": "mail.tracking", "after": ["ship"]},
        {"name": "pack", "topic": "pack"},
        {"name": "pay", "topic": "charge"},
    ],
}  # fmt: skip


def create(shell: Shell, document: object) -> str:
    return shell("flows", "create", "-", input=json.dumps(document)).stdout.strip()


def nodes(shell: Shell, flow_id: str) -> dict[str, str]:
    return {one["name"]: one["status"] for one in shell.json("flows", "show", flow_id)["nodes"]}


def tree(shell: Shell, flow_id: str) -> list[str]:
    lines = shell("flows", "show", flow_id).stdout.splitlines()
    return lines[lines.index("jobs") + 2 :]


def becomes(shell: Shell, flow_id: str, **wanted: str) -> None:
    """Wait until the jobs have these statuses. `start` claims, which starts and stops jobs whose parents have ended."""

    def fits() -> bool:
        with suppress(ValueError):  # the topic has no job to claim
            shell.start("nothing")
        return wanted.items() <= nodes(shell, flow_id).items()

    wait_until(fits, str(wanted))


def test_create_show_steer_delete(shell: Shell) -> None:
    (shell.folder / "order.json").write_text(json.dumps(ORDER))
    flow_id = shell("flows", "create", "order.json").stdout.strip()  # the command also makes the tables
    seen = shell.json("flows", "show", flow_id)
    assert (seen["flow"]["id"], seen["flow"]["status"], seen["flow"]["by"][:4]) == (flow_id, "running", "cli:")
    assert len(seen["edges"]) == 5
    ids = {one["name"]: one["id"] for one in seen["nodes"]}
    assert tree(shell, flow_id) == [
        "pack         pending  pack           -",
        "pay          pending  charge         -",
        "├─ receipt   blocked  mail           when pay.result.amount > 100",
        "├─ small     blocked  mail           when pay.result.amount <= 100",
        "└─ ship      blocked  ship           after pack, pay",
        "   └─ track  blocked  mail.tracking  -",
    ]
    second = create(shell, {"name": "other", "jobs": [{"topic": "t"}]})
    page = shell.json("flows", "list", "--limit", "1")
    assert [one["id"] for one in page["items"]] == [second]
    assert [one["id"] for one in shell.json("flows", "list", "--cursor", page["next"])["items"]] == [flow_id]
    assert [one["name"] for one in shell.json("flows", "list", "--name", "order")["items"]] == ["order"]
    assert flow_id in shell("flows", "list").stdout

    # Cancel and requeue a branch.
    assert shell("flows", "cancel", flow_id, "--node", "ship", "--reason", "no need").stdout == "2 jobs cancelled\n"
    assert shell.json("flows", "requeue", flow_id, "--node", "ship") == {"changed": 2}
    becomes(shell, flow_id, ship="blocked", track="blocked")
    unknown = shell("flows", "cancel", flow_id, "--node", "shipp", code=1).stderr
    assert "node: the flow has no node 'shipp'; there are: pack, pay," in unknown

    # A condition chooses one branch, and a failure holds the other.
    shell.finish(Completed({"amount": 250}), "charge")
    shell.finish(Failed("no boxes", final=True), "pack")
    becomes(shell, flow_id, receipt="pending", small="cancelled")
    shown = shell("flows", "show", flow_id)
    for wanted in ("├─ small +not taken +mail ", rf"└─ ship +held +ship +after pack, pay; release: {ids['ship']}"):
        assert any(re.match(wanted, line) for line in tree(shell, flow_id)), shown.stdout
    assert "1 job held: `rowlock flows release ID` lets one run" in shown.stderr
    assert shell("flows", "release", ids["ship"], "--reason", "boxes").stdout == f"{ids['ship']} is released\n"
    becomes(shell, flow_id, ship="pending")
    assert "can't release" in shell("flows", "release", ids["ship"], code=1).stderr

    # Failed jobs run again.
    assert shell("flows", "requeue", flow_id).stdout == "1 job requeued\n"
    assert "can't delete flow" in shell("flows", "delete", flow_id, code=1).stderr
    shell("flows", "cancel", flow_id)
    assert shell("flows", "delete", flow_id, "--reason", "over").stdout == "6 jobs deleted\n"
    assert "there is no flow" in shell("flows", "show", flow_id, code=1).stderr
    reasons = {one["reason"] for one in shell.json("audit")["items"]}
    assert {"no need", "boxes", "over"} <= reasons


def test_what_is_refused(shell: Shell) -> None:
    shell("migrate")
    shell.add("t", "{}", "--key", "taken")
    one = {"topic": "t", "name": "a"}
    for document, code, said in (
        ("{", 2, "the body is not JSON"),
        (json.dumps({"name": "x"}), 2, "jobs: "),
        (json.dumps({"name": "x", "jobs": [{**one, "nmae": 1}]}), 2, "jobs[0].nmae: there is no such field"),
        (json.dumps({"name": "x", "jobs": [{**one, "after": ["b"]}]}), 1, "jobs[0].after: 'b' is neither a node"),
        (json.dumps({"name": "x", "jobs": [{**one, "after": ["a"]}]}), 1, "these jobs wait for each other: a → a"),
        (json.dumps({"name": "x", "jobs": [{**one, "after": [NOBODY]}]}), 1, f"can't wait for job {NOBODY}"),
        (json.dumps({"name": "x", "jobs": [{**one, "key": "taken"}]}), 1, "has the key 'taken'"),
        (json.dumps({"name": "x", "jobs": [one, {**one, "name": "b", "after": ["a"], "when": "a.x = 1"}]}), 1, "when"),
        (json.dumps({"name": "x", "jobs": []}), 1, "the flow has no jobs"),
    ):
        assert said in shell("flows", "create", "-", input=document, code=code).stderr, document
    assert "No such file" in shell("flows", "create", "missing.json", code=2).stderr
    assert shell.json("flows", "list")["items"] == []
    for verb in ("show", "cancel", "requeue", "delete"):
        assert "there is no flow" in shell("flows", verb, NOBODY, code=1).stderr
    assert "no job" in shell("flows", "release", NOBODY, code=1).stderr


def test_the_same_file_twice_makes_one_flow(shell: Shell) -> None:
    document = {"id": "019c1e8a-7c00-7000-8000-5d2f8c1b9e04", "name": "once", "jobs": [{"topic": "a"}, {"topic": "b"}]}
    assert create(shell, document) == create(shell, document) == document["id"]
    assert shell.json("stats")["pending"] == 2


def test_a_tree_fits_a_terminal_of_80_columns(shell: Shell) -> None:
    """A deep tree with long names, long topics and long conditions also fits."""
    deep = [{"topic": f"t{n}", "after": [f"t{n - 1}"] if n else []} for n in range(60)]
    name, topic = "n" * 90, f"accounts.{'x' * 60}"
    wide = {"name": name, "topic": topic, "after": ["t59"], "when": " && ".join(["t59.result.amount > 100"] * 5)}
    flow_id = create(shell, {"name": "deep", "jobs": [*deep, wide]})
    text = at_terminal(["flows", "show", flow_id], shell.folder, ROWLOCK_URL=shell.url, COLUMNS="80")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if "t59 " in line]
    assert [line for line in lines if "nnnnnnnnnn" in line]
    title = next(line for line in lines if line.startswith("job "))
    said = "".join(line[title.index("note") :].strip() for line in lines).replace(" ", "")
    assert "&&".join(["t59.result.amount>100"] * 5) in said  # the condition is not cut
    assert "aftert58" in said
    listed = at_terminal(["flows", "list"], shell.folder, ROWLOCK_URL=shell.url, COLUMNS="80")
    assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", listed).splitlines())) <= 80
    assert flow_id in listed
