"""Time zones by name, and the version of their data."""

import re
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rowlock import zones
from rowlock.errors import InvalidInput
from rowlock.zones import zone, zone_data


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Clear the caches, so that each test finds the version of the data anew."""
    zone_data.cache_clear()
    zones._ignores_case.cache_clear()
    yield
    zone_data.cache_clear()
    zones._ignores_case.cache_clear()


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+12", "EST5EDT"])
def test_zones_are_found(name: str) -> None:
    assert zone(name) == ZoneInfo(name)
    assert zone(name) is zone(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Europe/Berln", "there is no time zone Europe/Berln. Did you mean Europe/Berlin"),
        ("europe/berlin", "Did you mean Europe/Berlin?"),
        ("Asia/Taipai", "Did you mean Asia/Taipei?"),
        ("Taipei", "Did you mean Asia/Taipei?"),
        ("New_York", "Did you mean America/New_York?"),
        ("America/Berlin", "Did you mean Europe/Berlin?"),
        ("PST", "Use a name of the IANA, like Europe/Berlin or UTC"),
        ("Mars/Base", "Use a name of the IANA"),
        ("Europe", "there is no time zone Europe"),
        ("UTC+2", "there is no time zone UTC+2"),
        ("localtime", "localtime is not the same zone on every machine"),
        ("posixrules", "is not the same zone on every machine"),
        ("right/Europe/Berlin", "is not the same zone on every machine"),
        ("tzdata.zi", "is no name of a time zone"),
        ("leapseconds", "there is no time zone leapseconds"),
    ],
)
def test_unknown_zones(name: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        zone(name)
    assert caught.value.field == "when.zone"
    assert text in caught.value.problem


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", "bad_length"),
        ("x" * 65, "bad_length"),
        ("../etc/passwd", "bad_characters"),
        ("Europe/../Europe/Berlin", "bad_characters"),
        ("/etc/localtime", "bad_characters"),
        ("/usr/share/zoneinfo/UTC", "bad_characters"),
        ("Europe//Berlin", "bad_characters"),
        ("Europe/Berlin/", "bad_characters"),
        ("Europe\\Berlin", "bad_characters"),
        ("Europe/Berlin\n", "bad_characters"),
        ("Europe/Berlin\0", "bad_characters"),
        ("Europe/Zürich", "bad_characters"),
        ("\ud800", "bad_characters"),
        (None, "not_text"),
        (2, "not_text"),
    ],
)
def test_names_that_are_no_names(name: Any, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        zone(name)
    assert caught.value.code == code
    str(caught.value).encode()


def test_the_field_can_be_named() -> None:
    with pytest.raises(InvalidInput, match=r"^zone: there is no"):
        zone("Nowhere/Here", "zone")


def test_every_known_zone_has_a_name_that_is_accepted() -> None:
    for name in zones._names():
        assert zone(name).key == name


def test_the_version_of_the_data() -> None:
    assert re.fullmatch(r"[0-9]{4}[a-z]{1,2}|", zone_data())


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"Europe/Berlin": "", "tzdata.zi": "# version 2031c\nR d 1916\n"}, "2031c"),
        ({"Europe/Berlin": "", "+VERSION": "2031d\n"}, "2031d"),
        ({"Europe/Berlin": "", "tzdata.zi": "# redo posix_only\n", "+VERSION": "2031e\n"}, "2031e"),
        ({"Europe/Berlin": ""}, ""),
    ],
)
def test_the_version_is_read_where_the_zones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], version: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(zoneinfo, "TZPATH", (str(tmp_path / "none"), str(tmp_path)))
    assert zone_data() == version


def test_without_the_systems_data_the_packages_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoneinfo, "TZPATH", (str(tmp_path),))
    assert re.fullmatch(r"20[0-9]{2}[a-z]", zone_data())


def test_case_counts_where_the_file_system_ignores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zones, "ZoneInfo", lambda name: ZoneInfo("Europe/Berlin"))
    monkeypatch.setattr(zones, "_ignores_case", lambda: True)
    with pytest.raises(InvalidInput, match=r"Did you mean Europe/Berlin\?"):
        zone("europe/BERLIN")
