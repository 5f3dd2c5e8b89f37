"""Names of clients: what a rule could misread is not part of one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.access.name import NAME_CHARS_MAX, check_name, is_name, quoted
from headwater.errors import Malformed
from headwater.topics.name import is_wild


@pytest.mark.parametrize("name", ["a", "sensor-7", "Küche", "a b", "a,b=c", "x" * NAME_CHARS_MAX, "a$", "日本", "a@b"])
def test_a_plain_name_is_taken_as_it_is(name: str):
    assert check_name(name) == name
    assert is_name(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("x" * (NAME_CHARS_MAX + 1), "at most 64"),
        ("a/b", "contains /"),
        ("+", "contains +"),
        ("a#", "contains #"),
        ("*", "contains *"),
        ("%u", "contains %"),
        ("a%", "contains %"),
        ("$SYS", "begins with \\$"),
        ("a\0", "control"),
        ("a\nb", "control"),
        ("a\x7f", "control"),
        ("a\u202eb", "invisible"),
        ("a\u200bb", "invisible"),
        ("a\udcff", "invisible"),
        ("a\u2028", "invisible"),
        (" a", "space"),
        ("a ", "space"),
        (b"a", "not bytes"),
        (None, "not NoneType"),
    ],
)
def test_any_other_is_refused_and_the_error_says_why(name: Any, why: str):
    with pytest.raises(Malformed, match=why):
        check_name(name)
    assert not is_name(name)


def test_names_that_look_the_same_are_the_same():
    assert check_name("Ku\u0308che") == "K\u00fcche"
    assert not is_name("Ku\u0308che")


def test_a_name_that_grows_in_normal_form_is_measured_there():
    assert len("\ufb2c" * 30) == 30
    with pytest.raises(Malformed, match="normal form"):
        check_name("\ufb2c" * 30)  # three characters each in normal form


@given(st.text(max_size=70))
def test_whatever_is_taken_is_one_level_without_wildcards_and_stays_as_it_is(text: str):
    try:
        name = check_name(text)
    except Malformed:
        return
    assert check_name(name) == name
    assert "/" not in name
    assert not is_wild(name)
    assert not name.startswith("$")
    assert name.encode().decode() == name


def test_errors_show_names_without_obeying_them():
    assert quoted("a\x1b[31m") == '"a\\x1b[31m"'
    assert len(quoted("x" * 1000)) < 100
