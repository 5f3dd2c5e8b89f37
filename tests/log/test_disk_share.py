from collections.abc import Callable

import pytest

from headwater import threads
from headwater.clock import Clock, ManualClock
from headwater.log.disk_share import PAUSE_US_MAX, SHARED_US, DiskShare


class Watched(ManualClock):
    """A clock on which waiting takes no time but its own."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[int | None] = []

    def wait(self, condition: threads.Condition, timeout_us: int | None) -> bool:
        self.waited.append(timeout_us)
        return False


def taking(clock: Watched, us: int, synced: list[int]) -> Callable[[], None]:
    def sync() -> None:
        clock.advance(us / 1_000_000)
        synced.append(us)

    return sync


def used(clock: Clock, *roots: str) -> DiskShare:
    """One whose disk groups of these roots went to, one after another."""
    share = DiskShare(clock)
    for root in roots:
        share.note([root], clock.monotonic_us())
    return share


def test_a_piece_is_synced_and_the_disk_left_to_others_for_as_long():
    clock, synced = Watched(), list[int]()
    used(clock, "other").give_way("bulk", taking(clock, 700, synced))
    assert (synced, clock.waited) == ([700], [700])


def test_a_disk_that_is_slow_for_once_is_not_left_alone_for_as_long():
    clock = Watched()
    used(clock, "other").give_way("bulk", taking(clock, 80_000, []))
    assert clock.waited == [PAUSE_US_MAX]


def test_who_is_alone_neither_syncs_nor_waits():
    clock, synced = Watched(), list[int]()
    share = used(clock, "other")
    clock.advance(SHARED_US / 1_000_000)
    assert not share.is_shared("bulk")
    share.give_way("bulk", taking(clock, 700, synced))
    assert (synced, clock.waited) == ([], [])


@pytest.mark.parametrize(
    ("committed", "is_shared"),
    [((), False), (("bulk",), False), (("bulk", "bulk"), False), (("other", "bulk"), True), (("bulk", "other"), True)],
)
def test_small_groups_of_its_own_root_do_not_slow_a_large_one_down(committed, is_shared):
    clock = Watched()
    assert used(clock, *committed).is_shared("bulk") is is_shared


@pytest.mark.parametrize(("committed", "is_shared"), [(("$sys",), False), (("other", "$sys"), True)])
def test_what_the_broker_tells_about_itself_slows_no_large_group_down(committed, is_shared):
    clock = Watched()
    assert used(clock, *committed).is_shared("bulk") is is_shared


def test_a_group_of_several_roots_is_one_of_others_too():
    clock = Watched()
    share = DiskShare(clock)
    share.note(["bulk", "other"], clock.monotonic_us())
    assert share.is_shared("bulk")
    assert share.is_shared("other")


def test_the_disk_is_its_own_again_once_the_others_have_been_quiet_though_its_own_root_was_not():
    clock = Watched()
    share = used(clock, "other")
    clock.advance(SHARED_US / 1_000_000)
    for _ in range(2):
        share.note(["bulk"], clock.monotonic_us())
    assert not share.is_shared("bulk")
