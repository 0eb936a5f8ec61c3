"""What goes wrong, as problem+json: a stable code, a sentence, the field. Never a stack, a secret or others' data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rowlock import errors

TITLES = {
    400: "Bad request", 401: "Not authenticated", 403: "Not allowed", 404: "Not found", 405: "Method not allowed",
    408: "Too slow", 409: "Conflict", 413: "Too large", 415: "Wrong content type",
    421: "Wrong host", 429: "Too many requests", 431: "Too large", 500: "Internal error", 503: "Not available",
}  # fmt: skip


class Problem(Exception):
    """Raised by whatever handles a request; answered as it says."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        self.status = status
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
    """An error. `code` is stable, for programs; `field` names what of the request is wrong."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    field: str | msgspec.UnsetType = msgspec.UNSET


def not_found() -> Problem:
    """The same for what is not there and for what may not be seen."""
    return Problem(404, "not_found", "there is no such job, or it is not yours to see")


def from_error(error: errors.RowlockError) -> Problem:
    """What the store said is for the log: it may name hosts and tables."""
    again = {"retry-after": "1"}
    match error:
        case errors.InvalidInput():
            return Problem(400, error.code, str(error), field=error.field)
        case errors.JobNotFound():
            return not_found()
        case errors.InvalidState():
            return Problem(409, "wrong_state", str(error), job_status=str(error.status))
        case errors.VersionPassed():
            return Problem(409, "version_passed", str(error), field="version")
        case errors.BulkNotFound():
            return Problem(404, "not_found", "there is no such bulk action")
        case errors.BulkRefused():
            return Problem(409, "wrong_state", str(error), bulk_status=error.status)
        case errors.KeyTaken():
            return Problem(409, "key_taken", "another live job has its key", field="key")
        case errors.IdTaken():
            return Problem(409, "id_taken", f"this id was enqueued before, with another {error.field}", field="id")
        case errors.OutcomeUnknown():
            text = "the database went away while it was writing; with the same id it is safe to ask again"
            return Problem(503, "outcome_unknown", text, headers=again)
        case errors.StoreUnavailable():
            return Problem(503, "store_unavailable", "the database can't be reached at this moment", headers=again)
        case errors.StoreBusy():
            return Problem(503, "store_busy", "the database is locked by others at this moment", headers=again)
        case errors.StoreFull():
            return Problem(503, "store_full", "the database has no room left", headers={"retry-after": "60"})
        case errors.NotMigrated() | errors.SchemaTooNew() | errors.MigrationChanged():
            return Problem(503, "not_migrated", "the tables in the database are not those of this version")
        case _:
            return internal()


def internal() -> Problem:
    return Problem(500, "internal", "something went wrong here; the log has it under this request id")
