"""The guards of the SQL functions. Each can be taken out from here, by a change to the functions' assembled text."""

from msgspec import Struct

from rowlock.stores.postgres.functions import functions
from tests.proof.sabotage import without


class Guard(Struct, frozen=True):
    """`texts`: the texts of the guard, each with its replacement."""

    name: str
    texts: dict[str, str]

    def __str__(self) -> str:
        return self.name


def sabotaged(guard: Guard) -> str:
    """Return an SQL script that makes the functions without the guard."""
    text = functions().sql
    for old, new in guard.texts.items():
        text = without(text, old, new)
    return text.replace("{schema}", '"public"')


_RUNNING = "AND (status = 'processing' AND goal <> 'cancel_requested'"

GUARDS = [
    Guard("complete: the version", {"version = complete_job.version::int": "true"}),
    Guard("complete: the worker", {"locked_by = coalesce(complete_job.worker::text, locked_by)": "true"}),
    Guard(
        "fail and release: the version",
        {"j.version = _jobs_hold.version": "true", "version = run AND": ""},
    ),
    Guard(
        "fail and release: the worker",
        {
            "j.locked_by = _jobs_hold.worker": "true",
            "locked_by = coalesce(_jobs_settle.worker::text, locked_by)": "true",
        },
    ),
    Guard("fail: a cancel wins", {"run.status = 'cancel_requested'": "false", _RUNNING: "AND (true"}),
    Guard("fail: retries are bounded", {"run.retries >= run.max_retries": "false"}),
    Guard("heartbeat: the worker and the version", {
        "j.version = heartbeat_job.version AND j.locked_by = heartbeat_job.worker": "true",
    }),
    Guard("claim: the version grows", {"version = version + 1": "version = version"}),
    Guard("claim: paused topics", {"WHERE paused_at IS NOT NULL AND": "WHERE false AND"}),
    Guard("claim: expired jobs", {"j.expires_at > (SELECT clock_timestamp())": "true"}),
    Guard("claim: only what is due", {"AND NOT ready AND run_at <= (SELECT clock_timestamp())": "AND NOT ready"}),
    Guard("rescue: the lease is over", {"j.locked_until < (SELECT clock_timestamp())": "j.locked_until > 'epoch'"}),
    Guard("rescue: a crash costs a retry", {"j.retries + d.charged::int": "j.retries"}),
    Guard("history", {"'event', event, 'status', goal,": "'event', 'waited', 'status', goal,"}),
    Guard("the counters of completions", {"topic, count(*), count(took)": "topic, 0, count(took)"}),
    Guard("the counters of failures", {"count(*) FILTER (WHERE status = 'failed')": "0"}),
    Guard("an id in the archive", {
        "UNION ALL SELECT id FROM {schema}._jobs_archive": "", ") IS NOT NULL THEN": ") = NULL THEN",
    }),
    Guard("a live key answers", {"AND j.key = enqueue_job.key AND": "AND"}),
    Guard("already", {"= ANY (events) THEN 'already'": "= 'never' THEN 'already'"}),
    Guard("already, and not another's", {"coalesce(e->>'worker', e->>'by') = _jobs_verdict.worker": "true"}),
]  # fmt: skip
