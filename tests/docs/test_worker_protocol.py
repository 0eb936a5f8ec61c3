"""The requests of docs/worker-protocol.md, one after the other, get the answers that the page shows."""

import json
import re
from pathlib import Path
from typing import Any

from rowlock import Jobs
from rowlock.access import tokens
from tests.http.harness import Place, Who, World, bearer

PAGE = Path(__file__).parent.parent.parent / "docs" / "worker-protocol.md"
EXAMPLE = re.compile(r"^<!-- run -->\n```http\nPOST (\S+)\n(.*?)\n\n(\d+)\n(.*?)```", re.MULTILINE | re.DOTALL)


def differ(wanted: Any, found: Any, at: str = "$") -> list[str]:
    """Return the differences between two JSON values. A wanted … matches any value."""
    if wanted == "…" or wanted == found:
        return []
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted.keys() == found.keys():
        return [text for name in wanted for text in differ(wanted[name], found[name], f"{at}.{name}")]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [text for n in range(len(wanted)) for text in differ(wanted[n], found[n], f"{at}[{n}]")]
    return [f"{at}: {found!r}, not {wanted!r}"]


async def test_the_requests_of_the_page_are_answered_as_it_says(tmp_path: Path) -> None:
    examples = EXAMPLE.findall(PAGE.read_text("utf-8"))
    assert [path.rpartition("/")[2] for path, *_ in examples] == [
        "claim", "heartbeat", "progress", "log", "checkpoint", "steps", "fail", "claim", "complete", "complete",
        "goodbye",
    ]  # fmt: skip
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with Jobs(url) as jobs:
        world = World(Place("sqlite", url), jobs)
        job_id = (await jobs.enqueue("video", {"file": 17})).id
        _, text = await tokens.create(await jobs._store(), "crunchers", ["worker"], by="test", topics=["video"])
        for path, body, status, wanted in examples:
            answer = await world.post(Who("crunchers", bearer(text)), path, json.loads(body.replace("…", job_id)))
            assert answer.status_code == int(status), answer.text
            assert differ(json.loads(wanted or "null"), json.loads(answer.text or "null")) == []
        world.api.stop()
        job = await jobs.get(job_id)
        assert (job.status, job.result) == ("completed", {"frames": 1024})
