"""Who may do what, computed a second time without the product: from what a route declares and a caller was given."""

from collections.abc import Awaitable, Callable, Iterator
from itertools import count, product
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from rowlock.client.callbacks import Callback
from rowlock.core.cron import Every
from rowlock.core.fingerprint import fingerprint
from rowlock.core.limits import Concurrency
from rowlock.http.app import ROUTES
from rowlock.http.routes import Route
from rowlock.stores.queries import Filter
from tests.http.harness import GUEST, JSON, PASSWORD, A, B, Who, World
from tests.stores.harness import claim_by
from tests.waiting import until
from tests.waits import waiting

RULES = {"closed": "", "own": "scope_id = @request.auth.id", "open": "true"}

NOWHERE = "0193fb1e-0000-7000-8000-000000000000"

_INCLUDED = {
    "manage": {"manage", "read", "cancel"},
    "admin": {
        "read",
        "enqueue",
        "cancel",
        "manage",
        "templates",
        "schedules",
        "flows",
        "limits",
        "tokens",
        "worker",
        "admin",
    },
}


class Rules(Struct, frozen=True, kw_only=True):
    """The name in RULES of the rule that each setting has."""

    enqueue: str = "closed"
    view: str = "closed"
    cancel: str = "closed"
    manage: str = "closed"

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items())

    @property
    def settings(self) -> dict[str, str]:
        return {f"{name}_rule": RULES[value] for name, value in asdict(self).items()}


CLOSED = Rules()
WATCH = Rules(view="own", cancel="own")
OWN = Rules(enqueue="own", manage="own")
OPEN = Rules(enqueue="open", manage="open")


def every_set() -> list[Rules]:
    """Return sets of rules: every combination of closed and own; each setting alone open; all settings open."""
    names = Rules.__struct_fields__
    sets = [Rules(**dict(zip(names, values, strict=True))) for values in product(("closed", "own"), repeat=4)]
    return [*sets, *(Rules(**{name: "open"}) for name in names), Rules(**dict.fromkeys(names, "open"))]


class Target(Struct, frozen=True):
    """The job that a request is about. `user`: its scope_id, and `scope` the kind of that scope; None: it has none."""

    topic: str
    user: str | None
    scope: str | None = None

    def __str__(self) -> str:
        return f"{self.topic} of {self.scope or ''} {self.user}"

    @property
    def job(self) -> dict[str, Any]:
        """Return what World.enqueue needs beside the user."""
        return {"topic": self.topic, **({} if self.scope is None else {"scope": self.scope})}

    @property
    def body(self) -> JSON:
        """Return the body with which a client enqueues the job."""
        return {"topic": self.topic, "payload": {}, "scope": self.scope, "scopeId": self.user}


TARGETS = (
    Target("mail", A), Target("mail", B), Target("bills", A), Target("mail", None), Target("mail", A, "user"),
)  # fmt: skip


def scopes(who: Who) -> set[str]:
    return {had for scope in who.scopes for had in _INCLUDED.get(scope, {scope})}


def rule_lets(rule: str, who: Who, target: Target | None) -> bool:
    """Return True if the rule lets the caller reach the target. `target` None: if the rule lets it reach any job."""
    if rule == "own":
        return who.kind in ("user", "superuser") and (target is None or who.id == target.user)
    return rule == "open"


def in_bounds(who: Who, target: Target, job_id: str | None) -> bool:
    own_topic = who.topics is None or target.topic in who.topics
    own_scope = who.jobs_of is None or who.jobs_of == (target.scope, target.user)
    return own_topic and own_scope and (who.job is None or who.job == job_id)


def is_narrow(who: Who) -> bool:
    return who.job is not None or who.jobs_of is not None


def rules_let(rules: Rules, scope: str, who: Who, target: Target | None) -> bool:
    asked = {
        "enqueue": (rules.enqueue,),
        "read": (rules.view, rules.manage),
        "cancel": (rules.cancel, rules.manage),
        "manage": (rules.manage,),
    }
    return not is_narrow(who) and any(rule_lets(rule, who, target) for rule in asked[scope])


def may(who: Who, scope: str, rules: Rules, target: Target, job_id: str | None) -> bool:
    return in_bounds(who, target, job_id) and (scope in scopes(who) or rules_let(rules, scope, who, target))


