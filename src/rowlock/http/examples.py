"""An example of each body and answer for the OpenAPI document, by its name there. Tests check that they fit."""

from __future__ import annotations

from typing import Any

_ID = "019c1e8a-7c00-7000-8000-5d2f8c1b9e04"
_WORKER = "cruncher-7f3a"
_AT, _LATER = "2026-01-31T08:00:00Z", "2026-01-31T08:00:05.250000Z"
_RUN = {"worker": _WORKER, "id": _ID, "version": 1}
_MAIL = {"topic": "send_mail", "payload": {"to": "ada@example.org"}}

_ENQUEUE = {**_MAIL, "run_at": _AT, "max_retries": 5, "key": "order-456", "tags": ["welcome"]}
_ENQUEUED = {
    "id": _ID, "topic": "send_mail", "status": "pending", "run_at": _AT, "created": _AT, "existing": False,
}  # fmt: skip
_JOB = {
    "id": _ID, **_MAIL, "status": "completed", "priority": 100, "run_at": _AT, "expires_at": None, "key": "order-456",
    "if_live": None,
    "scope": None, "scope_id": None, "tags": ["welcome"], "progress": 100.0, "stage": None, "message": None,
    "result": {"sent": True}, "retries": 0, "max_retries": 5, "crashes": 0, "timeout": 600.0, "version": 1,
    "locked_by": None, "cancel_requested_at": None, "cancel_reason": None, "waits_for": None,
    "template_version": 0, "step": None,
    "flow_id": None, "schedule_id": None, "fire_at": None, "created": _AT, "updated": _LATER, "claimed_at": _AT,
    "started_at": _AT, "finished_at": _LATER, "trace": None, "can": ["cancel", "manage"],
}  # fmt: skip
_STEP = {
    "name": "send", "n": 1, "position": 1, "state": "succeeded", "result": {"sent": True}, "error": None, "retries": 0,
    "cancelable": True, "started_at": _AT, "finished_at": _LATER,
}  # fmt: skip
_STEPS = [{
    **_STEP, "kind": "step", "label": "send", "title": "Send it", "timeout": 60.0, "weight": 1.0, "max_retries": None,
    "deadline": None, "schema": None,
}]  # fmt: skip
_WAIT = {
    "kind": "signal", "signal": "decision", "until": _LATER, "timeout": 3600.0,
    "schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
}  # fmt: skip
_STATS = {
    "pending": 100, "blocked": 0, "processing": 5, "waiting": 0, "cancel_requested": 0, "completed": 990, "failed": 10,
    "expired": 0, "cancelled": 2, "success_rate": 0.99, "avg_execution_time": 1500.0, "oldest_wait": 4.2, "capped": [],
}  # fmt: skip
_EVENT = {
    "job_id": _ID, "seq": 1, "at": _AT, "event": "enqueued", "status": "pending", "version": 0, "by": None, "data": {},
}  # fmt: skip
_LINE = {"at": _LATER, "version": 1, "level": "warning", "text": "no audio track"}
_BULK = {
    "id": _ID, "action": "requeue", "status": "running", "arguments": {}, "filter": {"topic": ["send_mail"]},
    "reason": "the mail server is back", "by": "superuser:ann@example.com", "started_by": "superuser:ann@example.com",
    "created": _AT, "started_at": _AT, "moved_at": _LATER, "finished_at": None, "total": 1000, "done": 400,
    "skipped": 1, "left": 599, "skips": {"changed": 1, "gone": 0, "key_taken": 0, "locked": 0},
    "unfit": {"completed": {"count": 3, "more": False}}, "rate": 812.5,
}  # fmt: skip
_PERCENTILES = {"p50": 0.1, "p95": 0.4, "p99": None}
_POINT = {
    "at": _AT, "enqueued": 60, "completed": 58, "failed": 1, "expired": 0, "cancelled": 0, "retried": 2, "lost": 0,
    "requeued": 0, "deleted": 0, "wait": _PERCENTILES, "run": _PERCENTILES,
}  # fmt: skip
_FAILURE = {
    "fingerprint": "5f0c1a2b3d4e5f60", "topic": "send_mail", "type": "TimeoutError", "frame": "mail.py:send",
    "title": "TimeoutError: no answer from smtp.example.org", "count": 12, "first": _AT, "last": _LATER,
    "trend": [0, 0, 12], "sample": _ID,
}  # fmt: skip
_TOKEN = {
    "id": "k3v9x2m7q1", "name": "shop", "scopes": ["enqueue", "read"], "topics": ["send_mail"], "job": None,
    "scope": None, "scope_id": None, "enqueue": None,
    "created": _AT, "created_by": "superuser:ann@example.com", "expires_at": None, "last_used": None,
}  # fmt: skip
_SETTINGS = {
    "http_enabled": True, "enqueue_rule": "@request.auth.id != ''", "view_rule": "scope_id = @request.auth.id",
    "cancel_rule": "scope_id = @request.auth.id", "manage_rule": "", "allowed_topics": ["send_mail"],
}  # fmt: skip

