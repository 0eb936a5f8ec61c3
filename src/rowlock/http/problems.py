"""Errors as problem+json: a stable code, a sentence, the field. Never a stack, a secret or data of other callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from rowlock import errors

TITLES = {
    400: "Bad request", 401: "Not authenticated", 403: "Not allowed", 404: "Not found", 405: "Method not allowed",
    408: "Too slow", 409: "Conflict", 413: "Too large", 415: "Wrong content type",
    421: "Wrong host", 429: "Too many requests", 431: "Too large", 500: "Internal error", 503: "Not available",
}  # fmt: skip


# Every code that an answer may have: its status and its meaning. A Problem takes its status from here, the OpenAPI
# document and docs/errors.md list the codes, and a test finds codes that are used but not declared.
CODES: dict[str, tuple[int, str]] = {
    # The body, the query, the headers
    "bad_json": (400, "The body is not JSON."),
    "duplicate_key": (400, "An object in the body has the same key twice."),
    "encoded": (415, "The body is compressed. Send it as it is."),
    "given_twice": (400, "A parameter is given twice, or a field in both spellings, `run_at` and `runAt`."),
    "header_twice": (400, "A header that may be sent once was sent twice."),
    "headers_too_large": (431, "The headers are larger than 64 KiB."),
    "lone_surrogate": (400, "A text holds half of a surrogate pair, which is not valid Unicode."),
    "not_utf8": (400, "The body or the query is not UTF-8."),
    "query_too_long": (400, "The query is longer than 16 KiB."),
    "too_deep": (400, "A value is nested too deeply."),
    "too_large": (413, "The body, a payload or a result is larger than allowed."),
    "too_many_parameters": (400, "The query has more than 100 parameters."),
    "too_slow": (408, "The body took longer than 30 s to come in."),
    "wrong_content_type": (415, "The body needs `Content-Type: application/json`."),
    # A field: `field` names it
    "admin_is_unbounded": (400, "A token with the scope admin can't be limited to topics."),
    "backwards": (
        400,
        "A range of a cron expression ends before it begins, such as 22-6. `detail` says what to write.",
    ),
    "bad_arguments": (400, "The payload is not what the task of this topic takes."),
    "bad_characters": (400, "A topic, a name or a time zone has characters that it can't have. `detail` says which."),
    "bad_cursor": (400, "The cursor is not one that an earlier page gave as `next`."),
    "bad_data": (400, "The data does not fit what the job waits for. `field` is the path of the value."),
    "bad_field": (400, "A field of `key`, or the field of a limit, names no field of the payload."),
    "bad_fields": (400, "A cron expression does not have five fields."),
    "bad_fingerprint": (400, "A fingerprint is not 16 digits of 0-9 a-f."),
    "bad_id": (400, "An id in the body or the query is not a UUID."),
    "bad_lane": (400, "A worker names a topic with a version that is no number, such as mail@x."),
    "bad_length": (400, "A text is empty, too short or too long."),
    "bad_name": (400, "The name of a worker or of a step can't be used. `detail` says why."),
    "bad_path": (400, "A filter by payload is not `path=value`, or its path can't be used."),
    "bad_pattern": (400, "A pattern of `redact` is not one name, or several with dots between them."),
    "bad_payload": (400, "The payload does not fit the schema of its topic. `field` is the path of the value."),
    "bad_result": (400, 'A `{"$result": …}` in a payload does not name a job of the flow and a part of its result.'),
    "bad_rule": (400, "A rule, or a condition of a flow, can't be read. `detail` says at which character."),
    "bad_schema": (400, "A template's schema is not a JSON Schema of draft 2020-12."),
    "bad_time": (400, "A time in a rule can't be read."),
    "bad_url": (400, "A URL can't be used as `public_url`."),
    "bad_value": (400, "A value is of the wrong kind. `detail` says what is expected."),
    "before_start": (400, "`end` is before `start`."),
    "blank_key": (400, "A field that makes the key of a job can't be the result of another job."),
    "both_given": (400, "Two fields exclude each other, such as `run_at` and `delay`."),
    "cycle": (400, "Jobs of a flow wait for each other. `detail` names them."),
    "empty": (400, "A text or list needs at least one entry."),
    "everything": (400, "A bulk action without a filter needs `everything: true`."),
    "has_key": (400, '`if_live` of a schedule must be "allow": its jobs have a key of their own.'),
    "in_flow": (400, '`if_live` "queue" and "replace" do not go with `after`, `debounce` and `throttle` with no flow.'),
    "in_the_future": (400, "A backfill ends later than now."),
    "integer_range": (400, "An integer has more than 64 bits. Send it as text."),
    "is_an_id": (400, "A name looks like an id. Choose another name."),
    "key_not_text": (400, "A key of an object is not a text."),
    "missing": (400, "A required field is missing."),
    "naive_time": (400, "A time has no time zone. Write Z for UTC."),
    "needs_after": (400, "`when` is about the jobs of `after`, and none is given."),
    "needs_by": (400, "A limit for one value needs the field: `by`."),
    "needs_cancel": (400, '`if_live` "replace" needs a template whose jobs can be cancelled.'),
    "needs_key": (400, "`if_live`, `debounce` and `throttle` are about jobs with the same key, and none is given."),
    "never": (400, "The schedule would never fire, as with 30 February, or with an `end` before its first time."),
    "no_limit": (400, "No limit of this kind is by this field. Put that first, without `value`."),
    "not_a_bool": (400, "A value is neither true nor false."),
    "not_a_filter": (400, "A filter is not a filter."),
    "not_a_job": (400, "An entry of a batch is not a job."),
    "not_a_list": (400, "A value is not a list."),
    "not_a_number": (400, "A value is not a number."),
    "not_a_pair": (400, "A filter by payload is not a pair of a path and a value."),
    "not_a_policy": (400, "`retry` of a template is no retry policy."),
    "not_a_time": (400, "A value is not a time."),
    "not_an_email": (400, "A text is not an e-mail address."),
    "not_an_integer": (400, "A value is not a whole number."),
    "not_an_object": (400, "A value is not a JSON object."),
    "not_finite": (400, "A number is infinite or not a number."),
    "not_here": (400, "A field does not belong to this kind of limit."),
    "not_json": (400, "A value can't be written as JSON."),
    "not_schedulable": (400, "The template of the topic says that its jobs can't be scheduled."),
    "not_text": (400, "A value is not a text."),
    "not_wanted": (400, "A field does not belong to this bulk action."),
    "nothing_asked": (400, "A stream without jobs and without numbers would send nothing."),
    "nothing_given": (400, "The request changes nothing."),
    "nul": (400, "A text holds a NUL character, which databases can't store."),
    "other_field": (400, "Fair turns and limits of one topic must be by the same field."),
    "other_name": (400, "A limit names another one than the path."),
    "out_of_range": (400, "A number, or the length of a list, is outside of its limits."),
    "past": (400, "A time is in the past."),
    "redacted": (400, "A value is the mark that stands for a hidden value. Send the value itself, or leave it out."),
    "steps_too_large": (413, "The results of all steps of a job would have more than 16 MiB."),
    "taken": (400, "A superuser has this e-mail address already, or a job of the flow has this name or id."),
    "time_range": (400, "A time is not between the years 1900 and 9000."),
    "too_broad": (400, "A filter would read too many jobs. Narrow it."),
    "too_common": (400, "A password is too easy to guess."),
    "too_long": (400, "A text is too long."),
    "too_many": (400, "A list has too many entries, or too many jobs meet a filter."),
    "too_many_steps": (400, "A job has more than 1,000 steps."),
    "twice": (400, "A field of a template is given under two names, or two steps or two limits are the same."),
    "unknown_action": (400, "There is no such action."),
    "unknown_blank": (400, "A text in the payload of a schedule has a {{blank}} that there is not."),
    "unknown_field": (400, "There is no such field or parameter. Nothing is ignored."),
    "unknown_name": (400, "A name is unknown."),
    "unknown_node": (400, "The flow has no such job. `detail` names those that it has."),
    "unknown_option": (400, "There is no such option of a job."),
    "unknown_outcome": (400, "There is no such outcome of a bulk action."),
    "unknown_parent": (400, "A job of a flow is to wait for a job that is not there, or that the caller may not see."),
    "unknown_scope": (400, "There is no such scope of a token."),
    "unknown_setting": (400, "There is no such setting."),
    "unknown_status": (400, "There is no such status of a job."),
    "unknown_step": (400, "The job has stored no step of this name. `detail` names those that it has."),
    "unknown_version": (400, "The topic has no template of this version."),
    "unknown_zone": (400, "There is no such time zone. `detail` names similar ones."),
    "unreadable": (400, "There is such a thing, and this release can't read it."),
    "with_debounce": (
        400,
        "`debounce` excludes `if_live`, `throttle`, `run_at` and `delay`; a schedule excludes both.",
    ),
    "with_if_live": (400, "`once` and `if_live` of a template exclude each other."),
    "with_once": (400, "`once` does not go with `debounce` or `throttle`."),
    # The caller
    "bad_link": (403, "The link for the first superuser is used up or too old."),
    "cross_origin": (403, "A page of another origin called, which is not among the `origins`."),
    "csrf": (403, "A request with a session's cookie came from another page."),
    "insecure": (403, "A password must not go over plain HTTP."),
    "not_allowed": (403, "The caller may not do this. `detail` says what it needs."),
    "bad_claim": (401, "A claim of a JSON Web Token is not what it must be: `field` names it."),
    "not_authenticated": (401, "The credential is missing, unknown, revoked or expired."),
    "read_only": (403, "The server or the account is read-only."),
    "too_many_logins": (429, "Too many logins have failed. `Retry-After` says how long to wait."),
    "wrong_audience": (401, "A JSON Web Token is for another audience, or `jwt_audience` is not set."),
    "wrong_host": (421, "The server does not answer to the name in the Host header."),
    "wrong_login": (401, "No superuser has this e-mail address and password."),
    # What is there, and its state
    "callback_answered": (409, "The callback has its answer already."),
    "callback_cancelled": (409, "The job was cancelled: stop. This request counts as the acknowledgement."),
    "callback_ended": (409, "The job does not ask for this answer any more."),
    "callback_late": (409, "The time for an answer is over."),
    "cancel_unsupported": (409, "The topic's template says that a job can't be cancelled once a run has started."),
    "flow_key_taken": (
        409,
        "A live job, `holder`, or a job of the same flow has the key of a job. Nothing was added.",
    ),
    "flow_not_found": (404, "There is no such flow, or all of its jobs are pruned."),
    "http_disabled": (404, "The HTTP API is switched off by the setting `http_enabled`."),
    "id_taken": (409, "The id was enqueued before, with other content."),
    "key_taken": (409, "Another live job has the key, or the id."),
    "limit_not_found": (404, "No topic and no limit has this name."),
    "lost": (409, "The run belongs to another worker, or has ended. Nothing was stored."),
    "no_callback": (404, "There is no callback at this address, or its job is gone."),
    "no_such_path": (404, "There is nothing at this path."),
    "not_cancelled": (409, "The job is not cancelled, so there is nothing to acknowledge."),
    "not_found": (404, "The resource does not exist, or the caller may not see it."),
    "once_taken": (409, "The topic allows one job per key, ever. `first` is the job that had the key."),
    "schedule_changed": (409, "The schedule has another revision by now: `revision`. Read it again."),
    "schedule_exists": (409, "A schedule has this name already, or code declares it: `owner` is its module then."),
    "schedule_not_found": (404, "There is no such schedule, or the caller may not see it."),
    "signal_known": (409, "A signal with this id has come before. It was stored then."),
    "signals_full": (409, "The job has 1,000 signals that it has not read."),
    "template_unreadable": (409, "The stored template can't be read by this release. Publish or create it again."),
    "template_disabled": (409, "An operator has disabled the topic, or this version: no job can be enqueued."),
    "template_exists": (409, "The topic has a template of this version already."),
    "template_frozen": (409, "Schema and steps of a version from 1 on can't change. `changed` has the differences."),
    "template_not_found": (404, "The topic has no template, or none of this version."),
    "version_passed": (409, "The job has run again since the version that was given."),
    "wrong_method": (405, "The path does not take this method. `Allow` says which it takes."),
    "wrong_state": (409, "The status of the job, the flow or the bulk action does not allow this."),
    # The server
    "busy": (503, "Other requests are changing this job. Try again."),
    "internal": (500, "The server failed. Its log has the error under the request id."),
    "not_migrated": (503, "The database has the tables of another version of rowlock."),
    "outcome_unknown": (503, "The database went away while it was writing. With the same `id`, a retry is safe."),
    "store_busy": (503, "The database is locked by another process. Try again."),
    "store_full": (503, "The database has no room left."),
    "store_unavailable": (503, "The database can't be reached. Try again."),
    "streams_taken": (429, "All streams of this server are taken, except those reserved for superusers."),
    "too_many_calls": (429, "Too many calls of callbacks. `Retry-After` says how long to wait."),
    "too_many_streams": (429, "The caller has too many streams open."),
    "too_many_tokens": (
        429,
        "The caller has made too many short-lived tokens that are still good. `Retry-After` says how long to wait.",
    ),
    "too_many_waiting": (429, "Too many requests are waiting already."),
}


class Problem(Exception):
    """Raised while a request is handled, and sent as its answer. `code` is one of CODES, which has the status."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        self.status, _ = CODES[code]
        self.code = code
        self.detail = detail
        self.field = field
        self.headers = dict(headers or {})
        self.more = more
        super().__init__(detail)

    def body(self, request_id: str) -> bytes:
        told: dict[str, Any] = {
            "type": "about:blank", "title": TITLES[self.status], "status": self.status, "code": self.code,
            "detail": self.detail,
        }  # fmt: skip
        if self.field is not None:
            told["field"] = self.field
        return msgspec.json.encode({**told, **self.more, "request_id": request_id})


