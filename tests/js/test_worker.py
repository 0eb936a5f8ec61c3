"""Workers in JavaScript, against a real server. The tests themselves are in js/test."""

import pytest

from tests.js.conftest import Served

pytestmark = pytest.mark.timeout(300)  # a busy machine starts the many Node and Python processes slowly


@pytest.mark.parametrize("test", ["worker", "worker-steps", "worker-program"])
def test_worker(served: Served, test: str) -> None:
    served.run(f"{test}.test.js")


@pytest.mark.proof
def test_the_worker_ends_a_process_whose_loop_stays_blocked(served: Served) -> None:
    served.run("worker-program.test.js", ROWLOCK_TEST_SLOW="1")
