"""The demo: lines in a pipe, a picture on a terminal, a summary and exit code 0 in any case."""

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rowlock import Jobs
from rowlock.cli.demo_past import make_up

DEMO = [sys.executable, "-m", "rowlock", "demo"]
PAGE = re.compile(r"Open the page: http://127\.0\.0\.1:\d+/_/setup#rlo_\S+&email=\S+&password=\S+$")
SUMMARY = re.compile(
    r"\d+ jobs in \d+ s: \d+ completed, \d+ failed, \d+ cancelled, \d+ not done yet"
    r"(, \d+ of them waiting for a decision)?$"
)


def test_it_tells_what_happens_and_sums_up() -> None:
    running = subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert PAGE.match(running.stdout.readline())
    assert "invented past" in running.stdout.readline()
    assert "waits there for your decision" in running.stdout.readline()
    assert running.stdout.readline() == "\n"
    awaited = {("mail.send", "completed"), ("payment.check", "waits"), ("refund.approve", "waiting")}
    while awaited:
        _, _, topic, status, *_ = running.stdout.readline().split()
        awaited.discard((topic, status))
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, "")
    assert SUMMARY.match(output.splitlines()[-1])


def test_without_the_server_it_says_how_to_get_the_page() -> None:
    bare = "import sys; sys.modules['uvicorn'] = None; from rowlock.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", bare, "demo", "--for", "0.1"], capture_output=True, text=True, timeout=100
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "a page" in ended.stdout.splitlines()[0]
    assert "pip install 'rowlock[server]'" in ended.stdout.splitlines()[0]


def test_ctrl_c_ends_it_politely(tmp_path: Path) -> None:
    running = subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert running.stdout is not None
    running.stdout.readline()  # the demo has printed an event
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, "")
    assert SUMMARY.match(output.splitlines()[-1])
    assert list(tmp_path.iterdir()) == []  # the demo has deleted its database


def test_on_a_terminal_it_draws_a_picture() -> None:
    ours, theirs = pty.openpty()
    running = subprocess.Popen([*DEMO, "--for", "2"], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = b""
    try:
        while piece := os.read(ours, 65_536):
            output += piece
    except OSError:  # the demo has closed its end
        pass
    os.close(ours)
    assert running.wait(60) == 0
    picture = output.decode()
    assert "rowlock demo" in picture
    assert "what happens" in picture
    assert "mail.send" in picture
    assert SUMMARY.search(picture.rstrip())


def test_another_database_is_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/kept.db"
    ended = subprocess.run([*DEMO, "--for", "1", "--url", url], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    stats = [sys.executable, "-m", "rowlock", "stats", "--url", url]
    assert "mail.send" in subprocess.run(stats, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("second", [0, 1, 37, 59])
async def test_the_past_that_is_made_up_leads_up_to_now(tmp_path: Path, second: int) -> None:
    """The charts of the made-up past join the demo without a gap, also in the middle of a minute."""
    async with Jobs(f"sqlite:///{tmp_path}/past.db") as jobs:
        now = int(time.time() - 600) // 60 * 60 + second
        await asyncio.to_thread(make_up, tmp_path / "past.db", float(now))
        until = datetime.fromtimestamp(now, UTC)
        found = await jobs.series(since=until - timedelta(hours=1), until=until, step=60)
    full = [point for point in found.points if point.at <= until - timedelta(minutes=1)]
    for name in ("enqueued", "completed", "failed", "retried"):
        usual = sum(getattr(point, name) for point in full) / len(full)
        for point in found.points:
            lasted = min(60.0, max(1.0, (until - point.at).total_seconds()))
            if lasted >= 30:
                assert 0.5 < getattr(point, name) / usual * 60 / lasted < 1.7, (name, point.at)
    enqueued = sum(point.enqueued for point in full) / len(full)
    assert enqueued == pytest.approx(441, rel=0.1)  # as many as the demo's customers enqueue in a minute
