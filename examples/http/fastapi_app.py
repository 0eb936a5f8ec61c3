"""rowlock's HTTP API inside a FastAPI application, for the users who are logged in there.

ROWLOCK_URL=sqlite:///jobs.db uvicorn --app-dir examples/http fastapi_app:app

Access rules are settings in the database. Without rules, users may do nothing. These rules let users enqueue, see and
cancel their own jobs:

own='scope_id = @request.auth.id'
rowlock settings set enqueue_rule="$own" view_rule="$own" cancel_rule="$own"
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Response
from fastapi.requests import HTTPConnection

from rowlock import Jobs

jobs = Jobs()  # ROWLOCK_URL
sessions: dict[str, str] = {}  # cookie → user: a stand-in for the application's login


@jobs.task
async def report(title: str) -> str:
    return f"a report on {title}"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with jobs:
        yield


app = FastAPI(lifespan=lifespan)


def user_of(connection: HTTPConnection) -> str | None:
    return sessions.get(connection.cookies.get("session", ""))


@app.post("/login/{user}")
async def login(user: str, response: Response) -> None:
    cookie = secrets.token_urlsafe()
    sessions[cookie] = user
    response.set_cookie("session", cookie, httponly=True, samesite="lax")


@app.post("/reports/{title}")
async def order(title: str, user: Annotated[str | None, Depends(user_of)]) -> dict[str, str]:
    if user is None:
        raise HTTPException(401)
    made = await report.using(scope="user", scope_id=user).enqueue(title)
    return {"id": made.id}


@app.get("/")
async def home() -> dict[str, str]:
    return {"application": "fastapi"}


def claims(request: HTTPConnection) -> dict[str, str] | None:
    user = user_of(request)
    return None if user is None else {"id": user}  # @request.auth in the rules


app.mount("/queue", jobs.asgi(authenticate=lambda request: claims(HTTPConnection(request.scope))))
