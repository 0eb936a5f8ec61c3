"""`rowlock enqueue`, and waiting for the job that was enqueued."""

from datetime import UTC, datetime, timedelta

from rowlock.core.lifecycle import Completed, Failed
from tests.cli.conftest import Shell

OWN = "0193fb1e-0000-7000-8000-000000000007"


def test_it_prints_the_id_and_nothing_else(shell: Shell) -> None:
    printed = shell("enqueue", "mail", '{"to": "ada"}').stdout
    job = shell.json("jobs", "show", printed.strip())
    assert printed == f"{job['id']}\n"
    assert (job["topic"], job["payload"], job["status"]) == ("mail", {"to": "ada"}, "pending")


def test_all_options_arrive(shell: Shell) -> None:
    at = "2031-05-01T14:30:00Z"
    options = ["--key=k", f"--run-at={at}", "--priority=explicit", "--max-retries=7", "--timeout=15m", "--tag=a"]
    options += ["--tag=b", "--scope=user", "--scope-id=7", "--expires-at=2032-05-01T14:30:00+02:00", f"--id={OWN}"]
    job = shell.json("jobs", "show", shell.add("mail", "{}", *options))
    assert job["id"] == OWN
    assert (job["key"], job["run_at"], job["priority"], job["max_retries"]) == ("k", at, 150, 7)
    assert (job["timeout"], job["tags"], job["scope"], job["scope_id"]) == (900.0, ["a", "b"], "user", "7")
    assert job["expires_at"] == "2032-05-01T12:30:00Z"


def test_a_delay_is_counted_by_the_database(shell: Shell) -> None:
    job = shell.json("jobs", "show", shell.add("mail", "{}", "--delay", "2h"))
    made, due = (datetime.fromisoformat(job[name]) for name in ("created", "run_at"))
    assert due - made == timedelta(hours=2)


def test_debounce_and_throttle(shell: Shell) -> None:
    options = ["--key=k", "--debounce=30", "--debounce-at-most=5m"]
    first = shell.add("doc", '{"n": 1}', *options)
    again = shell("enqueue", "doc", '{"n": 2}', *options)
    assert again.stdout.strip() == first
    assert "carries the new payload" in again.stderr
    job = shell.json("jobs", "show", first)
    assert (job["payload"], job["if_live"]) == ({"n": 2}, "debounce")
    sent = shell.add("mail", "{}", "--key=k", "--throttle=1h")
    assert shell.add("mail", "{}", "--key=k", "--throttle=1h") == sent
    assert "needs --debounce" in shell("enqueue", "doc", "{}", "--debounce-at-most=5", code=2).stderr


def test_an_expiry_may_be_relative(shell: Shell) -> None:
    before = datetime.now(UTC)
    job = shell.json("jobs", "show", shell.add("mail", "{}", "--expires-at", "2h"))
    assert datetime.fromisoformat(job["expires_at"]) >= before + timedelta(hours=2)


def test_a_payload_from_a_file_or_from_stdin(shell: Shell) -> None:
    (shell.folder / "payload.json").write_text('{"from": "file"}')
    assert shell.json("jobs", "show", shell.add("mail", "@payload.json"))["payload"] == {"from": "file"}
    piped = shell("enqueue", "mail", "-", input='{"from": "pipe"}').stdout.strip()
    assert shell.json("jobs", "show", piped)["payload"] == {"from": "pipe"}


def test_a_key_that_is_in_use_answers_with_its_job(shell: Shell) -> None:
    first = shell.add("mail", "{}", "--key", "k")
    again = shell("enqueue", "mail", "--key", "k")
    assert again.stdout.strip() == first
    assert "exists already" in again.stderr
    assert shell.json("enqueue", "mail", "--key", "k")["existing"] is True


def test_mistakes_are_named(shell: Shell) -> None:
    for arguments, code, says in (
        (["mail", '{"to": '], 2, "not valid JSON: Expecting value at line 1, column 8"),
        (["mail", "{" * 100_000], 2, "JSON"),
        (["mail", '{"n": ' + "9" * 5000 + "}"], 2, "a number that is too long"),
        (["mail", '{"a": 1, "a": 2}'], 2, "holds the key a twice"),
        (["mail", '{"a": {"b": [{"c": ":", "c": 2}]}}'], 2, "holds the key a.b[0].c twice"),
        (["mail", "@nowhere.json"], 2, "@nowhere.json can't be read"),
        (["mail", "[1]"], 1, "must be a JSON object"),
        (["mail", '{"x": NaN}'], 1, "payload.x"),
        (["no good"], 1, "topic"),
        (["mail", "--run-at", "2031-05-01T14:30:00"], 2, "has no time zone"),
        (["mail", "--run-at", "tomorrow"], 2, "is not a time"),
        (["mail", "--delay", "soon"], 2, "is not a length of time"),
        (["mail", "--priority", "urgent"], 1, "explicit, discovered, backfill"),
        (["mail", "--id", "7"], 1, "must be a UUID"),
        (["--wait", "mail"], 2, "put --wait last"),
    ):
        assert says in shell("enqueue", *arguments, code=code).stderr
    assert shell.json("jobs", "list")["total"] == 0


def test_waiting_tells_how_it_ended(shell: Shell) -> None:
    shell.add()
    done = shell.finish(Completed({"sent": 1}))
    assert shell("jobs", "wait", done).stdout == '{\n  "sent": 1\n}\n'
    assert shell.json("jobs", "wait", done)["result"] == {"sent": 1}
    shell.add()
    failed = shell.finish(Failed("ValueError: no such address", final=True))
    ended = shell("jobs", "wait", failed, code=3)
    assert (ended.stdout, ended.stderr) == ("", f"rowlock: job {failed} ended as failed: ValueError: no such address\n")
    assert shell.json("jobs", "wait", failed, code=3)["status"] == "failed"


def test_waiting_for_a_cancelled_job_gives_the_reason(shell: Shell) -> None:
    job_id = shell.add()
    shell("jobs", "cancel", job_id, "--reason", "a mistake")
    assert "cancelled: a mistake" in shell("jobs", "wait", job_id, code=3).stderr


def test_waiting_has_an_end(shell: Shell) -> None:
    job_id = shell.add()
    assert "still pending after 10 ms" in shell("jobs", "wait", job_id, "--timeout", "10ms", code=4).stderr
    assert shell.json("jobs", "wait", job_id, "--timeout", "0.01", code=4)["status"] == "pending"


def test_enqueue_and_wait_in_one(shell: Shell) -> None:
    shell.add("mail", "{}", f"--id={OWN}")
    shell.finish(Completed("fine"))
    again = shell("enqueue", "mail", f"--id={OWN}", "--wait")
    assert again.stdout == '"fine"\n'
    assert again.stderr.startswith(OWN)
    assert "still pending" in shell("enqueue", "mail", "--wait", "0.01", code=4).stderr
    assert shell.json("enqueue", "mail", "--wait=0.01", code=4)["topic"] == "mail"
