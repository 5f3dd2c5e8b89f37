"""The errors: one tree, which the module's docstring draws, and codes that a client can rely on."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

import headwater
from headwater import Gap, HeadwaterError, errors

LINE = re.compile(r"^(?P<indent>[│ ]*)[├└]── (?P<name>\w+) *(?P<code>\d{3})? +(?P<text>\S.*)$")


def drawn() -> dict[str, tuple[str, int, str]]:
    """Each error in the docstring: its parent, its code (its parent's, if none is drawn), its line."""
    found: dict[str, tuple[str, int, str]] = {}
    above: list[str] = []
    for line in (inspect.getdoc(errors) or "").splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        depth = len(match["indent"]) // 4
        parent = above[depth - 1] if depth else "HeadwaterError"
        code = int(match["code"]) if match["code"] else found[parent][1]
        found[match["name"]] = (parent, code, match["text"])
        above[depth:] = [match["name"]]
    return found


def real() -> dict[str, type[HeadwaterError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, HeadwaterError) and value is not HeadwaterError
    }


def test_the_docstring_draws_the_real_tree_with_the_real_codes() -> None:
    tree = {name: (error.__base__.__name__, error.code) for name, error in real().items() if error.__base__}
    assert {name: (parent, code) for name, (parent, code, _) in drawn().items()} == tree
    assert len(tree) >= 15


def test_siblings_are_drawn_in_the_order_in_which_they_are_defined() -> None:
    assert list(drawn()) == list(real())


@pytest.mark.parametrize("name", sorted(real()))
def test_every_error_is_exported_and_says_what_it_is(name: str) -> None:
    error = real()[name]
    assert getattr(headwater, name) is error
    assert name in headwater.__all__
    assert error.__doc__
    assert issubclass(error, HeadwaterError)


def test_the_codes_are_those_of_the_design() -> None:
    codes = {name: error.code for name, error in real().items()}
    wanted = {
        "Unauthenticated": 401,
        "NotAllowed": 403,
        "NotFound": 404,
        "Conflict": 409,
        "TooLarge": 413,
        "Malformed": 422,
        "QuotaExceeded": 429,
        "Disconnected": 503,
        "DiskFull": 503,
        "TooManyFiles": 503,
        "ReadOnly": 503,
        "TimedOut": 504,
    }
    assert {name: codes[name] for name in wanted} == wanted


def test_whether_the_same_call_may_succeed_later_is_told() -> None:
    assert {name for name, error in real().items() if error.retryable} == {
        "Unwritable",
        "Unavailable",
        "SteppedDown",
        "Disconnected",
        "DiskFull",
        "NoResponders",
        "Owned",
        "QuotaExceeded",
        "TimedOut",
        "TooManyFiles",
    }


def test_an_error_reads_as_its_name_its_code_and_its_sentence() -> None:
    assert str(headwater.NotAllowed('client "sensor-7" may not publish')) == (
        'NotAllowed(403): client "sensor-7" may not publish'
    )
    assert str(HeadwaterError()) == "HeadwaterError(500): "


def test_a_gap_names_its_root_and_offsets_and_says_what_to_do() -> None:
    gap = Gap("home", 5, 9, "deleted by retention")
    assert (gap.root, gap.first, gap.last, gap.reason) == ("home", 5, 9, "deleted by retention")
    assert re.match(r'Gap\(410\): messages 5 to 9 of "home" are gone \(deleted by retention\).*on_gap="skip"', str(gap))


@pytest.mark.parametrize(
    "error",
    [
        Gap("home", 5, 9, "why"),
        headwater.Conflict("no"),
        headwater.PartlyStored("half of it", [headwater.Receipt("a/1", 1, 2), None], {}, retryable=True),
    ],
    ids=lambda e: type(e).__name__,
)
def test_errors_can_be_sent_to_another_process(error: HeadwaterError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)
