"""rowlock's HTTP API beside a Django application, for the users who are logged in there: an asgi.py.

ROWLOCK_URL=sqlite:///jobs.db uvicorn --app-dir examples/http django_app:app

Access rules are settings in the database. Without rules, users may do nothing. These rules let users enqueue, see and
cancel their own jobs:

own='scope_id = @request.auth.id'
rowlock settings set enqueue_rule="$own" view_rule="$own" cancel_rule="$own"
"""

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from rowlock import Jobs
from rowlock.http.request import Request

Message = MutableMapping[str, Any]
PREFIX = "/queue"
jobs = Jobs()  # ROWLOCK_URL

settings.configure(  # in your own project: settings.py
    SECRET_KEY=secrets.token_hex(),
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
)
django.setup()


@jobs.task
async def report(title: str) -> str:
    return f"a report on {title}"


def login(request: HttpRequest, user: str) -> HttpResponse:
    request.session["user"] = user  # a stand-in for the application's login
    return HttpResponse()


def order(request: HttpRequest, title: str) -> HttpResponse:
    user = request.session.get("user")
    if user is None:
        return HttpResponse(status=401)
    made = report.sync.using(scope="user", scope_id=user).enqueue(title)
    return JsonResponse({"id": made.id})


def home(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"application": "django"})


urlpatterns = [path("", home), path("login/<user>", login), path("reports/<title>", order)]


async def claims(request: Request) -> dict[str, str] | None:
    """Return @request.auth of the rules. Django's middleware does not run here, but its sessions can be read."""
    store = import_module(settings.SESSION_ENGINE).SessionStore(request.cookie(settings.SESSION_COOKIE_NAME))
    user = await store.aget("user")
    return None if user is None else {"id": user}


pages, queue = get_asgi_application(), jobs.asgi(authenticate=claims)


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["type"] == "lifespan":  # Django doesn't handle it
        await live(receive, send)
    elif scope["type"] == "http" and f"{scope['path']}/".startswith(f"{scope.get('root_path', '')}{PREFIX}/"):
        await queue({**scope, "root_path": scope.get("root_path", "") + PREFIX}, receive, send)
    else:
        await pages(scope, receive, send)


async def live(receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]) -> None:
    await receive()
    async with jobs:
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})
