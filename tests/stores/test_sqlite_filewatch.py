"""Where the operating system can report writes to a file, a store need not poll the file all the time."""

import sys
import threading
from pathlib import Path

import pytest

from rowlock.errors import StoreClosed
from rowlock.stores.sqlite import filewatch
from rowlock.stores.sqlite.doorbell import Doorbell, Look, Watcher
from rowlock.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="inotify or kqueue")


def test_a_write_and_a_call_end_the_wait(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    watch = filewatch.watch(str(file))
    assert watch is not None
    assert not watch.wait(0.01)
    with file.open("ab") as other:
        other.write(b"more")
    assert watch.wait(60)
    threading.Timer(0.05, watch.wake).start()
    assert watch.wait(60)
    assert not watch.wait(0.01)  # the first wait has consumed all events
    watch.close()


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_file_that_is_not_there_is_not_watched(tmp_path: Path) -> None:
    before = descriptors()
    assert filewatch.watch(str(tmp_path / "missing")) is None
    assert descriptors() == before


async def test_without_it_the_store_asks_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filewatch, "watch", lambda path: None)
    store, other = SqliteStore(tmp_path / "jobs.db"), SqliteStore(tmp_path / "jobs.db")
    await store.migrate()
    await store.open()
    await other.open()
    while await store.wait_for_work(0.05):
        pass
    await other.ring()
    assert await store.wait_for_work(60)
    await store.close()
    await other.close()


def test_the_watch_is_open_as_long_as_somebody_may_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watching thread may end before a caller wakes it. By then, a closed descriptor may belong to another file."""
    ended = threading.Event()

    class Watch:
        closed = False

        def wait(self, timeout: float) -> bool:
            return False

        def wake(self) -> None:
            assert ended.wait(60)
            assert not self.closed

        def close(self) -> None:
            self.closed = True

    watch = Watch()
    monkeypatch.setattr(filewatch, "watch", lambda path: watch)
    doorbell = Doorbell()
    watcher = Watcher(doorbell, lambda: Look(0, 1), ended.set, "log")
    doorbell.close(StoreClosed("closed"))
    watcher.stop()
    assert watch.closed
