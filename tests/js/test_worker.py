"""Workers in JavaScript, against a real server. The tests themselves are in js/test."""

import pytest

from tests.js.conftest import Served


@pytest.mark.parametrize("test", ["worker", "worker-steps", "worker-program"])
def test_worker(served: Served, test: str) -> None:
    served.run(f"{test}.test.js")
