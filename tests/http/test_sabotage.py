"""Every defence of the server is needed: with it a probe is green, without it the same probe is red."""

from pathlib import Path

import pytest

from tests.http.conftest import place_of, world_of
from tests.http.sabotage import DEFENCES, Defence


async def probe(defence: Defence, request: pytest.FixtureRequest, folder: Path) -> None:
    if defence.fresh:
        async with place_of(defence.store, request, folder) as place:
            await defence.probe(place)
    else:
        async with world_of(defence.store, request, folder) as world:
            await defence.probe(world)


# These probes try every route as every caller, twice: a minute each.
LONG = ("A1, by scope", "A1, by rule", "A1, who may is checked")


@pytest.mark.timeout(400)
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "defence",
    [pytest.param(one, marks=pytest.mark.proof) if str(one) in LONG else one for one in DEFENCES],
    ids=str,
)
async def test_a_defence_is_needed(defence: Defence, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for name in ("on", "off"):
        (tmp_path / name).mkdir()
    await probe(defence, request, tmp_path / "on")
    with pytest.MonkeyPatch.context() as patch:
        defence.off(patch)
        # Any other exception is a mistake in the sabotage itself.
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            await probe(defence, request, tmp_path / "off")


def test_every_part_of_the_checklist_that_is_the_servers_is_here() -> None:
    wanted = {"A1", "A2", "A3", "A4", "A5", "A6", "A7", "A9", "A10", "A12", "A13", "A15", "A18", "A19"}
    assert {defence.number for defence in DEFENCES} == wanted
