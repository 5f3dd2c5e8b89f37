"""What happened to a message, of rows that are right and a story that knows more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headwater.delivery.life import AFTER, NAMES, OPENED, REDRIVEN, LifeEntry
from headwater.message import DeadLetter, StateInfo, SubscriptionInfo
from headwater.work.comparison import Outcome
from headwater.work.past import FAILED, Past

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
TOPIC = "$sys/states/s"
FLOOR = 10


def past(asked: tuple[int, ...] = (1,)) -> Past:
    info = SubscriptionInfo(
        *("s", "home/#", "strict", 0, 0, 0, 0, 0),
        paused=False,
        floors={"home": FLOOR},
    )
    made = Past(info, {}, TOPIC, is_told=True)
    for offset in asked:
        made.ask("home", offset)
    return made


def tell(found: Past, *events: tuple[str, float] | tuple[str, float, dict[str, Any]], offset: int = 1) -> None:
    """Events of one message, so many seconds after noon."""
    states = {name: AFTER[event] for event, name in NAMES.items()}
    for event, at_s, *more in events:
        ranges = [] if event == OPENED else [(offset, offset)]
        state = None if event == OPENED else states[event]
        options: dict[str, Any] = {"root": "home", "ranges": ranges, **(more[0] if more else {})}
        found.tell(LifeEntry(NOON + timedelta(seconds=at_s), event, state, **options))


def test_what_was_acked_at_last_is_known_with_its_attempts_its_error_and_how_long_it_was_out() -> None:
    found = past()
    tell(found, ("taken", 0), ("nacked", 0.25, {"attempts": 1, "error": "cold"}), ("taken", 60), ("acked", 61))
    assert found.of("home", 1) == Outcome("acked", 2, "cold", 250_000)
    assert past().of("home", 1) == Outcome("acked"), "its rows alone do not know"


@pytest.mark.parametrize("event", sorted(FAILED - {"dead"}))
def test_each_way_to_fail_is_an_attempt_and_it_is_in_retry(event: str) -> None:
    found = past((11,))
    tell(found, ("taken", 0), (event, 30, {"error": "why"}), offset=11)
    assert found.of("home", 11) == Outcome("retry", 1, "why", 30_000_000)


def test_what_was_given_back_was_not_tried() -> None:
    found = past((11,))
    tell(found, ("taken", 0), ("recalled", 5), ("taken", 10), ("acked", 12), offset=11)
    assert found.of("home", 11) == Outcome("acked", 1, None, 2_000_000)


def test_a_letter_that_was_dropped_is_known_from_its_story_and_one_that_is_there_from_its_row() -> None:
    found = past((1, 2))
    for offset in (1, 2):
        tell(found, ("taken", 0), ("dead", 1, {"attempts": 1, "error": "never"}), offset=offset)
    found.add_letters([DeadLetter("s", "home/x", 2, b"", 0, None, (), 1, ("as stored",), 0)])
    assert found.of("home", 1) == Outcome("dead", 1, "never", 1_000_000)
    assert found.of("home", 2) == Outcome("dead", 1, "as stored", 1_000_000)


def test_what_was_redriven_is_not_done_before_it_is_acked_again() -> None:
    found = past()
    tell(found, ("taken", 0), ("dead", 1, {"error": "never"}), (REDRIVEN, 2, {"copies": True}))
    assert found.of("home", 1).end == "retry"
    tell(found, ("taken", 3, {"copies": True}), ("acked", 4, {"copies": True}))
    assert found.of("home", 1) == Outcome("acked", 2, "never", 1_000_000)


def test_rows_are_right_where_the_end_of_a_story_was_lost_with_its_process() -> None:
    found = past()
    tell(found, ("taken", 0), ("nacked", 1, {"error": "cold"}), ("taken", 2), (OPENED, 10))
    assert found.of("home", 1) == Outcome("acked", None, "cold", 1_000_000)
    found.add_states([StateInfo("home", "home/x", 1, "retry", 3, errors=("hot",))])
    assert found.of("home", 1) == Outcome("retry", 3, "hot", 1_000_000)


def test_what_was_in_flight_as_the_process_ended_waits() -> None:
    found = past((11,))
    tell(found, ("taken", 0), (OPENED, 10), ("taken", 20), ("acked", 21), offset=11)
    assert found.of("home", 11) == Outcome("acked", 1, None, 1_000_000)
    assert past((11,)).of("home", 11) == Outcome("waiting")


def test_of_long_runs_only_what_is_asked_for_is_kept_whatever_its_order() -> None:
    found = past((7, 3, 5))
    found.tell(LifeEntry(NOON, "taken", "in_flight", "home", [(1, 4), (6, 1_000_000_000)]))
    found.tell(LifeEntry(NOON, "taken", "in_flight", "other", [(1, 1_000_000_000)]))
    assert sorted(found._stories) == [("home", 3), ("home", 7)]


def test_entries_that_were_lost_are_counted() -> None:
    found = past()
    found.tell(LifeEntry(NOON, "lost", count=7))
    assert found.lost == 7


def test_nothing_is_read_where_nothing_is_told() -> None:
    info = SubscriptionInfo("s", "home/#", "strict", 0, 0, 0, 0, 0, False, {})
    assert Past(info, {}, TOPIC, is_told=False).told_on is None
    assert Past(info, {"states": "stream"}, TOPIC, is_told=False).told_on == TOPIC