class ProblemBody(msgspec.Struct, kw_only=True):
    """An error. `code` is stable, for programs; `field` names the part of the request that is wrong."""

    type: str
    title: str
    status: int
    code: Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(CODES)})]
    detail: str
    request_id: str
    field: str | msgspec.UnsetType = msgspec.UNSET


def check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise Problem(
            "out_of_range", f"{name}: must be {errors.plain_number(low)} to {errors.plain_number(high)}", field=name
        )


def not_found() -> Problem:
    """Return the same problem for a job that does not exist and for one that the caller may not see."""
    return Problem("not_found", "there is no such job, or you may not see it")


def from_error(error: errors.RowlockError) -> Problem:
    """Return the problem for an error. The store's own message goes to the log only: it may name hosts and tables."""
    again = {"retry-after": "1"}
    match error:
        case errors.InvalidInput() if error.code in CODES:
            return Problem(error.code, str(error), field=error.field)
        case errors.InvalidInput():  # a code of the application's own middleware
            return Problem("bad_value", str(error), field=error.field)
        case errors.JobNotFound():
            return not_found()
        case errors.CancelUnsupported():
            return Problem("cancel_unsupported", str(error), job_status=str(error.status))
        case errors.InvalidState():
            return Problem("wrong_state", str(error), job_status=str(error.status))
        case errors.SignalRefused(why="known"):
            return Problem("signal_known", str(error), field="id", job_status=str(error.status))
        case errors.SignalRefused():
            return Problem("signals_full", str(error), job_status=str(error.status))
        case errors.VersionPassed():
            return Problem("version_passed", str(error), field="version")
        case errors.BulkNotFound():
            return Problem("not_found", "there is no such bulk action")
        case errors.BulkRefused():
            return Problem("wrong_state", str(error), bulk_status=error.status)
        case errors.KeyTaken():
            return Problem("key_taken", "another live job has its key", field="key")
        case errors.FlowKeyTaken():
            more: dict[str, Any] = {} if error.holder is None else {"holder": error.holder}
            return Problem("flow_key_taken", str(error), field=error.field, **more)
        case errors.UnknownParent():
            return Problem("unknown_parent", str(error), field=error.field)
        case errors.FlowNotFound():
            return Problem("flow_not_found", str(error))
        case errors.FlowRefused():
            return Problem("wrong_state", str(error), flow_status=error.status)
        case errors.OnceTaken():
            return Problem("once_taken", str(error), field="key", first=error.first)
        case errors.LimitNotFound():
            return Problem("limit_not_found", str(error))
        case errors.TemplateNotFound():
            return Problem("template_not_found", str(error))
        case errors.TemplateExists():
            return Problem("template_exists", str(error), field="version")
        case errors.TemplateDisabled():
            return Problem("template_disabled", str(error), field="topic")
        case errors.TemplateUnreadable():
            return Problem("template_unreadable", str(error), field="topic")
        case errors.TemplateFrozen():
            changed = {name: {"before": before, "after": after} for name, (before, after) in error.changed.items()}
            text = f"version {error.version} of the topic {error.topic} is published, and its {' and '.join(changed)} "
            return Problem("template_frozen", f"{text}can't change: create the next version", changed=changed)
        case errors.TooManyTokens():
            return Problem("too_many_tokens", str(error), headers={"retry-after": str(error.seconds)})
        case errors.ScheduleNotFound():
            return Problem("schedule_not_found", "there is no such schedule, or you may not see it")
        case errors.ScheduleExists():
            return Problem("schedule_exists", str(error), field="name", owner=error.owner)
        case errors.ScheduleChanged():
            return Problem("schedule_changed", str(error), field="revision", revision=error.revision)
        case errors.IdTaken():
            return Problem("id_taken", f"this id was enqueued before, with another {error.field}", field="id")
        case errors.OutcomeUnknown():
            text = "the database went away while it was writing; with the same id it is safe to ask again"
            return Problem("outcome_unknown", text, headers=again)
        case errors.StoreUnavailable():
            return Problem("store_unavailable", "the database can't be reached at this moment", headers=again)
        case errors.StoreBusy():
            return Problem("store_busy", "the database is locked by others at this moment", headers=again)
        case errors.StoreFull():
            return Problem("store_full", "the database has no room left", headers={"retry-after": "60"})
        case errors.NotMigrated() | errors.SchemaTooNew() | errors.MigrationChanged():
            return Problem("not_migrated", "the tables in the database are not those of this version")
        case _:
            return internal()


def internal() -> Problem:
    return Problem("internal", "the server failed; its log has the error under this request id")