def may_enqueue(who: Who, rules: Rules, target: Target) -> bool:
    """Return True if the caller may enqueue the job. A token for a scope adds the scope that the body leaves out."""
    if who.enqueues is not None and target.topic not in who.enqueues:
        return False
    if who.jobs_of is not None:
        target = Target(target.topic, target.user or who.jobs_of[1], target.scope or who.jobs_of[0])
    return may(who, "enqueue", rules, target, None)


def may_edit(who: Who, rules: Rules, target: Target) -> bool:
    """Return True if the caller, which may manage the job, may also change its content."""
    return bool({"manage", "enqueue"} & scopes(who)) or rules_let(rules, "enqueue", who, target)


def is_edit(route: Route, ready: "Ready") -> bool:
    return route.method == "PATCH" or (route.path.endswith("/requeue") and not {*(ready.json or {})} <= {"keep_steps"})


def may_give_token(who: Who, rules: Rules, target: Target, ready: "Ready") -> bool:
    asked = ready.json or {}
    if asked.get("manage") and "manage" not in scopes(who):
        return False
    return not asked.get("cancel") or may(who, "cancel", rules, target, ready.job)


def expected(route: Route, who: Who, rules: Rules, target: Target, ready: "Ready", *, read_only: bool = False) -> int:
    """Return the status that the answer must have."""
    access, done, job_id = route.access, ready.done, ready.job
    refused = 401 if who.kind == "anonymous" else 403
    if access.kind == "probe":
        return 200
    if access.kind == "page":  # any caller may
        return done
    if access.kind == "callback":  # any client that has the address may, with any credential or none
        return 403 if read_only and route.method != "GET" else done
    if not who.good:
        return 401
    writes = access.writes if access.writes is not None else route.method != "GET"
    if writes and (read_only or who.read_only):
        return 403
    if (who.topics is not None or is_narrow(who)) and not access.bounded:
        return 403
    match access.kind:
        case "public":
            return done
        case "known":
            return done if who.kind != "anonymous" else 401
        case "scope":
            if not {access.scope, access.or_scope} & scopes(who):
                return refused
            # A token for one job or one scope may not use routes that are about whole topics.
            if is_narrow(who):
                return 403
            if route.path.startswith("/api/tokens") and "admin" not in scopes(who):
                return of_maker(route, ready)
            hides = "{fingerprint}" in route.path or route.path.startswith("/api/schedules/{id}")
            if hides and who.topics is not None and target.topic not in who.topics:
                return 404
            named = "{topic*}" in route.path or route.path in ("/api/worker/claim", "/api/stats/series")
            named = named or (route.method == "POST" and route.path in ("/api/templates", "/api/schedules"))
            return refused if named and who.topics is not None and target.topic not in who.topics else done
        case "enqueue":
            return done if may_enqueue(who, rules, target) else refused
        case "jobs":
            if access.scope not in scopes(who) and not rules_let(rules, access.scope, who, None):
                return refused
            if "{id}" not in route.path and ready.job is None:
                return done
            if not may(who, access.scope, rules, target, job_id):
                return refused if may(who, "read", rules, target, job_id) else 404
            if route.path.endswith("/clone"):
                return done if may_enqueue(who, rules, target) else refused
            if route.path.endswith("/token"):
                # A short-lived token can't make one that lasts longer, and an anonymous caller can't make any.
                if is_narrow(who) or who.kind == "anonymous":
                    return refused
                return done if may_give_token(who, rules, target, ready) else refused
            return done if not is_edit(route, ready) or may_edit(who, rules, target) else refused


def of_maker(route: Route, ready: "Ready") -> int:
    """Return the status for a caller with only the scope tokens: it makes browser tokens, and finds only its own."""
    if route.method == "DELETE":
        return 404
    return 403 if "scopes" in (ready.json or {}) else ready.done


class Ready(Struct, frozen=True):
    """A request that does what its route is for. `done`: its status if allowed. `job`: the job that it is about."""

    path: str
    json: JSON | None = None
    done: int = 200
    job: str | None = None


Prepare = Callable[[World, Target], Awaitable[Ready]]


def plain(path: str, json: JSON | None = None, done: int = 200) -> Prepare:
    async def prepare(world: World, target: Target) -> Ready:
        return Ready(path, json, done)

    return prepare


