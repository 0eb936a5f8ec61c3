"""A page that starts a job, shows its progress and cancels it. README.md says how to run it.

The page calls rowlock itself. It has a token for the jobs of its user, which this program gives it.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Cookie, Depends, FastAPI, HTTPException
from fastapi.responses import FileResponse, PlainTextResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles

from rowlock import Context, Jobs

HERE = Path(__file__).parent
SDK = HERE.parent.parent / "js" / "dist"  # or node_modules/rowlock/dist
TTL = float(os.environ.get("TOKEN_TTL", "900"))  # seconds; the page gets a new token when this one has ended

jobs = Jobs(os.environ.get("ROWLOCK_URL", "sqlite:///jobs.db"))
sessions: dict[str, str] = {}  # cookie → user: a stand-in for the login that you have


@jobs.task
async def render(ctx: Context, film: str, frames: int = 60) -> dict[str, str | int]:
    for frame in range(frames):
        await asyncio.sleep(0.1)  # the work; a cancel interrupts it
        ctx.progress(100 * (frame + 1) / frames, message=f"frame {frame + 1} of {frames}")
    return {"film": film, "frames": frames}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with jobs:
        await jobs.start()  # a worker in this process
        yield


app = FastAPI(lifespan=lifespan)


def logged_in(session: Annotated[str | None, Cookie()] = None) -> str:
    user = sessions.get(session or "")
    if user is None:
        raise HTTPException(401, "log in first")
    return user


User = Annotated[str, Depends(logged_in)]


@app.post("/login/{user}")
async def login(user: str) -> RedirectResponse:
    cookie = secrets.token_urlsafe()
    sessions[cookie] = user
    answer = RedirectResponse("/", status_code=303)
    answer.set_cookie("session", cookie, httponly=True, samesite="lax")
    return answer


@app.get("/token")
async def token(user: User) -> PlainTextResponse:
    """Give the page a token: for the jobs of this user, and for nothing else."""
    made = await jobs.tokens.create(scope="user", scope_id=user, enqueue=["render"], cancel=True, ttl=TTL)
    return PlainTextResponse(made.token, headers={"cache-control": "no-store"})


@app.get("/")
async def page(session: Annotated[str | None, Cookie()] = None) -> FileResponse:
    return FileResponse(HERE / ("page.html" if session in sessions else "login.html"))


app.mount("/static/rowlock", StaticFiles(directory=SDK))
app.mount("/static", StaticFiles(directory=HERE / "static"))
app.mount("/queue", jobs.asgi())
