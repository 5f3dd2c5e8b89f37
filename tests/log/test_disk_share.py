from collections.abc import Callable

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


def used(clock: Clock) -> DiskShare:
    share = DiskShare(clock)
    share.last_us = clock.monotonic_us()
    return share


def test_a_piece_is_synced_and_the_disk_left_to_others_for_as_long():
    clock, synced = Watched(), list[int]()
    used(clock).give_way(taking(clock, 700, synced))
    assert (synced, clock.waited) == ([700], [700])


def test_a_disk_that_is_slow_for_once_is_not_left_alone_for_as_long():
    clock = Watched()
    used(clock).give_way(taking(clock, 80_000, []))
    assert clock.waited == [PAUSE_US_MAX]


def test_who_is_alone_neither_syncs_nor_waits():
    clock, synced = Watched(), list[int]()
    share = used(clock)
    clock.advance(SHARED_US / 1_000_000)
    assert not share.is_shared()
    share.give_way(taking(clock, 700, synced))
    assert (synced, clock.waited) == ([], [])
