"""The random part of ids: no piece is given twice, not even after fork()."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from rowlock.client.random_bytes import noise


def test_any_count() -> None:
    assert [len(noise(count)) for count in (0, 1, 8, 16, 8000)] == [0, 1, 8, 16, 8000]


def test_every_piece_is_given_once_also_to_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        pieces = [piece for some in pool.map(lambda _: [noise(8) for _ in range(50)], range(400)) for piece in some]
    assert len(set(pieces)) == len(pieces) == 20_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork() here")
def test_a_child_has_none_of_its_parents() -> None:
    noise(8)  # the parent has a stock of random bytes now
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b"".join(noise(8) for _ in range(300)))
        os._exit(0)
    os.close(writing)
    ours = {noise(8) for _ in range(300)}
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    theirs = {data[at : at + 8] for at in range(0, len(data), 8)}
    assert len(theirs) == 300
    assert not ours & theirs