def on_job(suffix: str = "", json: JSON | None = None, done: int = 200, *, cancelled: bool = False) -> Prepare:
    async def prepare(world: World, target: Target) -> Ready:
        job_id = await world.enqueue(target.user, **target.job)
        if cancelled:
            await world.jobs.cancel(job_id)
        return Ready(f"/api/jobs/{job_id}{suffix}", json, done, job_id)

    return prepare


def on_waiting(suffix: str, json: Any = None) -> Prepare:
    """Prepare a request about a job that waits for the signal `decision`."""

    async def prepare(world: World, target: Target) -> Ready:
        job_id = await world.enqueue(target.user, **target.job, priority=next(_priorities))
        await waiting(await world.store(), job_id, seconds=3600.0)
        return Ready(f"/api/jobs/{job_id}{suffix}", json, job=job_id)

    return prepare


def on_callback(suffix: str = "", json: Any = None, *, cancelled: bool = False) -> Prepare:
    async def prepare(world: World, target: Target) -> Ready:
        job_id = await world.enqueue(target.user, **target.job, priority=next(_priorities))
        await waiting(await world.store(), job_id, callback=True)
        if cancelled:
            await world.jobs.cancel(job_id)
        token = await world.jobs._callbacks.token(Callback(job_id, "decision", 1))
        return Ready(f"/api/callbacks/{token}{suffix}", json)

    return prepare


async def _signal_key(world: World, target: Target) -> Ready:
    key = f"order-{next(_keys)}"
    job_id = await world.enqueue(target.user, **target.job, key=key)
    given = {"scope": target.scope, "scope_id": target.user}
    scope = "".join(f"&{name}={value}" for name, value in given.items() if value is not None)
    return Ready(f"/api/signals/decision?topic={target.topic}&key={key}{scope}", {"ok": True}, job=job_id)


_keys = count(1)
_priorities = count(2000)  # each job is claimed before the earlier ones


async def _enqueue(world: World, target: Target) -> Ready:
    return Ready("/api/jobs/enqueue", target.body)


async def _batch(world: World, target: Target) -> Ready:
    return Ready("/api/jobs/enqueue/batch", {"jobs": [target.body]})


async def _pause(world: World, target: Target) -> Ready:
    return Ready(f"/api/topics/{target.topic}/pause", {"reason": "test"})


async def _resume(world: World, target: Target) -> Ready:
    return Ready(f"/api/topics/{target.topic}/resume")


def of_run(verb: str, done: int = 409, **body: Any) -> Prepare:
    """Prepare a request about a run that no worker has: a caller that may use the route is told so."""
    return plain(f"/api/worker/{verb}", {"worker": "w", "id": NOWHERE, "version": 1, **body}, done)


def on_template(suffix: str, json: JSON | None = None) -> Prepare:
    async def prepare(world: World, target: Target) -> Ready:
        if all(one.template.version for one in await world.jobs.templates.list(target.topic)):
            await world.jobs.templates.create({"topic": target.topic})
        await world.jobs.templates.enable(target.topic)  # other requests enqueue jobs of this topic
        return Ready(f"/api/templates/{target.topic}{suffix}", json)

    return prepare


def on_schedule(suffix: str = "", json: JSON | None = None, done: int = 200) -> Prepare:
    async def prepare(world: World, target: Target) -> Ready:
        made = await world.jobs.schedules.put(f"on {next(_keys)}", (target.topic, {}), Every(86_400), by="test")
        return Ready(f"/api/schedules/{made.id}{suffix}", json, done)

    return prepare


async def _create_schedule(world: World, target: Target) -> Ready:
    body = {"name": f"new {next(_keys)}", "topic": target.topic, "when": {"every": 86_400}}
    return Ready("/api/schedules", body, 201)


async def _change_schedule(world: World, target: Target) -> Ready:
    body = {"topic": target.topic, "when": {"every": 3600}, "revision": 1}
    return await on_schedule("", body)(world, target)


async def _create_flow(world: World, target: Target) -> Ready:
    jobs = [{**target.body, "name": "first"}, {**target.body, "name": "second", "after": ["first"]}]
    return Ready("/api/flows", {"name": "made", "jobs": jobs}, 201)


