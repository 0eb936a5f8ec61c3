"""A worker that needs only Python's standard library: the whole protocol, with steps and waits, in about
ninety lines.

ROWLOCK_API=http://127.0.0.1:8090 ROWLOCK_TOKEN=rlk_… python worker.py greet
"""

import http.client
import json
import os
import signal
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any

API, TOKEN = os.environ["ROWLOCK_API"], os.environ["ROWLOCK_TOKEN"]
LEASE = float(os.environ.get("ROWLOCK_LEASE", "30"))
ME = f"plain-{os.getpid()}-{os.urandom(4).hex()}"  # a new name for each process
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())


def handle(job: dict[str, Any], step: "Steps", unwanted: threading.Event) -> Any:
    greeting = step("compose", compose, job["payload"])  # runs once, also if this worker is killed after it
    if wanted := job["payload"].get("signal"):
        try:
            greeting += f", {step.wait_for(wanted, timeout=3600)}"  # the run ends here, and goes on with the signal
        except Cancelled:
            step("take back", print, "taken back", flush=True)  # a cancelled job undoes what was done
            raise
    if unwanted.wait(job["payload"].get("seconds", 0)):  # a long handler checks this now and then
        raise InterruptedError("told to stop")
    return greeting


def compose(payload: dict[str, Any]) -> str:
    return f"hello {payload['name']}"


def ask(verb: str, patience: float = 1e6, **body: Any) -> Any:
    """Repeat the request until the server answers: every request may be repeated. Return None if the run is lost, or if
    the server can't be reached."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{API}/api/worker/{verb}", json.dumps({"worker": ME, **body}).encode(), headers)
    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(request, timeout=min(patience, 60)) as answer:
                return json.loads(answer.read() or "{}")
        except urllib.error.HTTPError as refused:
            if refused.code == 409:
                return None
            if refused.code < 500 and refused.code != 429:
                raise  # this worker made a mistake
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(1)
    return None


class Waiting(BaseException):
    """The run has ended here: the job waits, and a worker claims it again."""


class Cancelled(Exception):
    """The job was cancelled while it waited."""


class Steps:
    """Runs the steps of a job. A step that an earlier run has finished returns its stored result instead."""

    def __init__(self, job: dict[str, Any], run: dict[str, Any]) -> None:
        stored = ask("steps", **run)["items"] if job["step"] is not None else []
        self._done = {(one["name"], one["n"]): one["result"] for one in stored if one["state"] == "succeeded"}
        self._calls: Counter[str] = Counter()
        self._run = run

    def wait_for(self, signal: str, **terms: Any) -> Any:
        """Return the data of a signal. If there is none yet, end the run."""
        self._calls[f"@{signal}"] += 1  # a wait has a place among the steps
        place = {"n": self._calls[f"@{signal}"], "position": self._calls.total()}
        told = ask("wait", **self._run, **place, signal=signal, **terms) or {"state": "waiting"}
        if told["state"] == "waiting":
            raise Waiting
        if told["state"] == "cancelled":
            raise Cancelled("while it waited")
        if told["state"] == "timed_out":
            raise TimeoutError(f"the signal {signal} did not come")
        return told["data"]

    def __call__(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._calls[name] += 1
        step, began = (name, self._calls[name]), time.monotonic()
        if step not in self._done:
            result = self._done[step] = function(*args, **kwargs)
            said = {"name": name, "n": step[1], "position": self._calls.total(), "ran": time.monotonic() - began}
            if ask("checkpoint", **self._run, **said, state="succeeded", result=result) is None:
                raise InterruptedError("the run is lost: its step was not stored")
        return self._done[step]


def work(job: dict[str, Any]) -> None:
    run, hold = {"id": job["id"], "version": job["version"]}, "kept"
    unwanted, over = threading.Event(), threading.Event()

    def keep() -> None:
        """Renew the lease in a thread, until the run is over, cancelled or lost."""
        nonlocal hold
        renewed = time.monotonic()
        while hold == "kept" and not over.wait(0.1):
            if time.monotonic() > renewed + LEASE / 3:
                renewed = time.monotonic()
                told = ask("heartbeat", LEASE / 2, runs=[run], lease=LEASE)
                hold = told["items"][0]["hold"] if told else "lost"
                if hold == "cancel" and job["status"] == "cancel_requested":
                    hold = "kept"  # this run undoes something: the wait tells the handler
            elif stopping.is_set():
                hold = "stopping"
        unwanted.set()

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        verb, said = "complete", {"result": handle(job, Steps(job, run), unwanted)}
    except Waiting:
        verb, said = "", {}
    except Cancelled:
        verb, said = "give-up", {}
    except Exception:
        verb, said = "fail", {"error": traceback.format_exc()}
        if hold in ("cancel", "stopping"):
            verb, said = "give-up" if hold == "cancel" else "release", {}
    over.set()
    keeper.join()
    if hold != "lost" and verb:
        try:
            ask(verb, **run, **said)
        except urllib.error.HTTPError as refused:  # for example, the result is too large
            ask("fail", **run, error=f"refused: {refused}", final=True)


while not stopping.is_set():
    for claimed in (ask("claim", 60, topics=sys.argv[1:], lease=LEASE, wait=20, runs=[]) or {"items": []})["items"]:
        work(claimed)
ask("goodbye", 5)
