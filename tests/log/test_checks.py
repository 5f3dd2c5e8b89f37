"""What is wrong with a publish is said before anything changes, and what goes to several roots is parted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater.clock import SECOND_US, ManualClock
from headwater.config import Config
from headwater.errors import HeadwaterError, Malformed, NotAllowed, TooLarge
from headwater.log import checks as module
from headwater.log.checks import TIME_AHEAD_US_MAX, Checks
from headwater.log.publish import Publish
from headwater.store.batch import checksum
from headwater.store.body import encode_body
from log.place import Place

ROOTS = ("a/1", "b/1", "a/2")
"""Topics of two roots."""


@pytest.fixture
def checks() -> Checks:
    return Checks(Config(), ManualClock())


def many(checks: Checks, *topics: Any) -> Publish:
    return checks.many([(topic, str(number).encode()) for number, topic in enumerate(topics)], None, None)


def parted(item: Publish) -> list[tuple[str, list[str], list[bytes], list[int]]]:
    """What goes to each root: topics, payloads, and where they stood in the call."""
    found = []
    for part in item.parts:
        part.decode()
        assert part.columns is not None
        payloads = [part.columns.payload(place) for place in range(part.columns.count)]
        found.append((part.root, list(part.topics), payloads, list(part.positions)))
    return found


def test_what_goes_to_several_roots_is_parted_again_and_again(checks: Checks) -> None:
    wanted = [("a", ["a/1", "a/2"], [b"0", b"2"], [0, 2]), ("b", ["b/1"], [b"1"], [1])]
    assert [parted(many(checks, *ROOTS)) for _ in range(3)] == [wanted] * 3


def test_calls_that_begin_alike_are_parted_each_by_its_own_topics(checks: Checks) -> None:
    assert [part.root for part in many(checks, *ROOTS).parts] == ["a", "b"]
    assert [(part.root, list(part.positions)) for part in many(checks, "a/1", "c/1").parts] == [("a", [0]), ("c", [1])]
    assert [(part.root, list(part.positions)) for part in many(checks, "a/1", "a/2").parts] == [("a", [0, 1])]
    assert [(part.root, list(part.positions)) for part in many(checks, *ROOTS).parts] == [("a", [0, 2]), ("b", [1])]


def test_more_of_them_than_are_remembered_are_parted_right(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARES_MAX", 2)
    few = Checks(Config(), ManualClock())
    for _ in range(2):
        for number in range(5):
            item = many(few, f"a/{number}", f"b/{number}")
            assert [list(part.topics) for part in item.parts] == [[f"a/{number}"], [f"b/{number}"]]


@pytest.mark.parametrize("topic", [None, 1, [], b"a", "", "a/+", "#"])
def test_what_is_no_topic_is_refused_wherever_it_stands(checks: Checks, topic: Any) -> None:
    many(checks, *ROOTS)
    for topics in ((topic,), (topic, "b/1"), ("a/1", topic)):
        with pytest.raises(Malformed):
            many(checks, *topics)


@pytest.mark.parametrize("root", ["$sys", "$SYS", "$staged", "$delayed", "$dead"])
def test_the_brokers_own_topics_are_nobodys_to_publish_to(checks: Checks, root: str) -> None:
    with pytest.raises((Malformed, NotAllowed)):
        checks.one(f"{root}/x", b"")


def body(topic: str = "a/x", payload: bytes = b"1", time_us: int = 1) -> bytes:
    return encode_body((topic,), (payload,), time_us)


@pytest.mark.parametrize(
    ("root", "count", "data", "damage", "error"),
    [
        ("a", 1, body(), 1, Malformed),
        ("b", 1, body(), 0, Malformed),
        ("a", 2, body(), 0, Malformed),
        ("a", 1, body() + bytes(8), 0, Malformed),
        ("a", 1, body()[:-8], 0, Malformed),
        ("a", 1, body("a/+"), 0, Malformed),
        ("a", 1, body(time_us=-1), 0, Malformed),
        ("a", 1, body(payload=bytes(1001)), 0, TooLarge),
        ("a", 1, body(payload=bytes(10_001)), 0, TooLarge),
    ],
    ids=["crc", "root", "count", "longer", "shorter", "topic", "time", "message", "batch"],
)
@pytest.mark.parametrize("may_join", [False, True])
def test_what_is_wrong_with_a_body_is_found(
    root: str, count: int, data: bytes, damage: int, error: type[HeadwaterError], may_join: bool
) -> None:
    small = Checks(Config(message_bytes_max=1000, batch_bytes_max=10_000), ManualClock())
    small.one("a/x", b"")  # its topic is known
    with pytest.raises(error):
        small.body(root, count, checksum(data) ^ damage, data, may_join)


@pytest.mark.parametrize("may_join", [False, True])
def test_a_body_from_a_clock_that_is_a_little_ahead_is_taken_and_from_one_far_ahead_is_not(may_join: bool) -> None:
    clock = ManualClock()
    checks = Checks(Config(), clock)
    checks.one("a/x", b"")
    near, far = (body(time_us=clock.now_us() + TIME_AHEAD_US_MAX + off_us) for off_us in (0, SECOND_US))
    for _ in range(2):
        assert checks.body("a", 1, checksum(near), near, may_join).topics == ("a/x",)
        with pytest.raises(Malformed, match="more than a day ahead"):
            checks.body("a", 1, checksum(far), far, may_join)


def test_a_refused_call_has_changed_nothing(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "data"))
    with pytest.raises(Malformed):
        place.publish(many(place.checks, "a/1", "b/+"))
    assert place.roots.all() == []
    place.close()