_DEFINITION = {
    "enabled": True, "title": "Send a mail", "description": None,
    "schema": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}, "result": None,
    "steps": [{"name": "send", "title": "Send it", "timeout": 60.0, "weight": 1.0, "cancelable": True}],
    "max_retries": 3, "retry": [30.0, 120.0], "timeout": 600.0, "priority": 100,
    "cancel": {"supported": True, "grace": 30.0, "mode": "cooperative"}, "key": ["to"], "if_live": "queue",
    "once": False, "debounce": None, "throttle": None, "schedulable": True, "retention": None, "limits": [],
    "external": False,
}  # fmt: skip
_TEMPLATE = {
    **_DEFINITION, "topic": "send_mail", "version": 1, "source": "api", "ready": 214, "ready_capped": False,
    "workers": [_WORKER],
}  # fmt: skip

_NIGHTLY = {
    "topic": "report", "payload": {"tenant": 7, "day": "{{fire_date}}"},
    "when": {"cron": "0 2 * * *", "zone": "Europe/Berlin"}, "priority": 50, "missed": "all", "most": 10,
    "within": 86400, "if_live": "queue", "description": "The numbers of the day",
}  # fmt: skip
_FIRE = {"fire_at": _AT, "kind": "schedule", "job_id": _ID, "reason": None, "status": "completed"}
_TIME = {"at": "2026-02-01T01:00:00Z", "local": "2026-02-01T02:00:00+01:00", "note": None, "skipped": False}
_SCHEDULE = {
    "id": _ID, "name": "nightly", "scope": "tenant", "scope_id": "7", "topic": "report", "version": None,
    "payload": {"tenant": 7, "day": "{{fire_date}}"}, "redacted": False,
    "options": {"priority": 50, "max_retries": None, "timeout": None, "tags": None, "key": None},
    "when": {"cron": "0 2 * * *", "zone": "Europe/Berlin", "gap": "next", "overlap": "first"},
    "words": "At 02:00 every day (Europe/Berlin)", "start": None, "end": None, "jitter": 0.0, "missed": "all",
    "most": 10, "within": 86400.0, "if_live": "queue", "description": "The numbers of the day", "state": "active",
    "source": "api", "owner": None, "absent": False, "revision": 1, "paused_at": None, "resumed_at": None,
    "paused_by": None, "pause_reason": None, "upto": _AT, "next_run_at": "2026-02-01T01:00:00Z", "last_run_at": _AT,
    "last_job_id": _ID, "zone_data": "2026a", "created": _AT, "updated": _AT, "next_times": [_TIME], "recent": [_FIRE],
}  # fmt: skip

_FLOW = {
    "id": _ID, "name": "order", "by": "token shop", "status": "running", "progress": 50.0, "jobs": 2,
    "counts": {"completed": 1, "pending": 1}, "held": 0, "created": _AT,
}  # fmt: skip
_NODE = {
    "id": _ID, "name": "pay", "topic": "charge", "status": "completed", "progress": 100.0, "held": False,
    "taken": True, "outside": False, "call": None, "created": _AT, "started_at": _AT, "finished_at": _LATER,
}  # fmt: skip

_LIMIT = {
    "name": "llm", "kind": "rate", "limit": {"kind": "rate", "max": 500, "per": 60.0, "by": "scope_id", "name": "llm"},
    "source": "code", "code": None,
    "values": [{"value": "acme", "limit": {"kind": "rate", "max": 1000, "per": 60.0, "by": "scope_id"}}],
    "topics": ["llm.complete", "llm.embed"],
    "used_by": [{"value": "acme", "used": 1000, "max": 1000, "free_at": _LATER}], "used_up": 1, "waiting": 1204,
    "waiting_capped": False,
}  # fmt: skip

