"""A worker in nothing but Python's standard library: the whole protocol in forty lines.

    ROWLOCK_API=http://127.0.0.1:8090 ROWLOCK_TOKEN=rlk_… python worker.py greet
"""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

API, TOKEN = os.environ["ROWLOCK_API"], os.environ["ROWLOCK_TOKEN"]
ME, LEASE = f"plain-{os.getpid()}", 10.0


def ask(what: str, **body: Any) -> Any:
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    data = json.dumps({"worker": ME, **body}).encode()
    request = urllib.request.Request(f"{API}/api/worker/{what}", data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def keep(run: dict[str, Any], over: threading.Event) -> None:
    """Renew the lease until the run is over, whatever the handler does meanwhile."""
    while not over.wait(LEASE / 3):
        [told] = ask("heartbeat", runs=[run], lease=LEASE)["items"]
        if told["hold"] != "kept":
            os._exit(1)  # cancelled, or somebody else's: the simplest way to stop a handler


def handle(job: dict[str, Any]) -> Any:
    return f"hello {job['payload']['name']}"


while True:
    for job in ask("claim", topics=sys.argv[1:], lease=LEASE, wait=20)["items"]:
        run, over, began = {"id": job["id"], "version": job["version"]}, threading.Event(), time.monotonic()
        threading.Thread(target=keep, args=(run, over), daemon=True).start()
        try:
            outcome, said = "complete", {"result": handle(job)}
        except Exception as error:
            outcome, said = "fail", {"error": repr(error)}
        over.set()
        try:
            ask(outcome, **run, **said, ran=time.monotonic() - began)
        except urllib.error.HTTPError as refused:
            print(f"{job['id']}: {refused.read().decode()}", file=sys.stderr)  # 409: it was taken from us