def on_flow(suffix: str = "", json: JSON | None = None, *, cancelled: bool = False) -> Prepare:
    async def prepare(world: World, target: Target) -> Ready:
        flow = world.jobs.flow("on")
        flow.add((target.topic, {}), name="first")
        made = await flow.enqueue()
        if cancelled:
            await world.jobs.flows.cancel(made.id)
        return Ready(f"/api/flows/{made.id}{suffix}", json)

    return prepare


async def _release(world: World, target: Target) -> Ready:
    job_id = await held(world, target)
    return Ready(f"/api/jobs/{job_id}/release", job=job_id)


async def poll(world: World) -> None:
    """Claim as any worker does: a claim starts and stops jobs whose parents have ended."""
    await (await world.store()).claim(claim_by("idle", "nothing", limit=1))


async def held(world: World, target: Target) -> str:
    """Return the id of a job that a flow holds, because its parent was cancelled."""
    draft = world.jobs.flow("held")
    parent = draft.add(("other", {}))
    options = {"scope": target.scope, "scope_id": target.user}
    given = {name: value for name, value in options.items() if value is not None}
    child = draft.add({"topic": target.topic, "payload": {"of": 1}, **given}, after=parent, if_failed="hold")
    made = await draft.enqueue()
    await world.jobs.cancel(parent.id)

    async def is_held() -> bool:
        await poll(world)
        return (await world.jobs.flows.get(made.id)).held == 1

    await until(is_held)
    return child.id


def on_limit(json: JSON | None = None) -> Prepare:
    async def prepare(world: World, target: Target) -> Ready:
        name = f"limited{next(_keys)}"
        await world.jobs.limits.put(name, Concurrency(5), by="test")
        return Ready(f"/api/limits/{name}", json)

    return prepare


_versions = count(1)


async def _create_template(world: World, target: Target) -> Ready:
    return Ready("/api/templates", {"topic": target.topic, "version": next(_versions), "enabled": False}, 201)


async def _disable(world: World, target: Target) -> Ready:
    """Prepare to disable a version that no job is enqueued for."""
    version = next(_versions)
    await world.jobs.templates.create({"topic": target.topic, "version": version, "enabled": False})
    return Ready(f"/api/templates/{target.topic}/disable", {"version": version})


async def _claim(world: World, target: Target) -> Ready:
    return Ready("/api/worker/claim", {"worker": "w", "topics": [target.topic]})


async def _failure(world: World, target: Target) -> Ready:
    await world.ended(target.user, target.topic, error="ValueError: test", priority=next(_priorities))
    return Ready(f"/api/failures/{fingerprint(target.topic, 'ValueError: test')}")


async def _series(world: World, target: Target) -> Ready:
    return Ready(f"/api/stats/series?topic={target.topic}")


async def _revoke(world: World, target: Target) -> Ready:
    return Ready(f"/api/tokens/{(await world.token('short-lived', ['read'])).id}", None, 204)


async def _end_session(world: World, target: Target) -> Ready:
    cookie = (await world.session(GUEST, read_only=True)).headers["cookie"]
    return Ready(f"/api/sessions/{cookie.split('_')[2]}", None, 204)


def on_bulk(suffix: str = "", json: JSON | None = None, *, started: bool = False) -> Prepare:
    """Prepare a bulk action about no job at all: the question is only whether the caller may use the route."""

    async def prepare(world: World, target: Target) -> Ready:
        made = await world.jobs.bulk.prepare("cancel", Filter(topics=["none"]), dry_run=not started)
        return Ready(f"/api/bulk/{made.id}{suffix}", json)

    return prepare


