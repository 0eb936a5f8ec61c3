"""Secrets that the server gives away: hard to guess, easy to tell from a mistyped one, never shown by accident."""

import re

import pytest

from rowlock.access import secrets


@pytest.mark.parametrize("kind", secrets.KINDS)
def test_what_was_issued_is_known_again(kind: str) -> None:
    issued = secrets.issue(kind)
    shown = secrets.read(kind, issued.text)
    assert shown
    assert shown.id == issued.id
    assert shown.matches(issued.hash)
    assert secrets.is_id(issued.id)


def test_each_is_another() -> None:
    made = [secrets.issue("token") for _ in range(1000)]
    assert len({one.text for one in made}) == len({one.id for one in made}) == len({one.hash for one in made}) == 1000


def test_a_scanner_can_tell_it() -> None:
    """A secret has a form that scanners find. Its 43 random characters are enough: 62**43 is more than 2**256."""
    assert re.fullmatch(r"rlk_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}", secrets.issue("token").text)


def test_one_kind_is_not_taken_for_another() -> None:
    for kind in secrets.KINDS:
        text = secrets.issue(kind).text
        assert [other for other in secrets.KINDS if secrets.read(other, text)] == [kind]


def test_any_mistyped_character_is_noticed() -> None:
    text = secrets.issue("token").text
    for at in range(len(text)):
        wrong = text[:at] + ("a" if text[at] != "a" else "b") + text[at + 1 :]
        assert secrets.read("token", wrong) is None


@pytest.mark.parametrize("text", [None, "", 7, b"rlk_", "rlk_", "x" * 100_000, "rlk_" + "é" * 12 + "_" + "a" * 49])
def test_what_is_none_of_ours_is_none(text: object) -> None:
    assert secrets.read("token", text) is None


@pytest.mark.parametrize("text", ["", "a" * 11, "a" * 13, "aaaaaaaaaaa\0", "aaaaaaaaaaa\n", "a" * 12 + "\n", "é" * 12])
def test_what_is_no_id_of_ours_is_none(text: str) -> None:
    assert not secrets.is_id(text)


def test_it_does_not_show_itself() -> None:
    issued = secrets.issue("token")
    assert issued.text not in repr(issued)
    assert issued.hash not in repr(issued)