EXAMPLES: dict[str, Any] = {
    # Jobs
    "EnqueueBody": _ENQUEUE,
    "EnqueuedBody": _ENQUEUED,
    "BatchBody": {"jobs": [_ENQUEUE, _MAIL]},
    "BatchAnswer": {"items": [_ENQUEUED]},
    "JobBody": {**_JOB, "step": "send", "steps": _STEPS},
    "ListAnswer": {
        "items": [_JOB], "total": 1, "limit": 20, "offset": 0, "total_capped": False, "partial": False, "next": None,
        "looked_back_to": None,
    },
    "StatsAnswer": {**_STATS, "topics": {"send_mail": _STATS}, "topics_capped": False},
    "UpdateBody": {"priority": "explicit", "delay": 60, "reason": "the customer waits"},
    "RequeueBody": {"payload": {"to": "ada@example.org"}, "version": 4, "reason": "the address was wrong"},
    "ReasonBody": {"reason": "no longer needed"},
    "CloneBody": {"payload": {"to": "bob@example.org"}, "run_at": _AT, "max_retries": 1},
    "JobTokenBody": {"seconds": 600, "cancel": True},
    "CancelAnswer": {"id": _ID},
    "EventsAnswer": {"items": [_EVENT], "next": None},
    "LogsAnswer": {"items": [_LINE], "dropped": 0, "next": None},
    "WhyBody": {"code": "paused", "answer": "Its topic is paused.", "details": ["since 08:00 by ann@example.com"]},
    "LineAnswer": {
        "line": True, "head": _ID, "ahead": 3, "ahead_capped": False, "behind": 12, "behind_capped": False,
        "before": _ID,
    },
    "RevealBody": {"reason": "ticket 4711"},
    "RevealAnswer": {"job": {**_JOB, "step": "send", "steps": _STEPS}, "events": [_EVENT], "logs": [_LINE]},
    # Callbacks
    "CallbackBody": {"state": "wanted"},
    "ReportBody": {"percent": 40, "stage": "rendering", "message": "4 of 10"},
    # Bulk actions
    "BulkBody": {
        "action": "requeue", "filter": {"topic": ["send_mail"], "status": ["failed"], "finished_from": _AT},
        "dry_run": True, "reason": "the mail server is back",
    },
    "BulkInfo": {**_BULK, "sample": [_JOB]},
    "BulkAnswer": {"items": [_BULK], "next": None},
    "BulkItemsAnswer": {
        "items": [{"job_id": _ID, "status": "failed", "outcome": "done", "holder": None}], "next": None,
    },
    # Streams and charts
    "LiveJobs": {
        "items": [{
            "id": _ID, "topic": "send_mail", "status": "processing", "version": 1, "progress": 40.0, "stage": None,
            "message": "4 of 10", "step": None, "waits_for": None, "priority": 100, "retries": 0, "max_retries": 5,
            "created": _AT, "run_at": _AT, "started_at": _AT, "finished_at": None,
        }],
        "gone": [], "reset": True,
    },
    "Behind": {"since": 2.5},
    "StreamEnd": {"reason": "stopping"},
    "Series": {"topic": "send_mail", "from": _AT, "until": "2026-01-31T08:01:00Z", "step": 60, "points": [_POINT]},
    # Failures, topics, workers, audit
    "FailuresAnswer": {"items": [_FAILURE], "next": None, "capped": False, "ungrouped": 0},
    "FailureAnswer": {**_FAILURE, "capped": False},
    "TopicsAnswer": {
        "items": [{
            **_STATS, "topic": "send_mail", "workers": 2,
            "paused": {"at": _AT, "until": None, "reason": "mail server", "by": "superuser:ann@example.com"},
        }],
        "capped": False, "next": None,
    },
    "PauseBody": {"reason": "mail server", "until": _AT},
    "PausedAnswer": {"topic": "send_mail", "paused": True},
    "WorkersAnswer": {
        "items": [{
            "name": "host-1:4711:9f2c", "host": "host-1", "pid": 4711, "topics": ["send_mail"], "concurrency": 10,
            "running": 3, "lease": 30.0, "stopping": False, "rowlock": "0.1.0", "started": _AT, "seen": _LATER,
            "live": True, "holds": [],
        }],
        "next": None,
    },
    "AuditAnswer": {
        "items": [{
            "id": 7, "at": _AT, "by": "superuser:ann@example.com", "action": "delete", "job_id": _ID,
            "topic": "send_mail", "reason": "sent by hand", "data": {}, "bulk": None,
        }],
        "next": None, "looked_back_to": None,
    },
    # Templates
    "TemplateCreateBody": {**_DEFINITION, "topic": "send_mail", "version": 1, "reason": "for the Go workers"},
    "TemplatePatch": {"timeout": 300, "reason": "the mail server is slow"},
    "TemplateBody": _TEMPLATE,
    "TemplatesAnswer": {"items": [_TEMPLATE]},
    "SwitchBody": {"version": 1, "reason": "the mail server is down"},
    # Schedules
    "ScheduleCreateBody": {
        **_NIGHTLY, "name": "nightly", "scope": "tenant", "scope_id": "7", "reason": "the tenant has signed up",
    },
    "ScheduleChangeBody": {**_NIGHTLY, "revision": 1, "reason": "an hour later"},
    "ScheduleBody": _SCHEDULE,
    "SchedulesAnswer": {"items": [_SCHEDULE], "next": None},
    "BackfillBody": {
        "start": "2026-01-01T00:00:00Z", "end": _AT, "dry_run": False, "reason": "the numbers were wrong",
    },
    "BackfillAnswer": {"items": [{"fire_at": _AT, "job_id": _ID, "new": True}]},
    "PreviewBody": {"when": {"every": 900, "anchor": _AT}, "limit": 10, "after": _AT},
    "PreviewAnswer": {"words": "At 02:00 every day (Europe/Berlin)", "times": [_TIME]},
    "FiredBody": {**_FIRE, "at": _AT, "detail": None},
    "HistoryAnswer": {
        "items": [{
            "fire_at": _AT, "at": _LATER, "kind": "schedule", "job_id": None, "reason": "live",
            "detail": f"job {_ID} is not over", "status": None,
        }],
        "next": None,
    },
    # Flows
    "FlowCreateBody": {
        "name": "order",
        "jobs": [
            {"name": "pay", "topic": "charge", "payload": {"order": 7}},
            {
                "name": "receipt", "topic": "send_mail", "after": ["pay"], "when": "pay.result.amount > 100",
                "payload": {"to": "ada@example.org", "amount": {"$result": "pay.amount"}},
            },
        ],
    },
    "FlowCreated": {"id": _ID, "name": "order", "jobs": {"pay": {**_ENQUEUED, "topic": "charge"}}},
    "FlowsAnswer": {"items": [_FLOW], "next": None},
    "GraphAnswer": {
        "flow": _FLOW,
        "nodes": [_NODE, {**_NODE, "id": "019c1e8a-7c00-7000-8000-5d2f8c1b9e05", "name": "receipt"}],
        "edges": [{
            "parent": _ID, "child": "019c1e8a-7c00-7000-8000-5d2f8c1b9e05", "if_failed": "cancel",
            "when": "pay.result.amount > 100", "ended": "completed", "call": None,
        }],
    },
    "BranchBody": {"node": "receipt", "reason": "the customer has changed their mind"},
    "FlowChanged": {"changed": 1},
    # Limits
    "LimitPutBody": {
        "limit": {"kind": "rate", "max": 1000, "per": 60, "by": "scope_id"}, "value": "acme",
        "reason": "acme has the larger plan",
    },
    "LimitsAnswer": {"items": [_LIMIT], "waiting": 1204, "waiting_capped": False},
    "LimitAnswer": {
        "items": [_LIMIT],
        "holders": [
            {"id": _ID, "topic": "llm.complete", "status": "processing", "worker": "host-1:4711:9f2c", "since": _AT},
        ],
    },
    "LimitsCleared": {"cleared": 1},
    # The worker protocol
    "ClaimBody": {"worker": _WORKER, "topics": ["video", "video@1"], "limit": 1, "lease": 30, "wait": 20, "runs": []},
    "ClaimAnswer": {
        "items": [{
            "id": _ID, "version": 1, "status": "processing", "topic": "video", "payload": {"file": 17},
            "lease": 30.0, "timeout": 600.0,
            "retries": 0, "max_retries": 3, "priority": 100, "key": None, "template_version": 0,
            "step": "split", "scope": None, "scope_id": None, "tags": [],
            "trace": None, "run_at": _AT, "created": _AT,
        }],
    },
    "HeartbeatBody": {"worker": _WORKER, "runs": [{"id": _ID, "version": 1}], "lease": 30},
    "HeartbeatAnswer": {"items": [{"id": _ID, "version": 1, "hold": "kept"}]},
    "ProgressBody": {**_RUN, "percent": 40, "stage": "encoding", "message": "4 of 10"},
    "HoldBody": {"id": _ID, "version": 1, "hold": "kept"},
    "LogBody": {**_RUN, "lines": [{"text": "no audio track", "level": "warning"}]},
    "RunAsked": _RUN,
    "WorkerStepsAnswer": {"items": [{**_STEP, "function": "send", "version": 1}]},
    "CheckpointBody": {
        **_RUN, "name": "split", "position": 1, "state": "succeeded", "result": {"pages": 17}, "ran": 2.5,
        "percent": 25,
    },
    "WaitAsked": {**_RUN, "signal": "decision", "position": 2, "timeout": 3600, "schema": _WAIT["schema"]},
    "WaitAnswer": {"id": _ID, "version": 1, "state": "waiting", "data": None},
    "CallbackAsked": {**_RUN, "signal": "decision", "position": 1, "timeout": 86400},
    "CallbackAnswer": {"url": "https://jobs.example.com/api/callbacks/…"},
    "RetryStepBody": {**_RUN, "step": "upload", "delay": 30, "error": "503 from the bucket"},
    "CompleteBody": {**_RUN, "result": {"frames": 1024}, "ran": 12.5},
    "FailBody": {**_RUN, "type": "DecodeError", "error": "frame 1021 is cut off", "delay": 60},
    "SnoozeBody": {**_RUN, "seconds": 30},
    "ReleaseBody": {**_RUN, "reason": "the worker stops"},
    "SettleBody": {
        "worker": _WORKER,
        "ends": [
            {"end": "complete", "id": _ID, "version": 1, "result": {"frames": 1024}, "ran": 12.5},
            {"end": "fail", "id": _ID, "version": 3, "type": "DecodeError", "error": "frame 7 is cut off"},
        ],
    },
    "SettleAnswer": {
        "items": [
            {"id": _ID, "version": 1, "status": "completed"},
            {"id": _ID, "version": 3, "status": "lost"},
        ],
    },
    "GoodbyeBody": {"worker": _WORKER},
    "SettledBody": {"id": _ID, "version": 1, "status": "completed"},
    # Access
    "TokenCreateBody": {
        "name": "shop", "scopes": ["enqueue", "read"], "topics": ["send_mail"], "expires_at": "2030-01-01T00:00:00Z",
    },
    "TokenBody": {**_TOKEN, "token": "rlk_k3v9x2m7q1_…"},
    "TokensAnswer": {"items": [_TOKEN], "next": None},
    "SettingsPatch": {**_SETTINGS, "reason": "customers may see their own jobs"},
    "SettingsBody": {
        **_SETTINGS, "worker_pool_size": 10, "poll_interval": 1.0, "lock_duration": 30.0, "redact": [],
        "public_url": "https://jobs.example.com",
        "given": sorted(_SETTINGS),
    },
    "ExplainBody": {"action": "view", "claims": {"id": "user-7"}, "job": {"scope_id": "user-7"}},
    "ExplainAnswer": {
        "allowed": True, "why": "view_rule holds", "rule": "scope_id = @request.auth.id",
        "parts": [{
            "rule": "view_rule", "text": "scope_id = @request.auth.id", "left": "user-7", "right": "user-7",
            "holds": True,
        }],
    },
    "LoginBody": {"email": "ann@example.com", "password": "correct horse battery staple"},
    "SetupBody": {"token": "rll_…", "email": "ann@example.com", "password": "correct horse battery staple"},
    "MeBody": {
        "kind": "superuser", "id": "ann@example.com", "name": "ann@example.com", "scopes": ["admin"], "topics": None,
        "can": ["read", "enqueue", "cancel", "manage"], "read_only": False,
    },
    "SessionsAnswer": {
        "items": [{
            "id": "w8r2t6y0u4", "email": "ann@example.com", "created": _AT, "seen": _LATER,
            "ends": "2026-01-31T20:00:00Z", "client": "127.0.0.1 Mozilla/5.0",
        }],
        "next": None,
    },
    # Probes and errors
    "Up": {"status": "ok"},
    "Ready": {"status": "ok", "problem": None},
    "ProblemBody": {
        "type": "about:blank", "title": "Bad request", "status": 400, "code": "out_of_range",
        "detail": "max_retries: must be 0 to 1000000, not -1", "field": "max_retries",
        "request_id": "6c9df6e95b481020",
    },
}  # fmt: skip