# A request for each route, which does what the route is for. There is no default: add each new route here.
REQUESTS: dict[str, Prepare] = {
    "POST /api/jobs/enqueue": _enqueue,
    "POST /api/jobs/enqueue/batch": _batch,
    "GET /api/jobs": plain("/api/jobs"),
    "GET /api/jobs/stats": plain("/api/jobs/stats"),
    "GET /api/events": plain("/api/events?seconds=0"),
    "GET /api/jobs/{id}": on_job(),
    "PATCH /api/jobs/{id}": on_job(json={"priority": 5}),
    "DELETE /api/jobs/{id}": on_job(done=204),
    "POST /api/jobs/{id}/requeue": on_job("/requeue", cancelled=True),
    "POST /api/jobs/{id}/cancel": on_job("/cancel"),
    "POST /api/jobs/{id}/clone": on_job("/clone"),
    "POST /api/jobs/{id}/token": on_job("/token", done=201),
    "POST /api/jobs/{id}/signals/{name*}": on_waiting("/signals/decision", {"ok": True}),
    "POST /api/signals/{name*}": _signal_key,
    "POST /api/jobs/{id}/wake": on_waiting("/wake"),
    "GET /api/callbacks/{token}": on_callback(),
    "POST /api/callbacks/{token}": on_callback(json={"ok": True}),
    "POST /api/callbacks/{token}/progress": on_callback("/progress", {"percent": 5}),
    "POST /api/callbacks/{token}/heartbeat": on_callback("/heartbeat"),
    "POST /api/callbacks/{token}/acknowledge": on_callback("/acknowledge", cancelled=True),
    "GET /api/jobs/{id}/events": on_job("/events"),
    "GET /api/jobs/{id}/logs": on_job("/logs"),
    "GET /api/jobs/{id}/wait": on_job("/wait?timeout=0"),
    "GET /api/jobs/{id}/why": on_job("/why"),
    "GET /api/jobs/{id}/line": on_job("/line"),
    "POST /api/jobs/{id}/reveal": on_job("/reveal", json={"reason": "test"}),
    "GET /api/failures": plain("/api/failures"),
    "GET /api/failures/{fingerprint}": _failure,
    "GET /api/stats/series": _series,
    "GET /api/topics": plain("/api/topics"),
    "POST /api/topics/{topic*}/pause": _pause,
    "POST /api/topics/{topic*}/resume": _resume,
    "GET /api/templates": plain("/api/templates"),
    "POST /api/templates": _create_template,
    "GET /api/templates/{topic*}": on_template(""),
    "GET /api/templates/{topic*}/{version#}": on_template("/0"),
    "PATCH /api/templates/{topic*}/{version#}": on_template("/0", {"title": "mail"}),
    "POST /api/templates/{topic*}/enable": on_template("/enable"),
    "POST /api/templates/{topic*}/disable": _disable,
    "GET /api/schedules": plain("/api/schedules"),
    "POST /api/schedules": _create_schedule,
    "POST /api/schedules/preview": plain("/api/schedules/preview", {"when": {"every": 60}}),
    "GET /api/schedules/{id}": on_schedule(),
    "PUT /api/schedules/{id}": _change_schedule,
    "DELETE /api/schedules/{id}": on_schedule(done=204),
    "POST /api/schedules/{id}/pause": on_schedule("/pause"),
    "POST /api/schedules/{id}/resume": on_schedule("/resume"),
    "POST /api/schedules/{id}/run": on_schedule("/run"),
    "POST /api/schedules/{id}/backfill": on_schedule(
        "/backfill", {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}
    ),
    "GET /api/schedules/{id}/history": on_schedule("/history"),
    "GET /api/schedules/{id}/preview": on_schedule("/preview"),
    "POST /api/flows": _create_flow,
    "GET /api/flows": plain("/api/flows"),
    "GET /api/flows/{id}": on_flow(),
    "POST /api/flows/{id}/cancel": on_flow("/cancel", {"node": "first"}),
    "POST /api/flows/{id}/requeue": on_flow("/requeue", cancelled=True),
    "DELETE /api/flows/{id}": on_flow(cancelled=True),
    "POST /api/jobs/{id}/release": _release,
    "GET /api/limits": plain("/api/limits"),
    "GET /api/limits/{name*}": on_limit(),
    "PUT /api/limits/{name*}": on_limit({"limit": {"kind": "concurrency", "max": 7}}),
    "DELETE /api/limits/{name*}": on_limit(),
    "GET /api/workers": plain("/api/workers"),
    "GET /api/audit": plain("/api/audit?limit=200"),
    "GET /api/tokens": plain("/api/tokens"),
    "POST /api/tokens": plain("/api/tokens", {"name": "made", "scopes": ["read"]}, 201),
    "DELETE /api/tokens/{token_id}": _revoke,
    "GET /api/settings": plain("/api/settings"),
    "PATCH /api/settings": plain("/api/settings", {"worker_pool_size": 11}),
    "POST /api/access/explain": plain("/api/access/explain", {"action": "manage"}),
    "POST /api/auth/login": plain("/api/auth/login", {"email": GUEST, "password": PASSWORD}),
    # There are superusers already, so this route answers 404.
    "POST /api/auth/setup": plain(
        "/api/auth/setup", {"token": "x", "email": "x@example.com", "password": PASSWORD}, 404
    ),
    "POST /api/auth/logout": plain("/api/auth/logout", done=204),
    "GET /api/auth/me": plain("/api/auth/me"),
    "GET /api/sessions": plain("/api/sessions"),
    "DELETE /api/sessions/{session_id}": _end_session,
    "POST /api/worker/claim": _claim,
    "POST /api/worker/heartbeat": plain(
        "/api/worker/heartbeat", {"worker": "w", "runs": [{"id": NOWHERE, "version": 1}]}
    ),
    "POST /api/worker/progress": of_run("progress", 200),
    "POST /api/worker/log": of_run("log", 200, lines=[{"text": "x"}]),
    "POST /api/worker/steps": of_run("steps"),
    "POST /api/worker/checkpoint": of_run("checkpoint", name="split", position=1, state="running"),
    "POST /api/worker/wait": of_run("wait", signal="decision", position=1),
    "POST /api/worker/callback": of_run("callback", signal="decision", position=1),
    "POST /api/worker/retry-step": of_run("retry-step", step="split", delay=1, error="x"),
    "POST /api/worker/complete": of_run("complete"),
    "POST /api/worker/fail": of_run("fail", error="x"),
    "POST /api/worker/snooze": of_run("snooze", seconds=1),
    "POST /api/worker/release": of_run("release"),
    "POST /api/worker/give-up": of_run("give-up"),
    "POST /api/worker/settle": plain(
        "/api/worker/settle", {"worker": "w", "ends": [{"id": NOWHERE, "version": 1, "end": "complete"}]}
    ),
    "POST /api/worker/goodbye": plain("/api/worker/goodbye", {"worker": "w"}, 204),
    "POST /api/bulk": plain("/api/bulk", {"action": "cancel", "filter": {"topic": ["none"]}}, 201),
    "GET /api/bulk": plain("/api/bulk"),
    "GET /api/bulk/{id}": on_bulk(),
    "POST /api/bulk/{id}/start": on_bulk("/start"),
    "POST /api/bulk/{id}/stop": on_bulk("/stop", started=True),
    "GET /api/bulk/{id}/items": on_bulk("/items"),
    "GET /healthz": plain("/healthz"),
    "GET /readyz": plain("/readyz"),
    "GET /metrics": plain("/metrics"),
    "GET /api/openapi.json": plain("/api/openapi.json"),
    "GET /": plain("/", done=307),
    "GET /_": plain("/_/"),
    "GET /_/setup": plain("/_/setup"),
    "GET /_/me": plain("/_/me"),
    "GET /_/{name}": plain("/_/icon.svg"),
}


# Other requests to some of the routes, which other callers may make.
MORE: list[tuple[str, Prepare]] = [
    ("PATCH /api/jobs/{id}", on_job(json={"payload": {"amount": 1}})),
    ("POST /api/jobs/{id}/requeue", on_job("/requeue", {"payload": {"amount": 1}}, cancelled=True)),
    ("POST /api/jobs/{id}/requeue", on_job("/requeue", {"delay": 5}, cancelled=True)),
    ("POST /api/jobs/{id}/requeue", on_job("/requeue", {"keep_steps": False}, cancelled=True)),
    ("POST /api/jobs/{id}/clone", on_job("/clone", {"payload": {"amount": 1}})),
    ("POST /api/jobs/{id}/token", on_job("/token", {"cancel": True}, 201)),
    ("POST /api/jobs/{id}/token", on_job("/token", {"manage": True}, 201)),
    ("POST /api/tokens", plain("/api/tokens", {"scope": "user", "scopeId": A, "enqueue": ["mail"]}, 201)),
]


def every_request() -> Iterator[tuple[str, Prepare]]:
    yield from REQUESTS.items()
    yield from MORE


def signature(route: Route) -> str:
    return f"{route.method} {route.path}"


def by_name() -> dict[str, Route]:
    return {signature(route): route for route in ROUTES}
